"""The recurrent layers lstm, gru and rnn, in one direction, and linear attention. Matmuls apply the input weights."""
from collections.abc import Callable

import numpy as np

from graphq.dtypes import f32, s32
from graphq.errors import GraphError, InputError
from graphq.ir import Dim, Node, TensorType, register_op
from graphq.kernels.numbers import recurrent as numbers
from graphq.kernels.numbers.float_sums import float_sums
from graphq.ops.rules import Array, expect_dtype, show


def _rule(*results: str, **axes: str) -> Callable[..., tuple[TensorType, ...]]:
    """Make the `infer` of a layer with f32 `results`, such as "B H".

    `axes` has the operands in order, each with the names of its dimensions, such as "T B 4H". `lengths` is s32, all
    other operands f32. `scales` is one scale, or one for each row of `recurrent`.
    """
    def infer(*operands: TensorType | None, **_: bool) -> tuple[TensorType, ...]:
        sizes: dict[str, Dim] = {}
        for (name, letters), t in zip(axes.items(), operands, strict=False):
            if t is None or name == "scales" and t.shape == (1,):
                continue
            expect_dtype(name, t, (s32,) if name == "lengths" else (f32,))
            if t.shape is None:
                continue
            text = f"[{letters.replace(' ', ', ')}]"
            if len(t.shape) != len(letters.split()):
                raise GraphError(f"'{name}' must have shape {text}, got {show(t.shape)}")
            for axis, dim in zip(letters.split(), t.shape, strict=True):
                times, letter = int(axis[:-1] or 1), axis[-1]
                if dim is None:
                    continue
                if dim % times or sizes.setdefault(letter, dim // times) != dim // times:
                    raise GraphError(f"'{name}' must have shape {text}, got {show(t.shape)}, with "
                                     f"{letter} = {sizes.get(letter, '?')}")
        return tuple(TensorType(f32, tuple(map(sizes.get, letters.split()))) for letters in results)

    return infer


def _check_lengths(op: str, lengths: Array | None, steps: int) -> None:
    if lengths is not None and (wrong := lengths[(lengths < 0) | (lengths > steps)]).size:
        raise length_error(op, steps, int(wrong[0]))


def length_error(op: str, steps: int, length: int) -> InputError:
    """The error for a sequence length that is negative or longer than the `steps` of the layer `op`."""
    return InputError(f"{op}: lengths must be in [0, {steps}], got {length}")


@register_op(rows="recurrent", infer=_rule("T B H", "B H", "B H", gates="T B 4H", recurrent="4H H", h="B H", c="B H",
                                           scales="4H", lengths="B", peepholes="3H"))
def lstm(gates: Array, recurrent: Array, h: Array | None = None, c: Array | None = None, scales: Array | None = None,
         lengths: Array | None = None, peepholes: Array | None = None, *, reverse: bool = False,
         by_row: bool = False) -> tuple[Array, ...]:
    """Long short-term memory: returns all states [T, B, H], the last state [B, H] and the last cell [B, H].

    `gates` [T, B, 4H] is the input times its weights, plus all biases, for the gates in ONNX's order i, o, f, c.
    `recurrent` [4H, H] is the weights of the state. `h` and `c` are the initial state and cell (default: zeros). With
    `scales`, the weights are integers in f32, and each step quantizes the state to u8 as DynamicQuantizeLinear does: by
    one range for all rows (com.microsoft DynamicQuantizeLSTM), or with `by_row` by a range for each row.

    Row b of the batch ends after `lengths[b]` steps: its last state is the state after these steps, and later states
    are 0. Raises InputError for a length outside of [0, T]. `peepholes` times the cell are added to the gates i, o and
    f. With `reverse`, steps run from the last to the first. Sums of integers are exact; other sums are chains of fused
    multiply-adds (see graphq.kernels.numbers.recurrent).
    """
    _check_lengths("lstm", lengths, len(gates))
    zeros = np.zeros((gates.shape[1], recurrent.shape[1]), np.float32)
    return numbers.lstm(gates, recurrent, zeros if h is None else h, zeros if c is None else c, scales, lengths,
                        peepholes, reverse, by_row)


def quantizes_state(node: Node) -> bool:
    """Whether a node is an LSTM with `scales`: one that multiplies the quantized state by integer weights."""
    return node.op.name == "lstm" and node.inputs[4:5] not in ((), (None,))


def shares_range(node: Node) -> bool:
    """Whether a node is an LSTM that quantizes the states of all rows by one range."""
    return quantizes_state(node) and not node.attrs["by_row"]


@register_op(rows="recurrent", infer=_rule("T B H", "B H", gates="T B 3H", recurrent="3H H", h="B H", bias="H",
                                           lengths="B"))
def gru(gates: Array, recurrent: Array, h: Array | None = None, bias: Array | None = None,
        lengths: Array | None = None, *, linear_before_reset: bool = False, reverse: bool = False) -> tuple[Array, ...]:
    """Gated recurrent units: returns all states [T, B, H] and the last state [B, H].

    `gates` [T, B, 3H] is the input times its weights, plus biases, for the gates in ONNX's order z, r, h. `recurrent`
    [3H, H] is the weights of the state. For gate h, `bias` [H] is added to the state times its weights. With
    `linear_before_reset`, r multiplies this sum; otherwise r multiplies the state before the weights do. `h` is the
    initial state (default: zeros). `lengths` and `reverse` are as in lstm.
    """
    _check_lengths("gru", lengths, len(gates))
    size = recurrent.shape[1]
    first = np.zeros((gates.shape[1], size), np.float32) if h is None else h
    return numbers.gru(gates, recurrent, first, np.zeros(size, np.float32) if bias is None else bias,
                       lengths, linear_before_reset, reverse)


@register_op(rows="recurrent", infer=_rule("T B H", "B H", gates="T B 1H", recurrent="1H H", h="B H", lengths="B"))
def rnn(gates: Array, recurrent: Array, h: Array | None = None, lengths: Array | None = None, *,
        reverse: bool = False) -> tuple[Array, ...]:
    """Steps of `h = tanh(gates + h @ recurrent.T)`: all states [T, B, H] and the last [B, H]; operands as in lstm."""
    _check_lengths("rnn", lengths, len(gates))
    first = np.zeros((gates.shape[1], recurrent.shape[1]), np.float32) if h is None else h
    return numbers.rnn(gates, recurrent, first, lengths, reverse)


@register_op(infer=_rule("B T G H V", "B G K V", query="B T G H K", key="B T G K", value="B T G V", state="B G K V",
                         decay="B T G K", beta="B T G"))
def linear_attention(query: Array, key: Array, value: Array, state: Array, decay: Array | None = None,
                     beta: Array | None = None) -> tuple[Array, Array]:
    """Attention to a state that each token updates (ONNX LinearAttention): all outputs, and the last state.

    `query` is [batch, tokens, groups, heads, keys], `key` [batch, tokens, groups, keys], `value` [batch, tokens,
    groups, values], and `state` [batch, groups, keys, values]. Each token multiplies the rows of the state S by `decay`
    [batch, tokens, groups, keys], and adds the product of the column key and the row value. With `beta` [batch, tokens,
    groups], this row is beta * (value - S^T key). The output is S^T query. All heads of a group read one state. All
    operands are f32. Raises GraphError if they are not, or if shapes disagree.
    """
    out = np.empty((*query.shape[:4], value.shape[3]), np.float32)
    for t in range(key.shape[1]):
        k, new = key[:, t, :, None], value[:, t, :, None]
        state = state if decay is None else state * decay[:, t, ..., None]
        if beta is not None:
            new = (new - float_sums(k, state)) * beta[:, t, :, None, None]
        state = state + k.swapaxes(2, 3) * new
        out[:, t] = float_sums(query[:, t], state)
    return out, state
