"""Kernel records and their selection."""
import numpy as np
import pytest

from graphq.errors import KernelError
from graphq.kernels.jit import isa, registry
from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.kernels.jit.records import Record
from graphq.kernels.jit.registry import KERNELS, Step, register_kernel, select
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul import tiles as matmul_tiles

U8 = ("u8", "s8")


def test_names_are_derived():
    assert matmul.plan_matmul and "matmul_u8s8_6x64_avx512_vnni" in KERNELS
    for name, kernel in KERNELS.items():
        assert name == kernel.name
        assert kernel.level in {level.name for level in isa.LEVELS}


def test_second_registration_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "KERNELS", dict(KERNELS))
    with pytest.raises(KernelError, match="a second kernel named matmul_u8s8_6x64_avx512_vnni"):
        register_kernel("matmul", (U8,), ((6, 64),), "avx512_vnni", matmul_tiles.estimate_amx)(matmul_tiles.build_vnni)
    register_kernel("matmul", (U8,), ((7, 64),), "avx512_vnni", matmul_tiles.estimate_amx)(matmul_tiles.build_vnni)
    assert "matmul_u8s8_7x64_avx512_vnni" in registry.KERNELS


@pytest.mark.parametrize("level", isa.LEVELS, ids=lambda x: x.name)
@pytest.mark.parametrize("dtypes", (*matmul_tiles.DTYPES, *matmul_tiles.FLOATS))
def test_every_level_has_a_kernel_for_every_size(level, dtypes):
    for m, n, k in ((1, 1, 1), (1, 1024, 1024), (2, 64, 64), (1024, 1024, 1024), (0, 0, 0), (10**6, 3, 27)):
        kernel = select("matmul", dtypes, m, n, k, level)
        assert kernel.dtypes == dtypes and level.includes(kernel.level)


def test_small_m_takes_small_tiles():
    vnni = isa.level_named("avx512_vnni")
    tiles = [select("matmul", U8, m, 1024, 1024, vnni).tile[0] for m in (1, 2, 4, 6, 8, 32, 384)]
    assert tiles == [1, 2, 4, 6, 4, 4, 6]


def test_few_columns_take_tall_tiles():
    vnni = isa.level_named("avx512_vnni")
    tiles = [select("matmul", U8, 10_000, n, 36, vnni).tile for n in (1, 16, 24, 32, 48, 64, 96)]
    assert tiles == [(24, 16)] * 2 + [(12, 32)] * 2 + [(7, 48), (6, 64), (7, 48)]


def test_amx_takes_large_work_and_leaves_single_rows():
    amx = isa.level_named("amx")
    assert select("matmul", U8, 1024, 1024, 1024, amx).level == "amx"
    assert select("matmul", U8, 32, 768, 768, amx).tile == (32, 64)
    assert select("matmul", U8, 16, 768, 768, amx).tile == (16, 64)
    assert select("matmul", U8, 1, 1024, 1024, amx).level == "avx512_vnni"


def test_selection_logs_what_it_considered():
    log: list[str] = []
    chosen = select("matmul", U8, 64, 64, 64, isa.level_named("avx2"), log)
    assert [line.split(":")[0] for line in log] == [k.name for k in KERNELS.values() if k.dtypes == U8
                                                    and k.op == "matmul" and k.level in ("scalar", "avx2")]
    assert [line for line in log if "chosen" in line] == [line for line in log if line.startswith(chosen.name)]


def test_no_kernel_is_an_error():
    with pytest.raises(KernelError, match="no kernel for matmul on f32 u8 at ISA level scalar"):
        select("matmul", ("f32", "u8"), 1, 1, 1, isa.level_named("scalar"))


def test_arguments_of_a_step_are_filled_in_by_their_names():
    record = Record("source", "target", "size")
    step = Step("x", 0, record, {"size": 7}, 1, more=[8])
    assert record.number("size") == 2 and record.nbytes == 24
    args = step.arguments({"target": 5, "source": 4}, [(1, 2, 3), (7, 8, 9)])
    assert args.dtype == np.int64 and args.tolist() == [4, 5, 7, 8, *[0] * (HEADER_WORDS - 4), 1, 2, 3, 7, 8, 9]
    for fill in (step.arguments, record.words):
        with pytest.raises(KernelError, match=r"no fields \['length'\] in an argument block of source, target, size"):
            fill({"length": 1})
