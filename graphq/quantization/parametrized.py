"""One compiled model for all settings: the parameters of quantization are inputs of the model.

A setting is then tried without a compilation. A quantized layer becomes a layer on the f32 numbers that the integers
represent, so results differ from integer results by roundings of f32 sums:

    layer(fake(x * inverse), near + step_of_rest * rint((w - near) / step_of_rest), bias)
    fake(x) = step * clip(rint(x / step), low, high)        w = weights * factors, near = steps * rint(w / steps)

Each input channel has a factor, and `inverse` is 1 / factors. `near` has the weights, rounded to 8 bits. For 16-bit
weights, the rest w - near is rounded to multiples of `step_of_rest` and added. A value that is stored between layers is
replaced by fake(value) for all of its readers. Every parameter of these formulas is an input of the model. Boolean
inputs switch off each fake and the rounding of weights.
"""
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from graphq.compile import compile
from graphq.ir import Graph, Value
from graphq.ir.interpret import named_outputs
from graphq.model.compiled_graph import CompiledGraph
from graphq.quantization.between import stored_between
from graphq.quantization.bodies import copied, raise_inputs
from graphq.quantization.calibrate import Batches, checked_batches, in_unit
from graphq.quantization.insert import PART, Quantized, along, rest_of_weights, weight_scales
from graphq.quantization.products import LinearLayer, products, right_after, values_by_name
from graphq.quantization.ranges import Parameters
from graphq.quantization.scheme import Scheme
from graphq.quantization.smooth import along_weights, scaled_weights

PREFIX, BETWEEN = "quantized/", "between/"
COARSE = np.finfo(np.float32).max
"""A step of weights that rounds every number to 0."""
BYPASS = {name: np.array(1, np.float32) for name in ("step", "low", "high")}
"""The inputs of a fake quantization while it is switched off."""


@dataclass
class Difference:
    """The difference that quantization makes at one layer, over all batches.

    `shift` is the mean of f32 - quantized, per channel if there are weights. `noise` is the mean square of this
    difference, and `signal` the mean square of the f32 result.
    """

    shift: np.ndarray
    noise: float = 0.0
    signal: float = 0.0
    count: int = 0

    @property
    def ratio(self) -> float:
        """The ratio `noise` / `signal`; infinite if either is not finite."""
        return self.noise / max(self.signal, 1e-300) if np.isfinite([self.noise, self.signal]).all() else np.inf

    def add(self, shift: np.ndarray, noise: float, signal: float) -> None:
        """Add the measurements of one more batch."""
        self.count += 1
        self.shift = self.shift + (shift - self.shift) / self.count
        self.noise += (noise - self.noise) / self.count
        self.signal += (signal - self.signal) / self.count


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
            elif (axis := product.result_axis()) is not None and y.shape is not None:
                # Without weights, also average over channels: the number of channels may differ from batch to batch.
                others = [k for k in range(len(y.shape)) if k != axis or product.weights is None]
                with right_after(g, y):
                    unit, d, z = in_unit(g, g.subtract(y, other), y)
                    for part, v in (("shift", d), ("noise", g.square(d)), ("signal", g.square(z))):
                        outputs[f"{part}/{product.name}"] = g.reduce_mean(v, axes=others)
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
        for batch in checked_batches(batches, self.graph.inputs):
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
            factors = np.ones(p.channels() if p.has_channels else 0) if q is None or q.factors is None else q.factors
            if p.has_channels:
                made[f"{PREFIX}{name}/inverse"] = (1 / factors).astype(np.float32)
                made[f"{PREFIX}{name}/factors"] = along_weights(p, factors).astype(np.float32)
            if p.weights is not None:
                steps, rest = self._steps(p, q, scheme)
                made |= {f"{PREFIX}{name}/steps": steps, f"{PREFIX}{name}/rest": rest,
                         f"{PREFIX}{name}/on": np.array(q is not None)}
            if (bias := bias_of(p)) is not None:
                shift = None if q is None else q.shift
                made[f"{PREFIX}{name}/bias"] = bias if shift is None else (bias + shift).astype(np.float32)
        taken = self.model.inputs
        return {name: x for name, x in made.items() if name in taken}

    def differences(self, batches: Batches, chosen: Mapping[str, Quantized], scheme: Scheme) -> dict[str, Difference]:
        """The change that quantization causes at each layer whose result has elements, by name."""
        found: dict[str, Difference] = {}
        if self.model is None:
            return found
        parameters = self.inputs(chosen, scheme)
        for batch in checked_batches(batches, self.graph.inputs):
            out = named_outputs(self.model.outputs, self.model({**batch, **parameters}))
            for name in chosen:
                if (unit := out.get(f"unit/{name}")) is None:
                    continue
                shift, noise, signal = (out[f"{part}/{name}"] * unit.astype(np.float64)**power
                                        for part, power in (("shift", 1), ("noise", 2), ("signal", 2)))
                if not np.isnan(signal).any():  # the means of a result without elements are NaN
                    found.setdefault(name, Difference(np.zeros_like(shift))).add(
                        shift, float(noise.mean()), float(signal.mean()))
        return found

    def _steps(self, p: LinearLayer, q: Quantized | None, scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
        """The steps of the products of weights and factors, per output channel, and of their rounding remainders."""
        assert p.weights is not None
        factors = None if q is None or q.factors is None else q.factors.tobytes()
        key = p.name, scheme.weight_bits, scheme.per_channel, factors, q is not None and q.wide_weights, q is None
        if key not in self.steps:
            near = rest = np.full(p.weights.shape[p.weight_axes()[0]], COARSE)
            if q is not None:
                w = p.weights if q.factors is None else scaled_weights(p, q.factors)
                near = near * 0 + weight_scales(w, *along(p, scheme))
                if q.wide_weights:
                    rest = rest * 0 + weight_scales(rest_of_weights(w, *along(p, scheme)), *along(p, scheme))
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


def bias_of(p: LinearLayer) -> np.ndarray | None:
    """The constant bias of a layer, one number per output channel: zeros without a bias, None if it cannot have one."""
    if p.weights is None or p.node.op.name == "conv_transpose" and p.groups > 1:
        return None
    zeros = np.zeros(p.weights.shape[p.weight_axes()[0]], np.float32)
    bias = zeros if p.bias is None else p.bias.data
    return bias if bias is not None and bias.shape == zeros.shape else None


def _parametrized(p: LinearLayer) -> Value:
    g, node, name, operands = p.node.graph, p.node, f"{PREFIX}{p.name}", list(p.node.inputs)

    def new(part: str, shape: tuple[int, ...] = ()) -> Value:
        return g.input(f"{name}/{part}", dtype="f32", shape=shape)

    with g.before(node):
        for k in p.activations:
            x = p.factors[k]
            if k == 0 and p.has_channels:
                assert x.shape is not None
                shape = [-1 if d == p.source_axis() else 1 for d in range(len(x.shape))]
                x = g.multiply(x, g.static_reshape(new("inverse", (p.channels(),)), shape=shape, special_zero=False))
            operands[k] = _fake(g, x, name, k)
        if p.weights is not None:
            operands[1] = _fake_weights(g, p, new)
        if (bias := bias_of(p)) is not None:
            operands[2:] = [new("bias", bias.shape)]
        out: Value = g.add_node(node.op, operands, node.attrs)[0]
    return out


def _fake_weights(g: Graph, p: LinearLayer, new: Callable[[str, tuple[int, ...]], Value]) -> Value:
    """The weights times the factors, rounded to multiples of their steps, plus the rounded remainder."""
    assert p.weights is not None
    w, (out, _) = p.factors[1], p.weight_axes()
    if p.has_channels:
        w = g.multiply(w, new("factors", along_weights(p, np.ones(p.channels())).shape))
    shape = [-1 if k == out else 1 for k in range(p.weights.ndim)]
    steps, rest = (g.static_reshape(new(part, (p.weights.shape[out],)), shape=shape, special_zero=False)
                   for part in ("steps", "rest"))
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
