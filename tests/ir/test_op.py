"""Own operations, what follows from a declaration, and what it may not be."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError
from graphq.ir import Graph
from graphq.ir.op import OPS, Curve, register_op
from graphq.kernels.lanes.expression import op
from graphq.model import row_wise
from graphq.model.row_wise import why_rows_mix
from graphq.ops.rules import in_f32, infer_unary
from graphq.passes import layouts
from graphq.passes.fuse import Fuse
from graphq.passes.layouts import channels_last_form


def test_own_ops(registry):
    g = Graph("test")
    x = g.input("x", dtype="f32", shape=(2, 3))

    @register_op(infer=lambda src, *, factor: src)
    def scaled(src, *, factor: float = 2.0):
        """Scale."""
        return src * np.float32(factor)

    g.output(g.scaled(x, factor=3), name="y")
    assert scaled.kind == "Scaled" and gq.reference(g, x=np.ones((2, 3), np.float32)).tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize("annotation", [int, "int", "'int'"])
def test_annotations_may_be_strings(registry, annotation):
    """As with `from __future__ import annotations`, also where the code has quotes."""
    def added(src, *, n):
        """Add."""
        return src + np.float32(n)

    added.__annotations__["n"] = annotation
    register_op(infer=lambda src, *, n: src)(added)
    g = Graph("test")
    g.output(g.added(g.input("x", dtype="f32", shape=(1,)), n=2), name="y")
    assert gq.reference(g, x=np.zeros(1, np.float32)).tolist() == [2]
    with pytest.raises(GraphError, match="attribute 'n' must be of type int, got 'a'"):
        g.added(g.inputs[0], n="a")


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_one_number_stands_for_all_spatial_axes(g, axes):
    """Numbers of attributes that are left out, too; the weights have the rank if the image's is not known."""
    image, unknown, w = (g.input(n, dtype="f32", shape=s) for n, s in (
        ("image", (1, *(9,) * axes, 4)), ("unknown", None), ("w", (*(2,) * axes, 4, 5))))
    for source in (image, unknown):
        a = g.convolution(source, w, strides=np.int64(3), pads_end=1).node.attrs
        assert [a[name] for name in ("strides", "pads_begin", "pads_end", "dilations")] == [
            (n,) * axes for n in (3, 0, 1, 1)]
    assert g.max_pool(image, kernel=2).node.attrs["kernel"] == (2,) * axes
    with pytest.raises(GraphError, match="must be a list, because no operand's rank is known"):
        g.max_pool(unknown, kernel=2)
    with pytest.raises(GraphError, match="attribute 'kernel' must be"):
        g.max_pool(image, kernel=True)
    a = g.quantize(image, dtype="u8", scales=np.float32(0.5), zps=3).node.attrs
    assert (a["scales"], a["zps"]) == ((0.5,), (3,))


def test_registering_a_name_twice(registry):
    with pytest.raises(GraphError, match="op 'relu' is registered already, by graphq.ops.eltwise"):
        @register_op(infer=None)
        def relu(src):
            """Again."""


def test_bad_signatures(registry):
    def named(src, *, name: str = ""):
        """An attribute that builder methods use themselves."""

    def variable(src, **attrs):
        """Attributes without names."""

    def positional(src, alpha=1.0):
        """An attribute in a tensor's place."""

    for f, message in ((named, "cannot be called 'name'"), (variable, "variable"), (positional, "'alpha' is a tensor")):
        with pytest.raises(GraphError, match=message):
            register_op(infer=None)(f)
        assert f.__name__ not in OPS


def halved(src, *, alpha: float = 0.5):
    """An operation of one operand."""
    return src * np.float32(alpha)


@pytest.mark.parametrize("wrong, message", [
    (dict(elementwise=False), "an operation with lanes must be elementwise: use elementwise=True"),
    (dict(lanes=lambda x, y: x * y), r"its lane rule takes \(x, y\), but its operands are \(src\)"),
        (dict(lanes=lambda x, *, alpah: x * alpah),
         "its lane rule takes 'alpah', which is not an attribute.* it has alpha"),
    (dict(bound=lambda *, alpah: Curve(1)), "its bound takes 'alpah', which is not an attribute.* it has alpha"),
    (dict(bound="sums"), "a bound must be a Curve, a function, or one of sum, product, quotient, extreme, got 'sums'"),
])
def test_rules_that_do_not_fit_the_signature(registry, wrong, message):
    right = dict(infer=infer_unary, elementwise=True, lanes=lambda x, *, alpha: x * alpha, bound=Curve(1))
    with pytest.raises(GraphError, match=f"op 'halved': {message}"):
        register_op(**{**right, **wrong})(halved)
    assert "halved" not in OPS and register_op(**right)(halved).lanes is right["lanes"]


def test_rewrites_that_have_run_take_operations_that_are_registered_later(registry):
    fuse, text = Fuse("eltwise", floats=True), """graph(x: u8[4]) {{
      %0 = dequantize(x, scales=[0.5])
      %1 = {}(%0)
      %2 = quantize(%1, dtype=u8, scales=[0.25])
      return %2
    }}"""
    assert fuse(gq.parse(text.format("relu"))) == 1

    @register_op(infer=infer_unary, elementwise=True, lanes=lambda x: x * 0.5)
    @in_f32
    def halved(src):
        """Half of a tensor."""
        return src * np.float32(0.5)

    assert fuse(gq.parse(text.format("halved"))) == 1


@pytest.fixture
def softsign(registry):
    @register_op(infer=infer_unary, elementwise=True, lanes=lambda x: x / (1.0 + op("abs", x)), onnx="Softsign",
                 bound=Curve(slope=1, spread=0, own=1, ulps=2))
    @in_f32
    def softsign(src):
        """`src / (1 + |src|)` (ONNX Softsign)."""
        return src / (np.float32(1) + np.abs(src))

    return softsign


def test_a_lane_wise_operation_is_its_declaration(softsign, tmp_path, monkeypatch):
    """Imported and saved, typed, fused into an epilogue, with a band around ties, laid out, and run row by row."""
    onnx = pytest.importorskip("onnx")
    importer = pytest.importorskip("graphq.onnx.importers.importer")
    monkeypatch.delitem(importer.IMPORTERS, ("", "Softsign"), raising=False)  # of simpler operations, it goes first
    g = gq.load_onnx(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[n, 3, 4] x) => (float[n, 3, 4] y) { y = Softsign(x) }"""))
    (node,) = g.nodes
    assert node.op is softsign and str(node.output.type) == str(g.inputs[0].type)
    gq.save_onnx(g, tmp_path / "g.onnx")
    assert [n.op_type for n in onnx.load(tmp_path / "g.onnx").graph.node] == ["Softsign"]
    assert why_rows_mix(g) is None
    assert channels_last_form(node) == (("moves",), (True,), {})

    rng = np.random.default_rng(0)
    g = Graph()
    x = g.dequantize(g.input("x", shape=(16, 64), dtype="u8"), scales=[0.02], zps=[120])
    w = g.dequantize(g.constant(rng.integers(-127, 128, (64, 32), dtype=np.int8)), scales=[0.01])
    g.output(g.quantize(g.softsign(x @ w), dtype="s8", scales=[1 / 127]), name="y")
    model = gq.compile(g, isa="scalar", threads=1, passes=[Fuse("matmul")])
    assert [n.op.name for n in model.graph.nodes_of(["partition"])[0].attrs["body"].nodes][-2] == "softsign"
    assert "ties: 1 quantize settled" in model.explain()
    data = rng.integers(0, 256, (16, 64), dtype=np.uint8)
    np.testing.assert_array_equal(model(data), gq.reference(g, x=data))


def test_rules_are_those_that_operations_name():
    assert {x.layout for x in OPS.values()} - {None} == layouts.RULES.keys()
    assert {x.rows for x in OPS.values()} - {None} == row_wise.RULES.keys()
