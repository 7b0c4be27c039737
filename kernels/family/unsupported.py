"""The exception Unsupported: why kernels cannot compute a body as one partition, and what a user can change."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from graphq.ir import Value
from graphq.ir.names import listing


class Axes(NamedTuple):
    """Axes of a value of a body, which a message mentions as `axis 1` or `axes 1 and 2`."""

    value: Value
    axes: tuple[int, ...]

    def __str__(self) -> str:
        return called_axes(sorted(k % max(len(self.value.shape or ()), 1) for k in self.axes))


def called_axes(axes: list[int]) -> str:
    """The text for some axes: `axis 1`, `axes 1 and 2`, `no axes`."""
    if not axes:
        return "no axes"
    return f"{'axis' if len(axes) == 1 else 'axes'} {listing(map(str, axes), 'and')}"


Mention: TypeAlias = Value | Axes
"""What a message can mention of the body: a value, shown by its type, or axes of a value."""


class Unsupported(Exception):  # named without "Error", as it is a refusal with its reason and not a defect
    """Kernels cannot compute a body as one partition; the message is the reason that reports show.

    `edit` says what a user can change in the graph to make it possible. `operand` is the number of the anchor's operand
    that is the obstacle, if one is. Passes may have transposed the body's values, so their axes and types here may
    differ from those in the user's graph. The message therefore has `{name}` in their place, and `mentions` has the
    Axes or the value of that name. Reports fill in the axes and types of the user's graph (see `told`).
    """

    def __init__(self, reason: str, edit: str = "", operand: int | None = None, **mentions: Mention) -> None:
        self.operand, self.mentions = operand, mentions
        self._texts = reason, edit
        super().__init__(self._filled(reason, _plain))
        self.edit = self._filled(edit, _plain)

    def told(self, words: Callable[[Mention], str]) -> Unsupported:
        """The same refusal, with each mention replaced by the text that `words` gives for it."""
        reason, edit = (self._filled(text, words) for text in self._texts)
        return Unsupported(reason, edit, self.operand)

    def _filled(self, text: str, words: Callable[[Mention], str]) -> str:
        return text.format_map({name: words(m) for name, m in self.mentions.items()}) if self.mentions else text


def _plain(mention: Mention) -> str:
    return str(mention) if isinstance(mention, Axes) else str(mention.type)
