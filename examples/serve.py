"""Serve a saved model over HTTP: an ASGI application in which each process runs the model with one thread.

    GRAPHQ_MODEL=digits.graphq python examples/serve_workers.py
    GRAPHQ_MODEL=digits.graphq uvicorn --app-dir examples serve:app

`POST /score` takes {"input": [rows]} in JSON and returns {"output": [rows]}. For a model with one input, the body may
also be an .npy file, which has a fifth of the JSON's bytes for an image. `GET /health` shows that the process is
up, and the SHA-256 of its model file. Importing this module loads the model: in each process of uvicorn, or once before
gunicorn forks (`--preload`). In both cases all processes share the weights, as pages of the file. docs/deploy.md has
the commands, and the signals that load a new model without losing a request.
"""
from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

import graphq as gq

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

MODEL = os.environ["GRAPHQ_MODEL"]
MAX_BYTES = 16 << 20
MAX_RANK = 32
NPY = b"\x93NUMPY"
"""The first bytes of an .npy file; no JSON begins so."""
WORDS = {(bool,): "true or false", (int,): "an integer", (int, float): "a number"}
with open(MODEL, "rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
reading = threading.Lock()
"""Held while a thread reads an .npy file.

NumPy parses its header with `ast.literal_eval`. CPython 3.11.7 and older may raise SystemError if two threads do so
at once (https://github.com/python/cpython/issues/106905).
"""
predictor = gq.Predictor(MODEL, threads=1)
types = {name: type.dtype.numpy for name, type in predictor.inputs.items()}


def score(body: bytes) -> tuple[int, Mapping[str, Any]]:
    """Score a request body; returns status and answer. The status is 400 if the body is not valid or does not fit."""
    try:
        outputs = predictor(loaded(body) if body.startswith(NPY) else parsed(body))
    except RecursionError:
        return 400, {"error": "the body is nested too deeply"}
    except (ValueError, gq.GraphqError) as error:  # the body is not JSON, or does not fit the model
        return 400, {"error": str(error)}
    return 200, {name: plain(rows) for name, rows in outputs.items()}


def parsed(body: bytes) -> dict[str, np.ndarray]:
    """The arrays of a body in JSON by the names of inputs."""
    given = json.loads(body, parse_constant=refused, parse_int=integer)
    if not isinstance(given, dict):
        raise ValueError("the body must be an object of arrays by the names of inputs")
    return {name: array(name, rows) for name, rows in given.items()}


def loaded(body: bytes) -> dict[str, np.ndarray]:
    """The array of a body that is an .npy file, for a model with one input."""
    if len(types) != 1:
        raise ValueError(f"an .npy body is one array, but the model has inputs {', '.join(types)}: send JSON")
    try:
        with reading:
            return {name: np.load(io.BytesIO(body), allow_pickle=False) for name in types}
    except Exception as error:  # NumPy raises ten kinds of errors for damaged files
        raise ValueError(f"the body is a damaged .npy file: {error}") from None


def refused(name: str) -> NoReturn:
    """Refuse NaN and infinities: Python's JSON parser accepts them."""
    raise ValueError(f"{name} is not a JSON number")


def integer(text: str) -> int:
    """Parse an integer; raises ValueError if it is too large for every type."""
    if len(text) > 400:
        raise ValueError(f"an integer of {len(text)} digits is outside of the range of every type")
    return int(text)


def array(name: str, rows: Any) -> np.ndarray:
    """Convert nested lists of equal lengths to the array of an input; numbers may be rounded to its dtype.

    Integer inputs accept only integers (no fractions, no booleans), boolean inputs only true and false.
    """
    if name not in types:
        raise ValueError(f"the model has no input {name!r:.80}; it has {', '.join(types)}")
    dtype, flat = types[name], [rows]
    shape: list[int] = []
    while any(isinstance(x, list) for x in flat):
        lengths = {len(x) if isinstance(x, list) else -1 for x in flat}
        if len(lengths) > 1 or len(shape) == MAX_RANK:
            raise ValueError(f"input '{name}': inhomogeneous lists, or more than {MAX_RANK} levels of lists")
        shape += lengths
        flat = [x for inner in flat for x in inner]
    allowed = {"b": (bool,), "i": (int,), "u": (int,)}.get(dtype.kind, (int, float))
    if dtype.kind == "b":
        low, high = 0.0, 1.0
    elif dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    else:  # compared as Python's numbers, since their comparisons are exact
        low, high = float(ml_dtypes.finfo(dtype).min), float(ml_dtypes.finfo(dtype).max)
    for x in flat:
        if type(x) not in allowed:
            raise ValueError(f"input '{name}': could not convert {json.dumps(x):.80}, {WORDS[allowed]} is needed")
        if not low <= x <= high:
            raise ValueError(f"input '{name}': a number is outside of the range of {dtype}")
    return np.array(flat, dtype).reshape(shape)


def plain(rows: np.ndarray) -> Any:
    """Convert an array to nested lists; NaN and infinities become null, because JSON lacks them."""
    if rows.dtype.kind not in "biu":
        rows = rows.astype(np.float64)
        if not np.isfinite(rows).all():
            rows = np.where(np.isfinite(rows), rows.astype(object), np.array(None))
    return rows.tolist()


async def read(receive: Receive) -> bytes | None:
    """Read the body of a request; None if it is too long or the client has disconnected."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request" or len(body) > MAX_BYTES:
            return None
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def respond(send: Send, status: int, answer: Mapping[str, Any]) -> None:
    """Send an answer as JSON."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def app(scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """The ASGI application."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] != "http":
        raise ValueError(f"only HTTP is served, not {scope['type']}")
    elif (scope["method"], scope["path"]) == ("GET", "/health"):
        await respond(send, 200, {"process": os.getpid(), "sha256": digest})
    elif (scope["method"], scope["path"]) == ("POST", "/score"):
        body = await read(receive)
        if body is None:
            await respond(send, 413, {"error": f"a body has at most {MAX_BYTES} bytes"})
        else:  # in a thread: the model releases the GIL, so /health answers while it runs
            await respond(send, *await asyncio.to_thread(score, body))
    else:
        await respond(send, 404, {"error": "there are POST /score and GET /health"})
