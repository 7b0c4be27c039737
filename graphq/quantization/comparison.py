"""The result of `compare`: each tensor's distance from f32 and its cost, as a table, as JSON and as a page."""
from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field

import numpy as np

from graphq.base.paths import path_of
from graphq.ir import Graph
from graphq.ir.names import quote


@dataclass
class TensorDifference:
    """A tensor of both graphs over all batches.

    `sqnr` is 10 log10 of the mean square of f32 over that of the difference, in dB; `largest` the largest difference;
    `saturation` the share of elements that the integers of a tensor's quantize do not reach. `cost` is the loss at the
    outputs that the tensor's product causes: how much 1 - cosine falls if only this product is computed in f32.
    """

    name: str
    op: str
    sqnr: float
    cosine: float
    largest: float
    saturation: float | None = None
    cost: float | None = None

    def cells(self) -> dict[str, str]:
        """The numbers as texts for a table, by the heads of its columns."""
        return {"cost": "" if self.cost is None else f"{self.cost:.1e}", "SQNR dB": f"{self.sqnr:.1f}",
                "cosine": f"{self.cosine:.6f}", "largest": f"{self.largest:.3g}",
                "saturated": "" if self.saturation is None else f"{100 * self.saturation:.3f}%"}


SHOWN = 17
"""The text of a comparison has lines for at most this many tensors."""


@dataclass
class Comparison:
    """Differences of tensors, the costliest first, then those without a cost in graph order.

    `loss` is 1 - cosine of the outputs.

    `graph` is the quantized graph, in which a page shows them. `noise` is the uncertainty of costs: the most by which
    outputs got worse when one product was computed in f32, which can only be chance. The order of costs up to it means
    nothing.
    """

    tensors: list[TensorDifference]
    loss: float
    graph: Graph = field(repr=False, compare=False)
    noise: float = field(init=False)

    def __post_init__(self) -> None:
        self.noise = max((-t.cost for t in self.tensors if t.cost is not None and t.cost < 0), default=0.0)
        self.tensors.sort(key=lambda t: self.known_cost(t) or 0.0, reverse=True)

    def known_cost(self, tensor: TensorDifference) -> float | None:
        """The cost of a tensor; None where it has none, or one that may be noise."""
        return None if tensor.cost is None or tensor.cost <= self.noise else tensor.cost

    @property
    def summary(self) -> str:
        """The loss in a line, and the number of costs that are noise."""
        noise = f"; costs up to {self.noise:.1e} are noise, in no order" if self.noise else ""
        return f"outputs: 1 - cosine {self.loss:.2e}{noise}"

    def __getitem__(self, name: str) -> TensorDifference:
        """The tensor of this name. Raises KeyError if there is none."""
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(name)

    def __str__(self) -> str:
        """A table of at most 20 lines: the tensors that cost most, a line each."""
        rows = [[*self.tensors[0].cells(), " tensor"],
                *([*t.cells().values(), f" {quote(t.name)} ({t.op})"] for t in self.tensors[:SHOWN])]
        more = len(self.tensors) - SHOWN
        return "\n".join([self.summary, *(" ".join(f"{text:>9}" for text in row) for row in rows),
                          *([f"... {more} more, as JSON or on a page"] if more > 0 else [])])

    def json(self) -> str:
        """The comparison as JSON; infinite numbers (SQNR of equal tensors) are null."""
        rows = [{k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(t).items()}
                for t in self.tensors]
        return json.dumps({"loss": self.loss, "noise": self.noise, "tensors": rows}, indent=1)

    def report(self, path: str | os.PathLike[str], /) -> None:
        """Write an HTML page: all tensors in graph order and by cost, as charts, and the graph coloured by cost.

        It is one file and needs no network. The graph is shown if Graphviz is installed (the extra `report`). Raises
        GraphError if `path` is not a path, OSError if it cannot write.
        """
        from graphq.quantization.differences_page import differences_page

        path_of(path).write_bytes(differences_page(self).encode("utf-8", "replace"))

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        from graphq.quantization.differences_page import differences_html

        return differences_html(self)
