"""Find the node that each operation became part of, and the reasons why fusions refused (for causes.py)."""
from collections.abc import Iterable, Sequence

from graphq.errors import GraphqError
from graphq.ir import GRAPH_ORDER, Graph, Node, Value, reached
from graphq.kernels.families import FAMILIES, family_named
from graphq.kernels.family.record import Family
from graphq.kernels.family.unsupported import Unsupported
from graphq.passes.fuse import Fuse
from graphq.report.coverage import is_quantized, kind_of
from graphq.report.given import QUANTIZES, REORDERS, Given
from graphq.report.products import FAR, PRODUCTS, path_up
from graphq.report.records import Kind
from graphq.rewrite.fixpoint import History
from graphq.rewrite.partition import carve
from graphq.rewrite.rule import Pass


class Fusions:
    """The fusions of a graph: `before` is the graph before the fusions, `after` the graph after all passes.

    `home` maps a node of `before` to the node of `after` that contains it, usually a partition; `members` is the
    reverse. Computed constants, and operations that were merged with equal operations, have no home. `source` is the
    graph as the user gave it, and `passes` are the passes that ran.
    """

    def __init__(self, source: Graph, history: History, passes: Sequence[Pass]) -> None:
        self.before, self.after, self.passes = history.before, history.after, passes
        self.given = Given(source, self.before, dict(zip(history.given, source.values, strict=True)))
        self.home, self.members = _homes(self.after), dict[Node, list[Node]]()
        self._kinds: dict[Node, Kind] = {}
        for node, home in self.home.items():
            self.members.setdefault(home, []).append(node)
        for nodes in self.members.values():
            nodes.sort(key=GRAPH_ORDER)

    def kind(self, node: Node) -> Kind | None:
        """The kind of partition that contains a node of the graph before the fusions; None if it has no home."""
        home = self.home.get(node)
        return None if home is None else self.home_kind(home)

    def home_kind(self, home: Node) -> Kind:
        """The kind of a node after the passes."""
        if home not in self._kinds:
            self._kinds[home] = kind_of(home)
        return self._kinds[home]

    def partners(self, node: Node) -> list[Node]:
        """All nodes before the fusions with the same home as `node`, including `node`."""
        home = self.home.get(node)
        return [] if home is None else self.members[home]

    def up(self, value: Value) -> list[Value]:
        """The values from `value` up to the nearest f32 result of a partition that computes on quantized numbers.

        Empty if there is no such result, or if a quantize is in between.
        """
        return path_up(value, self.given, lambda v: v.node is not None and self.kind(v.node) in ("integer", "quantized")
                       and not is_quantized(v.dtype), lambda node: node.op.name not in QUANTIZES)

    def alone(self, node: Node) -> bool:
        """Whether an operation is in no partition."""
        home = self.home.get(node)
        return home is None or home.op.name != "partition"

    def fusion(self, maker: Node, user: Node) -> str:
        """The name of the fusion that would most likely contain both nodes."""
        home = self.home.get(maker)
        if home is not None and home.op.name == "partition" and home.attrs["anchor"] != "eltwise":
            family = family_named(home.attrs["anchor"])
            return Fuse(family.name, floats=family.quantized is None).name
        product = next((v.node for v in self.up(maker.outputs[0])[-1:]), None)
        if product is not None and product is not maker:
            return self.fusion(product, user)
        family = next((f for f in FAMILIES if user.op.name in f.operations), family_named("eltwise"))
        return Fuse(family.name, floats=family.quantized is None).name

    def anchored(self, *nodes: Node) -> Unsupported | None:
        """Why kernels cannot compute the last node as the anchor of a partition.

        None if kernels can, or if the node is not an anchor. Also None for layers: their operands have to be
        dequantized, and `product_reason` explains why they are not integer.
        """
        *makers, user = nodes
        nodes = (*(n for n in makers if any(v in n.outputs for v in user.operands)), user)
        refused: Unsupported | None = None
        for family in (f for f in FAMILIES if user.op.name in f.operations and user.op.name not in PRODUCTS):
            try:
                why = self._refused(family, nodes)
            except GraphqError:
                return None
            if why is None:
                return None
            refused = refused or why
        return refused

    def anchors(self, maker: Node) -> bool:
        """Whether the anchor (if any) of `maker`'s partition existed before the fusions."""
        family = family_named(self.home[maker].attrs["anchor"])
        return not family.operations or any(n.op.name in family.operations for n in self.partners(maker))

    def together(self, maker: Node, members: Sequence[Node]) -> Unsupported | None:
        """Why kernels cannot compute `maker`'s partition extended by `members`, or None. Raises `carve`'s errors."""
        home = self.home[maker]
        return self._refused(family_named(home.attrs["anchor"]), [*self.members[home], *members], results=1)

    def _refused(self, family: Family, nodes: Iterable[Node], results: int | None = None) -> Unsupported | None:
        """Why kernels of the family cannot compute the nodes as one partition; None if they can.

        Also None if `results` is given and the nodes have another number of results. Raises the errors of `carve`.
        """
        nodes = sorted(set(nodes), key=GRAPH_ORDER)
        body, operands, values = carve(self.before, nodes)
        refused = family.refuses(body, [v.data for v in operands]) if results in (None, len(values)) else None
        if refused is None:
            return None
        inside = ((v, w) for inner, node in zip(body.nodes, nodes, strict=True)
                  for v, w in zip(inner.outputs, node.outputs, strict=True))
        return self.given.told(refused, dict(zip(body.inputs, operands, strict=True)) | dict(inside))

    def product_below(self, value: Value) -> Node | None:
        """The next f32 layer that depends on `value`, only through operations in f32."""
        def floats(at: Value) -> list[Node]:
            return [u for u in at.users if self.kind(u) == "float" and u.op.name not in QUANTIZES]

        below = reached([value], lambda x: (v for u in floats(x) if u.op.name not in PRODUCTS for v in u.outputs), FAR)
        return next((u for at in below for u in floats(at) if u.op.name in PRODUCTS and at in u.inputs[:2]), None)

    def end(self, node: Node) -> Value | None:
        """The first value with several users in the chain after `node`; None if a quantize reads from the chain."""
        end = node.outputs[0]
        while node.op.name not in QUANTIZES:
            end = node.outputs[0]
            if any(u.op.name in QUANTIZES for v in node.outputs for u in v.users):
                return None
            if end.is_output or len(end.users) != 1 or self.kind(end.users[0]) != "float":
                return end
            (node,) = end.users
        return None


def _homes(after: Graph) -> dict[Node, Node]:
    """Map each node before the fusions to the node of `after` that contains it (the last node, if there are several).

    A reorder or constant that a pass added next to an operation of another kind does not count.
    """
    homes: dict[Node, Node] = {}
    for node in after.nodes:
        for inner in node.attrs["body"].nodes if node.op.name == "partition" else (node,):
            origin = inner.origin
            if origin is not None and (origin.op is inner.op or inner.op.name not in (*REORDERS, "constant")):
                homes[origin] = node
    return homes
