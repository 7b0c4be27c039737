"""The refusal of a body by kernels (`Unsupported`), and how its message shows values and axes."""
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from graphq.ir import Value, listing


class Axes(NamedTuple):
    """Axes of a value of a body. Messages show them as `axis 1` or `axes 1 and 2`."""

    value: Value
    axes: tuple[int, ...]

    def __str__(self) -> str:
        return called_axes(sorted(k % max(len(self.value.shape or ()), 1) for k in self.axes))


def called_axes(axes: list[int]) -> str:
    """Name axes in a message: `axis 1`, `axes 1 and 2`, `no axes`."""
    if not axes:
        return "no axes"
    return f"{'axis' if len(axes) == 1 else 'axes'} {listing(map(str, axes), 'and')}"


Mention: TypeAlias = Value | Axes
"""A thing in a message that depends on the graph: a value, shown by its type, or axes of a value."""


class Unsupported(Exception):  # the name has no "Error", because reports show it as a reason
    """Kernels cannot compute a body as one partition. The message is the reason that reports show.

    `edit` says how to change the graph to make fusion possible. `operand` is the index of the anchor's operand that is
    the obstacle, or None. The message may contain placeholders `{name}`; `mentions` maps each name to a value or to
    axes of the body. Passes may have transposed the body, so reports fill in the types and axes of the user's graph
    (`told`).
    """

    def __init__(self, reason: str, edit: str = "", operand: int | None = None, **mentions: Mention) -> None:
        self.operand, self.mentions = operand, mentions
        self._texts = reason, edit
        super().__init__(self._filled(reason, _plain))
        self.edit = self._filled(edit, _plain)

    def told(self, words: Callable[[Mention], str]) -> "Unsupported":
        """The same refusal with each mention replaced by `words(mention)`."""
        reason, edit = (self._filled(text, words) for text in self._texts)
        return Unsupported(reason, edit, self.operand)

    def _filled(self, text: str, words: Callable[[Mention], str]) -> str:
        return text.format_map({name: words(m) for name, m in self.mentions.items()}) if self.mentions else text


def _plain(mention: Mention) -> str:
    return str(mention) if isinstance(mention, Axes) else str(mention.type)
