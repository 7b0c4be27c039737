"""Parse benchdnn's graph knobs, from a command line or a line of a batch file.

    --in-shapes=ID:SHAPE[*TAG]+ID:...      shapes of inputs: 0:2x3x4, 0:2x3x4*acb (order in memory), 0:*acb, 0:-
    --op-attrs=OP:ATTR:VALUE*ATTR:VALUE+OP:...   attributes: 0:axis:1, 0:strides:2x2*groups:1, 0:auto_pad:VALID
    --op-kind=OP:KIND+OP:...               other kinds: 0:Add
    --dt=TYPE | ID:TYPE+ID:...             the type of all floating-point tensors, or of named tensors
    --tensor-property=ID:PROPERTY+...      undef, variable, constant or host_scalar
    --mb=N                                 the minibatch; 0 is the file's
    --expected-n-partitions=N              default 1; 0: not checked

Commas separate alternatives; every combination is a separate run. "default" or an empty text keeps the file's setting.
The shape - means a scalar. `benchdnn_knobs` applies the settings.
"""
from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from graphq.dtypes import ONEDNN
from graphq.errors import ParseError
from graphq.onednn.document import shown
from graphq.onednn.reader import MAX_RANK, PROPERTIES

MAX_RUNS = 10_000
"""The most combinations of knobs in a line."""


@dataclass(frozen=True, slots=True)
class InShape:
    """A new shape, and the order of its dimensions in memory. None means the file's, or a row-major order."""

    shape: tuple[int, ...] | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Knobs:
    """One combination of settings, by ids of tensors or ops. `dtypes[None]` is for all tensors."""

    in_shapes: Mapping[int, InShape] = field(default_factory=dict)
    op_attrs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    op_kinds: Mapping[int, str] = field(default_factory=dict)
    dtypes: Mapping[int | None, str] = field(default_factory=dict)
    properties: Mapping[int, str] = field(default_factory=dict)
    mb: int = 0
    expected_partitions: int = 1
    texts: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return " ".join(f"{knob}={text}" for knob, text in self.texts.items())


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a graph file, as named in the line, and the knobs."""

    file: str
    knobs: Knobs

    def __str__(self) -> str:
        return f"{self.knobs} --case={self.file}".lstrip()


def parse_knobs(arguments: Iterable[str]) -> list[Knobs]:
    """All combinations of arguments such as "--in-shapes=0:2x3,0:4x5". Raises ParseError, naming the knob."""
    chosen: dict[str, list[tuple[str, Any]]] = {}
    for argument in arguments:
        if not isinstance(argument, str):
            raise ParseError(f"a knob must be a string, got {shown(argument)}")
        knob, equals, text = argument.partition("=")
        if not equals or knob not in KNOBS:
            raise ParseError(f"unknown knob {shown(argument)}; graphq has {', '.join(f'{k}=' for k in KNOBS)}")
        chosen[knob] = [(t, _parse(knob, t)) for t in text.split(",")]
    if math.prod(map(len, chosen.values())) > MAX_RUNS:
        raise ParseError(f"the knobs ask for more than {MAX_RUNS} runs")
    return [_combined(dict(zip(chosen, settings, strict=True))) for settings in itertools.product(*chosen.values())]


def _combined(settings: Mapping[str, tuple[str, Any]]) -> Knobs:
    changes = {knob: s for knob, s in settings.items() if s[1] is not None}
    return Knobs(**{KNOBS[knob][0]: value for knob, (_, value) in changes.items()},
                 texts={knob: text for knob, (text, _) in changes.items()})


def parse_line(line: str) -> list[Case]:
    """The runs of a line of knobs that names its graph in `--case=`; [] for a blank line or a comment.

    Knobs of earlier lines do not apply, as if each line began with `--reset`. Raises ParseError, naming the knob.
    """
    try:
        words = shlex.split(line, comments=True)
    except ValueError as e:
        raise ParseError(f"{shown(line)}: {e}") from None
    files = [w.removeprefix("--case=") for w in words if w.startswith("--case=")]
    knobs = [w for w in words if w != "--reset" and not w.startswith("--case=")]
    if not words:
        return []
    if len(files) != 1 or not files[0]:
        raise ParseError(f"a line needs one --case=FILE, got {shown(line)}")
    return [Case(files[0], k) for k in parse_knobs(knobs)]


# -- one setting ----------------------------------------------------------------------------------------------


def _parse(knob: str, text: str) -> Any:
    """Parse a setting; None means the file's setting."""
    if text in ("", "default", "undef") and knob not in _NUMBERS:
        return None
    return KNOBS[knob][1](text, knob)


def _by_id(text: str, knob: str, parse: Callable[[str, str], Any]) -> dict[Any, Any]:
    """Parse `ID:SETTING+ID:SETTING` to a mapping, without the settings "default"."""
    out = {}
    for item in text.split("+"):
        id, colon, setting = item.partition(":")
        if not colon:
            _refuse(knob, "an item must be ID:VALUE", item)
        key = _number(id, knob, item, 2**64)
        if key in out:
            _refuse(knob, f"the id {key} appears twice", text)
        out[key] = None if setting == "default" else parse(setting, knob)
    return {k: v for k, v in out.items() if v is not None}


def _in_shapes(text: str, knob: str) -> dict[int, InShape]:
    return _by_id(text, knob, _in_shape)


def _in_shape(text: str, knob: str) -> InShape:
    dims, star, tag = text.partition("*")
    if not star and dims.isalpha():
        dims, tag = "", dims
    if dims == "-":
        return InShape(()) if not tag else _refuse(knob, "a scalar has no order of dimensions", text)
    shape = None
    if dims:
        shape = tuple(_number(d, knob, text, 2**63) for d in dims.split("x"))
        if len(shape) > MAX_RANK:
            _refuse(knob, f"a shape has at most {MAX_RANK} dimensions", text)
    if star and not tag:
        _refuse(knob, "a '*' needs an order of dimensions after it", text)
    if shape is None and not tag:
        _refuse(knob, "a shape is like 2x3x4, or - for a scalar", text)
    if tag and (sorted(tag) != [chr(97 + k) for k in range(len(tag))] or shape is not None and len(tag) != len(shape)):
        _refuse(knob, "the order in memory must name each dimension once (abc, acb), no blocks", text)
    return InShape(shape, tag or None)


def _op_attrs(text: str, knob: str) -> dict[int, dict[str, str]]:
    return _by_id(text, knob, _attributes)


def _attributes(text: str, knob: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for item in text.split("*"):
        name, colon, value = item.partition(":")
        if not colon or not name or not value:
            _refuse(knob, "an attribute must be NAME:VALUE", item)
        if name in out:
            _refuse(knob, f"the attribute {name} appears twice", text)
        out[name] = value
    return out


def _op_kinds(text: str, knob: str) -> dict[int, str]:
    return _by_id(text, knob, lambda kind, _: kind or _refuse(knob, "an item must be ID:KIND", text))


def _dtypes(text: str, knob: str) -> dict[int | None, str]:
    if ":" not in text:
        return {None: _one_of(text, knob, tuple(ONEDNN))}
    return _by_id(text, knob, lambda t, _: _one_of(t, knob, tuple(ONEDNN)))


def _properties(text: str, knob: str) -> dict[int, str]:
    return _by_id(text, knob, lambda t, _: _one_of(t, knob, PROPERTIES))


def _count(text: str, knob: str) -> int:
    return _number(text, knob, text, 2**31)


KNOBS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "--in-shapes": ("in_shapes", _in_shapes),
    "--op-attrs": ("op_attrs", _op_attrs),
    "--op-kind": ("op_kinds", _op_kinds),
    "--dt": ("dtypes", _dtypes),
    "--tensor-property": ("properties", _properties),
    "--mb": ("mb", _count),
    "--expected-n-partitions": ("expected_partitions", _count),
}
"""For each knob, the field of `Knobs` that it sets, and the parser of its text."""
_NUMBERS = ("--mb", "--expected-n-partitions")


def _number(text: str, knob: str, item: str, limit: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 21 and int(text) < limit):
        _refuse(knob, f"{shown(text)} is not a number in [0, {limit})", item)
    return int(text)


def _one_of(text: str, knob: str, allowed: Sequence[str]) -> str:
    if text not in allowed:
        _refuse(knob, f"must be one of {', '.join(allowed)}", text)
    return text


def _refuse(knob: str, rule: str, text: str) -> NoReturn:
    raise ParseError(f"{knob}: {rule}, got {shown(text)}")
