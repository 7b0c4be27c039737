"""Folding while a graph is built: what is computed, what stays, and arrays that follow from open sizes."""
import numpy as np
import pytest

import graphq as gq
from graphq.base.sizes import Trace, later
from graphq.dtypes import f32, s32, s64
from graphq.ir.constants import FOLDED, SIZED_CONSTANT, add_known, computed, evaluated, known, runs_long
from graphq.ir.op import lookup
from graphq.ir.tensor_type import TensorType


def constants(g, *arrays):
    return [g.constant(np.float32(a)) for a in arrays]


def test_results_of_constants(g):
    a, b = constants(g, [1, 2], [3, 4])
    (made,) = computed(lookup("add"), [a, b], lookup("add").complete({}), [TensorType(f32, (2,))])
    assert made.tolist() == [4, 6] and made.dtype == np.float32


def test_results_where_an_operand_is_left_out(g):
    q, w = g.constant(np.uint8([[1, 2]])), g.constant(np.int8([[3], [4]]))
    op, z = lookup("matmul_integer"), g.constant(np.int8(1))
    (made,) = computed(op, [q, w, None, z], op.complete({}), [TensorType(s32, (1, 1))])
    assert made.tolist() == [[2 + 6]]
    assert computed(op, [q, w, None, g.input("z", dtype="s8", shape=())], op.complete({}), [TensorType(s32, (1, 1))]) \
        is None


def test_what_is_not_computed(g, x):
    (a,) = constants(g, [1, 2])
    add, type_ = lookup("add"), TensorType(f32, (2,))
    attrs = add.complete({})
    assert computed(add, [a, g.input("y", dtype="f32", shape=(2,))], attrs, [type_]) is None
    assert computed(add, [a, a], attrs, []) is None
    assert computed(add, [a, a], attrs, [TensorType(f32, (FOLDED + 1,))]) is None
    assert computed(add, [a, a], attrs, [TensorType(f32, (None,))]) is not None
    q = g.constant(np.uint8([1, 2]))
    dequantize = lookup("dequantize")
    assert computed(dequantize, [q], dequantize.complete({"scales": [0.5]}), [type_]) is None


def test_results_of_the_largest_size_are_computed(g):
    a = g.constant(np.ones(FOLDED, np.float32))
    relu = lookup("relu")
    (made,) = computed(relu, [a], relu.complete({}), [TensorType(f32, (FOLDED,))])
    assert made.shape == (FOLDED,)


@pytest.mark.parametrize("name, attrs, long", [
    ("max_pool", {}, True), ("avg_pool", {}, True), ("loop", {}, True), ("add", {}, False),
    ("add", {"op_type": "Scan"}, True), ("add", {"op_type": "RoiAlign"}, True), ("add", {"op_type": "Add"}, False)])
def test_operations_that_may_run_for_long(name, attrs, long):
    assert runs_long(lookup(name), attrs) is long


def test_what_cannot_run_is_none(g):
    (a,) = constants(g, [[1.0, 2.0]])
    reshape = lookup("static_reshape")
    assert evaluated(reshape, [a], reshape.complete({"shape": [3]}), [TensorType(f32, (3,))]) is None


def test_arrays_that_follow_from_open_sizes(g):
    trace = Trace()
    n = trace.leaf(4, "x.0")
    array = later(np.arange, n)
    value = add_known(g, array)
    assert value.node.op is SIZED_CONSTANT and value.dtype is s64 and tuple(map(int, value.shape)) == (4,)
    assert known(value) is value.node.attrs["value"] and value.data is None
    (doubled,) = computed(lookup("arithmetic"), [value, value], lookup("arithmetic").complete({"function": "add"}),
                          [value.type])
    assert doubled.assumed.tolist() == [0, 2, 4, 6]
    plain = add_known(g, np.arange(3.0))
    assert plain.node.op.name == "constant" and plain.dtype.name == "f64" and known(plain) is plain.data
    scalar = add_known(g, later(np.int64, n))
    assert scalar.shape == () and gq.reference is not None
    assert known(g.input("z", dtype="f32", shape=(1,))) is None
