"""Importers on open sizes: what they make of a model is what they make of it at fixed shapes."""
import numpy as np
import pytest
from onnx import TensorProto, helper

import graphq as gq
from graphq.ir import TensorType


def loaded(nodes, inputs, initializers=()):
    """A model of f32 inputs, by their shapes, whose output is y."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", infos, [y], list(initializers))
    return gq.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def check(graph, *cases):
    """The open model gives what fixed ones give, without references that these have not."""
    rng = np.random.default_rng(0)
    model = gq.compile(graph, threads=1)
    for shapes in cases:
        feeds = {v.name: rng.normal(size=s).astype(np.float32) for v, s in zip(graph.inputs, shapes, strict=True)}
        fixed = gq.compile(graph.specialise({n: TensorType("f32", x.shape) for n, x in feeds.items()}), threads=1)
        np.testing.assert_array_equal(model(feeds), fixed(feeds), err_msg=str(shapes))
        assert model._open.at(tuple(shapes)).plan.references == fixed._latest.plan.references
    assert not model._open.anew


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
