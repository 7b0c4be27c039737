"""The fingerprint of a model: a digest of all that decides its outputs, equal on every machine.

Policy: NUMBERS changes whenever a bit of any output can change, and CHANGELOG.md lists these changes first. Models with
equal fingerprints therefore give equal outputs for equal inputs, whatever the machine, ISA level, threads and version.
Steps that NumPy or ONNX's reference runs are an exception: they have the bits of the installed packages.
"""
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product

import numpy as np

from graphq.errors import GraphError, GraphqError
from graphq.ir import Graph
from graphq.model.row_wise import SIZES, with_sizes
from graphq.ops import NUMBERS
from graphq.passes import PIPELINE, PRECISIONS
from graphq.passes.pipeline import names_of, passes_of
from graphq.rewrite.rule import Pass
from graphq.validation.subgraphs import all_nodes


def fingerprint(graph: Graph, passes: Sequence[Pass]) -> str:
    """The fingerprint of a graph with these passes, as 32 hexadecimal digits.

    It depends on the operations, their attributes and constants, on the names of inputs and outputs, on NUMBERS, and on
    the options of `compile` that give these passes; if none do, on the names of all passes. Raises GraphError for a
    pass or an operation that is not graphq's, because its effect is not known.
    """
    given = (x for x in product(PRECISIONS, ("tensor", "rows"), ("settled", "formula"))
             if [*passes] == [*(passes_of(None, *x) or PIPELINE)])
    digest = hashlib.sha256(repr((NUMBERS, next(given, None) or names_of(passes))).encode())
    for piece in _pieces(graph):
        digest.update(piece)
    return digest.hexdigest()[:32]


def not_covered(graph: Graph) -> list[str]:
    """The operations that a fingerprint does not cover: on another machine, NumPy may compute other bits."""
    sized = graph
    with suppress(GraphqError):  # as if sizes were known, because then most ONNX nodes become operations
        sized = with_sizes(graph, (), *SIZES[0])
    left = {v.name for n in all_nodes(sized) if n.op.name != "constant" for v in n.outputs}
    folded = [n for n in all_nodes(graph) if not n.op.portable and n.outputs[0].dtype.kind == "float"
              and left.isdisjoint(v.name for v in n.outputs)]  # sizes decide these numbers
    return [n.graph.describe(n) for n in (*all_nodes(sized), *folded) if not n.op.portable]


def _pieces(graph: Graph) -> Iterator[bytes | memoryview]:
    """All that decides the outputs of a graph. Values have numbers in place of names, except inputs and outputs."""
    numbers = {v: k for k, v in enumerate((*graph.inputs, *(v for n in graph.nodes for v in n.outputs)))}
    yield repr([(v.name, str(v.type), v.property) for v in graph.inputs]).encode()
    for node in graph.nodes:
        if not node.op.reference.__module__.startswith("graphq."):
            raise GraphError(f"{graph.describe(node)}: not an operation of graphq, so a fingerprint cannot cover it")
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
