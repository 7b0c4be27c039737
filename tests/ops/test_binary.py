import operator

import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import DTYPES, as_dtype
from graphq.errors import GraphError

INF, NAN = np.inf, np.nan
rng = np.random.default_rng(5)

ARITHMETIC = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
              "maximum": np.maximum, "minimum": np.minimum, "squared_difference": lambda a, b: (a - b) ** 2}


def normal(shape, dtype="f32"):
    return rng.standard_normal(shape).astype(DTYPES[dtype].numpy)


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("a, b", [((2, 3), (2, 3)), ((2, 3), (3,)), ((), (2, 3)), ((2, 1), (1, 3)), ((0, 3), (1, 3)),
                                  ((4, 1, 2), (3, 1)), ((), ()), ((1,), (0,))])
def test_values(run, float_dtype, name, a, b):
    x, y = normal(a, float_dtype), normal(b, float_dtype)
    want = ARITHMETIC[name](x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
    got = run(name, x, y)
    assert got.shape == np.broadcast_shapes(a, b)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
@pytest.mark.parametrize("a, b", [("f32", "bf16"), ("f16", "f32")])
def test_mixed_dtypes_give_f32(run, name, a, b):
    x, y = normal((3, 4), a), normal((4,), b)
    got = run(name, x, y)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, ARITHMETIC[name](x.astype(np.float32), y.astype(np.float32)))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
@pytest.mark.parametrize("a, b, out", [("bf16", "bf16", "f32"), ("f32", "f32", "bf16"), ("bf16", "f16", "f32"),
                                       ("f32", "bf16", "f16")])
def test_a_result_of_another_float_is_rounded_once(run, name, a, b, out):
    x, y = normal((3, 4), a), normal((4,), b)
    got = run(name, x, y, dtype=out)
    assert got.dtype == as_dtype(out).numpy
    want = ARITHMETIC[name](x.astype(np.float32), y.astype(np.float32)).astype(got.dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["add", "subtract"])
@pytest.mark.parametrize("a, b", [("s32", "s32"), ("s32", "f32"), ("f32", "s32")])
def test_sums_of_s32_in_f32(run, name, a, b):
    """Each source is rounded to f32 first, and the sum once more: so computes oneDNN 3.13."""
    x = np.array([2**24 + 1, 2**31 - 1, -(2**31), 2**25 + 3, 3, 5]).astype(as_dtype(a).numpy)
    y = np.array([0, 1, -1, 2**25 + 3, -3, 2]).astype(as_dtype(b).numpy)
    got = run(name, x, y, dtype="f32")
    want = ARITHMETIC[name](x.astype(np.float32), y.astype(np.float32))
    assert got.dtype == want.dtype and got.tolist() == want.tolist()
    g = gq.Graph()
    operands = [g.input(n, dtype=v.dtype, shape=v.shape) for n, v in (("x", x), ("y", y))]
    g.output(getattr(g, name)(*operands, dtype="f32"))
    assert gq.compile(g, strict=True)(x=x, y=y).tolist() == want.tolist()


@pytest.mark.parametrize("name, dtypes, dtype", [("multiply", "s32 s32", "f32"), ("add", "s32 bf16", "f32"),
                                                 ("add", "s32 s32", "bf16"), ("subtract", "f32 f32", "s32")])
def test_a_result_of_another_type_needs_floats(name, dtypes, dtype):
    g = gq.Graph()
    x, y = (g.input(f"x{k}", dtype=d, shape=[3]) for k, d in enumerate(dtypes.split()))
    with pytest.raises(gq.GraphError, match=f"{name}.*(dtype {dtype} and both operands must be floats|must be f32)"):
        getattr(g, name)(x, y, dtype=dtype)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_s32_wraps(run, shape):
    top, one = np.full(shape, 2**31 - 1, np.int32), np.full(shape, 1, np.int32)
    assert run("add", top, one).ravel().tolist() == [-(2**31)]
    assert run("subtract", -top, one + one).ravel().tolist() == [2**31 - 1]
    assert run("greater_equal", top, top - one).ravel().tolist() == [True]  # they are equal as f32


@pytest.mark.parametrize("name, a, b, want", [
    ("divide", [1, -1, 0, INF, NAN], [0, 0, 0, INF, 1], [INF, -INF, NAN, NAN, NAN]),
    ("multiply", [3e38, 0, NAN], [10, INF, 0], [INF, NAN, NAN]),
    ("subtract", [INF, 0.0], [INF, 0.0], [NAN, 0.0]),
    ("maximum", [NAN, 1, 0.0, -0.0, -0.0, INF], [1, NAN, -0.0, 0.0, -0.0, 1], [NAN, NAN, 0.0, 0.0, -0.0, INF]),
    ("minimum", [NAN, 1, 0.0, -0.0, 0.0, -INF], [1, NAN, -0.0, 0.0, 0.0, 1], [NAN, NAN, -0.0, -0.0, 0.0, -INF]),
])
def test_special_values(run, name, a, b, want):
    got = run(name, np.float32(a), np.float32(b))
    want = np.float32(want)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])


def test_greater_equal(run, float_dtype):
    dtype = DTYPES[float_dtype].numpy
    a, b = np.array([1, 2, NAN, 0.0, INF], dtype), np.array([1, 3, NAN, -0.0, NAN], dtype)
    assert run("greater_equal", a, b).tolist() == [True, False, False, True, False]


def test_select(run, float_dtype):
    cond = np.array([[True], [False]])
    a, b = normal((2, 3), float_dtype), normal((), float_dtype)
    np.testing.assert_array_equal(run("select", cond, a, b), np.stack([a[0], np.repeat(b, 3)]))
    assert run("select", cond[:, :0], a[:, :0], b).shape == (2, 0)


@pytest.mark.parametrize("slope, attrs, channel", [
    ((3,), {}, (3,)), ((2,), {"data_format": "NCX"}, (2, 1)), ((1,), {"data_format": "NCX"}, (1, 1)),
    ((3,), {"data_format": "NCX", "per_channel_broadcast": False}, (3,)), ((2, 1), {}, (2, 1)), ((), {}, ()),
    ((4, 2, 3), {}, (4, 2, 3)), ((1, 1, 1), {}, (1, 1, 1)), ((4, 1, 3), {"data_format": "NCX"}, (4, 1, 3)),
])
def test_prelu(run, float_dtype, slope, attrs, channel):
    x, s = normal((4, 2, 3), float_dtype), normal(slope, float_dtype)
    x[0, 0] = np.array([NAN, -0.0, INF]).astype(x.dtype)
    wide = x.astype(np.float32)
    want = np.where(wide < 0, wide * s.astype(np.float32).reshape(channel), wide).astype(x.dtype)
    np.testing.assert_array_equal(run("prelu", x, s, **attrs).astype(np.float32), want.astype(np.float32))


# -- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ARITHMETIC, "greater_equal"])
@pytest.mark.parametrize("a, b, want", [
    ("f32[?,3]", "f32[3]", "[?,3]"), ("f32[?]", "f32[4]", "[4]"), ("f32[?]", "f32[1]", "[?]"),
    ("f32[?]", "f32[?]", "[?]"), ("f32[0]", "f32[?]", "[0]"), ("f32[*]", "f32[4]", "[*]"),
    ("f32[]", "f32[?,2]", "[?,2]"), ("f32[0]", "f32[1]", "[0]"),
])
def test_broadcast_types(infer, name, a, b, want):
    out = "boolean" if name == "greater_equal" else "f32"
    assert infer(name, a, b) == out + want
    assert infer(name, b, a) == out + want


@pytest.mark.parametrize("a, b, want", [("f32[?,3]", "f32[2,?]", "f32[2,3]"), ("f32[*]", "f32[2,?]", "f32[2,?]"),
                                        ("f32[*]", "f32[*]", "f32[*]"), ("f32[]", "f32[]", "f32[]")])
def test_types_without_broadcast(infer, a, b, want):
    assert infer("multiply", a, b, auto_broadcast="none") == want
    assert infer("select", "boolean[*]", a, b, auto_broadcast="none") == want


@pytest.mark.parametrize("name", [*ARITHMETIC, "greater_equal"])
@pytest.mark.parametrize("a, b, attrs, match", [
    ("f32[4,3]", "f32[4,2]", {}, r"shapes \[4,3\] and \[4,2\] do not broadcast: 3 against 2 at axis -1"),
    ("f32[2,?]", "f32[3,4]", {}, r"shapes \[2,\?\] and \[3,4\] do not broadcast: 2 against 3 at axis -2"),
    ("f32[0]", "f32[2]", {}, "do not broadcast: 0 against 2"),
    ("f32[4,3]", "f32[3]", {"auto_broadcast": "none"}, r"auto_broadcast 'none' needs .*, got \[4,3\] and \[3\]"),
    ("f32[4,3]", "f32[4,1]", {"auto_broadcast": "none"}, r"needs equal shapes, got \[4,3\] and \[4,1\]"),
    ("f32[3]", "f32[4,3]", {"auto_broadcast": "none"}, "needs equal shapes"),
    ("f32[3]", "f32[3]", {"auto_broadcast": "left"}, "'auto_broadcast' must be one of 'none', 'numpy', got 'left'"),
    ("bf16[3]", "f16[3]", {}, "operands must have the same dtype, got 'src_0' bf16, 'src_1' f16"),
])
def test_rules(infer, name, a, b, attrs, match):
    with pytest.raises(GraphError, match=rf"{name}\(.*{match}"):
        infer(name, a, b, **attrs)


@pytest.mark.parametrize("cond, a, b, attrs, match", [
    ("u8[3]", "f32[3]", "f32[3]", {}, "'cond' must be boolean, got u8"),
    ("boolean[3]", "f32[3]", "bf16[3]", {}, "same dtype, got 'src_0' f32, 'src_1' bf16"),
    ("boolean[3]", "s32[3]", "s32[3]", {}, "'src_0' must be"),
    ("boolean[2]", "f32[3]", "f32[]", {}, r"shapes \[2\], \[3\] and \[\] do not broadcast"),
    ("boolean[1]", "f32[3]", "f32[3]", {"auto_broadcast": "none"}, r"needs equal shapes, got \[1\], \[3\] and \[3\]"),
])
def test_select_rules(infer, cond, a, b, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer("select", cond, a, b, **attrs)


@pytest.mark.parametrize("slope, attrs, match", [
    ("f32[2]", {}, r"1 or 4 elements \(axis 2 of \[2,3,4\] in NXC\), got \[2\]"),
    ("f32[4]", {"data_format": "NCX"}, r"1 or 3 elements \(axis 1 of \[2,3,4\] in NCX\), got \[4\]"),
    ("f32[3]", {"per_channel_broadcast": False}, "do not broadcast: 4 against 3"),
    ("f32[5,2,3,4]", {}, r"slope must broadcast to src \[2,3,4\], got \[5,2,3,4\]"),
    ("f16[4]", {}, "same dtype, got 'src' f32, 'slope' f16"),
])
def test_prelu_rules(infer, slope, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer("prelu", "f32[2,3,4]", slope, **attrs)


def test_prelu_may_not_grow_its_source(infer):
    with pytest.raises(GraphError, match=r"slope must broadcast to src \[2,1\], got \[2,3\]"):
        infer("prelu", "f32[2,1]", "f32[2,3]")
    with pytest.raises(GraphError, match=r"data_format NCX needs a channel axis, got shape \[3\]"):
        infer("prelu", "f32[3]", "f32[3]", data_format="NCX")


@pytest.mark.parametrize("src, slope", [("f32[*]", "f32[3]"), ("f32[2,?]", "f32[3]"), ("f32[2,3]", "f32[*]"),
                                        ("f32[2,?]", "f32[2,3]"), ("f32[2,3]", "f32[?]"), ("f32[2,1]", "f32[?,?]"),
                                        ("f32[]", "f32[]")])
def test_prelu_types(infer, src, slope):
    assert infer("prelu", src, slope) == src
