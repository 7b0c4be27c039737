"""FuseEltwise: chains, trees and diamonds of lane-wise operations become one partition each."""
import pytest

from graphq.ir import Graph
from graphq.ir.op import OPS
from graphq.ir.text import parse
from graphq.ir.verify import verify
from graphq.kernels.eltwise.family import MAX_CHAIN
from graphq.kernels.family.epilogue import lane_wise_operations
from graphq.passes import Fuse
from graphq.testing import check_pass, check_same_numbers


def fused(statements, inputs="x: f32[4,6], y: f32[6]"):
    """Run the fusion on a copy; the fused graph, which has the same numbers, and the refusals."""
    before = parse(f"graph({inputs}) {{\n{statements}\n}}")
    after = before.copy()
    _, refusals = Fuse("eltwise", floats=True).apply(after)
    verify(after)
    check_same_numbers(before, after)
    return after, refusals


def shape_of(statements, inputs="x: f32[4,6], y: f32[6]"):
    """The operations left, those of a partition in a list."""
    g, _ = fused(statements, inputs)
    return [[m.op.name for m in n.attrs["body"].nodes] if n.op.name == "partition" else n.op.name for n in g.nodes]


def test_a_chain():
    check_pass(Fuse("eltwise", floats=True), count=1, before="""
        graph(x: f32[4,6], y: f32[6]) {
          %a = exp(x)
          %1 = add(%a, y)
          %z = relu(%1)
          return %z
        }""", after="""
        graph(x: f32[4,6], y: f32[6]) {
          %z = partition(x, y, body=graph body(x: f32[4,6], y: f32[6]) {
            %a = exp(x)
            %0 = add(%a, y)
            %z = relu(%0)
            return %z as out0
          }, anchor="eltwise")
          return %z
        }""")


@pytest.mark.parametrize("statements,want", [
    ("%0 = relu(x)\n return %0", [["relu"]]),
    ("%0 = exp(x)\n %1 = tanh(y)\n %2 = add(%0, %1)\n return %2", [["exp", "tanh", "add"]]),
    ("%0 = exp(x)\n %1 = relu(%0)\n %2 = tanh(%0)\n %3 = add(%1, %2)\n return %3", [["exp", "relu", "tanh", "add"]]),
    ("%0 = add(x, x)\n return %0", [["add"]]),
    ("%c = constant(value=f32[6]{1, 2, 3, 4, 5, 6})\n %0 = add(x, %c)\n return %0", ["constant", ["add"]]),
    # what is returned or has a user elsewhere ends a chain
    ("%0 = exp(x)\n %1 = relu(%0)\n return %1, %0", [["exp"], ["relu"]]),
    ("%0 = exp(x)\n %1 = relu(%0)\n %2 = softmax(%0)\n return %1, %2", [["exp"], ["relu"], "softmax"]),
    ("%0 = exp(x)\n %1 = relu(%0)\n %2 = tanh(%0)\n return %1, %2", [["exp"], ["relu"], ["tanh"]]),
    # not convex without the softmax
    ("%0 = exp(x)\n %1 = softmax(%0)\n %2 = add(%0, %1)\n return %2", [["exp"], "softmax", ["add"]]),
    ("%0 = exp(x)\n %1 = softmax(%0)\n %2 = relu(%1)\n return %2", [["exp"], "softmax", ["relu"]]),
    ("%0 = softmax(x)\n return %0", ["softmax"]),
    ("return x", []),
])
def test_shapes(statements, want):
    assert shape_of(statements) == want


def test_quantized_chains():
    """Q -> DQ pairs stay in the chain."""
    assert shape_of("""%0 = dequantize(x, scales=[0.5], zps=[3])
        %1 = relu(%0)
        %2 = quantize(%1, dtype=s8, scales=[0.25])
        %3 = dequantize(%2, scales=[0.25])
        %4 = quantize(%3, dtype=u8, scales=[0.125])
        return %4""", "x: u8[4,6]") == [["dequantize", "relu", "quantize", "dequantize", "quantize"]]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_channel_parameters(axis):
    scales = [0.5] * (4, 6)[axis]
    assert shape_of(f'%0 = dequantize(x, qtype="per_channel", axis={axis}, scales={scales})\n return %0',
                    "x: s8[4,6]") == [["dequantize"]]


def test_residual_of_two_quantized_values():
    assert shape_of("%0 = dequantize(x, scales=[0.5])\n %1 = dequantize(y, scales=[0.25], zps=[7])\n %2 = add(%0, %1)\n"
                    "%3 = relu(%2)\n %4 = quantize(%3, dtype=u8, scales=[0.5])\n return %4", "x: s8[4,6], y: u8[4,6]") \
        == [["dequantize", "dequantize", "add", "relu", "quantize"]]


def test_a_select():
    assert shape_of("%0 = greater_equal(x, y)\n %1 = select(%0, x, y)\n return %1") == [["greater_equal", "select"]]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_floats(dtype):
    want = shape_of("%0 = relu(x)\n %1 = tanh(%0)\n return %1", f"x: {dtype}[4,6]")
    assert want in ([["relu", "tanh"]], [["relu"], ["tanh"]])


def test_long_chains_are_cut():
    g = Graph()
    v = x = g.input("x", dtype="f32", shape=(2, 3))
    for k in range(3 * MAX_CHAIN + 5):
        v = g.add(v, x) if k % 3 == 0 else g.tanh(v)
    g.output(v)
    before = g.copy()
    assert Fuse("eltwise", floats=True)(g) == 4
    assert [len(n.attrs["body"].nodes) for n in g.nodes] == [5, MAX_CHAIN, MAX_CHAIN, MAX_CHAIN]
    verify(g)
    check_same_numbers(before, g)


LANE_WISE = {n for n, op in OPS.items() if op.elementwise} & set(lane_wise_operations())


@pytest.mark.parametrize("name", sorted(LANE_WISE))
def test_every_rule_fuses_and_no_other_op_does(name):
    op = OPS[name]
    g = Graph()
    logical = name.startswith("logical_")
    source = {"dequantize": "u8", "select": "boolean", "dynamic_dequantize": "u8", "arithmetic": "s32"}.get(name, "f32")
    x = g.input("x", dtype="boolean" if logical else source, shape=(2, 3))
    rest = [g.input(f"y{k}", dtype="boolean" if logical else "s32" if name == "arithmetic" else "f32", shape=(3,))
            for k in range(sum(not p.optional for p in op.operands) - 1)]
    given = {"scales": [0.5], "dtype": "u8" if name == "quantize" else "bf16", "min": -0.5, "max": 0.5, "alpha": 0.25,
             "beta": 2.0, "function": "xor"}
    g.output(g.add_node(op, [x, *rest], {k: v for k, v in given.items() if op.attributes.get(k) and
                                         op.attributes[k].required})[0], name="y")
    before = g.copy()
    count, refusals = Fuse("eltwise", floats=True).apply(g)
    assert count == 1 or refusals[0].reason
    verify(g)
    check_same_numbers(before, g)


@pytest.mark.parametrize("statements,inputs,reason", [
    ("%0 = cast(x, dtype=f32)\n return %0", "x: s64[4,6]", "kernels do not load s64"),
    ("%0 = cast(x, dtype=u16)\n return %0", "x: f32[4,6]", "kernels do not cast f32 to u16"),
])
def test_refusals(statements, inputs, reason):
    g, (refusal,) = fused(statements, inputs)
    assert [n.op.name for n in g.nodes if n.op.name == "partition"] == []
    assert reason in refusal.reason and refusal.rewrite == "FuseEltwise"


def test_unknown_shapes_wait_for_the_first_call():
    g = parse("graph(x: f32[?,6]) {\n %0 = relu(x)\n return %0\n}")
    count, (refusal,) = Fuse("eltwise", floats=True).apply(g)
    assert count == 0 and "is known only at the first call" in refusal.reason


@pytest.mark.parametrize("shape", ["0,3", "", "1,1", "7"])
def test_odd_shapes(shape):
    assert shape_of("%0 = relu(x)\n %1 = exp(%0)\n return %1", f"x: f32[{shape}]") == [["relu", "exp"]]


def test_an_operand_that_widens_in_mid_chain():
    got = shape_of("%0 = exp(y)\n %1 = tanh(%0)\n %2 = add(x, %1)\n return %2")
    assert got == [["exp", "tanh", "add"]]
