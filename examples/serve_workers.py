"""Serve examples/serve.py on a TCP port from several processes of uvicorn.

    GRAPHQ_MODEL=digits.graphq python examples/serve_workers.py [--workers 2] [--host 127.0.0.1] [--port 8000]

The same as `uvicorn --workers`, but that answers do not wait, and that a worker may take a minute to load its model.
uvicorn writes head and body of an answer one by one; where its processes share a socket that it made, Nagle's
algorithm holds the body back until the client has acknowledged the head, which it puts off for 40 ms. The socket made
here has TCP_NODELAY, which connections inherit.
(One process of uvicorn, sockets in the file system, and gunicorn do not need this.)
"""
from __future__ import annotations

import argparse
import socket
from pathlib import Path

import uvicorn


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens; connections to it send small parts at once."""
    made = socket.create_server((host, port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    options = parser.parse_args()
    with listener(options.host, options.port) as shared:
        print("http://{}:{}/score".format(*shared.getsockname()), flush=True)
        uvicorn.run("serve:app", app_dir=str(Path(__file__).parent), fd=shared.fileno(), workers=options.workers,
                    log_level="warning", timeout_worker_healthcheck=60)
