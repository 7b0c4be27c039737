"""compile: open shapes, options, what is refused, and what is reported."""
import copy
import itertools
import pickle
import threading

import numpy as np
import pytest
from dense import dense

import graphq as gq
from graphq import passes
from graphq.errors import CompileError, GraphError, InputError, KernelError
from graphq.kernels.target import isa
from graphq.model.build_plan import build_plan
from graphq.model.open_plans import background
from graphq.testing import random_inputs

RNG = np.random.default_rng(11)


def test_files_of_graphs_are_compiled(tmp_path):
    g = gq.Graph("net")
    g.output(g.relu(g.input("x", shape=(2, 3), dtype="f32")), name="y")
    (tmp_path / "net.txt").write_text(gq.to_text(g))
    gq.save_onednn_json(g, tmp_path / "net.json")
    gq.compile(g, threads=1).save(tmp_path / "net.graphq")
    x = np.float32([[-1, 0, 1], [2, -3, 4]])
    for path in (tmp_path / "net.txt", tmp_path / "net.json", str(tmp_path / "net.graphq")):
        assert np.array_equal(gq.compile(path, threads=1)(x), np.maximum(x, 0))
    with pytest.raises(FileNotFoundError):
        gq.compile("none.txt")
    with pytest.raises(GraphError, match="compile takes a Graph or the path of a file with a graph, got 3"):
        gq.compile(3)


def test_only_what_passes_with_names_make_is_looked_for_and_kept(monkeypatch):
    """Passes of graphq's own are known by their names, others are not."""
    asked = []
    monkeypatch.setattr("graphq.model.kept.Kept.of", lambda *arguments: asked.append(arguments))
    g = gq.Graph()
    g.output(g.relu(g.input("x", shape=(3,), dtype="f32")))
    for options in ({"passes": [lambda graph: 0]}, {"verify": "numeric"}, {"cache": False}, {"cache": "kernels"}):
        gq.compile(g, threads=1, **options)
        assert asked == []
    gq.compile(g, threads=1)
    assert len(asked) == 1


def test_open_shapes_are_taken_from_the_arrays():
    g = gq.Graph()
    x = g.input("x", shape=(None, 16), dtype="u8")
    w = g.constant(RNG.integers(-127, 128, (16, 12)).astype(np.int8))
    y = g.matmul(g.dequantize(x, scales=[0.1]), g.dequantize(w, scales=[0.1]))
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[0.5]))
    model = gq.compile(g, strict=True)
    assert "numbers are for x.0 = 1" in model.explain()
    for m in (1, 5, 0, 5):
        inputs = {"x": RNG.integers(0, 256, (m, 16)).astype(np.uint8)}
        assert np.array_equal(model(inputs), model.formula(inputs))
        assert model(inputs).shape == (m, 12)
    assert "matmul partition" in model.explain()
    with pytest.raises(InputError, match=r"'x' must be u8\[\?,16\], got shape \[5, 15\]"):
        model(x=np.zeros((5, 15), np.uint8))


def test_passes_run_once_for_shapes_of_a_class():
    g, runs = gq.Graph(), []
    g.output(g.relu(g.input("x", shape=(None,), dtype="f32")))

    def count(graph):
        runs.append(str(graph.inputs[0].type))
        return 0

    model = gq.compile(g, passes=[count])
    assert runs == ["f32[x.0]"]
    for n in (30, 40, 30):
        model(x=np.ones(n, np.float32))
    assert runs == ["f32[x.0]"]
    for n in (3, 5, 40):
        model(x=np.ones(n, np.float32))
        background.join()
    assert runs == 2 * ["f32[x.0]"]
    with pytest.raises(gq.GraphError, match="a pass is a function"):
        gq.compile(g, passes=[count, "count"])


def test_shapes_that_disagree_only_at_the_call_name_the_operation():
    g = gq.Graph()
    g.output(g.add(g.input("x", shape=(None,), dtype="f32"), g.input("z", dtype="f32")))
    model = gq.compile(g)
    assert model(x=np.ones(3, np.float32), z=np.ones((2, 1), np.float32)).shape == (2, 3)
    with pytest.raises(GraphError, match=r"add\(.*f32\[3\].*f32\[4\]"):
        model(x=np.ones(3, np.float32), z=np.ones(4, np.float32))


def test_inputs_marked_constant_are_packed_at_the_first_call():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 8), dtype="u8"), scales=[0.1])
    w = g.input("w", shape=(8, 5), dtype="s8", property="constant")
    g.output(g.matmul(x, g.dequantize(w, scales=[0.1])))
    model = gq.compile(g)
    a = random_inputs(g)
    first = model(a)
    assert np.array_equal(first, model.formula(a)) and "pack" not in model.explain()
    assert np.array_equal(model(x=a["x"], w=a["w"].copy()), first)
    with pytest.raises(InputError, match="'w' is marked constant"):
        model(x=a["x"], w=np.zeros((8, 5), np.int8))


def test_a_failed_call_and_the_formula_do_not_fix_constant_inputs():
    g = gq.Graph()
    x, w = g.input("x", shape=(None, None), dtype="u8"), g.input("w", shape=(4, None), dtype="s8", property="constant")
    g.output(g.matmul(g.dequantize(x, scales=[1.0]), g.dequantize(w, scales=[1.0])))
    model, one = gq.compile(g), np.ones((4, 3), np.int8)
    with pytest.raises(GraphError, match="k must agree"):
        model(x=np.ones((2, 5), np.uint8), w=9 * one)
    assert model.formula(x=np.ones((2, 4), np.uint8), w=9 * one)[0, 0] == 36
    assert model(x=np.ones((2, 4), np.uint8), w=one)[0, 0] == 4
    with pytest.raises(InputError, match="'w' is marked constant"):
        model(x=np.ones((2, 4), np.uint8), w=np.ones((4, 7), np.int8))


def test_a_new_shape_does_not_block_callers_of_known_ones():
    g = gq.Graph()
    g.output(g.relu(g.input("x", shape=(None,), dtype="f32")))
    started, done = threading.Event(), threading.Event()

    def slow_pass(graph):
        if graph.inputs[0].shape == (5,):
            started.set()
            assert done.wait(60)
        return 0

    model = gq.compile(g, passes=[slow_pass])
    model(x=np.zeros(3, np.float32))
    other = threading.Thread(target=lambda: model(x=np.zeros(5, np.float32)))
    other.start()
    assert started.wait(60)
    assert model(x=np.ones(3, np.float32)).tolist() == [1, 1, 1]  # while the other shape is being planned
    done.set()
    other.join()


@pytest.mark.parametrize("threads, parallel", [(1, False), (2, True)])
def test_only_steps_with_enough_work_run_in_parallel(threads, parallel):
    from graphq.kernels.levels import resolve

    for shape, expected in (((16, 64, 32), False), ((512, 1024, 512), parallel)):
        model = gq.compile(dense(*shape, constant=False, zw=(-9, 9)), threads=threads, isa=resolve().name)
        if model.threads == threads:
            assert any(s.pieces > 1 for s in model.plans.fixed.plan.steps) == expected


def test_bad_options_are_graphq_errors():
    g = dense(2, 4, 3)
    cases = ((dict(strict="no"), "strict must be True or False"), (dict(passes=5), "passes must be a list"),
             (dict(passes=[5]), "a pass is a function"), (dict(isa=[]), "unknown ISA level"))
    for options, message in cases:
        with pytest.raises(gq.GraphqError, match=message):
            gq.compile(g, **options)

    def broken(graph):
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        gq.compile(g, passes=[broken])
    assert caught.value.__notes__ == ["in pass broken"]


def test_models_pickle_and_copy():
    model = gq.compile(dense(3, 5, 7), threads=1, isa=isa.available()[0].name)
    inputs = random_inputs(model.source)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert np.array_equal(again(inputs), model(inputs)) and repr(again) == repr(model)


def test_an_isa_level_must_exist_and_be_here(monkeypatch):
    g = dense(2, 4, 3)
    with pytest.raises(KernelError, match="unknown ISA level 'sse9'"):
        gq.compile(g, isa="sse9")
    monkeypatch.setenv("GRAPHQ_ISA", "scalar")
    assert "ISA level scalar" in gq.compile(g).explain()
    for level in isa.LEVELS:
        if level.name not in [x.name for x in isa.available()]:
            with pytest.raises(KernelError, match=f"no ISA level '{level.name}'"):
                gq.compile(g, isa=level.name)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_must_be_a_positive_int(threads):
    with pytest.raises(CompileError, match="threads must be a positive int"):
        gq.compile(dense(2, 4, 3), threads=threads)


def test_a_graph_needs_outputs():
    g = gq.Graph("bare")
    g.input("x", shape=(2,), dtype="f32")
    for f in (gq.compile, lambda g: gq.reference(g, x=np.zeros(2, np.float32))):
        with pytest.raises(GraphError, match="graph 'bare' has no outputs"):
            f(g)


def test_the_graph_is_not_changed_by_compiling():
    g = dense()
    before = gq.to_text(g)
    gq.compile(g)
    assert gq.to_text(g) == before


def test_own_passes_replace_the_pipeline():
    g = gq.Graph()
    g.output(g.relu(g.input("x", shape=(3,), dtype="f32")))
    seen = []
    model = gq.compile(g, passes=[lambda graph: seen.append(str(graph)) or 0])
    assert len(seen) == 1 and [n.op.name for n in model.graph.nodes] == ["relu"]
    assert "NumPy reference of" in model.explain()
    assert model(x=np.array([-1, 0, 2], np.float32)).tolist() == [0, 0, 2]


def test_debug_prints_each_pass_that_changed_the_graph(monkeypatch, capsys):
    monkeypatch.setenv("GRAPHQ_DEBUG", "passes")
    gq.compile(dense(2, 4, 3))
    err = capsys.readouterr().err
    assert "# FuseMatmul: 1\n" in err and "partition(" in err
    assert "FuseEltwise" not in err


def test_outputs_that_no_step_computes():
    g = gq.Graph()
    x = g.input("x", shape=(2, 3), dtype="f32")
    c = g.constant(np.arange(3, dtype=np.float32))
    y = g.relu(x)
    view, moved = g.static_reshape(y, shape=[3, 2]), g.static_transpose(y, order=[1, 0])
    for name, value in (("same", x), ("constant", c), ("y", y), ("again", y), ("view", view), ("moved", moved)):
        g.output(value, name=name)
    inputs = random_inputs(g)
    got, wanted = gq.compile(g)(inputs), gq.reference(g, inputs)
    assert list(got) == ["same", "constant", "y", "again", "view", "moved"]
    for name, array in wanted.items():
        assert np.array_equal(got[name], array) and not np.may_share_memory(got[name], inputs["x"])
    arrays = list(got.values())
    assert not any(np.may_share_memory(a, b) for a, b in itertools.combinations(arrays, 2))


def test_without_the_cache_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(tmp_path / "kernels"))
    g = dense(3, 5, 7, activation="sigmoid", residual=False)
    inputs = random_inputs(g)
    model = gq.compile(g, cache=False)
    assert np.array_equal(model(inputs), model.formula(inputs))
    assert not list(tmp_path.rglob("*.nb*"))


def test_labels_of_reports_are_those_of_the_graphs_text():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 8), dtype="u8"), scales=[0.1])
    g.relu(x)
    scaled = g.multiply(x, g.input("s", shape=(), dtype="f32"))
    y = g.matmul(scaled, g.dequantize(g.input("w", shape=(8,), dtype="s8"), scales=[0.1]))
    g.set_outputs([y], ["y"])
    line, multiply = g.describe(y.node), f"{g.label(scaled)} = eltwise partition"
    model = gq.compile(g)
    outside, misses = model.explain(full=True).split("near misses:")
    assert line in outside[outside.index("not in a partition"):] and line in misses and multiply in outside
    assert f"NumPy reference of {line}" in misses and "near misses:" not in model.explain()
    with pytest.raises(CompileError, match="strict: 1 operation would.*matmul"):
        gq.compile(g, strict=True)


def test_counts_in_reports():
    g = gq.Graph()
    g.output(g.relu(g.input("x", shape=(4,), dtype="f32")))
    text = gq.compile(g, threads=1).explain()
    assert "1 partition (0 integer), 0 operations outside" in text and "1 thread\n" in text
    assert "plan: 1 step\n" in text and "(1 block, serial)" in text


def test_transposed_sources_are_copied_where_that_is_faster():
    """Only the plan is made: no kernel is compiled."""
    def steps(level, n):
        g = dense(96, 256, n, transpose_a=True, residual=False)
        passes.run_passes(g, [*passes.PIPELINE, passes.leave_ties])
        plan = build_plan(g, isa.level_named(level), 1, True)
        return [step for step in plan.steps if "transposing" in step.kernel]

    assert not steps("avx512_vnni", 64) and steps("avx512_vnni", 4096)
    assert steps("avx2", 64) and steps("amx", 64)


@pytest.mark.parametrize("op,attrs", [("relu", {}), ("pow", {"beta": 3})])
def test_a_view_that_is_returned_is_written_directly(op, attrs):
    """By a kernel or a reference; what is also returned as it is takes a copy."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for both in (False, True):
        g = gq.Graph()
        y = getattr(g, op)(g.input("x", shape=(3, 4), dtype="f32"), **attrs)
        z = g.static_reshape(g.static_reshape(y, shape=[2, 6]), shape=[12])
        g.output(z, name="z")
        if both:
            g.output(y, name="y")
        g.output(g.abs(y), name="abs")
        model = gq.compile(g)
        got, expected = model(x=x), gq.reference(g, x=x)
        assert all((got[name] == expected[name]).all() and got[name].shape == expected[name].shape for name in expected)
        assert model.explain().count("copy to output") == both
