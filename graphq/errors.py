"""The exceptions that graphq raises. Each message names the node, the broken rule and the values."""

def how_to_install(extra: str) -> str:
    """The command that installs an extra in a checkout. On PyPI, 'graphq' is another project."""
    return f'pip install -e ".[{extra}]" in a checkout of graphq'


LONGEST = 4000
"""The most characters of an error message. There must be a limit, because names in a model may have any length."""


class GraphqError(Exception):
    """Base class of all errors that graphq raises on purpose. A long message is shortened in the middle."""

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(str(message)))


def shortened(message: str) -> str:
    """The message in at most LONGEST characters. If it is longer, a note replaces the middle."""
    gone = len(message) - LONGEST + 100
    if len(message) <= LONGEST:
        return message
    head = (LONGEST - 100) * 2 // 3
    return f"{message[:head]} [... {gone} characters are left out here ...] {message[head + gone:]}"


class GraphError(GraphqError, ValueError):
    """The graph breaks a rule: a bad shape, dtype, attribute, name, order or a missing output."""


class ParseError(GraphqError, ValueError):
    """A text or file is not a valid graph; the message names the place in it."""


class VerifyError(GraphqError):
    """A pass left the graph inconsistent: a defect of the pass, not of the user's graph."""


class PassError(VerifyError):
    """A pass changed a graph's numbers (`verify="numeric"`): a defect of the pass, not of the user's graph.

    `name` is the pass's name. `test` is the source of a pytest test with the smallest failing graph that was found. The
    test fails as long as the pass has the defect. `test` is None if the defect could not be reproduced.
    """

    def __init__(self, message: str, name: str, test: str | None) -> None:
        Exception.__init__(self, message)  # GraphqError.__init__ would shorten the printed test
        self.name, self.test = name, test

    def __reduce__(self) -> "tuple[type[PassError], tuple[str, str, str | None]]":
        return PassError, (str(self), self.name, self.test)


class InputError(GraphqError, ValueError):
    """The arrays of a call do not fit the inputs of the graph or compiled model."""


class CompileError(GraphqError):
    """The graph is valid but cannot be compiled as asked (`strict`, `threads`, `cache`)."""


class KernelError(GraphqError, RuntimeError):
    """A kernel cannot run: the machine lacks instructions, or a self-test or the threading layer fails."""
