"""Models in files: the same numbers when they are loaded, and errors for what is no such file."""
import json
import logging
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from artifacts import mutated, opened, sealed
from dense import dense
from float_networks import attention, convolutional, perceptron

import graphq as gq
from graphq.base.budget import budget
from graphq.kernels.jit import cache, cpu
from graphq.kernels.target import isa
from graphq.model import saved_models
from graphq.model.saved_values import Reader
from graphq.plan.plan import Step


def feeds_of(graph, seed=0, sizes=()):
    rng, sizes = np.random.default_rng(seed), iter(sizes)
    out = {}
    for v in graph.inputs:
        shape = tuple(next(sizes, 4) if d is None else d for d in v.shape)
        if v.dtype.kind == "float":
            out[v.name] = rng.normal(size=shape).astype(v.dtype.numpy)
        else:
            out[v.name] = rng.integers(0, 50, shape).astype(v.dtype.numpy)
    return out


def same(x, y):
    x, y = (z if isinstance(z, dict) else {"": z} for z in (x, y))
    return x.keys() == y.keys() and all(
        x[k].dtype == y[k].dtype and np.array_equal(x[k], y[k], equal_nan=True) for k in x)


def images():
    """A convolution, a depthwise one, a pool, an addition, and what has no kernel."""
    g = gq.Graph("images")
    rng = np.random.default_rng(3)
    x = g.dequantize(g.input("x", dtype="u8", shape=(1, 8, 8, 4)), scales=[0.1], zps=[3])
    w = g.dequantize(g.constant(rng.integers(-99, 99, (3, 3, 4, 8)).astype(np.int8)), scales=[0.02])
    bias = g.constant(np.arange(8, dtype=np.float32))
    y = g.convolution(x, w, bias, strides=1, pads_begin=1, pads_end=1, dilations=1)
    y = g.dequantize(g.quantize(g.relu(y), dtype="u8", scales=[0.05]), scales=[0.05])
    w = g.dequantize(g.constant(rng.integers(-99, 99, (3, 3, 1, 8)).astype(np.int8)), scales=[0.03])
    z = g.convolution(y, w, strides=1, pads_begin=1, pads_end=1, dilations=1, groups=8)
    z = g.dequantize(g.quantize(g.add(z, y), dtype="u8", scales=[0.08]), scales=[0.08])
    pooled = g.max_pool(z, strides=2, pads_begin=0, pads_end=0, kernel=2)
    g.output(g.cum_sum(pooled, axis=1), name="sums")
    g.output(g.quantize(pooled, dtype="u8", scales=[0.08]), name="pooled")
    return g


def tables():
    """A gather that reports indices outside, a transpose, an input that is returned."""
    g = gq.Graph("tables")
    table = g.constant(np.random.default_rng(1).normal(size=(50, 64)).astype(np.float32))
    i = g.input("i", dtype="s64", shape=(3, 5))
    rows = g.gather(table, i, axis=0)
    g.output(g.softmax(g.static_transpose(rows, order=[0, 2, 1]), axis=-1), name="y")
    g.output(i, name="again")
    return g


def of_inputs():
    """A convolution whose weights are an input: they are packed at each call."""
    g = gq.Graph("dynamic weights")
    x = g.dequantize(g.input("x", dtype="u8", shape=(1, 5, 5, 4)), scales=[0.1])
    w = g.dequantize(g.input("w", dtype="s8", shape=(3, 3, 4, 8)), scales=[0.1])
    g.output(g.convolution(x, w, strides=1, pads_begin=0, pads_end=0, dilations=1), name="y")
    return g


def odd_dtypes():
    g = gq.Graph("dtypes")
    x = g.input("x", dtype="bf16", shape=(2, 3))
    c = g.constant(np.array([[np.inf, -0.0, np.nan]], np.float32), dtype="bf16")
    g.output(g.maximum(x, c), name="y")
    g.output(g.constant(np.arange(3, dtype=np.float64)), name="c")
    return g


GRAPHS = {"dense": dense, "images": images, "tables": tables, "dynamic weights": of_inputs, "dtypes": odd_dtypes,
          "convolutional": convolutional, "perceptron": perceptron, "attention": attention}


def graph_of(name):
    made = GRAPHS[name]()
    return made[0] if isinstance(made, tuple) else made


@pytest.mark.parametrize("name", GRAPHS)
def test_round_trip(name, tmp_path):
    g = graph_of(name)
    model = gq.compile(g, threads=2)
    feeds = feeds_of(g)
    want = model(feeds)
    model.save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m")
    assert same(again(feeds), want) and same(again(feeds), want)
    assert again.origin.startswith(f"loaded from {tmp_path / 'm'}") and model.origin == ""
    assert again.inputs == model.inputs and again.outputs == model.outputs and again.names == model.names
    assert repr(again) == repr(model)
    assert gq.to_text(again.source) == gq.to_text(g) and gq.to_text(again.graph) == gq.to_text(model.graph)
    assert again.explain() == f"{again.origin}\n{model.explain()}"
    assert same(again.formula(feeds), want)
    steps = [[s.kernel for s in x.profile(feeds, runs=1).steps] for x in (model, again)]
    assert steps[0] == steps[1]


def test_a_fixed_plan_is_used_as_it_is(tmp_path):
    for name in ("images", "tables", "dense", "dtypes"):
        gq.compile(graph_of(name)).save(tmp_path / name)
        assert gq.load_compiled(tmp_path / name).origin == f"loaded from {tmp_path / name}", name


def check_level(g, level, folder, monkeypatch):
    monkeypatch.delenv("GRAPHQ_ISA", raising=False)  # which a file's own level does not override
    model, feeds = gq.compile(g, isa=level, threads=2), feeds_of(g)
    model.save(folder / "m")
    again = gq.load_compiled(folder / "m")
    assert again.level.name == level and "anew" not in again.origin
    assert same(again(feeds), model(feeds))


def test_every_level(level, tmp_path, monkeypatch):
    check_level(dense(3, 5, 7, residual=False), level, tmp_path, monkeypatch)


def test_kernels_of_images_at_each_width(width, tmp_path, monkeypatch):
    check_level(images(), width, tmp_path, monkeypatch)


def test_constants_stay_in_the_file(tmp_path):
    g = images()
    gq.compile(g).save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m")
    constants = [b.data for b in again.plans.fixed.plan.buffers if b.storage == "constant"]
    assert constants and all(not x.flags.owndata and not x.flags.writeable for x in constants)
    assert all(not n.attrs["value"].flags.writeable for n in again.source.nodes_of(["constant"]))


def test_a_gather_outside_raises_as_before(tmp_path):
    model = gq.compile(tables())
    model.save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m")
    for x in (model, again):
        with pytest.raises(gq.InputError, match="gather.*99"):
            x(i=np.full((3, 5), 99))


def test_all_options_of_a_call(tmp_path):
    g = graph_of("dense")
    model = gq.compile(g)
    model.save(tmp_path / "m")
    again, feeds = gq.load_compiled(tmp_path / "m"), feeds_of(g)
    name, = again.outputs
    out = np.empty(again.outputs[name].dims, again.outputs[name].dtype.numpy)
    assert again(feeds, out=out) is out and same(out, model(feeds))
    with pytest.raises(gq.InputError, match="takes inputs"):
        again({})
    named = next(v.name for n in g.nodes for v in n.outputs if v.name)
    assert same(again(feeds, fetch=[named]), model(feeds, fetch=[named]))
    assert same(pickle.loads(pickle.dumps(again))(feeds), model(feeds))


def test_fewer_threads_use_the_plan_and_more_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    g = graph_of("dense")
    model, feeds = gq.compile(g, threads=2), feeds_of(g)
    model.save(tmp_path / "m")
    one, three = (gq.load_compiled(tmp_path / "m", threads=n) for n in (1, 3))
    assert (one.threads, three.threads) == (1, 3)
    assert "anew" not in one.origin and "for 2 threads, not 3" in three.origin
    assert same(one(feeds), model(feeds)) and same(three(feeds), model(feeds))


def test_rooms_for_copies_of_activations_follow_the_threads(tmp_path, monkeypatch):
    """AMX's kernels copy activations into a room for each piece, and find it by the number of pieces."""
    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    g = dense(m=200, k=130, n=300)
    g = g[0] if isinstance(g, tuple) else g
    with isa.emulate("amx"):
        model, feeds = gq.compile(g, isa="amx", threads=4), feeds_of(g)
        model.save(tmp_path / "m")
        for threads in (1, 2, 3):
            again = gq.load_compiled(tmp_path / "m", isa="amx", threads=threads)
            assert "anew" not in again.origin and same(again(feeds), model(feeds))
            steps = [s for s in again.plans.fixed.plan.steps if isinstance(s, Step) and s.words.get("rooms")]
            assert steps and all(s.words["room_count"] == max(1, s.pieces) <= threads for s in steps)


@pytest.mark.parametrize("name", ["sources", "cpu"])
def test_other_versions_and_machines_compile_anew(name, tmp_path, monkeypatch, caplog):
    g = images()
    model, feeds = gq.compile(g), feeds_of(g)
    with monkeypatch.context() as patch:
        patch.setattr(*((saved_models, "sources") if name == "sources" else (cpu, "describe")), lambda: "another")
        model.save(tmp_path / "m")
    with caplog.at_level(logging.WARNING, "graphq"):
        again = gq.load_compiled(tmp_path / "m")
    reason = "by another version of graphq" if name == "sources" else "on another kind of processor"
    assert reason in again.origin and "compiled anew" in caplog.text and reason in again.explain()
    assert same(again(feeds), model(feeds))


def test_another_level_compiles_anew(tmp_path, monkeypatch):
    monkeypatch.delenv("GRAPHQ_ISA", raising=False)
    g = images()
    model, feeds = gq.compile(g, isa="scalar"), feeds_of(g)
    model.save(tmp_path / "m")
    assert gq.load_compiled(tmp_path / "m").level.name == "scalar"
    best = isa.native()[-1].name
    again = gq.load_compiled(tmp_path / "m", isa=best)
    assert again.level.name == best and (best == "scalar" or "for ISA level scalar, not" in again.origin)
    assert same(again(feeds), model(feeds))
    monkeypatch.setenv("GRAPHQ_ISA", best)
    assert gq.load_compiled(tmp_path / "m").level.name == best
    with pytest.raises(gq.KernelError, match="unknown ISA level"):
        gq.load_compiled(tmp_path / "m", isa="none")


def test_a_file_that_others_can_write_gives_no_code(tmp_path, monkeypatch):
    g = images()
    model, feeds = gq.compile(g), feeds_of(g)
    model.save(tmp_path / "m")
    (tmp_path / "m").chmod(0o666)
    given = []
    monkeypatch.setattr(cache, "provide", given.append)
    again = gq.load_compiled(tmp_path / "m")
    assert "others than this user can write" in again.origin and given == []
    assert same(again(feeds), model(feeds))


@pytest.mark.parametrize("asked", [False, True])
def test_without_a_cache_a_process_compiles_nothing(tmp_path, asked):
    """Nor where the environment asks for the level that the model has."""
    g = images()
    model, feeds = gq.compile(g), feeds_of(g)
    model.save(tmp_path / "m")
    np.savez(tmp_path / "feeds.npz", **feeds)
    code = """
import sys, numpy as np, graphq as gq
from graphq.kernels.jit import modules
model = gq.load_compiled(sys.argv[1])
out = model(dict(np.load(sys.argv[2])))
np.savez(sys.argv[3], **out)
print(modules.statistics().compiled, "numba" in sys.modules, model.origin)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m", tmp_path / "feeds.npz", tmp_path / "out.npz"],
                          capture_output=True, text=True, timeout=120,
                          env={**os.environ, "GRAPHQ_CACHE_DIR": str(tmp_path / "empty"), "OMP_NUM_THREADS": "1",
                               **({"GRAPHQ_ISA": model.level.name} if asked else {})})
    assert done.stdout.split(maxsplit=2) == ["0", "False", f"loaded from {tmp_path / 'm'}\n"], done.stdout + done.stderr
    assert same(dict(np.load(tmp_path / "out.npz")), model(feeds))


def test_a_graph_in_stages_and_one_with_a_constant_input(tmp_path):
    g = gq.Graph()
    x, k = g.input("x", dtype="f32", shape=(6,)), g.input("k", dtype="f32", shape=(6,), property="constant")
    g.output(g.add(x, k), name="y")
    h = gq.Graph()
    boxes = h.input("boxes", dtype="f32", shape=(1, 6, 4))
    scores = h.input("scores", dtype="f32", shape=(1, 1, 6))
    chosen = h.non_max_suppression(boxes, scores, h.constant(np.array(3, np.int64)))
    h.output(h.relu(h.cast(chosen, dtype="f32")), name="y")
    for file, graph in ((tmp_path / "g", g), (tmp_path / "h", h)):
        model, feeds = gq.compile(graph), feeds_of(graph)
        model.save(file)
        assert same(gq.load_compiled(file)(feeds), model(feeds))


def test_passes_of_the_pipeline_alone_can_be_saved(tmp_path):
    g = graph_of("dense")
    gq.compile(g, passes=gq.passes.PIPELINE[:3]).save(tmp_path / "m")
    assert len(gq.load_compiled(tmp_path / "m").options.passes) == 3
    pickle.loads(pickle.dumps(gq.compile(g))).save(tmp_path / "all")
    assert gq.load_compiled(tmp_path / "all").options.pipeline == gq.passes.PIPELINE

    def mine(graph):
        return 0

    with pytest.raises(gq.GraphError, match="PRECISIONS, not mine"):
        gq.compile(g, passes=[mine]).save(tmp_path / "m")


def test_a_model_that_was_loaded_can_be_saved(tmp_path):
    g = images()
    model, feeds = gq.compile(g), feeds_of(g)
    model.save(tmp_path / "a")
    gq.load_compiled(tmp_path / "a").save(tmp_path / "b")
    assert same(gq.load_compiled(tmp_path / "b")(feeds), model(feeds))


def test_what_is_saved_again_is_the_same_file(tmp_path):
    """Graph and plan share arrays before and after."""
    for name in ("images", "dtypes", "perceptron", "attention"):
        a, b, c = (tmp_path / f"{name}.{k}" for k in range(3))
        gq.compile(graph_of(name)).save(a)
        gq.load_compiled(a).save(b)
        gq.load_compiled(b).save(c)
        assert a.stat().st_size == b.stat().st_size, name
        assert b.read_bytes() == c.read_bytes(), name


def test_threads_load_at_a_time(tmp_path):
    g = images()
    model, feeds = gq.compile(g), feeds_of(g)
    model.save(tmp_path / "m")
    want, right = model(feeds), []

    def use():
        right.append(same(gq.load_compiled(tmp_path / "m")(feeds), want))

    threads = [threading.Thread(target=use) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert right == [True] * 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a model's file."""
    path = tmp_path_factory.mktemp("whole") / "m"
    gq.compile(images()).save(path)
    return path.read_bytes()


def test_flipped_bytes_are_refused(whole, tmp_path):
    for at in np.linspace(0, len(whole) - 1, 200).astype(int):
        bad = bytearray(whole)
        bad[at] ^= 255
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(gq.ParseError):
            gq.load_compiled(tmp_path / "bad")


def with_options(whole, folder, **options):
    """A file of these options, whose hashes fit."""
    (folder / "m").write_bytes(whole)
    build, sections = opened(folder / "m")
    (folder / "m").write_bytes(sealed({**build, "options": {**build["options"], **options}}, sections))
    return folder / "m"


@pytest.mark.parametrize("options", [
    {"threads": 0}, {"threads": -5}, {"threads": 1 << 40}, {"threads": True}, {"threads": "2"}, {"threads": 2.0},
    {"memory": 0}, {"memory": -1}, {"memory": "1"}, {"memory": True}, {"strict": 1}, {"cache": None}, {"level": None},
    {"emulated": 0}, {"passes": ["none"]}, {"passes": "fuse"}, {"passes": {}}, {"passes": [["fuse"]]}], ids=str)
def test_options_of_a_file_are_checked_and_those_of_others_do_not_count(options, whole, tmp_path):
    path = with_options(whole, tmp_path, **options)
    with pytest.raises(gq.ParseError, match="m: "):
        gq.load_compiled(path)
    path.chmod(0o666)
    model = gq.load_compiled(path)
    assert model.options == gq.compile(images()).options


def test_a_file_of_others_has_compiles_defaults(whole, tmp_path):
    path = with_options(whole, tmp_path, threads=1, memory=1 << 40, strict=True, cache=False, level="scalar", passes=[])
    path.chmod(0o666)
    assert gq.load_compiled(path).options == gq.compile(images()).options
    assert gq.load_compiled(path, threads=1, isa="scalar").options == gq.compile(images(), threads=1,
                                                                                  isa="scalar").options


def test_a_file_of_others_has_no_partitions(tmp_path):
    """Nobody has checked that their kernels fit what they say."""
    gq.compile(gq.compile(graph_of("dense")).graph).save(tmp_path / "m")
    assert gq.load_compiled(tmp_path / "m").source.nodes_of(["partition"])
    (tmp_path / "m").chmod(0o666)
    with pytest.raises(gq.ParseError, match="a partition, in a file that others than this user can write to"):
        gq.load_compiled(tmp_path / "m")


def test_bytes_that_many_places_name_are_in_memory_once():
    reader = Reader(lambda number: np.zeros(1000, np.uint8))
    many = reader.of(["list", *[["bytes", 0]] * 100])
    assert len(many) == 100 and len(set(map(id, many))) == 1 and many[0] == bytes(1000)


def test_json_is_read_within_the_limit(whole, tmp_path):
    (tmp_path / "m").write_bytes(whole)
    model = gq.load_compiled(tmp_path / "m")
    with budget(10_000), pytest.raises(gq.CompileError, match="the JSON of the file would take"):
        assert model.source


BYTES = "does not take .* bytes"


@pytest.mark.parametrize("change, message", [
    (lambda t, dims, n: [t, [*dims, 2], n], BYTES), (lambda t, dims, n: [t, [0], n], BYTES),
    (lambda t, dims, n: [t, [-1, *dims], n], BYTES), (lambda t, dims, n: [t, [-1, -1, *dims], n], BYTES),
    (lambda t, dims, n: [t, [True, *dims], n], BYTES), (lambda t, dims, n: [t, [1.0, *dims], n], BYTES),
    (lambda t, dims, n: [t, [*dims, "1"], n], ""), (lambda t, dims, n: ["f64", dims, n], BYTES),
    (lambda t, dims, n: ["text", dims, n], ""), (lambda t, dims, n: [t, dims, -1], ""),
    (lambda t, dims, n: [t, dims, 10**6], ""), (lambda t, dims, n: [t, dims], ""), (lambda t, dims, n: 3, "")],
    ids=range(13))
def test_arrays_fit_their_sections(change, message, whole, tmp_path):
    (tmp_path / "m").write_bytes(whole)
    build, sections = opened(tmp_path / "m")
    build = {**build, "arrays": [change(*x) for x in build["arrays"]]}
    (tmp_path / "m").write_bytes(sealed(build, sections))
    with pytest.raises(gq.ParseError, match=f"m: .*{message}") as error:
        _ = gq.load_compiled(tmp_path / "m").source
    assert str(error.value).count(str(tmp_path / "m")) == 1


@pytest.mark.parametrize("part", ["index", "graph", "plans"])
def test_hostile_files_are_refused_or_harmless(part, whole, tmp_path, monkeypatch):
    """Whose hashes fit. Plans are read, and not run, as the file would have to be this user's own."""
    (tmp_path / "m").write_bytes(whole)
    build, sections = opened(tmp_path / "m")
    rng = np.random.default_rng(5)
    outcomes = set()
    monkeypatch.setattr(cache, "provide", lambda codes: None)
    for _ in range(150):
        changed, parts = build, list(sections)
        if part == "index":
            name = sorted(build)[int(rng.integers(len(build)))]
            changed = {**build, name: mutated(build[name], rng)}
        else:
            number = build["graph"] if part == "graph" else build["plans"][0][-1]
            parts[number] = json.dumps(mutated(json.loads(parts[number]), rng)).encode()
        (tmp_path / "bad").write_bytes(sealed(changed, parts))
        if part == "graph":
            (tmp_path / "bad").chmod(0o666)
        try:
            gq.load_compiled(tmp_path / "bad")
            outcomes.add("loaded")
        except gq.GraphqError as error:
            assert str(error).count(str(tmp_path / "bad")) <= 1
            outcomes.add("refused")
    assert "refused" in outcomes and outcomes <= {"refused", "loaded"}
