"""Compile kernels with Numba and LLVM, cache the machine code on disk, and load it.

Other rooms import these names from here. The values that emitted code is written with are in `values`, the functions
that Numba code calls in `intrinsics`.
"""
from graphq.kernels.jit.code import S32X16, Loop, flushed, interleave, load_bytes, load_first, store_first, tail_mask
from graphq.kernels.jit.codegen import Functions, block_module
from graphq.kernels.jit.deferred import Deferred, Intrinsic, emits, njit
from graphq.kernels.jit.memory import LINE, address_of, aligned_empty, lasting_empty
from graphq.kernels.jit.modules import Function, FunctionTable, Module, saved
from graphq.kernels.jit.values import Operand, Type

__all__ = [
    "LINE", "S32X16", "Deferred", "Function", "FunctionTable", "Functions", "Intrinsic", "Loop", "Module", "Operand",
    "Type", "address_of", "aligned_empty", "block_module", "emits", "flushed", "interleave", "lasting_empty",
    "load_bytes", "load_first", "njit", "saved", "store_first", "tail_mask",
]
