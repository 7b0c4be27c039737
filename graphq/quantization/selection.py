"""How users name layers: by name, by pattern, by operation, or as the part of a graph between two names.

- "encoder/fc1": the layer whose result or ONNX node has this name, in the graph or in the model's file
- "encoder/*": the layers whose names match; `*` matches any letters
- "encoder.0": if no layer has this name, the layers within this module of PyTorch, such as "encoder.0.fc1"
- "op:Conv": the layers of an operation, by graphq's or ONNX's name
- "a..b": the layers on paths from value a to value b, including both; a node's name means its first result
"""
import re
from collections.abc import Collection
from dataclasses import replace

from graphq.errors import GraphError
from graphq.ir import ONNX_NAME, Graph, Value, choice, new_name, reached, sources
from graphq.quantization.between import quantized_between, stored_between
from graphq.quantization.bodies import around, with_bodies
from graphq.quantization.products import PRODUCTS, products, values_by_name
from graphq.quantization.scheme import Scheme

OPERATIONS = {"conv": "convolution", "convtranspose": "conv_transpose", "gemm": "matmul"} | {p: p for p in PRODUCTS}
"""graphq's names of operations, by the names that users may write, in lower-case letters."""


def resolved(graph: Graph, scheme: Scheme) -> Scheme:
    """The scheme with layer names instead of the texts that select layers of a `prepared` graph.

    Raises GraphError if a text selects no layer, if the scheme excludes all layers that a text selects for 16 bits, or
    if limits are given for a tensor that is not quantized.
    """
    scheme = replace(scheme, limits={new_name(graph, name): x for name, x in dict(scheme.limits).items()})
    exclude = selected(graph, scheme.exclude)
    for part in ("wide", "wide_weights"):
        for text in getattr(scheme, part):
            if set(_selected(graph, text)) <= set(exclude):
                raise GraphError(f"scheme: {part} {text!r} selects only excluded layers")
    values = values_by_name(graph, inside=True)
    read = {x for p in products(graph) if p.name not in exclude for x in p.factors}
    read |= {values[n] for n in stored_between(graph)} if scheme.limits else set()
    for name, _ in dict(scheme.limits).items():
        if name not in values:
            raise GraphError(f"scheme: limits name '{name}', but graph '{graph.name}' has no such tensor"
                             f"{choice(name, values)}")
        if values[name] not in read:
            names = choice(name, (n for n, v in values.items() if v in read))
            raise GraphError(f"scheme: limits name '{name}', but this tensor is not quantized: no quantized layer "
                             f"reads it, and it is not stored between layers{names}")
    made = replace(scheme, exclude=exclude, wide=selected(graph, scheme.wide),
                   wide_weights=selected(graph, scheme.wide_weights))
    return replace(made, between=_between_products(graph, made))


def _between_products(graph: Graph, scheme: Scheme) -> tuple[str, ...]:
    every = stored_between(graph) if scheme.between else []
    held = quantized_between(graph, replace(scheme, between=tuple(every)))
    found = {text: [n for n in every if _pattern(text).fullmatch(n)] for text in scheme.between}
    for text, names in found.items():
        if not names and text != "*":
            raise GraphError(f"scheme: no value stored between layers is named {text!r}; "
                             f"there are {', '.join(every) or 'none'}")
    return tuple(n for n in held if any(n in names for names in found.values()))


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))))


def selected(graph: Graph, wanted: Collection[str]) -> tuple[str, ...]:
    """The names of the layers that the texts select, each once. Raises GraphError for a text without layers."""
    return tuple(dict.fromkeys(name for text in wanted for name in _selected(graph, text)))


def _selected(graph: Graph, text: str) -> list[str]:
    found = {p.name: p.node for p in products(graph)}
    if new_name(graph, text) in found:
        return [new_name(graph, text)]
    first, dots, last = text.partition("..")
    if text.startswith("op:"):
        op = OPERATIONS.get(text[3:].replace("_", "").lower(), text[3:].lower())
        names = [n for n, node in found.items() if node.op.name == op]
    elif dots:
        between, owners = _between(graph, first, last), with_bodies(graph)
        names = [n for n, node in found.items() if any(v in between for m in around(node, owners) for v in m.outputs)]
    else:
        names = []
        for fits in _pattern(text).fullmatch, _pattern(f"{text}.*").fullmatch:
            names = names or [n for n, x in found.items() if fits(n) or fits(x.meta.get(ONNX_NAME, ""))]
    if not names:
        nodes = (node.meta[ONNX_NAME] for node in found.values() if ONNX_NAME in node.meta)
        raise GraphError(f"scheme: no matmul or convolution is named {text!r}{choice(text, (*found, *nodes))}")
    return names


def _between(graph: Graph, first: str, last: str) -> set[Value]:
    named = {n.meta[ONNX_NAME]: n.outputs[0] for g in with_bodies(graph) for n in g.nodes if ONNX_NAME in n.meta}
    values = named | values_by_name(graph, inside=True)
    first, last = new_name(graph, first), new_name(graph, last)
    for name in (first, last):
        if name not in values:
            raise GraphError(f"scheme: '{first}..{last}': graph '{graph.name}' has no value or ONNX node named "
                             f"'{name}'{choice(name, values)}")
    start, end = values[first], values[last]
    after = {*reached([start], lambda x: [v for n in x.users for v in n.outputs])}
    found = {*reached([end], lambda x: [] if x is start else [v for v in sources(x) if v in after])}
    return found if end in after and start in found else set()
