"""Estimate the time of layers in 8 bits, in 16 bits and in f32, and decide which layers are faster in f32."""
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graphq.base.locks import lazy_property
from graphq.ir import Graph, Node, TensorType
from graphq.kernels.target.level import Level
from graphq.quantization import tuned
from graphq.quantization.bodies import iterations, with_bodies
from graphq.quantization.calibrate import Batch
from graphq.quantization.products import LinearLayer, makers_of, products, reached, readers_of
from graphq.quantization.scheme import Setting
from graphq.report.coverage import MACS


class Times(NamedTuple):
    """Microseconds per million multiply-accumulates, per million elements read or written, and per layer.

    Only ratios of times matter. The times are fitted to 13 networks of all kinds on one core of Zen 5. Most of these
    networks take 0.75 to 1.2 times (f32: 0.76 to 1.2 times) the estimated time.
    """

    macs: float
    elements: float
    each: float

    def of(self, work: Iterable[tuple[float, float]]) -> float:
        """The time of layers, each given by its multiply-accumulates and its elements."""
        return sum(1e-6 * (self.macs * macs + self.elements * elements) + self.each for macs, elements in work)


FLOATS = Times(9.6, 55.0, 0.6)
"""The times of f32 layers."""
INTEGERS = Times(3.8, 74.0, 0.76)
"""The times of 8-bit layers on CPUs with a dot product of four bytes."""
REPEATED = Times(1.7, 85.0, 0.0)
"""The additional times of 16 bits for one operand: a second layer, without an epilogue or corrections near ties.

The times are fitted to 40 networks with 16 bits for the larger half of their layers. For most networks, the estimated
time is wrong by at most 0.1 of the model's time with 8 bits. With f32 instead of 16 bits, the error is at most 0.14.
"""
WITHOUT_DOT4 = 8.0
"""Microseconds per million 8-bit multiply-accumulates on CPUs without a dot product of four bytes; f32 takes 9.6.

This time and the other times are from x86 CPUs; Arm's are not measured.
"""
FULL = 64
"""The number of channels that an 8-bit depthwise kernel computes at a time, if the CPU has registers of 64 bytes."""
MOST_FLOATS = 0.5
"""At most this share of multiply-accumulates is in f32 instead of 16 bits; layers in f32 from the start add to it."""
SHORT = frozenset({"add", "subtract", "multiply", "divide", "minimum", "maximum", "relu", "prelu", "clamp"})
"""Elementwise operations that take no longer than the quantize after them."""


def _around(node: Node) -> set[Node]:
    """The elementwise operations between a layer and its inputs, and between the layer and its readers."""
    def near(step: Callable[[Node], Iterable[Node]]) -> set[Node]:
        return reached([node], lambda n: [m for m in step(n) if m.op.elementwise])

    return (near(makers_of) | near(readers_of)) - {node}


@dataclass(frozen=True)
class Price:
    """The work of a graph's layers at the sizes of `batch`, and the time of this work on a CPU of this `level`."""

    graph: Graph
    batch: Batch
    level: Level

    @lazy_property
    def at_sizes(self) -> Graph:
        """The graph at the sizes of the batch."""
        return self.graph.specialize({str(v.name): TensorType(v.dtype, np.shape(self.batch[str(v.name)]))
                                      for v in self.graph.inputs})

    @lazy_property
    def sized(self) -> list[LinearLayer]:
        """The layers at the sizes of the batch, without layers whose shapes stay unknown."""
        return [p for p in products(self.at_sizes) if all(x.type.known for x in (*p.factors, p.node.output))]

    def faster_in_floats(self, product: LinearLayer) -> bool:
        """Whether a layer takes less time in f32 than in 8 bits.

        This is true only for depthwise convolutions. They multiply little per element, so quantizing inputs and
        results, and recomputing outputs near a tie, costs more than 8 bits save. The exception are large convolutions
        on CPUs with a dot product of four bytes, if only SHORT operations are around them.
        """
        if product.groups == 1 or product.weights is None or product.weights.shape[product.weight_axes()[1]] > 1:
            return False
        macs, _ = self.work.get(product.name, (np.inf, 0.0))
        return self.level.dot4 is None or product.groups < FULL or macs < tuned.MANY \
            or any(n.op.name not in SHORT for n in _around(product.node))

    @lazy_property
    def work(self) -> dict[str, tuple[float, float]]:
        """The multiply-accumulates of each layer in all iterations, and the elements of its activations and result."""
        owners, found = with_bodies(self.at_sizes), {}
        for p in self.sized:
            elements = sum(x.type.size for x in (*(p.factors[k] for k in p.activations), p.node.output))
            times = iterations(p.node, owners)
            found[p.name] = float(times * MACS[p.node.op.name](p.node)), float(times * elements)
        return found

    def times(self, of_dot4: Times) -> Times:
        """Adapt `of_dot4`, the times of 8-bit layers, to the CPU that the graph is compiled for."""
        return of_dot4 if self.level.dot4 is not None else of_dot4._replace(macs=WITHOUT_DOT4)

    def time(self, setting: Setting) -> float:
        """The estimated time of a setting; 1 is the model's time in f32."""
        s = setting.scheme
        time = self.times(INTEGERS).of(self.work.values())
        time += sum(self._added(name)[1] for name in (*s.wide, *s.wide_weights))
        time += sum(self._added(name)[0] for name in s.exclude)
        return time / max(FLOATS.of(self.work.values()), 1e-9)

    def faster_exact(self, operands: Mapping[str, int]) -> list[str]:
        """The layers that take less time in f32 than with 16 bits; the first have priority (MOST_FLOATS).

        `operands` has their numbers of 16-bit operands.
        """
        found, macs = [], MOST_FLOATS * sum(macs for macs, _ in self.work.values())
        for name, count in operands.items():
            floats, repeated = self._added(name)
            if floats < count * repeated and self.work[name][0] <= macs:
                found.append(name)
                macs -= self.work[name][0]
        return found

    def exact(self, name: str) -> float:
        """The time that one exact operand of a layer adds, with 16 bits or f32, whichever is less."""
        return max(1e-3, min(self._added(name)))

    def _added(self, name: str) -> tuple[float, float]:
        """The additional time of a layer compared with 8 bits: in f32, and with 16 bits for one operand.

        f32 never counts as faster: between layers in integers it takes additional conversions.
        """
        work = [self.work[name]] if name in self.work else []
        return max(0.0, FLOATS.of(work) - self.times(INTEGERS).of(work)), self.times(REPEATED).of(work)
