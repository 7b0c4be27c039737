"""Settings that the automatic search tries, and their names."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from graphq.quantization.scheme import Method, Scheme


class Candidate(NamedTuple):
    """How a tensor's range is chosen, and whether its channels are divided before (`smooth`).

    The range is widened by the factor `Statistics.unseen`**`margin`, where `unseen` is the factor by which a new batch
    is expected to exceed the statistics. A fixed factor would not do: more batches need a smaller one, and comparisons
    use the statistics of fewer batches than the result.
    """

    method: Method
    smooth: bool = False
    margin: float = 0.0

    def __str__(self) -> str:
        parts = [self.method.replace("_", "-")] + [f"margin {self.margin:g}"] * (self.margin != 0)
        return " ".join(parts + ["smoothed"] * self.smooth)


Choices: TypeAlias = tuple[tuple[str, Candidate], ...]
"""The candidate of each tensor, by the tensor's name."""


@dataclass(frozen=True)
class Setting:
    """A candidate for each tensor, whether biases are corrected, and a scheme with the products in 16 bits or f32."""

    choices: Choices = ()
    correct: bool = False
    scheme: Scheme = Scheme()

    def __str__(self) -> str:
        s = self.scheme
        counts = Counter(c for _, c in self.choices)
        parts = ["dynamic by rows"] if s.mode == "dynamic" else \
            [str(c) if len(counts) == 1 else f"{n} x {c}" for c, n in counts.most_common()]
        parts += ["biases corrected"] * self.correct + ["weights of 7 bits"] * (s.weight_bits == 7)
        parts += [f"{', '.join(names) if len(names) <= 3 else f'{len(names)} products'} in {what}" for names, what in (
            (s.wide, "16 bits"), (s.wide_weights, "weights of 16 bits"), (s.exclude, "f32")) if names]
        parts += [f"{len(s.between)} values between products"] * bool(s.between)
        return ", ".join(parts)


def with_scheme(setting: Setting, **changes: Any) -> Setting:
    """The setting with other parameters in its scheme."""
    return replace(setting, scheme=replace(setting.scheme, **changes))
