"""Do work in the background, so that no call waits for it: write files of models, and make plans for other sizes."""
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from graphq.base.locks import PATIENCE_SECONDS, Lock
from graphq.base.platform import at_fork

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
            with short_turns():
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


_turns = Lock()
_users: list[int] = []
"""The threads within `short_turns`."""
_replaced: tuple[float, float] | None = None
"""The switch interval that `short_turns` has set, and the one before."""


@contextmanager
def short_turns() -> Iterator[None]:
    """Let other threads get Python after 0.5 ms within a `with` block.

    At the end of the last such block, and in a child of a fork, the switch interval is as before, unless the user has
    changed it meanwhile.
    """
    global _replaced
    with _turns.hold:
        _users.append(threading.get_ident())
        if _replaced is None:
            before = sys.getswitchinterval()
            sys.setswitchinterval(min(before, 0.0005))
            _replaced = sys.getswitchinterval(), before
    try:
        yield
    finally:
        with _turns.hold, suppress(ValueError):  # in a child of a fork, the list is empty
            _users.remove(threading.get_ident())
            if not _users:
                _end_short_turns()


def _end_short_turns() -> None:
    global _replaced
    _users.clear()
    if _replaced is not None and sys.getswitchinterval() == _replaced[0]:
        sys.setswitchinterval(_replaced[1])
    _replaced = None


at_fork(after_in_child=_end_short_turns)
