"""Why a matmul or a convolution does not multiply integers: the operand, or the check of the kernels, in the way."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from graphq.dtypes import f32, s8, u8
from graphq.errors import GraphqError
from graphq.ir import Graph, Node, Value
from graphq.ir.names import listing
from graphq.kernels.families import FAMILIES
from graphq.kernels.family.record import Family
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.native import NATIVE
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fuse import Fuse
from graphq.passes.pipeline import canonicalise
from graphq.passes.static_quantization import ConvIntegerAsConvolution
from graphq.plan.stages import STAGES
from graphq.report.coverage import MACS
from graphq.report.given import MOVES, Given
from graphq.report.kinds import is_quantised
from graphq.rewrite.partition import carve
from graphq.rewrite.rule import Pass, Refusal

PRODUCTS = MACS.keys() - NATIVE.keys()
"""Operations that integer partitions could have."""

FAR = 32
"""Values that are looked at, above one that is read in floats, for where it comes from."""

ROLES = ("source", "weights")


class Finding(NamedTuple):
    """Why `node`, an operation before the fusions, is outside: the fields of `Cause`, as nodes and values."""

    node: Node
    fusion: str
    check: str
    blocking_node: Node | None
    blocking_value: Value | None
    reason: str
    edit: str


class Obstacle(NamedTuple):
    """What is wrong with an operand, and the edit."""

    node: Node | None
    value: Value
    reason: str
    edit: str


def elsewhere(value: Value) -> str | None:
    """What an input is that another stage of a graph in stages makes; None for an input of the whole graph."""
    made = value.graph.meta.get(STAGES, {}).get(value.name)
    return None if made is None else f"what an earlier stage makes, {made},"


def product_finding(node: Node, given: Given, passes: Collection[Pass], refusals: Iterable[Refusal]) -> Finding:
    """Why a product is not in an integer partition; `refusals` are of `passes`, `given` is the graph as it was."""
    family = _family(node)
    if family is None:
        name = ConvIntegerAsConvolution.__name__
        refused_for = (r.reason for r in refusals if r.rewrite == name and node in r.nodes)
        return Finding(node, name, "operation", node, node.output, next(refused_for, f"no fusion takes {node.op.name}"),
                       "write it as a matmul or convolution of dequantized operands, in parts whose sums stay in s32")
    fusion = Fuse(family.name)
    operands = [None if v is None else given.origin(v) for v in node.inputs]
    obstacles = [] if "_integer" in node.op.name else [
        (k, o) for k, v in enumerate(operands[:2]) if v is not None and (o := _operand(k, v, given))]
    refused = _refused(family, node, operands, {k for k, _ in obstacles}, given)
    if obstacles:
        first = obstacles[0][1]
        reasons, edits = [o.reason for _, o in obstacles], [o.edit for _, o in obstacles]
        if refused is not None:
            reasons, edits = [*reasons, str(refused)], [*edits, refused.edit]
        return Finding(node, fusion.name, "operands come from dequantize", first.node, first.value,
                       listing(dict.fromkeys(reasons), "and"), "; ".join(dict.fromkeys(filter(None, edits))))
    if refused is not None:
        value = None if refused.operand is None else operands[refused.operand]
        return Finding(node, fusion.name, "kernels can compute it", None if value is None else value.node, value,
                       str(refused) + ("" if value is None else f" ({given.made(value)})"), refused.edit)
    if not any(isinstance(p, Fuse) and p.name == fusion.name for p in passes):
        return Finding(node, fusion.name, "the pass runs", None, None, f"the passes do not have {fusion.name}",
                       f"compile with passes that have Fuse('{family.name}'), as PIPELINE does")
    return Finding(node, fusion.name, "the pattern matches", None, None, "it has other operands than source, weights "
                   "and bias", "leave further operands to an operation after it")


def _family(node: Node) -> Family | None:
    """The family whose kernels come nearest to an integer product."""
    families = [f for f in FAMILIES if node.op.name in f.operations and f.quantised]
    weights = node.inputs[1].node if len(node.inputs) > 1 and node.inputs[1] is not None else None
    narrow = weights is not None and weights.op.name in DEQUANTIZES and next(weights.operands).dtype.bits == 4
    return next((f for f in families if (f.name == "matmul_4bit") == narrow), families[0] if families else None)


def _refused(family: Family, node: Node, operands: Sequence[Value | None], replaced: Collection[int],
             given: Given) -> Unsupported | None:
    """Why kernels cannot compute the product alone, once the operands `replaced` are dequantized; None if they can."""
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
        maker = value.node
        if k < 2 and maker is not None and maker.op.name in DEQUANTIZES:
            return body.add_again(maker, [None if v is None else taken(v) for v in maker.inputs])[0]
        return taken(value)

    try:
        result = body.output(body.add_again(node, [operand(k, v) for k, v in enumerate(operands)])[0])
        own[result] = node.outputs[0]
        refused = family.refuses(body, constants)
    except GraphqError:  # dequantized operands would not fit its type: the operands say why
        return None
    return None if refused is None else given.told(refused, own)


def _operand(k: int, value: Value, given: Given) -> Obstacle | None:
    """What is wrong with operand k of a product, or None where it comes from a dequantize."""
    value = given.under(value)
    role, maker = ROLES[k], value.node
    if maker is not None and maker.op.name in DEQUANTIZES:
        return None
    integers = s8 if k else u8  # weights in s8 are what all products take, also where they are not constant
    name = given.called(value)
    what = f"its {role}, {name}, {'are' if k else 'is'}"
    if maker is None:
        stage = elsewhere(value)
        edit = "" if stage else f", or pass it as {integers} and dequantize that"
        return Obstacle(None, value, f"{what} {stage or 'an input of the graph'} in {value.dtype}",
                        f"quantize {name} to {integers} and dequantize it{edit}" if k
                        else f"quantize and dequantize {name}{edit}")
    if value.data is not None:
        return Obstacle(maker, value, f"its {role}, a constant, are {value.dtype}" if k else f"{what} {value.dtype}",
                        f"store the {role} as s8 and dequantize that, as gq.quantization.quantize does")
    if maker.op.name == "cast" and is_quantised((integer := next(maker.operands)).dtype):
        cast = given.called(integer)
        return Obstacle(maker, value, f"{what} a cast of {cast}, {integer.dtype}, in place of a dequantize",
                        f"dequantize {cast} by scale 1 in place of the cast")
    quantize = next((u for u in given.users(value) if u.op.name == "quantize"), None)
    if quantize is not None:
        return Obstacle(quantize, value, f"{what} {value.dtype}, beside the quantize that "
                        f"makes {given.called(quantize.output)}",
                        f"read the dequantized {given.called(quantize.output)} instead")
    path = way_up(value, given) or way_up(value, given, constants=True)
    if not path:
        return Obstacle(maker, value, f"{what} {value.dtype} that nothing quantizes",
                        f"quantize and dequantize {name}")
    return _between(role, path, given)


def _between(role: str, path: Sequence[Value], given: Given) -> Obstacle:
    """What operations between a product and a dequantize mean for the product; `path` is what they give, from it up."""
    *between, (source, dequantized) = [(v.node, v) for v in path if v.node is not None]
    computing = [(n, v) for n, v in between if n.op.name not in MOVES]
    last, result = computing[0] if computing else between[-1]
    name, from_ = given.title(last), given.called(dequantized)
    before = f", with {len(computing) - 1} more before it," if len(computing) > 1 else ""
    reason = f"{given.operation(last)}{before} stands between the product and the dequantize of its {role}, "
    reason += given.describe(source)
    edit = f"quantize and dequantize {given.called(result)}"
    if computing and all(n.op.name in ("type_cast", "cast") for n, _ in computing):
        after = "" if path[0].dtype == f32 else ", and cast its result"
        return Obstacle(last, result, reason, f"let the product read {from_} in f32, without the cast{after}")
    if name == "concat":
        return Obstacle(last, result, f"{given.called(result)}, its {role}, joins sources of {_scales(last, given)}",
                        f"{edit}, or quantize its sources by one scale and zero point")
    if name in MOVES:
        attrs = given.node(source).attrs
        scales = f", whose scales along axis {attrs['axis']} it would mix" if attrs["qtype"] == "per_channel" else ""
        if not scales and (refused := not_moved(source, last, given)) is not None:
            return Obstacle(last, result, f"{reason}: {refused}", edit)
        return Obstacle(last, result, reason + scales,
                        f"dequantize after the {name}, or with one scale for the tensor" if scales
                        else f"dequantize after the {name}, or {edit}")
    factors = [v for v in [*last.operands][name == "divide":] if v.type.known and v.type.size == 1]
    if name in ("multiply", "divide") and factors and len(computing) == 1:
        one = factors[0]
        edit = f"fold the factor into the scale of {from_}, or {edit}" if one.data is not None else \
            f"{name} the product by {given.called(one)}, which is not constant, instead, or {edit}"
    return Obstacle(last, result, reason, edit)


def not_moved(source: Node, move: Node, given: Given) -> str | None:
    """Why `canonicalise` does not put `move` before `source`, the dequantize that it reads; None where nothing says."""
    if given.node(source).outputs[0] in given.node(move).operands:  # asked of the graph as given, so in its axes
        source, move = given.node(source), given.node(move)
    body, _, _ = carve(source.graph, [source, move])
    _, misses = canonicalise.apply(body)
    return next((m.reason for m in misses), None)


def _scales(concat: Node, given: Given) -> str:
    """How the sources of a concat differ: `scales 0.1 and 0.2`."""
    found: dict[str, None] = {}
    for v in concat.operands:
        maker = v.node
        if maker is None or maker.op.name != "dequantize":
            found[f"{v.dtype} that is not dequantized ({given.called(v)})"] = None
        elif maker.attrs["qtype"] != "per_tensor":
            found[f"scales along axis {given.node(maker).attrs['axis']}"] = None
        else:
            (scale,), zps = maker.attrs["scales"], maker.attrs["zps"] or (0,)
            found[f"{next(maker.operands).dtype} by scale {scale:g}, zero point {zps[0]}"] = None
    return "different quantisation: " + listing(found, "and")


def way_up(value: Value, given: Given, *, constants: bool = False) -> list[Value]:
    """The values from `value` up to that of the next dequantize, which is the last; none where there is none near.

    With `constants` a dequantize of a constant counts, too, and what others were computed from is looked at.
    """
    def dequantized(v: Value) -> bool:
        assert v.node is not None
        return v.node.op.name in DEQUANTIZES and (constants or next(v.node.operands).data is None)

    return path_up(value, given, dequantized, lambda node: node.op.name not in PRODUCTS, constants=constants)


def path_up(value: Value, given: Given, ends: Callable[[Value], bool],
            through: Callable[[Node], bool] = lambda node: True, *, constants: bool = False) -> list[Value]:
    """The shortest path of values from `value` up to one at which it `ends`; none within FAR values.

    It goes through nodes from their results to their operands, with `constants` to those that constants were computed
    from; what passes added between is left out.
    """
    below: dict[Value, Value | None] = {value: None}
    queue = [value]
    for at in queue:  # which grows
        if at.node is None or at.node.op.name == "constant":
            continue
        if ends(at):
            path = [at]
            while (after := below[path[-1]]) is not None:
                path.append(after)
            return [v for v in path[::-1] if v is at or not given.added(v.node)]
        above = at.node.operands if through(at.node) and len(queue) < FAR else ()
        for v in (given.origin(x) if constants else x for x in above):
            if v not in below:
                below[v] = at
                queue.append(v)
    return []
