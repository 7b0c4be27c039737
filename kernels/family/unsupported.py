"""Unsupported: why kernels cannot compute a body as one, and what a user can change."""
from __future__ import annotations


class Unsupported(Exception):  # a refusal with its reason, not a defect
    """The kernels cannot compute this as one; the message is the reason that reports show.

    `edit` is what a user can change in the graph so that they can, `operand` the number of the anchor's operand that
    stands in the way, where it is one.
    """

    def __init__(self, reason: str, edit: str = "", operand: int | None = None) -> None:
        super().__init__(reason)
        self.edit, self.operand = edit, operand
