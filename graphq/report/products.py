"""Find why a matmul or convolution does not multiply integers: because of an operand, or because kernels refuse it."""
from collections.abc import Callable, Collection, Sequence
from functools import partial

from graphq.dtypes import f32, s8, u8
from graphq.errors import GraphqError
from graphq.ir import Graph, Node, Value, listing, reached, sources
from graphq.kernels.conv.filter import along_lines
from graphq.kernels.families import FAMILIES
from graphq.kernels.family.record import Family
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.native import NATIVE
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fuse import Fuse
from graphq.passes.normal_forms import ConvIntegerAsConvolution
from graphq.passes.pipeline import canonicalize
from graphq.report.coverage import MACS, is_quantized
from graphq.report.given import COMPUTED, MOVES, Given, Reason, distinct
from graphq.rewrite.fixpoint import pass_name
from graphq.rewrite.rule import Pass, Refusal

PRODUCTS = MACS.keys() - NATIVE.keys()
"""The layers: operations with multiply-accumulates that integer partitions could contain."""

FAR = 32
"""The largest number of values that a search visits, from an f32 operand upward."""

MOVERS = frozenset(map(pass_name, canonicalize.passes))
"""The names of the rewrites of `canonicalize`. Some of these swap an operation of `given.MOVES` with a dequantize."""

OPERANDS = "operands come from dequantize"
"""The check that failed if an operand of a layer is not dequantized."""

ROLES = ("activations", "are"), ("weights", "are"), ("second operand", "is")
"""The words in texts for operand 0 of a layer, for weights, and for any other operand 1, each with its verb."""


def product_reason(node: Node, given: Given, passes: Collection[Pass], refusals: Collection[Refusal]) -> Reason:
    """Why a layer is in no integer partition; `refusals` come from `passes`, `given` finds the user's names."""
    family = _family(node)
    if family is None:
        name = ConvIntegerAsConvolution.__name__
        refused_for = next((r.reason for r in refusals if r.rewrite == name and node in r.nodes), None)
        text = f"no fusion supports {node.op.name}" if refused_for is None else refused_for
        return Reason(node, name, "operation", node, node.output, text,
                      "write it as a matmul or convolution of dequantized operands, in parts whose sums stay in s32")
    fusion = Fuse(family.name).name
    why = partial(Reason, node, fusion)
    operands = [None if v is None else _uncast(given.origin(v), given) for v in node.inputs]
    obstacles = {} if "_integer" in node.op.name else {
        k: r for k, v in enumerate(operands[:2]) if v is not None and (r := _operand(node, k, v, given, refusals))}
    refused = _refused(family, node, operands, obstacles, given)
    if obstacles:
        first, *_ = found = [*obstacles.values()]
        said = [(r.reason, r.edit) for r in found] + ([] if refused is None else [(str(refused), refused.edit)])
        return why(OPERANDS, first.op, first.value, listing(distinct(text for text, _ in said), "and"),
                   "; ".join(distinct(edit for _, edit in said)))
    if refused is not None:
        value = None if refused.operand is None else operands[refused.operand]
        return why(COMPUTED, None if value is None else value.node, value,
                   f"{refused}{'' if value is None else f' ({given.line(value)})'}", refused.edit)
    if not any(isinstance(p, Fuse) and p.name == fusion for p in passes):
        return why("the pass runs", None, None, f"the passes do not include {fusion}",
                   f"compile with passes that include Fuse('{family.name}'), such as PIPELINE")
    if any(v is not None and given.added(v.node) for v in operands[:2]):
        return why("the pattern matches", None, None, "a reorder that the passes added is between it and a dequantize",
                   "compile with duplicate_dequantize and canonicalize after channels_last, as PIPELINE does")
    return why("the pattern matches", None, None, "it has operands other than activations, weights and bias",
               "move the other operands to an operation after it")


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
    if along_lines(node):  # as an integer convolution, it would be computed channels last
        return None
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
    """Why operand `k` of a layer, the user's `value`, is not dequantized, as a phrase; None if it is."""
    value = given.under(value)
    maker, say = value.node, given.say
    x, dtype, quantized = say(value), value.dtype, f"quantize and dequantize {say(value)}"
    role, are = ROLES[k + (k == 1 and node.op.name.startswith("matmul") and not _is_weight(value, node, given))]
    why = partial(Reason, node, "", OPERANDS)
    if maker is None:
        stage, edit = given.stage(value), f"quantize {x} to s8 and dequantize it"
        if stage:
            return why(None, value, f"its {role}, {x}, {are} computed by an earlier stage, {stage}, in {dtype}",
                       edit if k else quantized)
        return why(None, value, f"its {role}, {x}, {are} an input of the graph in {dtype}",
                   f"{edit}, or pass it as s8 and dequantize it" if k else
                   f"{quantized}, or pass it as u8 and dequantize it")
    if maker.op.name in DEQUANTIZES:
        return None
    if value.data is not None:
        kind, called = (("weights", "a constant") if k else ("activations", x))
        return why(maker, value, f"its {kind}, {called}, are {dtype}",
                   f"store the {kind} as s8 and dequantize them, as gq.quantization.quantize does")
    if maker.op.name == "cast" and is_quantized((integer := next(maker.operands)).dtype):
        return why(maker, value, f"its {role}, {x}, {are} a cast of {say(integer)}, {integer.dtype}, instead of a "
                   "dequantize", f"dequantize {say(integer)} with scale 1 instead of the cast")
    quantize = next((u for u in given.users(value) if u.op.name == "quantize"), None)
    if quantize is not None:
        made = say(quantize.output)
        return why(quantize, value, f"its {role}, {x}, {are} {dtype}, although a quantize makes {made} of {x}",
                   f"read the dequantized {made} instead")
    path = way_up(value, given) or way_up(value, given, constants=True)
    if not path:
        return why(maker, value, f"its {role}, {x}, {are} {dtype} that nothing quantizes", quantized)
    return _computed_operand(node, role, path, given, refusals)


def _computed_operand(node: Node, role: str, path: Sequence[Value], given: Given, refusals: Collection[Refusal]
                      ) -> Reason:
    """Why an operand of a layer is not dequantized, if it is computed from a dequantize; `path` leads to that."""
    say = given.say
    *between, (source, dequantized) = [(v.node, v) for v in path if v.node is not None]
    computing = [(n, v) for n, v in between if n.op.name not in MOVES]
    last, result = (computing or between[-1:])[0]
    why, title, layer = partial(Reason, node, "", OPERANDS, last, result), given.title(last), given.title(node)
    more = f", with {len(computing) - 1} more before it," if len(computing) > 1 else ""
    far = f"{say(last)}{more} stands between the {layer} and the dequantize of its {role}, {given.line(source)}"
    quantized = f"quantize and dequantize {say(result)}"
    if computing and all(n.op.name in ("type_cast", "cast") for n, _ in computing):
        return why(far, f"let the {layer} read {say(dequantized)} in f32, without the cast"
                   + ("" if path[0].dtype == f32 else ", and cast its result"))
    name = given.node(last).op.name
    if name == "concat":
        scales = listing(distinct(_scales(v, given) for v in last.operands), "and")
        return why(f"{say(result)}, its {role}, joins operands with different quantization: {scales}",
                   f"{quantized}, or quantize the operands of the concat with one scale and zero point")
    if name in MOVES:
        at = given.node(source)
        if at.attrs["qtype"] == "per_channel":
            return why(f"{far}: it would mix the scales along axis {at.attrs['axis']}",
                       f"dequantize after the {title}, or with one scale for the tensor")
        refused = not_moved(source, last, given, refusals)
        return why(far, f"dequantize after the {title}, or {quantized}") if refused is None else \
            why(f"{far}: {refused}", quantized)
    factor = next((v for v in [*last.operands][name == "divide":] if v.type.known and v.type.size == 1), None)
    if name not in ("multiply", "divide") or factor is None or len(computing) > 1:
        return why(far, quantized)
    if factor.data is None:
        by = say(factor)
        return why(far, f"{title} the result of the {layer} by {by} instead ({by} is not constant), or {quantized}")
    return why(far, f"fold the constant into the scale of {say(dequantized)}, or {quantized}")


def _scales(value: Value, given: Given) -> str:
    """The quantization of an operand of a concat, as text."""
    maker = value.node
    if maker is None or maker.op.name != "dequantize":
        return f"{value.dtype} that is not dequantized ({given.say(value)})"
    if maker.attrs["qtype"] != "per_tensor":
        return f"scales along axis {given.node(maker).attrs['axis']}"
    (scale,), zps = maker.attrs["scales"], maker.attrs["zps"] or (0,)
    return f"{next(maker.operands).dtype} with scale {scale:g}, zero point {zps[0]}"


def _is_weight(value: Value, node: Node, given: Given) -> bool:
    """Whether operand 1 of a layer is weights: it depends only on constants and on inputs marked constant.

    A matrix that is an input is also weights if the layer multiplies dequantized activations by it.
    """
    if value.node is None and len(value.shape or ()) == 2:
        first = given.under(next(node.operands)).node
        return value.property == "constant" or first is not None and first.op.name in DEQUANTIZES
    found = list(reached([given.origin(value)], lambda v: map(given.origin, sources(v)), FAR))
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
        return v.maker.op.name in DEQUANTIZES and (constants or next(v.maker.operands).data is None)

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

    for at in reached([value], above, FAR):
        if at.node is not None and at.node.op.name != "constant" and ends(at):
            path = [at]
            while path[-1] is not value:
                path.append(below[path[-1]])
            return [v for v in path[::-1] if v is at or not given.added(v.node)]
    return []
