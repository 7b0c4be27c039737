"""Plans of graphs: whose outputs no step writes, and what formulas give."""
import numpy as np
import pytest

import graphq as gq
from graphq.ir.interpret import named_outputs
from graphq.kernels.jit import isa
from graphq.model.planning import build_plan, evaluate_formulas
from graphq.plan.plan import PythonStep

X = np.float32([[1, -2, 3], [-4, 5, -6]])

TEXT = """graph(x: f32[2,3], e: f32[0,3]) {
  %c = constant(value=f32[2]{7,8})
  %0 = relu(x)
  %1 = static_reshape(x, shape=[3,2])
  %2 = static_reshape(%0, shape=[6])
  return x as input, %c as constant, %0 as result, %0 as again, %1 as view, %2 as flat, e as empty
}"""


def test_outputs_that_no_step_writes():
    g = gq.parse(TEXT)
    want = {"input": X, "constant": [7, 8], "result": np.maximum(X, 0), "again": np.maximum(X, 0),
            "view": X.reshape(3, 2), "flat": np.maximum(X, 0).ravel(), "empty": np.empty((0, 3))}
    feeds = {"x": X, "e": np.empty((0, 3), np.float32)}
    found = gq.compile(g, threads=1)(feeds)
    formulas = dict(zip(g.output_names, evaluate_formulas(g, feeds), strict=True))
    assert list(found) == list(want) == list(formulas)
    for name, y in want.items():
        for out in (found[name], formulas[name]):
            assert out.shape == np.shape(y) and out.dtype == np.float32
            np.testing.assert_array_equal(out, y)
    found["again"][:] = 0  # each has memory of its own
    found["input"][:] = 0
    assert (found["result"] == want["result"]).all() and (found["flat"] == want["flat"]).all() and X[0, 0] == 1


def test_steps_know_their_nodes():
    g = gq.parse(TEXT)
    plan = build_plan(g, isa.available()[-1], 1, True)
    copies = [s.kernel for s in plan.steps if isinstance(s, PythonStep) and s.kernel.startswith("copy")]
    assert "copy to output 'empty'" not in copies and "copy to output 'input'" in copies and len(copies) >= 5
    assert len(plan.nodes) == len(plan.steps) and plan.threads == 1 and plan.level == isa.available()[-1].name
    for step, node in zip(plan.steps, plan.nodes, strict=True):
        assert (node is None) == (isinstance(step, PythonStep) and step.kernel.startswith("copy"))
        assert node is None or g.nodes[node].op.name in ("relu", "static_reshape")
    assert not any(s.reference for s in plan.steps if isinstance(s, PythonStep) and s.kernel.startswith("copy"))


@pytest.mark.parametrize("results", [1, 2])
def test_formulas_of_operations_with_several_results(results):
    g = gq.parse("graph(x: f32[2,3]) {\n %a, %b = top_k(x, k=2)\n return " + ", ".join(["%a as a", "%b as b"][:results])
                 + "\n}")
    wanted = named_outputs(g.output_names, gq.reference(g, {"x": X}))
    for y, name in zip(evaluate_formulas(g, {"x": X}), g.output_names, strict=True):
        assert y.dtype == wanted[name].dtype and (y == wanted[name]).all()
