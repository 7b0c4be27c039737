"""Builder methods of graphs, made from operations' declarations by `tests/helpers/operations_stub.py`."""
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from graphq.dtypes import DTypeLike
from graphq.ir import Graph
from graphq.ir.node import Number, Value
from graphq.ir.op import Op

def add_method(name: str, method: Callable[..., Any]) -> None: ...

def add_builder(op: Op) -> None: ...

class Operations:
    def abs(self, src: Number, /, *, name: str | None = None) -> Value:
        """`|src|` (oneDNN Abs)."""

    def square(self, src: Number, /, *, name: str | None = None) -> Value:
        """`src**2` (oneDNN Square)."""

    def sqrt(self, src: Number, /, *, name: str | None = None) -> Value:
        """Square root (oneDNN Sqrt). NaN below zero."""

    def reciprocal(self, src: Number, /, *, name: str | None = None) -> Value:
        """`1 / src` (oneDNN Reciprocal)."""

    def round(self, src: Number, /, *, name: str | None = None) -> Value:
        """The nearest integer, ties to even (oneDNN Round)."""

    def floor(self, src: Number, /, *, name: str | None = None) -> Value:
        """The greatest integer <= `src` (ONNX Floor)."""

    def ceil(self, src: Number, /, *, name: str | None = None) -> Value:
        """The least integer >= `src` (ONNX Ceil)."""

    def sign(self, src: Number, /, *, name: str | None = None) -> Value:
        """-1, 0 or 1 by the sign of `src` (ONNX Sign). NaN stays NaN."""

    def exp(self, src: Number, /, *, name: str | None = None) -> Value:
        """`e**src` (oneDNN Exp)."""

    def log(self, src: Number, /, *, name: str | None = None) -> Value:
        """Natural logarithm (oneDNN Log). -inf at zero, NaN below."""

    def tanh(self, src: Number, /, *, name: str | None = None) -> Value:
        """Hyperbolic tangent (oneDNN Tanh)."""

    def sigmoid(self, src: Number, /, *, name: str | None = None) -> Value:
        """`1 / (1 + exp(-src))` (oneDNN Sigmoid)."""

    def erf(self, src: Number, /, *, name: str | None = None) -> Value:
        """The error function (ONNX Erf)."""

    def gelu(self, src: Number, /, *, mode: Literal['gelu_erf', 'gelu_tanh'] = 'gelu_erf',
             name: str | None = None) -> Value:
        """Gaussian error linear unit (oneDNN GELU). NaN at -inf, by the formulas.

        gelu_erf: `src/2 * (1 + erf(src / sqrt(2)))`; gelu_tanh: `src/2 * (1 + tanh(sqrt(2/pi) * (src + 0.044715 src**3)))`.
        """

    def mish(self, src: Number, /, *, name: str | None = None) -> Value:
        """`src * tanh(log(1 + exp(src)))` (oneDNN Mish). NaN at -inf, by the formula."""

    def softplus(self, src: Number, /, *, beta: float = 1.0, name: str | None = None) -> Value:
        """`log(1 + exp(beta * src)) / beta` (oneDNN SoftPlus)."""

    def pow(self, src: Number, /, *, beta: float, name: str | None = None) -> Value:
        """`src**beta` (oneDNN Pow). NaN below zero if beta is not an integer. For beta 3: src * src * src."""

    def type_cast(self, src: Number, /, *, dtype: DTypeLike, name: str | None = None) -> Value:
        """`src` as `dtype`, rounded to nearest even (oneDNN TypeCast). Numbers beyond the range become infinities."""

    def relu(self, src: Number, /, *, name: str | None = None) -> Value:
        """`max(src, 0)` (oneDNN ReLU). NaN and -0 stay."""

    def clamp(self, src: Number, /, *, min: float, max: float, name: str | None = None) -> Value:
        """`src` limited to [min, max] (oneDNN Clamp). NaN stays NaN, and -0 stays -0 if min is not positive."""

    def leaky_relu(self, src: Number, /, *, alpha: float, name: str | None = None) -> Value:
        """`src` where `src >= 0`, else `alpha * src` (oneDNN LeakyReLU). NaN stays."""

    def elu(self, src: Number, /, *, alpha: float, name: str | None = None) -> Value:
        """`src` where `src >= 0`, else `alpha * (exp(src) - 1)` (oneDNN Elu). NaN stays."""

    def hard_sigmoid(self, src: Number, /, *, alpha: float, beta: float, name: str | None = None) -> Value:
        """`max(0, min(1, alpha * src + beta))` (oneDNN HardSigmoid). NaN stays."""

    def hard_swish(self, src: Number, /, *, name: str | None = None) -> Value:
        """`src * max(0, min(1, src * f32(1/6) + 1/2))` (oneDNN HardSwish, ONNX's numbers). NaN at -inf, by the formula."""

    def sin(self, src: Number, /, *, name: str | None = None) -> Value:
        """The sine, of radians (ONNX Sin)."""

    def cos(self, src: Number, /, *, name: str | None = None) -> Value:
        """The cosine, of radians (ONNX Cos)."""

    def tan(self, src: Number, /, *, name: str | None = None) -> Value:
        """The tangent, of radians (ONNX Tan)."""

    def asin(self, src: Number, /, *, name: str | None = None) -> Value:
        """The angle in [-pi/2, pi/2] whose sine is `src` (ONNX Asin). NaN outside [-1, 1]."""

    def acos(self, src: Number, /, *, name: str | None = None) -> Value:
        """The angle in [0, pi] whose cosine is `src` (ONNX Acos). NaN outside [-1, 1]."""

    def atan(self, src: Number, /, *, name: str | None = None) -> Value:
        """The angle in [-pi/2, pi/2] whose tangent is `src` (ONNX Atan)."""

    def sinh(self, src: Number, /, *, name: str | None = None) -> Value:
        """The hyperbolic sine, `(exp(src) - exp(-src)) / 2` (ONNX Sinh)."""

    def cosh(self, src: Number, /, *, name: str | None = None) -> Value:
        """The hyperbolic cosine, `(exp(src) + exp(-src)) / 2` (ONNX Cosh)."""

    def asinh(self, src: Number, /, *, name: str | None = None) -> Value:
        """The number whose hyperbolic sine is `src` (ONNX Asinh)."""

    def acosh(self, src: Number, /, *, name: str | None = None) -> Value:
        """The number from 0 on whose hyperbolic cosine is `src` (ONNX Acosh). NaN below 1."""

    def atanh(self, src: Number, /, *, name: str | None = None) -> Value:
        """The number whose hyperbolic tangent is `src` (ONNX Atanh). Infinite at -1 and 1, NaN beyond."""

    def add(self, src_0: Number, src_1: Number, /, *, auto_broadcast: Literal['none', 'numpy'] = 'numpy',
            dtype: DTypeLike | None = None, name: str | None = None) -> Value:
        """`src_0 + src_1` (oneDNN Add). s32 wraps."""

    def subtract(self, src_0: Number, src_1: Number, /, *, auto_broadcast: Literal['none', 'numpy'] = 'numpy',
                 dtype: DTypeLike | None = None, name: str | None = None) -> Value:
        """`src_0 - src_1` (oneDNN Subtract). s32 wraps."""

    def multiply(self, src_0: Number, src_1: Number, /, *, auto_broadcast: Literal['none', 'numpy'] = 'numpy',
                 dtype: DTypeLike | None = None, name: str | None = None) -> Value:
        """`src_0 * src_1` (oneDNN Multiply)."""

    def divide(self, src_0: Number, src_1: Number, /, *, auto_broadcast: Literal['none', 'numpy'] = 'numpy',
               dtype: DTypeLike | None = None, name: str | None = None) -> Value:
        """`src_0 / src_1` (oneDNN Divide). Division by zero gives an infinity, or NaN for 0 / 0."""

    def maximum(self, src_0: Number, src_1: Number, /, *, auto_broadcast: Literal['none', 'numpy'] = 'numpy',
                name: str | None = None) -> Value:
        """`max(src_0, src_1)` (oneDNN Maximum), IEEE 754-2019 `maximum`: NaN when either is NaN, and -0 < +0."""

    def minimum(self, src_0: Number, src_1: Number, /, *, auto_broadcast: Literal['none', 'numpy'] = 'numpy',
                name: str | None = None) -> Value:
        """`min(src_0, src_1)` (oneDNN Minimum), IEEE 754-2019 `minimum`: NaN when either is NaN, and -0 < +0."""

    def squared_difference(self, src_0: Number, src_1: Number, /, *, auto_broadcast: Literal['none', 'numpy'] = 'numpy',
                           name: str | None = None) -> Value:
        """`(src_0 - src_1)**2` (oneDNN SquaredDifference)."""

    def greater_equal(self, src_0: Number, src_1: Number, /, *, auto_broadcast: Literal['none', 'numpy'] = 'numpy',
                      name: str | None = None) -> Value:
        """`src_0 >= src_1` as boolean (oneDNN GreaterEqual). False when either is NaN."""

    def select(self, cond: Number, src_0: Number, src_1: Number, /, *,
               auto_broadcast: Literal['none', 'numpy'] = 'numpy', name: str | None = None) -> Value:
        """`src_0` where `cond` is true, else `src_1` (oneDNN Select)."""

    def prelu(self, src: Number, slope: Number, /, *, data_format: Literal['NCX', 'NXC'] = 'NXC',
              per_channel_broadcast: bool = True, name: str | None = None) -> Value:
        """`src` where `src >= 0`, else `slope * src` (oneDNN PReLU). NaN stays NaN.

        A 1-D slope varies along the channel axis of `data_format`, or the last axis if `per_channel_broadcast` is false. A
        slope of higher rank broadcasts to `src` as in NumPy.
        """

    def cast(self, src: Number, /, *, dtype: DTypeLike, name: str | None = None) -> Value:
        """`src` as `dtype` (ONNX Cast). Floats round to nearest even, integers towards zero; booleans are `src != 0`.

        Integers beyond the range wrap; so do floats cast to integers of 4 and 2 bits, by way of s32. Floats beyond the
        range of other integers, or of floats of 8 bits or fewer, become the nearest end of the range. NaN becomes 0 in
        types without NaN. This holds on every CPU; ONNX does not define all of it. f8_e8m0 has the magnitude, rounded up to
        a power of two, and NaN for infinities.
        """

    def bit_cast(self, src: Number, /, *, dtype: DTypeLike, name: str | None = None) -> Value:
        """The bits of `src` as another dtype of the same width (ONNX BitCast). As booleans, all bits but 0 are true."""

    def arithmetic(self, src_0: Number, src_1: Number, /, *,
                   function: Literal['add', 'subtract', 'multiply', 'divide', 'maximum', 'minimum', 'modulo', 'remainder', 'and', 'or', 'xor', 'shift_left', 'shift_right'],
                   name: str | None = None) -> Value:
        """Apply `function` to two operands of one dtype. Integers wrap; quotients of integers are truncated towards zero.

        The result of modulo (ONNX Mod) has the sign of `src_1`; the result of remainder (fmod) has the sign of `src_0`.
        Shifts by as many bits as the dtype has, or more, leave only the sign.
        Raises InputError if an integer is divided by zero.
        """

    def choose(self, cond: Number, src_0: Number, src_1: Number, /, *, name: str | None = None) -> Value:
        """`src_0` where `cond` is true, else `src_1`: like `select`, but for every dtype (ONNX Where)."""

    def equal(self, src_0: Number, src_1: Number, /, *, name: str | None = None) -> Value:
        """`src_0 == src_1` (ONNX Equal). False when either is NaN."""

    def greater(self, src_0: Number, src_1: Number, /, *, name: str | None = None) -> Value:
        """`src_0 > src_1` (ONNX Greater). False when either is NaN."""

    def less(self, src_0: Number, src_1: Number, /, *, name: str | None = None) -> Value:
        """`src_0 < src_1` (ONNX Less). False when either is NaN."""

    def less_equal(self, src_0: Number, src_1: Number, /, *, name: str | None = None) -> Value:
        """`src_0 <= src_1` (ONNX LessOrEqual). False when either is NaN."""

    def logical_and(self, src_0: Number, src_1: Number, /, *, name: str | None = None) -> Value:
        """True where both operands are true (ONNX And)."""

    def logical_or(self, src_0: Number, src_1: Number, /, *, name: str | None = None) -> Value:
        """True where at least one operand is true (ONNX Or)."""

    def logical_xor(self, src_0: Number, src_1: Number, /, *, name: str | None = None) -> Value:
        """True where exactly one operand is true (ONNX Xor)."""

    def logical_not(self, src: Number, /, *, name: str | None = None) -> Value:
        """True where `src` is false (ONNX Not)."""

    def is_nan(self, src: Number, /, *, name: str | None = None) -> Value:
        """True where `src` is NaN (ONNX IsNaN)."""

    def is_inf(self, src: Number, /, *, detect_negative: bool = True, detect_positive: bool = True,
               name: str | None = None) -> Value:
        """True where `src` is an infinity of a chosen sign (ONNX IsInf)."""

    def rotary_embedding(self, src: Number, cos: Number, sin: Number, /, *, interleaved: bool = False,
                         name: str | None = None) -> Value:
        """Turn pairs of elements of each row of `src` by angles: rotary position embedding (ONNX RotaryEmbedding).

        A pair (x, y) becomes (cos * x - sin * y, sin * x + cos * y). If `interleaved`, the pairs are the elements 2k and
        2k + 1 of a row, otherwise k and half + k. Elements behind the pairs stay. Rows of `cos` and `sin` broadcast.
        """

    def cached_attention(self, query: Number, lengths: Number, total: Number, key: Number | None = None,
                         value: Number | None = None, past_key: Number | None = None, past_value: Number | None = None,
                         cos: Number | None = None, sin: Number | None = None, positions: Number | None = None,
                         bias: Number | None = None, sinks: Number | None = None, key_scale: Number | None = None,
                         value_scale: Number | None = None, /, *, heads: int, groups: int, scale: float,
                         softcap: float = 0.0, window: int = 0, causal: bool = True, interleaved: bool = False,
                         kept: Literal['f32', 'bf16', 'f16', 's8', 's4'] = 'f32', capacity: int = -1,
                         name: str | None = None) -> Any:
        """Attention of new tokens to themselves and to earlier tokens, with a KV cache.

        Results: the output [batch, tokens, heads * size], and the new key and value caches [batch, groups, rows, size]. A
        new cache has the rows of the earlier tokens, then the rows of the new tokens, then zeros. It has max(rows of
        `past_key`, `total`) rows. Without past caches, it has one row for each new token.

        Batch element n has `lengths[n]` + 1 valid tokens, including the new tokens. `lengths` and the order of heads are as
        in com.microsoft's GroupQueryAttention. If `key` and `value` [batch, tokens, groups * size] are absent, `query`
        [batch, tokens, heads * size] has them in further columns. All heads of a group share keys and values.

        Rotary embedding: `cos` and `sin` [positions, half] rotate queries and keys. `positions` [batch, tokens] has each
        token's row in `cos` and `sin`; the default is the token's row in the cache. If `interleaved`, elements 2k and 2k +
        1 of a head are rotated together; otherwise elements k and half + k are.

        With `causal`, a token attends to no later keys. If `window` is positive, a token attends to the last `window` keys.
        `softcap`, `bias` [1 or batch, 1 or heads, tokens, keys] and `sinks` [heads] are parts of the formula in
        graphq.kernels.numbers.attention. `kept` is the element type of the caches. Caches of s4 are u8 with two elements in
        each byte. Caches of s8 and s4 have scales [groups, size]. `capacity` is the number of rows of the new caches, or -1
        if only the run determines it.

        Raises InputError for lengths below 1, lengths that the caches cannot hold, and positions outside of `cos`.
        """

    def if_else(self, cond: Number, *srcs: Number | None, then_body: Graph, else_body: Graph,
                name: str | None = None) -> Any:
        """The results of `then_body` if `cond` is true, else of `else_body`, on the operands `srcs` (ONNX If)."""

    def loop(self, trips: Number, cond: Number, *srcs: Number | None, body: Graph, states: int,
             name: str | None = None) -> Any:
        """Run `body` while `cond` holds, at most `trips` times (ONNX Loop).

        `srcs` are the initial states (`states` of them), and other operands. The body takes (iteration, cond, states, other
        operands) and returns (cond, states, values). The results are the last states, then the values of all iterations,
        stacked along a new first axis. States and values may grow with each iteration; raises CompileError if they exceed
        the memory limit (`graphq.base.budget`).
        """

    def scan(self, *srcs: Number | None, body: Graph, states: int, scanned: int, input_axes: Sequence[int] | np.ndarray,
             reverse_inputs: Sequence[bool], output_axes: Sequence[int] | np.ndarray, reverse_outputs: Sequence[bool],
             name: str | None = None) -> Any:
        """Run `body` for each slice of the scanned operands along their axes (ONNX Scan, version 9).

        `srcs` are the initial states (`states` of them), the scanned operands (`scanned` of them), and others. The body
        takes (states, slices, others) and returns (states, values). The results are the last states, and the values stacked
        along `output_axes`. `reverse_inputs` and `reverse_outputs` say which operands and results run backwards.
        """

    def partition(self, *operands: Number | None, body: Graph, anchor: str, ties: str = 'settled',
                  name: str | None = None) -> Any:
        """Fused operations: one kernel computes the graph `body`. `anchor` names the kernel's family.

        With `ties="formula"`, outputs near a rounding tie follow from the kernel's exact sum (docs/numbers.md).
        """

    def convolution(self, src: Number, weights: Number, bias: Number | None = None, /, *,
                    strides: int | Sequence[int] | np.ndarray = 1, pads_begin: int | Sequence[int] | np.ndarray = 0,
                    pads_end: int | Sequence[int] | np.ndarray = 0, dilations: int | Sequence[int] | np.ndarray = 1,
                    auto_pad: Literal['none', 'same_upper', 'same_lower', 'valid'] = 'none', groups: int = 1,
                    data_format: Literal['NCX', 'NXC'] = 'NXC', weights_format: Literal['OIX', 'XIO'] = 'XIO',
                    dtype: DTypeLike | None = None, name: str | None = None) -> Value:
        """Convolution over any number of spatial axes (oneDNN Convolution), without reversing the kernel.

        If `auto_pad` is not none, `pads_begin` and `pads_end` are ignored. same_upper and same_lower pad such that the
        output has ceil(size / stride) elements; if the number of added elements is odd, same_upper adds one more at the
        end, and same_lower at the beginning. Products are summed in f64 and rounded to f32 once. The bias is added in f32.
        Then the result is rounded to `dtype` (None: the dtype of `src`).
        """

    def conv_transpose(self, src: Number, weights: Number, bias: Number | None = None, /, *,
                       strides: int | Sequence[int] | np.ndarray = 1, pads_begin: int | Sequence[int] | np.ndarray = 0,
                       pads_end: int | Sequence[int] | np.ndarray = 0, dilations: int | Sequence[int] | np.ndarray = 1,
                       auto_pad: Literal['none', 'same_upper', 'same_lower', 'valid'] = 'none',
                       output_padding: Sequence[int] | np.ndarray | None = None, groups: int = 1,
                       data_format: Literal['NCX', 'NXC'] = 'NXC',
                       weights_format: Literal['OIX', 'XIO', 'IOX', 'XOI'] = 'XOI', dtype: DTypeLike | None = None,
                       name: str | None = None) -> Value:
        """The transpose of a convolution: each element of `src` adds a multiple of the kernel (oneDNN ConvTranspose).

        In all weights formats, I is the channels of `src`, and O is the output's channels divided by `groups`. oneDNN 3.13
        implements IOX and XOI (its default), although its documentation says OIX and XIO. The pads are cut off the full
        result, and `output_padding` zeros are added at the result's end. Sums are in f64 and rounded to f32 once. The bias
        is added in f32. Then the result is rounded to `dtype` (None: the dtype of `src`).
        """

    def dropout(self, src: Number, seed: Number, offset: Number, probability: Number, /, *, keep_mask: bool = False,
                name: str | None = None) -> Any:
        """`src / (1 - p)` if a random number in [0, 1) is above the probability p, else 0 (oneDNN Dropout).

        With `keep_mask`, the second output is oneDNN's optional mask, u8: 1 for kept elements, else 0.

        The random numbers are oneDNN's (3.13, measured). Element i in row-major order gets word i % 4 of Philox 4x32-10
        with the 64-bit key `seed` and the counter (offset, b), b = i - i % 4. If the offset is 0, element i gets word 2
        with the counter (b, b + 1, b, b + 3). Both halves of the key are then the low half of the seed.
        """

    def dequantize(self, src: Number, /, *, qtype: Literal['per_tensor', 'per_channel'] = 'per_tensor', axis: int = 1,
                   scales: float | Sequence[float] | np.ndarray, zps: int | Sequence[int] | np.ndarray | None = None,
                   group_axis: int | None = None, name: str | None = None) -> Value:
        """`(src - zps) * scales` as f32, with an exact s32 difference (oneDNN Dequantize; s32 as in ONNX, zero point 0).

        per_channel has one scale and zero point for each index along `axis`. `group_axis` is for weights of transposed
        convolutions: `src` is split along this axis into (number of scales / number of channels) groups, and channel c of
        group k has scale `k * channels + c`.
        """

    def quantize(self, src: Number, /, *, dtype: DTypeLike, qtype: Literal['per_tensor', 'per_channel'] = 'per_tensor',
                 axis: int = 1, scales: float | Sequence[float] | np.ndarray,
                 zps: int | Sequence[int] | np.ndarray | None = None, name: str | None = None) -> Value:
        """`saturate(rint(src / scales) + zps)`, ties to even (oneDNN Quantize). NaN becomes the zero point.

        For f8 the result is `src / scales` rounded to nearest even. Quotients beyond the range, infinities included, become
        the greatest finite value with the same sign, and NaN stays NaN (ONNX Cast, saturate=1).
        """

    def quantize_linear(self, src: Number, scale: Number, zero_point: Number | None = None, /, *, dtype: DTypeLike,
                        axis: int = 1, block_size: int = 0, saturate: bool = True, precision: DTypeLike = ...,
                        name: str | None = None) -> Value:
        """`saturate(rint(src / scale) + zero_point)`, ties to even (ONNX QuantizeLinear). NaN becomes the zero point.

        The quotient is rounded to `precision`. If `dtype` is a float, the quotient, plus the zero point if given, is
        then rounded to nearest even; NaN stays NaN, or becomes 0 in types without NaN. Results beyond the range, infinities
        included, become the greatest finite value with the same sign. Without `saturate` these become infinities, or NaN in
        a dtype without infinities.
        """

    def dequantize_linear(self, src: Number, scale: Number, zero_point: Number | None = None, /, *,
                          dtype: DTypeLike = ..., axis: int = 1, block_size: int = 0, name: str | None = None) -> Value:
        """`(src - zero_point) * scale` in f32, with an exact difference, rounded to `dtype` (ONNX DequantizeLinear)."""

    def dynamic_quantize(self, src: Number, scales: Number, zps: Number | None = None, /, *, dtype: DTypeLike,
                         qtype: Literal['per_tensor', 'per_channel'] = 'per_tensor', axis: int = 1,
                         name: str | None = None) -> Value:
        """`saturate(rint(src / scales) + zps)`, ties to even, as in quantize (oneDNN DynamicQuantize).

        Scales may be 0 or negative. NaN becomes the zero point, saturated. oneDNN's operation has no f8 results;
        graphq computes f8 as in quantize.
        """

    def dynamic_dequantize(self, src: Number, scales: Number, zps: Number | None = None, /, *,
                           qtype: Literal['per_tensor', 'per_channel', 'per_group'] = 'per_tensor', axis: int = 1,
                           group_shape: Sequence[int] | np.ndarray = (), dtype: DTypeLike | None = None,
                           name: str | None = None) -> Value:
        """`(src - zps) * scales` in f32, with an exact difference, rounded to `dtype` (oneDNN DynamicDequantize).

        For per_group, `group_shape` is the size of a block along each axis, and scales and zps have one value for each
        block. A `dtype` of None means the dtype of the scales.
        """

    def interpolate(self, src: Number, sizes_tensor: Number | None = None, /, *,
                    mode: Literal['nearest', 'linear', 'bilinear', 'trilinear'],
                    coordinate_transformation_mode: Literal['half_pixel', 'align_corners', 'asymmetric'] = 'half_pixel',
                    sizes: Sequence[int] | np.ndarray = (), scales: float | Sequence[float] | np.ndarray = (),
                    data_format: Literal['NCX', 'NXC'] = 'NXC', name: str | None = None) -> Value:
        """Resize the spatial axes (oneDNN Interpolate).

        Element o of an output axis lies at position `(o + 1/2) * old / new - 1/2` of `src` (half_pixel), at `o * (old
        - 1) / (new - 1)` (align_corners), or at `o * old / new` (asymmetric; not in oneDNN). As in oneDNN, `scales` only
        determine the new sizes. Positions outside of `src` move to its first or last element.

        Mode nearest reads the nearest element; of two equally near elements, it reads the one of higher index. The modes
        linear, bilinear and trilinear are the same: the weighted mean of the two neighbors along every axis. Positions and
        means are computed as in ONNX Runtime's CPU kernel, step by step in f32.
        """

    def grid_sample(self, src: Number, grid: Number, /, *, mode: Literal['linear', 'nearest', 'cubic'] = 'linear',
                    padding_mode: Literal['zeros', 'border', 'reflection'] = 'zeros', align_corners: bool = False,
                    name: str | None = None) -> Value:
        """Sample `src` [N, C, ...] at the points `grid` [N, ..., k] (ONNX GridSample, as ONNX Runtime computes it).

        A point's k coordinates go from the last spatial axis to the first. With `align_corners`, the coordinates -1 and 1
        are the centers of the first and last element of an axis; otherwise they are the outer edges of these elements.
        Outside of the image, `padding_mode` zeros gives 0, border gives the nearest element, and reflection mirrors the
        image at its edges.
        """

    def matmul(self, src: Number, weights: Number, bias: Number | None = None, /, *, transpose_a: bool = False,
               transpose_b: bool = False,
               accumulation_mode: Literal['strict', 'relaxed', 'any', 'f32', 's32', 'f16'] = 'strict',
               dtype: DTypeLike | None = None, name: str | None = None) -> Value:
        """`src @ weights + bias` (oneDNN MatMul). The optional bias is [n] or broadcasts to the result.

        Ranks are as in numpy.matmul. `transpose_a` and `transpose_b` swap the last two dimensions; they do not change a 1-D
        operand. Products are summed in f64 and rounded to f32 once for any `accumulation_mode`. The bias is added in f32.
        Then the result is rounded to `dtype` (None: the dtype of `src`).
        """

    def bias_add(self, src: Number, bias: Number, /, *, data_format: Literal['NCX', 'NXC'] = 'NXC',
                 name: str | None = None) -> Value:
        """`src + bias`, with one element of `bias` for each channel: axis 1 in NCX, the last in NXC (oneDNN BiasAdd)."""

    def matmul_integer(self, a: Number, b: Number, a_zero_point: Number | None = None,
                       b_zero_point: Number | None = None, /, *, name: str | None = None) -> Value:
        """`(a - a_zero_point) @ (b - b_zero_point)` as s32 (ONNX MatMulInteger). s32 wraps."""

    def conv_integer(self, src: Number, weights: Number, src_zero_point: Number | None = None,
                     weights_zero_point: Number | None = None, /, *, strides: int | Sequence[int] | np.ndarray = 1,
                     pads_begin: int | Sequence[int] | np.ndarray = 0, pads_end: int | Sequence[int] | np.ndarray = 0,
                     dilations: int | Sequence[int] | np.ndarray = 1,
                     auto_pad: Literal['none', 'same_upper', 'same_lower', 'valid'] = 'none', groups: int = 1,
                     name: str | None = None) -> Value:
        """The convolution of `src - src_zero_point` with weights [o, c / groups, ...] as s32 (ONNX ConvInteger).

        `src` is [n, c, ...]. Padding has the value of the zero point.
        """

    def dynamic_range(self, src: Number, /, *, name: str | None = None) -> tuple[Value, Value]:
        """The scale and zero point that make u8 cover all of `src` and 0 (ONNX DynamicQuantizeLinear).

        With top = max(src, 0) and low = min(src, 0): `scale = (top - low) / 255`, or 1 / 255 if both are 0; `zero_point =
        rint(clip(-low / scale, 0, 255))`, all in f32.
        """

    def gather(self, src: Number, indices: Number, /, *, axis: int = 0, name: str | None = None) -> Value:
        """Take `src` at `indices` along `axis` (ONNX Gather). Raises InputError for an index outside of [-size, size)."""

    def slice(self, src: Number, /, *, axes: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray,
              ends: Sequence[int] | np.ndarray, steps: Sequence[int] | np.ndarray, name: str | None = None) -> Value:
        """Every `step`-th element from `start` up to, but not including, `end`, along each axis (ONNX Slice)."""

    def pad(self, src: Number, /, *, pads_begin: Sequence[int] | np.ndarray, pads_end: Sequence[int] | np.ndarray,
            mode: Literal['constant', 'edge', 'reflect', 'wrap'] = 'constant', value: float = 0.0,
            name: str | None = None) -> Value:
        """`src` with elements added at both ends of each axis (ONNX Pad). Negative pads remove elements.

        The new elements are `value`, or depend on `mode` as in numpy.pad.
        """

    def expand(self, src: Number, /, *, shape: Sequence[int] | np.ndarray, name: str | None = None) -> Value:
        """`src` repeated along dimensions of 1, so that it has its broadcast shape with `shape` (ONNX Expand)."""

    def concat(self, *srcs: Number | None, axis: int, name: str | None = None) -> Value:
        """Join the operands along `axis` (oneDNN Concat)."""

    def reorder(self, src: Number, /, *, name: str | None = None) -> Value:
        """`src` itself (oneDNN Reorder). oneDNN changes the memory layout, but no element."""

    def gen_index(self, src: Number, /, *, axis: int, name: str | None = None) -> Value:
        """Each element's index along `axis` (oneDNN GenIndex)."""

    def end(self, src: Number, /, *, name: str | None = None) -> Any:
        """Mark `src` as used outside of the graph (oneDNN End)."""

    def wildcard(self, *srcs: Number | None, dtypes: Sequence[DTypeLike] = (),
                 shapes: Sequence[Sequence[int] | np.ndarray] | None = None, name: str | None = None) -> Any:
        """A placeholder for an operation that oneDNN Graph does not know (oneDNN Wildcard). It cannot run.

        `dtypes` and `shapes` (-1: an unknown dimension) are the types of the outputs. A run raises GraphError.
        """

    def static_reshape(self, src: Number, /, *, shape: Sequence[int] | np.ndarray, special_zero: bool = False,
                       name: str | None = None) -> Value:
        """The elements of `src` in row-major order, in the shape `shape` (oneDNN StaticReshape).

        One dimension may be -1: it follows from the others. With `special_zero`, a 0 means the dimension of `src` at the
        same position.
        """

    def static_transpose(self, src: Number, /, *, order: Sequence[int] | np.ndarray, name: str | None = None) -> Value:
        """Axis k of the result is axis `order[k]` of `src` (oneDNN StaticTranspose). `order` may be negative."""

    def batch_norm_inference(self, src: Number, gamma: Number, beta: Number, mean: Number, variance: Number, /, *,
                             epsilon: float, data_format: Literal['NCX', 'NXC'] = 'NXC',
                             name: str | None = None) -> Value:
        """`gamma * (src - mean) / sqrt(variance + epsilon) + beta` for each channel (oneDNN BatchNormInference)."""

    def layer_norm(self, src: Number, gamma: Number | None = None, beta: Number | None = None, /, *,
                   keep_stats: bool = True, begin_norm_axis: int = -1, use_affine: bool = True, epsilon: float = 1e-05,
                   name: str | None = None) -> Any:
        """`(src - mean) / sqrt(variance + epsilon)` over the axes from `begin_norm_axis` on (oneDNN LayerNorm).

        With `use_affine` the result is multiplied by `gamma`, and `beta` is added; otherwise both are ignored. With
        `keep_stats`, the second and third outputs are the means and variances, one for each index along the earlier axes,
        in gamma's dtype (f32 without gamma).
        """

    def group_norm(self, src: Number, gamma: Number | None = None, beta: Number | None = None, /, *, groups: int,
                   keep_stats: bool = True, use_affine: bool = True, epsilon: float = 1e-05,
                   data_format: Literal['NCX', 'NXC'] = 'NXC', name: str | None = None) -> Any:
        """`(src - mean) / sqrt(variance + epsilon)` over each group of channels of each image (oneDNN GroupNorm).

        With `use_affine` the result is multiplied by `gamma`, and `beta` is added; both have one element per channel.
        Statistics [n, groups] are as in layer_norm.
        """

    def rms_norm(self, src: Number, gamma: Number | None = None, /, *, epsilon: float = 1e-05,
                 begin_norm_axis: int = -1, name: str | None = None) -> Value:
        """`src / sqrt(mean(src**2) + epsilon)` over the axes from `begin_norm_axis` on, times gamma (oneDNN RMSNorm)."""

    def lrn(self, src: Number, /, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0,
            data_format: Literal['NCX', 'NXC'] = 'NXC', name: str | None = None) -> Value:
        """`src / (bias + alpha * mean(src**2))**beta`: local response normalization across channels (ONNX LRN).

        The mean is over `size` channels, from `(size - 1) // 2` before the element's channel to `size // 2` after it.
        Channels that do not exist count as zeros.
        """

    def softmax(self, src: Number, /, *, axis: int = 1, mode: Literal['none', 'inf_as_zero', 'stepwise'] = 'none',
                dtype: DTypeLike | None = None, keep_stats: bool = False, name: str | None = None) -> Any:
        """`exp(src - max) / sum(exp(src - max))` along `axis`, in f64, rounded to f32 once (oneDNN SoftMax).

        A row of only -inf becomes NaN, or zeros in mode inf_as_zero. The output has `dtype` (None: the dtype of `src`).
        With `keep_stats`, the second output is oneDNN's optional stats, `max + log(sum(exp(src - max)))`, f32.

        Mode stepwise, for f16 and bf16, rounds the differences, the powers, their sum and the quotients to the dtype of
        `src`, as in ONNX's function for Softmax.
        """

    def log_softmax(self, src: Number, /, *, axis: int = -1, name: str | None = None) -> Value:
        """`src - max - log(sum(exp(src - max)))` along `axis`, in f64, rounded to f32 once (oneDNN LogSoftmax)."""

    def arg_max(self, src: Number, /, *, axis: int = 0, keep_dims: bool = True, select_last_index: bool = False,
                name: str | None = None) -> Value:
        """The index of the greatest element along `axis` (ONNX ArgMax): the first or the last of equal elements."""

    def arg_min(self, src: Number, /, *, axis: int = 0, keep_dims: bool = True, select_last_index: bool = False,
                name: str | None = None) -> Value:
        """The index of the least element along `axis` (ONNX ArgMin): the first or the last of equal elements."""

    def top_k(self, src: Number, /, *, k: int, axis: int = -1, largest: bool = True,
              name: str | None = None) -> tuple[Value, Value]:
        """The `k` greatest or least elements along `axis`, sorted stably, and their indices (ONNX TopK, sorted=1)."""

    def cum_sum(self, src: Number, /, *, axis: int, exclusive: bool = False, reverse: bool = False,
                name: str | None = None) -> Value:
        """Cumulative sums along `axis`, in the dtype of `src` (ONNX CumSum).

        Each sum is the previous sum plus an element. With `exclusive`, a sum leaves out the element at its own index;
        `reverse` starts at the end.
        """

    def cum_prod(self, src: Number, /, *, axis: int, exclusive: bool = False, reverse: bool = False,
                 name: str | None = None) -> Value:
        """Cumulative products along `axis`, in the dtype of `src` (ONNX CumProd); attributes as in `cum_sum`."""

    def gather_elements(self, src: Number, indices: Number, /, *, axis: int = 0, name: str | None = None) -> Value:
        """`src` at each index along `axis`, and at the index's own position on other axes (ONNX GatherElements)."""

    def gather_nd(self, src: Number, indices: Number, /, *, batch_dims: int = 0, name: str | None = None) -> Value:
        """Elements or slices of `src` at index tuples (ONNX GatherND). The first `batch_dims` axes are batches."""

    def scatter_elements(self, src: Number, indices: Number, updates: Number, /, *, axis: int = 0,
                         reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
                         name: str | None = None) -> Value:
        """`src` with `updates` at `indices` along `axis` (ONNX ScatterElements), combined in order by `reduction`."""

    def scatter_nd(self, src: Number, indices: Number, updates: Number, /, *,
                   reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none', name: str | None = None) -> Value:
        """`src` with `updates` (elements or slices) at index tuples, combined by `reduction` (ONNX ScatterND)."""

    def trilu(self, src: Number, /, *, upper: bool = True, k: int = 0, name: str | None = None) -> Value:
        """The triangle of each matrix from diagonal `k` upwards or downwards; other elements become 0 (ONNX Trilu)."""

    def non_max_suppression(self, boxes: Number, scores: Number, most: Number | None = None,
                            iou_threshold: Number | None = None, score_threshold: Number | None = None, /, *,
                            center_point_box: bool = False, name: str | None = None) -> Value:
        """Non-maximum suppression: drop each box that overlaps a better box of its class by more than `iou_threshold`.

        The result has a row (image, class, box) for each kept box (ONNX NonMaxSuppression, in f32 as in ONNX Runtime).
        Within a class, better scores come first; boxes of equal scores keep their order. At most `most` boxes of a class
        are kept, and no boxes if `most` is absent. Boxes with a score of at most `score_threshold` are dropped. A box is
        two opposite corners (y, x, y, x), or with `center_point_box` the center, width and height (x, y, w, h).
        """

    def max_pool(self, src: Number, /, *, strides: int | Sequence[int] | np.ndarray = 1,
                 pads_begin: int | Sequence[int] | np.ndarray = 0, pads_end: int | Sequence[int] | np.ndarray = 0,
                 kernel: int | Sequence[int] | np.ndarray, rounding_type: Literal['floor', 'ceil'] = 'floor',
                 auto_pad: Literal['none', 'same_upper', 'same_lower', 'valid'] = 'none',
                 dilations: int | Sequence[int] | np.ndarray | None = None, data_format: Literal['NCX', 'NXC'] = 'NXC',
                 name: str | None = None) -> Value:
        """The greatest element of each window, NaN if one is NaN (oneDNN MaxPool). Padding counts as -inf."""

    def avg_pool(self, src: Number, /, *, strides: int | Sequence[int] | np.ndarray = 1,
                 pads_begin: int | Sequence[int] | np.ndarray = 0, pads_end: int | Sequence[int] | np.ndarray = 0,
                 kernel: int | Sequence[int] | np.ndarray, exclude_pad: bool, in_order: bool = False,
                 rounding_type: Literal['floor', 'ceil'] = 'floor',
                 auto_pad: Literal['none', 'same_upper', 'same_lower', 'valid'] = 'none',
                 data_format: Literal['NCX', 'NXC'] = 'NXC', name: str | None = None) -> Value:
        """The mean of each window in f32 (oneDNN AvgPool). `auto_pad` is as in convolution.

        Elements are added in the order of `pool_order` (graphq.kernels.numbers.mean_sums). With `in_order` (not in oneDNN)
        they are added from the first tap of the window to the last. Padding counts as zeros. With `exclude_pad` padding
        does not count, and a window of only padding becomes NaN. If the output size is rounded up, a window may reach
        beyond the padding. Elements there never count, as in ONNX; oneDNN refuses such windows without `exclude_pad`.
        """

    def non_zero(self, src: Number, /, *, name: str | None = None) -> Value:
        """The positions of elements other than 0 in row-major order, one position per column (ONNX NonZero)."""

    def unique(self, src: Number, /, *, axis: int | None = None, sorted: bool = True, name: str | None = None) -> Any:
        """The different elements, or slices along `axis`, each once (ONNX Unique).

        The other results are the place where each is first, the place of each element or slice of `src` in the first
        result, and how often each occurs. The first result is in ascending order or, without `sorted`, in the order of the
        first places. NaNs of elements are equal, as in NumPy.
        """

    def tensor_scatter(self, past: Number, update: Number, places: Number | None = None, /, *, axis: int = -2,
                       mode: Literal['linear', 'circular'] = 'linear', name: str | None = None) -> Value:
        """`past` with `update` written along `axis` from `places[b]` on, by default from 0 on (ONNX TensorScatter).

        In mode circular, writing continues at the start. Raises InputError if an update goes beyond an end in mode linear.
        """

    def lstm(self, gates: Number, recurrent: Number, h: Number | None = None, c: Number | None = None,
             scales: Number | None = None, lengths: Number | None = None, peepholes: Number | None = None, /, *,
             reverse: bool = False, by_row: bool = False, name: str | None = None) -> Any:
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

    def gru(self, gates: Number, recurrent: Number, h: Number | None = None, bias: Number | None = None,
            lengths: Number | None = None, /, *, linear_before_reset: bool = False, reverse: bool = False,
            name: str | None = None) -> Any:
        """Gated recurrent units: returns all states [T, B, H] and the last state [B, H].

        `gates` [T, B, 3H] is the input times its weights, plus biases, for the gates in ONNX's order z, r, h. `recurrent`
        [3H, H] is the weights of the state. For gate h, `bias` [H] is added to the state times its weights. With
        `linear_before_reset`, r multiplies this sum; otherwise r multiplies the state before the weights do. `h` is the
        initial state (default: zeros). `lengths` and `reverse` are as in lstm.
        """

    def rnn(self, gates: Number, recurrent: Number, h: Number | None = None, lengths: Number | None = None, /, *,
            reverse: bool = False, name: str | None = None) -> Any:
        """Steps of `h = tanh(gates + h @ recurrent.T)`: all states [T, B, H] and the last [B, H]; operands as in lstm."""

    def linear_attention(self, query: Number, key: Number, value: Number, state: Number, decay: Number | None = None,
                         beta: Number | None = None, /, *, name: str | None = None) -> Any:
        """Attention to a state that each token updates (ONNX LinearAttention): all outputs, and the last state.

        `query` is [batch, tokens, groups, heads, keys], `key` [batch, tokens, groups, keys], `value` [batch, tokens,
        groups, values], and `state` [batch, groups, keys, values]. Each token multiplies the rows of the state S by `decay`
        [batch, tokens, groups, keys], and adds the product of the column key and the row value. With `beta` [batch, tokens,
        groups], this row is beta * (value - S^T key). The output is S^T query. All heads of a group read one state. All
        operands are f32. Raises GraphError if they are not, or if shapes disagree.
        """

    def reduce_sum(self, src: Number, axes_tensor: Number | None = None, /, *, axes: Sequence[int] | np.ndarray = (),
                   keep_dims: bool = False, name: str | None = None) -> Value:
        """The sum over `axes` (oneDNN ReduceSum), 0 if there are no elements. Without axes the result is `src`."""

    def reduce_mean(self, src: Number, axes_tensor: Number | None = None, /, *, axes: Sequence[int] | np.ndarray = (),
                    keep_dims: bool = False, name: str | None = None) -> Value:
        """The mean over `axes` (oneDNN ReduceMean) in f32, NaN if there are no elements."""

    def reduce_l1(self, src: Number, axes_tensor: Number | None = None, /, *, axes: Sequence[int] | np.ndarray = (),
                  keep_dims: bool = False, name: str | None = None) -> Value:
        """The sum of absolute values over `axes` (oneDNN ReduceL1). Without axes the result is `src`."""

    def reduce_l2(self, src: Number, axes_tensor: Number | None = None, /, *, axes: Sequence[int] | np.ndarray = (),
                  keep_dims: bool = False, name: str | None = None) -> Value:
        """The root of the sum of squares over `axes` (oneDNN ReduceL2). Without axes the result is `src`."""

    def reduce_prod(self, src: Number, axes_tensor: Number | None = None, /, *, axes: Sequence[int] | np.ndarray = (),
                    keep_dims: bool = False, name: str | None = None) -> Value:
        """The product over `axes` (oneDNN ReduceProd), 1 if there are no elements. Without axes the result is `src`."""

    def reduce_max(self, src: Number, axes_tensor: Number | None = None, /, *, axes: Sequence[int] | np.ndarray = (),
                   keep_dims: bool = False, name: str | None = None) -> Value:
        """The greatest element over `axes` (oneDNN ReduceMax): NaN if one is NaN, -inf without elements."""

    def reduce_min(self, src: Number, axes_tensor: Number | None = None, /, *, axes: Sequence[int] | np.ndarray = (),
                   keep_dims: bool = False, name: str | None = None) -> Value:
        """The least element over `axes` (oneDNN ReduceMin): NaN if one is NaN, inf without elements."""

    def integer_sum(self, src: Number, /, *, axes: Sequence[int] | np.ndarray = (), keep_dims: bool = False,
                    name: str | None = None) -> Value:
        """The sum of integers along `axes` (ONNX ReduceSum). The sum wraps. Without axes the result is `src`."""

    def histogram(self, src: Number, /, *, name: str | None = None) -> tuple[Value, Value]:
        """Count f32 elements by their highest 14 bits: s32 [16384]. Also return the extremes: f32 [2].

        The extremes are the least and the greatest element by the predicate totalOrder of IEEE 754. All NaNs are one value
        of bits 0x7FC00000: they have one bin, and are greater than inf. Without elements the extremes are [inf, -inf],
        without numbers the least is inf. The order of elements does not matter.
        """

    def onnx_node(self, *srcs: Number | None, op_type: str, model: np.ndarray, name: str | None = None) -> Any:
        """One ONNX node, run by ONNX's reference evaluator; needs the package onnx.

        If graphq's operations can compute the node for these operands, they run instead of the evaluator. `model` is a
        serialized ModelProto with only this node. Its inputs are `srcs`. Small constants are its initializers, because
        shape inference may need their values. `op_type` is the operator's name, for messages.
        """
