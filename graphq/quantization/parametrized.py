"""One compiled model for all settings: the parameters of quantization are inputs of the model.

A setting is then tried without a compilation. A quantized layer becomes a layer on the f32 numbers that the integers
represent, so results differ from integer results by roundings of f32 sums:

    layer(fake(x), near + step_of_rest * rint((w - near) / step_of_rest), bias)
    fake(x) = step * clip(rint(x / step), low, high)        near = steps * rint(w / steps)

`near` has the weights, rounded to 8 bits. For 16-bit weights, the rest w - near is rounded to multiples of
`step_of_rest` and added. A value that is stored between layers is replaced by fake(value) for all of its readers.
Steps and limits are inputs of the model. Boolean inputs switch off each fake and the rounding of weights.
"""
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from graphq.compile import compile
from graphq.ir import Graph, Value, named_outputs
from graphq.model.compiled_graph import CompiledGraph
from graphq.quantization.between import stored_between
from graphq.quantization.bodies import copied, raise_inputs
from graphq.quantization.calibrate import Batches, checked_batches, in_unit
from graphq.quantization.insert import PART, Quantized, along, rest_of_weights, weight_scales
from graphq.quantization.products import LinearLayer, products, right_after, values_by_name
from graphq.quantization.ranges import Parameters
from graphq.quantization.scheme import Scheme

PREFIX, BETWEEN = "quantized/", "between/"
COARSE = np.finfo(np.float32).max
"""A step of weights that rounds every number to 0."""
BYPASS = {name: np.array(1, np.float32) for name in ("step", "low", "high")}
"""The inputs of a fake quantization while it is switched off."""


@dataclass
class Parametrized:
    """The model of a `prepared` graph; with `twins` each f32 layer gets a quantized twin.

    A twin reads the same f32 operands as the layer, so one run shows for each layer how much its own quantization
    changes its result. Without twins the model has the outputs of the graph. `steps` caches the steps of weights;
    several models can share it.
    """

    graph: Graph
    twins: bool
    steps: dict[object, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        g = copied(self.graph)
        self.products = {p.name: p for p in products(self.graph, inside=not self.twins)}
        outputs: dict[str, Value] = {}
        self.between = () if self.twins else stored_between(g)
        values = values_by_name(g)
        for name in self.between:
            x, uses = values[name], list(values[name].uses)
            with g.before(x.users[0]):
                g.replace_uses(x, _fake(g, x, f"{BETWEEN}{name}", 0), uses)
        for product in list(products(g, inside=not self.twins)):
            y, other = product.node.output, _parametrized(product)
            if not self.twins:
                y.graph.replace_uses(y, other)
            elif y.shape is not None:
                with right_after(g, y):
                    unit, d, z = in_unit(g, g.subtract(y, other), y)
                    for part, v in (("noise", d), ("signal", z)):
                        outputs[f"{part}/{product.name}"] = g.reduce_mean(g.square(v), axes=[*range(len(y.shape))])
                    outputs[f"unit/{product.name}"] = unit
        if self.twins:
            g.set_outputs(list(outputs.values()), list(outputs))
        raise_inputs(g)
        g.prune()
        self.model: CompiledGraph | None = compile(g, cache="kernels") if g.outputs or not self.twins else None

    def runs(self, batches: Batches, chosen: Mapping[str, Quantized], scheme: Scheme,
             between: Mapping[str, Parameters] | None = None) -> Iterator[dict[str, np.ndarray]]:
        """The outputs of each batch; layers not in `chosen`, and values not in `between`, stay in f32."""
        assert self.model is not None
        parameters = self.inputs(chosen, scheme, between)
        for batch in checked_batches(batches, self.graph):
            yield named_outputs(self.model.outputs, self.model({**batch, **parameters}))

    def inputs(self, chosen: Mapping[str, Quantized], scheme: Scheme,
               between: Mapping[str, Parameters] | None = None) -> dict[str, np.ndarray]:
        """The inputs with which the model quantizes only `chosen` and `between`, without the arrays of a batch."""
        assert self.model is not None
        made: dict[str, np.ndarray] = {}
        for name in self.between:
            stored = between.get(name) if between else None
            made |= _fake_inputs(f"{BETWEEN}{name}", 0, None if stored is None else limits(stored, False))
        for name, p in self.products.items():
            q = chosen.get(name)
            for k in p.activations:
                parts = limits(q.activations[k], q.wide) if q is not None and k in q.activations else None
                made |= _fake_inputs(f"{PREFIX}{name}", k, parts)
            if p.weights is not None:
                steps, rest = self._steps(p, q, scheme)
                made |= {f"{PREFIX}{name}/steps": steps, f"{PREFIX}{name}/rest": rest,
                         f"{PREFIX}{name}/on": np.array(q is not None)}
        taken = self.model.inputs
        return {name: x for name, x in made.items() if name in taken}

    def ratios(self, batches: Batches, chosen: Mapping[str, Quantized], scheme: Scheme) -> dict[str, float]:
        """The noise that quantization causes in each layer's result over its signal, by name: a ratio of mean squares.

        Infinite if either is not finite. Layers whose results have no elements are left out.
        """
        sums: dict[str, np.ndarray] = {}
        for out in self.runs(batches, chosen, scheme) if self.model is not None else ():
            for name in chosen:
                if f"unit/{name}" in out:
                    both = np.array([out[f"noise/{name}"], out[f"signal/{name}"]], np.float64)
                    if not np.isnan(both[1]):  # the mean of a result without elements is NaN
                        sums[name] = sums.get(name, np.zeros(2)) + both * float(out[f"unit/{name}"])**2
        return {name: float(noise / max(signal, 1e-300)) if np.isfinite([noise, signal]).all() else np.inf
                for name, (noise, signal) in sums.items()}

    def _steps(self, p: LinearLayer, q: Quantized | None, scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
        """The steps of weights, per output channel, and of their rounding remainders."""
        assert p.weights is not None
        key = p.name, scheme.weight_bits, scheme.per_channel, q is not None and q.wide_weights, q is None
        if key not in self.steps:
            near = rest = np.full(p.weights.shape[p.weight_axes()[0]], COARSE)
            if q is not None:
                how = along(p, scheme)
                near = near * 0 + weight_scales(p.weights, *how)
                if q.wide_weights:
                    rest = rest * 0 + weight_scales(rest_of_weights(p.weights, *how), *how)
            self.steps[key] = near, rest
        return self.steps[key]


def limits(p: Parameters, wide: bool) -> dict[str, np.ndarray]:
    """The step of a tensor with one scale, and the smallest and largest multiple of the step in its range."""
    low, high = int(p.dtype.min) - p.zps[0], int(p.dtype.max) - p.zps[0]
    step = np.array(p.scales[0], np.float32)
    if wide:
        step, low, high = np.asarray(step / np.float32(PART)), low * PART - PART // 2, high * PART + PART // 2 - 1
    return {"step": step, "low": np.array(low, np.float32), "high": np.array(high, np.float32)}


def _fake_inputs(name: str, k: int, parts: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    return {f"{name}/on{k}": np.array(parts is not None)} | {
        f"{name}/{part}{k}": x for part, x in (parts or BYPASS).items()}


def _parametrized(p: LinearLayer) -> Value:
    g, node, operands = p.node.graph, p.node, list(p.node.inputs)
    with g.before(node):
        for k in p.activations:
            operands[k] = _fake(g, p.factors[k], f"{PREFIX}{p.name}", k)
        if p.weights is not None:
            operands[1] = _fake_weights(g, p)
        out: Value = g.add_node(node.op, operands, node.attrs)[0]
    return out


def _fake_weights(g: Graph, p: LinearLayer) -> Value:
    """The weights, rounded to multiples of their steps, plus the rounded remainder."""
    assert p.weights is not None
    w, (out, _) = p.factors[1], p.weight_axes()
    shape = [-1 if k == out else 1 for k in range(p.weights.ndim)]
    steps, rest = (g.static_reshape(g.input(f"{PREFIX}{p.name}/{part}", dtype="f32", shape=(p.weights.shape[out],)),
                                    shape=shape, special_zero=False) for part in ("steps", "rest"))
    near: Value = g.multiply(g.round(g.divide(w, steps)), steps)
    both = g.add(near, g.multiply(g.round(g.divide(g.subtract(w, near), rest)), rest))
    chosen: Value = g.select(g.input(f"{PREFIX}{p.name}/on", dtype="boolean", shape=()), both, w)
    return chosen


def _fake(g: Graph, x: Value, name: str, k: int) -> Value:
    """x quantized and dequantized in f32; step and limits are graph inputs."""
    step, low, high = (g.input(f"{name}/{part}{k}", dtype="f32", shape=()) for part in ("step", "low", "high"))
    near = g.multiply(g.minimum(g.maximum(g.round(g.divide(x, step)), low), high), step)
    out: Value = g.select(g.input(f"{name}/on{k}", dtype="boolean", shape=()), near, x)
    return out
