"""quantize: turn an f32 graph into a graph with quantize and dequantize nodes, by a scheme or the best setting."""
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphq.errors import GraphError
from graphq.ir import Graph
from graphq.quantization import dynamic, insert
from graphq.quantization.blocks import insert_blocks
from graphq.quantization.calibrate import Batches, calibrate
from graphq.quantization.estimate import Estimate
from graphq.quantization.products import left_in_floats, name_values, prepared, refuse_integers, values_by_name
from graphq.quantization.scheme import Scheme, Setting
from graphq.quantization.search import Point, Search
from graphq.quantization.selection import resolved
from graphq.quantization.speed import Speed, speed
from graphq.quantization.statistics import Statistics


def quantize(graph: Graph, data: Statistics | Batches | None = None, scheme: Scheme | None = None) -> Graph:
    """A quantized copy of an f32 graph, ready for `compile`, `save_onnx` and the text form; the graph is not changed.

    `data` are batches, or the statistics that `calibrate` computed from them. Batches are an iterable of dicts from
    input names to arrays, or an object with `get_next`. Dynamic and weight-only schemes need no data, except that
    rounding "gptq" needs batches.

    With batches and no `scheme`, or with a scheme of method "automatic", `quantize` searches for the best setting that
    agrees with the scheme; `automatic` also returns this setting. The search reads the batches several times. It keeps
    them in memory if they are not a sequence.

    A graph without layers stays as it is. Raises GraphError if `graph` is not a graph, if it already has layers in
    integers, or if a name does not exist, and InputError if data do not fit.
    """
    if scheme is not None and not isinstance(scheme, Scheme):
        raise GraphError(f"scheme must be a Scheme, got {scheme!r}")
    if data is not None and not isinstance(data, Statistics) and (scheme is None or scheme.method == "automatic"):
        return automatic(graph, data, scheme).graph
    if scheme is not None and scheme.method == "automatic":
        raise GraphError("method 'automatic' needs batches")
    out = prepared(graph)
    refuse_integers(out)
    names, unheld = values_by_name(out), dict[str, str]()
    scheme = resolved(out, scheme or Scheme())
    if scheme.mode == "dynamic":
        unheld = dynamic.unheld(out, scheme)
        dynamic.insert_dynamic(out, scheme)
    elif scheme.mode == "weight_only":
        if scheme.rounding == "gptq" and (data is None or isinstance(data, Statistics)):
            raise GraphError("rounding by 'gptq' needs batches")
        insert_blocks(out, scheme, None if isinstance(data, Statistics) else data)
    elif data is None:
        raise GraphError("quantize needs batches or statistics, except with a dynamic or weight-only scheme")
    else:
        statistics = data if isinstance(data, Statistics) else calibrate(out, data)
        if scheme.states:
            dynamic.insert_layers(out, scheme)
        unheld = insert.insert_static(out, statistics, scheme)
    name_values(out, names)
    out.meta = {**out.meta, "quantization": _facts(out, scheme, unheld)}
    return out


def _facts(made: Graph, scheme: Scheme, unheld: Mapping[str, str]) -> dict[str, Any]:
    floats = {p.name for p in insert.kept(made, Scheme())}
    return {"layers_int16": [n for n in scheme.wide if n not in floats],
            "weights_int16": [n for n in scheme.wide_weights if n not in floats], "layers_f32": list(scheme.exclude),
            "between_layers": list(scheme.between), "out_of_range": dict(unheld), "not_quantized": left_in_floats(made)}


def left_text(facts: Mapping[str, Any]) -> list[str]:
    """A line about operations that multiply and stay in floats, and a line for each layer that integers cannot hold."""
    names = ", ".join(f"{n} {name}" for name, n in facts["not_quantized"].items())
    return [*[f"not quantized: {names}"] * bool(names),
            *(f"'{name}' {why}" for name, why in facts["out_of_range"].items())]


@dataclass
class Choice:
    """The quantized graph, its setting, and the loss (the largest 1 - cosine) of each setting that was tried.

    `estimate` has the loss of the chosen setting, and how reliable it is; `speed` has its speedup on this machine.
    `left` counts the operations that multiply and stay in floats with any setting (`left_in_floats`). `failed` has the
    settings whose graphs could not be made or run, each with the reason; their loss is infinite. `unheld` has a
    sentence for each layer that integers cannot hold, or that too few batches reached (`insert.unheld`). `curve` has
    the frontier of loss over time, the fastest point first. The losses of settings that fell behind are lower bounds.
    """

    graph: Graph
    setting: Setting
    estimate: Estimate
    speed: Speed
    losses: dict[Setting, float] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    failed: dict[Setting, str] = field(default_factory=dict)
    unheld: dict[str, str] = field(default_factory=dict)
    curve: list[Point] = field(default_factory=list)

    def __str__(self) -> str:
        """The frontier with the chosen point (`*`), and what else is known about the setting."""
        lines = (f"{'*' if p.setting == self.setting else ' '} {p}" for p in self.curve)
        failed = (f"left out, because its graph cannot be made or run: {s}: {why}" for s, why in self.failed.items())
        left = left_text({"not_quantized": self.left, "out_of_range": self.unheld})
        return "\n".join([*lines, *failed, *left, str(self.estimate), str(self.speed)])


def automatic(graph: Graph, batches: Batches, scheme: Scheme | None = None) -> Choice:
    """Quantize with a setting of the frontier of loss over time, measured on held-out data (`Search`).

    A `scheme` of method "automatic" has the user's choices: layers that must stay in f32 or get 16 bits, ranges of
    tensors, symmetric zero points, the bits of weights. Raises GraphError and InputError like `quantize`.
    """
    scheme = scheme or Scheme(method="automatic")
    if scheme.method != "automatic":
        raise GraphError(f"automatic: the scheme's method must be 'automatic', got {scheme.method!r}")
    plain = replace(scheme, method="mse", preset="balanced", max_loss=None, max_time=None)
    work = Search(graph, batches, plain)
    setting = work.run(scheme, narrow=scheme.weight_bits is None)
    made, estimate, data = work.made(setting), work.estimate(setting), work.batches
    held, seen = work.chosen(setting, work.every), work.statistics[work.every]
    unheld = insert.unheld(work.graph, held, setting.scheme, seen)
    losses, failed, curve = work.losses, work.failed, work.curve
    del work  # free its compiled models
    gained = speed(made, graph, data)
    facts = _facts(made, setting.scheme, unheld)
    made.meta = {**made.meta, "quantization": {
        "setting": str(setting), **facts, "cosine": 1 - losses[setting], "estimate": estimate.json(),
        "failed": {str(s): why for s, why in failed.items()}, "speed": gained.json(),
        "curve": [{"time": p.time, "loss": p.loss, "setting": str(p.setting)} for p in curve]}}
    return Choice(made, setting, estimate, gained, losses, facts["not_quantized"], failed, unheld, curve)
