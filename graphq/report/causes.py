"""True causes: for each operation that could be in an integer partition and is not, what stood in the way.

A product outside has a cause of its own (`products`). Any other operation is outside because a fusion ended: between
the operation that makes a value in f32 and the one that uses it. Why it ended there is asked of the fusion's own rules,
the users of the value first.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphq.ir import Graph, Node, Value
from graphq.ir.constants import SIZED_CONSTANT
from graphq.ir.names import listing
from graphq.kernels.families import ANCHORS
from graphq.kernels.family.epilogue import refuses
from graphq.kernels.family.record import MAX_EPILOGUE
from graphq.kernels.family.unsupported import Unsupported
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fuse import Fuse
from graphq.plan.stages import STAGES
from graphq.report.fusions import Fusions
from graphq.report.given import MOVES, QUANTIZES, equal
from graphq.report.kinds import is_quantised, is_scale
from graphq.report.products import (
    PRODUCTS,
    Finding,
    elsewhere,
    not_moved,
    product_finding,
    way_up,
)
from graphq.report.records import Cause
from graphq.rewrite.history import History
from graphq.rewrite.rule import Pass, Refusal


def causes(analysis: Analysis) -> list[Cause]:
    """The causes, one for all operations that are outside for the same reason: products first, borders last."""
    found: dict[tuple[object, ...], list[Finding]] = {}
    for node in analysis.after.nodes:
        for finding in analysis.of(node):
            apart = () if finding.check == FORK else (finding.blocking_node, finding.reason)
            found.setdefault((finding.check, finding.blocking_value, *apart), []).append(finding)
    numbers = {node: k for k, node in enumerate(analysis.after.nodes)}
    made = [_cause(findings, analysis, numbers) for findings in found.values()]
    own = {c.value for c in made}
    made = [replace(c, also=tuple(x for x in c.also if x not in own)) for c in made]
    return sorted(made, key=lambda c: (c.check == BORDER, c.op not in PRODUCTS))


BORDER = "the graph's border"
"""The check of what is outside because an input or an output of the graph is f32."""

LANES = "lane-wise operations"
"""The check of what is outside because an operation that is not lane-wise follows, or comes before."""

FORK = "one user"
"""The check of what is outside because something else uses a value, too: one cause for all users."""


def _cause(findings: list[Finding], analysis: Analysis, numbers: dict[Node, int]) -> Cause:
    first = min(findings, key=lambda f: (f.node.op.name not in PRODUCTS, f.node.op.name not in QUANTIZES))
    others = dict.fromkeys(n for f in findings for n in (f.node, *analysis.beside(f.node)))
    blocking = first.blocking_node
    if blocking is not None and blocking.op.name != "constant" and analysis.kind(blocking) == "float":
        others[blocking] = None
    given, home = analysis.given, analysis.home.get(first.node)
    nodes = [given.node(n) for n in (first.node, *others) if not given.added(n)]
    own, *also = dict.fromkeys(n.graph.label(n.outputs[0]) for n in nodes)
    return Cause(
        id=None if home is None else numbers[home], node=given.describe(first.node), value=own, op=first.node.op.name,
        fusion=first.fusion, check=first.check, blocking_node=None if blocking is None else given.describe(blocking),
        blocking_value=None if first.blocking_value is None else given.label(first.blocking_value),
        reason=first.reason, edit=first.edit, also=tuple(also))


class Analysis(Fusions):
    """Findings about the nodes after the passes, by walking the graph before the fusions."""

    def __init__(self, source: Graph, history: History, passes: Sequence[Pass], refusals: Sequence[Refusal]) -> None:
        super().__init__(source, history, passes)
        self.refusals, self._products = refusals, dict[Node, Finding]()

    def of(self, home: Node) -> list[Finding]:
        """Why a node after the passes is outside of integer partitions; none where it is not, or could not be in."""
        members = self.members.get(home, [])
        if not members or home.op.name in ("constant", SIZED_CONSTANT.name) or self.home_kind(home) != "float":
            return []
        product = next((n for n in members if n.op.name in PRODUCTS), None)
        if product is not None:
            return [self._product(product)]
        last = members[-1]
        if last.op.name in QUANTIZES:
            return self._before(members, last)
        found = []
        first = next((k for k, n in enumerate(members) if n.op.name in QUANTIZES), None)
        if first is not None:  # whatever its dequantized result does, the quantize itself could be in the fusion before
            found = [f for f in self._before(members[:first + 1], members[first]) if f.check != BORDER]
        if any(n.op.name in DEQUANTIZES and is_quantised(next(n.operands).dtype) for n in members):
            found += self._after(last)
        return found

    def _product(self, node: Node) -> Finding:
        if node not in self._products:
            self._products[node] = product_finding(node, self.given, self.passes, self.refusals)
        return self._products[node]

    # -- a chain that ends in quantize, and reads floats --------------------------------------------------------

    def _before(self, members: list[Node], last: Node) -> list[Finding]:
        """Why the fusion that makes an operand in f32 did not go on to `last`, a quantize."""
        inside = set(members)
        entries = [(v, n) for n in members for k, v in enumerate(n.inputs)
                   if v is not None and v.data is None and v.node not in inside and not is_scale(n, k)
                   and (n.op.name == "cast" or not is_quantised(v.dtype))]
        entries = [(self.given.under(v), n) for v, n in entries if not self._shared(v, n)]
        if not entries:
            return []
        value, user = min(entries, key=lambda x: self._distance(x[0]))
        return [self._cut(value, user, members, last)]

    def _shared(self, value: Value, user: Node) -> bool:
        """Whether a value is a dequantize that is stored for several users, each of which could take it in."""
        maker = value.node
        return maker is not None and maker.op.name in DEQUANTIZES and is_quantised(next(maker.operands).dtype) \
            and self.anchored(maker, user) is None and refuses(maker) is None

    def _distance(self, value: Value) -> int:
        """How far from integers a value is made: in their partition, in a chain from them, or not from them."""
        node = value.node
        if node is None:
            return 4
        if self.kind(node) == "integer":
            return 0
        if node.op.name in PRODUCTS or self.up(value):
            return 1
        return 2 if way_up(value, self.given) else 3

    def _cut(self, value: Value, user: Node, members: list[Node], last: Node) -> Finding:
        """Why what makes `value` and `user` are not one: `last` is a quantize that could follow."""
        given = self.given
        maker, name, q = value.node, given.called(value), given.called(last.output)
        dtype = value.dtype
        if maker is None:
            stage = elsewhere(value)
            return Finding(last, "", "one stage" if stage else BORDER, None, value,
                           f"{name} is {stage or 'an input of the graph'} in {dtype}",
                           f"quantize {name} where it is made" if stage
                           else f"pass {name} as {last.output.dtype}, and dequantize that")
        home = self.home.get(maker)
        fusion = self.fusion(maker, user)
        if given.node(user) is given.value(value).node:
            return self._several(last, fusion, user)
        blocked = next((n for n in self.beside(maker) if n.op.name in PRODUCTS and self.kind(n) == "float"), None)
        if given.is_output(value):
            later = value.graph.meta.get(STAGES, {}).get(given.value(value).name)
            if later is not None:
                return Finding(last, fusion, FORK, None, value,
                               f"{name} is read in {dtype} by a later stage, too: {later}",
                               f"quantize {name} before the fork, and let all its users read the dequantize")
            return Finding(last, fusion, FORK, None, value, f"{name} is also an output of the graph, in {dtype}",
                           f"return {q}, or its dequantize, in place of {name}" if user is last
                           else f"quantize {name}, and return its dequantize")
        if last.op.name == "dynamic_quantize" and value in _above([v for v in last.inputs[1:] if v is not None]):
            return Finding(last, fusion, "constant scales", last, last.inputs[1], f"its scale, "
                           f"{given.called(list(last.operands)[1])}, is computed from all of {name}",
                           f"quantize {name} by a constant scale, as gq.quantization.quantize finds it")
        others = [u for u in given.users(value) if u not in members]
        if others and all(given.node(u) is given.node(user) for u in others):  # a pass made several of one operation
            return Finding(last, fusion, LANES, user, user.outputs[0],
                           f"{given.operation(user)} stands between {name} and the {last.op.name}, and takes {dtype}",
                           f"quantize and dequantize {name}, before the {given.title(user)}")
        if others:
            where = "a second user" if len(others) == 1 else f"{len(others)} more users"
            read = next(given.node(last).operands)  # the passes may have dropped a relu between the two
            same = user is last and given.value(read) is given.value(value)
            they = "it" if len(others) == 1 else "them"
            return Finding(last, fusion, FORK, others[0], value, f"{name} has {where} in {dtype}: "
                           + "; ".join(map(given.describe, others[:3])),
                           f"quantize before the fork: let {they} read the dequantized {q} in place of {name}" if same
                           else f"quantize {name} before the fork, and let all its users read the dequantize")
        if maker.op.name in PRODUCTS and self.kind(maker) == "float":
            return self._product(maker)._replace(node=last)
        if home is None or home.op.name != "partition":
            return self._apart(value, maker, members, last, fusion)
        if user is last and (why := refuses(last)) is not None:
            return Finding(last, fusion, "kernels can compute it", last, last.output, why, "quantize to u8 or s8")
        if maker.op.name in DEQUANTIZES and (refused := self.anchored(maker, user)) is not None:
            return self._dequantized(last, fusion, value, user, refused)
        if user.op.name in ANCHORS or refuses(user) is not None:
            why = refuses(user) if user.op.name not in ANCHORS else None
            return Finding(last, fusion, LANES, user, user.outputs[0],
                           f"{given.operation(user)} stands between {name} and the {last.op.name}, "
                           f"and takes {dtype}" + (f": {why}" if why else ""),
                           f"quantize and dequantize {self._all_like(value, user)}, before the {given.title(user)}")
        if value not in user.operands:
            return Finding(last, fusion, "one layout", user, value,
                           f"{given.operation(user)} stands between {name} and the {last.op.name}, and is computed in "
                           f"the layout of the graph, {given.value(value).type}, what makes {name} channels last",
                           f"quantize and dequantize {self._all_like(value, user)}, before the {given.title(user)}")
        if not self.anchors(maker):  # a pass after the first fusions made something else of it
            return self._several(last, fusion, maker)
        refused = self.together(maker, members)
        if refused is not None:
            source = given.under(next(maker.operands))
            first = "" if source.node is None or maker.op.name not in ANCHORS or self.kind(source.node) != "integer" \
                else f"quantize and dequantize {given.called(source)}; "
            return Finding(last, fusion, "kernels can compute it", maker, value, str(refused), first + refused.edit)
        if blocked is not None:
            return self._product(blocked)._replace(node=last)
        *_, before, _ = self.beside(maker)  # the quantize must be among the operations of the chain
        return Finding(last, fusion, "the chain's length", maker, value, f"the chain up to {name} has {MAX_EPILOGUE} "
                       "operations, the most of a partition", "quantize and dequantize "
                       f"{given.called(before.outputs[0])}, which cuts the chain")

    def _apart(self, value: Value, maker: Node, members: Sequence[Node], last: Node, fusion: str) -> Finding:
        """An operation that is in no partition stands before a chain that ends in quantize."""
        given = self.given
        path = self.up(value) or way_up(value, given) or [value, *(v for v in maker.operands if v.data is None
                                                              and v.dtype.kind == "float")][:2]
        if len(path) < 2:
            return Finding(last, fusion, BORDER, maker, value, f"{given.operation(maker)} gives {value.dtype} that "
                           "comes from no quantized value",
                           f"quantize and dequantize what {given.title(maker)} reads, or its result")
        between = [v.node for v in path[:-1] if v.node is not None]
        k = max(k for k, n in enumerate(between) if self.alone(n))
        first, source = between[k], path[k + 1]
        if maker.op.name in MOVES and first is maker and _lane_wise(members, last):
            return Finding(last, fusion, LANES, maker, value,
                           f"{given.operation(maker)} stands between {given.called(source)} and the {last.op.name}",
                           f"move the {given.title(maker)} behind the {last.op.name}, where it moves integers")
        return self._outside(first, source, last, fusion, f", with {k} more after it," if k else "")

    def _outside(self, node: Node, source: Value, last: Node, fusion: str, more: str = "") -> Finding:
        """An operation in no partition that reads `source`; the quantize `last`, with `more` between, follows."""
        given = self.given
        name, of, made = given.title(node), given.called(source), given.operation(node)
        refused = self.anchored(node)
        if source.node is not None and source.node.op.name in DEQUANTIZES:
            taken = self.anchored(source.node, node)
            if taken is not None and refused is None:  # it is what the operation reads that kernels do not take
                return self._dequantized(last, fusion, source, node, taken)
            if node.op.name in MOVES:
                refused = Unsupported(not_moved(source.node, node, given) or "it moves f32",
                                      f"dequantize after the {name}")
            refused = refused or Unsupported(f"no partition takes a {name} in",
                                             f"write the {name} as operations that partitions take in")
            return Finding(last, fusion, LANES, node, node.outputs[0],
                           f"{made} reads {of} in {source.dtype}: {refused}", refused.edit)
        why = ", and moves f32" if node.op.name in MOVES else ", and runs outside of partitions, in f32"
        if refused is None and source.node is None:
            return Finding(last, fusion, BORDER, node, node.outputs[0], f"{made} reads {of}, an input of the graph"
                           + why, f"pass {of} as {last.output.dtype}, and dequantize that")
        first, why = ("", why) if refused is None else (f"{refused.edit}; ", f": {refused}")
        return Finding(last, fusion, LANES, node, node.outputs[0],
                       f"{made}{more} stands between {of} and the {last.op.name}{why}",
                       f"{first}quantize {of} before the {name}, which then reads its dequantize")

    def _dequantized(self, last: Node, fusion: str, value: Value, user: Node, refused: Unsupported) -> Finding:
        """Kernels do not compute `user` of the dequantized `value`."""
        reads = f"{self.given.operation(user)} reads {self.given.called(value)} in {value.dtype}"
        return Finding(last, fusion, "kernels can compute it", user, value, f"{reads}: {refused}", refused.edit)

    def _several(self, last: Node, fusion: str, node: Node) -> Finding:
        """Passes compute an operation of the given graph as several, `node` among them, in floats."""
        name, op = self.given.operation(node), self.given.title(node)
        return Finding(last, fusion, LANES, node, node.outputs[0], f"{name} is computed as several operations, in f32",
                       f"quantize and dequantize what the {op} reads, or write the {op} as operations that partitions "
                       "take in")

    def _all_like(self, value: Value, user: Node) -> str:
        """The value, and all others that the user reads out of partitions in the same way."""
        like = [v for v in map(self.given.under, user.operands) if v is value or v.node is not None
                and v.dtype == value.dtype and self.kind(v.node) == "integer"]
        return listing(dict.fromkeys(map(self.given.called, like)), "and")

    # -- a chain that begins with dequantize, and gives floats --------------------------------------------------

    def _after(self, last: Node) -> list[Finding]:
        """Why the result of a chain of dequantized operands stays in f32; nothing of a dequantize that users share."""
        if any(u.op.name in QUANTIZES and self._shared(last.outputs[0], u) for u in last.outputs[0].users[:1]):
            return []
        found = self._stays(last)
        homes = (None, self.home[last])  # copies that no fusion took are merged again
        readers = [(v, u) for n in equal(last) if self.home.get(n) in homes for v in n.outputs for u in v.users]
        narrow = last.op.name in DEQUANTIZES and next(last.operands).node in self.beside(last)  # 8 bits are there
        shared = (len(readers) > 1 or narrow) and all(self._shared(v, u) for v, u in readers)
        return [] if shared and found.check == LANES else [found]

    def _stays(self, last: Node) -> Finding:
        """Why the result of `last` stays in f32."""
        value, given = last.outputs[0], self.given
        product = self.product_below(value)
        if product is not None:
            return self._product(product)._replace(node=last)
        while not value.is_output and len(value.users) == 1 and value.users[0].op.name in MOVES:
            value = value.users[0].outputs[0]
        name, users = given.called(value), given.users(value)
        chain = Fuse("eltwise", floats=True).name
        stages = value.graph.meta.get(STAGES, {})
        if not users and (reader := stages.get(given.value(value).name)) is not None:
            return Finding(last, chain, "one stage", None, value, f"{name} is read in {value.dtype} by a later stage: "
                           f"{reader}", f"dequantize after that, or quantize {name} before it")
        if not users and value.node is not None and value.node.op.name in DEQUANTIZES:
            return Finding(last, chain, BORDER, None, value, f"{name}, a dequantize, is returned in {value.dtype}",
                           f"return {given.called(next(value.node.operands))} in its place")
        if not users:
            return Finding(last, chain, BORDER, None, value, f"{name} is returned in {value.dtype}, and not quantized",
                           f"quantize {name} before it is returned")
        user = users[0]
        if given.node(user) is given.value(value).node:
            return self._several(last, chain, user)
        if self.kind(user) in ("integer", "quantised"):
            return Finding(last, self.fusion(user, user), "operands are quantised", user, value,
                           f"{name} is read in {value.dtype} by {given.describe(user)}",
                           f"quantize and dequantize {name}: the partition then takes the dequantize in")
        if len(users) > 1 or given.is_output(value):
            further = [given.describe(u) for u in users] + ["an output of the graph"] * given.is_output(value)
            return Finding(last, chain, FORK, user, value, f"{name} has {len(further)} users in {value.dtype}: "
                           + listing(further[:3], "and"), f"quantize {name} before the fork")
        if last.op.name in DEQUANTIZES and (refused := self.anchored(last, user)) is not None:
            return self._dequantized(last, self.fusion(user, user), value, user, refused)
        end = self.end(user)
        if end is None:
            if last.op.name in DEQUANTIZES and self.alone(user):
                return self._outside(user, last.outputs[0], last, chain)
            return Finding(last, chain, LANES, user, user.outputs[0],
                           f"{given.operation(user)} stands between {name} and a quantize, and takes {value.dtype}",
                           f"quantize and dequantize {name}, before the {given.title(user)}")
        if end.is_output:
            value, name = end, given.called(end)
            return Finding(last, chain, BORDER, None, value, f"{name} is returned in {value.dtype}, and not quantized",
                           f"quantize {name} before it is returned")
        return Finding(last, chain, "the result is quantized", user, user.outputs[0],
                       f"{given.operation(user)} reads {name} in {value.dtype}, and its result is not quantized",
                       f"quantize the result of the {given.title(user)}")


def _lane_wise(members: Sequence[Node], last: Node) -> bool:
    """Whether members stand before `last`, a quantize, and a move of what they read can be one of its result."""
    alone = (len([*n.operands]) == 1 and n.op.name not in ANCHORS for n in members)
    return len(members) > 1 and all(alone) and last.attrs["qtype"] == "per_tensor"


def _above(values: list[Value]) -> set[Value]:
    """The values that these are computed from, and themselves."""
    found = set[Value]()
    while values:
        value = values.pop()
        if value not in found:
            found.add(value)
            values += [] if value.node is None else value.node.operands
    return found
