"""Find out whether the results for a row depend on how far the row was padded at its end, along axis 1 of the inputs.

The analysis specializes the graph to one row of SHORT positions, and to the same row padded to LONG and to LONGER
positions. It walks two graphs in parallel, and tracks what is known of each element in the long graph (`Cells`).
Padding does not matter if the outputs keep all elements of the short graph (assumptions: docs/numbers.md).
"""
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from graphq.errors import GraphqError
from graphq.ir import Graph, Node, Value
from graphq.model.plans import Padding
from graphq.model.row_wise import agree, axes_of, columns_matter, sizes_decide, with_sizes
from graphq.ops.quant import DEQUANTIZES
from graphq.passes import PIPELINE, Pass

SHORT, LONG, LONGER = 11, 19, 140
"""The lengths that the analysis compares: the first with each other. Few other dimensions of models have these."""
LOW = -1e30
"""An element of at most LOW, plus a number of ordinary size, has the power 0 in a softmax, and is not the maximum."""
MOVES = frozenset({"static_reshape", "static_transpose", "slice", "expand", "concat", "pad", "gather"})
SUMS = ("reduce_sum", "reduce_l1", "reduce_l2", "integer_sum", "dynamic_range")
TOKENS = ("query", "key", "value", "positions")
"""The operands of cached_attention that have a row for each token."""
HINTS = {
    "softmax": "; a mask must set the scores behind the end to -inf, or add a number below -1e30 to them",
    "reduce_max": "; a mask must set the elements behind the end to -inf, or to a number below -1e30",
    "convolution": "; the elements behind the end must be 0, for example by a product with a mask"}


class Cells(NamedTuple):
    """What is known of each element of a value in the long graph.

    `kept`: it equals the element at the same index in the short graph. `data`: its number; NaN if only known to be
    finite, and inf if not even this. Nothing is known of an element that should be kept but is not.
    """

    kept: np.ndarray
    data: np.ndarray = np.array(np.nan)


LOST = Cells(np.array(False), np.array(np.inf))


def padding_of(graph: Graph, passes: Sequence[Pass] = PIPELINE) -> Padding:
    """Whether padding of `graph` matters if `passes` run on it, and which inputs need zeros behind the end."""
    names = tuple(str(v.name) for v in graph.inputs if v.shape and len(v.shape) > 1 and v.shape[1] is None)
    if not names or any(v.shape is None for v in graph.inputs):
        return Padding("axis 1 of no input is open" if not names else "the ranks of inputs are not known")
    try:
        short, long, longer = (with_sizes(graph, passes, 1, length) for length in (SHORT, LONG, LONGER))
    except GraphqError as e:
        return Padding(f"the graph or a pass rejects rows of {SHORT}, {LONG} or {LONGER} positions: {e}")
    zeros, reason = names, _why(short, long, names)
    for name in names if reason is None else ():
        fewer = tuple(z for z in zeros if z != name)
        zeros = fewer if _why(short, long, fewer) is None else zeros
    reason = reason or _why(short, longer, zeros) or sizes_decide(graph)
    axes = ((name, k) for name, v, w in zip(long.output_names, long.outputs, short.outputs, strict=True)
            for k, size in enumerate(v.shape or ()) if reason is None and size != w.type.dims[k])
    return Padding(reason, zeros, tuple(axes))


def _why(short: Graph, long: Graph, zeros: Sequence[str]) -> str | None:
    """Why padding may matter if the inputs `zeros` are padded with zeros, and others with anything; None if not."""
    cells, blame, twins = dict[Value, Cells](), dict[Value, Node](), dict[Value | None, Value]()
    more = max(n for v, w in zip(long.inputs, short.inputs, strict=True) for n in np.subtract(v.type.dims, w.type.dims))
    for v, w in zip(long.inputs, short.inputs, strict=True):
        kept, twins[v] = _cells(v, w, Cells(np.array(True))).kept, w
        cells[v] = Cells(kept, np.where(kept | (v.name not in zeros), np.nan, 0.0))
    for node, twin in zip(long.nodes, short.nodes, strict=False):
        fit = all(v.type.known and w.type.known and len(v.type.dims) == len(w.type.dims) and np.greater_equal(
            v.type.dims, w.type.dims).all() for v, w in zip(node.outputs, twin.outputs, strict=False))
        if node.op is not twin.op or [twins.get(v) for v in node.inputs] != list(twin.inputs) or not fit:
            break
        twins.update(zip(node.outputs, twin.outputs, strict=True))
        with np.errstate(all="ignore"):
            found = _result(node, twins, [cells[v] for v in node.operands])
        for v in node.outputs:
            cells[v] = _cells(v, twins[v], found)
            if cells[v].kept.sum() < np.prod(twins[v].type.dims):
                blame[v] = next((blame[x] for x in node.operands if x in blame), node)
    for v, w in zip(long.outputs, short.outputs, strict=True):
        if v in blame:
            return f"padding may change an operation: {long.describe(blame[v])}{HINTS.get(blame[v].op.name, '')}"
        if twins.get(v) is not w or not {*np.subtract(v.type.dims, w.type.dims).tolist()} <= {0, more}:
            return f"the graphs for {SHORT} and {SHORT + more} positions differ in more than the length of the row"
    return None


def _cells(v: Value, twin: Value, found: Cells) -> Cells:
    """The cells of `v`, from arrays that are broadcast. A value without their first axis depends on the whole axis."""
    dims, kept = v.type.dims, found.kept.all(axis=0) if found.kept.ndim > len(v.type.dims) else found.kept
    whole = dims == twin.type.dims and bool(kept.all())
    data = np.where((found.data == np.inf) & (whole or v.dtype.kind != "float"), np.nan, found.data)
    if not whole:
        inside = np.zeros(dims, bool)
        inside[_box(twin)] = True
        kept = kept & inside
        data = np.where(kept & (data == np.inf) | inside & ~kept & (data < np.inf), np.nan, data)
    return Cells(np.broadcast_to(kept, dims), np.broadcast_to(data, dims))


def _box(twin: Value) -> tuple[slice, ...]:
    return tuple(map(slice, twin.type.dims))


def _finite_if(wild: np.ndarray | np.bool_) -> np.ndarray:
    return np.where(wild, np.inf, np.nan)


def _result(node: Node, twins: Mapping[Value | None, Value], given: Sequence[Cells]) -> Cells:
    """What is known of a node's results in the long graph. Results of an operation without a rule are LOST."""
    name, twin = node.op.name, twins[node.outputs[0]].maker
    if name == "constant":
        return _constant(node.attrs["value"], twin.attrs["value"], _box(twin.output))
    if name in MOVES and (name != "gather" or all(list(n.operands)[1].data is not None for n in (node, twin))):
        return _moved(node, twin, given)
    if name == "onnx_node" or dict(node.attrs) != dict(twin.attrs):
        return LOST
    if node.op.elementwise or node.op.rows == "kept" or name in ("dynamic_quantize", "dynamic_dequantize"):
        return _lanewise(node, given)
    if name in ("matmul", "matmul_integer") and min(c.kept.ndim for c in given[:2]) > 1 and None not in node.inputs:
        return _product(node, given)
    wild = np.array(any(np.isinf(c.data).any() for c in given))
    if name == "gather":
        source, places = given
        after = source.kept.ndim - 1 - node.attrs["axis"] % source.kept.ndim
        return Cells(source.kept.all() & places.kept.reshape(*places.kept.shape, *[1] * after), _finite_if(wild))
    if name == "cum_sum" and not node.attrs["reverse"]:
        return Cells(np.logical_and.accumulate(given[0].kept, node.attrs["axis"]), _finite_if(wild))
    if name in ("convolution", "max_pool"):
        return Cells(_windowed(node, given), _finite_if(wild))
    if name == "cached_attention":
        return Cells(_attended(node, twins, given), _finite_if(wild))
    if name in ("lstm", "gru", "rnn"):
        kept = np.asarray(given[0].kept.all(axis=2, keepdims=True))
        ends = [v for v, p in zip(node.inputs, node.op.operands, strict=False) if v is not None and p.name == "lengths"]
        if ends or node.attrs["reverse"]:  # rows end before padding
            kept = np.asarray(kept[:twins[node.inputs[0]].type.dims[0] if ends else None].all())
        kept = np.logical_and.accumulate(kept) if kept.ndim else kept
        return Cells(kept & all(c.kept.all() for c in given[1:]), _finite_if(wild))
    if (node.op.rows == "along" or name == "dynamic_range") and not node.attrs.get("keep_stats"):
        return _along(node, given)
    same = all(c.kept.all() for c in given) and all(v.type == twins[v].type for v in node.outputs)
    return Cells(np.array(True)) if same else LOST


def _constant(x: np.ndarray, y: np.ndarray, box: tuple[slice, ...]) -> Cells:
    kept = np.array(x is y)
    if x is not y:
        kept = np.zeros(x.shape, bool)
        kept[box] = agree(x, y)
    if x.ndim == 2 and x.size >= 1 << 16:  # a table, or weights
        return Cells(kept)
    return Cells(kept, _numbers(x))


def _numbers(x: np.ndarray) -> np.ndarray:
    """The numbers as f64, or inf for those that are not finite, or that are integers too large for f64."""
    data = x.astype(np.float64)
    return np.where(data < (2.0**53 if x.dtype.kind in "iu" else np.inf), data, np.inf)


def _moved(node: Node, twin: Node, given: Sequence[Cells]) -> Cells:
    """The rule of operations that only move elements. Numbers of the elements show if both graphs move alike."""
    def run(n: Node, arrays: Sequence[np.ndarray], filler: float) -> np.ndarray:
        attrs = {**n.attrs, "value": filler} if "value" in n.attrs else n.attrs
        return np.asarray(n.op.reference(*arrays, *(v.data for v in list(n.operands)[len(arrays):]), **attrs))

    given = given[:1] if node.op.name == "gather" else given
    numbers = [np.arange(c.kept.size).reshape(c.kept.shape) + (k << 40) for k, c in enumerate(given)]
    own = run(twin, [x[_box(v)] for x, v in zip(numbers, twin.operands, strict=False)], -1)
    kept, box = run(node, [c.kept for c in given], 1).copy(), tuple(map(slice, own.shape))
    kept[box] &= run(node, numbers, -1)[box] == own
    return Cells(kept, run(node, [c.data for c in given], node.attrs.get("value", np.nan)))


def _lanewise(node: Node, given: Sequence[Cells]) -> Cells:
    """The rule of elementwise operations. Parameters of channels count as one number."""
    if "data_format" in node.attrs or node.attrs.get("qtype", "per_tensor") != "per_tensor":
        given = [given[0], *(Cells(np.asarray(c.kept.all()), _finite_if((c.data == np.inf).any())) for c in given[1:])]
    kept, numbers = reduce(np.logical_and, [c.kept for c in given]), [c.data for c in given]
    wild, total = reduce(np.logical_or, [x == np.inf for x in numbers]), reduce(np.add, numbers)
    infinite = reduce(np.logical_or, [np.isinf(x) for x in numbers])
    known, data = ~np.isnan(total) & ~wild, _finite_if(infinite)
    if known.any():
        arrays = [np.where(known, x, 1).astype(v.dtype.numpy) for x, v in zip(numbers, node.operands, strict=True)]
        found = _numbers(node.op.reference(*arrays, **node.attrs))
        # kernels only approximate the reference of inexact operations
        data = np.where(known & (node.op.exact | np.isinf(numbers[0]) | np.isinf(found)), found, data)
    match node.op.name:
        case "multiply" | "logical_and":
            data = np.where(reduce(np.logical_or, [x == 0 for x in numbers]) & ~infinite, 0, data)
        case "acos" | "acosh" | "asin" | "atanh" | "divide" | "log" | "pow" | "reciprocal" | "sqrt":
            k = int(node.op.name == "divide")
            least = _least(node)
            outside = np.isnan(numbers[k]) & (_sign([*node.operands][k]) < least) | (least == 1) & (numbers[k] == 0)
            data = np.where(outside, np.inf, data)
        case "add" | "subtract":
            low = np.fmin(numbers[0], numbers[1] if node.op.name == "add" else np.inf)
            data = np.where(np.isnan(total) & (low <= LOW) & ~wild, low, data)
        case "select":
            chosen, (c, x, y) = numbers[0] != 0, given
            kept = np.where(np.isnan(c.data), kept, c.kept & np.where(chosen, x.kept, y.kept))
            data = np.where(np.isnan(c.data) & (x.data != y.data), data, np.where(chosen, x.data, y.data))
    return Cells(kept, data)


def _least(node: Node) -> int:
    """The sign (see `_sign`) that makes a result finite: of a divisor, or of the operand of a function."""
    if node.op.name == "pow":
        return 1 if node.attrs["beta"] < 0 else -1 if node.attrs["beta"].is_integer() else 0
    return {"divide": 1, "log": 1, "reciprocal": 1, "sqrt": 0}.get(node.op.name, 2)


def _sign(v: Value, depth: int = 8) -> int:
    """1 if all elements of a value are above 0, 0 if they may be 0 but not below, and -1 if this is not known."""
    if v.data is not None:
        return 1 if (v.data > 0).all() else 0 if (v.data >= 0).all() else -1
    if v.node is None or not depth:
        return -1
    signs = [_sign(x, depth - 1) for x in v.node.operands]
    match v.node.op.name:
        case "abs" | "square" | "relu" | "exp" | "sigmoid" | "softmax" | "reduce_l1" | "reduce_l2":
            return 0  # small results may be rounded to 0
        case "maximum":
            return max(signs)
        case "clamp":
            return max(*signs, int(np.sign(v.node.attrs["min"]))) if v.node.attrs["max"] > 0 else -1
        case "add":
            return max(signs) if min(signs) >= 0 else -1
        case "multiply" | "divide":
            return 0 if len({*v.node.inputs}) == 1 else min(0, *signs)
        case "cast":
            return min(signs[0], int(v.dtype.kind == "float"))  # small numbers become the integer 0
        case "sqrt" | "static_reshape" | "expand" | "reduce_max" | "reduce_mean" | "reduce_sum":
            return signs[0]
    return -1


def _along(node: Node, given: Sequence[Cells]) -> Cells:
    """The rule of reductions, norms and softmax: along the axes, elements are kept, or cannot change the result."""
    (x, *more), a, name, source = given, node.attrs, node.op.name, next(node.operands).node
    over = None if name == "dynamic_range" else axes_of(node)
    how = {"axis": None if over is None else tuple(over), "keepdims": a.get("keep_dims", over is not None)}
    neutral = x.data <= LOW if name in ("softmax", "reduce_max") else x.kept
    of_sizes = name == "reduce_max" and source is not None and source.op.name == "abs"
    if of_sizes or name in SUMS and (over is None or len(over) == 1):  # the order of places in two axes may change
        neutral = x.data == 0
    wild = (x.data == np.inf if name in ("softmax", "reduce_max") else np.isinf(x.data)).any(**how)
    if name == "softmax":
        wild = wild | neutral.all(**how) & (a["mode"] != "inf_as_zero")
    elif np.float32(a.get("epsilon", 1)) == 0:  # elements that are equal may become 0 / 0
        wild = np.True_
    kept = (x.kept | neutral).all(**how) & all(c.kept.all() for c in more)
    nothing = neutral if name == "softmax" else (x.data == 0).all(**how) & (name in SUMS and name != "dynamic_range")
    return Cells(kept, np.where(wild, np.inf, np.where(nothing, 0, np.nan)))


def _windowed(node: Node, given: Sequence[Cells]) -> np.ndarray:
    """The rule of convolutions and max_pool: windows read kept elements or, in a convolution, zeros behind the end."""
    (x, *more), a = given, node.attrs
    weights = [np.ones(v.type.dims, np.float32) for v in list(node.operands)[1:2]]
    if weights and node.graph.nodes_of(["quantize"]) and node.graph.nodes_of(DEQUANTIZES):
        return np.array(False)  # the number of windows may decide the order of dequantized sums (`matmul_order`)
    if a["auto_pad"] in ("same_upper", "same_lower") and max(a["strides"]) > 1:  # the length moves the windows
        return np.array(False)
    changed = ~x.kept & (x.data != 0) if weights else ~x.kept
    read = node.op.reference(changed.astype(np.float32), *weights, **a)
    return np.asarray((read <= 0) & all(c.kept.all() for c in more))


def _attended(node: Node, twins: Mapping[Value | None, Value], given: Sequence[Cells]) -> np.ndarray:
    """The rule of cached_attention without earlier tokens: a token sees no key behind the end of its row."""
    names = [p.name for v, p in zip(node.inputs, node.op.operands, strict=False) if v is not None]
    if "past_key" in names or "bias" in names:  # the number of new tokens decides which earlier tokens count
        return np.array(False)
    each = [c.kept.reshape(*c.kept.shape[:2], -1).all(axis=2, keepdims=True)
            for c, name in zip(given, names, strict=True) if name in TOKENS]
    kept = np.logical_and.accumulate(reduce(np.logical_and, each), axis=1)
    if not node.attrs["causal"]:
        kept = np.asarray(kept[:, :twins[node.inputs[0]].type.dims[1]].all())
    return kept & all(c.kept.all() for c, name in zip(given, names, strict=True) if name not in (*TOKENS, "total"))


def _product(node: Node, given: Sequence[Cells]) -> Cells:
    """The rule of matmuls: along k, both factors are kept, or one is a zero behind the end and the other is finite."""
    (a, b, *more), integers = given, node.op.name == "matmul_integer"
    zps = [c.data.flat[0] if (c.data == c.data.flat[0]).all() else np.nan for c in more if integers]
    turns = node.attrs.get("transpose_a", False), node.attrs.get("transpose_b", False)
    (ka, za, wa), (kb, zb, wb) = [
        [(x.swapaxes(-1, -2) if turn else x).astype(np.float32)
         for x in (c.kept, ~c.kept & (c.data == zp), np.isinf(c.data))]
        for c, zp, turn in zip((a, b), (*zps, 0.0, 0.0), turns, strict=False)]
    if b.kept.all():  # all columns are alike
        kb, zb, wb = kb[..., :1], zb[..., :1], wb[..., :1]
    elif columns_matter(node, kb.shape[-2]) and not kb.any(axis=-2).all():
        return LOST
    count = ka @ kb + za @ (1 - wb) + (1 - wa - za) @ zb if za.any() or zb.any() else ka @ kb
    kept = (count == ka.shape[-1]) & (more[0].kept if more and not integers else True)
    return Cells(kept, _finite_if(wa.any(axis=-1, keepdims=True) | wb.any(axis=-2, keepdims=True)))
