"""compile: the numbers at every ISA level and thread count, what is refused, and what is reported."""
import copy
import itertools
import pickle
import threading

import numpy as np
import pytest

import graphq as gq
from graphq.errors import CompileError, GraphError, InputError, KernelError
from graphq.kernels import isa
from graphq.testing import random_inputs

RNG = np.random.default_rng(11)


def dense(m=33, k=130, n=77, *, x="u8", w="s8", zx=7, zw=None, out="u8", constant=True, batch=(), w_batch=(),
          transpose_a=False, transpose_b=False, bias="operand", residual=True, activation="relu", seed=0):
    """dequantize -> matmul -> bias -> activation -> [+ residual] -> [quantize]"""
    rng = np.random.default_rng(seed)
    g = gq.Graph("dense")
    source = g.input("x", shape=(*batch, k, m) if transpose_a else (*batch, m, k), dtype=x)
    shape = (*w_batch, n, k) if transpose_b else (*w_batch, k, n)
    low, high = (-127, 128) if w == "s8" else (0, 256)
    data = rng.integers(low, high, shape).astype(gq.dtypes.as_dtype(w).numpy)
    weights = g.constant(data) if constant else g.input("w", shape=shape, dtype=w)
    zps = None if zw is None else rng.integers(*zw, n).tolist()
    a = g.dequantize(source, scales=[0.02], zps=[zx])
    b = g.dequantize(weights, qtype="per_channel", axis=-2 if transpose_b else -1, scales=rng.uniform(1e-3, 4e-3, n),
                     zps=zps)
    offsets = rng.standard_normal(n).astype(np.float32)
    y = g.matmul(a, b, offsets if bias == "operand" else None, transpose_a=transpose_a, transpose_b=transpose_b)
    y = {"operand": lambda: y, "op": lambda: g.bias_add(y, offsets), "add": lambda: g.add(offsets, y),
         "none": lambda: y}[bias]()
    y = getattr(g, activation)(y) if activation else y
    if residual:
        y = g.add(g.dequantize(g.input("z", shape=y.shape, dtype="u8"), scales=[0.01], zps=[3]), y)
    g.output(g.quantize(y, dtype=out, scales=[0.11], zps=[3]) if out != "f32" else y, name="y")
    return g


VARIANTS = {
    "plain": {}, "s8 source": dict(x="s8", zx=-5), "no source zero point": dict(zx=0),
    "s8 source zero point -128": dict(x="s8", zx=-128), "weight zero points": dict(zw=(-100, 100)),
    "u8 weights": dict(w="u8", zw=(0, 256)), "u8 weights without zero points": dict(w="u8"),
    "s8 out": dict(out="s8"), "f32 out": dict(out="f32"), "weights not constant": dict(constant=False),
    "all at once, not constant": dict(constant=False, zw=(0, 256), w="u8", x="s8", zx=3),
    "batch, shared weights": dict(batch=(3,)), "batch on both": dict(batch=(3,), w_batch=(3,), constant=False),
    "broadcast batches": dict(batch=(2, 1), w_batch=(3,), zw=(-9, 9)), "transpose b": dict(transpose_b=True),
    "broadcast batches, not constant": dict(batch=(2, 1), w_batch=(3,), zw=(-9, 9), constant=False),
    "transpose a": dict(transpose_a=True, batch=(2,)), "transpose both": dict(transpose_a=True, transpose_b=True,
                                                                              constant=False),
    "transpose a with row sums": dict(transpose_a=True, batch=(2, 1), w_batch=(3,), zw=(-9, 9), x="s8", zx=3),
    "transpose a of one row": dict(transpose_a=True, batch=(4,), m=1, zw=(-9, 9)),
    "bias_add": dict(bias="op"), "added bias": dict(bias="add"), "no bias": dict(bias="none", residual=False),
    "gelu": dict(activation="gelu"), "sigmoid": dict(activation="sigmoid"), "tanh": dict(activation="tanh"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_integer_matmul_equals_its_formula_and_the_reference(level, variant):
    g = dense(**VARIANTS[variant])
    inputs = random_inputs(g)
    reference = gq.reference(g, inputs)
    for threads in (1, 2):
        model = gq.compile(g, isa=level, threads=threads, strict=True)
        assert sum(n.op.name == "partition" for n in model.graph.nodes) == 1
        y = model(inputs)
        assert np.array_equal(y, model.formula(inputs))
    steps = np.abs(y.astype(np.float64) - reference)
    if VARIANTS[variant].get("out") == "f32":
        assert steps.max() <= 1e-6 * np.abs(reference).max()
    else:
        assert steps.max() <= 1 and (steps > 0).mean() <= 1e-4 + 1 / steps.size


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (1, 5, 3), (2, 63, 16), (5, 64, 15), (7, 65, 17), (16, 3, 64),
                                     (31, 66, 65), (4, 0, 5), (0, 3, 4), (3, 4, 0)])
def test_any_size(level, m, k, n):
    for variant in ("plain", "all at once, not constant", "s8 source"):
        g = dense(m, k, n, **VARIANTS[variant])
        inputs = random_inputs(g)
        model = gq.compile(g, isa=level, threads=2)
        assert np.array_equal(model(inputs), model.formula(inputs))
        steps = np.abs(model(inputs).astype(int) - gq.reference(g, inputs))
        assert steps.max(initial=0) <= 1


def written_formula(x, zx, sx, w, sw, bias, sy, zy):
    """relu and requantize, as the design writes it."""
    acc = ((x.astype(np.int64) - zx) @ w.astype(np.int64)).astype(np.int32)
    m = (np.float64(np.float32(sx)) * np.asarray(sw, np.float32).astype(np.float64)).astype(np.float32)
    y = np.maximum(acc.astype(np.float32) * m + bias, np.float32(0))
    inverse = np.float32(1 / np.float64(np.float32(sy)))
    return np.clip(np.rint(y * inverse) + np.float32(zy), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("fill", ["random", 0, 255, "ties"])
def test_the_formula_is_the_one_of_the_design(level, fill):
    m, k, n = 37, 100, 50
    x = np.full((m, k), fill if isinstance(fill, int) else 0, np.uint8)
    if fill == "random":
        x = RNG.integers(0, 256, (m, k)).astype(np.uint8)
    w = RNG.choice([-128, 127], (k, n)).astype(np.int8)
    sx, sy, sw, bias = 0.02, 0.11, RNG.uniform(1e-3, 4e-3, n), RNG.standard_normal(n).astype(np.float32)
    if fill == "ties":  # x = 0, w = 1: acc = -zx * k; scales of powers of two give y = i + 1/2
        w[:] = 1
        sx, sy, sw = 0.5, 1.0, np.ones(n)
        bias = (50 * 100 * 0.5 + np.arange(n) + 0.5).astype(np.float32)
    zx, zy = (50, 0) if fill == "ties" else (131, 7)
    g = gq.Graph()
    y = g.matmul(g.dequantize(g.input("x", shape=x.shape, dtype="u8"), scales=[sx], zps=[zx]),
                 g.dequantize(g.constant(w), qtype="per_channel", axis=1, scales=sw), bias)
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[sy], zps=[zy]))
    wanted = written_formula(x, zx, sx, w, sw, bias, sy, zy)
    for threads in (1, 2):
        assert np.array_equal(gq.compile(g, isa=level, threads=threads)(x=x), wanted)
    if fill == "ties":
        assert set(wanted[0, :4]) == {0, 2, 4}


def test_nan_in_the_epilogue_gives_the_zero_point(level):
    g = dense(4, 8, 20, residual=False, activation=None)
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 8), dtype="u8"), scales=[0.1])
    w = g.dequantize(g.constant(np.ones((8, 20), np.int8)), scales=[0.1])
    y = g.multiply(g.matmul(x, w), g.input("f", shape=(20,), dtype="f32"))
    g.output(g.quantize(y, dtype="u8", scales=[0.1], zps=[9]))
    f = np.array([np.nan, np.inf, -np.inf, 1e30] * 5, np.float32)
    x = np.full((4, 8), 200, np.uint8)
    y = gq.compile(g, isa=level)(x=x, f=f)
    assert y[0, :4].tolist() == [9, 255, 0, 255] and np.array_equal(y, gq.reference(g, x=x, f=f))


def test_a_deep_chain_fuses_whole():
    g = dense(8, 16, 24, out="f32", residual=False)
    y = g.outputs[0]
    g.set_outputs([], [])
    for k in range(9):
        y = g.add(g.tanh(y), np.float32(k))
    g.output(g.quantize(y, dtype="s8", scales=[0.1]), name="q")
    model = gq.compile(g, strict=True)
    assert [n.op.name for n in model.graph.nodes if n.op.name != "constant"] == ["partition"]
    inputs = random_inputs(g)
    assert np.array_equal(model(inputs), model.formula(inputs))


def test_two_layers_pass_8_bit_data_between_them():
    g = gq.Graph()
    y = g.input("x", shape=(9, 32), dtype="u8")
    for n in (48, 16):
        w = g.dequantize(g.constant(RNG.integers(-127, 128, (y.shape[1], n)).astype(np.int8)), scales=[0.01])
        y = g.quantize(g.relu(g.matmul(g.dequantize(y, scales=[0.02], zps=[3]), w)), dtype="u8", scales=[0.1], zps=[3])
    g.output(y)
    model = gq.compile(g, strict=True)
    types = [n.output.type for n in model.graph.nodes if n.op.name == "partition"]
    assert [str(t) for t in types] == ["u8[9,48]", "u8[9,16]"]
    inputs = random_inputs(g)
    assert np.array_equal(model(inputs), model.formula(inputs))


def test_sums_beyond_s32_are_refused_with_the_reason():
    def graph(weight):
        g = gq.Graph()
        x = g.dequantize(g.input("x", shape=(1, 70_000), dtype="u8"), scales=[1.0])
        g.output(g.matmul(x, g.dequantize(g.constant(np.full((70_000, 1), weight, np.int8)), scales=[1.0])))
        return g

    model = gq.compile(graph(127))
    assert "beyond s32" in model.explain()
    x = np.full((1, 70_000), 255, np.uint8)
    np.testing.assert_allclose(model(x=x), 255 * 127 * 70_000, rtol=1e-5)
    model = gq.compile(graph(100), strict=True)  # these weights cannot reach it
    assert model(x=x)[0, 0] == np.float32(255 * 100 * 70_000)


@pytest.mark.parametrize("change, reason", [
    (dict(qtype="per_channel", axis=1, scales=[0.1] * 8), "source is quantised per channel"),
    (dict(scales=[0.1]), None),
])
def test_explain_gives_the_reason(change, reason):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 8), dtype="u8"), zps=list(range(8)) if reason else None, **change)
    w = g.dequantize(g.constant(np.ones((8, 3), np.int8)), scales=[0.1])
    g.output(g.relu(g.matmul(x, w)), name="y")
    model = gq.compile(g)
    text = model.explain()
    assert (reason in text and "(0 integer)" in text) if reason else "(1 integer)" in text


def test_open_shapes_are_taken_from_the_arrays():
    g = gq.Graph()
    x = g.input("x", shape=(None, 16), dtype="u8")
    w = g.constant(RNG.integers(-127, 128, (16, 12)).astype(np.int8))
    y = g.matmul(g.dequantize(x, scales=[0.1]), g.dequantize(w, scales=[0.1]))
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[0.5]))
    model = gq.compile(g, strict=True)
    assert "first call" in model.explain()
    for m in (1, 5, 0, 5):
        inputs = {"x": RNG.integers(0, 256, (m, 16)).astype(np.uint8)}
        assert np.array_equal(model(inputs), model.formula(inputs))
        assert model(inputs).shape == (m, 12)
    assert "matmul partition" in model.explain()
    with pytest.raises(InputError, match=r"'x' must be u8\[\?,16\], got shape \[5, 15\]"):
        model(x=np.zeros((5, 15), np.uint8))


def test_passes_run_for_shapes_that_are_called_or_for_a_report():
    g, runs = gq.Graph(), []
    g.output(g.relu(g.input("x", shape=(None,), dtype="f32")))

    def count(graph):
        runs.append(graph.inputs[0].shape)
        return 0

    model = gq.compile(g, passes=[count])
    assert runs == []
    assert "relu" in model.explain() and runs == [(None,)]
    for _ in range(2):
        model(x=np.ones(3, np.float32))
    assert runs == [(None,), (3,)] and model.graph.inputs[0].shape == (3,)
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
    from graphq.kernels.isa import resolve

    for shape, expected in (((16, 64, 32), False), ((512, 1024, 512), parallel)):
        model = gq.compile(dense(*shape, constant=False, zw=(-9, 9)), threads=threads, isa=resolve().name)
        if model.threads == threads:
            assert any(s.parallel for s in model._fixed.runner.plan.steps) == expected


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
    model = gq.compile(dense(3, 5, 7), threads=1, isa="scalar")
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
    with pytest.raises(InputError, match="threads must be a positive int"):
        gq.compile(dense(2, 4, 3), threads=threads)


def test_a_graph_needs_outputs():
    g = gq.Graph("bare")
    g.input("x", shape=(2,), dtype="f32")
    for f in (gq.compile, lambda g: gq.reference(g, x=np.zeros(2, np.float32))):
        with pytest.raises(GraphError, match="graph 'bare' has no outputs"):
            f(g)
    with pytest.raises(GraphError, match="takes a Graph"):
        gq.compile("bare")


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
    text = gq.compile(g).explain()
    outside, misses = text[text.index("not in a partition"):].split("near misses:")
    assert line in outside and line in misses and multiply in text
    assert f"NumPy reference of {line}" in misses
    with pytest.raises(CompileError, match="strict: 1 operations.*matmul"):
        gq.compile(g, strict=True)


def test_counts_in_reports():
    g = gq.Graph()
    g.output(g.relu(g.input("x", shape=(4,), dtype="f32")))
    text = gq.compile(g, threads=1).explain()
    assert "1 partition (0 integer), 0 operations outside" in text and "1 thread\n" in text
    assert "plan: 1 step\n" in text and "(1 block, serial)" in text


def test_transposed_sources_are_copied_where_that_is_faster():
    def steps(level, n):
        g = dense(96, 256, n, transpose_a=True, residual=False)
        with isa.emulate(level):
            model = gq.compile(g, isa=level, threads=1)
        return [line for line in model.explain().splitlines() if "transposing" in line]

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
