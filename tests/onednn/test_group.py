"""Groups: members of oneDNN's families give one partition; networks are cut where they should be."""
import networkx as nx
import numpy as np
import pytest
from dependencies import dependencies
from families import FAMILIES, member
from networks import NETWORKS, random_graph

import graphq as gq
from graphq.commands.arrays import accepted_inputs
from graphq.commands.run import compare
from graphq.ir.interpret import named_outputs, reference
from graphq.ir.text import parse
from graphq.ir.verify import verify
from graphq.onednn.group import GROUPS, Group, GroupAnchor, GroupAttention, GroupGatedMlp, GroupMove, group


def cut(text):
    """The partitions of a graph in text form, as anchors and names of operations."""
    return [(p.anchor, " ".join(n.op.name for n in p.ops)) for p in parse(text).partitions()]


def check_cut(graph, parts):
    """Each operation in exactly one partition; between partitions no cycle, and an order that can run."""
    nodes = [n for n in graph.nodes if n.op.name != "constant"]
    where = {n: k for k, p in enumerate(parts) for n in p.ops}
    assert sum(len(p.ops) for p in parts) == len(where) == len(nodes) and set(where) == set(nodes)
    quotient = nx.DiGraph((where[a], where[b]) for a, b in dependencies(nodes).edges if where[a] != where[b])
    assert nx.is_directed_acyclic_graph(quotient)  # so each partition is convex, too
    assert all(a < b for a, b in quotient.edges)


def run_parts(graph, parts, run):
    """The graph's outputs, its partitions run one after another by `run(partition, inputs)`."""
    values = accepted_inputs(graph, 1)
    names = {v: v.name or f"v{graph.label(v)[1:]}" for n in graph.nodes for v in (*n.operands, *n.outputs)}
    for p in parts:
        if not p.supported:
            continue
        out = run(p, {names[v]: values[names[v]] for v in p.inputs})
        values.update(named_outputs([names[v] for v in p.outputs], out))
    return {name: values[names[v]] if v.data is None else v.data
            for name, v in zip(graph.output_names, graph.outputs, strict=True)}


# -- families -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_one_partition(family):
    for seed in range(8):
        graph, anchor = member(family, seed)
        parts = graph.partitions()
        assert [(p.anchor, p.supported) for p in parts] == [(anchor, True)], f"seed {seed}:\n{graph}"
        check_cut(graph, parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_order_of_nodes_does_not_matter(family):
    """The same graph in another topological order gives the same partition."""
    graph, anchor = member(family, 3)
    rng = np.random.default_rng(0)
    again, new, waiting = gq.Graph(), {}, list(graph.nodes)
    for v in graph.inputs:
        new[v] = again.input(v.name, dtype=v.dtype, shape=v.shape)
    while waiting:
        ready = [n for n in waiting if all(v in new for v in n.operands)]
        node = ready[rng.integers(len(ready))]
        waiting.remove(node)
        outs = again.add_node(node.op, [None if v is None else new[v] for v in node.inputs], node.attrs)
        new.update(zip(node.outputs, outs, strict=True))
    again.set_outputs([new[v] for v in graph.outputs], graph.output_names)
    assert [p.anchor for p in again.partitions()] == [anchor]


def test_twenty_operations_with_casts_between():
    text = "".join(f"%{k} = add(%{k - 1}, y)\n" for k in range(1, 21))
    assert len(cut(f"""graph(x: u8[4,8], w: f32[8,4], y: f32[4]) {{
      %d = dequantize(x, scales=[0.1])
      %0 = matmul(%d, w)
      {text}
      %c = type_cast(%20, dtype=bf16)
      %e = type_cast(%c, dtype=f32)
      %q = quantize(%e, dtype=u8, scales=[0.1])
      return %q
    }}""")) == 1


@pytest.mark.parametrize("name", ["matmul_transpose_reshape", "matmul_dynamic_quantization", "convolution_depthwise",
                                  "int8_avg_pool_moved", "layer_norm_with_statistics", "attention_int8", "gated_mlp"])
def test_family_runs_compiled(name):
    """The partition compiles on its own, and agrees with the reference."""
    graph, _ = member(name, 1)
    inputs = accepted_inputs(graph, 1)
    (part,) = graph.partitions()
    got, wanted = (named_outputs(graph.output_names, x) for x in (part.compile()(inputs), reference(graph, inputs)))
    for name, v in zip(graph.output_names, graph.outputs, strict=True):
        assert compare(name, got[v.name], wanted[name], v).passed


# -- what does not go together --------------------------------------------------------------------------------


def test_a_quantize_ends_a_group():
    assert cut("""graph(x: f32[4,4], w: f32[4,4]) {
      %0 = matmul(x, w)
      %1 = quantize(%0, dtype=u8, scales=[0.1])
      %2 = static_transpose(%1, order=[1, 0])
      %3 = dequantize(%2, scales=[0.1])
      %4 = matmul(%3, w)
      return %4
    }""") == [("matmul", "matmul quantize static_transpose"), ("matmul", "dequantize matmul")]


def test_a_shared_value_stays_outside():
    assert cut("""graph(x: f32[4,4], w: f32[4,4]) {
      %0 = relu(x)
      %1 = matmul(%0, w)
      %2 = matmul(%0, w)
      %3 = add(%1, %2)
      return %3
    }""") == [("eltwise", "relu"), ("matmul", "matmul"), ("matmul", "matmul add")]


def test_a_returned_intermediate_ends_a_group():
    assert cut("""graph(x: f32[4,4], w: f32[4,4]) {
      %0 = matmul(x, w)
      %1 = relu(%0)
      %2 = tanh(%1)
      return %1, %2
    }""") == [("matmul", "matmul relu"), ("eltwise", "tanh")]


def test_what_grows_ends_a_group():
    """A sum that makes more elements than the anchor has."""
    assert cut("""graph(x: f32[1,4], w: f32[4,4], y: f32[3,4]) {
      %0 = matmul(x, w)
      %1 = relu(%0)
      %2 = add(%1, y)
      return %2
    }""") == [("matmul", "matmul relu"), ("eltwise", "add")]


def test_only_depthwise_convolutions_follow_convolutions():
    text = """graph(x: f32[1,5,5,4], w: f32[1,1,4,8], v: f32[3,3,{i},8]) {{
      %0 = convolution(x, w, strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1])
      %1 = relu(%0)
      %2 = convolution(%1, v, strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1], groups={n})
      return %2
    }}"""
    assert cut(text.format(i=1, n=8)) == [("convolution", "convolution relu convolution")]
    assert len(cut(text.format(i=8, n=1))) == len(cut(text.format(i=2, n=4))) == 2
    first = text.replace("[1,5,5,4]", "[1,4,5,5]").replace("dilations=[1, 1]", 'dilations=[1, 1], data_format="NCX"')
    assert len(cut(first.format(i=1, n=8))) == 1 and len(cut(first.format(i=2, n=4))) == 2


@pytest.mark.parametrize("nodes, parts", [
    ("%0 = static_transpose(x, order=[1,0])\n %1 = add(%0, y)\n return %1", [("reorder", "static_transpose add")]),
    ("%0 = static_transpose(x, order=[1,0])\n %1 = add(y, %0)\n %2 = add(%1, z)\n return %2",
     [("reorder", "static_transpose add"), ("eltwise", "add")]),
    ("%0 = add(y, z)\n %1 = static_transpose(%0, order=[1,0])\n return %1",
     [("eltwise", "add"), ("static_transpose", "static_transpose")]),
    ("%0 = type_cast(x, dtype=bf16)\n %1 = static_reshape(%0, shape=[12])\n %2 = type_cast(%1, dtype=f32)\n"
     " %3 = quantize(%2, dtype=u8, scales=[0.5])\n return %3",
     [("reorder", "type_cast static_reshape type_cast quantize")]),
    ("%0 = type_cast(x, dtype=bf16)\n %1 = type_cast(%0, dtype=f32)\n return %1", [("eltwise", "type_cast type_cast")]),
    ("%0 = add(x, x)\n %1 = type_cast(%0, dtype=bf16)\n return %1", [("eltwise", "add type_cast")])])
def test_moves_with_one_sum(nodes, parts):
    """Of what moves and another value; without a move, casts and sums are elementwise."""
    assert cut(f"graph(x: f32[3,4], y: f32[4,3], z: f32[4,3]) {{\n {nodes}\n}}") == parts


def test_gate_and_up_have_one_source():
    text = """graph(x: f32[2,4], z: f32[2,4], w: f32[4,4]) {{
      %0 = matmul(x, w)
      %1 = sigmoid(%0)
      %2 = matmul({source}, w)
      %3 = multiply(%1, %2)
      %4 = matmul(%3, w)
      return %4
    }}"""
    assert [a for a, _ in cut(text.format(source="x"))] == ["gated_mlp"]
    assert [a for a, _ in cut(text.format(source="z"))] == ["matmul", "matmul", "matmul"]


def test_a_softmax_without_its_products_is_no_attention():
    assert [a for a, _ in cut("""graph(x: f32[4,4], w: f32[4,4]) {
      %0 = matmul(x, w)
      %1 = softmax(%0)
      %2 = layer_norm(%1, keep_stats=false, use_affine=false)
      %3 = matmul(%2, w)
      return %3
    }""")] == ["matmul", "softmax", "layer_norm", "matmul"]


def test_weights_of_attention_that_are_returned():
    assert [a for a, _ in cut("""graph(q: f32[4,8], k: f32[8,4], v: f32[4,8]) {
      %0 = matmul(q, k)
      %1 = softmax(%0)
      %2 = matmul(%1, v)
      return %1, %2
    }""")] == ["matmul", "softmax", "matmul"]


def test_wildcard_and_end_stand_alone():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2,))
    y = g.wildcard(g.relu(x), dtypes=["f32"], shapes=[[2]])
    z = g.tanh(y)
    g.end(z)
    g.output(g.exp(z), name="z")
    parts = g.partitions()
    assert [(p.anchor, p.supported) for p in parts] == [
        ("eltwise", True), ("wildcard", False), ("eltwise", True), ("end", False), ("eltwise", True)]
    check_cut(g, parts)


def test_further_results_that_come_back():
    """softmax -> stats -> reduce_max -> multiply(relu(softmax)): the multiply cannot join the softmax."""
    assert cut("""graph(x: f32[4,4]) {
      %y, %s = softmax(x, keep_stats=true)
      %m = reduce_max(%s, axes=[0], keep_dims=true)
      %r = relu(%y)
      %z = multiply(%r, %m)
      return %z
    }""") == [("softmax", "softmax relu"), ("reduce_max", "reduce_max"), ("eltwise", "multiply")]


# -- networks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS, ids=lambda f: f.__name__)
def test_network(network):
    graph, anchors = network()
    parts = graph.partitions()
    check_cut(graph, parts)
    assert [p.anchor for p in parts] == anchors


@pytest.mark.parametrize("network", NETWORKS, ids=lambda f: f.__name__)
def test_network_runs_in_parts(network):
    graph, _ = network()
    got = run_parts(graph, graph.partitions(), lambda p, inputs: p.compile()(inputs))
    wanted = named_outputs(graph.output_names, reference(graph, accepted_inputs(graph, 1)))
    for name, v in zip(graph.output_names, graph.outputs, strict=True):
        assert np.isfinite(wanted[name]).all()
        assert compare(name, got[name], wanted[name], v).passed


@pytest.mark.parametrize("marks", [False, True])
def test_random_graphs(marks):
    for seed in range(50):
        graph = random_graph(seed, marks=marks)
        parts = graph.partitions()
        check_cut(graph, parts)
        if not any(n.op.name == "wildcard" for n in graph.nodes):
            got = run_parts(graph, parts, lambda p, inputs: reference(p.graph, inputs))
            wanted = named_outputs(graph.output_names, reference(graph, accepted_inputs(graph, 1)))
            assert all(np.array_equal(got[k], wanted[k], equal_nan=True) for k in wanted), seed


@pytest.mark.parametrize("network", NETWORKS, ids=lambda f: f.__name__)
def test_group_is_a_pass(network):
    """`group` itself leaves a graph that verifies and means the same."""
    graph, _ = network()
    inputs = accepted_inputs(graph, 0)
    wanted = named_outputs(graph.output_names, reference(graph, inputs))
    assert group(graph) > 0
    verify(graph)
    got = named_outputs(graph.output_names, reference(graph, inputs))
    assert got.keys() == wanted.keys()
    for name, x in wanted.items():
        np.testing.assert_array_equal(got[name], x)


def test_groups_are_in_their_order():
    kinds = [type(r) for r in GROUPS if isinstance(r, Group)]
    assert kinds.index(GroupAttention) < kinds.index(GroupGatedMlp) < kinds.index(GroupAnchor) < kinds.index(GroupMove)
    assert len({r.name for r in GROUPS if isinstance(r, Group)}) == len(kinds)
