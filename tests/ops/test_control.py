"""if_else, loop and scan: turns counted by hand, what is carried and what is stacked, and what is refused."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import CompileError, GraphError
from graphq.ir.parse import parse
from graphq.ir.tensor_type import TensorType
from graphq.ops import control

NO_TURN = np.empty((0, 2), np.float32)


COUNTING = """graph(i: s64[], go: boolean[], x: f32[2], top: f32[]) {
  %one = constant(value=f32[]{1.0})
  %next = add(x, %one)
  %sum = reduce_sum(%next, axes=[0])
  %on = less(%sum, top)
  %k = cast(i, dtype=f32)
  %value = multiply(x, %k)
  return %on, %next, %value
}"""


def looped(trips, cond, x, top, text=COUNTING):
    last, values = control.loop.reference(
        np.asarray(trips, np.int64), np.asarray(cond), np.float32(x), np.float32(top), body=parse(text), states=1)
    return last.tolist(), values


@pytest.mark.parametrize("trips, cond, top, turns", [
    (0, True, 99, 0), (-3, True, 99, 0), (1, True, 99, 1), (3, True, 99, 3), (3, False, 99, 0), (3, True, 0, 1),
    (9, True, 5, 2), (2**62, True, 8.5, 4), ([2], [True], 99, 2)])
def test_a_loop_ends_by_its_trips_or_its_condition(trips, cond, top, turns):
    """The condition of a turn is what the one before gave; the state is 1 more each turn, two elements of it."""
    last, values = looped(trips, cond, [0, 1], top)
    assert last == [turns, 1 + turns]
    wanted = np.reshape([[k * k, k * (1 + k)] for k in range(turns)], (turns, 2))
    assert values.dtype == np.float32 and np.array_equal(values, wanted)


def test_the_body_is_told_the_condition():
    text = """graph(i: s64[], go: boolean[], x: f32[2], top: f32[]) {
      %1 = select(go, x, top)\n %off = logical_not(go)\n return %off, x, %1\n}"""
    assert looped(5, True, [3, 4], 7, text)[1].tolist() == [[3, 4]]


def test_a_loop_of_many_states_and_values_in_their_order():
    text = """graph(i: s64[], go: boolean[], a: f32[], b: f32[], c: f32[]) {
      %0 = add(a, c)\n %1 = multiply(b, c)\n return go, %0, %1, b, a\n}"""
    one, two, first, second = control.loop.reference(
        np.asarray(3), np.asarray(True), *map(np.float32, (1, 2, 10)), body=parse(text), states=2)
    assert (one, two) == (31, 2000) and first.tolist() == [2, 20, 200] and second.tolist() == [1, 11, 21]


def test_states_that_grow_without_end_are_refused(monkeypatch):
    monkeypatch.setattr(control, "ASKED", 1 << 10)
    monkeypatch.setattr("graphq.base.budget.default_limit", lambda: 1 << 20)
    text = """graph(i: s64[], go: boolean[], x: f32[?]) {\n %0 = concat(x, x, axis=0)\n return go, %0\n}"""
    with pytest.raises(CompileError, match="the states and values of a loop after 1[4-9] iterations"):
        control.loop.reference(np.asarray(99), np.asarray(True), np.ones(1, np.float32), body=parse(text), states=1)
    kept = """graph(i: s64[], go: boolean[], x: f32[1000]) {\n %0 = relu(x)\n return go, x, %0\n}"""
    with pytest.raises(CompileError, match="the states and values of a loop after"):
        control.loop.reference(np.asarray(10**9), np.asarray(True), np.ones(1000, np.float32),
                               body=parse(kept), states=1)


def test_a_graph_with_a_loop_runs():
    g = gq.Graph()
    x = g.input("x", shape=(2,), dtype="f32")
    last, values = g.loop(g.add_constant(np.asarray(3)), g.add_constant(np.asarray(True)), x, np.float32(99),
                          body=parse(COUNTING), states=1)
    g.output(last, name="last")
    g.output(values, name="values")
    assert [v.type for v in g.outputs] == [TensorType(gq.dtypes.f32, (2,)), TensorType(gq.dtypes.f32, (None, 2))]
    for run in (gq.compile(g), lambda **feeds: gq.reference(g, **feeds)):
        y = run(x=np.float32([0, 1]))
        assert y["last"].tolist() == [3, 4] and y["values"].tolist() == [[0, 0], [1, 2], [4, 6]]


SCANNED = """graph(s: f32[2], x: f32[2], y: f32[2], c: f32[]) {
  %0 = add(s, x)
  %1 = multiply(%0, y)
  %2 = add(%1, c)
  return %0, %2, x
}"""


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("out_axis", [0, 1, -1])
@pytest.mark.parametrize("back", [(False,) * 3, (True, False, False), (False, True, False), (False, False, True),
                                  (True,) * 3])
def test_a_scan_along_any_axis_from_either_end(axis, out_axis, back):
    rng = np.random.default_rng(0)
    s, x, y = rng.integers(0, 9, 2), rng.integers(0, 9, (3, 2)), rng.integers(0, 9, (3, 2))
    state, wanted, copies = s, [], []
    for k in range(3):
        a, b = x[2 - k if back[0] else k], y[2 - k if back[1] else k]
        state = state + a
        wanted.append(state * b + 5)
        copies.append(a)
    last, values, copy = control.scan.reference(
        np.float32(s), np.moveaxis(np.float32(x), 0, axis), np.float32(y), np.float32(5), body=parse(SCANNED), states=1,
        scanned=2, input_axes=(axis, 0), reverse_inputs=back[:2], output_axes=(out_axis, 0),
        reverse_outputs=(back[2], False))
    assert np.array_equal(last, state) and np.array_equal(copy, copies)
    assert np.array_equal(np.moveaxis(values, out_axis, 0), wanted[::-1] if back[2] else wanted)


@pytest.mark.parametrize("text", [SCANNED, SCANNED.replace("f32[2]", "f32[?]")])
def test_a_scan_of_nothing(text):
    last, values, copy = control.scan.reference(
        np.float32([1, 2]), NO_TURN, NO_TURN, np.float32(5), body=parse(text), states=1, scanned=2,
        input_axes=(0, 0), reverse_inputs=(False, False), output_axes=(1, 0), reverse_outputs=(False, False))
    assert last.tolist() == [1, 2] and values.shape == (2, 0) and copy.shape == (0, 2)


ADD, MULTIPLY = (f"graph(x: f32[2], y: f32[2]) {{\n %0 = {name}(x, y)\n return %0, x\n}}"
                 for name in ("add", "multiply"))


@pytest.mark.parametrize("cond", [True, False, [True], [False]])
def test_a_branch_is_taken_whether_the_condition_is_known_before_or_not(cond):
    x, y = np.float32([2, 3]), np.float32([4, 5])
    wanted = (x + y if np.all(cond) else x * y).tolist()
    result, copy = control.if_else.reference(np.asarray(cond), x, y, then_body=parse(ADD), else_body=parse(MULTIPLY))
    assert result.tolist() == wanted and copy.tolist() == [2, 3]
    g = gq.Graph()
    c = g.input("c", shape=np.shape(cond), dtype="boolean")
    a, b = (g.input(name, shape=(2,), dtype="f32") for name in "xy")
    outs = g.if_else(c, a, b, then_body=parse(ADD), else_body=parse(MULTIPLY))
    g.output(outs[0], name="r")
    assert gq.reference(g, c=np.asarray(cond), x=x, y=y).tolist() == wanted
    known = g.specialize({}, {"c": np.asarray(cond)})
    assert [n.op.name for n in known.nodes if n.op.name != "constant"] == ["add" if np.all(cond) else "multiply"]
    assert gq.reference(known, x=x, y=y).tolist() == wanted


OPEN = "graph(x: f32[?], y: f32[?]) {{\n %mid = {}(x, y)\n %0 = relu(%mid)\n return %0\n}}"


@pytest.mark.parametrize("types, constants, inputs, result", [
    ({}, {}, ["f32[?]"] * 2, "f32[?]"), ({"x": (2,)}, {}, ["f32[2]", "f32[?]"], "f32[2]"),
    ({"x": (2,), "y": (2,)}, {}, ["f32[2]"] * 2, "f32[2]"), ({}, {"y": [4, 5]}, ["f32[?]"], "f32[2]"),
    ({"x": (2,), "y": (3,)}, {}, ["f32[?]"] * 2, "f32[?]")])
def test_bodies_get_the_types_and_constants_of_operands(types, constants, inputs, result):
    """Bodies that operands do not fit stay as they are: such a branch may never run."""
    g = parse("graph(c: boolean[], x: f32[?], y: f32[?]) {\n return x\n}")
    out = g.if_else(*g.inputs, then_body=parse(OPEN.format("add")), else_body=parse(OPEN.format("multiply")))
    g.set_outputs(out if isinstance(out, tuple) else [out], ["r"])
    known = g.specialize({n: TensorType(gq.dtypes.f32, shape) for n, shape in types.items()},
                         {n: np.float32(x) for n, x in constants.items()})
    node, = (n for n in known.nodes if n.op.name == "if_else")
    for name, wanted in (("then_body", "add"), ("else_body", "multiply")):
        body = node.attrs[name]
        assert [str(v.type) for v in body.inputs] == inputs
        assert [n.op.name for n in body.nodes if n.op.name != "constant"] == [wanted, "relu"]
    assert str(known.outputs[0].type) == result
    if types.get("y") != (3,):
        feeds = {n: np.float32(x) for n, x in (("x", [-2, 3]), ("y", [4, 5])) if n not in constants}
        for cond, want in ((True, [2, 8]), (False, [0, 15])):
            assert gq.reference(known, {"c": np.asarray(cond), **feeds}).tolist() == want


@pytest.mark.parametrize("taken", [False, True])
def test_values_of_the_branch_taken_keep_their_names_and_origin(taken):
    """A name that a value of the graph has stays with it."""
    body = parse(OPEN.format("add"))
    for node in body.nodes:
        node.meta = {"origin": node.op.name}
    g = parse("graph(c: boolean[], x: f32[?], y: f32[?]) {\n return x\n}")
    operands = list(g.inputs)
    if taken:
        operands[1] = g.relu(g.inputs[1], name="mid")
    out = g.if_else(*operands, then_body=body, else_body=body)
    g.set_outputs(out if isinstance(out, tuple) else [out], ["r"])
    known = g.specialize({}, {"c": np.asarray(True)})
    *before, add, _ = known.nodes
    assert add.op.name == "add" and add.output.name == (None if taken else "mid") and add.meta == {"origin": "add"}
    assert [n.output.name for n in before if n.op.name == "relu"] == ["mid"] * taken


@pytest.mark.parametrize("cond", [[True], [False]])
def test_a_known_operand_of_a_known_branch(cond):
    g = parse("graph(c: boolean[1], x: f32[?], y: f32[?]) {\n return x\n}")
    out = g.if_else(*g.inputs, then_body=parse(OPEN.format("add")), else_body=parse(OPEN.format("multiply")))
    g.set_outputs(out if isinstance(out, tuple) else [out], ["r"])
    known = g.specialize({}, {"c": np.asarray(cond), "x": np.float32([-2, 3])})
    assert gq.reference(known, y=np.float32([4, 5])).tolist() == ([2, 8] if cond[0] else [0, 15])


TYPE = "graph(x: f32[2], y: f32[2]) {{\n {}\n}}"


@pytest.mark.parametrize("attrs, message", [
    ({"then_body": TYPE.format("return x")}, "both bodies must return the same number of results, got 1 and 2"),
    ({"else_body": TYPE.format("return x")}, "the body must return at least 2 results, got 1"),
    ({"else_body": TYPE.format("%0 = relu(y)\n return x, y, %0")}, "same number of results, got 2 and 3"),
    ({"then_body": "graph(x: f32[2]) {\n %0 = relu(x)\n return x, %0\n}"}, "the body takes 1 values, got 2"),
    ({"then_body": "graph(x: f32[2], y: f32[3]) {\n return x, y\n}"}, r"the body takes f32\[3\] for 'y', got f32\[2\]"),
    ({"then_body": "graph(x: f32[2], y: s8[2]) {\n return x, y\n}"},
     r"must have the same dtype .*, got s8\[2\] and f32"),
    ({"cond": "f32[]"}, "'cond' must be one boolean, got f32"), ({"cond": "boolean[2]"}, "'cond' must be one boolean"),
])
def test_branches_that_are_refused(attrs, message):
    cond = attrs.pop("cond", "boolean[]")
    g = parse(f"graph(c: {cond}, x: f32[2], y: f32[2]) {{\n return x\n}}")
    bodies = {"then_body": parse(ADD), "else_body": parse(MULTIPLY), **{k: parse(text) for k, text in attrs.items()}}
    with pytest.raises(GraphError, match=message):
        g.if_else(*g.inputs, **bodies)


@pytest.mark.parametrize("types, states, message", [
    ("n: s32[], c: boolean[], x: f32[2], t: f32[]", 1, "'trips' must be one s64"),
    ("n: s64[2], c: boolean[], x: f32[2], t: f32[]", 1, "'trips' must be one s64"),
    ("n: s64[], c: s8[], x: f32[2], t: f32[]", 1, "'cond' must be one boolean"),
    ("n: s64[], c: boolean[], x: f32[2], t: f32[]", 3, r"states must be in \[0, 2\], got 3"),
    ("n: s64[], c: boolean[], x: f32[2], t: f32[]", -1, r"states must be in \[0, 2\], got -1"),
    ("n: s64[], c: boolean[], x: f32[2]", 1, "the body takes 4 values, got 3"),
    ("n: s64[], c: boolean[], x: f32[3], t: f32[]", 1, r"the body takes f32\[2\] for 'x', got f32\[3\]"),
])
def test_loops_that_are_refused(types, states, message):
    g = parse(f"graph({types}) {{\n return x\n}}")
    with pytest.raises(GraphError, match=message):
        g.loop(*g.inputs, body=parse(COUNTING), states=states)


def test_a_loop_without_enough_results_or_with_a_state_of_another_dtype_is_refused():
    g = parse("graph(n: s64[], c: boolean[], x: f32[2]) {\n return x\n}")
    start = "graph(i: s64[], go: boolean[], x: f32[2]) {\n "
    with pytest.raises(GraphError, match="must return at least 2 results, got 1"):
        g.loop(*g.inputs, body=parse(start + "return go\n}"), states=1)
    with pytest.raises(GraphError, match="a state must keep its dtype, got f32.* and then s64"):
        g.loop(*g.inputs, body=parse(start + "return go, i\n}"), states=1)


@pytest.mark.parametrize("changes, message", [
    ({"states": -1}, "states and scanned operands must be among 4, got -1 and 2"),
    ({"scanned": 0}, "states and scanned operands must be among 4, got 1 and 0"),
    ({"scanned": 4}, "states and scanned operands must be among 4, got 1 and 4"),
    ({"input_axes": (0,)}, "input_axes must be 2 values, got 1"),
    ({"reverse_inputs": (True,)}, "reverse_inputs must be 2 values, got 1"),
    ({"output_axes": (0, 0, 0)}, "output_axes must be 2 values, got 3"),
    ({"reverse_outputs": ()}, "reverse_outputs must be 2 values, got 0"),
    ({"input_axes": (0, 1)}, r"the body takes f32\[2\] for 'y', got f32\[3\]"),
    ({"y": "f32[4,2]"}, r"scanned operands must have one length, got \[3, 4\]"),
    ({"input_axes": (2, 0)}, "axis"), ({"output_axes": (0, 2)}, "axis")])
def test_scans_that_are_refused(changes, message):
    y = changes.pop("y", "f32[3,2]")
    g = parse(f"graph(s: f32[2], x: f32[3,2], y: {y}, c: f32[]) {{\n return s\n}}")
    attrs = {"states": 1, "scanned": 2, "input_axes": (0, 0), "reverse_inputs": (False, False), "output_axes": (0, 0),
             "reverse_outputs": (False, False), **changes}
    with pytest.raises(GraphError, match=message):
        g.scan(*g.inputs, body=parse(SCANNED), **attrs)


@pytest.mark.parametrize("x, axis, out_axis, types", [
    ("f32[3,2]", 0, 0, ["f32[2]", "f32[3,2]", "f32[3,2]"]), ("f32[?,2]", 0, 1, ["f32[2]", "f32[2,3]", "f32[3,2]"]),
    ("f32[2,3]", -1, -1, ["f32[2]", "f32[2,3]", "f32[3,2]"])])
def test_types_of_scans(x, axis, out_axis, types):
    """A length that one operand leaves open is another's."""
    g = parse(f"graph(s: f32[2], x: {x}, y: f32[3,2], c: f32[]) {{\n return s\n}}")
    outs = g.scan(*g.inputs, body=parse(SCANNED), states=1, scanned=2, input_axes=(axis, 0),
                  reverse_inputs=(False, True), output_axes=(out_axis, 0), reverse_outputs=(False, False))
    assert [str(v.type) for v in outs] == types


KEEPING = """graph(i: s64[], go: boolean[], x: f32[2], bytes: u8[?,3], top: f32[]) {
  %next = add(x, top)
  %b = cast(%next, dtype=u8)
  return go, %next, %b, bytes, i
}"""


def test_stacked_results_need_no_dtype_of_what_the_body_takes_from_outside():
    g = parse("graph(n: s64[?], c: boolean[?], x: f32[2], bytes: u8[?,3], top: f32[]) {\n return x\n}")
    outs = g.loop(*g.inputs, body=parse(KEEPING), states=1)
    assert [str(v.type) for v in outs] == ["f32[2]", "u8[?,2]", "u8[?,?,3]", "s64[?]"]
    assert [v.node.op.name for v in outs] == ["loop"] * 4


@pytest.mark.parametrize("turns", [0, 2])
def test_the_sizes_of_what_is_stacked_are_those_of_the_operands_even_without_a_turn(turns):
    arrays = [np.asarray([turns]), np.asarray([True]), np.float32([1, 2]), np.ones((4, 3), np.uint8), np.float32(3)]
    outs = control.loop.reference(*arrays, body=parse(KEEPING), states=1)
    assert [(x.dtype.name, x.shape) for x in outs] == [
        ("float32", (2,)), ("uint8", (turns, 2)), ("uint8", (turns, 4, 3)), ("int64", (turns,))]


def test_a_body_that_does_not_run_need_not_fit():
    """Without a turn, sizes that the body could not have are 0."""
    text = "graph(i: s64[], go: boolean[], x: f32[?], y: f32[?]) {\n %0 = add(x, y)\n return go, x, %0\n}"
    last, kept = control.loop.reference(np.asarray(0), np.asarray(True), np.ones(2, np.float32),
                                        np.ones(3, np.float32), body=parse(text), states=1)
    assert last.shape == (2,) and kept.shape == (0, 0)


def test_stacked_values_of_several_shapes_are_refused():
    text = "graph(i: s64[], go: boolean[], x: f32[?]) {\n %0 = concat(x, x, axis=0)\n return go, %0, x\n}"
    with pytest.raises(GraphError, match=r"result 2 of the body must have one shape in all iterations .* \[1\] and"):
        control.loop.reference(np.asarray(3), np.asarray(True), np.ones(1, np.float32), body=parse(text), states=1)


def test_types_that_both_branches_have():
    f32, s8 = gq.dtypes.f32, gq.dtypes.s8
    both = control.common_type
    assert both(TensorType(f32, (2, 3)), TensorType(f32, (2, 4))) == TensorType(f32, (2, None))
    assert both(TensorType(f32, (2, None)), TensorType(f32, (2, 4))) == TensorType(f32, (2, None))
    for other in (None, (2,), (2, 3, 4)):
        assert both(TensorType(f32, (2, 3)), TensorType(f32, other)) == TensorType(f32, None)
        assert both(TensorType(f32, other), TensorType(f32, (2, 3))) == TensorType(f32, None)
    with pytest.raises(GraphError, match="must have the same dtype"):
        both(TensorType(f32, (2,)), TensorType(s8, (2,)))
