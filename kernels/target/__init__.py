"""Everything that knows an instruction, a feature or a mnemonic of a CPU."""

from typing import Literal, TypeAlias

LevelName: TypeAlias = Literal["scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx", "neon",
                              "neon_dot", "neon_i8mm"]
"""The names of the ISA levels (`isa.LEVELS`), for type checkers. It is here because `isa` imports LLVM's IR builder."""
