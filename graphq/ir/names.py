"""Names and labels of values, phrases for messages, and names that other frameworks give to operations."""
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
    """The name in the text form of graphs: unchanged if it is a plain word and no keyword, else a JSON string."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=not name.isprintable())


def check_name(name: Any, where: str) -> None:
    """Raise GraphError unless `name` is a non-empty string."""
    if not isinstance(name, str) or not name:
        raise GraphError(f"{where}: a name must be a non-empty string, got {name!r}")


def listing(items: Iterable[object], word: str = "or") -> str:
    """The items as a phrase: `a, b or c`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} {word} {last}" if most else last


def suggestion(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The text `; did you mean a, b?` for an unknown name; empty if no known name is similar."""
    import difflib

    near = difflib.get_close_matches(name[:60], list(known), 3, cutoff)
    return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else ""


def choice(name: str, known: Iterable[str]) -> str:
    """A phrase for errors: known names that are similar to `name`, or else the first known names."""
    names = list(dict.fromkeys(known))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return suggestion(name, names) or f"; there are {', '.join(names[:8])}{more}"


FILE_NAMES = "names in the file"
"""The key in a graph's `meta` for new names of values by their names in the model's file, if a reader changed names."""


def new_name(graph: Graph, name: str) -> str:
    """The value's name in the graph, for a name that is the value's name in the graph or in the model's file."""
    return graph.meta.get(FILE_NAMES, {}).get(name, name)


def counted(n: int, what: str) -> str:
    """A number and a noun, plural if needed: `1 block`, `2 blocks`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


Origin: TypeAlias = "tuple[Value, Sequence[int] | None]"
"""The origin of a value: a value of the original graph, and the axis order if it was transposed (otherwise None)."""

SHOWN = 4
"""The most operands that `Labels.mention` lists."""


class Labels:
    """The labels of a graph's values. Each change of the graph renumbers unnamed values, unless `kept` is true.

    If the graph keeps a history of passes, `origins` maps each value to its `Origin`; otherwise it is None.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.kept = graph, False
        self.origins: dict[Value, Origin] | None = None
        self._numbers: dict[Value, int] | None = None

    def of(self, value: Value) -> str:
        """The label of a value: an input's name, `%name`, or `%N` for the N-th unnamed value."""
        if value.name is not None:
            return quote(value.name) if value.node is None else f"%{quote(value.name)}"
        number = self.number(value)
        return "%?" if number is None else f"%{number}"

    def number(self, value: Value) -> int | None:
        """The number of an unnamed value; None for a value of another graph, unless numbers are kept."""
        if self._numbers is None:
            unnamed = (v for v in self.graph.values if v.name is None)
            self._numbers = {v: k for k, v in enumerate(unnamed)}
        if self.kept:
            self._numbers.setdefault(value, len(self._numbers))
        return self._numbers.get(value)

    def mention(self, value: Value) -> str:
        """A value's name in errors: its label. Unnamed values get a phrase: `the matmul of 'x' and a constant`."""
        node = value.node
        if value.name is not None or node is None:
            return self.of(value)
        if value.data is not None:
            return _unnamed(value)
        operands = ["nothing" if v is None else _unnamed(v) if v.name is None else f"'{v.name}'" for v in node.inputs]
        if len(operands) > SHOWN:
            operands[SHOWN - 1:] = [f"{len(operands) - SHOWN + 1} more"]
        made = f"the {node.op.title(node.attrs)}" + (f" of {listing(operands, 'and')}" if operands else "")
        return made if len(node.outputs) == 1 else f"output {value.index} of {made}"

    def changed(self) -> None:
        """Record that the graph has changed: renumber unnamed values, unless numbers are kept."""
        if not self.kept:
            self._numbers = None

    def stands(self, new: Value, old: Value, order: Sequence[int] | None = None) -> None:
        """Record that `new` equals `old` or, with `order`, `static_transpose(old, order)`."""
        if self.origins is not None:
            self.origins.setdefault(new, (old, order))

    def replaced(self, old: Value, new: Value) -> None:
        """If numbers are kept, give `new` the number of `old`, which has no users left."""
        if self.kept and self._numbers and old in self._numbers:
            self._numbers.setdefault(new, self._numbers[old])

    def keep(self, *, trace: bool = False) -> None:
        """Keep the numbers of unnamed values from now on. A replacement gets the number of the value it replaces.

        With `trace`, start a history of passes in `origins`.
        """
        if trace:
            self.origins = {v: (v, None) for v in self.graph.values}
        self._numbers = None
        for v in self.graph.values:
            if v.name is None:
                self.number(v)
        self.kept = True

    def take(self, other: Labels, values: Mapping[Value, Value]) -> None:
        """Copy the numbers of another graph's labels, and start a history of passes in `origins`.

        `values` maps values of this graph to values of the other graph.
        """
        self.origins = {}
        self._numbers = {new: number for new, old in values.items() if old.name is None
                         and (number := other.number(old)) is not None}
        self.kept = True

    @contextmanager
    def stable(self) -> Iterator[None]:
        """Keep the numbers of unnamed values within a `with` block. New values get new numbers."""
        saved, self.kept = self.kept, True
        try:
            yield
        finally:
            self.kept = saved
            self.changed()


def _unnamed(value: Value) -> str:
    if value.data is not None:
        return f"the number {value.data}" if value.data.ndim == 0 else "a constant"
    name = value.maker.op.name  # only inputs have none, and inputs have names
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
"""Names of NumPy, PyTorch, TensorFlow and ONNX, with graphq's operation or expression for them."""
