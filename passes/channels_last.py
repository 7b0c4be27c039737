"""Let convolutions, pools and interpolations compute on channels-last tensors, with the fewest bytes reordered.

Every node computes either in the layout of the given graph, or channels last ([n, spatial..., c]). Convolutions, pools
and interpolations compute channels last, except depthwise convolutions of signals (`along_lines`). Nodes that cannot
compute channels last need the given layout. For all other nodes, the pass chooses. A value whose producer and users do
not all have the same layout is reordered once. The choice with the fewest reordered bytes is a minimum cut of a
hypergraph with nodes as vertices and values as hyperedges (Lawler, "Cutsets and partitions of hypergraphs", 1973).
"""
from collections.abc import Iterable, Mapping
from math import prod

from graphq.base.locks import late_imports
from graphq.ir import Graph, Node, Use, Value
from graphq.kernels.conv.filter import along_lines
from graphq.kernels.families import CHANNELS_LAST
from graphq.passes.layouts import Form, aligned, channels_last_form, has_layouts, is_view, moved, to_first, to_last
from graphq.rewrite.fixpoint import rounds

GIVEN, LAST = "given", "last"
"""The two sides of the cut: nodes that keep the given layout, and nodes that compute channels last."""

WEIGHT = 16
"""The cost of reordering a byte. A reordered value costs a little more than its bytes (`_cost`), to break ties."""

SHORT = range(16)
"""The lengths of lines (`along_lines`) that kernels compute faster channels last."""


@rounds(tolerance=1e-5)
def channels_last(graph: Graph) -> int:
    """convolution(x, NCX) -> transpose(convolution(transpose(x), NXC)), with the fewest transposes between nodes

    Returns the number of changed nodes. The graph's inputs and outputs keep their layout. Numbers stay the same, except
    that reductions may add in another order.
    """
    if all(channels_last_form(n) is None for n in graph.nodes_of(CHANNELS_LAST)):
        return 0
    forms = {n: f for n in graph.nodes if (f := channels_last_form(n)) is not None}
    return _Placement(graph, forms).rewrite()


def _turns(graph: Graph, forms: Mapping[Node, Form]) -> dict[Node, str]:
    """Map each static_transpose that converts between the layouts to the layout of its result, LAST or GIVEN.

    At rank 3 both conversions have the same order of axes. The transpose then converts to LAST if its operand depends
    on an operation with channels at axis 1.
    """
    turns: dict[Node, str] = {}
    first: set[Value] = set()
    for node in graph.nodes:
        if node.op.name == "static_transpose":
            order = tuple(d % len(node.attrs["order"]) for d in node.attrs["order"])
            fits = [side for side, wanted in ((LAST, to_last), (GIVEN, to_first))
                    if len(order) >= 3 and order == wanted(len(order))]
            if fits:
                turns[node] = fits[0] if len(fits) == 1 or node.inputs[0] in first else GIVEN
        from_first = node.op.name in CHANNELS_LAST or any(v in first for v in node.operands)
        if node in forms and from_first or turns.get(node) == GIVEN:
            first.update(node.outputs)
    return turns


class _Placement:
    """Chooses the layouts of a graph's nodes, and rewrites the graph.

    `turns` has the transposes of the graph that already convert between the layouts. A transpose to LAST counts as a
    user that needs its operand channels last. A transpose to GIVEN counts as a node that computes its result channels
    last.
    """

    def __init__(self, graph: Graph, forms: dict[Node, Form]) -> None:
        self.graph, self.forms = graph, forms
        self.turns = _turns(graph, forms)
        self.last = self._cheapest()
        self.other: dict[Value, Value] = {}  # maps a value to its channels-last form
        self.names: dict[Value, str] = {}

    def _cheapest(self) -> set[Node]:
        """The nodes of `forms` that compute channels last: one side of a minimum cut.

        Among several minimum cuts, the cut with the most nodes on this side is chosen, because these nodes may fuse
        with convolutions and pools.
        """
        edges: list[tuple[set[Node | str], int]] = []
        for value in self.graph.values:
            if not has_layouts(value) or value.data is not None:  # reordering these values costs nothing
                continue
            maker, users = self._maker(value), {self._user(u) for u in value.uses}
            pins = {maker} | users
            # A value between GIVEN and LAST is reordered in any case: it does not affect the choice.
            if len(pins) > 1 and not {GIVEN, LAST} <= pins:
                edges.append((pins, _cost(value, inner=maker != GIVEN and users != {GIVEN})))
        if not any(GIVEN in pins for pins, _ in edges):  # no node needs the given layout
            return set(self.forms)
        given = _given_side(edges)
        return set(self.forms) - given

    def _side(self, node: Node) -> Node | str:
        free = node.op.name not in CHANNELS_LAST or along_lines(node) and (node.output.shape or (0,))[-1] not in SHORT
        return node if free else LAST

    def _maker(self, value: Value) -> Node | str:
        """GIVEN or LAST if `value` is computed in a fixed layout; otherwise the node that computes it."""
        node = value.node
        if node in self.turns:
            return GIVEN if self.turns[node] == LAST else LAST
        return self._side(node) if node in self.forms and self.forms[node].outputs[value.index] else GIVEN

    def _user(self, use: Use) -> Node | str:
        """GIVEN or LAST if the user needs a fixed layout; otherwise the user."""
        node = use.node
        if node in self.turns:
            return self.turns[node]
        return self._side(node) if node in self.forms and self.forms[node].operands[use.number] == "moves" else GIVEN

    def rewrite(self) -> int:
        for node in list(self.graph.nodes):
            if node in self.last:
                self._remake(node)
            elif node in self.turns:
                self._turn(node)
        self.graph.prune()
        for value, name in self.names.items():
            if value.name is None and not (value.node is None or value.node.removed):
                self.graph.rename(value, name)
        return len(self.last)

    def _turn(self, node: Node) -> None:
        """Record that a transpose's operand and result are the same value in the two layouts."""
        (source,) = node.operands
        if self.turns[node] == GIVEN:
            self.other[node.output] = source
        elif self.other.setdefault(source, node.output) is not node.output:
            self.graph.replace_uses(node.output, self.other[source])

    def _remake(self, node: Node) -> None:
        graph, form = self.graph, self.forms[node]
        with graph.before(node):
            operands = [None if v is None else self._operand(node, v, port)
                        for v, port in zip(node.inputs, form.operands, strict=True)]
            outs = graph.add_node(node.op, operands, {**node.attrs, **form.attrs}) if form.attrs else \
                graph.add_again(node, operands)
            outs[0].maker.meta = node.meta
            for old, new, moves in zip(node.outputs, outs, form.outputs, strict=True):
                self._replace(old, new, moves)

    def _operand(self, node: Node, value: Value, port: str) -> Value:
        if port == "stays":
            return value
        if port == "aligned":
            return aligned(self.graph, value, len(node.output.shape or ()))
        if value not in self.other:
            self.other[value] = moved(self.graph, value, to_last(value.type.rank))
        return self.other[value]

    def _replace(self, old: Value, new: Value, moves: bool) -> None:
        """Replace `old` by `new`; if `moves`, `new` is channels last and is reordered to the given layout first.

        Users that compute channels last then keep `old`; `_remake` replaces these users later.
        """
        if moves:
            self.other[old] = new
            self.graph.labels.stands(new, old, to_last(old.type.rank))
            uses = [u for u in old.uses if (side := self._user(u)) != LAST and side not in self.last]
            if uses:
                new = moved(self.graph, new, to_first(old.type.rank))
                self.graph.replace_uses(old, new, uses)
            self.graph.labels.replaced(old, new)
        else:
            self.graph.replace_uses(old, new)
        if old.name is not None:
            self.names[new] = old.name


def _given_side(edges: Iterable[tuple[set[Node | str], int]]) -> set[Node | str]:
    """The nodes on GIVEN's side of a minimum cut between LAST and GIVEN: the cut with the fewest nodes on this side.

    An edge is a set of nodes and a cost. An edge is cut, and costs, if its nodes are on both sides.
    """
    with late_imports():
        import networkx as nx  # late, because the import takes 0.2 s, and few models need it

    flow = nx.DiGraph()
    flow.add_nodes_from((LAST, GIVEN))
    for k, (pins, cost) in enumerate(edges):
        if len(pins) == 2:
            a, b = pins
            for arc in ((a, b), (b, a)):
                flow.add_edge(*arc, capacity=cost + flow.get_edge_data(*arc, {"capacity": 0})["capacity"])
            continue
        # An edge that joins many nodes becomes two vertices and the arc between them. Arcs without a capacity cannot be
        # cut: `some` is on LAST's side if any of the edge's nodes is, and `all_` only if all of them are. So the arc is
        # cut exactly if the edge has nodes on both sides.
        some, all_ = ("some", k), ("all", k)
        flow.add_edge(some, all_, capacity=cost)
        flow.add_edges_from((pin, some) for pin in pins if pin != GIVEN)
        flow.add_edges_from((all_, pin) for pin in pins if pin != LAST)
    # The sink's side is as small as possible: the nodes that can reach the sink in the residual network. The algorithm
    # of Boykov and Kolmogorov takes about half the time of the default here.
    _, (_, given) = nx.minimum_cut(flow, LAST, GIVEN, flow_func=nx.algorithms.flow.boykov_kolmogorov)
    return set(given)


def _cost(value: Value, inner: bool) -> int:
    """The cost of reordering `value`: its bytes times WEIGHT, and a little more; 1 if a reshape suffices.

    An `inner` value costs more than an equally large input or output of the graph, because its producer and users may
    fuse if it is not reordered. Unknown dimensions count as 1.
    """
    shape = value.shape or ()
    if is_view(shape):
        return 1
    return WEIGHT * value.dtype.itemsize * prod(1 if d is None else d for d in shape) + (4 if inner else 1)
