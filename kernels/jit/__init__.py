"""Compiling kernels by Numba and LLVM, keeping them on disk and loading them; ISA levels and their instructions."""
