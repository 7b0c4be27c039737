"""Lowering of matmuls: what is refused and why, at the limits; shapes of operands."""
import ml_dtypes
import numpy as np
import pytest
from epilogues import check_epilogue

import graphq as gq
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.matmul.family import macs
from graphq.kernels.matmul.lower import follows, lower_matmul, refuse_overflow
from graphq.kernels.matmul_compressed.family import lower_matmul_compressed


def refused(check, body, constants):
    with pytest.raises(Unsupported) as error:
        check(body, constants)
    return str(error.value), error.value.edit, error.value.operand


def body(x="u8", w="s8", dims=(3, 4), w_dims=(4, 5), left=None, right=None, **attrs):
    g = gq.Graph("body")
    a, b = g.input("x", dtype=x, shape=dims), g.input("w", dtype=w, shape=w_dims)
    left, right = left or {}, right or {}
    y = g.matmul(*(g.dequantize(v, **{"scales": [0.5], **o}) for v, o in ((a, left), (b, right))), **attrs)
    g.output(y, name="y")
    return g


COLUMNS = {"qtype": "per_channel", "scales": [1.0] * 5}
ROWS = {"qtype": "per_channel", "scales": [1.0] * 4}


@pytest.mark.parametrize("options, reason, edit, operand", [
    (dict(x="u16"), "the input is u16, integer kernels take u8 and s8", "quantize the input to u8 or s8", 0),
    (dict(w="s16"), "the weights are s16, integer kernels take u8 and s8", "quantize the weights to u8 or s8", 1),
    (dict(left=dict(ROWS, axis=-1)), "the input is quantized per channel along axis 1: its scale would vary inside "
     "the sum", "quantize the input per tensor", 0),
    (dict(left=dict(ROWS, axis=0, scales=[1.0] * 3)), "the input is quantized per channel along axis 0: kernels take "
     "one scale and zero point for the input", "quantize the input per tensor", 0),
    (dict(dims=(4, 3), transpose_a=True, left=dict(ROWS, axis=0)), "the input is quantized per channel along axis 0: "
     "its scale would vary inside the sum", "quantize the input per tensor", 0),
    (dict(right=dict(ROWS, axis=0)), "the weights are quantized along axis 0, not along the columns",
     "quantize the weights along the columns, axis 1 of s8[4,5], or per tensor", 1),
    (dict(w_dims=(5, 4), transpose_b=True, right=dict(ROWS, axis=-1)), "the weights are quantized along axis 1, not "
     "along the columns", "quantize the weights along the columns, axis 0 of s8[5,4], or per tensor", 1),
    (dict(w_dims=(4,)), "one-dimensional operands [3, 4] and [4]", "reshape both to matrices", None),
    (dict(dims=(4,), w_dims=(2, 4, 5)), "one-dimensional operands [4] and [2, 4, 5]", "reshape both to matrices",
     None)])
def test_operands_that_are_refused(options, reason, edit, operand):
    assert refused(lower_matmul, body(**options), [None, None]) == (reason, edit, operand)


@pytest.mark.parametrize("options, rows, columns", [
    (dict(right=dict(COLUMNS, axis=1)), (3,), 5), (dict(right=dict(COLUMNS, axis=-1)), (3,), 5),
    (dict(w_dims=(5, 4), transpose_b=True, right=dict(COLUMNS, axis=0)), (3,), 5), (dict(dims=(4,)), (), 5),
    (dict(dims=(4, 3), transpose_a=True), (3,), 5), (dict(dims=(2, 3, 4)), (2, 3), 5),
    (dict(dims=(2, 3, 4), w_dims=(2, 4, 6)), (2, 3), 6), (dict(dims=(4,), transpose_a=True), (), 5)])
def test_operands_that_fit(options, rows, columns):
    g = body(**options)
    p = lower_matmul(g, [None, None]).anchor
    assert (p.k, p.n, p.rows, p.a, p.b) == (4, columns, rows, 0, 1)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 9, v.type.dims).astype(v.dtype.numpy) for v in g.inputs]
    left, right = p.operands(arrays)
    assert left.shape[-1] == 4 and right.shape[-2:] == (4, columns)
    want = left.astype(int) @ right.astype(int)
    assert np.array_equal(p.accumulate(arrays), want)


@pytest.mark.parametrize("bound, fits", [((2**31 - 1, 1, 1), True), ((2**31, 1, 1), False), ((2, 2**15, 2**15), False),
                                         ((1, 2**15, 2**15), True), ((3, 2**15, 2**15), False)])
def test_sums_at_the_limit(bound, fits):
    if fits:
        return refuse_overflow(*bound, None)
    with pytest.raises(Unsupported) as error:
        refuse_overflow(*bound, None)
    total = np.prod([int(x) for x in bound], dtype=object)
    assert str(error.value) == f"sums over k = {bound[0]} can reach {total}, beyond s32"
    assert error.value.edit == f"split the sum: add {total // 2**31 + 1} or more products of parts of k"


def test_known_weights_say_more_than_their_number():
    refuse_overflow(2**24, 255, 128, lambda: np.array([[1], [2**31 // 255]]))
    with pytest.raises(Unsupported, match=f"can reach {255 * (2**31 // 255 + 1)}, beyond s32"):
        refuse_overflow(2**24, 255, 128, lambda: np.array([[2**31 // 255 + 1], [5]]))
    refuse_overflow(2**24, 255, 128, lambda: np.zeros((0, 0), np.int8))


@pytest.mark.parametrize("twice, attrs, wanted", [
    (False, {}, True), (True, {}, False), (False, {"transpose_a": True}, False), (True, {"transpose_b": True}, False)])
def test_a_block_of_rows_needs_the_same_rows_of_what_is_only_the_source(twice, attrs, wanted):
    g = gq.Graph("body")
    x, w = (g.input(name, dtype="f32", shape=(8, 8)) for name in "xw")
    g.output(g.matmul(x, x if twice else w, **attrs), name="y")
    lowered = lower_matmul(g, [None, None])
    assert follows(lowered, 0) == wanted and not follows(lowered, 1)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dims, w_dims, attrs", [
    ((64,), (64, 5), {}), ((1, 64), (64, 5), {}), ((1, 1, 64), (64, 5), {}), ((6, 1, 64), (6, 64, 5), {}),
    ((6, 1, 64), (6, 5, 64), {"transpose_b": True}), ((6, 64, 1), (6, 64, 5), {"transpose_a": True})])
def test_one_row_is_added_as_many(dims, w_dims, attrs, constant):
    data = [None, np.ones(w_dims, np.int8) if constant else None]
    made = lower_matmul(body(dims=dims, w_dims=w_dims, **attrs), data)
    assert (made.stated_sum.sum.order, made.stated_sum.sum.block) == ("chains", 1024)


@pytest.mark.parametrize("constant, order", [(False, "chains"), (True, "octets")])
def test_one_column_has_its_order_only_if_it_is_constant(constant, order):
    """Columns of a run-time operand may be positions or rows, of which there can be one."""
    made = lower_matmul(body(dims=(3, 64), w_dims=(64, 1)), [None, np.ones((64, 1), np.int8) if constant else None])
    assert made.stated_sum.sum.order == order


def test_macs():
    g = gq.Graph()
    x, w = g.input("x", dtype="f32", shape=(2, 4, 3)), g.input("w", dtype="f32", shape=(2, 4, 5))
    assert macs(g.matmul(x, w, transpose_a=True).node) == 2 * 3 * 5 * 4
    assert macs(g.matmul(w, x, transpose_a=True).node) == 2 * 3 * 5 * 4
    assert macs(g.matmul(g.input("v", dtype="f32", shape=(4,)), w, transpose_a=True).node) == 2 * 4 * 5
    a, b = g.input("a", dtype="u8", shape=(3, 7)), g.input("b", dtype="s8", shape=(7, 2))
    assert macs(g.matmul_integer(a, b).node) == 3 * 7 * 2


def compensated(lowered, p, arrays):
    """The accumulators by the lowering's own expression, of what kernels sum: u8 activations and s8 weights."""
    a, b = (x.astype(np.int64) for x in p.operands(arrays))
    a, b = a + 128 * (p.a_dtype == "s8"), b - 128 * (p.b_dtype == "u8")
    raw = (a @ b).astype(np.uint64).astype(np.uint32).view(np.int32)
    sums = {"row sums": a.sum(-1, keepdims=True), "column sums": b.sum(-2, keepdims=b.ndim > 2)}
    operands = []
    for source in lowered.sources:
        x = sums.get(source.origin, arrays[source.index] if source.origin == "input" else source.data)
        operands.append(x.astype(STORAGE[source.dtype]).reshape(source.shape))
    return np.broadcast_to(evaluate(Epilogue(lowered.accumulated, "s32"), raw, operands), raw.shape)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("options", [
    dict(left={"zps": [7]}), dict(x="s8", left={"zps": [-3]}), dict(x="s8"), dict(w="u8"),
    dict(w="u8", right={"zps": [9]}),
    dict(x="s8", w="u8", left={"zps": [-3]}, right={"zps": [200]}), dict(w="s8", right={"zps": [-5]}),
    dict(left={"zps": [7]}, right={**COLUMNS, "zps": [1, -2, 3, 0, 5]}),
    dict(w="u8", left={"zps": [7]}, right={**COLUMNS, "zps": [1, 2, 3, 0, 255]}),
    dict(dims=(4,), left={"zps": [7]}, right={"zps": [3]}), dict(dims=(4, 3), transpose_a=True, left={"zps": [7]}),
    dict(w_dims=(5, 4), transpose_b=True, left={"zps": [7]}, right={"zps": [3]}),
    dict(dims=(2, 3, 4), w_dims=(2, 4, 5), left={"zps": [7]}, right={"zps": [3]})])
def test_formulas_and_what_is_taken_from_sums(options, known):
    g = body(**options)
    rng = np.random.default_rng(0)
    ends = {"u8": (0, 256), "s8": (-128, 128)}
    arrays = [rng.integers(*ends[v.dtype.name], v.type.dims).astype(v.dtype.numpy) for v in g.inputs]
    lowered = lower_matmul(g, [None, arrays[1] if known else None])
    want = gq.reference(g, dict(zip("xw", arrays, strict=True)))
    np.testing.assert_allclose(lowered.formula(arrays), want, rtol=1e-5)
    if lowered.accumulated is not None:
        p = lower_matmul(g, [None, None]).anchor
        assert np.array_equal(compensated(lowered, p, arrays), lowered.anchor.accumulate(arrays))
        assert known or {s.origin for s in lowered.sources} & {"row sums", "column sums"}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dims, w_dims, zps, w_zps", [
    ((3, 4), (4, 5), None, None), ((3, 4), (4, 5), (), None), ((3, 4), (4, 5), (1,), (5,)), ((3, 4), (4, 5), (3,),
    (1,)),
    ((3, 4), (4, 5), (3, 1), (1, 5)), ((2, 3, 4), (4, 5), (2, 3, 1), (5,)), ((2, 3, 4), (2, 4, 5), (3, 1), (2, 1, 5)),
    ((2, 3, 4), (2, 4, 5), (2, 1, 1), (2, 1, 1)), ((3, 4), (4, 5), None, (5,))])
def test_zero_points_of_sums_of_integers(dims, w_dims, zps, w_zps, known):
    g, rng = gq.Graph("body"), np.random.default_rng(1)
    shapes = {"x": ("s8", dims), "w": ("u8", w_dims), "zx": ("s8", zps), "zw": ("u8", w_zps)}
    inputs = {n: None if s is None else g.input(n, dtype=t, shape=s) for n, (t, s) in shapes.items()}
    g.output(g.matmul_integer(*inputs.values()), name="y")
    ends = {"u8": (0, 256), "s8": (-128, 128)}
    arrays = [np.asarray(rng.integers(*ends[v.dtype.name], v.type.dims)).astype(v.dtype.numpy) for v in g.inputs]
    lowered = lower_matmul(g, [None, arrays[1] if known else None, *[None] * (len(arrays) - 2)])
    want = gq.reference(g, {v.name: x for v, x in zip(g.inputs, arrays, strict=True)})
    assert np.array_equal(lowered.formula(arrays), want)
    p = lower_matmul(g, [None] * len(arrays)).anchor
    assert np.array_equal(compensated(lowered, p, arrays), want)


@pytest.mark.parametrize("dims, zps, w_zps, operand", [
    ((3, 4), (3, 4), None, 0), ((3, 4), (1, 4), None, 0), ((3, 4), None, (4, 5), 1), ((3, 4), None, (4, 1), 1)])
def test_zero_points_along_the_sum_are_refused(dims, zps, w_zps, operand):
    g = gq.Graph("body")
    shapes = (("x", "u8", dims), ("w", "s8", (4, 5)), ("zx", "u8", zps), ("zw", "s8", w_zps))
    g.output(g.matmul_integer(*(None if s is None else g.input(n, dtype=t, shape=s) for n, t, s in shapes)), name="y")
    reason, edit, number = refused(lower_matmul, g, [None] * len(g.inputs))
    assert "of an operand that is" in reason and "along the sum" in reason and number == operand
    assert edit == "give the operand one zero point, or one per row (for weights: per column)"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("dims, w_dims, attrs", [
    ((3, 4), (4, 5), {}), ((4,), (4, 5), {}), ((4, 3), (4, 5), {"transpose_a": True}),
    ((3, 4), (5, 4), {"transpose_b": True}), ((2, 3, 4), (2, 4, 5), {}), ((2, 1, 3, 4), (3, 4, 5), {}),
    ((2, 4, 3), (2, 5, 4), {"transpose_a": True, "transpose_b": True})])
def test_formulas_of_floats(dims, w_dims, attrs, dtype):
    g, rng = gq.Graph("body"), np.random.default_rng(2)
    b, a = g.input("w", dtype=dtype, shape=w_dims), g.input("x", dtype=dtype, shape=dims)
    g.output(g.matmul(a, b, **attrs), name="y")
    arrays = [rng.standard_normal(v.type.dims).astype(v.dtype.numpy) for v in g.inputs]
    want = gq.reference(g, dict(zip("wx", arrays, strict=True)))
    got = lower_matmul(g, [arrays[0], None]).formula(arrays)
    assert got.dtype == want.dtype and got.shape == want.shape
    near = {"f32": 1e-5, "bf16": 2e-2, "f16": 2e-3}[dtype]
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=near, atol=near)


# -- compressed weights -----------------------------------------------------------------------------------------------


def four(w="s4", x="u8", dims=(2, 8), w_dims=(8, 6), zps=None, zp_dtype="s32", left=None, right=None, **attrs):
    """A body with 4-bit weights, and the arrays of its constant inputs."""
    g = gq.Graph("body")
    a, b = g.input("x", dtype=x, shape=dims), g.input("w", dtype=w, shape=w_dims)
    right = right or {"qtype": "per_tensor"}
    shape = {"per_tensor": (1,), "per_channel": (6,)}.get(right["qtype"], (2, 6))
    parameters = [g.input("s", dtype="f32", shape=shape)]
    constants = [None, np.ones(w_dims, ml_dtypes.int4 if w == "s4" else ml_dtypes.uint4), np.ones(shape, np.float32)]
    if zps is not None:
        parameters.append(g.input("z", dtype=zp_dtype, shape=shape))
        constants.append(np.broadcast_to(np.array(zps, np.int32), shape))
    y = g.matmul(g.dequantize(a, **{"scales": [0.5], **(left or {})}), g.dynamic_dequantize(b, *parameters, **right),
                 **attrs)
    g.output(y, name="y")
    return g, constants


PACKED = "compressed weights are packed at compile time: weights, scales and zero points must be constant"
PER_COLUMN = {"qtype": "per_channel", "axis": 1}


@pytest.mark.parametrize("w, zps, fits", [
    ("s4", [-57, 0, 0, 0, 0, 200], True), ("u4", [0, 0, 0, 0, 0, 1 << 19], True),
    ("u4", [0, 0, 0, 0, 0, 1 << 22], False), ("s4", [0, 0, 0, 0, 0, (1 << 22) - 8], False),
    ("u4", [-1 << 22, 0, 0, 0, 0, 0], False)])
def test_zero_points_of_4_bit_weights(w, zps, fits):
    g, constants = four(w, zps=zps, right=PER_COLUMN)
    if fits:
        product = lower_matmul_compressed(g, constants).anchor
        low = 8 if w == "s4" else 0
        assert product.z.tolist() == [[z + low for z in zps]] and product.n == 6 and product.u.max() == 1 + low
        assert product.centered[0, 0].tolist() == [1 - z for z in zps]
        return
    reason, edit, operand = refused(lower_matmul_compressed, g, constants)
    assert (reason, edit, operand) == ("zero points are beyond 22 bits", "take smaller zero points", 1)


@pytest.mark.parametrize("options, missing, reason, operand", [
    (dict(x="s16"), None, "the input is s16, integer kernels take u8 and s8", 0),
    (dict(left={"qtype": "per_channel", "axis": 1, "scales": [1.0] * 8}), None,
     "with compressed weights the input has one scale, or scales of rows and groups that are tensors", 0),
    (dict(dims=(8, 2), transpose_a=True), None,
     "with compressed weights the input is dequantized to f32, and not transposed", 0),
    (dict(), 1, PACKED, 1),
    (dict(), 2, PACKED, 1),
    (dict(zps=[0]), 3, PACKED, 1),
    (dict(right={"qtype": "per_channel", "axis": 0}, w_dims=(6, 8), dims=(2, 6)), None,
     "the weights are quantized along axis 0, not along the columns", 1),
    (dict(right={"qtype": "per_channel", "axis": 1}, w_dims=(8, 6), dims=(2, 6), transpose_b=True), None,
     "the weights are quantized along axis 1, not along the columns", 1)])
def test_4_bit_weights_that_are_refused(options, missing, reason, operand):
    g, constants = four(**options)
    if missing is not None:
        constants[missing] = None
    assert refused(lower_matmul_compressed, g, constants)[::2] == (reason, operand)


def test_groups_of_4_bit_weights():
    """Scales and zero points of groups along both axes, of weights as they are and transposed, with s8 sources."""
    rng = np.random.default_rng(0)
    for swap in (False, True):
        g = gq.Graph("body")
        a = g.input("x", dtype="s8", shape=(3, 8))
        w = g.input("w", dtype="u4", shape=(6, 8) if swap else (8, 6))
        dims = (3, 2) if swap else (2, 3)
        s, z = g.input("s", dtype="f32", shape=dims), g.input("z", dtype="u4", shape=dims)
        right = g.dynamic_dequantize(w, s, z, qtype="per_group", group_shape=[2, 4] if swap else [4, 2])
        g.output(g.matmul(g.dequantize(a, scales=[0.5], zps=[-7]), right, transpose_b=swap), name="y")
        arrays = [rng.integers(-128, 128, (3, 8)).astype(np.int8), rng.integers(0, 16, w.shape).astype(ml_dtypes.uint4),
                  rng.uniform(0.5, 2, dims).astype(np.float32), rng.integers(0, 16, dims).astype(ml_dtypes.uint4)]
        product = lower_matmul_compressed(g, [None, *arrays[1:]]).anchor
        assert (product.a, product.a_zp, product.n, len(product.z), product.transpose_b) == (0, -7, 6, 2, swap)
        want = gq.reference(g, dict(zip(("x", "w", "s", "z"), arrays, strict=True)))
        np.testing.assert_allclose(product.accumulate(arrays), want, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("k, fits", [(131586, True), (131587, False)])
def test_sums_of_groups_at_the_limit(k, fits):
    """The most of a source is 255, of weights less their zero points 15 - -49."""
    g, constants = four("u4", dims=(2, k), w_dims=(k, 6), zps=[-49] * 6, right=PER_COLUMN)
    constants[1] = np.full((k, 6), 15, np.int8).astype(ml_dtypes.uint4)
    bound = 255 * 64 * k
    if fits:
        lower_matmul_compressed(g, constants)
        return
    reason, edit, operand = refused(lower_matmul_compressed, g, constants)
    assert reason == f"sums over groups of {k} can reach {bound}, beyond s32" and bound - 255 * 64 < 2**31 < bound
    assert (edit, operand) == ("take smaller groups", 1)


@pytest.mark.parametrize("scale, fits", [(2.0**-126, True), (2.0**-129, False)])
def test_scales_after_a_product_have_inverses(scale, fits):
    g, constants = four()
    g.set_outputs([g.quantize(g.outputs[0], dtype="u8", scales=[scale])], ["q"])
    if fits:
        lower_matmul_compressed(g, constants)
    else:
        reason, edit, _ = refused(lower_matmul_compressed, g, constants)
        assert reason == "1/scale of a quantize is not a finite f32"
        assert edit == "give the quantize a scale above 2**-127"


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("after, reason", [
    (lambda g, y: g.softmax(y, axis=-1), "no lane-wise rule for softmax"),
    (lambda g, y: g.quantize(y, dtype="u8", scales=[1e-39]), "1/scale of a quantize is not a finite f32"),
    (lambda g, y: g.static_reshape(y, shape=[5, 3]), "an operand of shape [3, 5] does not broadcast into the result"),
    (lambda g, y: g.relu(y), None), (lambda g, y: g.add(y, g.input("r", dtype="f32", shape=(3, 1))), None)])
def test_epilogues(after, reason, quantized):
    if quantized:
        g = body()
    else:
        g = gq.Graph("body")
        x, w = (g.input(n, dtype="f32", shape=s) for n, s in (("x", (3, 4)), ("w", (4, 5))))
        g.output(g.matmul(x, w), name="y")
    check_epilogue(lower_matmul, g, after, reason)
