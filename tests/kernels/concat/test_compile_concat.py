"""Compiled concats: the formula's bits at every width, copies where nothing changes, the reference's numbers."""
import numpy as np
import pytest
from compiled import compiled_beside_reference as check

import graphq as gq
from graphq.kernels.concat.family import lower_concat
from graphq.kernels.family.unsupported import Unsupported

SHAPES = [  # axis, shapes
    (-1, [(2, 3, 4, 5), (2, 3, 4, 70), (2, 3, 4, 1)]), (0, [(2, 5), (1, 5), (3, 5)]), (1, [(2, 3, 4), (2, 1, 4)]),
    (2, [(1, 1, 3), (1, 1, 4)]), (1, [(4, 1), (4, 1)]), (0, [(3,)]),
    (-1, [(0, 3), (0, 4)]), (1, [(2, 2, 3), (2, 0, 3), (2, 1, 3)]),
]


def quantized(axis, shapes, scales, dtype="u8", out=(0.05, 3), epilogue=None):
    """Sources of the given (scale, zero point), and one of the result."""
    g = gq.Graph()
    xs = [g.dequantize(g.input(f"x{k}", dtype=dtype, shape=shape), scales=[scale], zps=[zp])
          for k, (shape, (scale, zp)) in enumerate(zip(shapes, scales, strict=True))]
    y = g.concat(*xs, axis=axis)
    y = y if epilogue is None else epilogue(g, y)
    g.output(g.quantize(y, dtype=dtype, scales=[out[0]], zps=[out[1]]), name="y")
    return g


@pytest.mark.parametrize("axis,shapes", SHAPES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_plain(axis, shapes, dtype):
    g = gq.Graph()
    g.output(g.concat(*(g.input(f"x{k}", dtype=dtype, shape=s) for k, s in enumerate(shapes)), axis=axis), name="y")
    got, want, report = check(g, None)
    assert got.tobytes() == want.tobytes() and "eltwise" not in report


@pytest.mark.parametrize("dtype", ["boolean", "s64", "u4", "f8_e4m3"])
def test_types_that_lanes_do_not_store(dtype):
    g = gq.Graph()
    xs = [g.input(f"x{k}", dtype=dtype, shape=(2, 3)) for k in range(2)]
    g.output(g.concat(*xs, axis=1), name="y")
    arrays = [np.array([[1, 0, 1], [0, 0, k]]).astype(x.dtype.numpy) for k, x in enumerate(xs)]
    assert gq.compile(g)(*arrays).tobytes() == np.concatenate(arrays, axis=1).tobytes()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_cast_after_it_is_no_copy(dtype):
    g = gq.Graph()
    y = g.concat(*(g.input(f"x{k}", dtype=dtype, shape=(2, 5 + k)) for k in range(2)), axis=1)
    g.output(g.type_cast(y, dtype="f32"), name="y")
    got, want, _ = check(g, None)
    assert got.tobytes() == want.tobytes() and want.any()


@pytest.mark.parametrize("axis,shapes", SHAPES)
def test_sources_of_other_scales(width, axis, shapes):
    scales = [(0.05, 3), (0.0317, 120), (0.09, 0)][:len(shapes)]
    got, want, report = check(quantized(axis, shapes, scales), width)
    assert (got == want).all()
    if got.size:
        assert "copying" in report  # the first source has the scale of the result


def test_a_returned_relu_and_one_scale_for_each_channel(width):
    g = gq.Graph()
    xs = [g.dequantize(g.input(f"x{k}", dtype="s8", shape=(2, 3, c)), scales=[0.1]) for k, c in enumerate((3, 20))]
    y = g.relu(g.concat(*xs, axis=2))
    scales = np.linspace(0.02, 0.3, 23)
    g.output(g.quantize(y, dtype="u8", qtype="per_channel", axis=2, scales=scales.tolist(), zps=[*range(23)]), name="y")
    got, want, _ = check(g, width)
    assert (got == want).all()


def test_operands_that_do_not_vary_along_the_axis(width):
    def epilogue(g, y):
        return g.add(y, g.input("b", dtype="f32", shape=(3, 1)))

    got, want, _ = check(quantized(-1, [(2, 3, 4), (2, 3, 5)], [(0.05, 3), (0.1, 9)], epilogue=epilogue), width)
    assert (got == want).all()


def test_one_source_twice():
    g = gq.Graph()
    x = g.dequantize(g.input("x", dtype="u8", shape=(2, 3)), scales=[0.1])
    g.output(g.quantize(g.concat(x, x, axis=1), dtype="u8", scales=[0.2]), name="y")
    got, want, _ = check(g, None)
    assert (got == want).all()


def test_sources_with_scales_along_the_axis(width):
    """Each source has its own scales, the second and the third not those of the first."""
    g = gq.Graph()
    xs = [g.dequantize(g.input(f"x{k}", dtype="u8", shape=(2, c)), qtype="per_channel", axis=1,
                       scales=np.linspace(0.05, 0.3 + k, c).tolist(), zps=[*range(c)]) for k, c in enumerate((3, 4, 2))]
    g.output(g.quantize(g.concat(*xs, axis=1), dtype="s8", scales=[0.25]), name="y")
    got, want, _ = check(g, width)
    assert (got == want).all()


def refusal(epilogue, shape=(2, 3)):
    body = gq.Graph("body")
    y = body.concat(*(body.input(f"x{k}", dtype="f32", shape=shape) for k in range(2)), axis=1)
    body.output(epilogue(body, y), name="y")
    with pytest.raises(Unsupported) as error:
        lower_concat(body)
    return str(error.value)


def test_what_varies_along_the_axis_is_refused():
    said = refusal(lambda g, y: g.add(y, g.input("b", dtype="f32", shape=(6,))))
    assert said == "an operand of add, f32[6], varies along axis 1, the axis of the concat"
    for shape in ((2, 3), (2, 3, 6), (2, 3, 4, 5, 6)):  # numpy's broadcasting would have it along the last axis
        said = refusal(lambda g, y: g.bias_add(y, g.input("b", dtype="f32", shape=(6,)), data_format="NCX"), shape)
        assert said == "an operand of bias_add, f32[6], varies along axis 1, the axis of the concat"
    assert refusal(lambda g, y: g.add(y, g.input("b", dtype="f32", shape=(4, 2, 6)))).startswith("the epilogue changes")


@pytest.mark.parametrize("epilogue, reason", [
    (lambda g, y: g.cast(y, dtype="s64"), "kernels do not cast f32 to s64"),
    (lambda g, y: g.softmax(g.relu(y), axis=0), "no lane-wise rule for softmax")])
def test_what_kernels_do_not_compute_of_a_part_is_refused(epilogue, reason):
    assert refusal(epilogue) == reason


def test_parts():
    body = gq.Graph("body")
    a, b = (body.input(n, dtype="u8", shape=(2, c)) for n, c in (("a", 3), ("b", 4)))
    row = body.input("row", dtype="f32", shape=(2, 1))
    y = body.add(body.concat(body.dequantize(a, scales=[0.5]), body.dequantize(b, scales=[0.25]), axis=-1), row)
    body.output(body.quantize(y, dtype="u8", qtype="per_channel", axis=-1, scales=[0.1 * (k + 1) for k in range(7)]),
                name="y")
    lowered = lower_concat(body)
    assert lowered.axis == 1 and [(p.start, p.inputs) for p in lowered.parts] == [(0, (0, 2)), (3, (1, 2))]
    numbers = [s.data.tolist() for p in lowered.parts for s in p.lowered.sources if s.data is not None]
    for part in range(0, 3), range(3, 7):
        assert [float(np.float32(0.1 * (k + 1))) for k in part] in numbers
    rng = np.random.default_rng(0)
    data = [rng.integers(0, 99, (2, 3)).astype(np.uint8), rng.integers(0, 99, (2, 4)).astype(np.uint8),
            rng.normal(size=(2, 1)).astype(np.float32)]
    assert np.array_equal(lowered.formula(data), gq.reference(body, dict(zip(("a", "b", "row"), data, strict=True))))
    assert not any(p.copies for p in lowered.parts)
