"""Find why a matmul or convolution does not multiply integers: because of an operand, or because kernels refuse it."""
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from graphq.dtypes import f32, s8, u8
from graphq.errors import GraphqError
from graphq.ir import Graph, Node, Value
from graphq.kernels.families import FAMILIES
from graphq.kernels.family.record import Family
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.native import NATIVE
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fuse import Fuse
from graphq.passes.normal_forms import ConvIntegerAsConvolution
from graphq.passes.pipeline import canonicalize
from graphq.report.coverage import MACS, is_quantized
from graphq.report.given import MOVES, Given, spread
from graphq.report.reasons import Reason, reason
from graphq.rewrite.fixpoint import pass_name
from graphq.rewrite.rule import Pass, Refusal

PRODUCTS = MACS.keys() - NATIVE.keys()
"""The layers: operations with multiply-accumulates that integer partitions could contain."""

FAR = 32
"""The largest number of values that a search visits, from an f32 operand upward."""

MOVERS = frozenset(map(pass_name, canonicalize.passes))
"""The names of the rewrites of `canonicalize`. Some of these swap an operation of `given.MOVES` with a dequantize."""

ROLES = ("activations", "are"), ("weights", "are"), ("second operand", "is")
"""The words in texts for operand 0 of a layer, for weights, and for any other operand 1, each with its verb."""


def product_reason(node: Node, given: Given, passes: Collection[Pass], refusals: Collection[Refusal]) -> Reason:
    """Why a layer is in no integer partition; `refusals` come from `passes`, `given` finds the user's names."""
    family = _family(node)
    if family is None:
        name = ConvIntegerAsConvolution.__name__
        refused_for = next((r.reason for r in refusals if r.rewrite == name and node in r.nodes), None)
        kind = "no fusion" if refused_for is None else "no convolution"
        return reason(node, name, kind, node, node.output, refused=refused_for)
    why = partial(reason, node, Fuse(family.name).name)
    operands = [None if v is None else _uncast(given.origin(v), given) for v in node.inputs]
    obstacles = {} if "_integer" in node.op.name else {
        k: r for k, v in enumerate(operands[:2]) if v is not None and (r := _operand(node, k, v, given, refusals))}
    refused = _refused(family, node, operands, obstacles, given)
    if obstacles:
        first = next(iter(obstacles.values()))
        return why("operands", first.op, first.value, obstacles=(*obstacles.values(), *filter(None, [refused])))
    if refused is not None:
        value = None if refused.operand is None else operands[refused.operand]
        return why("product refused", None if value is None else value.node, value, refused=refused)
    if not any(isinstance(p, Fuse) and p.name == Fuse(family.name).name for p in passes):
        return why("no pass", None, None, family=family.name)
    if any(v is not None and given.added(v.node) for v in operands[:2]):
        return why("operand reordered", None, None)
    return why("no pattern", None, None)


def _family(node: Node) -> Family | None:
    """The family whose kernels are closest to computing the layer in integers."""
    families = [f for f in FAMILIES if node.op.name in f.operations and f.quantized]
    weights = node.inputs[1].node if len(node.inputs) > 1 and node.inputs[1] is not None else None
    narrow = weights is not None and weights.op.name in DEQUANTIZES and (
        next(weights.operands).dtype.bits == 4 or weights.attrs["qtype"] == "per_group")
    return next((f for f in families if (f.name == "matmul_compressed") == narrow), families[0] if families else None)


def _uncast(value: Value, given: Given) -> Value:
    """The operand of a cast that a pass added; any other value itself."""
    cast = value.node is not None and value.node.op.name == "type_cast" and given.added(value.node)
    return given.under(value) if cast else value


def _refused(family: Family, node: Node, operands: Sequence[Value | None], replaced: Collection[int],
             given: Given) -> Unsupported | None:
    """Why kernels would refuse the layer even if its operands `replaced` were dequantized; None if they would not."""
    body, constants, own = Graph("body"), [], dict[Value, Value]()

    def taken(value: Value) -> Value:
        constants.append(value.data)
        x = body.input(f"i{len(body.inputs)}", dtype=value.dtype, shape=value.shape,
                       property="constant" if value.data is not None else value.property)
        own[x] = value
        return x

    def operand(k: int, value: Value | None) -> Value | None:
        if value is None:
            return None
        if k in replaced:
            constants.append(None)
            x = body.input(f"i{len(body.inputs)}", dtype=s8 if k else u8, shape=value.shape)
            return body.dequantize(x, scales=[1.0])
        maker, under = value.node, given.under(value).node
        if k > 1 or under is None or under.op.name not in DEQUANTIZES:
            return taken(value)
        if under is maker:
            return body.add_again(maker, [None if v is None else taken(v) for v in maker.inputs])[0]
        constants.append(None)  # a pass has inserted moves between the dequantize and the layer
        x = body.input(f"i{len(body.inputs)}", dtype=next(under.operands).dtype, shape=value.shape)
        return body.dequantize(x, scales=[1.0])

    try:
        result = body.output(body.add_again(node, [operand(k, v) for k, v in enumerate(operands)])[0])
        own[result] = node.outputs[0]
        refused = family.refuses(body, constants)
    except GraphqError:  # dequantized operands do not fit the operation; `_operand` says why
        return None
    return None if refused is None else given.told(refused, own)


def _operand(node: Node, k: int, value: Value, given: Given, refusals: Collection[Refusal]) -> Reason | None:
    value = given.under(value)
    kind, maker = ("activations", "weights")[k], value.node
    role, are = ROLES[k + (k == 1 and node.op.name.startswith("matmul") and not _is_weight(value, node, given))]
    why = partial(reason, node, "", role=role, are=are)
    if maker is None:
        stage = given.stage(value)
        return why(f"{kind} from {'stage' if stage else 'input'}", op=None, value=value, stage=stage)
    if maker.op.name in DEQUANTIZES:
        return None
    if value.data is not None:
        return why(f"constant {kind}", op=maker, value=value)
    if maker.op.name == "cast" and is_quantized((integer := next(maker.operands)).dtype):
        return why("cast operand", op=maker, value=value, source=integer)
    quantize = next((u for u in given.users(value) if u.op.name == "quantize"), None)
    if quantize is not None:
        return why("operand beside its quantize", op=quantize, value=value)
    path = way_up(value, given) or way_up(value, given, constants=True)
    if not path:
        return why("float operand", op=maker, value=value)
    *between, (source, dequantized) = [(v.node, v) for v in path if v.node is not None]
    computing = [(n, v) for n, v in between if n.op.name not in MOVES]
    last, result = (computing or between[-1:])[0]
    why = partial(why, op=last, value=result, source=source, more=len(computing) - 1 if len(computing) > 1 else None)
    if computing and all(n.op.name in ("type_cast", "cast") for n, _ in computing):
        return why("operand cast" if value.dtype == f32 else "operand narrowed", dequantized=dequantized)
    name = given.node(last).op.name
    if name == "concat":
        return why("operand joined", sources=tuple(last.operands))
    if name in MOVES:
        if given.node(source).attrs["qtype"] == "per_channel":
            return why("channels moved")
        refused = not_moved(source, last, given, refusals)
        return why("operand moved") if refused is None else why("operand moved, refused", refused=refused)
    factor = next((v for v in [*last.operands][name == "divide":] if v.type.known and v.type.size == 1), None)
    if name not in ("multiply", "divide") or factor is None or len(computing) > 1:
        return why("operand computed")
    if factor.data is None:
        return why("operand scaled by a value", factor=factor)
    return why("operand scaled", dequantized=dequantized)


def _is_weight(value: Value, node: Node, given: Given) -> bool:
    """Whether operand 1 of a layer is weights: it depends only on constants and on inputs marked constant.

    A matrix that is an input is also weights if the layer multiplies dequantized activations by it.
    """
    if value.node is None and len(value.shape or ()) == 2:
        first = given.under(next(node.operands)).node
        return value.property == "constant" or first is not None and first.op.name in DEQUANTIZES
    found = list(spread(given.origin(value), lambda v: map(given.origin, v.node.operands if v.node else ()), FAR))
    return len(found) < FAR and all(v.node is not None or v.property == "constant" for v in found)


def not_moved(source: Node, move: Node, given: Given, refusals: Collection[Refusal]) -> str | None:
    """Why `canonicalize` did not put `move` before the dequantize `source`; None if no rewrite refused."""
    both = {given.node(source), given.node(move)}
    return next((r.reason for r in refusals
                 if r.reason and r.rewrite in MOVERS and both <= set(map(given.node, r.nodes))), None)


def way_up(value: Value, given: Given, *, constants: bool = False) -> list[Value]:
    """The values from `value` up to the result of the nearest dequantize; empty if there is no dequantize nearby.

    With `constants`, a dequantize of a constant also counts, and the search continues from computed constants to their
    operands.
    """
    def dequantized(v: Value) -> bool:
        assert v.node is not None
        return v.node.op.name in DEQUANTIZES and (constants or next(v.node.operands).data is None)

    return path_up(value, given, dequantized, lambda node: node.op.name not in PRODUCTS, constants=constants)


def path_up(value: Value, given: Given, ends: Callable[[Value], bool],
            through: Callable[[Node], bool] = lambda node: True, *, constants: bool = False) -> list[Value]:
    """The shortest path from `value` up to a value that `ends` accepts; empty if no such value is near (FAR).

    Each step of the path goes from a node's result to an operand or, with `constants`, from a computed constant to a
    value that it was computed from. Results of operations that passes added are left out.
    """
    below: dict[Value, Value] = {}

    def above(at: Value) -> list[Value]:
        if at.node is None or at.node.op.name == "constant" or not through(at.node):
            return []
        values = [given.origin(v) if constants else v for v in at.node.operands]
        for v in values:
            below.setdefault(v, at)
        return values

    for at in spread(value, above, FAR):
        if at.node is not None and at.node.op.name != "constant" and ends(at):
            path = [at]
            while path[-1] is not value:
                path.append(below[path[-1]])
            return [v for v in path[::-1] if v is at or not given.added(v.node)]
    return []
