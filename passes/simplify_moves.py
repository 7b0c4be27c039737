"""Drop or merge reshapes and transposes, and turn transposes that are views into reshapes; numbers stay the same."""
from __future__ import annotations

from graphq.ir import Node
from graphq.kernels.moves.transpose import is_view
from graphq.rewrite.rule import ANY, Rewrite


class DropNoopReshape(Rewrite):
    """static_reshape(x) of x's own shape -> x"""

    def pattern(self, g, x):
        return g.static_reshape(x, attrs=ANY)

    def check(self, x, match):
        if match.root.output.type != x.type:
            return ""
        return None if x.type.known else f"the shape is not known: {x.type}"

    def replace(self, g, x):
        return x


class MergeReshapes(Rewrite):
    """static_reshape(static_reshape(x)) -> static_reshape(x)"""

    def pattern(self, g, x):
        return g.static_reshape(g.static_reshape(x, attrs=ANY), attrs=ANY)

    def check(self, match):
        return None if match.root.output.type.known else "the final shape is not known"

    def replace(self, g, x, match):
        return g.static_reshape(x, shape=match.root.output.shape)


class MergeTransposes(Rewrite):
    """static_transpose(static_transpose(x, p), q) -> static_transpose(x, p[q])"""

    def pattern(self, g, x):
        return g.static_transpose(g.static_transpose(x))

    def replace(self, g, x, match):
        outer, inner = (transpose_order(n) for n in match.nodes)
        return g.static_transpose(x, order=[inner[d] for d in outer])


class DropNoopTranspose(Rewrite):
    """static_transpose(x, order=[0, 1, ...]) -> x"""

    def pattern(self, g, x):
        return g.static_transpose(x)

    def check(self, match):
        order = transpose_order(match.root)
        return None if order == sorted(order) else ""

    def replace(self, g, x):
        return x


class TransposeAsReshape(Rewrite):
    """static_transpose(x) that only moves dimensions of 1 -> static_reshape(x), a view"""

    def pattern(self, g, x):
        return g.static_transpose(x)

    def check(self, x, match):
        if not x.type.known:
            return f"the shape is not known: {x.type}"
        return None if is_view(x.shape, transpose_order(match.root)) else ""

    def replace(self, g, x, match):
        return g.static_reshape(x, shape=match.root.output.shape)


def transpose_order(node: Node) -> list[int]:
    """The `order` of a static_transpose, with axes counted from the front."""
    order = node.attrs["order"]
    return [d % len(order) for d in order]
