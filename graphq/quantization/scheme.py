"""The class Scheme states how a graph is quantized; a Setting is one trial of the automatic search."""
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from graphq.dtypes import DType, as_dtype, s8, s16, u8, u16
from graphq.errors import GraphError
from graphq.ir import counted

Method: TypeAlias = Literal["min_max", "percentile", "mse", "automatic"]
Preset: TypeAlias = Literal["fast", "balanced", "accurate"]
Mode: TypeAlias = Literal["static", "dynamic", "weight_only"]

ONE_MODE: Mapping[str, Mode] = {
    **dict.fromkeys(("activations", "symmetric", "method", "percentile", "headroom", "states", "limits"), "static"),
    "between": "static", "rows": "dynamic", "block": "weight_only", "rounding": "weight_only"}
"""Fields of a scheme that apply to only one mode, with this mode."""
GOALS = ("preset", "max_loss", "max_time")
"""Fields of a scheme that choose a point of the frontier (`Search.choose`)."""


@dataclass(frozen=True)
class Scheme:
    """How a graph is quantized; `quantize` checks it against the graph.

    - `mode`: "static" quantizes activations with ranges from statistics, "dynamic" with ranges found at run time.
      "weight_only" leaves activations in f32, and stores weights of matmuls in `weight_bits`.
    - `activations`: u8, s8, u16 or s16.
    - `symmetric`: the zero point is the middle of the integers, or 0 for u8 data that are never negative.
    - `method`: how a tensor's range follows from its histogram (`ranges`). "automatic" searches for the best setting;
      it keeps the fields that the user has set.
    - `percentile`: the percentage of magnitudes that method "percentile" keeps.
    - `headroom`: ranges are this many times as wide as the method says.
    - `per_channel`: weights have a scale per output channel.
    - `weight_bits`: 8 by default, or 7, which is faster on x86 CPUs without VNNI (`insert`). By default method
      "automatic" takes 7 there if the loss allows it (`Search.choose`). Mode "weight_only" also allows 4,
      and has one scale for each `block` weights along the summed axis.
    - `rounding`: "nearest", or "gptq", which needs batches and mode "weight_only".
    - `bias`: "s32", with the scale of activations times the scale of weights, or "f32".
    - `rows`: dynamic ranges per row of a matmul's input (per token).
    - `states`: LSTMs have integer states and inputs, with a new range in each step. Mode "dynamic" always does this.
    - `exclude`: layers that stay in f32, named as `selection` says.
    - `wide`, `wide_weights`: layers with 16-bit activations or weights. Each costs one more 8-bit layer, for the
      remainder that the first 8 bits leave.
    - `between`: values between layers that are quantized for sums, concats and pools (between.py); ("*",) means all.
    - `preset`, for method "automatic": a point of the frontier of loss over time. "accurate" loses least, "balanced"
      weighs both, and so does "fast", from points about as fast as min-max in 8 bits (`Search.choose`).
    - `max_loss`, `max_time`: the fastest point with at most this loss, or the point that loses least in at most this
      share of f32's time, as estimated. They take the place of a preset.
    - `limits`: the range (low, high) of tensors by name, instead of the method's range.
    """

    mode: Mode = "static"
    activations: DType = u8
    symmetric: bool = False
    method: Method = "mse"
    percentile: float = 99.99
    headroom: float = 1.0
    per_channel: bool = True
    weight_bits: Literal[4, 7, 8] | None = None
    block: int = 32
    rounding: Literal["nearest", "gptq"] = "nearest"
    bias: Literal["s32", "f32"] = "s32"
    rows: bool = False
    states: bool = False
    exclude: Collection[str] = ()
    wide: Collection[str] = ()
    wide_weights: Collection[str] = ()
    between: Collection[str] = ()
    preset: Preset = "balanced"
    max_loss: float | None = None
    max_time: float | None = None
    limits: Mapping[str, tuple[float, float]] | tuple[tuple[str, tuple[float, float]], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "activations", as_dtype(self.activations))
        if self.weight_bits is None and self.method != "automatic":
            object.__setattr__(self, "weight_bits", 8)
        choices = {"mode": get_args(Mode), "method": get_args(Method), "weight_bits": (4, 7, 8, None),
                   "bias": ("s32", "f32"), "rounding": ("nearest", "gptq"), "activations": (u8, s8, u16, s16),
                   "preset": get_args(Preset)}
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                raise GraphError(f"scheme: {name} must be one of {', '.join(map(str, allowed))}, got {value!r}")
        if not 50 < self.percentile <= 100:
            raise GraphError(f"scheme: percentile must be in (50, 100], got {self.percentile}")
        if not 0.1 <= self.headroom <= 10:
            raise GraphError(f"scheme: headroom must be in [0.1, 10], got {self.headroom}")
        if self.block < 1:
            raise GraphError(f"scheme: block must be positive, got {self.block}")
        for name in ("exclude", "wide", "wide_weights", "between"):
            if isinstance(getattr(self, name), str):
                raise GraphError(f"scheme: {name} must be a collection of names, got {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not all(isinstance(x, str) and x for x in getattr(self, name)):
                raise GraphError(f"scheme: {name} must hold names that are not empty, got {getattr(self, name)!r}")
        try:
            limits = {name: tuple(map(float, x)) for name, x in dict(self.limits).items()}
        except (TypeError, ValueError):
            raise GraphError(f"scheme: limits must be like {{'x': (0, 1)}}, got {self.limits!r}") from None
        for name, x in limits.items():
            if not (len(x) == 2 and all(map(math.isfinite, x)) and x[0] < x[1]):
                raise GraphError(f"scheme: limits of '{name}' must be finite, the first below the second, got "
                                 f"{' and '.join(f'{part:g}' for part in x)}")
        object.__setattr__(self, "limits", tuple(limits.items()))
        if self.method == "automatic" and (self.mode != "static" or self.activations.bits != 8):
            raise GraphError("scheme: method 'automatic' needs mode 'static' and 8-bit activations")
        if self.method == "automatic" and self.headroom != 1:
            raise GraphError("scheme: headroom has no effect with method 'automatic': give limits, or another method")
        chosen = {f.name: x for f in fields(self) if f.name in GOALS and (x := getattr(self, f.name)) != f.default}
        for name, x in chosen.items():
            if self.method != "automatic":
                raise GraphError(f"scheme: {name} {x!r} needs method 'automatic', got {self.method!r}")
            if name != "preset" and not (isinstance(x, Real) and float(x) > 0):
                raise GraphError(f"scheme: {name} must be positive, got {x!r}")
        if len(chosen) > 1:
            raise GraphError(f"scheme: give only one of {', '.join(chosen)}: each chooses a point of the frontier")
        if (self.wide or self.wide_weights) and (self.mode != "static" or self.activations.bits != 8):
            raise GraphError("scheme: wide and wide_weights need mode 'static' and 8-bit activations")
        if self.weight_bits == 7 and self.mode == "weight_only":
            raise GraphError("scheme: 7-bit weights need integer layers: mode 'static' or 'dynamic'")
        if self.weight_bits == 4 and self.mode != "weight_only":
            raise GraphError(f"scheme: 4-bit weights need mode 'weight_only', got {self.mode!r}")
        for f in fields(self):
            mode = ONE_MODE.get(f.name, self.mode)
            if mode != self.mode and getattr(self, f.name) != f.default:
                raise GraphError(f"scheme: {f.name} has no effect in mode {self.mode!r}; it needs mode {mode!r}")


class Candidate(NamedTuple):
    """How a tensor's range is chosen.

    The range is widened by `Statistics.unseen`**`margin`; `unseen` is the ratio by which a new batch is expected to
    exceed the statistics. A constant ratio would not fit, because more batches need a smaller ratio.
    """

    method: Method
    margin: float = 0.0

    def __str__(self) -> str:
        return self.method.replace("_", "-") + f" margin {self.margin:g}" * (self.margin != 0)


@dataclass(frozen=True)
class Setting:
    """A candidate per tensor, by name, and a scheme with the layers in 16 bits or f32."""

    choices: tuple[tuple[str, Candidate], ...] = ()
    scheme: Scheme = Scheme()

    def __str__(self) -> str:
        s = self.scheme
        counts = Counter(c for _, c in self.choices).most_common()
        parts = [str(c) if len(counts) == 1 else f"{n} x {c}" for c, n in counts]
        parts += ["7-bit weights"] * (s.weight_bits == 7)
        parts += [f"{_called(names)} {what}" for names, what in (
            (s.wide, "with 16-bit activations"), (s.wide_weights, "with 16-bit weights"),
            (s.exclude, "in f32")) if names]
        parts += [f"{counted(len(s.between), 'value')} between layers"] * bool(s.between) + ["LSTM states"] * s.states
        return ", ".join(parts)


SHORT = 24
"""The text of a setting names layers only if the names have at most SHORT letters; otherwise it counts them."""


def _called(names: Collection[str]) -> str:
    text = ", ".join(names)
    return text if len(names) <= 3 and len(text) <= SHORT else counted(len(names), "layer")


def with_scheme(setting: Setting, **changes: Any) -> Setting:
    """The setting with changes in its scheme."""
    return replace(setting, scheme=replace(setting.scheme, **changes))


def wider(setting: Setting, factors: Sequence[tuple[str, str]]) -> Setting:
    """The setting with 16 bits for more operands, each given as a layer's name and "wide" or "wide_weights"."""
    return with_scheme(setting, **{part: (*getattr(setting.scheme, part), *(n for n, p in factors if p == part))
                                   for part in ("wide", "wide_weights")})
