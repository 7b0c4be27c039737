"""load_onnx: names, shapes, functions, control flow; runs that are staged; what the fallback is."""
import subprocess
import sys

import numpy as np
import onnx
import pytest

import graphq as gq
from graphq.errors import GraphError, GraphqError, InputError


def model(text, opset=17):
    """A ModelProto from ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def ops(graph):
    return [n.op.name for n in graph.nodes if n.op.name != "constant"]


def test_names_and_order_of_inputs_and_outputs():
    m = model("""net (float[2] b, float[2] a) => (float[2] y, float[2] a2, float[2] b) {
        y = Sub(a, b)  a2 = Identity(a) }""")
    g = gq.load_onnx(m)
    assert [v.name for v in g.inputs] == ["b", "a"] and g.output_names == ["y", "a2", "b"] and g.name == "net"
    a, b = np.float32([1, 2]), np.float32([5, 7])
    for out in (gq.reference(g, a=a, b=b), gq.compile(g)(a=a, b=b)):
        assert [out[k].tolist() for k in ("y", "a2", "b")] == [[-4, -5], [1, 2], [5, 7]]


def test_from_bytes_and_path(tmp_path):
    m = model("net (float[2] x) => (float[2] y) { y = Relu(x) }")
    path = tmp_path / "m.onnx"
    onnx.save(m, path)
    texts = {str(gq.load_onnx(s)) for s in (m, m.SerializeToString(), str(path), path)}
    assert len(texts) == 1


def test_an_input_with_an_initializer_is_a_constant():
    m = model("net (float[2] x, float[2] w) => (float[2] y) <float[2] w = {3, 4}> { y = Add(x, w) }")
    g = gq.load_onnx(m)
    assert [v.name for v in g.inputs] == ["x"]
    assert gq.reference(g, x=np.float32([1, 1])).tolist() == [4, 5]


def test_symbolic_dimensions_are_open_and_resolve_at_the_first_call():
    m = model("""net (float[batch, seq, 6] x) => (float[b, s, 2, 3] y) <int64[2] tail = {2, 3}, int64[2] i = {0, 1}> {
        shape = Shape(x)  lead = Gather(shape, i)  target = Concat <axis = 0> (lead, tail)  r = Relu(x)
        y = Reshape(r, target) }""")
    g = gq.load_onnx(m)
    assert g.inputs[0].shape == (None, None, 6) and "onnx_node" in ops(g)
    compiled = gq.compile(g)
    for shape in ((1, 4, 6), (3, 2, 6)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        want = np.maximum(x, 0).reshape(*shape[:2], 2, 3)
        np.testing.assert_array_equal(compiled(x=x), want)
        np.testing.assert_array_equal(gq.reference(g, x=x), want)
        assert "onnx_node" not in ops(compiled.graph)


ELSEWHERE = """
import sys
import graphq as gq
from graphq.model.files import load_graph
g = load_graph(sys.argv[1])
types = {"x": gq.TensorType(gq.dtypes.f32, (3, 2, 6))}
before, after = ({n.op.name for n in x.nodes} - {"constant"} for x in (g, g.specialize(types)))
print("onnx_node" in before, sorted(after))
"""


@pytest.mark.parametrize("name", ["m.graphq", "m.txt"])
def test_graphs_of_files_resolve_where_no_onnx_file_was_loaded(name, tmp_path):
    m = model("""net (float[batch, seq, 6] x) => (float[b, s, 2, 3] y) <int64[2] tail = {2, 3}, int64[2] i = {0, 1}> {
        shape = Shape(x)  lead = Gather(shape, i)  target = Concat <axis = 0> (lead, tail)  r = Relu(x)
        y = Reshape(r, target) }""")
    g = gq.load_onnx(m)
    if name.endswith("txt"):
        (tmp_path / name).write_text(gq.to_text(g))
    else:
        gq.compile(g).save(tmp_path / name)
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path / name)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("True ['relu', 'static_reshape']\n", 0), done.stderr


def test_a_dimension_of_minus_one_is_open():
    """PaddlePaddle's exporters write it; ONNX Runtime takes it as unknown."""
    m = model("net (float[n, 2] x) => (float[n, 2] y) { y = Relu (x) }")
    for v in (m.graph.input[0], m.graph.output[0]):
        v.type.tensor_type.shape.dim[0].dim_value = -1
    g = gq.load_onnx(m)
    assert g.inputs[0].shape == (None, 2)
    assert gq.compile(g)(x=np.float32([[-1, 1]])).tolist() == [[0, 1]]
    m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -2
    with pytest.raises(GraphError, match="input 'x': a dimension must be a non-negative int or None, got -2"):
        gq.load_onnx(m)


def test_nodes_in_any_order_are_sorted():
    """Float16 converters put casts at the end. Values that bodies take from around them count too."""
    m = model("""net (float[2] x, bool c) => (float[2] y) { z = Abs (w)
        y = If (c) <then_branch = yes () => (float[2] t) { t = Neg (z) }, else_branch = no () => (float[2] e) {
            e = Identity (x) }>  w = Sub (x, one)  one = Cast <to = 1> (k)  k = Constant <value_int = 1> () }""")
    before = m.SerializeToString()
    y = gq.compile(gq.load_onnx(m))(x=np.float32([0, 3]), c=np.asarray(True))
    assert y.tolist() == [-1, -2] and m.SerializeToString() == before
    cycle = model("net (float[2] x) => (float[2] y) { y = Add (x, b)  b = Abs (a)  a = Neg (b) }")
    with pytest.raises(GraphError, match="topologically sorted"):
        gq.load_onnx(cycle)


DATA_DEPENDENT = """net (float[6] x) => (float[n] y, int64[1, n] i) {
    r = Relu(x)  i = NonZero(r)  z = Squeeze(i)  picked = Gather(r, z)  y = Exp(picked) }"""


@pytest.mark.parametrize("missing", ["output type", "output shape", "input shape"])
def test_types_that_the_file_leaves_out_are_inferred(missing):
    """As ONNX Runtime does, which also takes such files; the checker does not."""
    m = model("""net (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
        z = MatMul (x, w)  y = Relu (z) }""")
    value = m.graph.input[0] if missing == "input shape" else m.graph.output[0]
    if missing == "output type":
        value.ClearField("type")
    else:
        value.type.tensor_type.ClearField("shape")
    g = gq.load_onnx(m)
    assert g.inputs[0].shape == (None if missing == "input shape" else (None, 3))
    assert str(g.outputs[0].type) == ("f32[*]" if missing == "input shape" else "f32[?,2]")
    x = np.float32([[1, 2, 3], [-1, 0, 0]])
    assert gq.compile(g)(x=x).tolist() == [[22, 28], [0, 0]]
    with pytest.raises(GraphqError):
        gq.compile(g)(x=x[:, :2])


def test_types_that_cannot_be_inferred_are_refused():
    m = model("net (float[3] x) => (float[3] y) { y = Relu (x) }")
    m.graph.input[0].ClearField("type")
    with pytest.raises(GraphError, match="net: Field 'type' of 'value_info' is required"):
        gq.load_onnx(m)


@pytest.mark.parametrize("x", [[1, -1, 2, 0, 3, -5], [0, 0, 7, 0, 8, 0], [0] * 6])
def test_shapes_that_depend_on_data_run_in_stages(x):
    x = np.float32(x)
    g = gq.load_onnx(model(DATA_DEPENDENT))
    compiled = gq.compile(g)
    for out in (compiled(x=x), compiled.formula(x=x), gq.reference(g, x=x)):
        np.testing.assert_allclose(out["y"], np.exp(x[x > 0]), rtol=1e-6)
        np.testing.assert_array_equal(out["i"], np.nonzero(x > 0))
    text = compiled.explain()
    assert "shapes depend on data" in text
    assert len(compiled.profile(x=x, runs=1).steps) > 1


def test_shapes_that_turn_out_not_to_fit_name_the_node():
    g = gq.load_onnx(model("""net (float[4] x, float[3] w) => (float[n] y) { i = NonZero(x)  z = Squeeze(i)
        f = Cast <to = 1> (z)  y = Add(f, w) }"""))
    feeds = {"x": np.float32([0, 1, 0, 1]), "w": np.float32([1, 2, 3])}
    for run in (gq.compile(g), lambda feeds: gq.reference(g, feeds)):
        with pytest.raises(GraphqError, match="do not broadcast"):
            run(feeds)


def test_strict_refuses_stages():
    with pytest.raises(GraphqError, match="strict: shapes depend on data: .*non_zero"):
        gq.compile(gq.load_onnx(model(DATA_DEPENDENT)), strict=True)


def test_out_takes_results_of_stages():
    m = model("net (float[4] x) => (int64[1, n] i) { i = NonZero(x) }")
    out = np.zeros((1, 2), np.int64)
    got = gq.compile(gq.load_onnx(m))(x=np.float32([0, 1, 0, 1]), out=out)
    assert got[0] is out[0] or np.shares_memory(got, out)
    assert out.tolist() == [[1, 3]]


def test_local_functions_are_expanded():
    m = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        net (float[2] x) => (float[2] y) { y = local.twice (x) }
        <domain: "local", opset_import: ["" : 17]> twice (a) => (b) { b = Add(a, a) }""")
    assert ops(gq.load_onnx(m)) == ["add"]


def test_a_branch_of_a_constant_condition_is_put_in_place():
    text = """net (float[2] x) => (float[2] y) <bool c = {%d}> { y = If (c) <
        then_branch = a () => (float[2] t) { t = Exp(x) }, else_branch = b () => (float[2] e) { e = Abs(x) }> }"""
    assert ops(gq.load_onnx(model(text % 1))) == ["exp"] and ops(gq.load_onnx(model(text % 0))) == ["abs"]


def test_if_by_data_runs_one_branch_with_what_it_captures():
    m = model("""net (float[2] x, bool c) => (float[2] y) { k = Abs(x)  y = If (c) <
        then_branch = a () => (float[2] t) { t = Exp(k) }, else_branch = b () => (float[2] e) { e = Neg(k) }> }""")
    x = np.float32([-1, 2])
    compiled = gq.compile(gq.load_onnx(m))
    np.testing.assert_allclose(compiled(x=x, c=np.array(True)), np.exp([1, 2]), rtol=1e-6)
    assert compiled(x=x, c=np.array(False)).tolist() == [-1, -2]


def test_branches_run_compiled():
    """The numbers are those of the formula; `explain` and `coverage` know what ran."""
    weights = ", ".join(map(str, range(-16, 16)))
    m = model("""net (float[n, 8] x, int64 rate) => (float[k, 4] y) <float[8, 4] w = {weights}, int64 fast = {16000},
            int64[1] zero = {0}, int64[1] four = {4}, int64[1] one = {1}> {
        c = Equal (rate, fast)  y = If (c) <then_branch = a () => (float[n, 4] t) { h = MatMul (x, w)  t = Relu (h) },
            else_branch = b () => (float[k, 4] e) { e = Slice (x, zero, four, one) }> }""".replace("weights", weights))
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    g = gq.load_onnx(m)
    compiled = gq.compile(g, threads=1)
    feeds = {"x": x, "rate": np.asarray(16000)}
    np.testing.assert_array_equal(compiled(feeds), compiled.formula(feeds))
    np.testing.assert_allclose(compiled(feeds), gq.reference(g, feeds), rtol=1e-5)
    assert "then_body of %y:" in compiled.explain() and "else_body" not in compiled.explain()
    assert compiled.coverage().total == 3 * 8 * 4
    assert any("matmul" in s.kernel for s in compiled.profile(feeds, runs=1).steps)
    np.testing.assert_array_equal(compiled(x=x, rate=np.asarray(8000)), x[:, :4])
    with pytest.raises(GraphqError, match="strict: (bodies|shapes)"):
        gq.compile(g, strict=True)(feeds)


def test_conditions_on_shapes_are_decided_once_shapes_are_known():
    """Also those inside of another branch; the branch not taken need not fit."""
    m = model("""net (float[m, n] x, bool c) => (float[a, b] y) <int64 two = {2}, int64 one = {1}> {
        s = Shape (x)  n = Gather (s, one)
        wide = Greater (n, two)
        y = If (c) <then_branch = p () => (float[a, b] t) {
                t = If (wide) <then_branch = q () => (float[a, b] u) { u = Neg (x) },
                    else_branch = r () => (float[a, b] v) { v = MatMul (x, x) }> },
            else_branch = o () => (float[a, b] e) { e = Abs (x) }> }""")
    g = gq.load_onnx(m)
    compiled = gq.compile(g)
    for shape in ((2, 5), (2, 2)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        want = -x if shape[1] > 2 else x @ x
        np.testing.assert_allclose(compiled(x=x, c=np.asarray(True)), want, rtol=1e-5)
        np.testing.assert_array_equal(compiled(x=x, c=np.asarray(False)), abs(x))
        np.testing.assert_allclose(gq.reference(g, x=x, c=np.asarray(True)), want, rtol=1e-5)
    known = g.specialize({"x": gq.TensorType(gq.dtypes.f32, (2, 5))}, {"c": np.asarray(True)})
    assert ops(known) == ["multiply"]


def test_loops_whose_states_grow():
    m = model("""net (int64 n, bool go, float[k] s) => (float[l] last) {
        last = Loop (n, go, s) <body = b (int64 i, bool c, float[j] a) => (bool d, float[h] next) {
            d = Identity(c)  next = Concat <axis = 0> (a, a) }> }""")
    out = gq.compile(gq.load_onnx(m))(n=np.array(3), go=np.array(True), s=np.float32([1, 2]))
    assert out.tolist() == [1, 2] * 8


def test_loop_stacks_values_and_carries_states():
    m = model("""net (int64 n, bool go, float s) => (float last, float[k] all) {
        last, all = Loop (n, go, s) <body = b (int64 i, bool c, float a) => (bool d, float next, float v) {
            d = Identity(c)  next = Add(a, a)  v = Identity(a) }> }""")
    run = gq.compile(gq.load_onnx(m))
    out = run(n=np.array(3), go=np.array(True), s=np.array(2, np.float32))
    assert out["last"] == 16 and out["all"].tolist() == [2, 4, 8]
    out = run(n=np.array(0), go=np.array(True), s=np.array(2, np.float32))
    assert out["last"] == 2 and out["all"].shape == (0,)


def test_a_loop_of_stacked_outputs_takes_values_of_other_dtypes_from_outside():
    """Where the body's values were compared with what it takes, such a loop was left to ONNX's reference."""
    m = model("""net (int64 n, float[2] v0, float[2] s) => (float[2] last, uint8[k, 2] acc, bool[k] twos)
            <bool go = {1}> {
        last, acc, twos = Loop (n, go, s) <body = b (int64 i, bool c, float[2] st) =>
                (bool d, float[2] so, uint8[2] u, bool two) <int64 t = {2}> {
            d = Identity(c)  f = Cast <to = 1> (v0)  so = Add(st, f)  u = Cast <to = 2> (so)  two = Equal(i, t) }> }""")
    g = gq.load_onnx(m)
    assert ops(g) == ["loop"] and not g.nodes_of({"onnx_node"})
    arrays = {"n": np.array(4), "v0": np.float32([1, 2]), "s": np.float32([0, 10])}
    for run in (gq.compile(g), lambda **feeds: gq.reference(g, **feeds)):
        out = run(**arrays)
        assert out["last"].tolist() == [4, 18] and out["acc"].dtype == np.uint8
        assert out["acc"].tolist() == [[1, 12], [2, 14], [3, 16], [4, 18]]
        assert out["twos"].tolist() == [False, False, True, False]


@pytest.mark.parametrize("states", [2, 3, 9])
def test_sizes_that_go_through_many_states(states):
    """Only the first state grows; each other one takes over what the one before it had."""
    names = [f"s{k}" for k in range(states)]
    ins, outs = (", ".join(f"float[{x}{k}] {y}{k}" for k in range(states)) for x, y in ("ia", "ob"))
    moved = " ".join(f"b{k} = Identity(a{k - 1})" for k in range(1, states))
    m = model(f"""net (int64 n, bool go, float[2] s) => (float[l] y) {{
        {', '.join(names)} = Loop (n, go, {', '.join('s' * states)}) <body = b (int64 i, bool c, {ins}) =>
            (bool d, {outs}) {{ d = Identity(c)  b0 = Concat <axis = 0> (a0, s)  {moved} }}>
        y = Identity({names[-1]}) }}""")
    g = gq.load_onnx(m)
    assert not g.nodes_of({"onnx_node"}) and g.outputs[0].type.shape == (None,)
    for n in (0, states - 1, states + 1):
        y = gq.reference(g, n=np.array(n), go=np.array(True), s=np.float32([1, 2]))
        assert y.tolist() == [1, 2] * max(n - states + 2, 1)


def test_a_state_whose_rank_changes():
    m = model("""net (int64 n, bool go, float[2] s) => (y) {
        y = Loop (n, go, s) <body = b (int64 i, bool c, float[j] a) => (bool d, float[k] e) <int64[1] z = {0}> {
            d = Identity(c)  e = Unsqueeze(a, z) }> }""")
    out = gq.reference(gq.load_onnx(m), n=np.array(3), go=np.array(True), s=np.float32([1, 2]))
    assert out.tolist() == [[[[1, 2]]]]


def test_scan_goes_backwards():
    m = model("""net (float s, float[3, 2] x) => (float last, float[3, 2] y) {
        last, y = Scan (s, x) <num_scan_inputs = 1, scan_input_directions = [1], body =
            b (float a, float[2] row) => (float n, float[2] v) { t = ReduceSum <keepdims = 0> (row)  n = Add(a, t)
                                                                v = Add(row, a) }> }""")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    out = gq.compile(gq.load_onnx(m))(s=np.array(0, np.float32), x=x)
    assert out["last"] == 15 and out["y"].tolist() == [[4, 5], [11, 12], [14, 15]]


def test_the_fallback_is_named_and_goes_with_text_and_copies():
    m = model("net (float[2, 3] x) => (float[2, 3] y) { y = Hardmax(x) }")
    g = gq.load_onnx(m)
    text = gq.compile(g).explain()
    assert "onnx_node Hardmax(x) : f32[2,3]\n    graphq has no operation for Hardmax(f32[2,3])" in text
    again = gq.parse(gq.to_text(g))
    x = np.float32([[1, 3, 2], [4, 0, 1]])
    for h in (g, again, g.copy()):
        assert gq.reference(h, x=x).tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(GraphqError, match="strict.*Hardmax"):
        gq.compile(g, strict=True)


def test_the_reason_for_a_fallback_between_stages_and_in_bodies():
    """Whether or not a body has run, and inside another body."""
    m = model("""net (int64 n, bool p, float[2, 3] s, float lo) => (float[a, b] last, float[c, d] k, float[g, h] y) {
        z = NonZero(s)  f = Cast <to = 1> (z)  y = Hardmax(f)
        last = Loop (n, p, s) <body = b (int64 i, bool c, float[j, k] a) => (bool d, float[l, m] next) {
            d = Identity(c)  next = Clip(a, lo) }>
        k = If (p) <then_branch = t () => (float[e, f] u) {
            u = If (p) <then_branch = v () => (float[e, f] w) { w = Hardmax(s) },
                        else_branch = o () => (float[e, f] q) { q = Neg(s) }> },
          else_branch = r () => (float[e, f] x) { x = Add(s, s) }> }""")
    compiled = gq.compile(gq.load_onnx(m))
    lines = [x.strip() for x in compiled.explain().splitlines()]
    clip = "in body: %next = onnx_node Clip(a, lo) : f32[2,3]: graphq has no operation for Clip(f32[2,3], f32[])"
    hardmax = "in then_body: %w = onnx_node Hardmax(s) : f32[2,3]: graphq has no operation for Hardmax(f32[2,3])"
    for op, reason in (("loop(", clip), ("if_else(", hardmax)):
        assert [lines[k + 1] for k, x in enumerate(lines) if f"= {op}" in x] == [reason]
    assert clip in compiled.explain("last") and hardmax in compiled.explain("k")
    compiled(n=np.array(1), p=np.array(True), s=np.ones((2, 3), np.float32), lo=np.float32(0))
    assert "graphq has no operation for Hardmax(f32[2,?])" in compiled.explain()


def test_wrong_arrays_are_refused_before_anything_runs():
    g = gq.load_onnx(model("net (float[n] x) => (float[n] y) { y = Relu(x) }"))
    with pytest.raises(InputError, match="input 'x' must be f32"):
        gq.compile(g)(x=np.zeros((2, 2), np.float32))


def test_microsoft_operators_without_their_operator_set():
    m = model("net (float[2] x) => (float[2] y) { y = Relu(x) }")
    m.graph.node[0].op_type, m.graph.node[0].domain = "QuickGelu", "com.microsoft"
    x = np.float32([-1, 2])
    np.testing.assert_allclose(gq.reference(gq.load_onnx(m), x=x), x / (1 + np.exp(-1.702 * x)), rtol=1e-5)
    assert len(m.opset_import) == 1


@pytest.mark.parametrize("domain, opset, taken", [
    ("", 13, True), ("ai.onnx", 13, True), ("com.microsoft", 13, True), ("", 17, True), ("mine", 13, False),
    ("mine", 17, False)])
def test_whose_layer_normalization_it_is(domain, opset, taken):
    """ONNX Runtime has it in ONNX's domain before ONNX has; of another domain it is another operator."""
    m = model("net (float[2, 4] x, float[4] s) => (float[2, 4] y) { y = LayerNormalization(x, s) }")
    m.opset_import[0].version, m.graph.node[0].domain = opset, domain
    if domain == "mine":
        m.opset_import.add(domain="mine", version=1)
    if not taken:
        with pytest.raises(GraphqError, match="mine"):
            gq.compile(gq.load_onnx(m), strict=True)
        return
    x, s = np.float32([[1, 2, 3, 5], [0, 1, 0, 2]]), np.float32([1, 2, 3, 4])
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * s
    np.testing.assert_allclose(gq.reference(gq.load_onnx(m), x=x, s=s), wanted, rtol=1e-4, atol=1e-6)
