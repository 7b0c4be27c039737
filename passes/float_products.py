"""Rewrite float matmuls and convolutions: weights of at most 8 bits that kernels read compressed, and the precision.

Exporters write a reshape, a transpose or a cast between the dequantize of weights and the matmul. Rewrites move the
dequantize next to the matmul. Weights that share a scale form a group. If the last group is shorter than the others, it
is padded. The precision changes from f16 to f32, and from f32 to bf16 if the user asks for it.
"""
from collections.abc import Sequence
from math import prod

import numpy as np

from graphq.dtypes import bf16, f16, f32, s8, u8
from graphq.ir import Graph, Node, Value
from graphq.kernels.matmul_compressed.pack import CODES, finest
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.fold_scales import constant_array
from graphq.passes.simplify_moves import transpose_order
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite, Var

WEIGHTS = (*DEQUANTIZES, "dequantize_linear")
"""Operations that may dequantize weights. ONNX files use dequantize_linear if blocks do not divide an axis."""

MIN_ROWS = 8
"""An f16 layer with this many rows or more is computed in f32.

A layer with fewer rows stays in f16: it uses each weight for only a few multiplications, so the bytes of the weights
matter more.

Measured on Zen 4, including the casts: f16 takes 1.3 to 1.6 times as long as f32 with 8 rows, 1.6 times with 64, and
the same time with one row. bf16 is widened by a shift and takes no longer.
"""


class OfWeights(Rewrite):
    """Base class of rewrites of one operation on constant weights that an operation of WEIGHTS dequantizes."""

    operations: tuple[str, ...]
    sources: tuple[str, ...] = WEIGHTS
    others: tuple[Var, ...] = ()

    def pattern(self, g: PatternBuilder) -> PatternLike:
        """One of `operations` after one of `sources`; it may have other operands."""
        return g.any_of(*self.operations)(g.any_of(*self.sources)(..., attrs=ANY), *self.others, attrs=ANY)

    def candidate(self, node: Node) -> bool:
        """Whether the first operand is dequantized from a constant."""
        source = next(node.operands).node
        return source is not None and source.op.name in WEIGHTS and next(source.operands).data is not None


class MoveWeights(OfWeights):
    """static_reshape(dequantize(w, scales, zps)) -> dynamic_dequantize(w, scales, zps) of reshaped constants

    Transposes are handled in the same way, and so are the other operations of WEIGHTS. Each element keeps its scale.
    """

    operations = "static_reshape", "static_transpose"

    def check(self, match: Match) -> str | None:
        """All operands must be constants. A reshape must not split groups, nor follow a dequantize_linear."""
        node = match.nodes[1]
        if "block_size" in node.attrs and not (node.attrs["block_size"] and match.root.op.name == "static_transpose"):
            return ""
        if any(v.data is None for v in node.operands):
            return "scales and zero points are not constant"
        if not match.root.output.type.known or node.attrs.get("group_axis") is not None:
            return ""
        return None if _moved(match) is not None else f"groups of {list(_groups(node))} would be split in " \
                                                      f"{match.root.output.type}"

    def replace(self, g: Graph, match: Match) -> Value:
        node, groups = match.nodes[1], _moved(match)
        assert groups is not None
        dims = match.root.output.type.dims
        counts = [d // size for d, size in zip(dims, groups, strict=True)]
        order = transpose_order(match.root) if match.root.op.name == "static_transpose" else None
        w, *numbers = _constants(node)
        moved = [np.ascontiguousarray(x.transpose(order)) if order is not None else x.reshape(shape)
                 for x, shape in ((w, dims), *((x, counts) for x in numbers))]
        if order is not None and "block_size" in node.attrs:
            axis = order.index(node.attrs["axis"] % len(order))
            return g.dequantize_linear(*map(g.add_constant, moved), **{**node.attrs, "axis": axis})
        return g.dynamic_dequantize(*map(g.add_constant, moved), qtype="per_group", group_shape=list(groups),
                                    dtype=match.root.output.dtype)


class CastIntegers(OfWeights):
    """cast(w) to f32 -> dequantize(w, scales=[1]), for 8-bit constants w, perhaps reshaped or transposed

    PyTorch's quantizers write weights as `cast(w) * scale`, before or after the product.
    """

    operations, sources = ("cast",), ("constant", *MoveWeights.operations)

    def candidate(self, node: Node) -> bool:
        (w,), y = node.operands, node.output
        return y.dtype == f32 and w.dtype in (s8, u8) and w.node is not None and all(
            v.data is not None for v in w.node.operands)

    def replace(self, g: Graph, match: Match) -> Value:
        w, source = match.root.operand(0), match.nodes[1]
        if w.data is None:
            w = g.constant(source.op.reference(*(v.data for v in source.operands), **source.attrs))
        return g.dequantize(w, scales=[1.0])


class ScaleIntegers(OfWeights):
    """multiply(dequantize(w, scales=[1], zps), s) -> dequantize(w, s, zps); subtract(..., zps) in the same way

    w, s and zps are constants. Results do not change: differences of 8-bit integers are exact in f32, so each form
    rounds only the product with s.
    """

    operations, others = ("multiply", "subtract"), (Var("numbers"),)
    candidate = Rewrite.candidate

    def check(self, match: Match, notes: dict[str, list[np.ndarray]]) -> str | None:
        """The scales must have been 1, and zero points must be integers of the weights' type."""
        root, source = match.root, match.nodes[1]
        numbers = constant_array(root.operand(int(root.operand(0) is source.output)))
        fixed, dtype = all(v.data is not None for v in source.operands), source.operand(0).dtype
        if numbers is None or not fixed or source.attrs.get("group_axis") is not None or dtype not in (s8, u8):
            return ""
        w, scales, *zps = _constants(source)
        if root.output.type != source.output.type or (scales != 1).any() or numbers.dtype != np.float32 \
                or not np.isfinite(numbers).all():
            return ""
        numbers = numbers.reshape((1,) * (w.ndim - numbers.ndim) + numbers.shape)
        if root.op.name == "multiply":
            scales = numbers
        elif zps or root.operand(0) is not source.output or (
                np.clip(np.rint(numbers), dtype.min, dtype.max) != numbers).any():
            return ""
        else:
            zps = [numbers.astype(w.dtype)]
        counts = np.broadcast_shapes(*(x.shape for x in (scales, *zps)))
        notes["scales and zps"] = [np.broadcast_to(x, counts) for x in (scales, *zps)]
        return "" if w.ndim > 1 and counts == w.shape else None

    def replace(self, g: Graph, match: Match, notes: dict[str, list[np.ndarray]]) -> Value:
        w, numbers = match.nodes[1].operand(0), notes["scales and zps"]
        groups = [d // n for d, n in zip(w.type.dims, numbers[0].shape, strict=True)]
        axes = [k for k, n in enumerate(numbers[0].shape) if n > 1]
        if len(axes) > 1:
            return g.dynamic_dequantize(w, *numbers, qtype="per_group", group_shape=groups)
        return g.dynamic_dequantize(w, *(x.reshape(-1) for x in numbers), axis=axes[0] if axes else 0,
                                    qtype="per_channel" if axes else "per_tensor")


class GatherWeights(Rewrite):
    """gather(dequantize(w, scales, zps), i) -> dynamic_dequantize(gather(w, i), gather(scales, i), gather(zps, i))

    A table of embeddings is therefore never dequantized as a whole. dynamic_dequantize is handled in the same way.
    """

    def pattern(self, g: PatternBuilder, i: Var) -> PatternLike:
        return g.gather(g.any_of(*DEQUANTIZES)(..., attrs=ANY), i, attrs=ANY)

    def check(self, i: Value, match: Match) -> str | None:
        """All operands must be constants, and no two indices along the axis may share a scale."""
        node = match.nodes[1]
        if any(v.data is None for v in node.operands) or i.shape is None or node.attrs.get("group_axis") is not None:
            return ""
        groups = _groups(node)
        return None if groups[match.root.attrs["axis"] % len(groups)] == 1 else "indices share scales"

    def replace(self, g: Graph, i: Value, match: Match) -> Value:
        node = match.nodes[1]
        groups = _groups(node)
        axis = match.root.attrs["axis"] % len(groups)
        picked = [g.gather(g.add_constant(x), i, axis=axis) for x in _constants(node)]
        return g.dynamic_dequantize(*picked, qtype="per_group", dtype=node.output.dtype,
                                    group_shape=[*groups[:axis], *[1] * i.type.rank, *groups[axis + 1:]])


class CastDequantizedWeights(OfWeights):
    """type_cast(dequantize(w, scales, zps)) of constants -> dynamic_dequantize(w, scales, zps) to the type of the cast

    The other operations of WEIGHTS are handled in the same way. Results do not change: both round the f32 product of
    weight and scale once.
    """

    operations = ("type_cast",)

    def check(self, match: Match) -> str | None:
        node = match.nodes[1]
        if any(v.data is None for v in node.operands) or node.attrs.get("group_axis") is not None:
            return "scales and zero points are not constant"
        return None if node.output.dtype == f32 else ""

    def replace(self, g: Graph, match: Match) -> Value:
        node = match.nodes[1]
        if "block_size" in node.attrs:
            return g.add_node(node.op, node.inputs, {**node.attrs, "dtype": match.root.output.dtype})[0]
        return g.dynamic_dequantize(*map(g.add_constant, _constants(node)), qtype="per_group",
                                    group_shape=list(_groups(node)), dtype=match.root.output.dtype)


class PadWeights(Rewrite):
    """matmul(x, dequantize(w)) -> matmul(pad(x, zeros), dynamic_dequantize(pad(w))), with whole groups along k

    k is the summed axis. Kernels with float activations read compressed weights only if the group size along k is a
    multiple of `finest` and divides k. Zeros at the end of a sum change nothing in kernels
    (`kernels.numbers.float_sums`). The reference's sums may change, because NumPy chooses their order by their length.
    A cast may follow the dequantize.
    """

    tolerance = 1e-6

    def pattern(self, g: PatternBuilder, x: Var, bias: Var) -> PatternLike:
        plain = g.any_of(*(getattr(g, name)(..., attrs=ANY) for name in WEIGHTS))
        w = g.any_of(plain, g.type_cast(plain, attrs=ANY))
        return g.any_of(g.matmul(x, w, attrs=ANY), g.matmul(x, w, bias, attrs=ANY))

    def candidate(self, node: Node) -> bool:
        w = uncast(node.operand(1)).node
        return w is not None and any(True for _ in w.operands) and next(w.operands).data is not None

    def check(self, x: Value, match: Match) -> str | None:
        """The weights must be a matrix that kernels read compressed. The padding, once dequantized, must be finite."""
        if x.node is not None and x.node.op.name in DEQUANTIZES or match.root.attrs["transpose_a"]:
            return ""
        node = _weights(match)
        w, along = next(node.operands), 1 if match.root.attrs["transpose_b"] else 0
        if w.dtype.name not in CODES or len(w.type.dims) != 2 or 0 in w.type.dims or \
                any(v.data is None for v in node.operands) or not x.shape or not node.attrs.get("block_size", 1):
            return ""
        if _padded(node, along) is None:
            return ""
        _, scales, *zps = _constants(node)
        with np.errstate(all="ignore"):
            added = ((np.zeros((1, 1)) - sum(zps)).astype(np.float32) * scales.astype(np.float32)).astype(
                node.output.dtype.numpy).astype(x.dtype.numpy)
        return None if np.isfinite(added).all() else "padding would multiply zeros by infinite weights"

    def replace(self, g: Graph, x: Value, bias: Value | None, match: Match) -> Value:
        node, along = _weights(match), 1 if match.root.attrs["transpose_b"] else 0
        groups = _padded(node, along)
        assert groups is not None
        w, *numbers = _constants(node)
        more = -w.shape[along] % groups[along]
        w = np.pad(w, [(0, more if k == along else 0) for k in range(2)])
        zeros = [0] * (x.type.rank - 1)
        x = g.pad(x, pads_begin=[*zeros, 0], pads_end=[*zeros, more])
        y = g.dynamic_dequantize(*map(g.add_constant, (w, *numbers)), qtype="per_group", group_shape=list(groups),
                                 dtype=node.output.dtype)
        y = y if y.dtype == x.dtype else g.type_cast(y, dtype=x.dtype)
        return g.add_node(match.root.op, [x, y, bias], match.root.attrs)[0]


def _padded(node: Node, along: int) -> tuple[int, ...] | None:
    """The weights' group shape after padding along axis `along`; None if padding is not needed or does not help."""
    dims, groups, rows = next(node.operands).type.dims, list(_groups(node)), finest(next(node.operands).dtype.name)
    if any(d % size for k, (d, size) in enumerate(zip(dims, groups, strict=True)) if k != along):
        return None
    if groups[along] >= dims[along]:
        groups[along] = -(-dims[along] // rows) * rows
    return None if dims[along] % groups[along] == 0 or groups[along] % rows else tuple(groups)


def uncast(w: Value) -> Value:
    """The operand of the cast `w`, or `w` itself if it is not a cast."""
    return next(w.node.operands) if w.node is not None and w.node.op.name == "type_cast" else w


def stays_compressed(w: Value, transposed: bool) -> bool:
    """Whether kernels read `w` compressed: a dequantized constant whose groups fit (see `finest`)."""
    node = w.node
    if node is None or node.op.name != "dynamic_dequantize" or any(v.data is None for v in node.operands):
        return False
    source, groups = next(node.operands), _groups(node)
    return source.dtype.name in CODES and len(groups) == 2 and \
        groups[1 if transposed else 0] % finest(source.dtype.name) == 0


def _weights(match: Match) -> Node:
    return uncast(match.root.operand(1)).maker


def _groups(node: Node) -> tuple[int, ...]:
    """The group shape: the number of elements along each axis that share a scale."""
    dims, attrs = next(node.operands).type.dims, node.attrs
    if attrs.get("block_size"):
        return tuple(attrs["block_size"] if k == attrs["axis"] % len(dims) else 1 for k in range(len(dims)))
    if attrs["qtype"] == "per_group":
        return tuple(attrs["group_shape"])
    channel = attrs["axis"] % len(dims) if attrs["qtype"] == "per_channel" else -1
    return tuple(1 if k == channel else d for k, d in enumerate(dims))


def _constants(node: Node) -> list[np.ndarray]:
    """The weights, scales, and zero points if any. The scales and zero points have one element per group."""
    w, *numbers = (v.data for v in node.operands if v.data is not None)
    counts = [-(-d // size) for d, size in zip(w.shape, _groups(node), strict=True)]
    if node.op.name == "dequantize":
        zps = node.attrs["zps"]
        numbers = [np.asarray(node.attrs["scales"], np.float32), *([] if zps is None else [np.asarray(zps, np.int32)])]
    return [w, *(x.reshape(counts) for x in numbers)]


def _moved(match: Match) -> tuple[int, ...] | None:
    """The group shape after the reshape or transpose; None if a reshape would split groups."""
    groups, dims = _groups(match.nodes[1]), next(match.nodes[1].operands).type.dims
    if match.root.op.name == "static_transpose":
        return tuple(groups[k] for k in transpose_order(match.root))
    return reshaped_groups(dims, groups, match.root.output.type.dims)


def reshaped_groups(dims: Sequence[int], groups: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """The group shape after a reshape from `dims` to `wanted`; None if the reshape splits groups."""
    parts: list[tuple[int, bool]] = []
    for n, inside in (x for d, size in zip(dims, groups, strict=True) for x in ((d // size, False), (size, True))):
        if parts and parts[-1][1] == inside:  # merge, because both parts are groups or both are elements
            parts[-1] = parts[-1][0] * n, inside
        elif n > 1:
            parts.append((n, inside))
    sizes = []
    for left in wanted:
        size = 1
        while left > 1:
            (n, inside), *parts = parts
            taken = min(n, left)
            if n % taken or left % taken or size > 1:
                return None
            if taken < n:
                parts = [(n // taken, inside), *parts]
            size, left = size * taken if inside else size, left // taken
        sizes.append(size)
    return tuple(sizes)


class OfProducts(Rewrite):
    """Base class of rewrites of `anchors`, with or without a bias."""

    anchors: tuple[str, ...] = ("convolution", "conv_transpose", "matmul")

    def pattern(self, g: PatternBuilder, x: Var, w: Var, bias: Var) -> PatternLike:
        """An anchor with any attributes."""
        anchor = g.any_of(*self.anchors)
        return g.any_of(anchor(x, w, attrs=ANY), anchor(x, w, bias, attrs=ANY))


class WidenProducts(OfProducts):
    """anchor(x, w, bias?) of f16 -> type_cast(anchor(type_cast(x), type_cast(w), bias?)), for a constant bias

    The anchor is a matmul or a convolution. Numbers do not change: sums are added in f32 in the same order, and rounded
    once. The casts fuse with neighboring operations, and constants are cast at compile time. The rewrite applies to
    layers with MIN_ROWS rows or more, and to all matmuls with weights of at most 8 bits, because only f32 kernels
    read them.
    """

    def check(self, x: Value, w: Value, bias: Value | None, match: Match) -> str | None:
        """x must be f16. The bias, and the weights of a convolution, must be constant. There must be enough rows."""
        if x.dtype != f16:
            return ""
        compressed = match.root.op.name == "matmul" and stays_compressed(w, match.root.attrs["transpose_b"])
        if match.root.op.name != "matmul" and w.data is None or bias is not None and bias.data is None:
            return "weights or bias are not constant"
        rows = None if compressed else _rows(match.root)
        return None if rows is None or rows >= MIN_ROWS else f"it has only {rows} rows"

    def replace(self, g: Graph, x: Value, w: Value, bias: Value | None, match: Match) -> Value:
        constants = [g.type_cast(v, dtype=f32) if v.data is None else g.constant(v.data.astype(np.float32))
                     for v in (w, bias) if v is not None]
        result = match.root.output.dtype
        attrs = {k: v for k, v in match.root.attrs.items() if k != "dtype"}
        y = g.add_node(match.root.op, [g.type_cast(x, dtype=f32), *constants], attrs)[0]
        return y if result == f32 else g.type_cast(y, dtype=result)


def _rows(node: Node) -> int | None:
    result = node.output.type
    if not result.known:
        return None
    if node.op.name == "matmul":
        constant = node.operand(1).data is not None
        return prod(result.dims[:-1]) if constant or len(node.operand(1).type.dims) == 2 else result.dims[-2]
    channel = 1 if node.attrs["data_format"] == "NCX" else len(result.dims) - 1
    return prod(d for k, d in enumerate(result.dims) if k != channel)


class RoundProducts(OfProducts):
    """anchor(x, w, bias?) of f32 -> anchor(type_cast(x), type_cast(w), dtype=f32) + bias?, with casts to bf16

    The anchor is a matmul or a convolution. bf16 has 8 significant bits, so products are exact in f32; they are added
    in f32 as before. The rounding of the operands moves a sum by up to 2^-8 of the sum of the products' magnitudes.
    Weights of at most 8 bits stay compressed.
    """

    tolerance = 2.0**-5

    def check(self, x: Value, w: Value, match: Match) -> str | None:
        """Operands must be f32. Only constant weights may be dequantized. A convolution must not be depthwise."""
        if x.dtype != f32:
            return ""
        weights = uncast(w)
        node = weights.node
        if node is not None and weights.dtype in (f32, bf16) and all(v.data is not None for v in node.operands):
            node = None
        if any(n is not None and n.op.name in WEIGHTS for n in (x.node, node)):
            return "its operands are dequantized"
        if (groups := match.root.attrs.get("groups", 1)) > 1 and x.shape is not None:
            channels = x.shape[1 if match.root.attrs["data_format"] == "NCX" else -1]
            return f"each of its {groups} groups has one channel" if channels == groups else None
        return None

    def replace(self, g: Graph, x: Value, w: Value, bias: Value | None, match: Match) -> Value:
        y = g.add_node(match.root.op, [_as_bf16(g, x), _as_bf16(g, w)], {**match.root.attrs, "dtype": f32})[0]
        return with_bias(g, match.root, y, bias)


def with_bias(g: Graph, product: Node, y: Value, bias: Value | None) -> Value:
    """`y` plus the bias of `product`, if there is one; `y` is a result of the same shape."""
    if bias is None:
        return y
    return g.add(y, bias) if product.op.name == "matmul" else \
        g.bias_add(y, bias, data_format=product.attrs["data_format"])


def _as_bf16(g: Graph, v: Value) -> Value:
    """`v` rounded to bf16; the operand of `v` if `v` is a cast from bf16."""
    if v.data is not None:
        return g.constant(v.data.astype(bf16.numpy))
    return uncast(v) if uncast(v).dtype == bf16 else g.type_cast(v, dtype=bf16)
