"""Simplify reshapes, transposes, pads and repetitions: drop, merge or fold them, or make them views.

In grouped-query attention, matmuls then read keys and values in place, without a copy for each query head. repeat(x)
below is reshape(expand(reshape(x))) that repeats each matrix: [..., n, r, c] to [..., n * times, r, c].
"""
from graphq.ir import Graph, Node, Value
from graphq.kernels.moves.transpose import is_view
from graphq.rewrite.rule import ANY, Drop, Match, PatternBuilder, PatternLike, Rewrite, Var


class DropNoopReshape(Drop):
    """static_reshape(x) of x's own shape -> x"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.static_reshape(x, attrs=ANY)

    def check(self, x: Value, match: Match) -> str | None:
        if match.root.output.type != x.type:
            return ""
        return None if x.type.known else f"the shape is not known: {x.type}"


class MergeReshapes(Rewrite):
    """static_reshape(static_reshape(x)) -> static_reshape(x)"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.static_reshape(g.static_reshape(x, attrs=ANY), attrs=ANY)

    def check(self, match: Match) -> str | None:
        return None if match.root.output.type.known else "the final shape is not known"

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        return g.static_reshape(x, shape=match.root.output.type.dims)


class MergeTransposes(Rewrite):
    """static_transpose(static_transpose(x, p), q) -> static_transpose(x, p[q])"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.static_transpose(g.static_transpose(x))

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        outer, inner = (transpose_order(n) for n in match.nodes)
        return g.static_transpose(x, order=[inner[d] for d in outer])


class DropNoopTranspose(Drop):
    """static_transpose(x, order=[0, 1, ...]) -> x"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.static_transpose(x)

    def check(self, match: Match) -> str | None:
        order = transpose_order(match.root)
        return None if order == sorted(order) else ""


class TransposeAsReshape(Rewrite):
    """static_transpose(x) that only moves dimensions of 1 -> static_reshape(x), a view"""

    def pattern(self, g: PatternBuilder, x: Var) -> PatternLike:
        return g.static_transpose(x)

    def check(self, x: Value, match: Match) -> str | None:
        if not x.type.known:
            return f"the shape is not known: {x.type}"
        return None if is_view(x.type.dims, transpose_order(match.root)) else ""

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        return g.static_reshape(x, shape=match.root.output.type.dims)


def transpose_order(node: Node) -> list[int]:
    """The `order` of a static_transpose, with axes counted from the front."""
    order = node.attrs["order"]
    return [d % len(order) for d in order]


class FoldPadIntoConvolution(Rewrite):
    """convolution(pad(x), w) -> convolution(x, w) with more padding; a dequantize may come between the two

    Only spatial axes may be padded. A convolution pads with 0, so the pad's value must be 0 or, before a dequantize,
    the zero point.
    """

    def pattern(self, g: PatternBuilder, x: Var, w: Var, b: Var) -> PatternLike:
        source = g.any_of(g.pad(x, attrs=ANY), g.dequantize(g.pad(x, attrs=ANY), attrs=ANY))
        return g.any_of(g.convolution(source, w, attrs=ANY), g.convolution(source, w, b, attrs=ANY))

    def check(self, match: Match) -> str | None:
        pad, root = match.node("pad").attrs, match.root.attrs
        begin, end = pad["pads_begin"], pad["pads_end"]
        outer = (0, 1 if root["data_format"] == "NCX" else len(begin) - 1)
        if pad["mode"] != "constant" or min((*begin, *end)) < 0 or any(begin[k] or end[k] for k in outer):
            return f"mode {pad['mode']}, pads {list(begin)} and {list(end)}"
        if root["auto_pad"] not in ("none", "valid"):
            return f"the convolution pads by itself, {root['auto_pad']}"
        scaled = next((n.attrs for n in match.nodes if n.op.name == "dequantize"), None)
        if scaled and scaled["qtype"] == "per_channel" and (begin[scaled["axis"]] or end[scaled["axis"]]):
            return f"dequantize has a scale for each element of dimension {scaled['axis']}"
        if pad["value"] != self._zero(match):
            return f"the padding is {pad['value']:g}, 0 is {self._zero(match):g}"
        return None

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        pad, root = match.node("pad").attrs, match.root
        inner = slice(2, None) if root.attrs["data_format"] == "NCX" else slice(1, -1)
        own = (0,) * len(root.attrs["strides"])
        begin, end = (tuple(p + q for p, q in zip(pad[name][inner], own if root.attrs["auto_pad"] == "valid"
                                                  else root.attrs[name], strict=True))
                      for name in ("pads_begin", "pads_end"))
        for node in match.nodes:
            if node.op.name == "dequantize":
                x = g.dequantize(x, **node.attrs)
        return g.add_node(root.op, [x, *root.inputs[1:]],
                          {**root.attrs, "auto_pad": "none", "pads_begin": begin, "pads_end": end})[0]

    def _zero(self, match: Match) -> float:
        """The only pad value that the convolution would read as 0; NaN if zero points differ."""
        found = next((n for n in match.nodes if n.op.name == "dequantize"), None)
        zps = set(found.attrs["zps"] or (0,)) if found else {0}
        return zps.pop() if len(zps) == 1 else float("nan")


def _repeat(g: PatternBuilder, x: PatternLike) -> PatternLike:
    return g.static_reshape(g.expand(x, attrs=ANY), attrs=ANY)


def _refused(match: Match) -> str | None:
    """Why the matched expand and reshape do not repeat matrices; None if they do."""
    expand, reshape = _nodes(match)
    source, wide, result = (v.type for v in (expand.operand(0), expand.output, reshape.output))
    if not (source.known and result.known):
        return "shapes are known only at run time"
    if len(source.dims) < 4 or source.dims[-3] != 1:
        return ""
    *outer, n, _, r, c = source.dims
    times = wide.dims[-3]
    repeats = list(wide.dims) == [*outer, n, times, r, c] and list(result.dims) == [*outer, n * times, r, c]
    return None if repeats else "the expand repeats more than matrices"


def _nodes(match: Match) -> tuple[Node, Node]:
    expand = match.node("expand")
    (reshape,) = expand.output.users
    return expand, reshape


def _without_copies(g: Graph, x: Value) -> Value:
    """The operand [..., n, 1, r, c] of the expand, reshaped to [..., n, r, c]."""
    *outer, _, r, c = x.type.dims
    return g.static_reshape(x, shape=[*outer, r, c])


class MoveRepeat(Rewrite):
    """f(repeat(x)) -> repeat(f(x)), where f transposes matrices, casts, or multiplies by one constant"""

    def pattern(self, g: PatternBuilder, x: Var, c: Var) -> PatternLike:
        y = _repeat(g, x)
        return g.any_of(g.static_transpose(y), g.type_cast(y, attrs=ANY), g.multiply(y, c))

    def check(self, c: Value | None, match: Match) -> str | None:
        if c is not None and (c.data is None or c.data.size != 1):
            return "it is not multiplied by one constant"
        if match.root.op.name == "static_transpose":
            order = transpose_order(match.root)
            if order != [*range(len(order) - 2), len(order) - 1, len(order) - 2]:
                return "it moves matrices"
        return _refused(match)

    def replace(self, g: Graph, x: Value, c: Value | None, match: Match) -> Value:
        result, times = match.root.output.type.dims, match.node("expand").output.type.dims[-3]
        more = [] if c is None else [c]
        (y,) = g.add_node(match.root.op, [_without_copies(g, x), *more], match.root.attrs)
        *outer, rows, columns = y.type.dims
        wide = g.expand(g.static_reshape(y, shape=[*outer, 1, rows, columns]), shape=[*outer, times, rows, columns])
        return g.static_reshape(wide, shape=list(result))


class ShareHeads(Rewrite):
    """matmul(a, repeat(b)) -> reshape(matmul(reshape(a), b))

    All matrices of `a` that are multiplied by the same matrix of `b` are stacked into one matrix. Kernels add in the
    same order as before. The reference's sums may change, because NumPy chooses their order by the number of rows.
    """

    tolerance = 1e-5

    def pattern(self, g: PatternBuilder, a: Var, b: Var) -> PatternLike:
        return g.matmul(a, _repeat(g, b), attrs=ANY)

    def check(self, a: Value, match: Match) -> str | None:
        if (reason := _refused(match)) is not None:
            return reason
        if not a.type.known or match.root.attrs["transpose_a"] or \
                a.type.dims[:-2] != _nodes(match)[1].output.type.dims[:-2]:
            return "the other operand has other matrices"
        return None

    def replace(self, g: Graph, a: Value, b: Value, match: Match) -> Value:
        *outer, heads, m, k = a.type.dims
        times = match.node("expand").output.type.dims[-3]
        rows = g.static_reshape(a, shape=[*outer, heads // times, times * m, k])
        (y,) = g.add_node(match.root.op, [rows, _without_copies(g, b)], match.root.attrs)
        return g.static_reshape(y, shape=list(match.root.output.type.dims))
