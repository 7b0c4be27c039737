"""Compile kernels with Numba and LLVM, cache the machine code on disk, and load it."""
