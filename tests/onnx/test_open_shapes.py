"""Importers on open sizes: what they make of a model is what they make of it at fixed shapes."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphq as gq
from graphq.ir import TensorType


def loaded(nodes, inputs, initializers=(), version=17):
    """A model of f32 inputs, by their shapes, whose output is y."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", infos, [y], list(initializers))
    return gq.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8))


def check(graph, *cases):
    """The open model gives what fixed ones give, without references that these have not."""
    rng = np.random.default_rng(0)
    model = gq.compile(graph, threads=1)
    for shapes in cases:
        feeds = {v.name: rng.normal(size=s).astype(np.float32) for v, s in zip(graph.inputs, shapes, strict=True)}
        fixed = gq.compile(graph.specialize({n: TensorType("f32", x.shape) for n, x in feeds.items()}), threads=1)
        np.testing.assert_array_equal(model(feeds), fixed(feeds), err_msg=str(shapes))
        assert model.plans.at(tuple(shapes)).plan.references == fixed.plans.latest.plan.references
    assert not model.plans.for_each_shape


def test_a_shape_of_open_length():
    """The rank of the result is the size of x."""
    nodes = [helper.make_node("Shape", ["x"], ["n"]),
             helper.make_node("ConstantOfShape", ["n"], ["ones"],
                              value=helper.make_tensor("value", TensorProto.INT64, [1], [1])),
             helper.make_node("Expand", ["z", "ones"], ["y"])]
    check(loaded(nodes, {"x": ["N"], "z": [2, 3]}), *(((n,), (2, 3)) for n in (2, 3, 5, 4, 3)))


@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners"])
def test_resize_by_a_whole_factor_runs_in_a_kernel(transformation):
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 2, 2])
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear",
                            coordinate_transformation_mode=transformation)
    graph = loaded([node], {"x": ["N", 2, "H", "W"]}, [scales])
    check(graph, ((1, 2, 5, 7),), ((1, 2, 9, 4),), ((1, 2, 40, 30),))


def test_likely_sizes_that_take_too_much_memory():
    """A reference's result is computed at the sizes assumed at compile, which nobody asked for."""
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 3, 3])
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="cubic")
    model = gq.compile(loaded([node], {"x": ["N", 8, "H", "W"]}, [scales]), memory=1 << 20)
    assert model(np.ones((1, 8, 4, 5), np.float32)).shape == (1, 8, 12, 15)


def normalized(op, dims, scale, bias=(), **attrs):
    """A normalization of x, whose parameters have these shapes."""
    rng = np.random.default_rng(1)
    parameters = [(n, s) for n, s in (("scale", scale), ("bias", bias)) if s]
    initializers = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in parameters]
    return loaded([helper.make_node(op, ["x", *(n for n, _ in parameters)], ["y"], **attrs)], {"x": dims}, initializers,
                  version=23)


@pytest.mark.parametrize(("op", "axis", "scale", "bias"), [
    ("LayerNormalization", -1, (1,), (1,)), ("LayerNormalization", -1, (8,), (1,)),
    ("LayerNormalization", -1, (1,), (8,)), ("LayerNormalization", -1, (8,), (8,)),
    ("LayerNormalization", -1, (8,), ()),
    ("LayerNormalization", 1, (8,), ()), ("LayerNormalization", 1, (1, 8), (3, 8)),
    ("LayerNormalization", 1, (3, 1), (1,)), ("LayerNormalization", 1, (3, 8), (3, 8)),
    ("RMSNormalization", -1, (1,), ()), ("RMSNormalization", -1, (8,), ()), ("RMSNormalization", 1, (1, 8), ()),
])
def test_scales_that_broadcast_over_open_dimensions(op, axis, scale, bias):
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    want = None
    for dims in ([2, 3, 8], ["a", "b", "c"], ["a", 3, "c"], [2, "b", 8], ["a", "b", 8]):
        got = gq.compile(normalized(op, dims, scale, bias, axis=axis), threads=1)(x)
        want = got if want is None else want
        np.testing.assert_array_equal(got, want, err_msg=str(dims))
    rng = np.random.default_rng(1)
    parameters = [rng.normal(size=s).astype(np.float32).astype(np.float64) for s in (scale, bias) if s]
    axes = tuple(range(axis % 3, 3))
    centered = x.astype(np.float64) - (x.mean(axes, np.float64, keepdims=True) if op[0] == "L" else 0)
    y = centered / np.sqrt(np.square(centered).mean(axes, keepdims=True) + 1e-5) * parameters[0]
    np.testing.assert_allclose(want, y + parameters[1] if bias else y, atol=1e-5)


def test_a_scale_larger_than_what_is_normalized_is_refused():
    with pytest.raises(gq.errors.GraphqError):
        gq.compile(normalized("LayerNormalization", ["a", "b"], (8,)))(np.ones((3, 4), np.float32))


def test_the_number_of_elements_is_one_number():
    model = gq.compile(loaded([helper.make_node("Size", ["x"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=1)],
                              {"x": ["a", "b"]}))
    for shape in ((3, 4), (20, 30)):
        y = model(np.ones(shape, np.float32))
        assert np.shape(y) == () and y == np.prod(shape)
