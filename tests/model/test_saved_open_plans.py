"""Models with open shapes in files: all of their plans, each read when it is needed."""
import json

import numpy as np
import pytest
from artifacts import opened, sealed

import graphq as gq
from graphq.kernels.jit import cache, modules
from graphq.model import saved_file as format
from graphq.model.open_plans import background
from graphq.plan.runtime import Runner


def rows(n):
    return np.random.default_rng(n).normal(size=(n, 16)).astype(np.float32)


def open_graph():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, 16))
    w = g.dequantize(g.constant(np.random.default_rng(0).integers(-99, 99, (16, 24)).astype(np.int8)), scales=[0.01])
    q = g.dequantize(g.quantize(x, dtype="u8", scales=[0.1], zps=[128]), scales=[0.1], zps=[128])
    g.output(g.softmax(g.matmul(q, w), axis=-1), name="y")
    return g


@pytest.mark.parametrize("threads", [1, 2])
def test_plans_with_open_sizes(threads, tmp_path):
    model = gq.compile(open_graph(), threads=2)
    model(rows(40))  # a second plan
    model.save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m", threads=threads)
    assert again.origin == f"loaded from {tmp_path / 'm'}"
    before = len(again.plans.all())
    assert before == len(model.plans.all()) > 1
    for n in (1, 40, 50):
        x = rows(n)
        assert np.array_equal(again(x), model(x)) and len(again.plans.all()) == before
        if threads == 2:
            assert again.explain() == f"{again.origin}\n{model.explain()}"
    again.plans.grown = lambda plans: None  # as of a kept model, whose calls add plans
    x = rows(300)
    assert np.array_equal(again(x), model(x))
    background.join()
    assert len(again.plans.all()) > before
    packed = [b.data for p in again.plans.all() for b in p.plan.buffers if isinstance(b.data, np.ndarray)]
    large = [x for x in packed if x.nbytes >= 16 * 24]
    assert large and not any(x.flags.owndata for x in large)  # the new plan has the weights of the file, too


def test_a_model_from_a_file_runs_at_sizes_of_other_classes_without_a_new_plan(tmp_path):
    """Its call waits for no compiler. A size of 1 has plans of its own, which hold for no other size."""
    model = gq.compile(open_graph())
    model(rows(1))
    model(rows(40))
    model.save(tmp_path / "m")
    for n in (300, 5, 2000):
        model(rows(n))
    background.join()
    wanted = {n: model(rows(n)) for n in (300, 5, 2000, 1, 40)}  # of plans of their own classes
    assert len(model.plans.all()) == 5
    again, compiled = gq.load_compiled(tmp_path / "m"), modules.statistics().compiled
    for n, want in wanted.items():
        assert np.array_equal(again(rows(n)), want)
    assert len(again.plans.all()) == 2 and modules.statistics().compiled == compiled


def test_a_file_has_plans_for_sizes_that_no_call_had(tmp_path):
    """Sizes of 1 and larger sizes: four plans for two open dimensions, whatever the model was called with."""
    g = gq.Graph()
    x, y = (g.input(name, dtype="f32", shape=(None, None, 8)) for name in "xy")
    g.output(g.softmax(g.relu(g.add(x, y)), axis=-1), name="z")
    g.meta["dimensions"] = {(name, axis): "mn"[axis] for name in "xy" for axis in (0, 1)}
    gq.compile(g).save(tmp_path / "m")
    again, compiled = gq.load_compiled(tmp_path / "m"), modules.statistics().compiled
    assert len(again.plans.all()) == 4
    for m, n in ((1, 1), (1, 40), (6, 1), (2, 2), (300, 3), (1, 900)):
        x, y = (np.random.default_rng(seed).normal(size=(m, n, 8)).astype(np.float32) for seed in (m, n))
        assert np.array_equal(again(x=x, y=y), again.formula(x=x, y=y))
    assert len(again.plans.all()) == 4 and modules.statistics().compiled == compiled


def test_a_batch_that_equals_another_dimension_needs_no_plan_of_its_own(tmp_path):
    g = gq.Graph()
    g.output(g.static_transpose(g.input("x", dtype="f32", shape=(None, None, 32)), order=[0, 2, 1]), name="y")
    gq.compile(g).save(tmp_path / "m")
    model = gq.load_compiled(tmp_path / "m")
    before = len(model.plans.all())
    for m, n in ((32, 40), (40, 32), (32, 32), (7, 7)):
        x = np.random.default_rng(m).normal(size=(m, n, 32)).astype(np.float32)
        assert np.array_equal(model(x), x.transpose(0, 2, 1))
    assert len(model.plans.all()) == before


def test_a_load_reads_no_more_than_a_call_needs(tmp_path, monkeypatch):
    model = gq.compile(open_graph())
    for n in (1, 12, 40):
        model(rows(n))
    model.save(tmp_path / "m")
    (index, _), read = opened(tmp_path / "m"), []
    section = format.File.section
    monkeypatch.setattr(format.File, "section", lambda file, number: read.append(number) or section(file, number))
    again = gq.load_compiled(tmp_path / "m")
    plans = [number for _, number in index["plans"]]
    assert len(plans) == 3 and index["graph"] not in read and not set(plans) & set(read)
    assert again.rows_mix is None and gq.Predictor(tmp_path / "m", batch=8)
    for _ in range(2):
        x = rows(50)
        assert np.array_equal(again(x), model(x))
    assert index["graph"] not in read and len(set(plans) & set(read)) == 1


def test_what_is_asked_of_a_graph_with_open_shapes_before_its_first_call(tmp_path):
    model = gq.compile(open_graph())
    model.save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m")
    assert again.explain() == f"{again.origin}\n{model.explain()}"
    assert gq.to_text(again.graph) == gq.to_text(model.graph)


def test_guards_of_a_plan_in_a_file_hold(tmp_path):
    """A plan for equal lengths of two inputs is not run for others, nor one for lengths that a reshape can halve."""
    g = gq.Graph()
    x, y = (g.input(n, dtype="f32", shape=(None, 16)) for n in "xy")
    g.output(g.static_reshape(g.relu(g.add(x, y)), shape=[-1, 2, 16], special_zero=False), name="z")
    model = gq.compile(g)
    model(rows(40), rows(40))
    model.save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m")
    assert "anew" not in again.origin
    for n, m in ((40, 40), (50, 50), (40, 50), (51, 51), (50, 50)):
        try:
            want = model(rows(n), rows(m))
        except gq.GraphError:
            with pytest.raises(gq.GraphError):
                again(rows(n), rows(m))
        else:
            assert n == m and n % 2 == 0 and np.array_equal(again(rows(n), rows(m)), want)


# -- what a file may say -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The index of a file with open plans, its sections, and the numbers of those of plans."""
    path = tmp_path_factory.mktemp("open") / "m"
    model = gq.compile(open_graph(), threads=2)
    model(rows(40))
    model.save(path)
    build, sections = opened(path)
    return build, sections, [number for _, number in build["plans"]]


def replaced(x, change):
    """JSON with `change(y)` in place of each list or dict y in it, from the inside."""
    if isinstance(x, list):
        x = [replaced(y, change) for y in x]
    elif isinstance(x, dict):
        x = {k: replaced(y, change) for k, y in x.items()}
    return change(x) if isinstance(x, list | dict) else x


def record(name, change):
    """A change of the fields of each record of this class."""
    return lambda x: [*x[:2], *change(x[2:])] if x[:2] == ["record", name] else x


def field(name, number, value):
    """A change of one field."""
    return record(name, lambda fields: [*fields[:number], value, *fields[number + 1:]])


BUFFER, STEP, PLAN, RECORD = "Buffer", "Step", "Plan", "TraceRecord"


def word(value):
    """A change of the words of each step."""
    return field(STEP, 2, ["dict", ["a", value]])


FALSE = [
    field(BUFFER, 0, "elsewhere"), field(BUFFER, 1, -1), field(BUFFER, 1, 2**63), field(BUFFER, 1, "8"),
    field(BUFFER, 1, 1 << 40), field(BUFFER, 2, 7), field(BUFFER, 3, -1), field(BUFFER, 3, 99), field(BUFFER, 3, None),
    field(BUFFER, 4, None), field(BUFFER, 4, ["array", 0]), field(STEP, 0, 3), field(STEP, 1, 0), field(STEP, 1, None),
    word(["ref", 0, -1]), word(["ref", -1, 0]), word(["ref", 10**6, 0]), word(["ref", 0, 1 << 50]), word(2**64),
    word(0.5), word(["tuple"]), word(["size", 1 << 40, "n"]), word(["size", -1, "n"]), field(STEP, 2, ["tuple", 1]),
    field(STEP, 2, ["dict", [1, 1]]), field(STEP, 3, -1), field(STEP, 3, None), field(STEP, 4, -1),
    field(STEP, 4, 1 << 12), field(STEP, 4, None), field(STEP, 5, ["list"]), field(STEP, 5, ["tuple", 1]),
    field(STEP, 5, ["tuple", ["tuple", 0, 0]]), field(STEP, 5, ["tuple", ["tuple", 0, 0, ["ref", 0, -1]]]),
    field(STEP, 6, "x"), field(STEP, 7, 1), field(STEP, 8, 1),
    record("Step", lambda fields: [*fields[:2], ["dict", ["x", 0]], *fields[3:8], True]),
    field(PLAN, 0, ["tuple"]), field(PLAN, 0, None),
    field(PLAN, 2, ["tuple"]), field(PLAN, 2, ["tuple", ["type", "f32", [1, 1]], ["type", "f32", [1, 1]]]),
    field(PLAN, 3, 0), field(PLAN, 3, -5), field(PLAN, 3, 1 << 40), field(PLAN, 4, "none"),
    field(PLAN, 5, ["tuple", 1]),
    field(PLAN, 6, ["tuple", -1]), field(PLAN, 6, ["tuple", 0]), field(RECORD, 0, ["dict"]),
    field(RECORD, 1, ["tuple"]),
    field(RECORD, 2, ["tuple"]), field(RECORD, 2, ["tuple", 10**9]), field(RECORD, 3, ["dict"]),
    field(RECORD, 3, ["dict", ["x.0", -1]]), field(RECORD, 4, ["dict", [10**9, True]]), field(RECORD, 5, ["tuple"]),
    field(RECORD, 5, ["tuple", ["name", "graphq", "compile"]]),
    lambda x: ["code", -1, x[2]] if x[:1] == ["code"] else x,
    lambda x: ["code", x[1], "name"] if x[:1] == ["code"] else x,
    lambda x: ["code", 10**6, x[2]] if x[:1] == ["code"] else x,
    lambda x: ["size", x[1] + (1 << 21), x[2]] if x[:1] == ["size"] else x,
    record(RECORD, lambda fields: [fields[0], ["tuple", *fields[1][:0:-1]], *fields[2:]]),
]


@pytest.mark.parametrize("change", FALSE, ids=range(len(FALSE)))
def test_what_no_plan_says_is_refused(change, parts, tmp_path, monkeypatch):
    """Though its hashes fit: before it is run, each field is what the builder could have written."""
    index, sections, plans = parts
    sections = list(sections)
    for number in plans:
        sections[number] = json.dumps(replaced(json.loads(sections[number]), change)).encode()
    assert any(sections[k] != json.dumps(json.loads(parts[1][k])).encode() for k in plans)
    (tmp_path / "bad").write_bytes(sealed(index, sections))
    monkeypatch.setattr(cache, "provide", lambda codes: None)
    model = gq.load_compiled(tmp_path / "bad")
    monkeypatch.setattr(Runner, "__call__", None)  # nothing of it runs
    with pytest.raises(gq.ParseError, match="bad: "):
        model(rows(40))


def test_products_of_open_depth_in_files(tmp_path):
    """Bounds, blocks and tiles that follow from the sizes do so in a model that was loaded."""
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, 16))
    q = g.dequantize(g.quantize(x, dtype="u8", scales=[0.1], zps=[99]), scales=[0.1], zps=[99])
    g.output(g.quantize(g.matmul(q, q, transpose_a=True), dtype="s8", scales=[0.5]), name="y")
    model = gq.compile(g, threads=2)
    model(rows(40))
    model.save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m")
    before = len(again.plans.all())
    for n in (40, 17, 100):
        assert np.array_equal(again(rows(n)), model(rows(n))) and len(again.plans.all()) == before == 2
        plans = [m.plans.at(((n, 16),)).plan for m in (again, model)]
        cut = [[(s.kernel, s.blocks, s.pieces) for s in p.steps] for p in plans]
        assert cut[0] == cut[1]
