"""Do work in the background."""
import threading
from collections.abc import Callable
from contextlib import suppress

from graphq.base.locks import Lock


class Tasks:
    """Tasks that run one after another, each in a thread of its own. Python waits for all of them before it ends.

    A child of a fork has no such threads: it drops the tasks that its parent had not finished.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._latest: threading.Thread | None = None
        self._order = Lock()
        """The lock to hold while a thread is added, so that no two threads wait for the same thread."""

    def start(self, task: Callable[[], object]) -> None:
        """Start a thread that waits for earlier tasks and then does this one. Do it here if no thread can start."""
        with self._order.hold, suppress(RuntimeError):  # too many threads, or Python is ending
            thread = threading.Thread(target=self._run, args=(task, self._latest), name=self.name)
            thread.start()
            self._latest = thread
            return
        task()

    def _run(self, task: Callable[[], object], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        task()

    def join(self) -> None:
        """Wait until all tasks are done; return at once if the caller is itself one of the tasks."""
        if self._latest is not None and threading.current_thread().name != self.name:
            self._latest.join()
