"""Numba and LLVM: kernels compiled, kept on disk and loaded; ISA levels and instructions."""
