"""Read and check the JSON documents that ONEDNN_GRAPH_DUMP writes; files.py converts them to graphs.

Files are not trusted: size, nesting, numbers and dimensions are checked first. Every error names file, operation and
field.
"""
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

from graphq.base.paths import path_of, regular_file
from graphq.dtypes import ONEDNN
from graphq.errors import GraphError, ParseError
from graphq.ir import Dim, check_size
from graphq.onednn.document import UNKNOWN, FileAttribute, FileOp, GraphFile, LogicalTensor, shown

T = TypeVar("T")
MAX_BYTES = 16 * 2**20
MAX_OPS = 20_000
MAX_RANK = 12

F32_LIMIT = 3.4028235677973366e38
"""2**128 - 2**103: this and larger numbers round to infinity in f32."""

ATTRIBUTE_TYPES = ("bool", "s64", "s64[]", "f32", "f32[]", "string")
LAYOUTS = ("undef", "any", "strided", "opaque")
PROPERTIES = ("undef", "variable", "constant", "host_scalar")

_HEADER = {"engine_kind": ("any", "cpu", "gpu"), "fpmath_mode": ("strict", "bf16", "f16", "any", "tf32"),
           "fpmath_mode_apply_to_int": ("true", "false")}


def read_text(path: str | os.PathLike[str]) -> str:
    """Read the UTF-8 text of a regular file of at most MAX_BYTES; raises ParseError for any other file."""
    name = str(path_of(path))
    try:
        with regular_file(name) as (file, nbytes):
            if nbytes > MAX_BYTES:
                fail(name, f"larger than {MAX_BYTES} bytes")
            return file.read(nbytes).decode("utf-8")
    except UnicodeDecodeError as e:
        fail(name, f"not UTF-8 at byte {e.start}")
    except OSError as e:
        raise ParseError(f"{shown(name)[1:-1]}: {e.strerror or e}") from e


def parse_graph_file(text: str, where: str) -> GraphFile:
    """Parse a document; `where` names it in errors."""
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as e:
        fail(where, f"not JSON, line {e.lineno}, column {e.colno}: {e.msg}")
    except RecursionError:
        fail(where, "not a graph: nested too deeply")
    except (ValueError, OverflowError) as e:  # a duplicate key, NaN, an integer of thousands of digits
        fail(where, f"not JSON: {str(e)[:200]}")
    fields = _fields(document, where, ("version", "graph"), (*_HEADER, "input_ports", "output_ports"))
    header = {k: v for k, v in fields.items() if k != "graph"}
    _check_version(header["version"], f"{where}: version")
    for key, allowed in _HEADER.items():
        if key in header:
            _choice(header[key], f"{where}: {key}", allowed)
    for key in ("input_ports", "output_ports"):
        if key in header:
            header[key] = _integers(header[key], f"{where}: {key}", 0, 2**64 - 1)
    ops = _list(fields["graph"], f"{where}: graph")
    if len(ops) > MAX_OPS:
        fail(f"{where}: graph", f"{len(ops)} ops are more than {MAX_OPS}")
    return GraphFile(header, tuple(_op(x, where, k) for k, x in enumerate(ops)))


def fail(where: str, message: str) -> NoReturn:
    """Raise ParseError with a message that begins with `where`, the place in the file."""
    raise ParseError(f"{where}: {message}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        (twice, _), = Counter(k for k, _ in pairs).most_common(1)
        raise ValueError(f"the key {shown(twice)} appears twice in one object")
    return out


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _check_version(value: Any, where: str) -> None:
    parts = _string(value, where).split(".")
    if len(parts) != 3 or not all(p.isascii() and p.isdecimal() and len(p) < 6 for p in parts):
        fail(where, f"must be MAJOR.MINOR.PATCH, got {shown(value)}")
    if int(parts[0]) not in (0, 3):
        fail(where, f"graphq reads oneDNN's versions 0.x and 3.x, got {shown(value)}")


def _op(x: Any, where: str, index: int) -> FileOp:
    place = f"{where}: graph[{index}]"
    fields = _fields(x, place, ("id", "name", "kind", "inputs", "outputs"), ("attrs",))
    op = FileOp(_integer(fields["id"], f"{place}.id", 0, 2**64 - 1), _string(fields["name"], f"{place}.name"),
                _string(fields["kind"], f"{place}.kind"), None, (), ())
    place = f"{where}: {op.label}"
    attrs = None
    if "attrs" in fields:
        given = _mapping(fields["attrs"], f"{place}: attrs")
        attrs = {k: _attribute(a, f"{place}: attrs.{shown(k)[1:-1]}") for k, a in given.items()}
    inputs, outputs = (tuple(_tensor(t, f"{place}: {side}[{k}]")
                             for k, t in enumerate(_list(fields[side], f"{place}: {side}")))
                       for side in ("inputs", "outputs"))
    return replace(op, attrs=attrs, inputs=inputs, outputs=outputs)


def _attribute(x: Any, where: str) -> FileAttribute:
    fields = _fields(x, where, ("type", "value"))
    kind = _choice(fields["type"], f"{where}.type", ATTRIBUTE_TYPES)
    return FileAttribute(kind, attribute_value(kind, fields["value"], f"{where}.value"))


def attribute_value(type: str, value: Any, where: str) -> Any:
    """Convert `value` to the attribute type `type`; lists become tuples. Raises ParseError for any other value."""
    if type.endswith("[]"):
        return tuple(attribute_value(type.removesuffix("[]"), v, where) for v in _list(value, where))
    if type == "string":
        return _string(value, where)
    if type == "bool":
        if not isinstance(value, int) or value not in (0, 1):
            fail(where, f"must be 0, 1, true or false, got {shown(value)}")
        return value
    if type == "s64":
        return _integer(value, where, -(2**63), 2**63 - 1)
    return _number(value, where)


def _number(x: Any, where: str) -> int | float:
    if not isinstance(x, int | float) or isinstance(x, bool) or not abs(x) < F32_LIMIT:
        fail(where, f"must be a finite f32, got {shown(x)}")
    return x


def _tensor(x: Any, where: str) -> LogicalTensor:
    fields = _fields(x, where, ("id", "dtype", "shape", "stride", "layout_type", "property_type"))
    tensor = LogicalTensor(
        _integer(fields["id"], f"{where}.id", 0, 2**64 - 1),
        _choice(fields["dtype"], f"{where}.dtype", tuple(ONEDNN)),
        _shape(fields["shape"], f"{where}.shape"),
        _integers(fields["stride"], f"{where}.stride", UNKNOWN, 2**63 - 1),
        _choice(fields["layout_type"], f"{where}.layout_type", LAYOUTS),
        _choice(fields["property_type"], f"{where}.property_type", PROPERTIES))
    if tensor.layout_type == "strided":
        _check_stride(tensor, f"{where}.stride")
    if tensor.property_type == "host_scalar" and tensor.shape not in ((), None):
        fail(f"{where}.property_type", f"a host_scalar has shape [], got {shown(fields['shape'])}")
    return tensor


def _shape(x: Any, where: str) -> tuple[Dim, ...] | None:
    dims = list(_integers(x, where, UNKNOWN, 2**63 - 1))
    for d in dims:
        if d < 0 and d != UNKNOWN:
            fail(where, f"a dimension must not be negative (unknown is {UNKNOWN}), got {shown(dims)}")
    if len(dims) > MAX_RANK:
        fail(where, f"rank {len(dims)} is larger than {MAX_RANK}")
    if dims == [UNKNOWN]:
        return None
    try:
        check_size([d for d in dims if d != UNKNOWN], "size")
    except GraphError as e:
        fail(where, str(e))
    return tuple(None if d == UNKNOWN else d for d in dims)


def _check_stride(t: LogicalTensor, where: str) -> None:
    """Check oneDNN's rules: one stride per dimension, and (except for strides of 0) no two elements at one address."""
    if t.shape is None:
        if t.stride not in ((), (UNKNOWN,)):
            fail(where, f"must be unknown for a shape of unknown rank, got {shown(list(t.stride))}")
        return
    text = f"got stride {shown(list(t.stride))} for shape {shown(list(t.shape))}"
    if len(t.stride) != len(t.shape):
        fail(where, f"must have one entry per dimension, {text}")
    if any(s < 0 and s != UNKNOWN for s in t.stride) or UNKNOWN in t.stride and None not in t.shape:
        fail(where, f"must not be negative, {text}")
    if 0 in t.shape or None in t.shape:
        return
    least = 1
    for s, d in sorted((s, int(d or 0)) for s, d in zip(t.stride, t.shape, strict=True) if s and d != 1):
        if s < least:
            fail(where, f"puts two elements at one place, {text}")
        least = s * d
    if least > 2**60:
        fail(where, f"reaches further than 2**60 elements, {text}")


def _fields(x: Any, where: str, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    fields = _mapping(x, where)
    for key in required:
        if key not in fields:
            fail(where, f"the field '{key}' is missing")
    for key in fields:
        if key not in required and key not in optional:
            fail(where, f"unknown field {shown(key)}")
    return fields


def _instance(type: type[T], what: str, x: Any, where: str) -> T:
    if not isinstance(x, type):
        fail(where, f"must be {what}, got {shown(x)}")
    return x


_mapping, _list = partial(_instance, dict, "an object"), partial(_instance, list, "a list")


def _integer(x: Any, where: str, low: int, high: int) -> int:
    if not isinstance(x, int) or isinstance(x, bool) or not low <= x <= high:
        fail(where, f"must be an integer in [{low}, {high}], got {shown(x)}")
    return x


def _integers(x: Any, where: str, low: int, high: int) -> tuple[int, ...]:
    return tuple(_integer(v, where, low, high) for v in _list(x, where))


def _string(x: Any, where: str) -> str:
    text = _instance(str, "a string", x, where)
    if any("\ud800" <= c <= "\udfff" for c in text):
        fail(where, "has half of a surrogate pair")
    return text


def _choice(x: Any, where: str, allowed: Sequence[str]) -> str:
    if not isinstance(x, str) or x not in allowed:
        fail(where, f"must be one of {', '.join(allowed)}, got {shown(x)}")
    return x
