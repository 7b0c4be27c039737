"""Find the causes that keep operations out of integer partitions, the fused kernels that multiply 8-bit integers.

products.py finds the causes for matmuls and convolutions. Any other operation is outside because a fusion stopped
between two operations: one computes a value in f32, the other reads it. Each rule states its reason and its edit in
English (`given.Reason`); `Given` has the words for values and operations.
"""
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from graphq.errors import GraphqError
from graphq.ir import SIZED_CONSTANT, Graph, Node, Value, listing, reached, sources
from graphq.kernels.families import ANCHORS
from graphq.kernels.family.epilogue import refuses
from graphq.kernels.family.record import MAX_EPILOGUE
from graphq.kernels.family.unsupported import Unsupported
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fuse import Fuse
from graphq.report.coverage import is_quantized, is_scale
from graphq.report.fusions import Fusions
from graphq.report.given import BORDER, COMPUTED, FORK, LANES, MOVES, QUANTIZES, Reason, distinct, equal
from graphq.report.products import PRODUCTS, not_moved, product_reason, way_up
from graphq.report.records import Cause
from graphq.rewrite.fixpoint import History
from graphq.rewrite.rule import Pass, Refusal

CHAIN = Fuse("eltwise", floats=True).name
"""The name of the fusion of elementwise operations without a layer, pool or other anchor."""

SHOWN = 3
"""The largest number of users of a value that a text names."""


def causes(analysis: "Analysis") -> list[Cause]:
    """Find the causes, each for all operations with the same reason. Layers come first, the graph's border last."""
    alike: dict[tuple[object, ...], list[Reason]] = {}
    for node in analysis.after.nodes:
        for r in analysis.of(node):
            apart = () if r.check == FORK else (r.op, r.reason)
            alike.setdefault((r.check, r.value, *apart), []).append(r)
    numbers = {node: k for k, node in enumerate(analysis.after.nodes)}
    made = [_cause(reasons, analysis, numbers) for reasons in alike.values()]
    own = {c.value for c in made}
    made = [replace(c, also=tuple(x for x in c.also if x not in own)) for c in made]
    return sorted(made, key=lambda c: (c.check == BORDER, c.op not in PRODUCTS))


def _cause(reasons: list[Reason], analysis: "Analysis", numbers: dict[Node, int]) -> Cause:
    first = min(reasons, key=lambda r: (r.node.op.name not in PRODUCTS, r.node.op.name not in QUANTIZES))
    nodes = dict.fromkeys([first.node, *(n for r in reasons for n in (r.node, *analysis.partners(r.node)))])
    op, value, given, home = first.op, first.value, analysis.given, analysis.home.get(first.node)
    if op is not None and op.op.name != "constant" and analysis.kind(op) == "float":
        nodes[op] = None
    own, *also = dict.fromkeys(given.label(n) for n in nodes if not given.added(n))
    return Cause(
        id=None if home is None else numbers[home], node=given.line(first.node), value=own,
        op=first.node.op.name, fusion=first.fusion, check=first.check,
        blocking_node=None if op is None else given.line(op),
        blocking_value=None if value is None else given.label(value),
        reason=first.reason, edit=first.edit, also=tuple(also))


class Analysis(Fusions):
    """Finds why nodes of the graph after the passes did not fuse, in terms of the graph before the fusions."""

    def __init__(self, source: Graph, history: History, passes: Sequence[Pass], refusals: Sequence[Refusal]) -> None:
        super().__init__(source, history, passes)
        self.refusals, self._products = refusals, dict[Node, Reason]()

    def of(self, home: Node) -> list[Reason]:
        """Why a node after the passes is in no integer partition; empty if it is in one, or never could be."""
        members = self.members.get(home, [])
        if not members or home.op.name in ("constant", SIZED_CONSTANT.name) or self.home_kind(home) != "float":
            return []
        product = next((n for n in members if n.op.name in PRODUCTS), None)
        if product is not None:
            return [self._product(product)]
        last = members[-1]
        if last.op.name in QUANTIZES:  # a pass quantized a layer, so the user's graph has no quantize here
            made = self.given.node(last).op.name not in QUANTIZES
            return [] if made else self._before(members, last)
        found = []
        first = next((k for k, n in enumerate(members) if n.op.name in QUANTIZES), None)
        if first is not None:  # the quantize might have fused with the operation before it
            found = [r for r in self._before(members[:first + 1], members[first]) if r.check != BORDER]
        if any(n.op.name in DEQUANTIZES and is_quantized(next(n.operands).dtype) for n in members):
            found += self._after(last)
        return found

    def _product(self, node: Node) -> Reason:
        if node not in self._products:
            self._products[node] = product_reason(node, self.given, self.passes, self.refusals)
        return self._products[node]

    # -- a chain that ends in quantize, and reads floats --------------------------------------------------------

    def _before(self, members: list[Node], last: Node) -> list[Reason]:
        """Why the chain `members`, which ends in the quantize `last`, did not join the partition before it."""
        inside = set(members)
        entries = [(v, n) for n in members for k, v in enumerate(n.inputs)
                   if v is not None and v.data is None and v.node not in inside and not is_scale(n, k)
                   and (n.op.name == "cast" or not is_quantized(v.dtype))]
        entries = [(self.given.under(v), n) for v, n in entries if not self._shared(v, n)]
        if not entries:
            return []
        value, user = min(entries, key=lambda x: self._distance(x[0]))
        return [self._ended(value, user, members, last)]

    def _shared(self, value: Value, user: Node) -> bool:
        """Whether a value is the result of a dequantize that could be in the partition of `user`."""
        maker = value.node
        return maker is not None and maker.op.name in DEQUANTIZES and is_quantized(next(maker.operands).dtype) \
            and self.anchored(maker, user) is None and refuses(maker) is None

    def _distance(self, value: Value) -> int:
        """A rank from 0 (an integer partition computes the value) to 4 (the value is an input of the graph)."""
        node = value.node
        if node is None:
            return 4
        if self.kind(node) == "integer":
            return 0
        if node.op.name in PRODUCTS or self.up(value):
            return 1
        return 2 if way_up(value, self.given) else 3

    def _ended(self, value: Value, user: Node, members: list[Node], last: Node) -> Reason:
        """Why `user`, in a chain up to the quantize `last`, is not in the partition that computes `value`."""
        maker, x = value.node, self.given.say(value)
        if maker is None:
            if stage := self.given.stage(value):
                return Reason(last, "", "one stage", None, value, f"an earlier stage computes {x} in {value.dtype}: "
                              f"{stage}", f"quantize {x} in that stage")
            return Reason(last, "", BORDER, None, value, f"{x} is an input of the graph in {value.dtype}",
                          f"pass {x} as {last.output.dtype}, and dequantize it")
        fusion = self.fusion(maker, user)
        if self.given.node(user) is self.given.value(value).node:
            return self._several(last, fusion, user)
        forked = self._forked(value, user, members, last, fusion)
        if forked is not None:
            return forked
        if maker.op.name in PRODUCTS and self.kind(maker) == "float":
            return self._product(maker)._replace(node=last)
        if self.alone(maker):
            return self._apart(value, maker, members, last, fusion)
        return self._between(value, user, last, fusion) or self._too_much(value, maker, members, last, fusion)

    def _forked(self, value: Value, user: Node, members: list[Node], last: Node, fusion: str) -> Reason | None:
        """The reason if a graph output, a scale of the chain or an operation other than `user` needs `value` in f32."""
        given, say, why = self.given, self.given.say, partial(Reason, last, fusion)
        x, before = say(value), f"quantize {say(value)} before the fork, and let all its users read the dequantize"
        if given.is_output(value):
            if (stage := given.stage(value)) is not None:
                return why(FORK, None, value, f"a later stage also reads {x} in {value.dtype}: {stage}", before)
            return why(FORK, None, value, f"{x} is also an output of the graph, in {value.dtype}",
                       f"return {say(last.output)}, or its dequantize, instead of {x}" if user is last else
                       f"quantize {x}, and return its dequantize")
        for scale in _scales(last, members):
            if value in reached([scale], sources):
                return why("constant scales", last, scale, f"its scale, {say(scale)}, is computed from {x}",
                           f"quantize {x} with a constant scale; gq.quantization.quantize finds one")
        others = [u for u in given.users(value) if u not in members]
        if not others:
            return None
        if all(given.node(u) is given.node(user) for u in others):  # a pass split one operation into several nodes
            return self._reads_floats(value, user, last, fusion, [value])
        lines = "; ".join(distinct(map(given.line, others[:SHOWN])))
        more, them = ("a second user", "it") if len(others) == 1 else (f"{len(others)} more users", "them")
        read = next(given.node(last).operands)  # the passes may have dropped a relu before the quantize
        if user is last and given.value(read) is given.value(value):
            before = f"quantize before the fork: let {them} read the dequantized {say(last.output)} instead of {x}"
        return why(FORK, others[0], value, f"{x} has {more} in {value.dtype}: {lines}", before)

    def _between(self, value: Value, user: Node, last: Node, fusion: str) -> Reason | None:
        """Why no partition can contain both `user` and the operation that computes `value`; None if a partition can."""
        given, refused = self.given, None if user.op.name in ANCHORS else refuses(user)
        if user is last and refused is not None:
            return Reason(last, fusion, COMPUTED, last, last.output, refused, "quantize to u8 or s8")
        if value.maker.op.name in DEQUANTIZES and (unsupported := self.anchored(value.maker, user)) is not None:
            return self._refused_reader(last, fusion, user, value, unsupported)
        if user.op.name in ANCHORS or refused is not None:
            return self._reads_floats(value, user, last, fusion, self._all_like(value, user), refused)
        if value not in user.operands:
            x = given.say(value)
            return Reason(last, fusion, "one layout", user, value, f"{given.say(user)} stands between {x} and the "
                          f"{last.op.name}, and is computed in the layout of the graph, {given.value(value).type}, but "
                          f"{x} is computed channels last", self._requantized(self._all_like(value, user), user))
        return None

    def _reads_floats(self, value: Value, user: Node, last: Node, fusion: str, values: Sequence[Value],
                      refused: str | None = None) -> Reason:
        """The reason that `user` reads f32; its operands `values` could be quantized."""
        say, why = self.given.say, f": {refused}" if refused else ""
        return Reason(last, fusion, LANES, user, user.outputs[0], f"{say(user)} stands between {say(value)} and the "
                      f"{last.op.name}, and reads {value.dtype}{why}", self._requantized(values, user))

    def _requantized(self, values: Sequence[Value], user: Node) -> str:
        said = listing(distinct(map(self.given.say, values)), "and")
        return f"quantize and dequantize {said} before the {self.given.title(user)}"

    def _several(self, node: Node, fusion: str, op: Node) -> Reason:
        """The reason that passes split the operation `op` into several nodes."""
        return Reason(node, fusion, LANES, op, op.outputs[0], f"{self.given.say(op)} is computed as several "
                      "operations, in f32", f"quantize and dequantize the operands of the {self.given.title(op)}, or "
                      "write it with operations that partitions can contain")

    def _refused_reader(self, node: Node, fusion: str, op: Node, value: Value, refused: Unsupported) -> Reason:
        """The reason that kernels refuse `op` with the operand `value`."""
        return Reason(node, fusion, COMPUTED, op, value, f"{self.given.say(op)} reads {self.given.say(value)} in "
                      f"{value.dtype}: {refused}", refused.edit)

    def _too_much(self, value: Value, maker: Node, members: list[Node], last: Node, fusion: str) -> Reason:
        """Why the partition of `maker` cannot contain all `members` together, although partitions can contain each."""
        say, partners, why = self.given.say, self.partners(maker), partial(Reason, last, fusion)
        if not self.anchors(maker):  # a later pass has replaced the partition's anchor
            return self._several(last, fusion, maker)
        read = self.given.under(next(maker.operands))
        integers = read.node is not None and maker.op.name in ANCHORS and self.kind(read.node) == "integer"
        first = f"quantize and dequantize {say(read)}; " if integers else ""
        try:
            if (refused := self.together(maker, members)) is not None:
                return why(COMPUTED, maker, value, str(refused), first + refused.edit)
        except GraphqError as e:
            return why(COMPUTED, maker, value, str(e), f"{first}quantize and dequantize {say(value)}")
        blocked = next((n for n in partners if n.op.name in PRODUCTS and self.kind(n) == "float"), None)
        if blocked is not None:
            return self._product(blocked)._replace(node=last)
        middle = partners[-2].outputs[0]  # partners[-1] is a quantize
        return why("the chain's length", maker, value, f"the chain up to {say(value)} has {MAX_EPILOGUE} operations, "
                   "the limit of a partition", f"quantize and dequantize {say(middle)}, to cut the chain")

    def _apart(self, value: Value, maker: Node, members: Sequence[Node], last: Node, fusion: str) -> Reason:
        """Why a chain that ends in a quantize did not fuse, if no partition computes the chain's operand."""
        say, title = self.given.say, self.given.title(maker)
        path = self.up(value) or way_up(value, self.given) or [value, *(v for v in maker.operands if v.data is None
                                                                        and v.dtype.kind == "float")][:2]
        if len(path) < 2:
            return Reason(last, fusion, BORDER, maker, value, f"{say(maker)} gives {value.dtype}, and depends on no "
                          "quantized value", f"quantize and dequantize the operands or the result of the {title}")
        between = [v.node for v in path[:-1] if v.node is not None]
        k = max(k for k, n in enumerate(between) if self.alone(n))
        first, source = between[k], path[k + 1]
        if maker.op.name in MOVES and first is maker and _lane_wise(members, last):
            return Reason(last, fusion, LANES, maker, value, f"{say(maker)} stands between {say(source)} and the "
                          f"{last.op.name}", f"move the {title} behind the {last.op.name}: there it moves integers")
        return self._outside(first, source, last, fusion, more=f", with {k} more after it," if k else "")

    def _outside(self, node: Node, source: Value, last: Node, fusion: str, more: str = "") -> Reason:
        """Why `node`, which reads `source`, is in no partition; `last` comes after it. `more` tells what is between."""
        given, say, title = self.given, self.given.say, self.given.title(node)
        why = partial(Reason, last, fusion, LANES, node, node.outputs[0])
        refused = self.anchored(node)
        if source.node is None or source.node.op.name not in DEQUANTIZES:
            between = f"{say(node)}{more} stands between {say(source)} and the {last.op.name}"
            edit = f"quantize {say(source)} before the {title}, and let that read the dequantize"
            if refused is not None:
                return why(f"{between}: {refused}", f"{refused.edit}; {edit}")
            if source.node is None:
                return Reason(last, fusion, BORDER, node, node.outputs[0], f"{say(node)} reads {say(source)}, an input "
                              f"of the graph, and {given.does(node)}",
                              f"pass {say(source)} as {last.output.dtype}, and dequantize it")
            return why(f"{between}, and {given.does(node)}", edit)
        taken = self.anchored(source.node, node)
        if taken is not None and refused is None:  # kernels support the operation, but not this operand
            return self._refused_reader(last, fusion, node, source, taken)
        reads = f"{say(node)} reads {say(source)} in {source.dtype}"
        if node.op.name in MOVES:
            moved = not_moved(source.node, node, given, self.refusals)
            return why(f"{reads}: {'it moves f32' if moved is None else moved}", f"dequantize after the {title}")
        if refused is not None:
            return why(f"{reads}: {refused}", refused.edit)
        return why(f"{reads}: no partition can contain a {title}",
                   f"write the {title} with operations that partitions can contain")

    def _all_like(self, value: Value, user: Node) -> list[Value]:
        return [v for v in map(self.given.under, user.operands) if v is value or v.node is not None
                and v.dtype == value.dtype and self.kind(v.node) == "integer"]

    # -- a chain that begins with a dequantize and ends in f32 --------------------------------------------------

    def _after(self, last: Node) -> list[Reason]:
        """Why a chain that begins with a dequantize ends in f32; empty if all users' partitions contain the chain."""
        if any(u.op.name in QUANTIZES and self._shared(last.outputs[0], u) for u in last.outputs[0].users[:1]):
            return []
        stays = self._stays(last)
        homes = (None, self.home[last])  # a merged dequantize has no home
        readers = [(v, u) for n in equal(last) if self.home.get(n) in homes for v in n.outputs for u in v.users]
        # `narrow`: the partition of the dequantize also computes its 8-bit operand.
        narrow = last.op.name in DEQUANTIZES and next(last.operands).node in self.partners(last)
        shared = (len(readers) > 1 or narrow) and all(self._shared(v, u) for v, u in readers)
        return [] if shared and stays.check == LANES else [stays]

    def _stays(self, last: Node) -> Reason:
        """Why a chain that begins with a dequantize, and ends with `last`, stays in f32."""
        value, given, say, why = last.outputs[0], self.given, self.given.say, partial(Reason, last, CHAIN)
        product = self.product_below(value)
        if product is not None:
            return self._product(product)._replace(node=last)
        while not value.is_output and len(value.users) == 1 and value.users[0].op.name in MOVES:
            value = value.users[0].outputs[0]
        x, dtype, users = say(value), value.dtype, given.users(value)
        if not users:
            if (stage := given.stage(value)) is not None:
                return why("one stage", None, value, f"a later stage reads {x} in {dtype}: {stage}",
                           f"dequantize after that operation, or quantize {x} before it")
            if value.node is not None and value.node.op.name in DEQUANTIZES:
                return why(BORDER, None, value, f"{x}, a dequantize, is returned in {dtype}",
                           f"return {say(next(value.node.operands))} instead")
            return self._returned(value, last)
        user = users[0]
        if given.node(user) is given.value(value).node:
            return self._several(last, CHAIN, user)
        if self.kind(user) in ("integer", "quantized"):
            return Reason(last, self.fusion(user, user), "operands are quantized", user, value,
                          f"{x} is read in {dtype} by {given.line(user)}",
                          f"quantize and dequantize {x}: the partition then contains the dequantize")
        if len(users) > 1 or given.is_output(value):
            lines = [*map(given.line, users), *["an output of the graph"] * given.is_output(value)]
            return why(FORK, user, value, f"{x} has {len(lines)} users in {dtype}: "
                       f"{listing(distinct(lines[:SHOWN]), 'and')}", f"quantize {x} before the fork")
        if last.op.name in DEQUANTIZES and (refused := self.anchored(last, user)) is not None:
            return self._refused_reader(last, self.fusion(user, user), user, value, refused)
        end = self.end(user)
        if end is not None:
            return self._returned(end, last) if end.is_output else why(
                "the result is quantized", user, user.outputs[0], f"{say(user)} reads {x} in {dtype}, and its result "
                "is not quantized", f"quantize the result of the {given.title(user)}")
        if last.op.name in DEQUANTIZES and self.alone(user):
            return self._outside(user, last.outputs[0], last, CHAIN)
        return why(LANES, user, user.outputs[0], f"{say(user)} stands between {x} and a quantize, and reads {dtype}",
                   f"quantize and dequantize {x} before the {given.title(user)}")

    def _returned(self, value: Value, last: Node) -> Reason:
        x = self.given.say(value)
        return Reason(last, CHAIN, BORDER, None, value, f"{x} is returned in {value.dtype}, and not quantized",
                      f"quantize {x} before it is returned")


def _scales(last: Node, members: Sequence[Node]) -> list[Value]:
    """The scales of the quantize `last`, if they are tensors.

    If the quantize has scale 1, the scales are the divisors in the chain `members`.
    """
    if last.op.name == "dynamic_quantize":
        return [v for v in last.inputs[1:] if v is not None]
    if last.attrs.get("scales") != (1.0,):
        return []
    return [v for n in members if n.op.name == "divide" and (v := n.inputs[1]) is not None]


def _lane_wise(members: Sequence[Node], last: Node) -> bool:
    """Whether a transpose before the elementwise `members` could move behind the quantize `last` that ends them."""
    alone = (len([*n.operands]) == 1 and n.op.name not in ANCHORS for n in members)
    return len(members) > 1 and all(alone) and last.attrs["qtype"] == "per_tensor"
