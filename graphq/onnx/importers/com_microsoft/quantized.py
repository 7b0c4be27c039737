"""Importers of com.microsoft's quantized operators, as ONNX Runtime documents them (ContribOperators.md).

An operator becomes dequantize, the float operation, and quantize. Packed weights are unpacked.
"""
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from graphq import dtypes as t
from graphq.errors import GraphError
from graphq.ir import Graph, Value
from graphq.onnx.importers.composed import by_f32, in_f32, one, standard
from graphq.onnx.importers.importer import MICROSOFT, Call, Outputs, imports, imports_each, width
from graphq.onnx.importers.matmul import expect_bias
from graphq.onnx.importers.pool import channels_first
from graphq.onnx.importers.quant import QuantizationOperands, dequantized, parameters, result, scale_product
from graphq.ops.rules import normal_axis

F32: TypeAlias = Any
"""An f32 scalar of NumPy: arithmetic with it rounds to f32."""


def at(c: Call, k: int, scale: int | None = None, zp: int | None = None) -> Value:
    """Dequantize input `k` by inputs `scale` and `zp`, both per-tensor; by default the next two inputs."""
    x, scale, zp = c.input(k), scale or k + 1, zp or k + 2
    for n in (scale, zp):
        c.expect(n, (), (1,))
    return dequantized(c, x, parameters(c, x, c.input(scale), c.optional(zp), 1))


def of_columns(c: Call, k: int, scale: int, zp: int, axis: int = -1) -> Value:
    """Dequantize the matrix in input `k` by inputs `scale` and `zp`, each per-tensor or along `axis`."""
    x = c.input(k)
    size = None if x.shape is None else x.shape[normal_axis(axis, x.shape)]
    for n in (scale, zp):
        c.expect(n, (), (1,), (size,))
    return dequantized(c, x, parameters(c, x, c.input(scale), c.optional(zp), axis, mixed=True))


@imports("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(c: Call) -> Outputs:
    """Import QLinearAdd and QLinearMul. Inputs: A with scale and zero point, B likewise, scale and zero point of C."""
    numbers = _numbers(c)
    if numbers is None:
        build = c.graph.add if c.node.op_type == "QLinearAdd" else c.graph.multiply
        return result(c, build(at(c, 0), at(c, 3)), 6, c.input(0).dtype)
    y = (_sum if c.node.op_type == "QLinearAdd" else _product)(c, *numbers)
    return c.graph.quantize(y, dtype=c.input(0).dtype, scales=[1.0], zps=[0])


def _numbers(c: Call) -> list[Any] | None:
    """Scale and zero point of A, B and C, if all are finite scalar constants and C's scale is not 0; otherwise None."""
    found = []
    for k in (1, 2, 4, 5, 6, 7):
        data = c.data(k) if c.has(k) or k in (1, 4, 6) else np.zeros(1)
        if data is None or data.size != 1 or not np.isfinite(data.astype(np.float32)).all():
            return None
        found.append(data.astype(np.float32).reshape(-1)[0])
    return found if found[4] != 0 else None


def _sum(c: Call, sa: F32, za: F32, sb: F32, zb: F32, sc: F32, zc: F32) -> Value:
    """`a * (sa / sc) + (b * (sb / sc) + (zc - za * (sa / sc) - zb * (sb / sc)))`, as ONNX Runtime's kernel computes it.

    Many such sums lie exactly halfway between two integers. The f32 roundings of this formula then decide the result.
    """
    g, a, b = c.graph, sa / sc, sb / sc
    x, y = (g.dequantize(c.input(k), scales=[1.0]) for k in (0, 3))
    rest = g.add(g.multiply(y, one(y, b)), one(y, zc - (a * za + b * zb)))
    return g.add(g.multiply(x, one(x, a)), rest)


def _product(c: Call, sa: F32, za: F32, sb: F32, zb: F32, sc: F32, zc: F32) -> Value:
    """`(a - za) * (b - zb) * (sa * sb / sc) + zc`, as ONNX Runtime's kernel computes it."""
    g = c.graph
    x, y = (g.dequantize(c.input(k), scales=[1.0], zps=[int(zp)]) for k, zp in ((0, za), (3, zb)))
    y = g.multiply(g.multiply(x, y), one(x, sa * sb / sc))
    return g.add(y, one(y, zc))


UNARY: Mapping[str, Callable[[Call, Value], Value]] = {
    "QLinearLeakyRelu": lambda c, x: c.graph.leaky_relu(x, alpha=c.attr("alpha", 0.01)),
    "QLinearReduceMean": lambda c, x: c.graph.reduce_mean(
        x, axes=c.attr("axes"), keep_dims=bool(c.attr("keepdims", 1))),
    "QLinearSigmoid": lambda c, x: c.graph.sigmoid(x),
    # over `axis`, or over all dimensions from `axis` on if attribute `opset` is below 13
    "QLinearSoftmax": lambda c, x: standard(c, "Softmax", [x], opset=min(c.positive("opset"), 13),
                                            axis=c.attr("axis", -1))[0]}
"""The f32 functions of quantized operators with one operand."""


imports_each({
    **{name: lambda c: result(c, UNARY[c.node.op_type](c, at(c, 0)), 3, c.input(0).dtype) for name in UNARY},
    # the scale and the zero point of the result come first
    "QLinearConcat": lambda c: result(c, c.graph.concat(
        *(at(c, k) for k in range(2, len(c.inputs), 3)), axis=c.attr("axis", 0)), 0, c.input(2).dtype),
    # the condition, X and Y with scales and zero points, and the result's scale and zero point
    "QLinearWhere": lambda c: result(c, c.graph.select(c.input(0), at(c, 1), at(c, 4)), 7, c.input(1).dtype),
}, domain=MICROSOFT)


@imports("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(c: Call) -> Outputs:
    """Import QLinearAveragePool, with channels first or last.

    ONNX Runtime's kernel adds the zero point before it rounds to even. This rounds ties in the opposite direction if
    the zero point is odd.
    """
    attrs = {name: value for name, value in c.attrs.items() if name != "channels_last"}
    count = len(attrs["kernel_shape"]) if c.attr("channels_last", 0) else None
    y = channels_first(at(c, 0), count, lambda x: standard(c, "AveragePool", [x], **attrs)[0])
    scale, zp = c.input(3).data, None if c.optional(4) is None else c.input(4).data
    if scale is None or zp is None or scale.size != 1 or zp.size != 1 \
            or scale.item() == 0 or not np.isfinite(scale.item()):
        return result(c, y, 3, c.input(0).dtype)
    y = c.graph.add(c.graph.divide(y, scale), np.float32(zp.item()))
    return c.graph.quantize(y, dtype=c.input(4).dtype, scales=[1.0], zps=[0])


@imports("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(c: Call) -> Outputs:
    """Import QLinearGlobalAveragePool: the quantized f32 mean over the spatial axes."""
    x = at(c, 0)
    if x.shape is None:
        raise GraphError("the rank is not known")
    first = 1 if c.attr("channels_last", 0) else 2
    axes = list(range(first, first + len(x.shape) - 2))
    return result(c, c.graph.reduce_mean(x, axes=axes, keep_dims=True), 3, c.input(0).dtype)


@imports("QGemm", domain=MICROSOFT)
def qgemm(c: Call) -> Outputs:
    """Import QGemm: `alpha * A' @ B' + C`, with C in s32. The result is f32 if its scale (input 7) is absent."""
    g, alpha = c.graph, c.attr("alpha", 1.0)
    for k in (0, 3):
        c.expect(k, (None, None))
    y = g.matmul(at(c, 0), of_columns(c, 3, 4, 5, 0 if c.attr("transB", 0) else 1),
                 transpose_a=bool(c.attr("transA", 0)), transpose_b=bool(c.attr("transB", 0)))
    if alpha != 1:
        y = g.multiply(y, one(y, alpha))
    if c.has(6):
        bias, scale = c.input(6), scale_product(c, c.input(1), c.input(4))
        expect_bias(c, 6, y)
        if alpha != 1:
            scale = scale_product(c, scale, g.constant(np.asarray(alpha, np.float32)))
        if scale.shape in ((), (1,)) or width(bias) == width(y):
            y = g.add(y, dequantized(c, bias, QuantizationOperands(scale, None, len(bias.shape or (0,)) - 1)))
        else:
            y = g.add(y, g.multiply(g.dequantize(bias, scales=[1.0]), scale))
    return result(c, y, 7, c.input(0).dtype) if c.has(7) else y


@imports("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(c: Call) -> Outputs:
    """Import MatMulIntegerToFloat. Inputs: A, B, their scales, their zero points, a bias."""
    y = c.graph.matmul(of_columns(c, 0, 2, 4, -2), of_columns(c, 1, 3, 5))
    c.expect(6, (width(y),), (1, width(y)))
    return c.graph.add(y, c.input(6)) if c.has(6) else y


@imports("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(c: Call) -> Outputs:
    """Import DynamicQuantizeMatMul: quantize A like DynamicQuantizeLinear, and multiply by the dequantized B."""
    g = c.graph
    scale, zp = g.dynamic_range(c.input(0))
    a = g.dynamic_dequantize(g.dynamic_quantize(c.input(0), scale, zp, dtype=t.u8), scale, zp)
    y = g.matmul(a, of_columns(c, 1, 2, 3))
    c.expect(4, (width(y),), (1, width(y)))
    return g.add(y, c.input(4)) if c.has(4) else y


PACKED = {2: t.u2, 4: t.u4, 8: t.u8}
"""The unsigned type of unpacked weights, by the bits of a packed weight."""


@imports("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(c: Call) -> Outputs:
    """Import MatMulNBits: B is [n, blocks, bytes], and the lower bits of a byte hold the first weight.

    Each block along k has a scale and a zero point; zero points are packed like B, or floats. A shorter last block is
    padded with zeros. If g_idx gives the block of each k, activations and weights are sorted by block. 16-bit floats
    are computed in f32 and rounded once, as in ONNX Runtime.

    accuracy_level 4 allows integer activations. graphq uses them if weights minus zero points fit in 8 bits.
    """
    bits, (k, n, block) = int(c.attr("bits", 4)), (c.positive(name) for name in ("K", "N", "block_size"))
    packed, scales, zps, places = (c.data(i) for i in range(1, 5))
    if bits not in PACKED or packed is None or scales is None or any(c.has(i) and c.data(i) is None for i in (3, 4)):
        raise GraphError("weights, zero points and g_idx must be constants; weights have 2, 4 or 8 bits")
    g, blocks, dtype = c.graph, -(-k // block), PACKED[bits]
    points = blocks if zps is not None and zps.dtype != np.uint8 else -(-blocks * bits // 8)
    for i, shapes in ((1, [(n, blocks, -(-block * bits // 8))]), (2, [(n * blocks,), (n, blocks)]),
                      (3, [(n * points,), (n, points)]), (4, [(k,)]), (5, [(n,)])):
        c.expect(i, *shapes)
    x, bias = in_f32(c, c.input(0)), None if c.optional(5) is None else in_f32(c, c.input(5))
    w, s = unpacked(packed.reshape(n, -1), bits)[:, :k].T, scales.reshape(n, blocks).T.astype(np.float32)
    of = np.arange(k) // block
    if places is not None:
        order = np.argsort(places, kind="stable")
        if not np.array_equal(places[order], of):
            raise GraphError(f"input 4 (g_idx) must name each block {block} times, the last block for the rest of k")
        x, w = g.gather(x, g.constant(order), axis=-1), w[order]
    zp = np.full((blocks, n), 1 << (bits - 1))
    if zps is not None:
        zps = zps.reshape(n, -1)
        zp = (unpacked(zps, bits)[:, :blocks] if zps.dtype == np.uint8 else zps).T
    if (zp != (whole := np.clip(np.rint(zp), 0, dtype.max))).any():  # some zero points are not integers of this type
        weights = g.constant((w - zp.astype(np.float32)[of]) * s[of])
    else:
        if c.attr("accuracy_level", 0) == 4 and x.shape is not None and (bits < 8 or zps is None):
            more = blocks * block - k
            w = np.pad(w, [(0, more), (0, 0)])
            x = g.pad(x, pads_begin=[0] * len(x.shape), pads_end=[*[0] * (len(x.shape) - 1), more]) if more else x
            x = quantized_in_blocks(g, x, k + more, block)
        p = QuantizationOperands(g.constant(np.ascontiguousarray(s)), g.constant(whole.astype(dtype.numpy)), 0, block)
        weights = dequantized(c, g.constant(np.ascontiguousarray(w.astype(dtype.numpy))), p)
    y = g.matmul(x, weights)
    y = y if bias is None else g.add(y, bias)
    return y if c.input(0).dtype == t.f32 else g.type_cast(y, dtype=c.input(0).dtype)


FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
BNB4 = np.asarray([[*FP4, *(-x for x in FP4)], NF4], np.float32)
"""The weights of the codes 0 to 15 of bitsandbytes, by MatMulBnb4's `quant_type`."""


@imports("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(c: Call) -> Outputs:
    """Import MatMulBnb4 with f32 weights. B has codes of [n, k] weights; the higher bits of a byte hold the first.

    A code stands for a number of a table, times the scale of its block. Blocks run on through the rows.
    """
    k, n, block = (c.positive(name) for name in ("K", "N", "block_size"))
    packed, scales, kind = c.data(1), c.data(2), c.attr("quant_type")
    if packed is None or scales is None or kind not in (0, 1) or not c.attr("transB", 1):
        raise GraphError("weights and scales must be constants, quant_type 0 or 1, and transB 1")
    c.expect(1, (-(-n * k // 2),))
    c.expect(2, (-(-n * k // block),))
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:n * k]
    weights = BNB4[kind][codes] * np.repeat(scales.astype(np.float32), block)[:n * k]
    return by_f32(c, lambda x: c.graph.matmul(x, c.graph.constant(weights.reshape(n, k)), transpose_b=True), c.input(0))


def quantized_in_blocks(g: Graph, x: Value, k: int, block: int) -> Value:
    """Quantize `x` to s8 in blocks along the last axis (size `k`), by the scale max |x| / 127, and dequantize it."""
    outer = [0] * (len(x.shape or ()) - 1)
    parts = g.static_reshape(x, shape=[*outer, k // block, block], special_zero=True)
    scales = g.divide(g.reduce_max(g.abs(parts), axes=[-1], keep_dims=True), np.float32(127))
    q = g.quantize(g.divide(parts, scales), dtype="s8", scales=[1.0])
    q = g.static_reshape(q, shape=[*outer, k], special_zero=True)
    scales = g.static_reshape(scales, shape=[*outer, k // block], special_zero=True)
    return g.dynamic_dequantize(q, scales, qtype="per_group", group_shape=[1] * len(outer) + [block])


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack unsigned integers from bytes along the last axis; the lower bits of a byte hold the first integer."""
    parts = [packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)


@imports("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(c: Call) -> Outputs:
    """Import GatherBlockQuantized: dequantize 4-bit or 8-bit data (packed if u8), gather along `gather_axis`."""
    g, bits, data, zps = c.graph, int(c.attr("bits", 4)), c.input(0), c.optional(3)
    block, packed = c.positive("block_size", 128), data.dtype == t.u8 and bits in PACKED
    if packed:
        weights, given = c.data(0), c.data(3)
        if weights is None or c.has(3) and given is None:
            raise GraphError("packed integers must be constants")
        data = g.constant(unpacked(weights, bits).astype(PACKED[bits].numpy))
    axis = c.attr("quantize_axis", 1)
    blocks = None if data.shape is None else tuple(
        d if d is None or k != normal_axis(axis, data.shape) else -(-d // block) for k, d in enumerate(data.shape))
    c.expect(2, blocks)
    if packed:
        dims = c.input(2).type.dims
        c.expect(3, (*dims[:-1], -(-dims[-1] * bits // 8)))
        center = np.full(dims, 1 << (bits - 1)) if given is None else unpacked(given, bits)[..., :dims[-1]]
        zps = g.constant(center.astype(PACKED[bits].numpy))
    else:
        c.expect(3, blocks)
    p = parameters(c, data, c.input(2), zps, axis, block)
    return g.gather(dequantized(c, data, p, c.input(2).dtype), c.input(1), axis=c.attr("gather_axis", 0))
