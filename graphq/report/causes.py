"""Find the causes that keep operations out of integer partitions, the fused kernels that multiply 8-bit integers.

products.py finds the causes for matmuls and convolutions. Any other operation is outside because a fusion stopped
between two operations: one computes a value in f32, the other reads it.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from graphq.errors import GraphqError
from graphq.ir import Graph, Node, Value
from graphq.ir.interpret import SIZED_CONSTANT
from graphq.kernels.families import ANCHORS
from graphq.kernels.family.epilogue import refuses
from graphq.kernels.family.unsupported import Unsupported
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fuse import Fuse
from graphq.report.coverage import is_quantized, is_scale
from graphq.report.fusions import Fusions
from graphq.report.given import MOVES, QUANTIZES, equal, spread
from graphq.report.products import PRODUCTS, not_moved, product_reason, way_up
from graphq.report.reasons import BORDER, FORK, LANES, Reason, reason, say, texts
from graphq.report.records import Cause
from graphq.rewrite.fixpoint import History
from graphq.rewrite.rule import Pass, Refusal

CHAIN = Fuse("eltwise", floats=True).name
"""The name of the fusion of elementwise operations without a layer, pool or other anchor."""


def causes(analysis: Analysis) -> list[Cause]:
    """Find the causes, each for all operations with the same reason. Layers come first, the graph's border last."""
    alike: dict[tuple[object, ...], list[Reason]] = {}
    for node in analysis.after.nodes:
        for r in analysis.of(node):
            apart = () if r.check == FORK else (r.op, texts(r, analysis.given)[0])
            alike.setdefault((r.check, r.value, *apart), []).append(r)
    numbers = {node: k for k, node in enumerate(analysis.after.nodes)}
    made = [_cause(reasons, analysis, numbers) for reasons in alike.values()]
    own = {c.value for c in made}
    made = [replace(c, also=tuple(x for x in c.also if x not in own)) for c in made]
    return sorted(made, key=lambda c: (c.check == BORDER, c.op not in PRODUCTS))


def _cause(reasons: list[Reason], analysis: Analysis, numbers: dict[Node, int]) -> Cause:
    first = min(reasons, key=lambda r: (r.node.op.name not in PRODUCTS, r.node.op.name not in QUANTIZES))
    nodes = dict.fromkeys([first.node, *(n for r in reasons for n in (r.node, *analysis.beside(r.node)))])
    op, value, given, home = first.op, first.value, analysis.given, analysis.home.get(first.node)
    if op is not None and op.op.name != "constant" and analysis.kind(op) == "float":
        nodes[op] = None
    own, *also = dict.fromkeys(say(n, given, "label") for n in nodes if not given.added(n))
    why, edit = texts(first, given)
    return Cause(
        id=None if home is None else numbers[home], node=say(first.node, given, "line"), value=own,
        op=first.node.op.name, fusion=first.fusion, check=first.check,
        blocking_node=None if op is None else say(op, given, "line"),
        blocking_value=None if value is None else say(value, given, "label"), reason=why, edit=edit, also=tuple(also))


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
        maker = value.node
        if maker is None:
            stage = self.given.stage(value)
            return reason(last, "", "earlier stage" if stage else "input", None, value, stage=stage)
        fusion = self.fusion(maker, user)
        if self.given.node(user) is self.given.value(value).node:
            return reason(last, fusion, "several", user, user.outputs[0])
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
        given, why = self.given, partial(reason, last, fusion)
        if given.is_output(value):
            if (stage := given.stage(value)) is not None:
                return why("later stage, too", None, value, stage=stage)
            return why("returned beside its quantize" if user is last else "returned, too", None, value)
        for scale in _scales(last, members):
            if value in spread(scale, lambda at: [] if at.node is None else at.node.operands):
                return why("own scale", last, scale, source=value)
        others = tuple(u for u in given.users(value) if u not in members)
        if not others:
            return None
        if all(given.node(u) is given.node(user) for u in others):  # a pass split one operation into several nodes
            return why("between", user, user.outputs[0], source=value, values=(value,), refused=None)
        read = next(given.node(last).operands)  # the passes may have dropped a relu before the quantize
        beside = user is last and given.value(read) is given.value(value)
        return why("users beside its quantize" if beside else "users", others[0], value, users=others)

    def _between(self, value: Value, user: Node, last: Node, fusion: str) -> Reason | None:
        """Why no partition can contain both `user` and the operation that computes `value`; None if a partition can."""
        assert value.node is not None
        why, refused = partial(reason, last, fusion), None if user.op.name in ANCHORS else refuses(user)
        if user is last and refused is not None:
            return why("quantize refused", last, last.output, refused=refused)
        if value.node.op.name in DEQUANTIZES and (unsupported := self.anchored(value.node, user)) is not None:
            return why("dequantized, refused", user, value, refused=unsupported)
        if user.op.name in ANCHORS or refused is not None:
            return why("between", user, user.outputs[0], source=value, values=self._all_like(value, user),
                       refused=refused or None)
        if value not in user.operands:
            return why("layout", user, value, values=self._all_like(value, user))
        return None

    def _too_much(self, value: Value, maker: Node, members: list[Node], last: Node, fusion: str) -> Reason:
        """Why the partition of `maker` cannot contain all `members` together, although partitions can contain each."""
        why, beside = partial(reason, last, fusion), self.beside(maker)
        if not self.anchors(maker):  # a later pass has replaced the partition's anchor
            return why("several", maker, maker.outputs[0])
        read = self.given.under(next(maker.operands))
        integers = read.node is not None and maker.op.name in ANCHORS and self.kind(read.node) == "integer"
        source = read if integers else None
        try:
            if (refused := self.together(maker, members)) is not None:
                return why("together", maker, value, refused=refused, source=source)
        except GraphqError as e:
            return why("not convex", maker, value, refused=e, source=source)
        blocked = next((n for n in beside if n.op.name in PRODUCTS and self.kind(n) == "float"), None)
        if blocked is not None:
            return self._product(blocked)._replace(node=last)
        return why("length", maker, value, middle=beside[-2].outputs[0])  # beside[-1] is a quantize

    def _apart(self, value: Value, maker: Node, members: Sequence[Node], last: Node, fusion: str) -> Reason:
        """Why a chain that ends in a quantize did not fuse, if no partition computes the chain's operand."""
        path = self.up(value) or way_up(value, self.given) or [value, *(v for v in maker.operands if v.data is None
                                                                        and v.dtype.kind == "float")][:2]
        if len(path) < 2:
            return reason(last, fusion, "never quantized", maker, value)
        between = [v.node for v in path[:-1] if v.node is not None]
        k = max(k for k, n in enumerate(between) if self.alone(n))
        first, source = between[k], path[k + 1]
        if maker.op.name in MOVES and first is maker and _lane_wise(members, last):
            return reason(last, fusion, "move between", maker, value, source=source)
        return self._outside(first, source, last, fusion, more=k or None)

    def _outside(self, node: Node, source: Value, last: Node, fusion: str, more: int | None = None) -> Reason:
        """Why `node`, which reads `source`, is in no partition. `more` (a number) operations follow it, then `last`."""
        why = partial(reason, last, fusion, op=node, value=node.outputs[0], source=source)
        refused: Unsupported | str | None = self.anchored(node)
        if source.node is None or source.node.op.name not in DEQUANTIZES:
            if refused is not None:
                return why("outside, refused", more=more, refused=refused)
            return why("outside, of an input") if source.node is None else why("outside", more=more)
        taken = self.anchored(source.node, node)
        if taken is not None and refused is None:  # kernels support the operation, but not this operand
            return reason(last, fusion, "dequantized, refused", node, source, refused=taken)
        kind = "reads"
        if node.op.name in MOVES:
            kind, refused = "moves", not_moved(source.node, node, self.given, self.refusals)
        return why(kind) if refused is None else why(f"{kind}, refused", refused=refused)

    def _all_like(self, value: Value, user: Node) -> tuple[Value, ...]:
        return tuple(v for v in map(self.given.under, user.operands) if v is value or v.node is not None
                     and v.dtype == value.dtype and self.kind(v.node) == "integer")

    # -- a chain that begins with a dequantize and ends in f32 --------------------------------------------------

    def _after(self, last: Node) -> list[Reason]:
        """Why a chain that begins with a dequantize ends in f32; empty if all users' partitions contain the chain."""
        if any(u.op.name in QUANTIZES and self._shared(last.outputs[0], u) for u in last.outputs[0].users[:1]):
            return []
        stays = self._stays(last)
        homes = (None, self.home[last])  # a merged dequantize has no home
        readers = [(v, u) for n in equal(last) if self.home.get(n) in homes for v in n.outputs for u in v.users]
        # `narrow`: the partition of the dequantize also computes its 8-bit operand.
        narrow = last.op.name in DEQUANTIZES and next(last.operands).node in self.beside(last)
        shared = (len(readers) > 1 or narrow) and all(self._shared(v, u) for v, u in readers)
        return [] if shared and stays.check == LANES else [stays]

    def _stays(self, last: Node) -> Reason:
        value, given, why = last.outputs[0], self.given, partial(reason, last, CHAIN)
        product = self.product_below(value)
        if product is not None:
            return self._product(product)._replace(node=last)
        while not value.is_output and len(value.users) == 1 and value.users[0].op.name in MOVES:
            value = value.users[0].outputs[0]
        users = given.users(value)
        if not users:
            return self._unread(value, last)
        user = users[0]
        if given.node(user) is given.value(value).node:
            return why("several", user, user.outputs[0])
        if self.kind(user) in ("integer", "quantized"):
            return reason(last, self.fusion(user, user), "quantized operands", user, value)
        if len(users) > 1 or given.is_output(value):
            further = (*users, *(["an output of the graph"] * given.is_output(value)))
            return why("all users", user, value, users=further)
        if last.op.name in DEQUANTIZES and (refused := self.anchored(last, user)) is not None:
            return reason(last, self.fusion(user, user), "dequantized, refused", user, value, refused=refused)
        end = self.end(user)
        if end is not None:
            return why("returned", None, end) if end.is_output else why("result", user, user.outputs[0], source=value)
        if last.op.name in DEQUANTIZES and self.alone(user):
            return self._outside(user, last.outputs[0], last, CHAIN)
        return why("before a quantize", user, user.outputs[0], source=value)

    def _unread(self, value: Value, last: Node) -> Reason:
        """Why the result of `last` stays in f32 up to `value`, which no operation of the graph reads."""
        why = partial(reason, last, CHAIN)
        if (stage := self.given.stage(value)) is not None:
            return why("later stage", None, value, stage=stage)
        if value.node is not None and value.node.op.name in DEQUANTIZES:
            return why("dequantize returned", None, value, source=next(value.node.operands))
        return why("returned", None, value)


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
