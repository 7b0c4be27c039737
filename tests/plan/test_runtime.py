"""Calling a compiled graph: arguments, out=, threads at the same time, the arena, forks."""
import subprocess
import sys
import threading

import numpy as np
import pytest
from levels import at_each_width

import graphq as gq
from graphq.errors import InputError
from graphq.ir import TensorType
from graphq.plan.plan import Buffer, PythonStep, find_lives, plan_arena
from graphq.testing import random_inputs


@pytest.fixture(scope="module")
def model():
    g = gq.Graph("two")
    x = g.dequantize(g.input("x", shape=(64, 32), dtype="u8"), scales=[0.1], zps=[9])
    w = g.dequantize(g.constant(np.random.default_rng(0).integers(-127, 128, (32, 48)).astype(np.int8)), scales=[0.1])
    z = g.input("z", shape=(48,), dtype="f32")
    g.output(g.quantize(g.add(g.matmul(x, w), z), dtype="u8", scales=[2.0], zps=[100]), name="q")
    g.output(g.softmax(z, axis=0), name="s")
    return gq.compile(g, threads=2)


@pytest.fixture
def inputs(model):
    return random_inputs(model.source)


def test_outputs_come_as_a_dict_in_order(model, inputs):
    out = model(**inputs)
    assert list(out) == ["q", "s"] and out["q"].dtype == np.uint8
    assert np.array_equal(out["q"], model(inputs)["q"])


@pytest.mark.parametrize("change, message", [
    (dict(x=None), r"missing \['x'\]"),
    (dict(y=np.zeros(3)), r"unexpected \['y'\]"),
    (dict(x=np.zeros((64, 31), np.uint8)), r"'x' must be u8\[64,32\], got shape \[64, 31\]"),
    (dict(x=np.zeros((1, 64, 32), np.uint8)), r"'x' must be u8\[64,32\], got shape"),
    (dict(x=np.zeros((64, 32), np.int8)), r"'x' must be u8\[64,32\], got dtype int8"),
    (dict(z=np.zeros(48)), r"'z' must be f32\[48\], got dtype float64"),
    (dict(z=np.zeros(48, ">f4")), r"'z' must be f32\[48\], got dtype >f4"),
    (dict(z="text"), r"'z' must be f32\[48\], got dtype"),
    (dict(z=[[1], [2, 3]]), "'z'"),
])
def test_bad_arguments_are_named_before_anything_runs(model, inputs, change, message):
    given = {k: v for k, v in {**inputs, **change}.items() if v is not None}
    for run in (model, lambda given: gq.reference(model.source, given)):
        with pytest.raises(InputError, match=message):
            run(given)


def test_strided_reversed_unaligned_and_readonly_arrays_are_accepted(model, inputs):
    wanted = model(inputs)
    wide = np.zeros((64, 64), np.uint8)
    wide[:, ::2] = inputs["x"]
    odd = np.zeros(48 * 4 + 1, np.uint8)[1:].view(np.float32)
    odd[:] = inputs["z"]
    readonly = inputs["x"].copy()
    readonly.flags.writeable = False
    for change in (dict(x=wide[:, ::2]), dict(x=np.asfortranarray(inputs["x"])), dict(x=inputs["x"][::-1][::-1]),
                   dict(z=odd), dict(x=readonly)):
        out = model({**inputs, **change})
        assert all(np.array_equal(out[k], wanted[k]) for k in wanted)


def test_out_takes_the_results(model, inputs):
    wanted = model(inputs)
    out = {"q": np.zeros((64, 48), np.uint8), "s": np.zeros(48, np.float32)}
    got = model(inputs, out=out)
    assert got["q"] is out["q"] and all(np.array_equal(out[k], wanted[k]) for k in wanted)


@pytest.mark.parametrize("out, message", [
    (np.zeros(3), "must be a mapping of the outputs"),
    ({"q": np.zeros((64, 48), np.uint8)}, "must hold the outputs"),
    ({"q": np.zeros((64, 48), np.uint8), "s": [0.0] * 48}, "'s' must be an array"),
    ({"q": np.zeros((64, 48), np.int8), "s": np.zeros(48, np.float32)}, r"out 'q' must be u8\[64,48\]"),
    ({"q": np.zeros((48, 64), np.uint8), "s": np.zeros(48, np.float32)}, r"out 'q' must be u8\[64,48\]"),
    ({"q": np.zeros((64, 96), np.uint8)[:, ::2], "s": np.zeros(48, np.float32)}, "'q' must be C-contiguous"),
])
def test_a_bad_out_is_refused(model, inputs, out, message):
    with pytest.raises(InputError, match=message):
        model(inputs, out=out)


def test_out_may_not_overlap_an_input(model, inputs):
    with pytest.raises(InputError, match="'s' shares memory"):
        model(inputs, out={"q": np.zeros((64, 48), np.uint8), "s": inputs["z"]})
    readonly = np.zeros(48, np.float32)
    readonly.flags.writeable = False
    with pytest.raises(InputError, match="'s' must be C-contiguous, aligned and writeable"):
        model(inputs, out={"q": np.zeros((64, 48), np.uint8), "s": readonly})


@pytest.mark.parametrize("start", [0, 191, 3071])
def test_two_outs_may_not_overlap(model, inputs, start):
    """Not even in the last byte of one."""
    room = np.zeros(64 * 48 + 192, np.uint8)
    q, s = room[:64 * 48].reshape(64, 48), room[start // 4 * 4:start // 4 * 4 + 192].view(np.float32)
    assert np.may_share_memory(q, s)
    with pytest.raises(InputError, match="'s' shares memory with an input or another output"):
        model(inputs, out={"q": q, "s": s})
    beside = room[64 * 48:].view(np.float32)
    assert model(inputs, out={"q": q, "s": beside})["s"] is beside


def test_an_input_named_out_goes_into_the_mapping():
    g = gq.Graph()
    g.output(g.relu(g.input("out", shape=(2,), dtype="f32")), name="y")
    assert gq.compile(g)({"out": np.array([-1, 1], np.float32)}).tolist() == [0, 1]


def test_many_threads_call_one_model(model):
    cases = [random_inputs(model.source, seed) for seed in range(8)]
    wanted = [model(c)["q"] for c in cases]
    wrong = []

    def work(k):
        for _ in range(50):
            if not np.array_equal(model(cases[k])["q"], wanted[k]):
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    assert wrong == []


def run_python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300)


FORK = """
import os, sys, warnings
import numpy as np, graphq as gq
warnings.simplefilter("ignore")
g = gq.Graph()
g.output(g.gelu(g.input("x", shape=(300_000,), dtype="f32")))
x = np.ones(300_000, np.float32)
model, serial = gq.compile(g, threads=2), gq.compile(g, threads=1)
if model.threads < 2: print("one core"); sys.exit(0)
wanted = serial(x=x)
if len(sys.argv) > 1: model(x=x)
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        equal = all(np.array_equal(model(x=x), wanted) for _ in range(20))
        os._exit(0 if equal else 1)
    children.append(pid)
print("children", *(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
print("parent", np.array_equal(model(x=x), wanted))
"""


def test_forked_children_give_the_same_results():
    """Whether helpers can run there (test_team.py) or not."""
    for arguments in ([], ["run first"]):
        done = run_python(FORK, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n")[0] in ("children 0 0 0", "one core")


@pytest.mark.parametrize("skipped, level", at_each_width([0, 1, 16, 48]), indirect=["level"])
def test_inputs_may_lie_anywhere(level, skipped):
    g = gq.Graph()
    w = np.random.default_rng(0).integers(-127, 128, (128, 200)).astype(np.int8)
    x, y = (g.dequantize(g.input(n, shape=(70, 128), dtype="u8"), scales=[0.1], zps=[3]) for n in "xy")
    for value in (x, y):
        product = g.matmul(value, g.dequantize(g.constant(w), scales=[0.01]))
        g.output(g.quantize(product, dtype="u8", scales=[2.0], zps=[128]))
    model, feeds = gq.compile(g, isa=level, threads=2), random_inputs(g)
    room = np.zeros(70 * 128 + 128, np.uint8)
    begin = -room.ctypes.data % 64 + skipped
    moved = room[begin:begin + 70 * 128].reshape(70, 128)
    moved[:] = feeds["x"]
    for case in ({"x": moved, "y": feeds["y"]}, {"x": moved, "y": moved}, feeds):
        want = model.formula(case)
        assert all(np.array_equal(got, want[name]) for name, got in model(case).items())


def step(inputs, outputs):
    return PythonStep("test", lambda *a: a, tuple(inputs), tuple(outputs))


def arena_of(buffers, steps):
    _, clashes = find_lives([b for b in (*s.inputs, *s.outputs) if buffers[b].storage == "arena"] for s in steps)
    return plan_arena({b: buffers[b].nbytes for b in clashes}, clashes)


def test_arena_shares_space_between_disjoint_lifetimes():
    t = TensorType(gq.dtypes.u8, (100,))
    buffers = [Buffer("input", 100, t), *(Buffer("arena", n, t) for n in (100, 100, 100, 200))]
    steps = [step([0], [1]), step([1], [2]), step([2], [3]), step([3], [4]), step([4], [])]
    offsets, size = arena_of(buffers, steps)
    assert set(offsets) == {1, 2, 3, 4} and all(o % 64 == 0 for o in offsets.values())
    assert size == 256 + 128
    for a, b in ((1, 2), (2, 3), (3, 4)):  # alive at the same step
        ends = [(offsets[k], offsets[k] + buffers[k].nbytes) for k in (a, b)]
        assert ends[0][1] <= ends[1][0] or ends[1][1] <= ends[0][0]


def test_arena_lifetimes_at_random():
    rng = np.random.default_rng(3)
    for _ in range(50):
        count = int(rng.integers(2, 12))
        buffers = [Buffer("arena", int(rng.integers(0, 1000))) for _ in range(count)]
        steps = [step(rng.choice(count, 2), rng.choice(count, 1)) for _ in range(15)]
        offsets, size = arena_of(buffers, steps)
        life = {}
        for k, s in enumerate(steps):
            for b in (*s.inputs, *s.outputs):
                life.setdefault(int(b), []).append(k)
        for a in life:
            assert offsets[a] + buffers[a].nbytes <= size
            for b in life:
                if a < b and min(life[a]) <= max(life[b]) and min(life[b]) <= max(life[a]):
                    ends = [(offsets[k], offsets[k] + buffers[k].nbytes) for k in (a, b)]
                    assert ends[0][1] <= ends[1][0] or ends[1][1] <= ends[0][0]


def test_a_thread_of_little_stack_runs_a_convolution(level):
    g = gq.Graph()
    w = np.random.default_rng(0).integers(-128, 128, (80, 64, 3, 3)).astype(np.int8)
    x = g.dequantize(g.input("x", shape=(1, 64, 14, 14), dtype="u8"), scales=[0.1], zps=[3])
    y = g.convolution(x, g.dequantize(g.constant(w), scales=[0.01]), strides=[1, 1], pads_begin=[1, 1],
                      pads_end=[1, 1], dilations=[1, 1], data_format="NCX", weights_format="OIX")
    g.output(g.quantize(y, dtype="u8", scales=[2.0], zps=[128]))
    model, feeds, got = gq.compile(g, isa=level), random_inputs(g), []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: got.append(model(feeds)))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert np.array_equal(got[0], model(feeds))


@pytest.mark.parametrize("rows", [4, 4096], ids=["the reference", "the kernel"])
@pytest.mark.parametrize("wrong", ["first", "second"])
def test_errors_of_data_name_the_node_and_are_those_of_inputs(rows, wrong):
    g = gq.Graph()
    table = g.input("table", dtype="f32", shape=(10, 16))
    for name in ("first", "second"):
        g.output(g.gather(table, g.input(f"i_{name}", dtype="s64", shape=(rows,)), name=name))
    feeds = {"table": np.zeros((10, 16), np.float32), "i_first": np.zeros(rows, np.int64),
             "i_second": np.zeros(rows, np.int64)}
    feeds[f"i_{wrong}"][-1] = 10
    model = gq.compile(g)
    for run in (model, lambda x: gq.reference(g, x)):
        with pytest.raises(gq.InputError, match=rf"%{wrong} = gather\(table, i_{wrong}\).*\[-10, 9\].*got 10"):
            run(feeds)
    feeds[f"i_{wrong}"][-1] = 0
    model(feeds)


@pytest.mark.parametrize("op", ["gather_elements", "gather_nd", "scatter_elements", "arithmetic"])
def test_data_that_an_operation_refuses(op):
    g = gq.Graph()
    x, i = g.input("x", dtype="s64", shape=(3, 4)), g.input("i", dtype="s64", shape=(2, 4) if "elem" in op else (3, 1))
    y = {"gather_elements": lambda: g.gather_elements(x, i), "gather_nd": lambda: g.gather_nd(x, i),
         "scatter_elements": lambda: g.scatter_elements(x, i, i), "arithmetic": lambda: g.arithmetic(
             x, i, function="divide")}[op]()
    g.output(y, name="y")
    feeds = {"x": np.zeros((3, 4), np.int64), "i": np.full(i.type.dims, 0 if op == "arithmetic" else 7)}
    for run in (gq.compile(g), lambda x: gq.reference(g, x)):
        with pytest.raises(gq.InputError, match=rf"%y = {op}"):
            run(feeds)


def test_a_reference_without_memory_names_its_node(monkeypatch):
    g = gq.Graph()
    g.output(g.cum_sum(g.input("x", dtype="f32", shape=(3,)), axis=0), name="y")
    model = gq.compile(g)

    def refuse(*args, **options):
        raise MemoryError

    monkeypatch.setattr(np, "cumsum", refuse)
    for run in (model, lambda x: gq.reference(g, x)):
        with pytest.raises(gq.GraphError, match=r"%y = cum_sum\(x.*not enough memory"):
            run({"x": np.zeros(3, np.float32)})
    monkeypatch.undo()
    assert model(np.ones(3, np.float32)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("kinds", ["kp", "pk", "kpk", "kkpkk", "pkpk", "kppkpkk"])
def test_steps_of_kernels_and_of_python_take_turns(kinds):
    """Each step reads the result of the one before; Python reads a view of other axes, and may lack an operand."""
    g = gq.Graph(kinds)
    y = x = g.input("x", dtype="f32", shape=(2, 64))
    for n, kind in enumerate(kinds):
        y = g.static_reshape(g.cum_sum(g.static_reshape(y, shape=[128]), axis=0), shape=[2, 64]) if kind == "p" \
            else g.prelu(g.add(y, np.full((2, 64), n - 3, np.float32)), np.full(64, 0.5, np.float32))
    g.output(y, name="y")
    g.output(g.relu(x), name="z")
    model = gq.compile(g)
    for seed in range(2):
        feeds = {"x": np.random.default_rng(seed).integers(-4, 5, (2, 64)).astype(np.float32)}
        want = gq.reference(g, feeds)
        got = model(feeds)
        np.testing.assert_allclose(got["y"], want["y"], rtol=1e-6)
        np.testing.assert_array_equal(got["z"], want["z"])
