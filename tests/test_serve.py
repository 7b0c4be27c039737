"""examples/serve.py and its workers: answers, errors, reloads under load, which lose nothing and have one outcome."""
import hashlib
import http.client
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import graphq as gq

EXAMPLES = Path(__file__).parent.parent / "examples"
DATA = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def ask_again(*request):
    """Ask as proxies do: again on a new connection, where the server closed one without an answer.

    uvicorn's workers close connections that they accepted and had read nothing of when they are to end.
    """
    for _ in range(3):
        with suppress(ConnectionError):
            return ask(*request)
    return ask(*request)


def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "nothing came of it in two minutes"
        time.sleep(0.1)


def save(path, factor):
    g = gq.Graph("net")
    g.output(g.relu(g.matmul(g.input("x", shape=(None, 6), dtype="f32"), factor * np.eye(6))), name="y")
    gq.compile(g, threads=1).save(path)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Two workers of model.graphq; `port` is theirs."""
    pytest.importorskip("uvicorn")
    monkeypatch.chdir(tmp_path)
    save("model.graphq", 1)
    process = subprocess.Popen([sys.executable, EXAMPLES / "serve_workers.py", "--port", "0"], text=True,
                               stdout=subprocess.PIPE, env={**os.environ, "GRAPHQ_MODEL": "model.graphq"})
    try:
        process.port = int(process.stdout.readline().split("/")[2].split(":")[1])
        yield process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def workers(server):
    """The digest that each worker serves, by its process."""
    found = {}

    def both_known():
        answer = ask_again(server.port, "GET", "/health")[1]
        found[answer["process"]] = answer["sha256"]
        return len(found) == 2

    until(both_known)
    return found


def reload(server, path):
    """Replace the model, signal, and give the line that says what came of it."""
    os.replace(path, "model.graphq")
    server.send_signal(signal.SIGHUP)
    return server.stdout.readline().strip()


def test_answers_and_errors(server):
    status, answer = ask(server.port, "POST", "/score", {"x": DATA.tolist()})
    assert status == 200 and np.array_equal(np.float32(answer["y"]), np.maximum(DATA, 0))
    for body, words in ((b"no JSON", "Expecting value"), ([1], "object"), ({}, "takes inputs"), ({"x": [[1, 2]]}, "x"),
                        ({"x": [["a"] * 6]}, 'could not convert "a", a'), ({"x": [[1] * 6, [2]]}, "inhomogeneous"),
                        (b"[" * 200_000, "nested too deeply"), ({"y": 1}, "no input 'y'"),
                        ({"x": [[True] * 6]}, "could not convert true"), ({"x": [[10**39] * 6]}, "outside of"),
                        (b'{"x": [[NaN, 1, 1, 1, 1, 1]]}', "NaN is not a JSON number"),
                        (b'{"x": [[1e400, 1, 1, 1, 1, 1]]}', "outside of the range of float32"),
                        (b'{"x": ' + b"9" * 5000 + b"}", "5000 digits")):
        status, answer = ask(server.port, "POST", "/score", body)
        assert status == 400 and words in answer["error"]
    assert ask(server.port, "GET", "/nothing")[0] == 404
    assert ask(server.port, "POST", "/score", {"x": []})[0] == 400


def test_numbers_of_requests_are_those_of_the_types(tmp_path, monkeypatch):
    g = gq.Graph()
    for name, dtype in (("u", "u8"), ("b", "boolean"), ("h", "f16"), ("x", "f32")):
        g.output(g.input(name, shape=(None, 2), dtype=dtype), name=f"{name}_out")
    gq.compile(g, threads=1).save(tmp_path / "model.graphq")
    monkeypatch.setenv("GRAPHQ_MODEL", str(tmp_path / "model.graphq"))
    score = runpy.run_path(str(EXAMPLES / "serve.py"))["score"]

    def answer(**given):
        right = {"u": [[0, 255]], "b": [[True, False]], "h": [[1, -0.5]], "x": [[2, 0.5]]}
        return score(json.dumps(right | given).encode())

    assert answer() == (200, {"u_out": [[0, 255]], "b_out": [[True, False]], "h_out": [[1.0, -0.5]],
                              "x_out": [[2.0, 0.5]]})
    for name, bad in (("u", 1.5), ("u", 1.0), ("u", True), ("u", 256), ("u", -1), ("u", 10**300), ("u", None), ("b", 1),
                      ("b", 0.0), ("h", 65520.0), ("h", True), ("x", 1e39), ("x", 10**399), ("x", "1"), ("x", [1])):
        status, said = answer(**{name: [[bad, bad], [0 if name != "b" else False, bad]]})
        assert status == 400 and f"input '{name}'" in said["error"], (name, bad, said)


def test_a_body_may_be_an_npy_file(tmp_path, monkeypatch):
    def bytes_of(array):
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()

    save(tmp_path / "one.graphq", 2)
    monkeypatch.setenv("GRAPHQ_MODEL", str(tmp_path / "one.graphq"))
    score = runpy.run_path(str(EXAMPLES / "serve.py"))["score"]
    status, answer = score(bytes_of(DATA))
    assert status == 200 and np.array_equal(np.float32(answer["y"]), 2 * np.maximum(DATA, 0))
    for wrong, words in ((bytes_of(DATA)[:-9], "damaged"), (b"\x93NUMPY", "damaged"), (bytes_of(DATA[:, :2]), "'x'"),
                         (bytes_of(DATA.astype(np.float64)), "float64"),
                         (bytes_of(np.array([{}], object)), "damaged")):
        status, answer = score(wrong)
        assert status == 400 and words in answer["error"], answer
    g = gq.Graph()
    g.output(g.add(g.input("a", shape=(2,), dtype="f32"), g.input("b", shape=(2,), dtype="f32")), name="y")
    gq.compile(g, threads=1).save(tmp_path / "two.graphq")
    monkeypatch.setenv("GRAPHQ_MODEL", str(tmp_path / "two.graphq"))
    score = runpy.run_path(str(EXAMPLES / "serve.py"))["score"]
    status, answer = score(bytes_of(DATA))
    assert (status, answer["error"]) == (400, "an .npy body is one array, but the model has inputs a, b: send JSON")


def test_one_thread_at_a_time_parses_an_npy_file(tmp_path, monkeypatch):
    """CPython 3.11.7 raises SystemError in `ast.literal_eval`, which NumPy calls, if two threads are in it."""
    save(tmp_path / "net.graphq", 1)
    monkeypatch.setenv("GRAPHQ_MODEL", str(tmp_path / "net.graphq"))
    loaded = runpy.run_path(str(EXAMPLES / "serve.py"))["loaded"]
    np.save(file := io.BytesIO(), DATA)
    load, inside, most = np.load, [], []

    def slow(*args, **options):
        inside.append(1)
        time.sleep(0.005)
        most.append(len(inside))
        inside.pop()
        return load(*args, **options)

    monkeypatch.setattr(np, "load", slow)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(loaded, [file.getvalue()] * 8))
    assert max(most) == 1 and all(np.array_equal(x["x"], DATA) for x in found)


def test_new_models_come_without_a_lost_request(server):
    new, newest = save("new", 2), save("newest", 3)
    before = workers(server)
    assert set(before.values()) == {hashlib.sha256(Path("model.graphq").read_bytes()).hexdigest()}
    answers, asking = [], True

    def ask_on():
        while asking:
            answers.append(ask_again(server.port, "POST", "/score", {"x": DATA.tolist()}))

    with ThreadPoolExecutor(3) as clients:
        done = [clients.submit(ask_on) for _ in range(3)]
        os.replace("new", "model.graphq")
        server.send_signal(signal.SIGHUP)  # the second signal comes while the first one's workers start
        time.sleep(1)
        second = reload(server, "newest"), server.stdout.readline().strip()
        asking = False
        for future in done:
            future.result()
    assert second[0] in {f"reload: all 2 workers serve {digest}" for digest in (new, newest)}
    assert second[1] == f"reload: all 2 workers serve {newest}"
    assert not any(os.path.exists(f"/proc/{process}") for process in before)
    assert set(workers(server).values()) == {newest}
    expected = [np.maximum(factor * DATA, 0) for factor in (1, 2, 3)]
    assert {status for status, _ in answers} == {200}
    assert all(any(np.array_equal(np.float32(a["y"]), y) for y in expected) for _, a in answers)


def test_a_reload_that_fails_changes_no_worker(server):
    before = workers(server)
    (digest,) = set(before.values())
    Path("broken").write_bytes(Path("model.graphq").read_bytes()[:-100])
    assert reload(server, "broken") == f"reload failed, all 2 workers keep {digest}: " \
        f"a new one was not ready with model.graphq"
    assert workers(server) == before
    os.kill(min(before), signal.SIGKILL)  # the worker that replaces it has their model, not the file of its name

    def replaced():
        now = workers(server)
        return len(now.keys() & before.keys()) == 1 and set(now.values()) == {digest}

    until(replaced)
    os.remove("model.graphq")
    server.send_signal(signal.SIGHUP)
    assert "No such file" in server.stdout.readline()
    assert set(workers(server).values()) == {digest}


def test_connections_to_workers_send_small_parts_at_once():
    pytest.importorskip("uvicorn")
    listener = runpy.run_path(str(EXAMPLES / "serve_workers.py"))["listener"]
    with listener("127.0.0.1", 0) as made, socket.create_connection(made.getsockname()), made.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
