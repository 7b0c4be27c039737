"""Reasons why operations are outside of integer partitions, as records, and the English text of each kind.

A text is a template. Its fields are `node` (the operation outside), `op` and `value` (the obstacle), and the keys of
`about`. `{value}` is replaced by `say(value)`, and `{value:dtype}` by `say(value, how="dtype")`. `{value:line| (|)}`
puts " (" before the field and ")" after it, or nothing if the field is None.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from graphq.ir import Node, Value
from graphq.ir.names import listing
from graphq.kernels.family.record import MAX_EPILOGUE
from graphq.kernels.family.unsupported import Unsupported
from graphq.report.given import MOVES, Given

SHOWN = 3
"""The largest number of users of a value that a text names."""


class Reason(NamedTuple):
    """Why `node`, an operation before the fusions, is not in the partition that `fusion` would make.

    `kind` is the key in REASONS. `op` and `value` are the obstacle; both are None if the obstacle is an input or output
    of the graph, or a type. `about` has the other fields of the templates.
    """

    kind: str
    node: Node
    fusion: str
    op: Node | None
    value: Value | None
    about: Mapping[str, object]

    @property
    def check(self) -> str:
        """The check that failed when the fusion was tried."""
        return REASONS[self.kind].check


def reason(node: Node, fusion: str, kind: str, op: Node | None, value: Value | None, **about: object) -> Reason:
    """Make a Reason; `about` has the other fields of its templates."""
    return Reason(kind, node, fusion, op, value, about)


class Texts(NamedTuple):
    """The texts for a kind of reason: the check that failed, and templates of the reason and of the edit."""

    check: str
    reason: str
    edit: str


BORDER = "the graph's border"
"""The check that failed (`Reason.check`) if an input or output of the graph is f32."""

LANES = "lane-wise operations"
"""The check that failed (`Reason.check`) if an operation before or after `node` is not lane-wise."""

FORK = "one user"
"""The check that failed (`Reason.check`) if a value has several users; each such value is one cause."""

COMPUTED = "kernels can compute it"
OPERANDS = "operands come from dequantize"

_BETWEEN = "quantize and dequantize {values} before the {op:title}"
_BEFORE_FORK = "quantize {value} before the fork, and let all its users read the dequantize"
_IN_PARTS = "write it as a matmul or convolution of dequantized operands, in parts whose sums stay in s32"
_PRODUCT = "{op}{more:|, with | more before it,} stands between the {node:title} and the dequantize of its {role}, " \
    "{source:line}"
_BEFORE_MOVE = "dequantize after the {op:title}, or quantize and dequantize {value}"

REASONS: Mapping[str, Texts] = {
    # Texts for `node`, a quantize at the end of a chain.
    "input": Texts(BORDER, "{value} is an input of the graph in {value:dtype}",
                   "pass {value} as {node:dtype}, and dequantize it"),
    "earlier stage": Texts("one stage", "an earlier stage computes {value} in {value:dtype}: {stage}",
                           "quantize {value} in that stage"),
    "later stage, too": Texts(FORK, "a later stage also reads {value} in {value:dtype}: {stage}", _BEFORE_FORK),
    "returned, too": Texts(FORK, "{value} is also an output of the graph, in {value:dtype}",
                           "quantize {value}, and return its dequantize"),
    "returned beside its quantize": Texts(FORK, "{value} is also an output of the graph, in {value:dtype}",
                                          "return {node:result}, or its dequantize, instead of {value}"),
    "own scale": Texts("constant scales", "its scale, {value}, is computed from {source}",
                       "quantize {source} with a constant scale; gq.quantization.quantize finds one"),
    "users": Texts(FORK, "{value} has {users:more} in {value:dtype}: {users:lines}", _BEFORE_FORK),
    "users beside its quantize": Texts(
        FORK, "{value} has {users:more} in {value:dtype}: {users:lines}",
        "quantize before the fork: let {users:them} read the dequantized {node:result} instead of {value}"),
    "quantize refused": Texts(COMPUTED, "{refused}", "quantize to u8 or s8"),
    "between": Texts(LANES, "{op} stands between {source} and the {node:op}, and reads {source:dtype}{refused:|: }",
                     _BETWEEN),
    "layout": Texts("one layout", "{op} stands between {value} and the {node:op}, and is computed in the layout of the "
                    "graph, {value:type}, but {value} is computed channels last", _BETWEEN),
    "several": Texts(LANES, "{op} is computed as several operations, in f32", "quantize and dequantize the operands "
                     "of the {op:title}, or write it with operations that partitions can contain"),
    "together": Texts(COMPUTED, "{refused}", "{source:|quantize and dequantize |; }{refused:edit}"),
    "not convex": Texts(COMPUTED, "{refused}", "{source:|quantize and dequantize |; }quantize and dequantize {value}"),
    "length": Texts("the chain's length", f"the chain up to {{value}} has {MAX_EPILOGUE} operations, the limit of a "
                    "partition", "quantize and dequantize {middle}, to cut the chain"),
    "never quantized": Texts(BORDER, "{op} gives {value:dtype}, and depends on no quantized value",
                             "quantize and dequantize the operands or the result of the {op:title}"),
    "move between": Texts(LANES, "{op} stands between {source} and the {node:op}",
                          "move the {op:title} behind the {node:op}: there it moves integers"),

    # Texts for `op`, an operation in no partition.
    "outside": Texts(LANES, "{op}{more:|, with | more after it,} stands between {source} and the {node:op}, and "
                     "{op:does}", "quantize {source} before the {op:title}, and let that read the dequantize"),
    "outside, refused": Texts(
        LANES, "{op}{more:|, with | more after it,} stands between {source} and the {node:op}: {refused}",
        "{refused:edit}; quantize {source} before the {op:title}, and let that read the dequantize"),
    "outside, of an input": Texts(BORDER, "{op} reads {source}, an input of the graph, and {op:does}",
                                  "pass {source} as {node:dtype}, and dequantize it"),
    "reads": Texts(LANES, "{op} reads {source} in {source:dtype}: no partition can contain a {op:title}",
                   "write the {op:title} with operations that partitions can contain"),
    "reads, refused": Texts(LANES, "{op} reads {source} in {source:dtype}: {refused}", "{refused:edit}"),
    "moves": Texts(LANES, "{op} reads {source} in {source:dtype}: it moves f32", "dequantize after the {op:title}"),
    "moves, refused": Texts(LANES, "{op} reads {source} in {source:dtype}: {refused}",
                            "dequantize after the {op:title}"),
    "dequantized, refused": Texts(COMPUTED, "{op} reads {value} in {value:dtype}: {refused}", "{refused:edit}"),

    # Texts for a chain that begins with a dequantize and ends in f32.
    "later stage": Texts("one stage", "a later stage reads {value} in {value:dtype}: {stage}",
                         "dequantize after that operation, or quantize {value} before it"),
    "dequantize returned": Texts(BORDER, "{value}, a dequantize, is returned in {value:dtype}",
                                 "return {source} instead"),
    "returned": Texts(BORDER, "{value} is returned in {value:dtype}, and not quantized",
                      "quantize {value} before it is returned"),
    "quantized operands": Texts("operands are quantized", "{value} is read in {value:dtype} by {op:line}",
                                "quantize and dequantize {value}: the partition then contains the dequantize"),
    "all users": Texts(FORK, "{value} has {users:count} users in {value:dtype}: {users:users}",
                       "quantize {value} before the fork"),
    "before a quantize": Texts(LANES, "{op} stands between {source} and a quantize, and reads {source:dtype}",
                               "quantize and dequantize {source} before the {op:title}"),
    "result": Texts("the result is quantized", "{op} reads {source} in {source:dtype}, and its result is not quantized",
                    "quantize the result of the {op:title}"),

    # In the texts below, the obstacle is at a layer.
    "no fusion": Texts("operation", "no fusion supports {op:op}", _IN_PARTS),
    "no convolution": Texts("operation", "{refused}", _IN_PARTS),
    "operands": Texts(OPERANDS, "{obstacles}", "{obstacles:edit}"),
    "product refused": Texts(COMPUTED, "{refused}{value:line| (|)}", "{refused:edit}"),
    "no pass": Texts("the pass runs", "the passes do not include {fusion}",
                     "compile with passes that include Fuse('{family}'), such as PIPELINE"),
    "no pattern": Texts("the pattern matches", "it has operands other than activations, weights and bias",
                        "move the other operands to an operation after it"),
    "operand reordered": Texts("the pattern matches", "a reorder that the passes added is between it and a dequantize",
                               "compile with duplicate_dequantize and canonicalize after channels_last, as PIPELINE "
                               "does"),

    # Phrases for an operand of a layer.
    "activations from input": Texts(OPERANDS, "its activations, {value}, are an input of the graph in {value:dtype}",
                                    "quantize and dequantize {value}, or pass it as u8 and dequantize it"),
    "weights from input": Texts(OPERANDS, "its {role}, {value}, {are} an input of the graph in {value:dtype}",
                                "quantize {value} to s8 and dequantize it, or pass it as s8 and dequantize it"),
    "activations from stage": Texts(OPERANDS, "its activations, {value}, are computed by an earlier stage, {stage}, in "
                                    "{value:dtype}", "quantize and dequantize {value}"),
    "weights from stage": Texts(OPERANDS, "its {role}, {value}, {are} computed by an earlier stage, {stage}, in "
                                "{value:dtype}", "quantize {value} to s8 and dequantize it"),
    "constant activations": Texts(OPERANDS, "its activations, {value}, are {value:dtype}", "store the activations as "
                                  "s8 and dequantize them, as gq.quantization.quantize does"),
    "constant weights": Texts(OPERANDS, "its weights, a constant, are {value:dtype}", "store the weights as s8 and "
                              "dequantize them, as gq.quantization.quantize does"),
    "cast operand": Texts(OPERANDS, "its {role}, {value}, {are} a cast of {source}, {source:dtype}, instead of a "
                          "dequantize", "dequantize {source} with scale 1 instead of the cast"),
    "operand beside its quantize": Texts(
        OPERANDS, "its {role}, {value}, {are} {value:dtype}, although a quantize makes {op:result} of {value}",
        "read the dequantized {op:result} instead"),
    "float operand": Texts(OPERANDS, "its {role}, {value}, {are} {value:dtype} that nothing quantizes",
                           "quantize and dequantize {value}"),
    "operand computed": Texts(OPERANDS, _PRODUCT, "quantize and dequantize {value}"),
    "operand cast": Texts(OPERANDS, _PRODUCT, "let the {node:title} read {dequantized} in f32, without the cast"),
    "operand narrowed": Texts(OPERANDS, _PRODUCT, "let the {node:title} read {dequantized} in f32, without the cast, "
                              "and cast its result"),
    "operand joined": Texts(OPERANDS, "{value}, its {role}, joins operands with different quantization: "
                            "{sources:scales}", "quantize and dequantize {value}, or quantize the operands of the "
                            "concat with one scale and zero point"),
    "operand moved": Texts(OPERANDS, _PRODUCT, _BEFORE_MOVE),
    "operand moved, refused": Texts(OPERANDS, _PRODUCT + ": {refused}", "quantize and dequantize {value}"),
    "channels moved": Texts(OPERANDS, _PRODUCT + ": it would mix the scales along axis {source:axis}",
                            "dequantize after the {op:title}, or with one scale for the tensor"),
    "operand scaled": Texts(OPERANDS, _PRODUCT, "fold the constant into the scale of {dequantized}, or quantize and "
                            "dequantize {value}"),
    "operand scaled by a value": Texts(OPERANDS, _PRODUCT, "{op:title} the result of the {node:title} by {factor} "
                                       "instead ({factor} is not constant), or quantize and dequantize {value}"),
}


class _Thing(NamedTuple):
    thing: object
    given: Given

    def __format__(self, spec: str) -> str:
        how, before, after = (spec.split("|") + ["", ""])[:3]
        return "" if self.thing is None else f"{before}{say(self.thing, self.given, how)}{after}"


def texts(r: Reason, given: Given) -> tuple[str, str]:
    """The texts of a reason: the reason and the edit."""
    named = {"node": r.node, "fusion": r.fusion, "op": r.op, "value": r.value, **r.about}
    things = {name: _Thing(thing, given) for name, thing in named.items()}
    return REASONS[r.kind].reason.format_map(things), REASONS[r.kind].edit.format_map(things)


def say(thing: object, given: Given, how: str = "") -> str:
    """The text for an object of the user's graph: `%y`, `x` or `%7 (relu)` for a value, `relu (%7)` for an operation.

    `how` selects another text: a key of _VALUE for a value, of _NODE for an operation, of _ALL for a tuple; "edit" for
    the edit of a refusal or a reason.
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
    return f"{next(maker.operands).dtype} with scale {scale:g}, zero point {zps[0]}"


_VALUE: Mapping[str, Callable[[Value, Given], str]] = {
    "": _called,
    "label": lambda v, given: (at := given.value(v)).graph.label(at),
    "line": lambda v, given: say(v, given, "label") if v.node is None else say(v.node, given, "line"),
    "dtype": lambda v, given: str(v.dtype),
    "type": lambda v, given: str(given.value(v).type),
    "scales": _scales,
}

_NODE: Mapping[str, Callable[[Node, Node, Given], str]] = {  # n: a node; at: the same node in the user's graph
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

_ALL: Mapping[str, Callable[[tuple[object, ...], Given], str]] = {  # the last five texts name the users of a value
    "": lambda things, given: listing(_said(things, given), "and"),
    "edit": lambda things, given: "; ".join(_said(things, given, "edit")),
    "scales": lambda things, given: listing(_said(things, given, "scales"), "and"),
    "users": lambda things, given: listing(_said(things[:SHOWN], given, "line"), "and"),
    "lines": lambda things, given: "; ".join(_said(things[:SHOWN], given, "line")),
    "count": lambda things, given: str(len(things)),
    "more": lambda things, given: "a second user" if len(things) == 1 else f"{len(things)} more users",
    "them": lambda things, given: "it" if len(things) == 1 else "them",
}
