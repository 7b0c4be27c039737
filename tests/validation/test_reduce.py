"""reduce_graph: what is left is interesting, valid, and small; trials are bounded."""
import pytest
from wrong_passes import residual_network

import graphq as gq
from graphq.ir.verify import verify
from graphq.validation.reduce import reduce_graph, subgraph

CHAIN = """graph(x: f32[4,16], w: f32[16,8]) {
  %a = relu(x)
  %b = matmul(%a, w)
  %c = softmax(%b, axis=1)
  %q = quantize(%c, dtype=u8, qtype="per_channel", axis=1, scales=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
  %d = tanh(%a)
  return %q, %d
}"""


def has(*ops):
    return lambda g: {n.op.name for n in g.nodes} >= set(ops)


def of_relus(count, parallel):
    g = gq.Graph("relus")
    values = [g.input("x", shape=(2,), dtype="f32")]
    for k in range(count):
        values.append(g.relu(values[0 if parallel else -1], name=f"y{k}"))
        g.output(values[-1])
    return g


@pytest.mark.parametrize("cause", [{3}, {0, 9}, {4, 5, 6}, {1, 5, 9}, set(range(10))])
@pytest.mark.parametrize("parallel", [False, True])
def test_the_nodes_of_the_cause_are_found(cause, parallel):
    g, tried = of_relus(10, parallel), []

    def interesting(candidate):
        tried.append(candidate)
        return {f"y{k}" for k in cause} <= {v.name for n in candidate.nodes for v in n.outputs}

    assert {n.output.name for n in reduce_graph(g, interesting).nodes} == {f"y{k}" for k in cause}
    assert len(tried) <= 200 and all(x.nodes for x in tried)


def test_one_cause_among_many_nodes_takes_few_trials():
    g, tried = of_relus(256, True), []

    def interesting(candidate):
        tried.append(len(candidate.nodes))
        return any(n.output.name == "y77" for n in candidate.nodes)

    assert len(reduce_graph(g, interesting).nodes) == 1
    assert sum(count > 1 for count in tried) <= 40


@pytest.mark.parametrize("ops,text", [
    (["matmul"], "graph(x0: f32[1,1]) {\n  %0 = matmul(x0, x0) : f32[1,1]\n  return %0\n}"),
    (["softmax"], "graph(x0: f32[1,1]) {\n  %0 = softmax(x0) : f32[1,1]\n  return %0\n}"),
    (["quantize"], "graph(x0: f32[1,1]) {\n  %0 = quantize(x0, dtype=u8, scales=[0.1]) : u8[1,1]\n  return %0\n}"),
    (["relu", "tanh"], "graph(x0: f32[1,1]) {\n  %0 = relu(x0) : f32[1,1]\n  %1 = tanh(%0) : f32[1,1]\n  return %1\n}"),
])
def test_what_is_left_of_a_chain(ops, text):
    g = gq.parse(CHAIN)
    least = reduce_graph(g, has(*ops))
    assert gq.to_text(least) == text and gq.to_text(g) == gq.to_text(gq.parse(CHAIN))


def test_each_candidate_is_valid_and_smaller():
    g = residual_network(3)
    seen = []

    def interesting(candidate):
        verify(candidate)
        seen.append(candidate)
        gq.parse(gq.to_text(candidate))
        return has("subtract", "convolution")(candidate)

    least = reduce_graph(g, interesting)
    assert sorted(n.op.name for n in least.nodes) == ["convolution", "subtract"]
    assert all(v.type.size <= 2 for v in least.inputs) and 1 < len(seen) < 100


def test_trials_are_bounded():
    asked = []
    least = reduce_graph(residual_network(2), lambda g: bool(asked.append(g)) or has("convolution")(g), trials=7)
    assert len(asked) == 7 and has("convolution")(least)
    g = residual_network(1)
    assert reduce_graph(g, has("relu"), trials=0) is g


def test_what_the_check_raises_is_raised():
    def breaks(g):
        raise gq.GraphError("mine")

    with pytest.raises(gq.GraphError, match="mine"):
        reduce_graph(gq.parse(CHAIN), breaks)


def test_constants_shapes_and_outputs_shrink_as_far_as_is_interesting():
    g = gq.parse("""graph(x: f32[6,5]) {
      %w = constant(value=f32[5]{0.25, 2.5, 3.5, 4.5, 5.5})
      %0 = add(x, %w)
      %1 = relu(%0)
      return %1, %0, %w
    }""")

    def interesting(candidate):
        return any(n.op.name == "add" and n.inputs[1].data is not None and n.inputs[0].shape[-1] > 1
                   for n in candidate.nodes)

    assert gq.to_text(reduce_graph(g, interesting)) == """graph(x0: f32[1,2]) {
  %0 = constant(value=f32[2]{1.0, 1.0}) : f32[2]
  %1 = add(x0, %0) : f32[1,2]
  return %1
}"""


def test_subgraph_keeps_names_and_cuts_values():
    g = gq.parse(CHAIN)
    part = subgraph(g, [n for n in g.nodes if n.op.name in ("matmul", "tanh", "quantize")])
    verify(part)
    assert [v.name for v in part.inputs] == ["w", "a", "c"]
    assert part.output_names == ["q", "d", "b"]


def test_partitions_shrink_with_their_bodies():
    g = residual_network(1)
    gq.passes.run_passes(g)
    least = reduce_graph(g, has("partition"))
    verify(least)
    assert len(least.nodes) == 1


def test_no_candidate_keeps_an_input_that_nothing_uses():
    from graphq.validation.reduce import fewer_nodes, fewer_outputs
    g = gq.parse("""graph(x: f32[2], y: f32[2], z: f32[2]) {
      %a = add(x, y)
      %b = relu(z)
      return x, %a, %b
    }""")
    count = 0
    for make in (*fewer_outputs(g), *fewer_nodes(g)):
        made = make()
        verify(made)
        assert all(v.uses for v in made.inputs)
        count += 1
    assert count > 6
