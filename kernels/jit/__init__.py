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
