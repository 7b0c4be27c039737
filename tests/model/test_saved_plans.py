"""What a plan that is read may hold: each rule of buffers, steps, words, numbers, types and traces by itself."""
from dataclasses import replace

import numpy as np
import pytest
from artifacts import opened

from graphq.base.programs import TraceRecord
from graphq.base.sizes import Later, Trace, later
from graphq.dtypes import f32, s32, u8
from graphq.errors import InputError, ParseError
from graphq.ir import TensorType
from graphq.ir.interpret import GraphInput, Signature
from graphq.ir.op import lookup
from graphq.kernels.jit.modules import FunctionTable
from graphq.kernels.threads.steps import MOST_PIECES
from graphq.model.saved_plans import check, check_record, compact, on_threads
from graphq.plan.plan import Buffer, Copy, Part, Plan, PythonStep, Ref, Reference, ReportedError

F, B, OPEN = TensorType(f32, (2, 3)), TensorType(u8, (4,)), TensorType(f32, (None, 3))
SIGNATURE = Signature("net", (GraphInput("x", OPEN, "variable"), GraphInput("b", B, "variable")), {"y": OPEN, "z": B})
BUFFERS = (Buffer("input", 24, F, 0), Buffer("input", 4, B, 1), Buffer("output", 24, F, 0), Buffer("output", 4, B, 1),
           Buffer("constant", 24, F, 0, np.zeros((2, 3), np.float32)), Buffer("report", 8, None, 0),
           Buffer("arena", 100))
RELU = Reference(lookup("relu"), {}, "relu", (None, None))
REPORT = ReportedError("index", "gather", ((2, 3), 0))
PLAN = Plan(BUFFERS, (PythonStep("relu", RELU, (0, None), (2,)), PythonStep("copy", Copy(), (1,), (3,), False)), (F, B),
            2, "avx2", (REPORT,), (0, None))
N = Trace().leaf(5, "x.0")


def refused(plan, signature=SIGNATURE):
    with pytest.raises(ParseError, match="a plan that graphq does not make: "):
        check(plan, signature)


def with_buffer(number, **fields):
    made = replace(BUFFERS[number], **fields)
    return PLAN._replace(buffers=(*BUFFERS[:number], made, *BUFFERS[number + 1:]))


def test_plans_as_they_are_made():
    check(PLAN, SIGNATURE)
    check(PLAN._replace(nodes=()), SIGNATURE)
    for number, fields in [(4, {"data": later(np.zeros, N)}), (4, {"type": None}), (6, {"nbytes": 0}),
                           (3, {"type": TensorType(u8, (2, 2))}), (6, {"nbytes": N * 4}), (6, {"index": 7}),
                           (6, {"nbytes": (1 << 63) - 1}), (6, {"nbytes": np.int64(8)})]:
        check(with_buffer(number, **fields), SIGNATURE)


@pytest.mark.parametrize("number, fields", [
    (0, {"data": np.zeros((2, 3), np.float32)}), (0, {"type": None}), (0, {"index": 2}), (0, {"index": 1}),
    (0, {"type": TensorType(s32, (2, 3))}), (0, {"type": TensorType(f32, (3, 2))}),
    (0, {"type": TensorType(f32, (6,))}), (1, {"type": TensorType(u8, (2, 2))}), (1, {"index": 0}), (1, {"index": -1}),
    (2, {"data": np.zeros(6, np.float32)}), (2, {"nbytes": 4, "type": None}), (2, {"index": 1}), (2, {"index": 2}),
    (3, {"nbytes": 3, "type": TensorType(u8, (3,))}), (4, {"data": None}), (4, {"data": np.zeros(5, np.float32)}),
    (4, {"data": [0.0] * 6}), (4, {"type": TensorType(f32, (7,))}), (4, {"type": "f32[2,3]"}),
    (5, {"index": 1}), (5, {"nbytes": 16}), (5, {"data": np.zeros(1)}), (6, {"data": np.zeros(100, np.uint8)}),
    (6, {"nbytes": -1}), (6, {"nbytes": 1 << 63}), (6, {"nbytes": 8.0}), (6, {"index": -1}), (6, {"storage": "else"}),
    (6, {"type": F})])
def test_buffers_that_are_refused(number, fields):
    refused(with_buffer(number, **fields))


@pytest.mark.parametrize("fields", [
    {"buffers": [*BUFFERS]}, {"steps": [*PLAN.steps]}, {"output_types": [F, B]}, {"errors": [REPORT]},
    {"nodes": [0, None]}, {"output_types": (F,)}, {"output_types": (B, F)}, {"output_types": (F, B, B)},
    {"output_types": (TensorType(f32, (2, 4)), B)}, {"errors": ("no report",)},
    {"errors": (REPORT._replace(kind="none"),)}, {"errors": (REPORT._replace(values=[]),)}, {"errors": ()},
    {"nodes": (0,)},
    {"nodes": (0, -1)}, {"nodes": (0, "1")}, {"nodes": (0, None, 1)}, {"buffers": BUFFERS[1:]},
    {"buffers": (BUFFERS[1], BUFFERS[0], *BUFFERS[2:])}, {"buffers": (*BUFFERS, BUFFERS[0])}, {"steps": ("step",)},
    {"buffers": (*BUFFERS[:6], "buffer")}])
def test_plans_that_are_refused(fields):
    refused(PLAN._replace(**fields))
    refused(tuple(PLAN))


@pytest.mark.parametrize("fields", [
    {"kernel": 3}, {"call": abs}, {"call": RELU._replace(op="relu")}, {"call": RELU._replace(attrs=())},
    {"call": RELU._replace(shapes=[])}, {"reference": 1}, {"inputs": [0]}, {"outputs": [2]}, {"inputs": (7,)},
    {"inputs": (-1,)}, {"inputs": (6,)}, {"inputs": ("0",)}, {"outputs": (7,)}, {"outputs": (-1,)}, {"outputs": (6,)},
    {"outputs": (None,)}])
def test_steps_in_python_that_are_refused(fields):
    """Operands lie in buffers that have a type."""
    refused(PLAN._replace(steps=(PLAN.steps[0]._replace(**fields), PLAN.steps[1])))


@pytest.fixture(scope="module")
def native():
    """A plan with a step of a kernel, and the signature, of a compiled model."""
    import graphq as gq

    g = gq.Graph("net")
    x, y = g.input("x", dtype="f32", shape=(7, 64)), g.input("y", dtype="f32", shape=(64, 32))
    g.output(g.matmul(x, y), name="z")
    plan = gq.compile(g, threads=2).plans.latest.plan
    return plan, Signature.of(g), next(k for k, step in enumerate(plan.steps) if type(step) is not PythonStep)


@pytest.mark.parametrize("fields, fine", [
    ({}, True), ({"kernel": 3}, False), ({"function": abs}, False), ({"blocks": -1}, False),
    ({"blocks": 1 << 63}, False), ({"blocks": N}, True), ({"pieces": MOST_PIECES}, True),
    ({"pieces": MOST_PIECES + 1}, False),
    ({"pieces": -1}, False), ({"macs": -1}, False), ({"macs": 0}, True), ({"exact": 0.5}, True),
    ({"exact": 1}, False), ({"aligned": 0}, False),
    ({"slots": []}, False), ({"slots": ((0, 0),)}, False), ({"slots": ([0, 0, 0],)}, False),
    ({"slots": ((0, 0, 8),)}, True), ({"slots": ((0, 0, -8),)}, True), ({"slots": ((0, 0, 0.5),)}, False),
    ({"words": (("a", 0),)}, False),
    ({"words": {1: 0}}, False), ({"words": {"a": -(1 << 63)}}, True), ({"words": {"a": -(1 << 63) - 1}}, False),
    ({"words": {"a": (1 << 63) - 1}}, True), ({"words": {"a": 1 << 63}}, False),
    ({"words": {"a": later(int, N)}}, True), ({"words": {"a": Ref(0, -1)}}, False),
    ({"words": {"a": Ref(99, 0)}}, False), ({"words": {"a": Ref(-1, 0)}}, False),
    ({"words": {"a": Ref(0.0, 0)}}, False), ({"words": {"a": Ref(0, 7 * 64 * 4)}}, True),
    ({"words": {"a": Ref(0, 7 * 64 * 4 + 1)}}, False), ({"slots": ((Ref(1, 64 * 32 * 4 + 1), 0, 0),)}, False),
    ({"slots": ((0, Ref(1, 64 * 32 * 4 + 1), 0),)}, False), ({"words": {"a": FunctionTable((-1, 5))}}, True),
    ({"words": {"a": FunctionTable(("f",))}}, False), ({"words": {"a": "text"}}, False),
    ({"words": {"a": 0}, "aligned": True}, True), ({"words": {"b": 0}, "aligned": True}, False)])
def test_steps_of_kernels(fields, fine, native):
    plan, signature, k = native
    changed = plan._replace(steps=(*plan.steps[:k], plan.steps[k]._replace(**fields), *plan.steps[k + 1:]))
    if fine:
        check(changed, signature)
    else:
        refused(changed, signature)


RECORD = TraceRecord({0: 5, 1: 4, 2: 9, 3: 20}, ((2, 0, 0, 1), (3, 1, 2, 1)), (0, 1), {"a": 5, "b": 4},
                     {2: True, 0: False}, (max, min))


@pytest.mark.parametrize("fields, fine", [
    ({}, True), ({"values": [5, 4]}, False), ({"guards": ((2, True),)}, False), ({"assumed": (5, 4)}, False),
    ({"calls": [*RECORD.calls]}, False), ({"assumed": {"a": 5, "b": 5}}, False), ({"assumed": {"a": 5}}, False),
    ({"leaves": (1, 0)}, False), ({"leaves": (0, 0)}, False), ({"leaves": (0,)}, False), ({"leaves": (0, 2)}, False),
    ({"calls": RECORD.calls[::-1]}, False), ({"calls": (*RECORD.calls, RECORD.calls[0])}, False),
    ({"calls": ((2, "max", 0, 1), RECORD.calls[1])}, False), ({"calls": ((2, 0, 0, 7), RECORD.calls[1])}, False),
    ({"calls": ((2, 0, 0, 2), RECORD.calls[1])}, False), ({"guards": {7: True}}, False),
    ({"calls": ((2, 2, 0, 1), RECORD.calls[1])}, False), ({"calls": ((2, -1, 0, 1), RECORD.calls[1])}, False),
    ({"functions": (max,)}, False), ({"functions": (max, "min")}, False), ({"functions": [max, min]}, False),
    ({"values": {**RECORD.values, (1 << 22) - 1: 1}}, True), ({"values": {**RECORD.values, 1 << 22: 1}}, False),
    ({"values": {**RECORD.values, -1: 1}}, False), ({"values": {**RECORD.values, "4": 1}}, False),
    ({"calls": (*RECORD.calls, (1 << 22, 0, 0, 1))}, False)])
def test_traces(fields, fine):
    changed = RECORD._replace(**fields)
    if fine:
        check_record(changed, (5, 4))
    else:
        with pytest.raises(ParseError):
            check_record(changed, (5, 4))
    with pytest.raises(ParseError):
        check_record(RECORD, (5, 5))


def test_two_sizes_have_two_slots():
    """Also if they are equal in the example."""
    equal = RECORD._replace(values={**RECORD.values, 1: 5}, assumed={"a": 5, "b": 5})
    check_record(equal, (5, 5))
    with pytest.raises(ParseError):
        check_record(equal._replace(leaves=(0, 0)), (5, 5))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_strips_keep_their_data_and_the_threads_that_are_there(threads, native):
    """Buffers that no step uses are left out; all others get new numbers, also in slots and in parts of steps."""
    plan, _, k = native
    step = plan.steps[k]
    unused = [Buffer("arena", 8), Buffer("constant", 8, None, 0, np.zeros(1))]
    moved = step._replace(pieces=3, slots=((Ref(0, 8), Ref(1), 4),), parts=(Part(step, ((0, 8),)),))

    def shifted(word):
        return word._replace(buffer=word.buffer + 2) if isinstance(word, Ref) else word

    def late(x):
        return x._replace(words={name: shifted(w) for name, w in x.words.items()},
                          slots=tuple(tuple(map(shifted, slot)) for slot in x.slots),
                          parts=tuple(part._replace(step=late(part.step)) for part in x.parts))

    python = PythonStep("copy", Copy(), (0, None), (1,), False)
    late_python = python._replace(inputs=(2, None), outputs=(3,))
    used = {w.buffer for w in moved.block if isinstance(w, Ref)} | {0, 1}
    buffers = tuple(b for n, b in enumerate(plan.buffers) if n in used or b.storage in ("input", "output", "report"))
    assert buffers == plan.buffers
    given = plan._replace(buffers=(*unused, *buffers), steps=(late(moved), late_python), threads=3)
    found = compact(given)
    assert found.buffers == buffers and found.steps == (moved, python)
    fewer = on_threads(found, threads)
    assert fewer.threads == threads and fewer.steps[1] == python
    native_steps = [fewer.steps[0], *(part.step for part in fewer.steps[0].parts)]
    assert {s.pieces for s in native_steps} == ({threads} if threads < 3 else {3, step.pieces})


def test_later_values_are_words_alone():
    assert isinstance(later(int, N), Later)
    refused(with_buffer(6, data=later(np.zeros, N)))


def test_the_plan_of_a_fixed_model_is_data(tmp_path):
    """Kernels, references, copies and reports of wrong indices: a file has their numbers and no name of a function."""
    import graphq as gq

    g = gq.Graph("net")
    x, few, many = (g.input(n, dtype=t, shape=s) for n, t, s in (("x", "f32", (64, 512)), ("few", "s64", (1,)),
                                                                 ("many", "s64", (400,))))
    for value, name in ((g.gather(x, many, axis=0), "y"), (g.trilu(x), "z"), (x, "copy")):
        g.output(value, name=name)
    model = gq.compile(g, threads=1)
    model.save(tmp_path / "m")
    plan, (build, sections) = model.plans.all()[0].plan, opened(tmp_path / "m")
    kinds = {type(s.call) for s in plan.steps if type(s) is PythonStep}
    assert kinds == {Reference, Copy} and [r.kind for r in plan.errors] == ["index"]
    texts = [sections[number].decode() for _, number in build["plans"]]
    assert len(texts) == 1 and not any(word in texts[0] for word in ('"name"', '"object"', "graphq.", "partial"))
    again = gq.load_compiled(tmp_path / "m")
    feeds = {"x": np.arange(64 * 512, dtype=np.float32).reshape(64, 512), "few": np.zeros(1, np.int64),
             "many": np.arange(400) % 64}
    assert all(np.array_equal(y, z) for y, z in zip(again(feeds).values(), model(feeds).values(), strict=True))
    for wrong in (64, -65):
        texts = []
        for one in (model, again):
            with pytest.raises(InputError, match="gather") as error:
                one({**feeds, "many": np.full(400, wrong)})
            texts.append(str(error.value))
        assert texts[0] == texts[1]


def test_a_fixed_shape_needs_no_trace(tmp_path, monkeypatch):
    """Compiling, calls and files of a model without open sizes make no trace, and look for no open size."""
    import graphq as gq

    def fails(*_):
        raise AssertionError("nothing is open")

    monkeypatch.setattr(Trace, "exists", False)
    monkeypatch.setattr(Trace, "__init__", fails)
    monkeypatch.setattr("graphq.base.sizes.trace_of", fails)
    g = gq.Graph("net")
    x = g.dequantize(g.input("x", dtype="u8", shape=(4, 64)), scales=[0.5], zps=[3])
    w = g.dequantize(g.constant(np.ones((64, 32), np.int8)), scales=[0.5])
    g.output(g.softmax(g.matmul(x, w)), name="y")
    model = gq.compile(g, threads=1, cache="kernels")
    model.save(tmp_path / "m")
    feed = np.arange(256, dtype=np.uint8).reshape(4, 64)
    assert np.array_equal(gq.load_compiled(tmp_path / "m")(feed), model(feed))
    assert np.array_equal(model.formula(feed), model(feed)) and "matmul" in model.explain()
