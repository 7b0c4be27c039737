"""Names for the values of files that PyTorch's exporter wrote: the path of the module that computes the value."""
import re
from collections.abc import Iterator

from onnx import GraphProto, NodeProto

SCOPES = "pkg.torch.onnx.name_scopes"
"""The key in a node's metadata for the paths of its modules, from the outermost to the call of the operator."""

NOWHERE = "_empty_nn_module_stack_from_metadata_hook"
"""The path that PyTorch writes for a call outside of all modules."""

QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Operators that a quantizer adds to a module. They do not count as calls of the module."""


def module_names(proto: GraphProto) -> dict[str, str]:
    """New names of results by their names in the file; empty if the file has no paths of modules.

    The result of a module that calls one operator has the module's path: `blocks.0.conv`. Otherwise the operator is
    added: `blocks.0.relu`. A call that became several nodes gives its name to the last node. A convolution has the path
    of its weights, because the exporter folds a batch normalization into it.
    """
    calls: dict[tuple[str, str], list[NodeProto]] = {}
    for node, path, call in _calls(proto):
        calls.setdefault((path, call), []).append(node)
    single: dict[str, int] = {}
    for (path, _), nodes in calls.items():
        single[path] = single.get(path, 0) + (not QUANTIZERS.issuperset(n.op_type for n in nodes))
    taken = {*(v.name for v in (*proto.input, *proto.initializer)), *(name for n in proto.node for name in n.output)}
    names: dict[str, str] = {}
    for (path, call), nodes in calls.items():
        quantizes = QUANTIZERS.issuperset(n.op_type for n in nodes)
        whole = path if single[path] == 1 and not quantizes else f"{path}.{re.sub(r'_[0-9]+$', '', call)}"
        for node in (nodes[-1], *nodes[:-1]):
            wanted = name = whole if node is nodes[-1] else f"{whole}.{node.op_type.lower()}"
            k = 1
            while name in taken and name != node.output[0]:
                k += 1
                name = f"{wanted}_{k}"
            taken.add(name)
            names[node.output[0]] = name
    return names


def _calls(proto: GraphProto) -> Iterator[tuple[NodeProto, str, str]]:
    """The nodes inside of modules, each with its module's path and the name of its call."""
    weights = {t.name for t in proto.initializer if t.name.endswith(".weight")}
    for node in proto.node:
        scopes = next((re.findall("'([^']*)'", p.value) for p in node.metadata_props if p.key == SCOPES), [])
        owners = [name for name in node.input[1:2] if node.op_type in ("Conv", "ConvTranspose") and name in weights]
        path = owners[0].removesuffix(".weight") if scopes and owners else scopes[-2] if len(scopes) > 1 else ""
        if path not in ("", NOWHERE) and node.output and node.output[0]:
            yield node, path, scopes[-1]
