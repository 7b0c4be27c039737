"""Kernel records and their selection."""
from itertools import product

import pytest

from graphq.errors import KernelError
from graphq.kernels.matmul import kernel_table
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.kernel_table import KERNELS, register_kernel, select
from graphq.kernels.matmul_compressed import tiles as compressed_tiles
from graphq.kernels.target import isa

U8 = ("u8", "s8")
VNNI = isa.level_named("avx512_vnni")


def test_names_are_derived():
    assert matmul.plan_matmul and "matmul_u8s8_6x64_avx512_vnni" in KERNELS
    for name, kernel in KERNELS.items():
        assert name == kernel.name
        assert kernel.level in {level.name for level in isa.LEVELS}


def test_second_registration_is_refused(monkeypatch):
    monkeypatch.setattr(kernel_table, "KERNELS", dict(KERNELS))
    with pytest.raises(KernelError, match="a second kernel named matmul_u8s8_6x64_avx512_vnni"):
        register_kernel(kernel_table.build_vectors, (U8,), ((6, 64),), VNNI, kernel_table.estimate_matrix)
    register_kernel(kernel_table.build_vectors, (U8,), ((7, 64),), VNNI, kernel_table.estimate_matrix)
    assert "matmul_u8s8_7x64_avx512_vnni" in kernel_table.KERNELS


@pytest.mark.parametrize("tile", [(33, 16), (0, 16), (4, 0), (4, 24)])
def test_tiles_of_too_many_rows_or_parts_of_panels_are_refused(tile, monkeypatch):
    monkeypatch.setattr(kernel_table, "KERNELS", {})
    with pytest.raises(KernelError, match="a tile has 1 to 32 rows, and columns in panels of 16"):
        register_kernel(kernel_table.build_vectors, (U8,), (tile,), VNNI, kernel_table.estimate_matrix)
    register_kernel(kernel_table.build_vectors, (U8,), ((32, 16),), VNNI, kernel_table.estimate_matrix)


@pytest.mark.parametrize("level", isa.LEVELS, ids=lambda x: x.name)
@pytest.mark.parametrize("dtypes", (*kernel_table.DTYPES, *kernel_table.FLOATS))
def test_every_level_has_a_kernel_for_every_size(level, dtypes):
    for m, n, k in ((1, 1, 1), (1, 1024, 1024), (2, 64, 64), (1024, 1024, 1024), (0, 0, 0), (10**6, 3, 27)):
        kernel = select(dtypes, m, n, k, level)
        assert kernel.dtypes == dtypes and level.includes(kernel.isa)


def test_small_m_takes_small_tiles():
    tiles = [select(U8, m, 1024, 1024, VNNI).tile[0] for m in (1, 2, 4, 6, 8, 32, 384)]
    assert tiles == [1, 2, 4, 6, 4, 4, 6]


def test_few_columns_take_tall_tiles():
    tiles = [select(U8, 10_000, n, 36, VNNI).tile for n in (1, 16, 24, 32, 48, 64, 96)]
    assert tiles == [(24, 16)] * 2 + [(12, 32)] * 2 + [(7, 48), (6, 64), (7, 48)]


def test_amx_takes_large_work_and_leaves_single_rows():
    amx = isa.level_named("amx")
    assert select(U8, 1024, 1024, 1024, amx).level == "amx"
    assert select(U8, 32, 768, 768, amx).tile == (32, 64)
    assert select(U8, 16, 768, 768, amx).tile == (16, 64)
    assert select(U8, 1, 1024, 1024, amx).level == "avx512_vnni"


def test_no_kernel_is_an_error():
    with pytest.raises(KernelError, match="no kernel for matmul on f32 u8 at ISA level scalar"):
        select(("f32", "u8"), 1, 1, 1, isa.level_named("scalar"))


@pytest.mark.parametrize("level", isa.LEVELS, ids=lambda x: x.name)
def test_each_kernel_is_selected_at_its_level_for_some_sizes(level):
    sizes = list(product((1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 33, 1000), (16, 32, 48, 64, 1000), (4, 64, 1000)))
    for dtypes in (*kernel_table.DTYPES, *kernel_table.SORTED_DTYPES, *kernel_table.PAIRED_DTYPES, *kernel_table.FLOATS,
                   *compressed_tiles.DTYPES, *compressed_tiles.FLOATS):
        own = {k.name for k in KERNELS.values() if k.dtypes == dtypes and k.level == level.name}
        never = own - {select(dtypes, *x, level).name for x in sizes if own}
        assert not never, "others cost less, or are of a higher level and cost the same"


def test_of_kernels_that_cost_the_same_one_of_the_highest_level_is_selected():
    assert select(U8, 1, 16, 1024, isa.level_named("avx512")).name == "matmul_u8s8_1x32_avx512"
    assert select(U8, 1, 16, 1024, isa.level_named("avx512_vnni")).name == "matmul_u8s8_1x64_avx512_vnni"
