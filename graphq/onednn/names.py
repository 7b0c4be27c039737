"""Value names in oneDNN Graph files. Tensors there have only ids, so the names are put into names of operations.

An operation that computes `scores` from `q` and an unnamed value has the name `scores=matmul(q|)`. Ports without a name
are empty. Characters of a name other than letters, digits and `_.-~/:` are written as %XX, as in URLs, so that tools
which print names in lists can split the lists. A value named t<id> is identified by its id and needs no name in the
file.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, unquote

from graphq.ir.node import Node, Value
from graphq.onednn.document import FileOp, LogicalTensor

ID = re.compile(r"t(0|[1-9][0-9]{0,19})")
_NAMED = re.compile(r"([^=()]*)=\w+\(([^=()]*)\)")


def name_of(node: Node) -> str | None:
    """The name of an operation with the names of its ports, or None if no port has a name."""
    outputs, inputs = (_listed(ports) for ports in (node.outputs, [v for v in node.inputs if v is not None]))
    return f"{outputs}={node.op.name}({inputs})" if (outputs + inputs).strip("|") else None


def _listed(ports: Sequence[Value]) -> str:
    return "|".join("" if v.name is None or ID.fullmatch(v.name) else quote(v.name, safe="/:") for v in ports)


def states_names(record: FileOp) -> bool:
    """Whether the record's name states the names of its ports."""
    return bool(_NAMED.fullmatch(record.name))


def names_of(ops: Iterable[FileOp]) -> Mapping[int, str]:
    """The names of tensors by their ids, each name once; if operations disagree on a tensor, the first one counts."""
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for op in ops:
        if match := _NAMED.fullmatch(op.name):
            for tensor, name in (*_named(op.outputs, match[1]), *_named(op.inputs, match[2])):
                if names.setdefault(tensor.id, name) == name and ids.setdefault(name, tensor.id) != tensor.id:
                    del names[tensor.id]
    return names


def _named(ports: Sequence[LogicalTensor], text: str) -> list[tuple[LogicalTensor, str]]:
    """The ports with the names that `text`, as `_listed` writes it, gives them; ports without a name are left out."""
    parts = text.split("|") if ports else []
    if len(parts) != len(ports):
        return []
    names = [unquote(x, errors="replace") for x in parts]
    return [(t, name) for t, name, x in zip(ports, names, parts, strict=True)
            if x and quote(name, safe="/:") == x and not ID.fullmatch(name)]
