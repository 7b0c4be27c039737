"""`model.bind`: arrays are checked once, and each call reads the numbers that they then have."""
import threading

import numpy as np
import onnx.parser
import pytest

import graphq as gq
from graphq.errors import InputError

RNG = np.random.default_rng(4)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def dense(rows):
    g = gq.Graph("dense")
    x = g.input("x", shape=(rows, 24), dtype="f32")
    g.output(g.softmax(g.relu(g.matmul(x, floats(24, 40)))), name="y")
    return g


@pytest.mark.parametrize("rows", [7, None])
@pytest.mark.parametrize("threads", [1, 2])
def test_equals_calls(rows, threads):
    model = gq.compile(dense(rows), threads=threads)
    memory = np.empty(4 * 7 * 24 + 4, np.uint8)
    for x in (np.empty((7, 24), np.float32), memory[4:].view(np.float32).reshape(7, 24)):  # not at a line
        y = np.empty((7, 40), np.float32)
        run = model.bind(x, out=y)
        for _ in range(3):
            x[:] = floats(7, 24)
            run()
            np.testing.assert_array_equal(y, model(x=x))


def test_a_branch_is_taken_anew():
    graph = gq.load_onnx(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        net (bool c, float[3] x) => (float[3] y) { y = If(c) <
            then_branch = a () => (float[3] p) { p = Neg(x) }, else_branch = b () => (float[3] q) { q = Abs(x) }> }"""))
    c, x, y = np.array(True), floats(3), np.empty(3, np.float32)
    run = gq.compile(graph).bind({"c": c, "x": x}, out=y)
    for chosen, want in ((True, -x), (False, np.abs(x))):
        c[...] = chosen
        run()
        np.testing.assert_array_equal(y, want)


def test_a_wrong_number_raises_and_the_next_call_runs():
    g = gq.Graph()
    x, at = g.input("x", shape=(5, 4), dtype="f32"), g.input("at", shape=(2,), dtype="s64")
    g.output(g.gather(x, at), name="y")
    table, places, y = floats(5, 4), np.array([1, 5]), np.empty((2, 4), np.float32)
    run = gq.compile(g).bind(table, places, out=y)
    with pytest.raises(InputError, match=r"indices must be in \[-5, 4\].* got 5"):
        run()
    places[:] = 3, -5
    run()
    np.testing.assert_array_equal(y, table[[3, 0]])


def test_two_threads():
    x, y = floats(7, 24), np.empty((7, 40), np.float32)
    model = gq.compile(dense(7))
    run = model.bind(x, out=y)
    threads = [threading.Thread(target=lambda: [run() for _ in range(50)]) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    np.testing.assert_array_equal(y, model(x))


def test_an_array_of_a_subclass_is_read_where_it_is(tmp_path):
    x, y = floats(7, 24), np.empty((7, 40), np.float32)
    x.tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", np.float32, "r+", shape=x.shape)
    model = gq.compile(dense(7))
    run = model.bind(mapped, out=y)
    for _ in range(2):
        run()
        np.testing.assert_array_equal(y, model(np.array(mapped)))
        mapped += 1


def test_refuses():
    model, x, y = gq.compile(dense(7)), floats(7, 24), np.empty((7, 40), np.float32)
    with pytest.raises(InputError, match=r"bind: input 'x' must be a C-contiguous, aligned array f32\[7,24\]"):
        model.bind(np.asfortranarray(x), out=y)
    with pytest.raises(InputError, match="input 'x' must be f32"):
        model.bind(x[:5], out=y)
    with pytest.raises(InputError, match="out 'y' must be"):
        model.bind(x, out=y[:5])
    g = gq.load_onnx(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        net (float[6] x, int64[2] s) => (float[n, m] y) { y = Reshape(x, s) }"""))
    with pytest.raises(InputError, match="bind: shapes depend on the elements of input 's'"):
        gq.compile(g).bind(floats(6), np.array([2, 3]), out=np.empty((2, 3), np.float32))
