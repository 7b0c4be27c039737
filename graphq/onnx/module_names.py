"""Names for the values of PyTorch's models: the path of the module that computes the value."""
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from itertools import count
from typing import TypeVar

from onnx import GraphProto, NodeProto

SCOPES = "pkg.torch.onnx.name_scopes"
"""The key in a node's metadata for the paths of its modules, from the outermost to the call of the operator."""

NOWHERE = "_empty_nn_module_stack_from_metadata_hook"
"""The path that PyTorch writes for a call outside of all modules."""

QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Operators that a quantizer adds to a module. They do not count as calls of the module."""

Key = TypeVar("Key", bound=Hashable)


def names_of_calls(calls: Mapping[Key, tuple[str, str, bool]]) -> dict[Key, str]:
    """A name for each call of an operator, from its module's path, its role, and whether a quantizer added it.

    The only call of a module has the module's path: `blocks.0.conv`. Otherwise the role is added: `blocks.0.relu`.
    Calls that a quantizer added have their role, and do not count.
    """
    own = Counter(path for path, _, added in calls.values() if not added)
    return {call: role if not path else path if own[path] == 1 and not added else f"{path}.{role}"
            for call, (path, role, added) in calls.items()}


def module_names(proto: GraphProto) -> dict[str, str]:
    """New names of results by their names in the file; empty if the file has no paths of modules.

    See `names_of_calls`. A call that became several nodes gives its name to the last node. A convolution has the path
    of its weights, because the exporter folds a batch normalization into it.
    """
    calls: dict[tuple[str, str], list[NodeProto]] = {}
    for node, path, call in _calls(proto):
        calls.setdefault((path, call), []).append(node)
    called = names_of_calls({(path, call): (path, re.sub(r"_[0-9]+$", "", call), QUANTIZERS.issuperset(
        n.op_type for n in nodes)) for (path, call), nodes in calls.items()})
    taken = {*(v.name for v in (*proto.input, *proto.initializer)), *(name for n in proto.node for name in n.output)}
    names: dict[str, str] = {}
    for key, nodes in calls.items():
        for node in (nodes[-1], *nodes[:-1]):
            wanted = called[key] if node is nodes[-1] else f"{called[key]}.{node.op_type.lower()}"
            numbered = (f"{wanted}_{k}" if k > 1 else wanted for k in count(1))
            name = next(n for n in numbered if n not in taken or n == node.output[0])
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
