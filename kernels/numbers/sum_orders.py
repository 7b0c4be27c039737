"""f32 sums of products of dequantized integers, in the orders of the graph as written.

Kernels sum integers exactly; the graph as written multiplies and adds in f32. ONNX and oneDNN leave the order of the
sums open. These are the orders of ONNX Runtime's CPU kernels on x86-64 without optimizations of the graph, on one
thread, found by experiment. In six models that were compared, all sums equal ONNX Runtime's bit for bit, except for a
few "octets": in the last n % 4 columns, and in rows of one column. One row of a matmul has the order of many rows here.

    chains    sum over blocks of `block` products in order, from `start`: fma(x[k], w[k], ... fma(x[0], w[0], 0))
    quads     sum over groups of four products p in order, from `start`: ((p[0] + p[1]) + p[2]) + p[3], each p rounded
    octets    s[l] adds the products with k % 8 == l; h(l) = ((s[l] + s[l + 1]) + s[l + 2]) + s[l + 3];
              the sum is h(0) + h(4), plus `start`
    taps      sum over taps in order, from `start`, of chains over the channels

x = f32(q - zx) * sx are the dequantized activations, w the dequantized weights. k runs over channels and, within a
channel, over taps.
"""
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np

from graphq.base.sizes import number, recorded
from graphq.kernels.lanes.expression import fused

ORDERS = ("chains", "quads", "octets", "taps")
Order = Literal["chains", "quads", "octets", "taps"]


@recorded("sums.DequantizedSum")
class DequantizedSum(NamedTuple):
    """An f32 sum of products of dequantized integers: its order, and the parameters of the dequantizes.

    The sum begins with `start`: one f32 for all columns, or one per column. `taps` is the number of taps (1 for
    matmuls).
    """

    order: Order
    block: int
    x_scale: np.float32
    x_zp: int
    w_scale: np.ndarray
    w_zp: np.ndarray
    start: np.ndarray
    taps: int = 1

    def factors(self, x: np.ndarray, w: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Dequantize x and w [p, k] to f32; row p of w belongs to column `columns[p]`."""
        scale, zp = _of(self.w_scale, columns), _of(self.w_zp, columns)
        left = (x.astype(np.int32) - self.x_zp).astype(np.float32) * self.x_scale
        return left, (w.astype(np.int32) - zp).astype(np.float32) * scale

    def sums(self, x: np.ndarray, w: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The sums [p] of the products of integers x and w [p, k].

        The products are added in ascending k or, in the order "taps", tap by tap.
        """
        x, w = self.factors(x, w, columns)
        total = _of(self.start, columns)[:, 0] + np.zeros(len(x), np.float32)
        with np.errstate(all="ignore"):
            match self.order:
                case "chains":
                    return _blocks(total, x, w, self.block)
                case "quads":
                    products = x * w
                    for k in range(0, x.shape[1], 4):
                        total = total + reduce(np.add, products[:, k:k + 4].T)
                    return total
                case "octets":
                    products = np.pad(x * w, ((0, 0), (0, -x.shape[1] % 8)))
                    s = np.zeros((8, len(x)), np.float32)
                    for k in range(0, products.shape[1], 8):
                        s += products[:, k:k + 8].T
                    return total + ((((s[0] + s[1]) + s[2]) + s[3]) + (((s[4] + s[5]) + s[6]) + s[7]))
            size = x.shape[1] // max(1, self.taps)
            for k in range(0, x.shape[1], size or 1):
                total = total + _blocks(np.zeros_like(total), x[:, k:k + size], w[:, k:k + size], self.block)
            return total


def _of(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.asarray(values.reshape(-1, 1) if values.size == 1 else values[columns][:, None])


def _blocks(total: np.ndarray, x: np.ndarray, w: np.ndarray, block: int) -> np.ndarray:
    for start in range(0, x.shape[1], block):
        chain = np.zeros(len(x), np.float32)
        for k in range(start, min(start + block, x.shape[1])):
            chain = fused(x[:, k], w[:, k], chain)
        total = total + chain
    return total


def matmul_order(m: int | None, n: int, k: int, *, transposed: bool = False) -> tuple[Order, int]:
    """The order of sums, the products per block; weights are n x k if `transposed`, m is None for rows of a batch."""
    if m == 1:
        return ("octets" if transposed else "quads"), 1
    if n == 1 and not transposed:
        return "octets", 1
    return "chains", number(chain_block, n, k)


BLOCKS = 128, 256, 512, 1024
"""The results that `chain_block` can have."""


@recorded("sums.chain_block")
def chain_block(n: int, k: int) -> int:
    """The number of products that a matmul of k x n weights adds in one chain: the rows of ONNX Runtime's panels.

    ONNX Runtime packs weights into panels of 128 rows x 128 columns. If n < k, it makes panels taller: it doubles the
    rows and halves the columns (down to 16) while a panel still holds all n columns.
    """
    block, width = 128, 128
    while n < k and width > 16 and width // 2 >= n:
        block, width = 2 * block, width // 2
    return block
