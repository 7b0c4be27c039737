"""The exceptions that graphq raises. Each message names the node, the rule that is broken, and the values."""
from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command that installs an extra's packages, from a checkout: the package index has another graphq."""
    return f'pip install -e ".[{extra}]" in a checkout of graphq'


LONGEST = 4000
"""The most characters of a message: names, equations and lists of a model may have any length."""


class GraphqError(Exception):
    """Base class of all errors that graphq raises on purpose; the middle of a long message is left out."""

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(str(message)))


def shortened(message: str) -> str:
    """A message of at most LONGEST characters; a note replaces the part that is left out."""
    gone = len(message) - LONGEST + 100
    if len(message) <= LONGEST:
        return message
    head = (LONGEST - 100) * 2 // 3
    return f"{message[:head]} [... {gone} characters are left out here ...] {message[head + gone:]}"


class GraphError(GraphqError, ValueError):
    """The graph breaks a rule: a bad shape, dtype, attribute, name, order or a missing output."""


class ParseError(GraphqError, ValueError):
    """A text or file is not a graph; the message names the place."""


class VerifyError(GraphqError):
    """A pass left the graph inconsistent: a defect of the pass, not of the user's graph."""


class PassError(VerifyError):
    """A pass changed a graph's numbers, found by `verify="numeric"`: a defect of the pass, not of the user's graph.

    `name` is the name of the pass. `test` is a test for pytest that fails as long as the pass has the defect, with the
    smallest graph that was found; None if the defect could not be repeated.
    """

    def __init__(self, message: str, name: str, test: str | None) -> None:
        Exception.__init__(self, message)  # GraphqError would shorten the test
        self.name, self.test = name, test

    def __reduce__(self) -> tuple[type[PassError], tuple[str, str, str | None]]:
        """Pickle the error with all three arguments."""
        return PassError, (str(self), self.name, self.test)


class InputError(GraphqError, ValueError):
    """Arrays given to a graph or compiled model do not fit its inputs."""


class CompileError(GraphqError):
    """The graph is valid but cannot be compiled as asked (`strict`, `threads`, `cache`)."""


class KernelError(GraphqError, RuntimeError):
    """A kernel cannot run here: an instruction set, a self-test or the threading layer refuses."""
