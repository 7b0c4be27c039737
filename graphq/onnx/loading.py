"""load_onnx: read and check an ONNX model, and convert it to a Graph."""
import os
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from graphq.base.budget import budget
from graphq.base.paths import regular_file
from graphq.errors import CompileError, GraphError, ParseError
from graphq.ir import FILE_NAMES, Graph, TensorType, Value
from graphq.model.files import ELSEWHERE, is_of_torch
from graphq.onnx.importers.importer import DOMAINS, MICROSOFT, Scope, import_node
from graphq.onnx.module_names import module_names
from graphq.onnx.protos.checker import check_model
from graphq.onnx.protos.fallback import bodies, nodes_of, used_names
from graphq.onnx.protos.labels import label
from graphq.onnx.protos.tensors import agree, array_of, dense, tensor_type

Source: TypeAlias = "str | os.PathLike[str] | bytes | ModelProto"

MAX_BYTES = 2**31 - 1
"""The largest model file, in bytes: protobuf's limit for a message."""

MAX_NODES = 200_000
"""The largest number of nodes of a model, with the nodes of inner graphs and of expanded local functions."""


def read_model(source: Source) -> tuple[ModelProto, str | None, str]:
    """Read and check a model; returns the model, the folder of its external data, and its name for errors.

    The folder is None if the model is not from a file. Raises ParseError if `source` is not a model, GraphError if
    ONNX's checker refuses it.
    """
    model, folder, where = _parsed(source)
    _check_count(model, where)
    model = _with_microsoft(_ordered(model))
    try:
        check_model(model)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    except Exception as e:  # ValidationError, C++ exceptions of several classes, text that is not UTF-8
        raise GraphError(f"{where}: {str(e).strip()[:500]}") from None
    return model, folder, where


def _parsed(source: Source) -> tuple[ModelProto, str | None, str]:
    source = getattr(source, "model_proto", source)  # an ONNXProgram of PyTorch
    if isinstance(source, ModelProto):
        return source, None, source.graph.name or "model"
    if isinstance(source, bytes | bytearray | memoryview):
        return _from_bytes(bytes(source), "model"), None, "model"
    if not isinstance(source, str | os.PathLike) or not isinstance(os.fspath(source), str):
        got = f"{type(source).__name__}: from_torch makes a Graph of torch.export.export(module, example_inputs)" \
            if is_of_torch(source) else f"{source!r:.80}"
        raise GraphError(f"load_onnx takes a path, bytes or a ModelProto, got {got}")
    path = os.fspath(source)
    try:
        with regular_file(path) as (file, nbytes):
            if nbytes > MAX_BYTES:
                raise ParseError(f"{path}: larger than {MAX_BYTES} bytes")
            data = file.read(nbytes)
    except OSError as e:
        raise ParseError(f"{path!r}: {e.strerror or e}") from None
    return _from_bytes(data, path), os.path.dirname(os.path.abspath(path)), path


def _from_bytes(data: bytes, where: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as e:  # the class of DecodeError depends on protobuf's version
        raise ParseError(f"{where}: not an ONNX model: {str(e)[:200]}") from None
    if not model.HasField("graph"):
        raise ParseError(f"{where}: not an ONNX model: it has no graph")
    return model


def _ordered(model: ModelProto) -> ModelProto:
    """The model itself if its nodes are in a valid order, otherwise a copy with sorted nodes.

    Some converters put casts at the end, and ONNX Runtime sorts nodes. A model with a cycle stays as it is; ONNX's
    checker refuses it.
    """
    nodes = model.graph.node
    order = _order(nodes)
    if order == list(range(len(nodes))):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes[k] for k in order)
    return copy


def _order(nodes: Sequence[NodeProto]) -> list[int]:
    """The nodes' indices in a valid order. The order stays as it is if it is valid, or if nodes form a cycle."""
    stand = list(range(len(nodes)))
    maker = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    sources = [{maker[name] for name in used_names(node) if name in maker} for node in nodes]
    if all(j < k for k, s in enumerate(sources) for j in s):
        return stand
    sorter = TopologicalSorter({k: () for k in stand})  # all nodes first, so independent nodes stay in order
    for k, s in enumerate(sources):
        sorter.add(k, *s)
    try:
        return list(sorter.static_order())
    except CycleError:
        return stand


OWN = {"LayerNormalization": 17, "SimplifiedLayerNormalization": 1 << 62}
"""Operators of ONNX Runtime that models use in ONNX's domain, and the first operator set of ONNX that defines them.

No operator set of ONNX defines SimplifiedLayerNormalization.
"""


def _with_microsoft(model: ModelProto) -> ModelProto:
    """The model itself, or a copy that declares the domain com.microsoft for all of ONNX Runtime's operators.

    Some quantizers do not declare the domain, because ONNX Runtime does not require it. Operators in OWN move to
    com.microsoft if the model's version of ONNX's domain lacks them.
    """
    opset = max((i.version for i in model.opset_import if DOMAINS.get(i.domain, i.domain) == ""), default=0)
    imported = any(i.domain == MICROSOFT for i in model.opset_import)
    if not any(_own(n, opset) or n.domain == MICROSOFT and not imported for n in _all_nodes(model)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for node in _all_nodes(copy):
        if _own(node, opset):
            node.domain = MICROSOFT
    if not imported:
        copy.opset_import.add(domain=MICROSOFT, version=1)
    return copy


def _all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    return (n for node in model.graph.node for n in nodes_of(node))


def _own(node: NodeProto, opset: int) -> bool:
    return DOMAINS.get(node.domain, node.domain) == "" and opset < OWN.get(node.op_type, 0)


def _check_count(model: ModelProto, where: str) -> None:
    """Refuse recursive functions, and more than MAX_NODES nodes after functions are expanded."""
    functions = {(f.domain, f.name): f for f in model.functions}
    known: dict[tuple[str, str], int] = {}

    def count(node: NodeProto, open_: tuple[tuple[str, str], ...]) -> int:
        total = 1 + sum(count(n, open_) for g in bodies(node) for n in g.node)
        key = (node.domain, node.op_type)
        if key not in functions:
            return total
        if key in open_:
            raise GraphError(f"{where}: function {node.op_type} of domain '{node.domain}' calls itself")
        if key not in known:
            known[key] = min(sum(count(n, (*open_, key)) for n in functions[key].node), MAX_NODES + 1)
        return total + known[key]

    try:
        total = sum(count(n, ()) for n in model.graph.node)
    except RecursionError:
        raise GraphError(f"{where}: nested too deeply") from None
    if total > MAX_NODES:
        raise GraphError(f"{where}: more than {MAX_NODES} nodes")


def load_onnx(source: Source, *, memory: int | None = None) -> Graph:
    """Load an ONNX model (see `graphq.load_onnx`)."""
    with budget(memory):
        try:
            model, folder, where = read_model(source)
            try:
                return _graph(model, folder, where)
            except (GraphError, CompileError) as e:
                raise type(e)(f"{where}: {e}") from None
            except RecursionError:
                raise GraphError(f"{where}: nested too deeply") from None
        except MemoryError as e:
            name = source if isinstance(source, str | os.PathLike) else "model"
            raise CompileError(f"{name}: not enough memory{f': {e}' if str(e) else ''}") from None


def _graph(model: ModelProto, folder: str | None, where: str) -> Graph:
    proto = model.graph
    graph = Graph(proto.name or Path(where).stem or "graph")
    scope = Scope({DOMAINS.get(i.domain, i.domain): i.version for i in model.opset_import}, folder=folder,
                  names=module_names(proto))
    for tensor in proto.initializer:
        what = f"initializer '{tensor.name}'"
        scope.values[tensor.name] = graph.add_constant(array_of(tensor, folder, what), name=tensor.name)
    for sparse in proto.sparse_initializer:
        name = sparse.values.name
        scope.values[name] = graph.add_constant(dense(sparse, f"initializer '{name}'"), name=name)
    dimensions: dict[tuple[str, int], str] = {}
    for v in proto.input:
        if v.name not in scope.values:
            names = [d.dim_param for d in v.type.tensor_type.shape.dim]
            dimensions |= {(v.name, k): name for k, name in enumerate(names) if name}
            t = tensor_type(v.type, f"input '{v.name}'")
            scope.values[v.name] = graph.input(v.name, dtype=t.dtype, shape=t.shape)
    for node in proto.node:
        import_node(graph, node, scope, written=True)
    makers = {name: label(node) for node in proto.node for name in node.output}
    outputs = list[tuple[str, Value]]()
    for declared in proto.output:
        outputs += [(f"{declared.name}[{k}]", x) for k, x in enumerate(scope.sequences.get(declared.name, ()))]
        if declared.name not in scope.sequences:
            outputs.append((declared.name, scope.values[declared.name]))
            _check_output(declared, outputs[-1][1].type, makers.get(declared.name, "its input or initializer"))
    graph.set_outputs([value for _, value in outputs], [name for name, _ in outputs])
    graph.prune()
    split = any(t.data_location == TensorProto.EXTERNAL for t in _all_tensors(model))
    facts = {"dimensions": dimensions, FILE_NAMES: scope.names, ELSEWHERE: split}
    graph.meta = {key: fact for key, fact in facts.items() if fact}
    return graph


def _all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    nodes = list(_all_nodes(model))
    graphs = chain([model.graph], *map(bodies, nodes))
    return chain((t for g in graphs for t in g.initializer),
                 (t for n in nodes for a in n.attribute if a.HasField("t") or a.tensors for t in (a.t, *a.tensors)))


def model_bytes(path: str | os.PathLike[str]) -> int:
    """The bytes of a model's file and, for an ONNX file, of the files next to it that hold its external data."""
    total = os.stat(path).st_size
    if Path(path).suffix != ".onnx":
        return total
    model, folder, _ = _parsed(path)
    names = {e.value for t in _all_tensors(model) if t.data_location == TensorProto.EXTERNAL
             for e in t.external_data if e.key == "location"}
    files = {os.path.realpath(os.path.join(folder or "", name)) for name in names}
    return total + sum(os.stat(file).st_size for file in files if os.path.isfile(file))


def _check_output(declared: ValueInfoProto, got: TensorType, maker: str) -> None:
    if declared.type.WhichOneof("value") is None:
        return
    said = tensor_type(declared.type, f"output '{declared.name}'")
    if not agree(said, got):
        raise GraphError(f"output '{declared.name}': the model says {said}, {maker} gives {got}")
