"""Run examples/serve.py in several uvicorn processes, and load new models without losing a request.

    GRAPHQ_MODEL=digits.graphq python examples/serve_workers.py [--workers 2] [--host 127.0.0.1] [--port 8000]

To load a new model, replace the old model's file (`os.replace`) and send SIGHUP. Differences to `uvicorn --workers`:

- A reload replaces all workers or none, and prints the outcome. It first starts as many new workers as there are old
  workers. When all new workers are ready, the old workers retire. If a new worker is not ready within `--timeout`
  seconds, the old workers stay. uvicorn itself replaces one worker after the other and stops at a failure, so both
  models would be in service.
- Answers do not wait. uvicorn writes head and body of an answer separately. On a socket that it shares between
  processes, Nagle's algorithm holds the body back until the client acknowledges the head, and clients delay this for 40
  ms. The socket made here has TCP_NODELAY, and connections inherit this option.
"""
from __future__ import annotations

import argparse
import hashlib
import os
import signal
import socket
import time
from io import BufferedReader
from pathlib import Path

from uvicorn import Config
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process


def listener(host: str, port: int) -> socket.socket:
    """Make a listening socket whose connections send small parts at once (TCP_NODELAY)."""
    made = socket.create_server((host, port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Workers(Multiprocess):
    """uvicorn's workers, all with the same version of a model file.

    A reload opens the file once. The new workers, and workers that replace dead workers, open this file through this
    process (/proc/PID/fd/N), even if another file has its name by then.
    """

    processes: list[Process]

    def __init__(self, config: Config, sockets: list[socket.socket], model: Path) -> None:
        super().__init__(config, sockets)
        self.model, self.file = model, model.open("rb")
        self.provide(self.file)

    def provide(self, file: BufferedReader) -> None:
        """Let workers that start from now on load this file."""
        os.environ["GRAPHQ_MODEL"] = f"/proc/{os.getpid()}/fd/{file.fileno()}"

    def restart_all(self) -> None:
        """Replace all workers or none; uvicorn calls this at SIGHUP."""
        try:
            file = self.model.open("rb")
        except OSError as error:
            print(f"reload failed, all workers keep their model: {error}", flush=True)
            return
        self.provide(file)
        fresh = [Process(self.config, self.sockets) for _ in self.processes]
        for process in fresh:
            process.start()
        if self.ready(fresh):
            old, self.processes = self.processes, fresh
            self.file.close()
            self.file = file
            for process in old:
                process.terminate()
            outcome = f"reload: all {len(fresh)} workers serve {digest(file)}"
        else:
            old = fresh
            self.provide(self.file)
            file.close()
            for process in old:
                process.kill()
            outcome = (f"reload failed, all {len(fresh)} workers keep {digest(self.file)}: "
                       f"a new one was not ready with {self.model}")
        for process in old:  # a worker that is ending may still answer, with its own model
            process.join()
        print(outcome, flush=True)

    def ready(self, fresh: list[Process]) -> bool:
        """Wait until all these workers are ready; False if a worker ends, time is up, or this process must end."""
        end = time.monotonic() + self.config.timeout_worker_healthcheck
        while not all(process.is_ready() for process in fresh):
            if not all(process.process.is_alive() for process in fresh) or time.monotonic() > end \
                    or {signal.SIGINT, signal.SIGTERM}.intersection(self.signal_queue):
                return False
            time.sleep(0.1)
        return True


def digest(file: BufferedReader) -> str:
    """The SHA-256 of a file, as `GET /health` shows it."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port")
    parser.add_argument("--timeout", type=int, default=60, metavar="S", help="time limit for a worker to become ready")
    options = parser.parse_args()
    config = Config("serve:app", workers=options.workers, log_level="warning",  # `serve` is next to this file
                    timeout_worker_healthcheck=options.timeout)
    with listener(options.host, options.port) as shared:
        workers = Workers(config, [shared], Path(os.environ["GRAPHQ_MODEL"]))
        print("http://{}:{}/score, process {}".format(*shared.getsockname(), os.getpid()), flush=True)
        workers.run()
