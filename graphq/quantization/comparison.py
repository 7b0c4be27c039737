"""Comparison: how far each tensor of a quantized graph is from f32, as data and as text."""
import json
from dataclasses import asdict, dataclass, field
from html import escape

import numpy as np

from graphq.ir import Graph, Value, quote
from graphq.ops.quant import DEQUANTIZES
from graphq.quantization import tuned
from graphq.quantization.products import values_by_name
from graphq.quantization.scheme import Scheme
from graphq.report.charts import listed


@dataclass
class TensorDifference:
    """How far a tensor of the quantized graph is from the same tensor in f32, over all batches.

    `sqnr` is 10 log10(mean square of f32 / mean square of the difference), in dB. `largest` is the largest difference.
    `saturation` is the share of elements outside the range of the tensor's integers. `cost` is the loss at the outputs
    that the tensor's layer causes: how much 1 - cosine falls if only this layer is computed in f32.
    """

    name: str
    op: str
    sqnr: float
    cosine: float
    largest: float
    saturation: float | None = None
    cost: float | None = None

    def cells(self) -> dict[str, str]:
        """The texts of a table's row, by column."""
        return {"cost": "" if self.cost is None else f"{self.cost:.1e}", "SQNR dB": f"{self.sqnr:.1f}",
                "cosine": f"{self.cosine:.6f}", "largest": f"{self.largest:.3g}",
                "saturated": "" if self.saturation is None else f"{100 * self.saturation:.3f}%"}


SHOWN = 17
"""The largest number of tensors in the text of a comparison."""
CLIPPED = 1 - Scheme.percentile / 100
"""Tensors are mentioned if a larger share of their elements is out of range than method "percentile" leaves out."""


@dataclass(repr=False)
class Comparison:
    """The tensors by cost, the highest first, then tensors without a cost; `loss` is the loss of the outputs.

    `graph` is the quantized graph. `noise` is the uncertainty of costs: the most that the loss grew when
    one layer was computed in f32. Such growth is chance, so costs up to `noise` have no meaningful order. `tried` is
    the loss with the advice, the largest of the compared batches and of held-out batches; None if it was not tried.
    """

    tensors: list[TensorDifference]
    loss: float
    graph: Graph = field(repr=False, compare=False)
    noise: float = field(init=False)
    tried: float | None = None

    def __post_init__(self) -> None:
        self.noise = max((-t.cost for t in self.tensors if t.cost is not None and t.cost < 0), default=0.0)
        self.tensors.sort(key=lambda t: self.known_cost(t) or 0.0, reverse=True)

    def known_cost(self, tensor: TensorDifference) -> float | None:
        """The cost of a tensor; None if the tensor has no cost or if its cost may be noise."""
        return None if tensor.cost is None or tensor.cost <= self.noise else tensor.cost

    @property
    def better(self) -> bool:
        """Whether the advice was tried and loses less."""
        return self.tried is not None and self.tried < self.loss

    @property
    def summary(self) -> str:
        """One line with the loss, and with the costs that count as noise."""
        noise = f"; costs up to {self.noise:.1e} are noise" if self.noise else ""
        return f"outputs: 1 - cosine {self.loss:.2e}{noise}"

    @property
    def advised(self) -> dict[str, list[str]]:
        """The layers that cost most, by the fields of a scheme: "exclude", or "wide" and "wide_weights"."""
        chosen: dict[str, list[str]] = {"exclude": [], "wide": [], "wide_weights": []}
        least = tuned.MUCH * self.loss
        for t in (t for t in self.tensors if (self.known_cost(t) or 0.0) > least > tuned.MUCH * tuned.TARGET):
            for part in ("exclude",) if self._has_16_bits(t) else ("wide", "wide_weights"):
                chosen[part].append(t.name)
        return {part: names for part, names in chosen.items() if names}

    @property
    def advice(self) -> str:
        """Advice if the loss is large: text, and a call to paste, for the layers that cost most."""
        if self.loss <= tuned.TARGET:
            return f"outputs are close to f32 (1 - cosine at most {tuned.TARGET:g}): nothing to do"
        clipped = [t for t in self.tensors if (t.saturation or 0) > CLIPPED]
        lines = []
        if clipped:
            worst = max(clipped, key=lambda t: t.saturation or 0)
            share = f"{100 * (worst.saturation or 0):.2g}%"
            lines.append(f"{len(clipped)} tensors exceed their ranges, '{worst.name}' in {share} of its elements: "
                         "calibrate with more batches, including these")
        if self.tried is None:
            return "\n".join([*lines, "no advice was tried, because costs were not measured (rank=False, --no-rank)"])
        what = "the automatic setting" + " with 16 bits, or f32, for the layers that cost most" * bool(self.advised)
        lines.append(f"{what} was tried and loses {self.tried:.2e}")
        if not self.better:
            lines[-1] += ", not less; more batches, or layers in f32 that you choose, may help"
            return "\n".join(lines)
        given = "".join(f", {part}={names!r}" for part, names in self.advised.items())
        return "\n".join([*lines, f'quantize(graph, batches, Scheme(method="automatic"{given}))'])

    def _has_16_bits(self, tensor: TensorDifference) -> bool:
        """Whether a layer has 16 bits already: the tensor is then the sum of two values that are not constants."""
        value = values_by_name(self.graph).get(tensor.name)
        return tensor.op == "add" and not (value is not None and value.node is not None
                                           and any(map(_is_constant, value.node.operands)))

    def __getitem__(self, name: str) -> TensorDifference:
        return {t.name: t for t in self.tensors}[name]

    def __str__(self) -> str:
        """A table of at most 20 lines, with a line for each of the tensors that cost most; then the advice."""
        rows = [[*self.tensors[0].cells(), " tensor"],
                *([*t.cells().values(), f" {quote(t.name)} ({t.op})"] for t in self.tensors[:SHOWN])]
        more = len(self.tensors) - SHOWN
        return "\n".join([self.summary, *(" ".join(f"{text:>9}" for text in row) for row in rows),
                          *([f"... {more} more, as JSON"] if more > 0 else []), self.advice])

    def __repr__(self) -> str:
        return str(self)

    def json(self) -> str:
        """The comparison as JSON; infinite numbers (the SQNR of equal tensors) are null."""
        rows = [{k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(t).items()}
                for t in self.tensors]
        return json.dumps({"loss": self.loss, "noise": self.noise, "advice": self.advice, "tensors": rows}, indent=1)

    def _repr_html_(self) -> str:
        rows = ((*t.cells().values(), f"{t.name} ({t.op})") for t in self.tensors)
        return f"<p>{escape(self.summary)}</p>{listed([*self.tensors[0].cells(), 'tensor'], rows)}"


def _is_constant(value: Value) -> bool:
    node = value.node
    return value.data is not None or node is not None and node.op.name in DEQUANTIZES \
        and all(v.data is not None for v in node.operands)
