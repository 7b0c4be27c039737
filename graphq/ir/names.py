"""Names and labels of values, names of operations elsewhere, and phrases that several messages share."""
from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from graphq.errors import GraphError

if TYPE_CHECKING:
    from graphq.ir.graph import Graph
    from graphq.ir.node import Value

_PLAIN = re.compile(r"(?!(?:inf|nan|none|return|graph|as)\b)[A-Za-z_][\w.]*")


def quote(name: str) -> str:
    """`name` itself if it is a plain word without another meaning, otherwise as a JSON string.

    Characters that cannot be printed are escapes.
    """
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=not name.isprintable())


def check_name(name: Any, where: str) -> None:
    """Raise GraphError unless `name` is a string that is not empty."""
    if not isinstance(name, str) or not name:
        raise GraphError(f"{where}: a name must be a non-empty string, got {name!r}")


def listing(items: Iterable[object], word: str = "or") -> str:
    """The items as a phrase: `a, b or c`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} {word} {last}" if most else last


def suggestion(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The text `; did you mean a, b?` for an unknown name; empty if no known name is near."""
    import difflib

    near = difflib.get_close_matches(name[:60], list(known), 3, cutoff)
    return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else ""


def choice(name: str, known: Iterable[str]) -> str:
    """A phrase for errors: the known names near to `name` or, if there are none, the first known names."""
    names = list(dict.fromkeys(known))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return suggestion(name, names) or f"; there are {', '.join(names[:8])}{more}"


def counted(n: int, what: str) -> str:
    """The number and the noun, in its plural where needed: `1 block`, `2 blocks`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


Origin: TypeAlias = "tuple[Value, Sequence[int] | None]"
"""The value of the original graph that a value stands for, and the order of its axes (None: unchanged)."""

SHOWN = 4
"""The most operands that the description of an unnamed value lists."""


class Labels:
    """The labels of a graph's values. Unnamed values are numbered again after each change, unless numbers are `kept`.

    For reports on passes, `origins` maps each value to its `Origin`; values of the original graph map to themselves.
    `origins` is None if nobody has asked for a history; then nodes that are added have no `origin`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.kept = graph, False
        self.origins: dict[Value, Origin] | None = None
        self._numbers: dict[Value, int] | None = None

    def of(self, value: Value) -> str:
        """The label of a value: an input's name, `%name`, or `%N` for the N-th unnamed value."""
        if value.name is not None:
            return quote(value.name) if value.node is None else f"%{quote(value.name)}"
        if self._numbers is None:
            unnamed = (o for n in self.graph.nodes for o in n.outputs if o.name is None)
            self._numbers = {o: k for k, o in enumerate(unnamed)}
        if self.kept:
            self._numbers.setdefault(value, len(self._numbers))
        return f"%{self._numbers.get(value, '?')}"

    def mention(self, value: Value) -> str:
        """How errors name a value: by its label, or an unnamed one as `the matmul of 'x' and a constant`."""
        node = value.node
        if value.name is not None or node is None:
            return self.of(value)
        if value.data is not None:
            return _unnamed(value)
        operands = [_operand(v) for v in node.inputs]
        if len(operands) > SHOWN:
            operands[SHOWN - 1:] = [f"{len(operands) - SHOWN + 1} more"]
        made = f"the {node.op.title(node.attrs)}" + (f" of {listing(operands, 'and')}" if operands else "")
        return made if len(node.outputs) == 1 else f"output {value.index} of {made}"

    def changed(self) -> None:
        """Note that the graph has changed: unless numbers are kept, unnamed values are numbered again."""
        if not self.kept:
            self._numbers = None

    def trace(self) -> None:
        """Keep the numbers, and from now on record in `origins` which original values new values stand for."""
        self.keep()
        values = (*self.graph.inputs, *(o for n in self.graph.nodes for o in n.outputs))
        self.origins = {v: (v, None) for v in values}

    def stands(self, new: Value, old: Value, order: Sequence[int] | None = None) -> None:
        """Note that `new` equals `old` or, with `order`, static_transpose(old, order)."""
        if self.origins is not None:
            self.origins.setdefault(new, (old, order))

    def replaced(self, old: Value, new: Value) -> None:
        """If numbers are kept, give the number of `old`, which is no longer used, to `new`."""
        if self.kept and self._numbers and old in self._numbers:
            self._numbers.setdefault(new, self._numbers[old])

    def keep(self) -> None:
        """From now on unnamed values keep their numbers. A value that replaces another one gets its number."""
        self._numbers = None
        for v in (o for n in self.graph.nodes for o in n.outputs):
            self.of(v)
        self.kept = True

    def take(self, other: Labels, values: Mapping[Value, Value]) -> None:
        """Take over the numbers of another graph's labels; `values` maps each value of this graph to one of that graph.

        From now on `origins` records which original values new values stand for, as after `trace`, and new nodes get an
        `origin`.
        """
        self.origins = {}
        self._numbers = {new: int(label) for new, old in values.items() if old.name is None
                         and (label := other.of(old)[1:]).isdigit()}
        self.kept = True

    @contextmanager
    def stable(self) -> Iterator[None]:
        """Within the block, unnamed values keep their numbers while the graph changes; new ones get further numbers."""
        saved, self.kept = self.kept, True
        try:
            yield
        finally:
            self.kept = saved
            self.changed()


def _operand(value: Value | None) -> str:
    return "nothing" if value is None else _unnamed(value) if value.name is None else f"'{value.name}'"


def _unnamed(value: Value) -> str:
    """A description of an unnamed value: `an add`, or `the number 2` for a constant."""
    if value.data is not None:
        return f"the number {value.data}" if value.data.ndim == 0 else "a constant"
    assert value.node is not None  # inputs have names, so an unnamed value has a node
    name = value.node.op.name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


OTHER_NAMES: dict[str, str] = {
    **dict.fromkeys(("bmm", "dense", "fc", "fully_connected", "gemm", "inner_product", "linear", "mm"), "matmul"),
    **dict.fromkeys(("conv", "conv1d", "conv2d", "conv3d"), "convolution"),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "deconvolution"), "conv_transpose"),
    **dict.fromkeys(("expand_dims", "flatten", "reshape", "squeeze", "unsqueeze", "view"), "static_reshape"),
    **dict.fromkeys(("permute", "transpose"), "static_transpose"),
    **dict.fromkeys(("clip", "hardtanh", "relu6"), "clamp"),
    **dict.fromkeys(("resize", "upsample"), "interpolate"),
    **dict.fromkeys(("average", "global_average_pool", "mean"), "reduce_mean"),
    **dict.fromkeys(("silu", "swish"), "x * g.sigmoid(x)"),
    "astype": "type_cast", "batch_norm": "batch_norm_inference", "cat": "concat", "div": "divide",
    "embedding": "gather", "max": "reduce_max, maximum", "min": "reduce_min, minimum", "mul": "multiply", "neg": "-x",
    "negative": "-x", "prod": "reduce_prod", "split": "slice", "sub": "subtract", "sum": "reduce_sum",
    "where": "select",
}
"""Maps names of NumPy, PyTorch, TensorFlow and ONNX to graphq's operation, or an expression of operations."""
