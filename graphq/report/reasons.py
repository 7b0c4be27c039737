"""Reasons: why operations are outside of integer partitions, as records, and the English text of each kind.

A text is a template over the fields of the reason: `node`, the operation outside; `op` and `value`, the obstacle; and
the keys of `about`. `{value}` is replaced by what `say` returns for the value, and `{value:dtype}` by what `say`
returns for it with "dtype" as `how`. Text between bars stands before and after a thing, and is left out if the thing is
None: `{refused:|: }` is ": it moves f32" or, if `refused` is None, empty.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from graphq.ir import Node, Value
from graphq.ir.names import listing
from graphq.kernels.family.lower import Unsupported
from graphq.kernels.family.record import MAX_EPILOGUE
from graphq.report.given import MOVES, Given

SHOWN = 3
"""The most users of a value that a text names."""


class Reason(NamedTuple):
    """Why `node`, an operation before the fusions, is not in the partition that `fusion` would make.

    `kind` is the key in REASONS. `op` and `value` are the obstacle; both are None if the obstacle is an input or output
    of the graph, or a type. `about` has the other things that texts of this kind mention, by their names in the
    templates.
    """

    kind: str
    node: Node
    fusion: str
    op: Node | None
    value: Value | None
    about: Mapping[str, object]

    @property
    def check(self) -> str:
        """The check of the fusion that failed."""
        return REASONS[self.kind].check


def reason(node: Node, fusion: str, kind: str, op: Node | None, value: Value | None, **about: object) -> Reason:
    """Make a Reason; `about` has the further things that its texts mention, by their names in the templates."""
    return Reason(kind, node, fusion, op, value, about)


class Texts(NamedTuple):
    """The texts for a kind of reason: the check that failed, and templates of the reason and of the edit."""

    check: str
    reason: str
    edit: str


BORDER = "the graph's border"
"""The check for operations that are outside because an input or an output of the graph is f32."""

LANES = "lane-wise operations"
"""The check for operations that are outside because an operation before or after them is not lane-wise."""

FORK = "one user"
"""The check for operations that are outside because a value has other users; one cause stands for all of them."""

COMPUTED = "kernels can compute it"
OPERANDS = "operands come from dequantize"

_BETWEEN = "quantize and dequantize {values}, before the {op:title}"
_BEFORE_FORK = "quantize {value} before the fork, and let all its users read the dequantize"
_IN_PARTS = "write it as a matmul or convolution of dequantized operands, in parts whose sums stay in s32"
_PRODUCT = "{op}{more:|, with | more before it,} stands between the product and the dequantize of its {role}, " \
    "{source:line}"
_BEFORE_MOVE = "dequantize after the {op:title}, or quantize and dequantize {value}"

REASONS: Mapping[str, Texts] = {
    # a chain that ends in a quantize, `node`
    "input": Texts(BORDER, "{value} is an input of the graph in {value:dtype}",
                   "pass {value} as {node:dtype}, and dequantize that"),
    "earlier stage": Texts("one stage", "{value} is what an earlier stage makes, {stage}, in {value:dtype}",
                           "quantize {value} where it is made"),
    "later stage, too": Texts(FORK, "{value} is read in {value:dtype} by a later stage, too: {stage}", _BEFORE_FORK),
    "returned, too": Texts(FORK, "{value} is also an output of the graph, in {value:dtype}",
                           "quantize {value}, and return its dequantize"),
    "returned beside its quantize": Texts(FORK, "{value} is also an output of the graph, in {value:dtype}",
                                          "return {node:result}, or its dequantize, in place of {value}"),
    "own scale": Texts("constant scales", "its scale, {value}, is computed from {source}",
                       "quantize {source} by a constant scale, as gq.quantization.quantize finds it"),
    "users": Texts(FORK, "{value} has {users:more} in {value:dtype}: {users:lines}", _BEFORE_FORK),
    "users beside its quantize": Texts(
        FORK, "{value} has {users:more} in {value:dtype}: {users:lines}",
        "quantize before the fork: let {users:them} read the dequantized {node:result} in place of {value}"),
    "quantize refused": Texts(COMPUTED, "{refused}", "quantize to u8 or s8"),
    "between": Texts(LANES, "{op} stands between {source} and the {node:op}, and takes {source:dtype}{refused:|: }",
                     _BETWEEN),
    "layout": Texts("one layout", "{op} stands between {value} and the {node:op}, and is computed in the layout of the "
                    "graph, {value:type}, what makes {value} channels last", _BETWEEN),
    "several": Texts(LANES, "{op} is computed as several operations, in f32", "quantize and dequantize what the "
                     "{op:title} reads, or write the {op:title} as operations that partitions take in"),
    "together": Texts(COMPUTED, "{refused}", "{source:|quantize and dequantize |; }{refused:edit}"),
    "not convex": Texts(COMPUTED, "{refused}", "{source:|quantize and dequantize |; }quantize and dequantize {value}"),
    "length": Texts("the chain's length", f"the chain up to {{value}} has {MAX_EPILOGUE} operations, the most of a "
                    "partition", "quantize and dequantize {middle}, which cuts the chain"),
    "never quantized": Texts(BORDER, "{op} gives {value:dtype} that comes from no quantized value",
                             "quantize and dequantize what {op:title} reads, or its result"),
    "move between": Texts(LANES, "{op} stands between {source} and the {node:op}",
                          "move the {op:title} behind the {node:op}, where it moves integers"),

    # an operation in no partition, `op`
    "outside": Texts(LANES, "{op}{more:|, with | more after it,} stands between {source} and the {node:op}, and "
                     "{op:does}", "quantize {source} before the {op:title}, which then reads its dequantize"),
    "outside, refused": Texts(
        LANES, "{op}{more:|, with | more after it,} stands between {source} and the {node:op}: {refused}",
        "{refused:edit}; quantize {source} before the {op:title}, which then reads its dequantize"),
    "outside, of an input": Texts(BORDER, "{op} reads {source}, an input of the graph, and {op:does}",
                                  "pass {source} as {node:dtype}, and dequantize that"),
    "reads": Texts(LANES, "{op} reads {source} in {source:dtype}: no partition takes a {op:title} in",
                   "write the {op:title} as operations that partitions take in"),
    "reads, refused": Texts(LANES, "{op} reads {source} in {source:dtype}: {refused}", "{refused:edit}"),
    "moves": Texts(LANES, "{op} reads {source} in {source:dtype}: it moves f32", "dequantize after the {op:title}"),
    "moves, refused": Texts(LANES, "{op} reads {source} in {source:dtype}: {refused}",
                            "dequantize after the {op:title}"),
    "dequantized, refused": Texts(COMPUTED, "{op} reads {value} in {value:dtype}: {refused}", "{refused:edit}"),

    # a chain that begins with a dequantize, and gives floats
    "later stage": Texts("one stage", "{value} is read in {value:dtype} by a later stage: {stage}",
                         "dequantize after that, or quantize {value} before it"),
    "dequantize returned": Texts(BORDER, "{value}, a dequantize, is returned in {value:dtype}",
                                 "return {source} in its place"),
    "returned": Texts(BORDER, "{value} is returned in {value:dtype}, and not quantized",
                      "quantize {value} before it is returned"),
    "quantized operands": Texts("operands are quantized", "{value} is read in {value:dtype} by {op:line}",
                                "quantize and dequantize {value}: the partition then takes the dequantize in"),
    "all users": Texts(FORK, "{value} has {users:count} users in {value:dtype}: {users:users}",
                       "quantize {value} before the fork"),
    "before a quantize": Texts(LANES, "{op} stands between {source} and a quantize, and takes {source:dtype}",
                               "quantize and dequantize {source}, before the {op:title}"),
    "result": Texts("the result is quantized", "{op} reads {source} in {source:dtype}, and its result is not quantized",
                    "quantize the result of the {op:title}"),

    # a product, `node`
    "no fusion": Texts("operation", "no fusion takes {op:op}", _IN_PARTS),
    "no convolution": Texts("operation", "{refused}", _IN_PARTS),
    "operands": Texts(OPERANDS, "{obstacles}", "{obstacles:edit}"),
    "product refused": Texts(COMPUTED, "{refused}{value:line| (|)}", "{refused:edit}"),
    "no pass": Texts("the pass runs", "the passes do not have {fusion}",
                     "compile with passes that have Fuse('{family}'), as PIPELINE does"),
    "no pattern": Texts("the pattern matches", "it has other operands than source, weights and bias",
                        "leave further operands to an operation after it"),

    # phrases for an operand of a product
    "source from input": Texts(OPERANDS, "its source, {value}, is an input of the graph in {value:dtype}",
                               "quantize and dequantize {value}, or pass it as u8 and dequantize that"),
    "weights from input": Texts(OPERANDS, "its weights, {value}, are an input of the graph in {value:dtype}",
                                "quantize {value} to s8 and dequantize it, or pass it as s8 and dequantize that"),
    "source from stage": Texts(OPERANDS, "its source, {value}, is what an earlier stage makes, {stage}, in "
                               "{value:dtype}", "quantize and dequantize {value}"),
    "weights from stage": Texts(OPERANDS, "its weights, {value}, are what an earlier stage makes, {stage}, in "
                                "{value:dtype}", "quantize {value} to s8 and dequantize it"),
    "constant source": Texts(OPERANDS, "its source, {value}, is {value:dtype}", "store the source as s8 and dequantize "
                             "that, as gq.quantization.quantize does"),
    "constant weights": Texts(OPERANDS, "its weights, a constant, are {value:dtype}", "store the weights as s8 and "
                              "dequantize that, as gq.quantization.quantize does"),
    "cast operand": Texts(OPERANDS, "its {role}, {value}, {are} a cast of {source}, {source:dtype}, in place of a "
                          "dequantize", "dequantize {source} by scale 1 in place of the cast"),
    "operand beside its quantize": Texts(
        OPERANDS, "its {role}, {value}, {are} {value:dtype}, beside the quantize that makes {op:result}",
        "read the dequantized {op:result} instead"),
    "float operand": Texts(OPERANDS, "its {role}, {value}, {are} {value:dtype} that nothing quantizes",
                           "quantize and dequantize {value}"),
    "operand computed": Texts(OPERANDS, _PRODUCT, "quantize and dequantize {value}"),
    "operand cast": Texts(OPERANDS, _PRODUCT, "let the product read {dequantized} in f32, without the cast"),
    "operand narrowed": Texts(OPERANDS, _PRODUCT, "let the product read {dequantized} in f32, without the cast, and "
                              "cast its result"),
    "operand joined": Texts(OPERANDS, "{value}, its {role}, joins sources of different quantization: {sources:scales}",
                            "quantize and dequantize {value}, or quantize its sources by one scale and zero point"),
    "operand moved": Texts(OPERANDS, _PRODUCT, _BEFORE_MOVE),
    "operand moved, refused": Texts(OPERANDS, _PRODUCT + ": {refused}", "quantize and dequantize {value}"),
    "channels moved": Texts(OPERANDS, _PRODUCT + ", whose scales along axis {source:axis} it would mix",
                            "dequantize after the {op:title}, or with one scale for the tensor"),
    "operand scaled": Texts(OPERANDS, _PRODUCT, "fold the factor into the scale of {dequantized}, or quantize and "
                            "dequantize {value}"),
    "operand scaled by a value": Texts(OPERANDS, _PRODUCT, "{op:title} the product by {factor}, which is not constant, "
                                       "instead, or quantize and dequantize {value}"),
}


class _Thing(NamedTuple):
    thing: object
    given: Given

    def __format__(self, spec: str) -> str:
        how, before, after = (spec.split("|") + ["", ""])[:3]
        return "" if self.thing is None else f"{before}{say(self.thing, self.given, how)}{after}"


def texts(r: Reason, given: Given) -> tuple[str, str]:
    """The reason and the edit of a record, as texts."""
    named = {"node": r.node, "fusion": r.fusion, "op": r.op, "value": r.value, **r.about}
    things = {name: _Thing(thing, given) for name, thing in named.items()}
    return REASONS[r.kind].reason.format_map(things), REASONS[r.kind].edit.format_map(things)


def say(thing: object, given: Given, how: str = "") -> str:
    """The name of a thing in the user's graph: for a value `%y`, `x` or `%7 (relu)`, for an operation `relu (%7)`.

    `how` asks for another property. It is a key of _VALUE for a value, of _NODE for an operation and of _ALL for a
    tuple; "edit" asks for the edit of a refusal or a reason.
    """
    if isinstance(thing, Value):
        return _VALUE[how](thing, given)
    if isinstance(thing, Node):
        return _NODE[how](thing, given.node(thing), given)
    if isinstance(thing, Unsupported):
        return thing.edit if how == "edit" else str(thing)
    if isinstance(thing, Reason):
        return texts(thing, given)[how == "edit"]
    return _ALL[how](thing, given) if isinstance(thing, tuple) else str(thing)


def _said(things: Sequence[object], given: Given, how: str = "") -> list[str]:
    return list(dict.fromkeys(filter(None, (say(x, given, how) for x in things))))


def _called(value: Value, given: Given) -> str:
    at = given.value(value)
    label = at.graph.label(at)
    return label if at.name is not None or at.node is None else f"{label} ({at.node.op.title(at.node.attrs)})"


def _scales(value: Value, given: Given) -> str:
    maker = value.node
    if maker is None or maker.op.name != "dequantize":
        return f"{value.dtype} that is not dequantized ({say(value, given)})"
    if maker.attrs["qtype"] != "per_tensor":
        return f"scales along axis {say(maker, given, 'axis')}"
    (scale,), zps = maker.attrs["scales"], maker.attrs["zps"] or (0,)
    return f"{next(maker.operands).dtype} by scale {scale:g}, zero point {zps[0]}"


_VALUE: Mapping[str, Callable[[Value, Given], str]] = {
    "": _called,
    "label": lambda v, given: (at := given.value(v)).graph.label(at),
    "line": lambda v, given: say(v, given, "label") if v.node is None else say(v.node, given, "line"),
    "dtype": lambda v, given: str(v.dtype),
    "type": lambda v, given: str(given.value(v).type),
    "scales": _scales,
}

_NODE: Mapping[str, Callable[[Node, Node, Given], str]] = {  # n: a node; at: its node in the user's graph
    "": lambda n, at, given: f"{at.op.title(at.attrs)} ({at.graph.label(at.outputs[0])})",
    "op": lambda n, at, given: n.op.name,
    "title": lambda n, at, given: at.op.title(at.attrs),
    "label": lambda n, at, given: at.graph.label(at.outputs[0]),
    "line": lambda n, at, given: at.graph.describe(at),
    "axis": lambda n, at, given: str(at.attrs["axis"]),
    "dtype": lambda n, at, given: str(n.output.dtype),
    "result": lambda n, at, given: say(n.output, given),
    "does": lambda n, at, given: "moves f32" if n.op.name in MOVES else "runs outside of partitions, in f32",
}

_ALL: Mapping[str, Callable[[tuple[object, ...], Given], str]] = {  # the last five name the users of a value
    "": lambda things, given: listing(_said(things, given), "and"),
    "edit": lambda things, given: "; ".join(_said(things, given, "edit")),
    "scales": lambda things, given: listing(_said(things, given, "scales"), "and"),
    "users": lambda things, given: listing(_said(things[:SHOWN], given, "line"), "and"),
    "lines": lambda things, given: "; ".join(_said(things[:SHOWN], given, "line")),
    "count": lambda things, given: str(len(things)),
    "more": lambda things, given: "a second user" if len(things) == 1 else f"{len(things)} more users",
    "them": lambda things, given: "it" if len(things) == 1 else "them",
}
