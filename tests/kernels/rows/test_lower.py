"""Lowering of rows: refusals with their texts, and formulas against the reference."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.rows.lower import follows, lower_row


def body(build, dims=(2, 3, 7), dtype="f32", **more):
    g = gq.Graph("body")
    x = g.input("x", dtype=dtype, shape=dims)
    g.output(build(g, x, *(g.input(n, dtype="f32", shape=s) for n, s in more.items())), name="y")
    return g


def op(name, **attrs):
    return lambda g, *operands: getattr(g, name)(*operands, **attrs)


@pytest.mark.parametrize("build, dims, reason, edit", [
    (op("softmax", axis=1), (2, 3, 7), "softmax works along axis 1 of f32[2,3,7], kernels along axis 2",
     "transpose the input, to make the axis the last"),
    (op("layer_norm", begin_norm_axis=1, use_affine=False, keep_stats=False), (2, 3, 7),
     "layer_norm works along axes 1 and 2 of f32[2,3,7], kernels along axis 2",
     "reshape the input, to make the axes one, the last"),
    (op("reduce_sum", axes=[0], keep_dims=True), (2, 3, 7), "reduce_sum reduces axis 0 of f32[2,3,7], kernels axis 2",
     "transpose the input, to make the reduced axis the last"),
    (op("reduce_max", axes=[-1, 1], keep_dims=True), (2, 3, 7),
     "reduce_max reduces axes 1 and 2 of f32[2,3,7], kernels axis 2",
     "transpose the input, to make the reduced axis the last"),
    (op("reduce_l2", axes=[2], keep_dims=False), (2, 3, 7),
     "reduce_l2 does not keep the reduced axis of f32[2,3,7]: kernels keep it", "keep it by keep_dims, and reshape the "
     "result"),
    (op("softmax", axis=-1), (2, 0), "rows of f32[2,0] are empty", ""),
    (lambda g, x: g.softmax(x, axis=-1, keep_stats=True)[0], (2, 3, 7),
     "softmax also gives statistics, kernels give one result", "leave keep_stats out"),
    (lambda g, x: g.add(g.softmax(r := g.relu(x), axis=-1), r), (2, 3, 7),
     "other operations read the operand of softmax as well", "quantize and dequantize the input"),
    (lambda g, x: g.softmax(g.cum_sum(x, axis=0), axis=-1), (2, 3, 7), "no lane-wise rule for cum_sum", ""),
    (lambda g, x: g.cum_sum(g.softmax(x, axis=-1), axis=0), (2, 3, 7), "no lane-wise rule for cum_sum", "")])
def test_refusals(build, dims, reason, edit):
    with pytest.raises(Unsupported) as error:
        lower_row(body(build, dims))
    assert (str(error.value), error.value.edit) == (reason, edit)


REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_l1", "reduce_l2")


@pytest.mark.parametrize("build, more", [
    *((op(name, axes=[-1], keep_dims=True), {}) for name in REDUCTIONS),
    (op("softmax", axis=2), {}), (op("softmax", axis=-1, mode="inf_as_zero"), {}), (op("log_softmax", axis=-1), {}),
    (op("layer_norm", use_affine=False, keep_stats=False, epsilon=0.5), {}),
    (op("layer_norm", keep_stats=False, epsilon=1e-3), {"gamma": (7,), "beta": (7,)}),
    (op("layer_norm", keep_stats=False, use_affine=False), {"gamma": (7,), "beta": (7,)}),
    (op("rms_norm", epsilon=0.25), {"gamma": (7,)}),
    (lambda g, x, b: g.square(g.softmax(g.add(g.abs(x), b), axis=-1)), {"b": (3, 1)})])
def test_formulas(build, more):
    g = body(build, **more)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=v.type.dims).astype(np.float32) for v in g.inputs]
    got = lower_row(g).formula(arrays)
    want = gq.reference(g, {v.name: x for v, x in zip(g.inputs, arrays, strict=True)})
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def test_how_kernels_read_the_source():
    direct, scaled = (lower_row(body(b, dtype=t)).anchor for b, t in (
        (op("softmax", axis=-1), "f32"), (lambda g, x: g.softmax(g.dequantize(x, scales=[0.5]), axis=-1), "u8")))
    assert direct.direct and not scaled.direct and direct.dims == (2, 3, 7) and not direct.reduces
    assert lower_row(body(op("reduce_sum", axes=[-1], keep_dims=True))).anchor.reduces
    assert lower_row(body(op("softmax", axis=-1, mode="inf_as_zero"))).anchor.how == "softmax_inf_as_zero"
    assert lower_row(body(op("rms_norm", epsilon=0.25), gamma=(7,))).anchor.epsilon == 0.25


@pytest.mark.parametrize("shape, same", [((2, 3, 7), True), ((2, 3, 1), True), ((1, 3, 7), False), ((2, 1, 7), False),
                                         ((7,), False)])
@pytest.mark.parametrize("build", [lambda g, x, b: g.softmax(g.add(x, b), axis=-1),
                                   lambda g, x, b: g.add(g.softmax(x, axis=-1), b)])
def test_a_block_of_rows_needs_the_same_rows_of_what_is_not_broadcast(build, shape, same):
    """Before the operation as well as after it."""
    lowered = lower_row(body(build, b=shape))
    assert follows(lowered, 0) and follows(lowered, 1) == same
