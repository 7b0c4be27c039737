"""The limit of memory: what counts, what it refuses, and the option that raises it."""
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest

import graphq as gq
from graphq.base import budget
from graphq.base.sizes import Trace
from graphq.errors import CompileError
from graphq.ir.op import lookup
from graphq.ops.conv import conv_transpose
from graphq.ops.window import padded as padded_source
from graphq.ops.window import window_counts

MIB = 1 << 20


def padded(pads=(1 << 20, 0), stride=1):
    """A convolution over an image of so much padding."""
    g = gq.Graph()
    x = g.input("x", shape=(1, 8, 1), dtype="f32")
    y = g.convolution(x, np.ones((2, 1, 1), np.float32), strides=[stride], pads_begin=pads[:1], pads_end=pads[1:],
                      dilations=[1])
    g.output(y, name="y")
    return g


def weighted(n=512, dtype="f32"):
    """A matmul with weights of n x n."""
    g = gq.Graph()
    x = g.input("x", shape=(4, n), dtype=dtype)
    g.output(g.matmul(x, np.zeros((n, n), np.float32)), name="y")
    return g


def test_what_is_reserved_stays_counted():
    with budget.budget(100):
        budget.reserve(60, "a table")
        budget.expect(40, "another")
        budget.reserve(40, "another")
        with pytest.raises(CompileError, match="^a third would take .* more than the limit of .*memory=BYTES"):
            budget.reserve(1, "a third")
    with budget.budget(100):
        budget.reserve(100, "a table")


def test_what_lives_for_a_moment_is_not_counted():
    with budget.budget(100):
        budget.expect(100, "a copy")
        budget.expect(100, "a copy")
        with pytest.raises(CompileError, match="a copy"):
            budget.expect(101, "a copy")


def test_an_inner_block_counts_against_the_outer_one():
    with budget.budget(100):
        with budget.budget(1000):
            budget.reserve(60, "a table")
        with pytest.raises(CompileError):
            budget.reserve(60, "a table")


def test_what_a_failed_block_reserved_is_free_again():
    """As where a plan for sizes of the same class does not fit, but one for the sizes of the call does."""
    with budget.budget(100):
        budget.reserve(20, "a table")
        with pytest.raises(CompileError), budget.budget(None):
            budget.reserve(60, "a table")
            budget.reserve(60, "a table")
        budget.reserve(80, "a table")


def test_what_depends_on_open_sizes_counts_for_the_sizes_that_are_assumed():
    size = Trace().leaf(90, "x.0")
    with budget.budget(100):
        budget.expect(2 * size, "a result, which the plan's runs expect")
        budget.reserve(size, "a table")
        with pytest.raises(CompileError, match="a table would take"):
            budget.reserve(size, "a table")


def test_a_recount_frees_what_is_gone():
    with budget.budget(100):
        budget.reserve(90, "a table")
        budget.recount(lambda: 20)
        budget.reserve(80, "a table")
        with pytest.raises(CompileError):
            budget.reserve(1, "a table")


def test_a_recount_asks_only_when_something_was_reserved():
    with budget.budget(100):
        budget.recount(lambda: pytest.fail("asked"))
        budget.reserve(10, "a table")
        budget.recount(lambda: 10)
        budget.recount(lambda: pytest.fail("asked"))


def test_outside_of_a_block_the_default_is_the_limit():
    assert 64 * MIB < budget.default_limit() < 1 << 45
    budget.reserve(budget.default_limit(), "a table")
    with pytest.raises(CompileError):
        budget.reserve(budget.default_limit() + 1, "a table")


def test_a_control_group_has_less_than_the_machine(tmp_path, monkeypatch):
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text(f"{200 * MIB}\n")
    monkeypatch.setattr(budget, "_CGROUP", (str(tmp_path / "max"), str(tmp_path / "none"), str(tmp_path / "limit")))
    assert budget.default_limit() == 100 * MIB


@pytest.mark.parametrize("path", ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"])
def test_control_groups_of_both_versions(monkeypatch, path):
    def read(self):
        if str(self) == path:
            return f"{200 * MIB}\n"
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", read)
    assert budget.default_limit() == 100 * MIB


def test_a_limited_address_space(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (80 * MIB, resource.RLIM_INFINITY)[
        0 if kind == resource.RLIMIT_AS else 1:][:1] * 2)
    assert budget.default_limit() == 20 * MIB


@pytest.mark.parametrize("memory", [0, -1, 1.5, True, "1G"])
def test_bad_options(memory):
    with pytest.raises(CompileError, match="memory must be a positive number of bytes"):
        gq.compile(padded(), memory=memory)


def test_the_option_of_compile():
    x = np.zeros((1, 8, 1), np.float32)
    with pytest.raises(CompileError, match=r"the tables of \[1048583\] windows of \[2\] elements would take 64 MiB"):
        gq.compile(padded(), memory=50 * MIB)
    model = gq.compile(padded(), memory=200 * MIB)
    assert model(x=x).shape == (1, (1 << 20) + 7, 1)
    assert pickle.loads(pickle.dumps(model)).options.memory == 200 * MIB
    assert model.formula(x=x).shape == (1, (1 << 20) + 7, 1)


def test_the_error_names_the_node():
    with pytest.raises(CompileError, match=r"convolution\(x, .*f32\[1,1048583,1\]"):
        gq.compile(padded(), memory=50 * MIB)


def test_weights_count_as_they_are_and_packed():
    with pytest.raises(CompileError, match="packed weights and tables"):
        gq.compile(weighted(), memory=3 * MIB // 2)
    gq.compile(weighted(), memory=3 * MIB)


def test_constants_count_once_however_often_the_graph_uses_them():
    g, w = gq.Graph(), np.zeros((256, 1024), np.float32)  # 1 MiB
    x = g.input("x", shape=(256, 1024), dtype="f32")
    c = g.constant(w)
    for _ in range(5):
        x = g.add(x, c)
    g.output(x, name="y")
    gq.compile(g, memory=5 * MIB)


def test_what_lies_between_steps_counts():
    g = gq.Graph()
    x = g.input("x", shape=(1 << 20, 1), dtype="f32")
    y = g.softmax(g.matmul(x, np.ones((1, 16), np.float32)), axis=-1)
    for value in (1, 2):  # of one reader strips of rows would lie there
        g.output(g.matmul(y, np.full((16, 1), value, np.float32)))
    with pytest.raises(CompileError, match="would take 64 MiB"):
        gq.compile(g, memory=60 * MIB)


def test_results_count():
    g = gq.Graph()
    x = g.input("x", shape=(1 << 14, 1), dtype="f32")
    g.output(g.add(x, g.static_transpose(x, order=[1, 0])), name="y")
    with pytest.raises(CompileError, match="the result would take 1 GiB"):
        gq.compile(g, memory=600 * MIB)


def test_open_shapes_are_compiled_within_the_limit_each_time():
    g = gq.Graph()
    x = g.input("x", shape=(None, 1), dtype="f32")
    g.output(g.add(x, g.static_transpose(x, order=[1, 0])), name="y")
    model = gq.compile(g, memory=MIB)
    assert model(x=np.ones((64, 1), np.float32)).sum() == 2 * 64 * 64
    for _ in range(2):
        with pytest.raises(CompileError, match="the result would take 4 MiB"):
            model(x=np.ones((1024, 1), np.float32))
    for n in range(1, 100):
        model(x=np.ones((n, 1), np.float32))


def test_folded_constants_count():
    g = gq.Graph()
    x = g.input("x", shape=(512, 512), dtype="f32")
    c = g.add(g.constant(np.zeros((512, 1), np.float32)), g.constant(np.zeros((1, 512), np.float32)))
    g.output(g.add(x, c), name="y")
    with pytest.raises(CompileError, match="the result of add on constants would take 1 MiB"):
        gq.compile(g, memory=MIB // 2)


def test_a_reference_does_not_pad_beyond_the_default_either():
    with pytest.raises(CompileError, match="padded by"):
        gq.reference(padded((1 << 40, 0), stride=1 << 24), x=np.zeros((1, 8, 1), np.float32))


@pytest.mark.parametrize("make,nbytes", [
    (lambda x: padded_source(x, [(3, 4), (0, 1)]), 2 * 3 * 12 * 7 * 4),
    (lambda x: padded_source(x.astype(np.float64), [(0, 0), (0, 0)]), 2 * 3 * 5 * 6 * 8),
    (lambda x: window_counts(5, 2, 1, (0, 0), 4, inside=True), 32 * 4),
    (lambda x: conv_transpose.reference(x, np.ones((3, 4, 2, 1), np.float32), strides=[2, 1], pads_begin=[0, 0],
                                        pads_end=[0, 0], dilations=[1, 1], data_format="NCX", weights_format="IOX"),
     8 * 2 * 4 * 10 * 6)])
def test_what_references_expect_is_what_they_make_to_the_byte(make, nbytes):
    x = np.ones((2, 3, 5, 6), np.float32)
    with budget.budget(nbytes):
        make(x)
    with budget.budget(nbytes - 1), pytest.raises(CompileError):
        make(x)


def test_all_stages_have_the_limit():
    """Shapes that depend on data cut a graph into parts, compiled when they are reached."""
    onnx = pytest.importorskip("onnx")
    g = gq.load_onnx(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[n] x) => (float[p, m] y) { i = NonZero (x)  j = Transpose (i)  f = Cast <to = 1> (j)
        h = Cast <to = 1> (i)  y = Add (f, h) }"""))
    model = gq.compile(g, memory=MIB)
    assert model(x=np.ones(100, np.float32)).shape == (100, 100)
    with pytest.raises(CompileError, match="the limit of 1 MiB"):
        model(x=np.ones(1000, np.float32))


def doubling(trips, states=1):
    """A loop whose state, or else the values that it keeps, grow with each turn."""
    body = gq.Graph("body")
    body.input("k", dtype="s64", shape=())
    going, x = body.input("going", dtype="boolean", shape=()), body.input("v", dtype="f32", shape=(None,))
    body.set_outputs([going, body.concat(x, x, axis=0)] if states else [going, body.relu(x)], ["go", "w"])
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None,))
    (y,) = g.add_node(lookup("loop"), [g.add_constant(np.array(trips)), g.add_constant(np.array(True)), x],
                      {"body": body, "states": states})
    g.output(y, name="y")
    return g


@pytest.mark.parametrize("states", [0, 1])
def test_a_loop_whose_values_grow_at_run_time_is_stopped(states, monkeypatch):
    x = np.ones(1 << 18, np.float32)
    turns = 3
    assert gq.reference(doubling(turns, states), x=x).size == (x.size << turns if states else x.size * turns)
    monkeypatch.setattr(budget, "default_limit", lambda: 64 * MIB)
    for run in (lambda g: gq.reference(g, x=x), lambda g: gq.compile(g)(x=x)):
        with pytest.raises(CompileError, match="states and values of a loop after .* iterations.*half of the memory"):
            run(doubling(1 << 40, states))
