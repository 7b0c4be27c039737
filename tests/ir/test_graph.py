"""Graphs as they are built: inputs, constants, operations, outputs, and what is refused."""
import inspect
import pydoc
import re

import numpy as np
import pytest
from graphs import ops

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import GraphError
from graphq.ir import Graph, TensorType, Use
from graphq.ir.names import OTHER_NAMES
from graphq.ir.op import OPS
from graphq.ir.verify import verify

# -- building -------------------------------------------------------------------------------------------------


def test_builder_methods_add_nodes_with_all_attributes(g, x):
    y = g.softmax(x, axis=-1)
    assert y.type == TensorType(DTYPES["f32"], (2, 3)) and y.node.op is OPS["softmax"]
    assert y.node.attrs == {"axis": -1, "mode": "none", "dtype": None, "keep_stats": False}
    assert y.node.inputs == (x,) and y.node.output is y and (y.index, y.graph) == (0, g)
    assert x.uses == [Use(y.node, 0)] and x.users == [y.node]


def test_several_results_come_as_a_tuple(g, x):
    y, stats = g.softmax(x, keep_stats=True, name="y")
    assert (y.name, stats.name, stats.index, stats.shape) == ("y", None, 1, (2, 1))
    with pytest.raises(ValueError):
        y.node.output  # noqa: B018


def test_builder_methods_are_listed_and_documented(g):
    assert {"relu", "matmul", "input"} <= set(dir(g))
    assert "ReLU" in g.relu.__doc__ and g.relu.__name__ == "relu"
    assert hasattr(g, "relu") and not hasattr(g, "no_such_op") and not hasattr(g, "_private")


def test_builder_methods_have_the_ops_signature(g):
    assert str(inspect.signature(g.matmul)).startswith(
        "(src, weights, bias=None, /, *, transpose_a: bool = False, transpose_b: bool = False, ")
    assert str(inspect.signature(g.concat)) == "(*srcs, axis: int, name: str | None = None)"
    assert "transpose_a: bool = False" in pydoc.render_doc(g.matmul)
    for name in OPS:
        assert str(inspect.signature(getattr(g, name)))


def test_operands_by_keyword(g, x):
    message = r"matmul\(x: .*\): operand 'weights' was given by keyword, but operands are positional: " \
              r"matmul\(src, weights, bias\)"
    with pytest.raises(GraphError, match=message):
        g.matmul(x, weights=x)


def test_unknown_op_names_near_ones(g):
    with pytest.raises(GraphError, match="unknown op 'einsum'$"):
        getattr(g, "einsum")  # noqa: B009
    for theirs, ours in OTHER_NAMES.items():
        assert theirs not in OPS and ("x" in ours or all(name in OPS for name in ours.split(", "))), theirs
        with pytest.raises(GraphError, match=re.escape(f"unknown op '{theirs}'; did you mean {ours}?")):
            getattr(g, theirs)
    with pytest.raises(GraphError, match="unknown op 'rellu'; did you mean relu"):
        g.rellu()
    with pytest.raises(GraphError, match="unknown op 'zzz'$"):
        g.zzz()


def test_errors_call_unnamed_values_by_what_makes_them(g, x):
    w = g.constant(np.ones((3, 4), np.float32), name="w")
    product = g.matmul(x, w)
    for make, message in [
            (lambda: g.add(product, x), r"add\(the matmul of 'x' and 'w': f32\[2,4\], x: f32\[2,3\]\): shapes"),
            (lambda: g.add(g.relu(product), x), r"add\(the relu of a matmul: f32"),
            (lambda: g.matmul(g.add(g.abs(x), 0.5), x), r"matmul\(the add of an abs and the number 0.5: f32"),
            (lambda: g.matmul(x, g.constant(np.ones((4, 4)))), r"matmul\(x: f32\[2,3\], a constant: f32\[4,4\]\)"),
            (lambda: g.matmul(w, w), r"matmul\(%w: f32\[3,4\], %w: f32"),
            (lambda: g.matmul(x, g.softmax(x, keep_stats=True)[1]), r", output 1 of the softmax of 'x': f32\[2,1\]\)"),
            (lambda: g.matmul(x, g.concat(*[x] * 9, axis=1)), r"the concat of 'x', 'x', 'x' and 6 more: f32"),
            (lambda: Graph("other").relu(product), "the matmul of 'x' and 'w' belongs to another graph, 'test'")]:
        with pytest.raises(GraphError, match=message):
            make()


def test_input_shapes(g):
    assert g.input("a", dtype="u8").shape is None
    assert g.input("b", dtype=np.float32, shape=[None, np.int64(4)]).shape == (None, 4)
    assert g.input("c", dtype="s8", shape=5).shape == (5,)
    assert g.input("d", dtype="s8", shape=()).shape == ()
    assert g.input("e", dtype="s8", shape=(0, 3), property="constant").property == "constant"
    assert str(g) == "graph test(a: u8[*], b: f32[?,4], c: s8[5], d: s8[], e: s8[0,3] constant) {\n  return\n}"


@pytest.mark.parametrize("kwargs,message", [
    ({"dtype": "f33"}, "input 'y': unknown dtype 'f33'"),
    ({"dtype": "f32", "shape": (2, -1)}, "'y': a dimension must be a non-negative int or None, got -1 in .2, -1."),
    ({"dtype": "f32", "shape": (2.5,)}, "got 2.5"),
    ({"dtype": "f32", "shape": (True,)}, "got True"),
    ({"dtype": "f32", "shape": "ab"}, "got 'a'"),
    ({"dtype": "f32", "shape": 2.5}, "input 'y': a shape must be a list of dimensions, got 2.5"),
    ({"dtype": "f32", "shape": (2**30, 2**30)}, r"more than 2\*\*48 elements"),
    ({"dtype": "f32", "shape": (0, 2**50)}, r"more than 2\*\*48 elements"),
    ({"dtype": "f32", "property": "fixed"}, "property must be undef, variable, constant or host_scalar, got 'fixed'"),
    ({"dtype": "f32", "property": None}, "property must be"),
])
def test_bad_inputs(g, kwargs, message):
    with pytest.raises(GraphError, match=message):
        g.input("y", **kwargs)
    assert g.inputs == []
    g.input("y", dtype="f32")  # the name is still free


@pytest.mark.parametrize("name", ["", None, 3, b"x"])
def test_bad_names(g, x, name):
    with pytest.raises(GraphError, match="name must be a non-empty string"):
        g.input(name, dtype="f32")
    if name is not None:
        with pytest.raises(GraphError, match="relu '.*': a name must be a non-empty string"):
            g.relu(x, name=name)
        with pytest.raises(GraphError, match="a name must be a non-empty string"):
            g.output(x, name=name)
    with pytest.raises(GraphError, match="set_outputs: a name must be a non-empty string"):
        g.set_outputs([x], [name])


def test_graph_names_are_strings():
    with pytest.raises(GraphError, match="graph's name must be a string, got 3"):
        Graph(3)


def test_names_are_taken_once(g, x):
    g.relu(x, name="y")
    for make in (lambda n: g.input(n, dtype="f32"), lambda n: g.relu(x, name=n), lambda n: g.constant(1.0, name=n)):
        for name in ("x", "y"):
            with pytest.raises(GraphError, match=f"the name '{name}' is taken in graph 'test'"):
                make(name)
    assert ops(g) == ["relu"] and len(x.uses) == 1


def test_numbers_may_be_names(g):
    v = g.relu(g.input("3", dtype="f32", shape=(1,)), name="0")
    w = g.relu(v)
    assert (g.label(g.inputs[0]), g.label(v), g.label(w)) == ('"3"', '%"0"', "%0")


# -- operands -------------------------------------------------------------------------------------------------


def test_arrays_and_numbers_become_constants(g, x):
    y = g.add(g.multiply(x, 2), np.ones(3, np.float32))
    assert ops(g) == ["constant", "multiply", "constant", "add"]
    two = g.nodes[0].output
    assert two.type == TensorType(DTYPES["f32"], ()) and two.data == 2 and x.data is None and y.data is None
    assert not two.data.flags.writeable
    assert g.add(x, np.float64(0.5)).dtype == "f32" == g.add(x, np.int64(3)).dtype


def test_f64_arrays_are_accepted_where_floats_are(g, x):
    """NumPy's default becomes f32, rounded once, as numbers of Python do; beside f64 values it stays."""
    third = np.full(3, 1 / 3)
    y = g.add(g.multiply(x, np.array(0.1)), third)
    assert y.dtype == "f32" and ops(g) == ["constant", "multiply", "constant", "add"]
    assert g.nodes[2].output.data.tolist() == [np.float32(1 / 3)] * 3
    assert g.matmul(x, np.eye(3)).dtype == g.matmul(x, g.constant(np.eye(3))).dtype == "f32"
    wide = g.input("wide", dtype="f64", shape=(3,))
    assert [g.arithmetic(wide, k, function="add").dtype for k in (third, 2, 0.5, np.float64(2))] == ["f64"] * 4
    with pytest.raises(GraphError, match=r"multiply: 1e\+300 does not fit into f32"):
        g.multiply(x, np.array([1.0, np.inf, 1e300]))
    with pytest.raises(GraphError, match=r"must have the same dtype, got 'src_0' f64, 'src_1' f32"):
        g.arithmetic(wide, g.constant(third), function="add")


def test_constants_keep_their_numbers_through_the_passes():
    """What passes and copies compute of f64 stays f64."""
    g = gq.Graph()
    c = g.arithmetic(g.constant([0.1], dtype="f64"), g.constant(np.array([0.2]), dtype="f64"), function="add")
    g.output(g.arithmetic(g.input("x", dtype="f64", shape=(1,)), c, function="add"), name="y")
    assert gq.compile(g, threads=1)(x=np.zeros(1)).tolist() == [0.1 + 0.2]


@pytest.mark.parametrize("value,dtype,text", [
    ([1, 2], "s32", "s32[2]"), (np.ones(2), "f64", "f64[2]"), (np.ones(2), np.float64, "f64[2]"), (3, "u8", "u8[]"),
    (np.array([7, -8]), "s4", "s4[2]"), ([0.5], "bf16", "bf16[1]"), (np.array([2**63], np.uint64), "u64", "u64[1]"),
    (2**62 + 1, "s64", "s64[]"), ([True, False], "s8", "s8[2]"), ([1.0, 0.0], "boolean", "boolean[2]"),
    ([], "s64", "s64[0]")])
def test_constants_of_a_given_dtype(g, value, dtype, text):
    v = g.constant(value, dtype=dtype)
    assert str(v.type) == text and v.data.tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize("value,dtype,message", [
    ([1, 300], "u8", "300.* does not fit into u8"), (2.5, "s32", "2.5 does not fit into s32"),
    (np.array([-1]), "u64", "-1 does not fit into u64"),
    (np.array([2**64 - 1], np.uint64), "s64", "does not fit into s64"),
    (np.nan, "s8", "nan does not fit into s8"), (1e5, "f16", "100000.0 does not fit into f16"),
    (10**400, "f64", "of 1329 bits does not fit into f64"), ([1, 2], "boolean", "2 does not fit into boolean"),
    ([1], "f33", "unknown dtype 'f33'")])
def test_numbers_that_a_dtype_cannot_hold(g, value, dtype, message):
    with pytest.raises(GraphError, match=message):
        g.constant(value, dtype=dtype)
    assert g.nodes == []


def test_constants_are_copied(g):
    a = np.arange(4, dtype=np.int8)
    v = g.constant(a[::2], name="c")
    a[:] = 9
    assert v.data.tolist() == [0, 2] and v.name == "c" and v.data.flags.c_contiguous
    a.flags.writeable = False
    w = g.constant(a)
    a.flags.writeable = True
    a[:] = 1
    assert w.data.tolist() == [9, 9, 9, 9]


@pytest.mark.parametrize("value,text", [
    (1, "f32[]"), (2**70, "f32[]"),
    (2.5, "f32[]"), ([1, 2], "f32[2]"), ([[True]], "boolean[1,1]"), (np.int8(3), "s8[]"), ([], "f32[0]"),
    (np.zeros((0, 2), np.uint8), "u8[0,2]"), (np.inf, "f32[]"), ([np.nan, -np.inf], "f32[2]"),
    (np.float64(1), "f32[]")])
def test_types_of_constants(g, value, text):
    assert str(g.constant(value).type) == text


@pytest.mark.parametrize("value,message", [
    (np.zeros(2, "c8"), "unknown dtype complex64"), (np.zeros(2, "V2"), "unknown dtype"),
    (np.zeros(1, ">f4"), "unknown dtype >f4"),
    ("abc", "unknown dtype"), (None, "got Python objects: NoneType"),
    ([[1], [1, 2]], "list is not an array"), (1j, "complex128"),
    (1e300, "1e[+]300 does not fit into f32"), ([1.0, -1e39], "does not fit into f32"),
    (10**400, "an int of 1329 bits does not fit into f32"), (10**39, "does not fit into f32"),
    (1 << 20000, "an int of 20001 bits does not fit"), ([10**400], "got Python objects: int"),
    (np.array([1, "a"], object), "numbers of one NumPy dtype, got Python objects: int, str")], ids=range(14))
def test_bad_constants(g, value, message):
    with pytest.raises(GraphError, match=message):
        g.constant(value)
    assert g.nodes == []


@pytest.mark.parametrize("bad", [True, "x", [1.0], object()])
def test_what_is_no_operand(g, x, bad):
    with pytest.raises(GraphError, match="add: an operand must be a value of this graph, an array or a number, got"):
        g.add(x, bad)


def test_bad_arrays_name_the_op(g, x):
    with pytest.raises(GraphError, match="add: unknown dtype complex128"):
        g.add(x, np.zeros(3, complex))


def test_values_of_other_graphs(g, x):
    other = Graph("other")
    for use in (lambda: other.relu(x), lambda: other.output(x), lambda: other.set_outputs([x], ["y"])):
        with pytest.raises(GraphError, match="x belongs to another graph, 'test', not to 'other'"):
            use()
    y, z = other.input("y", dtype="f32", shape=(2, 3)), g.relu(x)
    for old, new in ((y, x), (z, y)):
        with pytest.raises(GraphError, match="belongs to another graph"):
            g.replace_uses(old, new)
    with pytest.raises(GraphError, match="output: expected a value of graph 'test', got 3"):
        g.output(3)


def test_counts_of_operands(g, x):
    with pytest.raises(GraphError, match=r"relu\(\): takes operands \(src\), got 0"):
        g.relu()
    with pytest.raises(GraphError, match=r"relu\(x: f32\[2,3\], x: f32\[2,3\]\): takes operands \(src\), got 2"):
        g.relu(x, x)
    with pytest.raises(GraphError, match="got 0"):
        g.relu(None)
    with pytest.raises(GraphError, match=r"matmul\(none, x: f32\[2,3\]\): operand 'src' is required"):
        g.matmul(None, x)


def test_an_absent_optional_operand_leaves_no_trace(g, x):
    w = g.input("w", dtype="f32", shape=(3, 4))
    assert g.matmul(x, w, None).node.inputs == (x, w)


@pytest.mark.parametrize("build,message", [
    (lambda g, x: g.softmax(x, axes=1), r"softmax\(x: f32\[2,3\]\): has no attribute 'axes'; it has axis"),
    (lambda g, x: g.softmax(x, axis=np.array([1])), "attribute 'axis' must be of type int, got array"),
    (lambda g, x: g.softmax(x, keep_stats=np.array(True)), "attribute 'keep_stats' must be of type bool, got array"),
    (lambda g, x: g.clamp(x, min=np.array(0.0), max=1), "attribute 'min' must be of type float, got array"),
    (lambda g, x: g.softmax(x, mode=np.array("none")), "attribute 'mode' must be"),
    (lambda g, x: g.softmax(x, axis=1.5), "attribute 'axis' must be of type int, got 1.5"),
    (lambda g, x: g.softmax(x, axis=True), "attribute 'axis' must be of type int, got True"),
    (lambda g, x: g.softmax(x, axis=2), r"axis must be in \[-r, r-1\] with r = 2"),
    (lambda g, x: g.softmax(x, mode="zero"), "'mode' must be one of 'none', 'inf_as_zero', 'stepwise', got 'zero'"),
    (lambda g, x: g.softmax(x, mode=np.zeros(2)), "attribute 'mode' must be one of"),
    (lambda g, x: g.softmax(x, dtype="f99"), "attribute 'dtype': unknown dtype 'f99'"),
    (lambda g, x: g.softmax(x, keep_stats=1), "attribute 'keep_stats' must be of type bool, got 1"),
    (lambda g, x: g.relu(x, 1), "takes operands"),
    (lambda g, x: g.relu(x, alpha=1), "has no attribute 'alpha'; it has no attributes"),
    (lambda g, x: g.clamp(x, min=0), "attribute 'max' is required"),
    (lambda g, x: g.clamp(x, min=2, max=1), "min must not exceed max"),
    (lambda g, x: g.clamp(x, min=0, max=10**400), "attribute 'max' must be of type float"),
    (lambda g, x: g.quantize(x, dtype="u8", scales=True), "attribute 'scales' must be of type float, got True"),
    (lambda g, x: g.quantize(x, dtype="u8", scales="0.1"), "attribute 'scales' must be a list"),
    (lambda g, x: g.quantize(x, dtype="u8", scales={0.1}), "attribute 'scales' must be a list"),
    (lambda g, x: g.quantize(x, dtype="u8", scales=[0.1, 0.2]), "qtype per_tensor takes 1 scale, got 2"),
    (lambda g, x: g.quantize(x, dtype="u8", qtype="per_channel", scales=[0.1, 0.2]), "per_channel takes 3 scales"),
    (lambda g, x: g.quantize(x, dtype="u8", qtype="per_channel", axis=2, scales=[0.1]), "axis must be in"),
    (lambda g, x: g.quantize(x, dtype="u8", qtype="per_row", scales=[0.1]), "one of 'per_tensor', .*got 'per_row'"),
    (lambda g, x: g.quantize(x, dtype="u8", scales=[float("nan")]), "must be finite and not 0 as f32, got nan"),
    (lambda g, x: g.quantize(x, dtype="u8", scales=[0]), "scales must be finite and not 0 as f32, got 0"),
    (lambda g, x: g.quantize(x, dtype="u8", scales=[-1e-60]), "got -1e-60"),
    (lambda g, x: g.quantize(x, dtype="u8", scales=[0.1], zps=[256]), r"must be in \[0, 255\], got 256"),
    (lambda g, x: g.quantize(x, dtype="s8", scales=[0.1], zps=[128]), r"must be in \[-128, 127\], got 128"),
    (lambda g, x: g.quantize(x, dtype="u8", scales=[0.1], zps=[1.5]), "attribute 'zps' must be of type int, got 1.5"),
    (lambda g, x: g.quantize(x, dtype="u8", scales=[0.1], zps=[1, 2]),
     "zps and scales must have the same length, got 2 and 1"),
    (lambda g, x: g.quantize(x, dtype="f8_e4m3", scales=[0.1], zps=[1]), "zps must be absent for f8_e4m3"),
    (lambda g, x: g.quantize(x, dtype="f32", scales=[0.1]),
     "dtype must be s8, u8, f8_e4m3, f8_e5m2, s16 or u16, got f32"),
    (lambda g, x: g.dequantize(x, scales=[0.1]), "'src' must be s8, u8"),
    (lambda g, x: g.matmul(x, x), r"matmul\(x: f32\[2,3\], x: f32\[2,3\]\): k must agree, got 3 and 2"),
    (lambda g, x: g.add(x, np.zeros(2, np.float32)), r"add\(x: f32\[2,3\], f32\[2\]\): shapes .* do not"),
    (lambda g, x: g.static_reshape(x, shape=[7]), r"cannot reshape \[2,3\] to \[7\]"),
    (lambda g, x: g.static_transpose(x, order=[0, 0]), "order must be a permutation"),
    (lambda g, x: g.static_reshape(x, shape=[0, 2**60]), "more than 2|cannot reshape"),
])
def test_bad_operations_leave_the_graph_as_it_was(g, x, build, message):
    with pytest.raises(GraphError, match=message):
        build(g, x)
    assert g.nodes == [] and x.uses == []
    verify(g)


def test_errors_name_the_node(g, x):
    with pytest.raises(GraphError, match=r"^matmul 'scores'\(x: f32\[2,3\], x: f32\[2,3\]\): k must agree"):
        g.matmul(x, x, name="scores")
    g.relu(x, name="scores")  # the name is still free


def test_results_have_a_limit(g):
    a, b = g.input("a", dtype="f32", shape=(2**30, 1)), g.input("b", dtype="f32", shape=(2**30,))
    with pytest.raises(GraphError, match=r"add\(.*result: shape .* more than 2\*\*48 elements"):
        g.add(a, b)


def test_unknown_shapes(g):
    a, b = g.input("a", dtype="f32"), g.input("b", dtype="f32", shape=(None, 3))
    assert str(g.relu(a).type) == "f32[*]" and str(g.add(b, b).type) == "f32[?,3]"
    assert not a.type.known and not b.type.known
    with pytest.raises(GraphError, match=r"shape of f32\[\?,3\] is not known yet"):
        b.type.size  # noqa: B018
    with pytest.raises(GraphError, match="do not broadcast"):
        g.add(b, np.zeros(4, np.float32))


def test_sizes_of_types():
    t = TensorType(DTYPES["bf16"], (2, 3))
    assert (t.size, t.nbytes, t.known, t.dims) == (6, 12, True, (2, 3))
    assert TensorType(DTYPES["f32"], ()).size == 1 and TensorType(DTYPES["f32"], (0, 5)).nbytes == 0


# -- outputs --------------------------------------------------------------------------------------------------


def test_output_names(g, x):
    y, z, w = g.relu(x), g.tanh(x, name="z"), g.exp(x)
    assert g.output(y, name="y") is y and y.name == "y"
    g.output(z, name="result")
    g.output(w)
    g.output(x)
    g.output(z)
    assert g.output_names == ["y", "result", "out2", "x", "z"]
    assert (z.name, w.name, x.name) == ("z", "out2", "x")  # a name that a value has stays
    assert z.uses == [Use(None, 1), Use(None, 4)] and z.is_output and z.users == []
    with pytest.raises(GraphError, match="output 'y': the graph has an output of that name already"):
        g.output(x, name="y")
    verify(g)


def test_default_output_names_avoid_taken_ones(g, x):
    g.output(x, name="out1")
    y = g.relu(x)
    g.output(y)
    assert g.output_names == ["out1", "out2"]


def test_an_output_may_have_the_name_of_an_input(g, x):
    y = g.relu(x)
    g.output(y, name="x")
    assert g.output_names == ["x"] and y.name is None
    assert gq.reference(g, x=np.zeros((2, 3), np.float32)).shape == (2, 3)


def test_set_outputs_replaces(g, x):
    y, z = g.relu(x), g.tanh(x)
    g.output(y, name="y")
    g.set_outputs([z, z], ["a", "b"])
    assert not y.is_output and z.uses == [Use(None, 0), Use(None, 1)]
    for values, names in (([z], ["a", "b"]), ([z, y], ["a", "a"]), ([z], [])):
        with pytest.raises(GraphError, match="values need as many different names"):
            g.set_outputs(values, names)
    assert g.outputs == [z, z]
    g.set_outputs([], [])
    assert g.outputs == [] and z.uses == []
    verify(g)


def test_operands_by_number(g, x):
    node = g.clamp(x, min=0.0, max=1.0).node
    assert node.operand(0) is x and list(node.operands) == [x]
