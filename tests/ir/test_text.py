"""The text form: the round trip for every op, attribute and dtype; what is written by hand."""
import dataclasses
import typing

import ml_dtypes
import numpy as np
import pytest

from graphq.base.sizes import Trace, later
from graphq.dtypes import DTYPES, DType
from graphq.errors import ParseError
from graphq.ir import Graph, TensorType
from graphq.ir.interpret import add_known
from graphq.ir.op import OPS
from graphq.ir.text import parse, to_text
from graphq.ir.verify import verify


def again(graph):
    """The graph made from the text of `graph`, which must have the same text."""
    text = to_text(graph)
    out = parse(text)
    verify(out)
    assert to_text(out) == text
    return out


def returning(text):
    """A graph text around the statements and return of `text`."""
    return "graph(x: f32[2,3]) {\n" + text + "\n}"


# -- every op and attribute -----------------------------------------------------------------------------------


def other_values(annotation, default):
    """Values of an attribute that differ from its default, the ordinary and the odd."""
    args = typing.get_args(annotation)
    if type(None) in args:
        return other_values(next(a for a in args if a is not type(None)), default)
    if typing.get_origin(annotation) is typing.Literal:
        return [a for a in args if a != default]
    if args:
        return [tuple(other_values(args[0], None)), ()]
    return {bool: [not default], int: [-1, 7, 0], float: [0.1, -0.0, 1e-45, float("inf"), 2.0], str: ["", 'a"b\n%x'],
            DType: [t for t in DTYPES.values() if t is not default], Graph: [body()],
            np.ndarray: [np.arange(3, dtype=np.int8)]}[annotation]


def body():
    g = Graph("inner")
    g.output(g.relu(g.input("x", dtype="f32", shape=(2,))), name="y")
    return g


CASES = [(op.name, a.name) for op in OPS.values() for a in op.attributes.values()]


@pytest.mark.parametrize("op,attribute", CASES, ids=[".".join(c) for c in CASES])
def test_every_attribute_makes_the_round_trip(op, attribute, monkeypatch):
    """Each attribute on its own at values that are not its default, whatever the op's own rules say of them."""
    op, a = OPS[op], OPS[op].attributes[attribute]
    values = [v for v in other_values(a.annotation, a.default) if repr(v) != repr(a.default)]
    assert values
    monkeypatch.setitem(OPS, op.name, lenient(op))
    for value in values:
        g = Graph()
        x = g.input("x", dtype="f32", shape=(2,))
        given = {n: default_of(b) for n, b in op.attributes.items() if b.required} | {attribute: value}
        y = g.add_node(OPS[op.name], operands(op, x), given)[0]
        g.output(y, name="y")
        text = to_text(g)
        assert f"{attribute}=" in text or attribute == "value"
        got = again(g).nodes[-1].attrs[attribute]
        assert same(got, y.node.attrs[attribute])


@pytest.mark.parametrize("name", OPS)
def test_every_op_makes_the_round_trip_at_its_defaults(name, monkeypatch):
    op = OPS[name]
    monkeypatch.setitem(OPS, name, lenient(op))
    g = Graph()
    x = g.input("x", dtype="f32", shape=(2,))
    given = {n: default_of(b) for n, b in op.attributes.items() if b.required}
    for count in {sum(not p.optional for p in op.operands), len(op.operands)}:
        g.add_node(OPS[name], operands(op, x)[:count], given)
    text = to_text(g)
    for n, b in op.attributes.items():
        assert (f"{n}=" in text) == b.required
    h = again(g)
    assert [n.inputs for n in h.nodes] == [tuple(h.inputs[0] for _ in n.inputs) for n in g.nodes]


def lenient(op):
    """The op without its type rule."""
    return dataclasses.replace(op, infer=lambda *types, **attrs: TensorType(DTYPES["f32"], (2,)))


def operands(op, x):
    return [x] * len(op.operands)


def default_of(a):
    return other_values(a.annotation, None)[0]


def same(a, b):
    if isinstance(a, Graph):
        return to_text(a) == to_text(b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return repr(a) == repr(b)


# -- constants ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_constants_of_every_dtype(name):
    dtype = DTYPES[name]
    if dtype.kind == "float":
        items = [0.0, -0.0, 1.5, -2, dtype.max, dtype.min, float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal),
                 float("nan")] + [float("inf"), -float("inf")] * (name != "f8_e4m3")
    else:
        items = sorted({dtype.min, dtype.max, 0, 1, dtype.max - 1})
    wide = np.float64 if dtype.kind == "float" else np.uint64 if name == "u64" else np.int64
    with np.errstate(over="ignore"):
        array = np.array(items, wide).astype(dtype.numpy)
    g = Graph()
    g.output(g.constant(array, dtype=name), name="c")
    got = again(g).outputs[0].data
    assert got.dtype == dtype.numpy and not got.flags.writeable
    wide, wanted = got, array
    if dtype.kind == "float":
        wide, wanted = got.astype(np.float64), array.astype(np.float64)
        assert np.array_equal(np.signbit(wide), np.signbit(wanted))
    assert np.array_equal(wide, wanted, equal_nan=dtype.kind == "float")


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1), (2, 3)])
def test_shapes_of_constants(shape):
    g = Graph()
    g.output(g.constant(np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)), name="c")
    assert np.array_equal(again(g).outputs[0].data, g.outputs[0].data)


def test_random_f32_make_the_round_trip_bit_for_bit():
    bits = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint64).astype(np.uint32)
    array = bits.view(np.float32)
    array = array[~np.isnan(array)]
    g = Graph()
    g.output(g.constant(array), name="c")
    assert again(g).outputs[0].data.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", ["bf16", "f16", "f8_e4m3", "f8_e5m2"])
def test_all_narrow_floats_make_the_round_trip(name):
    dtype = DTYPES[name].numpy
    unsigned = np.uint16 if dtype.itemsize == 2 else np.uint8
    step = 17 if dtype.itemsize == 2 else 1
    array = np.arange(0, 256**dtype.itemsize, step, dtype=np.uint32).astype(unsigned).view(dtype)
    g = Graph()
    g.output(g.constant(array), name="c")
    got = again(g).outputs[0].data
    with np.errstate(invalid="ignore"):  # there are signaling NaNs
        number = ~np.isnan(array)
    assert np.array_equal(np.isnan(got), ~number) and got[number].tobytes() == array[number].tobytes()


# -- names, outputs, bodies -----------------------------------------------------------------------------------

ODD_NAMES = ["a b", "inf", "nan", "none", "return", "graph", "as", "3", "%3", "é", 'q"uo\\te', "line\nbreak", "nan.x",
             "true", "f32", "u8", "a.b", "x=1", "#no comment", "...", "infx", "_", "٣"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_are_quoted_where_need_be(name):
    g = Graph(name)
    x = g.input(name, dtype="f32", shape=(2,))
    y = g.add(x, x, name=name + "'")
    z = g.relu(y, name="y")
    h = g.relu(z)
    g.set_outputs([h, y, x], [name, "b", "c"])
    got = again(g)
    assert (got.name, got.inputs[0].name, got.nodes[0].output.name) == (name, name, name + "'")
    assert got.output_names == [name, "b", "c"] and got.nodes[-1].output.name is None


def test_numbers_as_names_and_as_places():
    g = Graph()
    x = g.input("0", dtype="f32", shape=(2,))
    a = g.relu(x, name="1")
    b = g.relu(a)
    c = g.add(b, a)
    g.output(c, name="2")
    h = again(g)
    assert h.nodes[2].inputs == (h.nodes[1].output, h.nodes[0].output)
    assert to_text(h) == """graph("0": f32[2]) {
  %"1" = relu("0") : f32[2]
  %0 = relu(%"1") : f32[2]
  %"2" = add(%0, %"1") : f32[2]
  return %"2"
}"""


def test_an_input_called_like_a_value():
    g = parse('graph("%0": f32[2], "%a": f32[2]) {\n %0 = relu("%a")\n %a = add("%0", %0)\n return %a\n}')
    assert [v.name for v in again(g).nodes[1].inputs] == ["%0", None]


def test_outputs():
    g = Graph()
    x = g.input("x", dtype="f32", shape=(2,))
    a, b = g.relu(x, name="a"), g.tanh(x)
    g.set_outputs([a, x, b, a, b, x], ["a", "x", "out2", "b", "out7", "out5"])
    assert to_text(g).splitlines()[-2] == "  return %a, x, %0, %a as b, %0 as out7, x as out5"
    h = again(g)
    assert h.output_names == g.output_names and h.outputs[0] is h.outputs[3] and h.outputs[1] is h.inputs[0]
    g.set_outputs([], [])
    assert again(g).outputs == []


def test_several_results():
    text = returning("  %y, %0 = softmax(x, keep_stats=true) : f32[2,3], f32[2,1]\n  return %0, %y")
    assert to_text(parse(text)) == text


def test_properties_and_unknown_shapes():
    text = """graph net(a: f32[*], b: u8[?,3] constant, c: s32[] host_scalar, d: f32[0] variable) {
  %0 = relu(a) : f32[*]
  return %0, b as b2
}"""
    g = parse(text)
    assert to_text(g) == text and g.name == "net"
    assert [v.property for v in g.inputs] == ["undef", "constant", "host_scalar", "variable"]


def test_bodies_nest():
    inner = body()
    middle = Graph("middle")
    z = middle.input("z", dtype="f32", shape=(2,))
    middle.output(middle.partition(z, body=inner, anchor="eltwise"), name="w")
    g = Graph()
    x = g.input("x", dtype="f32", shape=(2,))
    g.output(g.partition(x, body=middle, anchor="matmul"), name="y")
    assert to_text(again(g)) == """graph(x: f32[2]) {
  %y = partition(x, body=graph middle(z: f32[2]) {
    %w = partition(z, body=graph inner(x: f32[2]) {
      %y = relu(x) : f32[2]
      return %y
    }, anchor="eltwise") : f32[2]
    return %w
  }, anchor="matmul") : f32[2]
  return %y
}"""


def test_negative_zero_is_not_the_default():
    g = Graph()
    x = g.input("x", dtype="f32", shape=(2,))
    g.output(g.clamp(x, min=-0.0, max=0.0), name="y")
    assert "min=-0.0, max=0.0" in to_text(again(g))


# -- what may be written by hand ------------------------------------------------------------------------------


def test_types_comments_and_layout_are_free():
    g = parse('graph(x:f32[2,3],) { # a comment\n%5=relu(x)%"a b"=\n softmax(%5,axis=-1,) return%"a b" as y,x}')
    assert to_text(g) == """graph(x: f32[2,3]) {
  %0 = relu(x) : f32[2,3]
  %"a b" = softmax(%0, axis=-1) : f32[2,3]
  return %"a b" as y, x
}"""


def test_elided_text_is_for_people():
    g = Graph()
    x = g.input("x", dtype="u8", shape=(2, 9))
    y = g.dequantize(x, qtype="per_channel", scales=[0.5] * 9)
    g.output(g.add(y, np.zeros(9, np.float32)), name="y")
    text = to_text(g, elide=2)
    assert "scales=[0.5, 0.5, ... 7 more]" in text and "f32[9]{0.0, 0.0, ... 7 more}" in text
    for cut in (text, str(g), text.replace("... 7 more", "...")):
        with pytest.raises(ParseError, match="line 2, column .*the text was cut short"):
            parse(cut)
    assert to_text(g, elide=9) == to_text(g)


def test_kept_numbers_are_those_of_text_for_people():
    """Text that is read back is numbered from 0, whatever numbers are kept."""
    g = Graph()
    x = g.input("x", dtype="f32", shape=(2,))
    g.relu(x)
    y = g.exp(x)
    g.output(g.relu(y), name="y")
    assert "%1 = exp(x)" in to_text(g)
    g.labels.keep()
    g.labels.of(y)
    g.prune()
    assert "%1 = exp(x)" in to_text(g, elide=9) and "relu(%1)" in to_text(g, elide=9)
    assert "%0 = exp(x)" in to_text(g) and "relu(%0)" in to_text(g)
    assert to_text(parse(to_text(g))) == to_text(g) and "%1 = exp" in to_text(g, elide=9)


def test_a_constant_that_follows_from_open_sizes_is_printed_without_numbers():
    g, n = Graph(), Trace().leaf(3, "n")
    add_known(g, later(np.arange, n))
    assert "sized_constant(value=?, shape=[?], dtype=s64) : s64[?]" in to_text(g)
