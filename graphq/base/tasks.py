"""Do work in the background, so that no call waits for it: write files of models, and make plans for other sizes."""
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from graphq.base.locks import PATIENCE_SECONDS, Lock

log = logging.getLogger("graphq")


class Tasks:
    """Tasks that run one after another, each in a thread of its own. Python waits for all of them before it ends.

    No caller waits for a task's error, so it is logged. A child of a fork has no such threads: it drops the tasks that
    its parent had not finished.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._latest: threading.Thread | None = None
        self._order = Lock()
        """The lock to hold while a thread is added, so that no two threads wait for the same thread."""

    def start(self, task: Callable[[], object], failed: str) -> None:
        """Start a thread that waits for earlier tasks and then does this one. Do it here if no thread can start.

        `failed` begins the log message if the task raises an error.
        """
        with self._order.hold, suppress(RuntimeError):  # too many threads, or Python is ending
            thread = threading.Thread(target=self._run, args=(task, failed, self._latest), name=self.name)
            thread.start()
            self._latest = thread
            return
        self._run(task, failed, None)

    def _run(self, task: Callable[[], object], failed: str, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            task()
        except Exception as e:  # of a user's pass, or a full disk
            log.warning("%s: %s: %s", failed, type(e).__name__, e)

    def join(self) -> None:
        """Wait until all tasks are done; return at once if the caller is itself one of the tasks.

        Wait at most PATIENCE_SECONDS: a signal handler may wait here while the code that it interrupted holds a lock
        that a task needs.
        """
        if self._latest is not None and threading.current_thread().name != self.name:
            self._latest.join(PATIENCE_SECONDS)
