"""What a run of passes leaves: which node of the graph as it was each node came from."""
import numpy as np

import graphq as gq
from graphq.passes.move_quantization import TransposeBeforeDequantize
from graphq.rewrite.history import History
from graphq.rewrite.rule import Rewrite

TEXT = """graph(x: u8[2,3]) {
  %d = dequantize(x, scales=[0.5])
  %t = static_transpose(%d, order=[1,0])
  %y = relu(%t)
  return %y
}"""


class Doubled(Rewrite):
    """relu(x) -> multiply(relu(x), 1), once"""

    def pattern(self, g, x):
        return g.relu(x)

    def check(self, g):
        return "done" if g.nodes_of(["multiply"]) else None

    def replace(self, g, x):
        return g.multiply(g.relu(x), np.float32(1))


def test_a_new_node_came_from_the_matched_one_of_its_operation_or_from_the_root():
    graph = gq.parse(TEXT)
    History(graph)
    first = {n.op.name: n for n in graph.nodes}
    assert TransposeBeforeDequantize()(graph) == 1 and Doubled()(graph) == 1
    assert {n.op.name: n.origin for n in graph.nodes} == {
        "static_transpose": first["static_transpose"], "dequantize": first["dequantize"], "relu": first["relu"],
        "constant": first["relu"], "multiply": first["relu"]}


def test_what_is_made_of_a_new_node_came_from_the_first():
    graph = gq.parse(TEXT.replace("%y = relu(%t)", "%u = static_transpose(%t, order=[1,0])\n  %y = relu(%u)"))
    History(graph)
    (dequantize,) = graph.nodes_of(["dequantize"])
    assert TransposeBeforeDequantize()(graph) == 2
    assert [n.origin for n in graph.nodes_of(["dequantize"])] == [dequantize]


def test_after_the_first_fusion_nodes_came_from_those_before_it():
    graph = gq.parse(TEXT)
    history = History(graph)
    after = history.fork()
    assert after is not graph and history.fork() is after
    assert [n.origin for n in after.nodes] == graph.nodes
    assert Doubled()(after) == 1
    assert {n.origin for n in after.nodes if n.op.name in ("relu", "multiply")} == {*graph.nodes_of(["relu"])}


def test_without_a_history_no_node_is_kept():
    graph = gq.parse(TEXT)
    assert Doubled()(graph) == 1 and TransposeBeforeDequantize()(graph) == 1
    assert all(n.origin is None for n in graph.nodes)
