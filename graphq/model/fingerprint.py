"""The fingerprint of a model: a digest of all that decides its outputs, equal on every machine.

Policy: NUMBERS changes whenever a bit of any output can change, and CHANGELOG.md lists these changes first. Models with
equal fingerprints therefore give equal outputs for equal inputs, whatever the machine, ISA level, threads and version.
"""
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from graphq.ir import Graph
from graphq.passes import PIPELINE
from graphq.passes.pipeline import names_of
from graphq.rewrite.rule import Pass

NUMBERS = 1
"""The version of graphq's numbers. tests/test_same_bits.py has digests of outputs for it."""


def fingerprint(graph: Graph, passes: Sequence[Pass]) -> str:
    """The fingerprint of a graph with these passes, as 32 hexadecimal digits.

    It depends on the operations, their attributes and constants, on the names of inputs and outputs, on the passes that
    PIPELINE does not have, and on NUMBERS. Raises GraphError for a pass that is not graphq's: its effect is not known.
    """
    added = [step for step in passes if step not in PIPELINE]
    usual = [step for step in passes if step in PIPELINE] == [*PIPELINE]
    digest = hashlib.sha256(repr((NUMBERS, names_of(added if usual else passes), usual)).encode())
    for piece in _pieces(graph):
        digest.update(piece)
    return digest.hexdigest()[:32]


def _pieces(graph: Graph) -> Iterator[bytes | memoryview]:
    """All that decides the outputs of a graph. Values have numbers in place of names, except inputs and outputs."""
    numbers = {v: k for k, v in enumerate((*graph.inputs, *(v for n in graph.nodes for v in n.outputs)))}
    yield repr([(v.name, str(v.type), v.property) for v in graph.inputs]).encode()
    for node in graph.nodes:
        yield repr((node.op.name, [None if v is None else numbers[v] for v in node.inputs])).encode()
        for name, declared in node.op.attributes.items():
            value = node.attrs[name]
            if isinstance(value, Graph):
                yield from _pieces(value)
            elif isinstance(value, np.ndarray):
                yield repr((name, str(value.dtype), value.shape)).encode()
                yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
            elif declared.required or repr(value) != repr(declared.default):
                yield f"{name}={value!r}".encode()
    yield repr([(name, numbers[v]) for name, v in zip(graph.output_names, graph.outputs, strict=True)]).encode()
