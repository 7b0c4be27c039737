"""Load and save oneDNN Graph JSON files, as ONEDNN_GRAPH_DUMP writes them.

The format has names for operations but not for values. graphq therefore writes the names of values into the operation's
name: a matmul of `q` and an unnamed value, with the result `scores`, is named `scores=matmul(q|)`. Characters other
than letters, digits and `_.-~/:` become %XX, as in URLs. A value without a listed name is called t<id>, after its id in
the file.

Nodes of a loaded graph keep the file's id and name in `node.meta`, and `graph.meta["onednn"]` keeps the document.
Saving repeats everything from the document that no pass has changed, such as strides, property types and attributes at
their defaults. In files, the dtype of an output expresses the attribute `dtype`, and a second output of SoftMax
or Dropout expresses `keep_stats` or `keep_mask`.
"""
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

from graphq.base.paths import path_of
from graphq.dtypes import ONEDNN, as_dtype
from graphq.errors import GraphError, GraphqError
from graphq.ir import Graph, Node, Value, counted, shapes_agree
from graphq.onednn import kinds
from graphq.onednn.document import FileAttribute, FileOp, GraphFile, LogicalTensor, dense_stride, to_json
from graphq.onednn.reader import parse_graph_file, read_text

log = logging.getLogger("graphq")

ID = re.compile(r"t(0|[1-9][0-9]{0,19})")
_NAMED = re.compile(r"([^=()]*)=\w+\(([^=()]*)\)")


def name_of(node: Node) -> str | None:
    """A name for an operation that lists its results' and operands' names; None if all are unnamed."""
    outputs, inputs = (_listed(ports) for ports in (node.outputs, [v for v in node.inputs if v is not None]))
    return f"{outputs}={node.op.name}({inputs})" if (outputs + inputs).strip("|") else None


def _listed(ports: Sequence[Value]) -> str:
    return "|".join("" if v.name is None or ID.fullmatch(v.name) else quote(v.name, safe="/:") for v in ports)


def names_of(ops: Iterable[FileOp]) -> Mapping[int, str]:
    """Names of tensors by id. A name belongs to one tensor; if operations disagree, the first operation decides."""
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for op in ops:
        if match := _NAMED.fullmatch(op.name):
            for tensor, name in (*_named(op.outputs, match[1]), *_named(op.inputs, match[2])):
                if names.setdefault(tensor.id, name) == name and ids.setdefault(name, tensor.id) != tensor.id:
                    del names[tensor.id]
    return names


def _named(ports: Sequence[LogicalTensor], text: str) -> list[tuple[LogicalTensor, str]]:
    parts = text.split("|") if ports else []
    if len(parts) != len(ports):
        return []
    names = [unquote(x, errors="replace") for x in parts]
    return [(t, name) for t, name, x in zip(ports, names, parts, strict=True)
            if x and quote(name, safe="/:") == x and not ID.fullmatch(name)]


_HEADER = {"version": "3.13.0", "engine_kind": "cpu", "fpmath_mode": "strict"}

REQUIRED = frozenset({("StaticReshape", "special_zero")})
"""Attributes that oneDNN requires, although graphq has a default for them: they are always written."""

Adjust = Callable[[FileOp, Sequence[Value]], FileOp]


def load_onednn_json(path: str | os.PathLike[str]) -> Graph:
    """Load the graph of a file in oneDNN's ONEDNN_GRAPH_DUMP format.

    The operations' shape rules fill in unknown dimensions if possible. Raises ParseError if the file is not in the
    format, GraphError if the graph breaks a rule; both name file, op and field.
    """
    text, where = read_text(path), os.fspath(path)
    return to_graph(parse_graph_file(text, where), where)


def save_onednn_json(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write `graph` in oneDNN's ONEDNN_GRAPH_DUMP format.

    The format has no tensor data: a constant becomes an input of property "constant", and a message in the log "graphq"
    says so. Names of values become part of operations' names; loading restores them. Raises GraphError for anything
    that the format cannot express: partitions, ops that are not oneDNN's, an input that no op uses, an output that no
    op computes.
    """
    if not isinstance(graph, Graph):
        raise GraphError(f"save_onednn_json takes a Graph, got {graph!r}")
    text = to_json(from_graph(graph))
    path_of(path).write_text(text, encoding="utf-8")
    if constants := graph.nodes_of(("constant",)):
        log.warning("%s: the format stores no values of constants: %s become%s of property \"constant\"",
                    os.fspath(path), counted(len(constants), "constant"),
                    "s an input" if len(constants) == 1 else " inputs")


def to_graph(file: GraphFile, where: str, *, name: str | None = None, adjust: Adjust | None = None) -> Graph:
    """Convert a document, called `where` in errors, to a graph. `adjust` may change an op whose operands are known."""
    ordered, known = file.in_order(where), file.tensors(where)
    inputs, outputs = file.interface(where)
    graph = Graph(name or Path(where).stem or "graph")
    names = names_of(file.ops)
    readers: dict[int, list[tuple[FileOp, int]]] = {}
    for op in file.ops:
        for number, t in enumerate(op.inputs):
            readers.setdefault(t.id, []).append((op, number))
    values: dict[int, Value] = {}
    for t in (known[k] for k in inputs):
        values[t.id] = graph.input(_name(names, t.id), dtype=as_dtype(t.dtype), shape=t.shape,
                                   property=t.property_type)  # type: ignore[arg-type]  # the reader checked it
    done = {}
    for op in ordered:
        if adjust is not None:
            op = adjust(op, [values[t.id] for t in op.inputs])
        _add(graph, op, values, names, [r for t in op.outputs for r in readers.get(t.id, ())], f"{where}: {op.label}")
        done[op.id] = op
    graph.set_outputs([values[k] for k in outputs], [_name(names, k) for k in outputs])
    graph.meta = {"onednn": file.with_ops([done[op.id] for op in file.ops]), "ids": {n: k for k, n in names.items()}}
    return graph


def _name(names: Mapping[int, str], id: int) -> str:
    return names.get(id, f"t{id}")


def _add(graph: Graph, record: FileOp, values: dict[int, Value], names: Mapping[int, str],
         readers: Sequence[tuple[FileOp, int]], where: str) -> None:
    operands = [values[t.id] for t in record.inputs]
    try:
        op = kinds.op_of_kind(record.kind)
        attrs = kinds.read_attributes(op, record.attrs or {})
        attrs = kinds.grouped(op, [v.type for v in operands], attrs, readers)
        attrs = kinds.from_outputs(op, [v.type for v in operands], attrs, record.outputs)
        outs = graph.add_node(op, operands, attrs)
    except GraphqError as e:
        raise GraphError(f"{where}: {e}") from None
    if len(outs) != len(record.outputs):
        raise GraphError(f"{where}: outputs: the file declares {len(record.outputs)}, the operation has {len(outs)}")
    for k, (value, t) in enumerate(zip(outs, record.outputs, strict=True)):
        if value.dtype != t.dtype:
            raise GraphError(f"{where}: outputs[{k}].dtype: the file declares {t.dtype}, the operation gives "
                             f"{value.dtype}")
        if not shapes_agree(t.shape, value.shape):
            raise GraphError(f"{where}: outputs[{k}].shape: the file declares {t.type}, the operation gives "
                             f"{value.type}")
        graph.rename(value, _name(names, t.id))
        values[t.id] = value
    node = graph.nodes[-1]
    node.meta = {"id": record.id, "name": record.name, "attrs": node.attrs}


def from_graph(graph: Graph, *, fill: bool = False) -> GraphFile:
    """Convert a graph to a document; with `fill`, inferred shapes replace unknown shapes of the loaded file."""
    file = graph.meta.get("onednn") or GraphFile(_HEADER, ())
    old = {op.id: (k, op) for k, op in enumerate(file.ops)}
    ids = _tensor_ids(graph)
    nodes = [n for n in graph.nodes if n.op.name != "constant"]
    fresh = iter(range(max([*old, -1, *(n.meta.get("id", -1) for n in nodes)]) + 1, 2**65))
    placed: list[tuple[int, FileOp]] = []
    taken: set[int] = set()
    for node in nodes:
        place, record = old.get(node.meta.get("id", -1), (len(file.ops), None))
        if record is not None and (record.id in taken or kinds.kind_of(node) != kinds.canonical_kind(record.kind)):
            record = None
        id = record.id if record is not None else next(fresh)
        taken.add(id)
        placed.append((place, _record(node, id, record, ids, fill)))
    if all(place < len(file.ops) for place, _ in placed):  # nothing new: keep the file's order
        placed.sort(key=lambda p: p[0])
    return _with_ports(file.with_ops([op for _, op in placed]), graph, ids)


def _tensor_ids(graph: Graph) -> dict[Value, int]:
    """An id for every value: N for a value named tN, the file's id for values from a file, otherwise a free id."""
    values = graph.values
    ids = {v: int(m[1]) for v in values if v.name and (m := ID.fullmatch(v.name)) and int(m[1]) < 2**64}
    used = set(ids.values())
    loaded = {v: k for v in values if (k := graph.meta.get("ids", {}).get(v.name)) is not None and k not in used}
    ids |= loaded
    used.update(loaded.values())
    free = (k for k in range(2**64) if k not in used)
    return {v: ids[v] if v in ids else next(free) for v in values}


def _record(node: Node, id: int, old: FileOp | None, ids: Mapping[Value, int], fill: bool) -> FileOp:
    operands = []
    for k, v in enumerate(node.inputs):
        if v is None:
            raise GraphError(f"save: {node.graph.describe(node)}: the format cannot leave out operand {k}")
        operands.append(v)
    inputs, outputs = (tuple(_tensor(v, ids[v], before[k] if k < len(before) else None, fill)
                             for k, v in enumerate(values))
                       for values, before in ((operands, old.inputs if old else ()),
                                              (node.outputs, old.outputs if old else ())))
    kind = old.kind if old else kinds.kind_of(node)
    own = node.meta.get("name") if old is None else None if _NAMED.fullmatch(old.name) else old.name
    name = name_of(node) or own or f"{node.op.name}_{id}"
    return FileOp(id, name, kind, _attributes(node, old), inputs, outputs)


def _attributes(node: Node, old: FileOp | None) -> Mapping[str, FileAttribute] | None:
    """The attributes to write: attributes of the file, required attributes, and values other than the default."""
    before, loaded = dict(old.attrs or {}) if old else {}, node.meta.get("attrs", {})
    out = {}
    for name in dict.fromkeys([*before, *node.op.attributes]):
        form, a, value = kinds.attribute_form(node.op, name), node.op.attributes[name], node.attrs[name]
        kinds.expect_value(value)
        if name in before and name in loaded and loaded[name] == value:
            out[name] = before[name]
        elif form is not None and (a.required or (node.op.kind, name) in REQUIRED or value != a.default):
            out[name] = FileAttribute(form, int(value) if form == "bool" else value)
    return None if old is not None and old.attrs is None and not out else out


def _tensor(value: Value, id: int, old: LogicalTensor | None, fill: bool) -> LogicalTensor:
    """Describe a value as a tensor of an op; keep the file's description if the value's type is unchanged."""
    if old is not None and old.id == id and old.dtype == value.dtype.name and (
            old.shape == value.shape if fill else shapes_agree(old.shape, value.shape, ones=value.node is not None)):
        return old
    if value.dtype.name not in ONEDNN:
        raise GraphError(f"save: {value.graph.label(value)}: the format has no dtype {value.dtype}")
    property = value.property if value.data is None else "constant"
    if old is not None and old.id == id and property == "undef":
        property = old.property_type  # type: ignore[assignment]
    return LogicalTensor(id, value.dtype.name, value.shape, dense_stride(value.shape), "strided", property)


def _with_ports(file: GraphFile, graph: Graph, ids: Mapping[Value, int]) -> GraphFile:
    """Add the lists of inputs and outputs to a document, unless its operations already imply these lists."""
    constants = {ids[n.output] for n in graph.nodes if n.op.name == "constant"}
    inputs, outputs = [ids[v] for v in graph.inputs], list(dict.fromkeys(ids[v] for v in graph.outputs))
    used = {t.id for op in file.ops for t in op.inputs}
    made = {t.id for op in file.ops for t in op.outputs}
    for v in graph.inputs:
        if ids[v] not in used:
            raise GraphError(f"save: no op uses input '{v.name}'; the format has no place for it")
    for v in graph.outputs:
        if ids[v] not in made:
            raise GraphError(f"save: no op computes output {graph.label(v)}; the format has no place for it")
    got_inputs, got_outputs = file.interface(f"graph '{graph.name}'")
    if [k for k in got_inputs if k not in constants] == inputs and got_outputs == outputs:
        return file
    header = {**file.header, "input_ports": (*inputs, *sorted(constants & used)), "output_ports": tuple(outputs)}
    return replace(file, header=header)
