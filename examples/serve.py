"""Serve an artefact over HTTP: an ASGI application for any ASGI server, one thread of the model in each process.

    GRAPHQ_MODEL=digits.graphq python examples/serve_workers.py
    GRAPHQ_MODEL=digits.graphq uvicorn --app-dir examples serve:app

`POST /score` takes {"input": [rows]} in JSON and gives {"output": [rows]}; `GET /health` says that the process is
there, and which model it has: the SHA-256 of its file. The model is loaded when this module is imported: in each
process of uvicorn, or once before gunicorn forks (`--preload`). Either way its weights are pages of the file, which
all processes share.
docs/deploy.md has the commands, and the signals that load a new model without a lost request.
"""
from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

import graphq as gq

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

MODEL = os.environ["GRAPHQ_MODEL"]
MAX_BYTES = 16 << 20
with open(MODEL, "rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
predictor = gq.Predictor(MODEL, threads=1)
types = {name: type.dtype.numpy for name, type in predictor.inputs.items()}


def score(body: bytes) -> tuple[int, Mapping[str, Any]]:
    """The status and the answer to a request: 400 for what is no JSON, or does not fit the model."""
    try:
        given = json.loads(body)
        if not isinstance(given, dict):
            raise ValueError("the body must be an object of arrays by the names of inputs")
        outputs = predictor({name: np.asarray(rows, types.get(name)) for name, rows in given.items()})
    except (ValueError, TypeError, OverflowError) as error:  # graphq's InputError is a ValueError
        return 400, {"error": str(error)}
    return 200, {name: rows.tolist() for name, rows in outputs.items()}


async def read(receive: Receive) -> bytes | None:
    """The body of a request; None for one that is too long, or whose client has gone."""
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
        else:  # in a thread, as the model leaves the interpreter free while it runs: /health answers meanwhile
            await respond(send, *await asyncio.to_thread(score, body))
    else:
        await respond(send, 404, {"error": "there are POST /score and GET /health"})
