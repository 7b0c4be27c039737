"""Estimate the time of a setting: of layers in 8 bits, in 16 bits and in f32, of recurrences, and of values between.

The kernel table's cycles (`kernels/matmul/kernel_table.py`) cannot replace these times, because they cover
only products: for settings with 16 bits (24 networks, AVX2) they are wrong by 0.19 of the time instead of 0.08.
"""
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graphq.base.locks import lazy_property
from graphq.ir import Graph, Node, TensorType, makers_of, reached, readers_of
from graphq.kernels.target.level import Level
from graphq.quantization import dynamic, tuned
from graphq.quantization.between import quantized_between, stored_between
from graphq.quantization.bodies import iterations, with_bodies
from graphq.quantization.calibrate import Batch
from graphq.quantization.products import LinearLayer, products, values_by_name
from graphq.quantization.scheme import Setting
from graphq.report.coverage import MACS


class Times(NamedTuple):
    """Microseconds per million multiply-accumulates, per million elements read or written, and per layer."""

    macs: float
    elements: float
    each: float

    def of(self, work: Iterable[tuple[float, float]]) -> float:
        """The time of layers, each given by its multiply-accumulates and its elements."""
        return sum(1e-6 * (self.macs * macs + self.elements * elements) + self.each for macs, elements in work)


class Rates(NamedTuple):
    """The times of layers on one kind of CPU: in f32, in 8 bits, and in 8 bits with 7-bit weights.

    `repeated` has the additional times of 16 bits for one operand: a second layer. Only ratios of times matter.
    """

    floats: Times
    integers: Times
    seven: Times
    repeated: Times


WITH_DOT4 = Rates(Times(9.6, 55.0, 0.6), Times(3.8, 74.0, 0.76), Times(3.8, 74.0, 0.76), Times(1.7, 85.0, 0.0))
"""The times on CPUs with a dot product of four bytes, fitted to 13 networks of all kinds on one core of Zen 5.

Most of these networks take 0.75 to 1.2 times (f32: 0.76 to 1.2 times) the estimated time. 16 bits are fitted to 40
networks with 16 bits for the larger half of their layers. For most, the estimated time is wrong by at most 0.1 of the
model's time with 8 bits; by at most 0.14 with f32 instead of 16 bits. The times of Arm are not measured.
"""
WITHOUT_DOT4 = Rates(Times(34.0, 10.0, 2.9), Times(27.0, 190.0, 2.8), Times(23.0, 190.0, 2.8), Times(13.0, 450.0, 0.0))
"""The times on other CPUs, fitted to seven settings of each of 24 networks on one core of Zen 3 (AVX2).

The root mean square of the errors is 0.10 of the time, and 0.08 for settings with 16 bits.
"""
FULL = 64
"""The number of channels that an 8-bit depthwise kernel computes at a time, if the CPU has registers of 64 bytes."""
RECURRENT = 2.4
"""A multiply-accumulate of a recurrence takes so many times as long as one of a layer in f32.

Six networks with GRUs and LSTMs on one core of Zen 3 have 1.6 to 4.0.
"""
SHORT = frozenset({"add", "subtract", "multiply", "divide", "minimum", "maximum", "relu", "prelu", "clamp"})
"""Elementwise operations that take no longer than the quantize after them."""


def _around(node: Node) -> set[Node]:
    """The elementwise operations between a layer and its inputs, and between the layer and its readers."""
    def near(step: Callable[[Node], Iterable[Node]]) -> set[Node]:
        return {*reached([node], lambda n: [m for m in step(n) if m.op.elementwise])}

    return (near(makers_of) | near(readers_of)) - {node}


@dataclass(frozen=True)
class Price:
    """The work of a graph at the sizes of `batch`, and the time of this work on a CPU of this `level`."""

    graph: Graph
    batch: Batch
    level: Level

    def faster_in_floats(self, product: LinearLayer) -> bool:
        """Whether a layer takes less time in f32 than in 8 bits.

        This is true only for depthwise convolutions. They multiply little per element, so quantizing inputs and
        results, and recomputing outputs near a tie, can cost more than 8 bits save. The fitted times decide for FULL
        channels and more with only SHORT operations around the layer.
        """
        if product.groups == 1 or product.weights is None or product.weights.shape[product.weight_axes()[1]] > 1:
            return False
        return product.groups < FULL or any(n.op.name not in SHORT for n in _around(product.node)) \
            or self._added(product.name)[0] <= 0

    @lazy_property
    def sized(self) -> Graph:
        """The graph at the sizes of the batch. Layers and values whose shapes stay unknown count as no work."""
        return self.graph.specialize({str(v.name): TensorType(v.dtype, np.shape(self.batch[str(v.name)]))
                                      for v in self.graph.inputs})

    @lazy_property
    def work(self) -> dict[str, tuple[float, float]]:
        """The multiply-accumulates of each layer in all iterations, and the elements of its activations and result."""
        owners, found = with_bodies(self.sized), {}
        for p in (p for p in products(self.sized) if all(x.type.known for x in (*p.factors, p.node.output))):
            elements = sum(x.type.size for x in (*(p.factors[k] for k in p.activations), p.node.output))
            times = iterations(p.node, owners)
            found[p.name] = float(times * MACS[p.node.op.name](p.node)), float(times * elements)
        return found

    @lazy_property
    def recurrent(self) -> float:
        """The multiply-accumulates of operations that are no layers, such as recurrences; most stay in f32."""
        layers = {p.node for p in products(self.sized)}
        return self._macs(n for g in with_bodies(self.sized) for n in g.nodes_of((*MACS,)) if n not in layers)

    def _macs(self, nodes: Iterable[Node]) -> float:
        owners = with_bodies(self.sized)
        return float(sum(iterations(n, owners) * MACS[n.op.name](n) for n in nodes
                         if all(x.type.known for x in (*n.operands, *n.outputs))))

    @lazy_property
    def stored(self) -> dict[str, int]:
        """The elements that integers in place of a value between layers quantize in addition, by the value's name.

        The number is negative if only layers and elementwise operations read the value, a layer among them: the layer's
        input is quantized in any case, and then the integers are stored instead of both.
        """
        layers, found = {p.node for p in products(self.sized)}, {}
        for x in map(values_by_name(self.sized).__getitem__, stored_between(self.graph)):
            once = not layers.isdisjoint(x.users) and all(n in layers or n.op.elementwise for n in x.users)
            found[str(x.name)] = (-1 if once else 1) * (x.type.size if x.type.known else 0)
        return found

    @property
    def rates(self) -> Rates:
        """The times on the CPU that the graph is compiled for."""
        return WITHOUT_DOT4 if self.level.dot4 is None else WITH_DOT4

    def time(self, setting: Setting) -> float:
        """The estimated time of a setting; 1 is the model's time in f32."""
        s, rates = setting.scheme, self.rates
        time = rates.floats.of(x for name, x in self.work.items() if name in s.exclude)
        eight = rates.seven if s.weight_bits == 7 else rates.integers
        time += eight.of(x for name, x in self.work.items() if name not in s.exclude)
        time += rates.repeated.of(self.work[name] for name in (*s.wide, *s.wide_weights) if name in self.work)
        quantized = sum(self.stored[name] for name in quantized_between(self.graph, s) if name in self.stored)
        time += 1e-6 * (rates.integers.elements - rates.floats.elements) * quantized
        others = 1e-6 * RECURRENT * rates.floats.macs * self.recurrent
        states = self._macs(n for _, n in dynamic.layers(self.sized, s)) if s.states else 0.0
        saved = 1e-6 * RECURRENT * (rates.floats.macs - rates.integers.macs) * states
        return (time + others - saved) / max(rates.floats.of(self.work.values()) + others, 1e-9)

    def faster_exact(self, operands: Mapping[str, int]) -> list[str]:
        """The layers that take less time in f32 than with 16 bits; the first have priority (MOST_FLOATS).

        `operands` has their numbers of 16-bit operands.
        """
        found, macs = [], tuned.MOST_FLOATS * sum(macs for macs, _ in self.work.values())
        for name, count in operands.items():
            floats, repeated = self._added(name)
            if floats < count * repeated and self.work[name][0] <= macs:
                found.append(name)
                macs -= self.work[name][0]
        return found

    def exact(self, name: str) -> float:
        """The time that one exact operand of a layer adds, with 16 bits or f32: the lesser, at least a nanosecond."""
        return max(1e-3, min(self._added(name)))

    def _added(self, name: str) -> tuple[float, float]:
        """The additional time of a layer compared with 8 bits: in f32, and with 16 bits for one operand."""
        work = [self.work[name]] if name in self.work else []
        return self.rates.floats.of(work) - self.rates.integers.of(work), self.rates.repeated.of(work)
