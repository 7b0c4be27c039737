"""examples/serve.py behind uvicorn: answers, errors, a reload under load that loses nothing, workers on a TCP port."""
import hashlib
import http.client
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


class Connection(http.client.HTTPConnection):
    """A connection over a socket in the file system, on which no other test listens."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect("serve.sock")


def ask(method, path, body=None):
    connection = Connection("server")
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


def healthy():
    try:
        return ask("GET", "/health")[0] == 200
    except OSError:
        return False


def save(path, factor):
    g = gq.Graph("net")
    g.output(g.relu(g.matmul(g.input("x", shape=(None, 6), dtype="f32"), factor * np.eye(6))), name="y")
    model = gq.compile(g, threads=1)
    model.save(path)
    return model


@pytest.fixture
def server(tmp_path, monkeypatch):
    pytest.importorskip("uvicorn")
    monkeypatch.chdir(tmp_path)
    save("model.graphq", 1)
    process = subprocess.Popen([sys.executable, "-m", "uvicorn", "--app-dir", EXAMPLES, "--workers", "2", "--uds",
                                "serve.sock", "--log-level", "warning", "--timeout-worker-healthcheck", "60",
                                "serve:app"],
                               env={**os.environ, "GRAPHQ_MODEL": "model.graphq"})
    try:
        until(healthy)
        yield process
    finally:
        process.terminate()
        process.wait(60)


def test_answers_and_errors(server):
    status, answer = ask("POST", "/score", {"x": DATA.tolist()})
    assert status == 200 and np.array_equal(np.float32(answer["y"]), np.maximum(DATA, 0))
    for body, words in ((b"no JSON", "Expecting value"), ([1], "object"), ({}, "takes inputs"), ({"x": [[1, 2]]}, "x"),
                        ({"x": [["a"] * 6]}, "could not convert"), ({"x": [[1] * 6, [2]]}, "inhomogeneous")):
        status, answer = ask("POST", "/score", body)
        assert status == 400 and words in answer["error"]
    assert ask("GET", "/nothing")[0] == 404
    assert ask("POST", "/score", {"x": []})[0] == 400


def test_a_new_model_comes_without_a_lost_request(server):
    save("new.graphq", 2)
    digests = [hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in ("model.graphq", "new.graphq")]
    assert ask("GET", "/health")[1]["sha256"] == digests[0]
    stop, answers = time.monotonic() + 120, []

    before = set()

    def both_known():
        before.add(ask("GET", "/health")[1]["process"])
        return len(before) == 2

    until(both_known)

    def ask_until_new():
        """Ask until both old workers have ended."""
        while time.monotonic() < stop and any(os.path.exists(f"/proc/{process}") for process in before):
            answers.append(ask_again("POST", "/score", {"x": DATA.tolist()}))

    with ThreadPoolExecutor(3) as clients:
        asking = [clients.submit(ask_until_new) for _ in range(3)]
        os.replace("new.graphq", "model.graphq")
        server.send_signal(signal.SIGHUP)
        for future in asking:
            future.result()
    assert time.monotonic() < stop
    assert {ask("GET", "/health")[1]["sha256"] for _ in range(20)} == {digests[1]}
    old, new = np.maximum(DATA, 0), np.maximum(2 * DATA, 0)
    assert {status for status, _ in answers} == {200}
    assert all(np.array_equal(y, old) or np.array_equal(y, new) for y in (np.float32(a["y"]) for _, a in answers))
    assert np.array_equal(np.float32(ask("POST", "/score", {"x": DATA.tolist()})[1]["y"]), new)


def test_connections_to_workers_send_small_parts_at_once():
    pytest.importorskip("uvicorn")
    listener = runpy.run_path(str(EXAMPLES / "serve_workers.py"))["listener"]
    with listener("127.0.0.1", 0) as made, socket.create_connection(made.getsockname()), made.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_workers_on_a_tcp_port(tmp_path):
    pytest.importorskip("uvicorn")
    save(tmp_path / "model.graphq", 1)
    environment = {**os.environ, "GRAPHQ_MODEL": str(tmp_path / "model.graphq")}
    process = subprocess.Popen([sys.executable, EXAMPLES / "serve_workers.py", "--port", "0"], text=True,
                               stdout=subprocess.PIPE, env=environment)
    try:
        place = process.stdout.readline().split("/")[2]
        connection = http.client.HTTPConnection(place, timeout=120)  # the kernel keeps it until a worker is there
        for rows in (DATA, DATA[:3]):
            connection.request("POST", "/score", json.dumps({"x": rows.tolist()}))
            assert np.array_equal(np.float32(json.loads(connection.getresponse().read())["y"]), np.maximum(rows, 0))
        connection.close()
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
