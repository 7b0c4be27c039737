"""Common subexpressions and dead code."""
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from graphq.ir import Graph
from graphq.ir.op import OPS
from graphq.ir.verify import verify
from graphq.passes import (
    eliminate_common_subexpressions,
    eliminate_dead_code,
)
from graphq.passes.cleanup import _attributes, _operands
from graphq.testing import check_pass

check = partial(check_pass, inputs="x: f32[4], y: f32[4]")


def test_equal_nodes_become_one():
    check(eliminate_common_subexpressions, """%0 = relu(x)
          %1 = relu(x)
          %2 = tanh(%0)
          %3 = tanh(%1)
          %4 = subtract(%2, %3)
          return %4, %1""", """%0 = relu(x)
          %1 = tanh(%0)
          %2 = subtract(%1, %1)
          return %2, %0""", count=2)


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
def test_commutative_operands_in_either_order(op):
    check(eliminate_common_subexpressions, f"%0 = {op}(x, y)\n %1 = {op}(y, x)\n return %0, %1",
          f"%0 = {op}(x, y)\n return %0, %0", count=1)


def test_equal_constants():
    check(eliminate_common_subexpressions, """%0 = constant(value=f32[4]{1, 2, nan, 4})
          %1 = constant(value=f32[4]{1, 2, nan, 4})
          %2 = add(x, %0)
          %3 = add(%1, x)
          return %2, %3""", """%0 = constant(value=f32[4]{1, 2, nan, 4})
          %1 = add(x, %0)
          return %1, %1""", count=2)


@pytest.mark.parametrize("a,b", [
    ("subtract(x, y)", "subtract(y, x)"), ("relu(x)", "tanh(x)"), ("relu(x)", "relu(y)"),
    ("clamp(x, min=0.0, max=1)", "clamp(x, min=-0.0, max=1)"), ("clamp(x, min=0, max=1)", "clamp(x, min=0, max=2)"),
    ("constant(value=f32[1]{0.0})", "constant(value=f32[1]{-0.0})"),
    ("constant(value=s8[1]{1})", "constant(value=u8[1]{1})"),
    ("constant(value=f32[1]{1})", "constant(value=f32[]{1})"),
    ("constant(value=f32[0]{})", "constant(value=f32[0,1]{})"),
    ("add(x, y)", 'add(x, y, auto_broadcast="none")'),
])
def test_what_differs_stays(a, b):
    check(eliminate_common_subexpressions, f"%0 = {a}\n %1 = {b}\n return %0, %1")


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.attributes], ids=lambda op: op.name)
def test_nodes_that_differ_in_any_one_attribute_stay(op):
    """Whatever the attribute: that of a node's key says so, of nodes that are the same in all else."""
    for name in op.attributes:
        nodes = [SimpleNamespace(op=op, inputs=(), attrs={**dict.fromkeys(op.attributes, 1), name: value})
                 for value in (1, 2)]
        assert len({(_operands(node), _attributes(node)) for node in nodes}) == 2, name


def test_constants_that_differ_in_one_element_stay():
    """However large they are, and wherever the element is."""
    g = Graph()
    x = g.input("x", dtype="s32", shape=(1000,))
    for k in (0, 1, 500, 999, 999):
        data = np.zeros(1000, np.int32)
        data[k] = 1
        x = g.add(x, g.constant(data))
    g.output(x, name="y")
    assert eliminate_common_subexpressions(g) == 1
    assert [n.op.name for n in g.nodes].count("constant") == 4


def test_several_results_merge_too():
    check(eliminate_common_subexpressions, """%0, %1 = softmax(x, axis=0, keep_stats=true)
          %2, %3 = softmax(x, axis=0, keep_stats=true)
          return %0, %3""", "%0, %1 = softmax(x, axis=0, keep_stats=true)\n return %0, %1", count=1)


def test_returned_under_two_names():
    check(eliminate_common_subexpressions, "%a = relu(x)\n %b = relu(x)\n return %a, %b",
          "%a = relu(x)\n return %a, %a as b")


def test_constants_of_every_dtype_have_keys():
    from graphq.dtypes import DTYPES

    g = Graph()
    for dtype in DTYPES.values():
        for shape in ((), (0,), (2, 2)):
            for _ in range(2):
                g.output(g.constant(np.ones(shape), dtype=dtype))
    assert eliminate_common_subexpressions(g) == len(DTYPES) * 3
    verify(g)


def test_dead_code():
    check(eliminate_dead_code, "%0 = relu(x)\n %1 = tanh(%0)\n %2 = constant(value=f32[]{1})\n %3 = exp(y)\n return %3",
          "%0 = exp(y)\n return %0", count=3)
    check(eliminate_dead_code, "%0 = relu(x)\n return %0")
    check(eliminate_dead_code, "%0, %1 = softmax(x, axis=0, keep_stats=true)\n return %1")
