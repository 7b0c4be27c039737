"""Tiles that write outputs from registers write what the epilogue's function writes, and enter the same ties."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.matmul import kernel_table
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.kernel_table import KERNELS
from graphq.kernels.target import isa

TILES = [k for k in KERNELS.values()
         if k.level not in ("scalar", "amx") and k.dtypes in (
             *kernel_table.DTYPES, *kernel_table.SORTED_DTYPES, *kernel_table.PAIRED_DTYPES)]


def layer(m, n, k, *, a_dtype="u8", dtype="u8", residual=False):
    """A matmul with a bias, quantized; with a residual it is quantized before, too. Columns of zeros are all ties."""
    rng = np.random.default_rng(0)
    g = gq.Graph()
    a = g.dequantize(g.input("x", shape=(m, k), dtype=a_dtype), scales=[0.02], zps=[3])
    w = rng.integers(-128, 128, (k, n)).astype(np.int8)
    w[:, ::5] = 0
    b = g.dequantize(g.constant(w), qtype="per_channel", axis=1, scales=np.geomspace(1e-4, 1e-2, n).tolist())
    bias = rng.normal(size=n).astype(np.float32)
    bias[::5] = np.float32(0.07) * np.float32(4.5)
    y = g.matmul(a, b, g.constant(bias))
    if residual:
        y = g.dequantize(g.quantize(y, dtype="u8", scales=[0.05], zps=[119]), scales=[0.05], zps=[119])
        y = g.add(y, g.dequantize(g.input("r", shape=(m, n), dtype="u8"), scales=[0.03], zps=[7]))
    g.output(g.quantize(g.relu(y), dtype=dtype, scales=[0.07], zps=[0]), name="y")
    return g


def inputs(g):
    rng = np.random.default_rng(1)
    return {str(v.name): rng.integers(-128, 128, v.type.dims).astype(v.dtype.numpy) for v in g.inputs}


OPTIONS = {"plain": dict(), "residual": dict(residual=True), "s8": dict(a_dtype="s8", dtype="s8")}
IN_TURN = [(k.name, list(OPTIONS)[(turn + n) % 3], more)
           for turn, k in enumerate(k for k in TILES if k.dtypes[0] == "u8") for n, more in enumerate((19, 24))]
"""Each tile with two of the options: the tiles of a level, and of a shape, together have all three."""


@pytest.mark.parametrize("name, options, more", IN_TURN)
def test_tiles_write_what_functions_do(name, options, more, monkeypatch):
    """The last panel has 3 columns, or half of its 16."""
    kernel, options = KERNELS[name], OPTIONS[options]
    tile = kernel.tile
    if kernel.level not in [level.name for level in isa.available()]:
        pytest.skip(f"no {kernel.level}")
    kernel = KERNELS.get(kernel.name.replace("_u8", "_" + options.get("a_dtype", "u8")))
    if kernel is None:
        pytest.skip("these activations have the tile of a lower level")
    monkeypatch.setattr(matmul, "select", lambda *args, **more: kernel)
    g = layer(2 * tile[0] + 1, 2 * tile[1] + more, 24 if kernel.dtypes[1] == kernel_table.PAIRED else 21, **options)
    given, made, choose = inputs(g), {}, matmul._writer
    chosen = []

    def writer_of(*args):
        chosen.append(choose(*args))
        return chosen[-1]

    monkeypatch.setattr(matmul, "_writer", writer_of)
    for writer, many in ((matmul.BY_FUNCTION, 1 << 30), (matmul.BY_BOTH, 0)):
        monkeypatch.setattr(matmul, "MANY", many)
        made[writer] = gq.compile(g, isa=kernel.level, threads=1, strict=True)(given)
        assert chosen[-1] == writer  # the ones before may be of self-tests
    np.testing.assert_array_equal(made[matmul.BY_BOTH], made[matmul.BY_FUNCTION])
    np.testing.assert_array_equal(made[matmul.BY_BOTH], gq.reference(g, given))
