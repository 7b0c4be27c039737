"""Folding while a graph is built: what is computed, what stays, and arrays that follow from open sizes.

The op-by-op reference: inputs checked before anything runs, results that share nothing.
"""
import numpy as np
import pytest

import graphq as gq
from graphq.base.sizes import Trace, later
from graphq.dtypes import f32, s32, s64
from graphq.errors import GraphError, InputError, VerifyError
from graphq.ir import Graph
from graphq.ir.interpret import (
    FOLDED,
    SIZED_CONSTANT,
    add_known,
    check_array,
    computed,
    evaluate,
    evaluated,
    known,
    runs_long,
)
from graphq.ir.op import OPS, lookup, register_op
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


@pytest.fixture
def net():
    g = Graph("net")
    x = g.input("x", dtype="f32", shape=(2, 3))
    w = g.input("w", dtype="u8", shape=(3,))
    g.output(g.multiply(x, g.dequantize(w, scales=[0.5])), name="y")
    return g


X, W = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([2, 4, 6], np.uint8)


def test_arrays_by_keyword_or_mapping(net):
    want = X * np.array([1, 2, 3], np.float32)
    for got in (gq.reference(net, x=X, w=W), gq.reference(net, {"x": X, "w": W}), gq.reference(net, {"x": X}, w=W)):
        assert got.dtype == np.float32 and np.array_equal(got, want)


def test_several_outputs_are_a_dict(net):
    net.output(net.inputs[0])
    out = gq.reference(net, x=X, w=W)
    assert list(out) == ["y", "x"] and np.array_equal(out["x"], X)


def test_any_memory_layout_is_accepted(net):
    want = gq.reference(net, x=X, w=W)
    x = np.asfortranarray(X)
    x.flags.writeable = False
    wide = np.zeros(6, np.uint8)
    wide[::2] = W
    assert np.array_equal(gq.reference(net, x=x, w=wide[::2]), want)
    unaligned = np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3)
    assert np.array_equal(gq.reference(net, x=unaligned, w=W), want)


def test_results_are_new_arrays(net):
    x = net.inputs[0]
    c = net.constant(np.ones(2, np.float32))
    net.set_outputs([x, x, c, net.static_transpose(x, order=[1, 0])], ["a", "b", "c", "t"])
    given = X.copy()
    out = gq.reference(net, x=given, w=W)
    for y in out.values():
        assert y.flags.writeable and y.flags.c_contiguous
        y[:] = -1
    assert np.array_equal(given, X) and c.data.tolist() == [1, 1] and np.array_equal(out["a"], out["b"])
    out["a"][:] = 5
    assert out["b"][0, 0] == -1


@pytest.mark.parametrize("given,message", [
    ({"x": X}, r"graph 'net' takes inputs \['x', 'w'\]; missing \['w'\], unexpected \[\]"),
    ({"x": X, "w": W, "z": W}, r"missing \[\], unexpected \['z'\]"),
    ({"x": X, "W": W}, r"missing \['w'\], unexpected \['W'\]"),
    ({"x": X.astype(np.float64), "w": W}, r"input 'x' must be f32\[2,3\], got dtype float64 \(no implicit conversion"),
    ({"x": X.astype(">f4"), "w": W}, "input 'x' must be .* got dtype >f4"),
    ({"x": X, "w": [2, 4, 6]}, r"input 'w' must be u8\[3\], got dtype int64"),
    ({"x": X[:1], "w": W}, r"input 'x' must be f32\[2,3\], got shape \[1, 3\]"),
    ({"x": X[0], "w": W}, r"got shape \[3\]"),
    ({"x": [[1.0], [1.0, 2.0]], "w": W}, r"input 'x' must be f32\[2,3\]: ValueError: setting an array"),
    ({"x": None, "w": W}, "got dtype object"),
])
def test_bad_arrays(net, given, message):
    with pytest.raises(InputError, match=message):
        gq.reference(net, given)


def test_bad_calls(net):
    with pytest.raises(InputError, match="input 'x' is given twice"):
        gq.reference(net, {"x": X, "w": W}, x=X)
    with pytest.raises(GraphError, match="graph 'empty' has no outputs; call g.output"):
        gq.reference(Graph("empty"))


def test_inputs_may_be_called_like_parameters():
    g = Graph()
    a, b = g.input("graph", dtype="f32", shape=()), g.input("inputs", dtype="f32", shape=())
    g.output(g.subtract(a, b))
    assert gq.reference(g, graph=np.float32(3), inputs=np.float32(1)) == 2


def test_open_shapes_are_checked_before_anything_runs():
    g = Graph()
    x, y = g.input("x", dtype="f32", shape=(None, 3)), g.input("y", dtype="f32")
    g.output(g.add(x, y))
    assert gq.reference(g, x=X, y=np.float32(1)).shape == (2, 3)
    with pytest.raises(GraphError, match=r"add\(x: f32\[2,3\], y: f32\[4\]\): shapes .* do not broadcast"):
        gq.reference(g, x=X, y=np.zeros(4, np.float32))
    with pytest.raises(InputError, match=r"input 'x' must be f32\[\?,3\], got shape \[2, 2\]"):
        gq.reference(g, x=X[:, :2], y=X)


def test_empty_dimensions():
    g = Graph()
    x = g.input("x", dtype="f32", shape=(0, 3))
    g.output(g.matmul(x, np.ones((3, 2), np.float32)))
    assert gq.reference(g, x=np.zeros((0, 3), np.float32)).shape == (0, 2)


def test_values_are_freed_but_not_too_early():
    g = Graph()
    x = g.input("x", dtype="f32", shape=())
    a = g.add(x, x)
    b = g.multiply(a, a)
    unused = g.exp(b)
    g.set_outputs([g.subtract(b, a), a, x], ["d", "a", "x"])
    assert unused.uses == []
    assert [float(y) for y in evaluate(g, {"x": np.array(3, np.float32)})] == [30, 6, 3]


def test_references_that_break_their_promise(registry):
    @register_op(infer=lambda src: src)
    def halved(src):
        """Return half of the elements."""
        return src[: len(src) // 2]

    @register_op(infer=lambda src: (src, src))
    def split(src):
        """Return one array where two are due."""
        return src

    for name, message in (("halved", r"%y = halved\(x\) : f32\[4\]: the reference returns shape \[2\]"),
                          ("split", r"%y, %0 = split\(x\).*: the reference returns 1 arrays")):
        g = Graph()
        g.add_node(OPS[name], [g.input("x", dtype="f32", shape=(4,))], {}, name="y")
        g.output(g.nodes[0].outputs[0])
        with pytest.raises(GraphError, match=message):
            gq.reference(g, x=np.zeros(4, np.float32))


def test_what_is_no_graph_is_a_graph_error():
    with pytest.raises(GraphError, match="reference takes a Graph, got None"):
        gq.reference(None)
    with pytest.raises(GraphError, match="to_text takes a Graph, got None"):
        gq.to_text(None)
    with pytest.raises(GraphError, match="add_node takes an Op .*, got 'relu'"):
        Graph().add_node("relu", [], {})


class Hostile:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("the file is gone")


def test_an_array_that_cannot_be_read_is_an_input_error(net):
    with pytest.raises(InputError, match=r"input 'x' must be f32\[2,3\]: RuntimeError: the file is gone"):
        gq.reference(net, x=Hostile(), w=W)


def test_the_word_for_an_array_is_the_callers():
    with pytest.raises(InputError, match=r"^out 'y' must be f32\[2\], got dtype float64"):
        check_array("y", TensorType(f32, (2,)), np.zeros(2), word="out")


def test_a_cycle_is_refused_before_anything_runs(net):
    product = net.nodes[-1]
    net.nodes[0].inputs = (product.output,)
    with pytest.raises(VerifyError, match=r"= dequantize\(.*: operand 0 is used before its definition.*: a cycle"):
        gq.reference(net, x=X, w=W)
