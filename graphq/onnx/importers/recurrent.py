"""Importers of LSTM, GRU and RNN. Each direction becomes a matmul of the input with W, and a recurrence."""
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from graphq import dtypes as t
from graphq.errors import GraphError
from graphq.ir import Graph, Value
from graphq.onnx.importers.importer import MICROSOFT, Call, Outputs, imports
from graphq.onnx.importers.quant import dequantized, parameters
from graphq.onnx.importers.shape import parts

USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "DynamicQuantizeLSTM": ["Sigmoid", "Tanh", "Tanh"],
         "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}

Direction = Callable[[Value, int, bool], Sequence[Value]]
"""A recurrence in one direction: a function of (input, index of the direction, reverse).

The function returns all states, the last state and, for LSTM, the last cell.
"""


def _in_f32(c: Call, build: Callable[[Call], list[Value]]) -> Outputs:
    """Apply `build`, in f32 for f16 and bf16. Refuses f64, because ONNX's reference ignores lengths and directions."""
    g, dtype = c.graph, c.input(0).dtype
    if dtype == t.f32:
        return build(c)
    if dtype not in (t.bf16, t.f16):
        c.refuse(f"a recurrence of {dtype} is not supported")
    wide = tuple(g.type_cast(v, dtype=t.f32) if v is not None and v.dtype == dtype else v for v in c.inputs)
    return [g.type_cast(y, dtype=dtype) for y in build(replace(c, inputs=wide))]


@imports("LSTM", "GRU", "RNN")
def layer(c: Call) -> Outputs:
    """Import LSTM, GRU and RNN (only with tanh); each direction has weights W and R."""
    return _in_f32(c, lambda c: _directions(c, partial(_layer, c)))


def _layer(c: Call, x: Value, d: int, reverse: bool) -> Sequence[Value]:
    """Add one direction. In a GRU, the last gate's recurrent bias is the operand `bias`; the gates get other biases."""
    g, kind, bias = c.graph, c.node.op_type, None
    gates = _of_input(c, x, d)
    if kind != "GRU":
        gates = _biased(c, gates, d)
    elif c.has(3):
        both = _of(c, 3, d)
        size = both.type.dims[0] // 6
        own, state, bias = parts(both, 0, [3 * size, 2 * size, size])
        gates = g.add(gates, g.add(own, g.concat(state, g.constant(np.zeros(size, np.float32)), axis=0)))
    weights, first, lengths = _of(c, 2, d), _state(c, 5, d), c.optional(4)
    if kind == "GRU":
        return g.gru(gates, weights, first, bias, lengths, reverse=reverse,
                     linear_before_reset=bool(c.attr("linear_before_reset", 0)))
    if kind == "RNN":
        return g.rnn(gates, weights, first, lengths, reverse=reverse)
    return g.lstm(gates, weights, first, _state(c, 6, d), None, lengths, _of(c, 7, d) if c.has(7) else None,
                  reverse=reverse)


def _of_input(c: Call, x: Value, d: int) -> Value:
    """The matmul of the input with W, or the input itself if W is the identity, as `save_onnx` may write.

    This changes results only for infinite inputs, because inf * 0 is NaN.
    """
    weights = _of(c, 1, d)
    if weights.data is not None and np.array_equal(weights.data, np.eye(len(weights.data))):
        return x
    product: Value = c.graph.matmul(x, weights, transpose_b=True)
    return product


def _biased(c: Call, gates: Value, d: int) -> Value:
    if not c.has(3):
        return gates
    both, g = _of(c, 3, d), c.graph
    half = both.type.dims[0] // 2
    return g.add(gates, g.add(*parts(both, 0, [half, half])))


@imports("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(c: Call) -> Outputs:
    """Import DynamicQuantizeLSTM. Its weights W and R are integers, transposed in comparison with LSTM.

    W and R have scales and zero points for each direction, per-tensor or per column. The input is quantized once, the
    state in each step.
    """
    g, count = c.graph, _count(c)
    c.expect(0, (None, None, None))
    c.expect(2, (None, None, None))
    (_, rows, inputs), (_, size, _) = (c.input(k).shape or (None,) * 3 for k in (0, 2))
    size = c.attr("hidden_size", size)
    wide = None if size is None else 4 * size
    for k, shape in ((1, (inputs, wide)), (2, (size, wide)), (3, (wide and 2 * wide,)), (5, (rows, size)),
                     (6, (rows, size)), (7, (size and 3 * size,))):
        c.expect(k, (count, *shape))
    c.expect(4, (rows,))
    for k in (8, 9, 10, 11):
        c.input(k)
        c.expect(k, (count,), (count, wide))
    scale, zp = g.dynamic_range(c.input(0))
    units = g.dynamic_quantize(c.input(0), scale, zp, dtype=t.u8)
    return _directions(c, partial(_quantized, c, g.dynamic_dequantize(units, scale, zp)))


def _quantized(c: Call, units: Value, _x: Value, d: int, reverse: bool) -> Sequence[Value]:
    g = c.graph
    w, w_scale, w_zp = (g.constant(np.squeeze(c.array(k)[d])) for k in (1, 8, 9))
    r, r_scale, r_zp = (np.squeeze(c.array(k)[d]) for k in (2, 10, 11))
    gates = g.matmul(units, dequantized(c, w, parameters(c, w, w_scale, w_zp, -1, mixed=True)))
    integers = (r.astype(np.float32) - r_zp.astype(np.float32)).T
    if np.ptp(integers) > 255:
        c.refuse(f"input 2 minus its zero points must have 8 bits, got {integers.min():g} to {integers.max():g}")
    return g.lstm(_biased(c, gates, d), g.constant(np.ascontiguousarray(integers)), _state(c, 5, d),
                  _state(c, 6, d), g.constant(np.atleast_1d(r_scale)), c.optional(4),
                  _of(c, 7, d) if c.has(7) else None, reverse=reverse)


def _directions(c: Call, direction: Direction) -> list[Value]:
    way, count = c.attr("direction", "forward"), _count(c)
    check(c, count)
    rows_first = bool(c.attr("layout", 0))
    x = _swapped(c.graph, c.input(0), rows_first)
    g = c.graph
    results = [direction(x, d, way == "reverse" or d == 1) for d in range(count)]
    out = [_together(g, [r[k] for r in results], 1 if k == 0 else 0) for k in range(len(results[0]))]
    if rows_first:
        out = [g.static_transpose(out[0], order=[2, 0, 1, 3]), *(_swapped(g, v, True) for v in out[1:])]
    return out[:max(1, c.outputs)]


def _count(c: Call) -> int:
    return 2 if c.attr("direction", "forward") == "bidirectional" else 1


def _swapped(g: Graph, x: Value, rows_first: bool) -> Value:
    return g.static_transpose(x, order=[1, 0, 2]) if rows_first else x


def check(c: Call, count: int) -> None:
    """Refuse options that graphq lacks and ONNX's reference ignores."""
    given = [a.decode() if isinstance(a, bytes) else a for a in c.attr("activations", ())]
    usual = USUAL[c.node.op_type]
    if given not in ([], usual * count):
        c.refuse(f"activations must be {', '.join(usual)}, got {', '.join(given)}")
    for name in ("clip", "input_forget"):
        if c.attr(name, 0):
            c.refuse(f"{name} is not supported")


def _together(g: Graph, values: Sequence[Value], axis: int) -> Value:
    """Join states [T, B, H] or [B, H] along a new axis before B."""
    wide = [g.static_reshape(v, shape=[0, 1, -1, _size(v)][1 - axis:], special_zero=True) for v in values]
    return wide[0] if len(wide) == 1 else g.concat(*wide, axis=axis)


def _size(x: Value) -> int:
    if x.shape is None or x.shape[-1] is None:
        raise GraphError("the size of the state is not known yet")
    return x.shape[-1]


def _of(c: Call, k: int, d: int) -> Value:
    x, g = c.input(k), c.graph
    if x.data is not None:
        return g.add_constant(x.data[d])
    return g.static_reshape(g.slice(x, axes=[0], starts=[d], ends=[d + 1], steps=[1]), shape=x.type.dims[1:])


def _state(c: Call, k: int, d: int) -> Value | None:
    """The initial state or cell of direction `d` in input `k`, [rows, size], or None if the input is absent."""
    if not c.has(k):
        return None
    x = _swapped(c.graph, c.input(k), bool(c.attr("layout", 0)))
    part = c.graph.slice(x, axes=[0], starts=[d], ends=[d + 1], steps=[1])
    return c.graph.static_reshape(part, shape=(-1, c.attr("hidden_size") or _size(c.input(2))))
