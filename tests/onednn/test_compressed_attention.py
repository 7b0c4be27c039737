"""Attention to compressed keys and values as oneDNN Graph has it: groups of 8 or 4 bits, with scales of a call."""
import numpy as np
import pytest

import graphq as gq


def attention(rows, dtype, floats, group=8, heads=3, size=16, keys=40):
    """softmax(q @ K / sqrt(size) + mask) @ V; the numbers of K and V have scales and zero points by groups."""
    g = gq.Graph("compressed_attention")
    q = g.input("q", dtype=floats, shape=(2, heads, rows, size))
    dense = []
    for name, shape, groups in (("k", (2, heads, size, keys), (1, 1, group, 1)),
                                ("v", (2, heads, keys, size), (1, 1, 1, group))):
        counts = [d // n for d, n in zip(shape, groups, strict=True)]
        dense.append(g.dynamic_dequantize(
            g.input(name, dtype=dtype, shape=shape), g.input(f"{name}_scales", dtype=floats, shape=counts),
            g.input(f"{name}_zps", dtype=dtype, shape=counts), qtype="per_group", group_shape=groups))
    scores = g.divide(g.matmul(q, dense[0]), g.input("root", dtype=floats, shape=(1,)))
    scores = g.add(scores, g.input("mask", dtype=floats, shape=(2, 1, rows, keys)))
    g.output(g.matmul(g.softmax(scores, axis=-1), dense[1]), name="y")
    return g


@pytest.mark.parametrize("floats", ["f32", "f16"])
@pytest.mark.parametrize("dtype", ["s8", "u8", "s4", "u4"])
@pytest.mark.parametrize("rows", [1, 5])
def test_files_of_it_run_in_kernels_alone(rows, dtype, floats, tmp_path):
    gq.save_onednn_json(attention(rows, dtype, floats), tmp_path / "attention.json")
    g = gq.load_onednn_json(tmp_path / "attention.json")
    rng = np.random.default_rng(rows)
    arrays = {}
    for v in g.inputs:
        kind = v.dtype.numpy
        arrays[v.name] = (rng.integers(v.dtype.min, v.dtype.max + 1, v.type.dims) if v.dtype.name == dtype else
                          rng.uniform(0.01, 0.1, v.type.dims)).astype(kind)
    model = gq.compile(g, strict=True)
    got, want = model(arrays), gq.reference(g, arrays)
    assert got.tobytes() == model.formula(arrays).tobytes()
    error = 1e-5 if floats == "f32" else 2e-3
    np.testing.assert_allclose(got, want, rtol=error, atol=error)
