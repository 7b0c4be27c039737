"""What plans and graphs consist of, through JSON and back: every kind of value, and what is refused."""
import json
import math
import operator
from functools import partial

import numpy as np
import pytest

from graphq.base.budget import budget
from graphq.base.programs import Program, TraceRecord, record, restored
from graphq.base.sizes import Later, Size, Trace, later, parts
from graphq.dtypes import DTYPES, f32, s4, u8
from graphq.errors import CompileError, GraphqError, ParseError
from graphq.ir import Graph, TensorType
from graphq.ir.interpret import SIZED_CONSTANT
from graphq.ir.op import Curve, lookup
from graphq.kernels.family.record import Family
from graphq.kernels.jit.modules import Function
from graphq.kernels.matmul.plan import Product
from graphq.kernels.numbers.observed import histogram
from graphq.kernels.operands.space import offsets
from graphq.model import saved_plans as plans
from graphq.model.saved_plans import compact, on_threads
from graphq.model.saved_values import PlanReader, Reader, Unsaved, Writer
from graphq.ops.open_arrays import element
from graphq.plan.plan import Buffer, Copy, Part, Plan, PythonStep, Ref, Reference, ReportedError, Step


def there_and_back(x, trace=None, kind=PlanReader):
    writer = Writer()
    text = json.dumps(writer.of(x))
    reader = kind(writer.arrays.__getitem__, [], trace) if kind is PlanReader else kind(writer.arrays.__getitem__)
    return reader.of(json.loads(text))


DATA = [
    None, True, False, 0, -3, 2**70, 0.5, -0.0, math.inf, "text", "", (), (1,), (1, (2, "x"), [3.5, None]), [],
    {"a": (1, 2), 3: None, ("k", 1): [True]}, {}, b"", b"bytes\0", TensorType(f32, (2, None, 3)),
    TensorType(s4, None), TensorType(u8, ()), *DTYPES.values(), *(t.numpy for t in DTYPES.values()),
    lookup("relu"), lookup("matmul"), (0.1, -0.0, math.inf, math.nan, 5e-324) * 9, [0.1] * 45, (0.1,) * 44 + (1,),
]


@pytest.mark.parametrize("kind", [Reader, PlanReader])
@pytest.mark.parametrize("x", DATA, ids=repr)
def test_data(x, kind):
    found = there_and_back(x, kind=kind)
    assert type(found) is type(x) and repr(found) == repr(x) and (found == x or math.nan in x)


def test_long_tuples_of_floats_are_arrays():
    """JSON writes each float as text of up to 24 bytes, and models have thousands of scales."""
    scales = (0.1, 0.2) * 20
    writer = Writer()
    assert writer.of([scales, scales]) == ["list", ["floats", 0], ["floats", 0]]
    assert writer.arrays[0].dtype == np.float64 and tuple(writer.arrays[0].tolist()) == scales
    for strange in (np.zeros(40, np.uint8), np.zeros((5, 8)), np.zeros(())):
        with pytest.raises(AssertionError):
            Reader([strange].__getitem__).of(["floats", 0])
    with budget(1000), pytest.raises(CompileError, match="the numbers of the file would take"):
        Reader([np.zeros(1 << 20)].__getitem__).of(["floats", 0])


@pytest.mark.parametrize("name", DTYPES)
def test_arrays_and_scalars(name):
    array = np.arange(6).reshape(2, 3).astype(DTYPES[name].numpy)
    for x in (array, array[:, 1], array[:0], array[1, 2]):
        found = there_and_back(x)
        assert type(found) is type(x) and found.dtype == x.dtype and found.shape == x.shape
        assert np.asarray(found).tobytes() == np.asarray(x).tobytes()


def test_equal_arrays_are_one_section_and_other_views_are_not():
    x = np.arange(12, dtype=np.int32)
    views = [x, x[:], x[1:], x[::2], x[:6], x.view(np.uint32), x.reshape(3, 4), x.reshape(3, 4).T, x.reshape(4, 3),
             x.copy()]
    writer = Writer()
    numbers = [writer.of(v)[1] for v in views]
    assert numbers == [0, 0, 1, 2, 3, 4, 5, 6, 7, 0] and all(
        writer.arrays[n].dtype == v.dtype and np.array_equal(writer.arrays[n], v)
        for n, v in zip(numbers, views, strict=True))


@pytest.mark.parametrize("x, name", [
    (operator.add, "add"), (math.ceil, "ceil"), (min, "min"), (np.prod, "numpy.prod"), (int, "int"), (bool, "bool"),
    (np.float32, "numpy.float32"), (np.add, "numpy.add"), (element, "element"), (Step, "Step"),
    (offsets, "space.offsets"), (Product, "matmul.Product")])
def test_functions_and_classes_by_name(x, name):
    assert Writer().of(x) == ["name", name] and there_and_back(x) is x


def test_parts_of_plans_are_data():
    relu = Reference(lookup("relu"), {"a": 1}, "relu", ((2,), None))
    for x in (Copy(), ReportedError("index", "gather", ((2, 3), 0)), relu):
        assert there_and_back(x) == x and Writer().of(x)[:2] == ["record", type(x).__name__]
    assert there_and_back(SIZED_CONSTANT) is SIZED_CONSTANT
    assert there_and_back(Ref(3, 64)) == Ref(3, 64)


@pytest.mark.parametrize("x", [lambda: 1, object(), np.random.default_rng, math, {1, 2}, partial(np.asarray, (1, 2)),
                               np.array([None]), [1, lambda: 2], {"a": object()}, 1j, Curve(1.0)], ids=range(11))
def test_what_has_no_form(x):
    with pytest.raises(Unsaved):
        Writer().of(x)


@pytest.mark.parametrize("x", [there_and_back, histogram, TensorType, Size, Family.__init__, np.load, np.add.reduce,
                               operator.itemgetter], ids=lambda x: x.__qualname__)
def test_functions_without_a_name_are_refused(x):
    for one in (x, (1, [x]), TraceRecord({}, ((2, 0, 0),), (), {}, {}, (x,))):
        with pytest.raises(Unsaved, match=x.__name__):
            Writer().of(one)


@pytest.mark.parametrize("text", [
    ["name", "os", "system"], ["name", "builtins", "eval"], ["name", "graphq.cli", "sys"], ["name", "graphq", "np"],
    ["name", "eval"], ["name", "os.system"], ["name", "matmul.estimate"], ["name", "numpy.load"], ["name", ["tuple"]],
    ["record", "builtins.object"], ["object", "builtins", "object"], ["record", "Trace"], ["unknown", 1], [],
    ["size", 0, "n"],
    ["dtype", "f31"], ["op", "nothing"], ["type", "f32", [-1]], ["type", "f32", [1.5]],
    ["name", "graphq.base.paths.os"]])
def test_what_was_not_written(text):
    kinds = (LookupError, TypeError, ValueError, ImportError, AttributeError, AssertionError, GraphqError)
    with pytest.raises(kinds):  # `Saved.read` makes a ParseError of each
        PlanReader([].__getitem__, []).of(text)


def test_data_alone_names_nothing():
    for text in (["name", "add"], ["ref", 0, 0], ["record", "Copy"], ["code", 0, "f"], ["later", 0]):
        with pytest.raises(KeyError):
            Reader([].__getitem__).of(text)


def test_open_sizes_and_their_guards():
    t = Trace()
    n, m = t.leaf(6, "x.0", "rows"), t.leaf(4, "x.1")
    assert n > 5 and m != 3
    held = {"words": (n * 4, Ref(1, n + m)), "table": later(np.asarray, (n, m)), "type": TensorType(f32, (n, 4))}
    written = there_and_back(record(t, parts([held["words"][0], held["words"][1].offset, held["table"],
                                              *held["type"].shape])))
    assert isinstance(written, TraceRecord)
    trace = restored(written)
    found = there_and_back(held, trace)
    assert isinstance(found["words"][0], Size) and isinstance(found["table"], Later) and found["words"][1].buffer == 1
    assert repr(found["type"].shape[0]) == "rows"
    results = [found["words"][0], found["words"][1].offset, found["table"], found["type"].shape[0]]
    for sizes, holds in (((6, 4), True), ((9, 8), True), ((5, 4), False), ((7, 3), False)):
        values = Program(trace, parts(results)).at(sizes)
        assert (values is not None) == holds
        if holds:
            own = values.of(results)
            assert own[:2] == [sizes[0] * 4, sum(sizes)] and own[3] == sizes[0]
            assert own[2].tolist() == [*sizes]
    with pytest.raises(ParseError, match="does not make: size"):
        PlanReader([].__getitem__, [], trace).of(["size", len(trace.values), "n"])
    with pytest.raises(ParseError, match="does not make: slot -1 of a trace"):
        PlanReader([].__getitem__, [], trace).of(["later", -1])


@pytest.mark.parametrize("offset, buffer, fine", [
    (0, 1, True), (64, 1, True), (65, 1, False), (-1, 1, False), (0, 2, False), (0, -1, False), (8, 0, True),
    (9, 0, False)])
def test_addresses_lie_in_buffers(offset, buffer, fine):
    plan = Plan(tuple(Buffer("arena", n) for n in (8, 64)), (), (), 1)
    assert plans._is_word(Ref(buffer, offset), plan) is fine


@pytest.mark.parametrize("inputs, outputs, fine", [((0, None), (1,), True), ((2,), (1,), False), ((0,), (-1,), False),
                                                   ((0,), (1, 2), False)])
def test_so_do_operands_of_references(inputs, outputs, fine):
    plan = Plan(tuple(Buffer("arena", 8, TensorType(f32, (2,))) for _ in range(2)), (), (), 1)
    assert plans._is_python(PythonStep("copy", Copy(), inputs, outputs), plan) is fine


def test_what_no_step_uses_is_left_out():
    """Inputs, outputs and reports stay; every number of a buffer follows."""
    buffers = (Buffer("constant", 1), Buffer("input", 2), Buffer("constant", 3), Buffer("arena", 4),
               Buffer("output", 5), Buffer("report", 6), Buffer("arena", 7))
    steps = (Step("a", None, {"x": Ref(2, 3), "y": 9}, 2, 2, ((Ref(3), Ref(2), 8),)),
             PythonStep("b", abs, (3, None, 6), (4,)))
    found = compact(Plan(buffers, steps, (), 3))
    assert [b.nbytes for b in found.buffers] == [2, 3, 4, 5, 6, 7]
    assert found.steps[0].words == {"x": Ref(1, 3), "y": 9} and found.steps[0].slots == ((Ref(2), Ref(1), 8),)
    assert found.threads == 3
    assert found.steps[1].inputs == (2, None, 5) and found.steps[1].outputs == (3,)


def test_steps_of_strips_follow_too():
    """Their buffers are kept and renumbered, and what is no step is refused."""
    inner = Step("a", Function(None, "block"), {"x": Ref(2, 3), "y": 9}, 2, 2, ((Ref(3), Ref(2), 8),))
    outer = Step("a + a", inner.function, {"steps": 1}, 2, 2, parts=(Part(inner, ((0, 64),)),))
    buffers = Buffer("constant", 1), Buffer("input", 2), Buffer("constant", 3, data=np.zeros(3, np.uint8)), \
        Buffer("arena", 4)
    found = compact(Plan(buffers, (outer,), (), 3))
    (part,) = found.steps[0].parts
    assert part.step.words == {"x": Ref(1, 3), "y": 9} and part.step.slots == ((Ref(2), Ref(1), 8),)
    assert part.moved == ((0, 64),) and plans._is_native(found.steps[0], found)
    for bad in (inner, Part(outer.function, ()), Part(inner, [(0, 64)]), Part(inner, (("x", 64),)),
                Part(inner._replace(words={"x": Ref(7)}), ())):
        assert not plans._is_native(outer._replace(parts=(bad,)), found)


def test_plans_on_fewer_threads():
    def pieces(threads, planned, rooms):
        words = {"x": 8, "rooms": Ref(0), "room_count": max(1, planned), "room_bytes": 8} if rooms else {"x": 8}
        steps = Step("a", None, words, 100, planned), PythonStep("b", abs, (0,), (0,))
        fewer = on_threads(Plan((Buffer("arena", 8),), steps, (), 4), threads)
        assert fewer.threads == threads and len(fewer.steps) == 2
        step = fewer.steps[0]
        assert step.words == ({**words, "room_count": max(1, step.pieces)} if rooms else words)
        return step.pieces

    for rooms in (True, False):
        assert [pieces(threads, 4, rooms) for threads in (4, 2, 1)] == [4, 2, 1]
        assert [pieces(threads, 0, rooms) for threads in (4, 2)] == [0, 0]


def test_facts_of_a_graph_without_a_form_are_left_out():
    g = Graph("facts")
    y = g.relu(g.input("x", dtype="f32", shape=(2,)))
    g.output(y, name="y")
    strange = {"object": object(), "in a tuple": (1, object()), "in a dict": {"k": object()}, ("k", object()): 1}
    plain = {"dimensions": {("x", 0): "rows"}, "list": [1, (2.5, None, "x", True)]}
    g.meta, y.node.meta = {**strange, **plain}, {**plain, **strange}
    found = there_and_back(g, kind=Reader)
    assert found.meta == plain and found.nodes[0].meta == plain and g.meta.keys() > plain.keys()
