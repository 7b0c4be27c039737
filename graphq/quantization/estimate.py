"""How sure the loss of a setting is: from how many comparisons, and how far new data may leave the ranges seen."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SURE = 1.05
"""Ranges that new data are expected to exceed by at most this factor are known well."""
LEAST_ASKED, MOST_ASKED = 4, 64
"""Fewer batches than the first are never enough; of more than the second it is said that they are more."""
ALIKE = 8.0
"""Where changed copies lose this many times what batches held out lose, the batches are alike."""
SMALL = 1e-4
"""A loss of changed copies that is no reason to doubt."""


@dataclass(frozen=True)
class Estimate:
    """1 - cosine of an output on the batches held out, one each, the largest on changed copies, and what that says.

    `losses` are none of one batch, `changed` is None of many, which need no copies. `exceeded` is the factor by which a
    new batch is expected to exceed the ranges of the `batches`. `added` is the part of the largest loss that integers
    between products add: rounding, which does not depend on ranges.
    """

    losses: tuple[float, ...]
    changed: float | None
    batches: int
    exceeded: float
    added: float = 0.0

    @property
    def alike(self) -> bool:
        """Whether the batches are so alike that those held out say little of others."""
        if self.changed is None or not self.losses:
            return False
        return self.changed > max(SMALL, ALIKE * (max(self.losses) - self.added))

    @property
    def enough(self) -> int:
        """How many batches would do: what a new one exceeds the others by falls as one over their number."""
        asked = int(np.ceil(self.batches * (self.exceeded - 1) / (SURE - 1) - 1e-9))
        return max(self.batches * (1 + self.alike), LEAST_ASKED, asked)

    @property
    def sure(self) -> bool:
        """Whether the batches are as many as it takes."""
        return self.enough <= self.batches

    def json(self) -> dict[str, Any]:
        """The numbers for a report."""
        return {"losses": list(self.losses), "changed": self.changed, "batches": self.batches,
                "exceeded": self.exceeded, "alike": self.alike, "enough": self.enough, "sure": self.sure}

    def __str__(self) -> str:
        """Two lines: what is lost, and how sure that is."""
        parts, why = [], []
        if self.losses:
            parts.append(f"{min(self.losses):.1e} to {max(self.losses):.1e} on {len(self.losses)} held out")
        if self.changed is not None:
            parts.append(f"at most {self.changed:.1e} on changed copies of the batches")
        if self.exceeded > SURE:
            why.append(f"new data may exceed the ranges by {100 * (self.exceeded - 1):.0f} %")
        why += ["they are alike"] * self.alike + ["they are few"] * (self.batches < LEAST_ASKED)
        number = self.enough if self.enough <= MOST_ASKED else f"more than {MOST_ASKED}"
        sure = f"sure: {self.batches} batches are enough" if self.sure else \
            f"not sure of {self.batches} batch{'es' * (self.batches > 1)}: {', '.join(why)}; {number} would do"
        return f"1 - cosine with f32: {', '.join(parts)}\n{sure}"
