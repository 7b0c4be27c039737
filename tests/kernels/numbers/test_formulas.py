"""The formulas that references and kernels share, against the mathematics in f64 and against loops."""
import numpy as np
import pytest

from graphq.errors import GraphError
from graphq.kernels.lanes.expression import STORAGE, fused
from graphq.kernels.numbers import float_sums, mean_sums, recurrent, rows
from graphq.kernels.numbers.observed import BINS, SHIFT, histogram, ordered, u8_range

T, B, H = 5, 3, 4
LENGTHS = np.array([5, 2, 0])


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def steps(lengths, reverse):
    """For each row the steps that it has, in their order."""
    for row in range(B):
        taken = range(T if lengths is None else int(lengths[row]))
        yield row, reversed(taken) if reverse else taken


def close(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def each_row(test):
    """Row by row, in both directions: beyond its length a row has zeros, and keeps its state."""
    lengths = pytest.mark.parametrize("lengths", [None, LENGTHS])
    return pytest.mark.parametrize("reverse", [False, True])(lengths(test))


@each_row
@pytest.mark.parametrize("peepholes", [None, np.linspace(-2, 2, 3 * H, dtype=np.float32)])
def test_lstm(lengths, reverse, peepholes):
    gates, weights, h, c = normal(T, B, 4 * H), normal(4 * H, H), normal(B, H), normal(H, B).T / 2
    states, last, cells = np.zeros((T, B, H)), h.astype(np.float64), c.astype(np.float64)
    pi, po, pf = np.split(np.zeros(3 * H) if peepholes is None else peepholes.astype(np.float64), 3)
    for row, taken in steps(lengths, reverse):
        for t in taken:
            i, o, f, g = np.split(gates[t, row] + weights.astype(np.float64) @ last[row], 4)
            i, f = sigmoid(i + pi * cells[row]), sigmoid(f + pf * cells[row])
            cells[row] = f * cells[row] + i * np.tanh(g)
            last[row] = states[t, row] = sigmoid(o + po * cells[row]) * np.tanh(cells[row])
    close(recurrent.lstm(gates, weights, h, c, None, lengths, peepholes, reverse), (states, last, cells))


@each_row
@pytest.mark.parametrize("before", [False, True])
def test_gru(lengths, reverse, before):
    gates, weights, h, bias = normal(T, B, 3 * H), normal(3 * H, H), normal(B, H), normal(H)
    states, last, wide = np.zeros((T, B, H)), h.astype(np.float64), weights.astype(np.float64)
    for row, taken in steps(lengths, reverse):
        for t in taken:
            xz, xr, xh = np.split(gates[t, row].astype(np.float64), 3)
            sz, sr, sh = np.split(wide @ last[row], 3)
            z, r = sigmoid(xz + sz), sigmoid(xr + sr)
            n = np.tanh(xh + r * (sh + bias)) if before else np.tanh(xh + wide[2 * H:] @ (r * last[row]) + bias)
            last[row] = states[t, row] = (1 - z) * n + z * last[row]
    close(recurrent.gru(gates, weights, h, bias, lengths, before, reverse), (states, last))


@each_row
def test_rnn(lengths, reverse):
    gates, weights, h = normal(T, B, H), normal(H, H), normal(B, H)
    states, last = np.zeros((T, B, H)), h.astype(np.float64)
    for row, taken in steps(lengths, reverse):
        for t in taken:
            last[row] = states[t, row] = np.tanh(gates[t, row] + weights.astype(np.float64) @ last[row])
    close(recurrent.rnn(gates, weights, h, lengths, reverse), (states, last))


def test_sums_of_a_quantized_state():
    """The state as u8 by its own range, the sum exact, one factor."""
    h, weights = normal(B, H) * 3, np.random.default_rng(0).integers(-128, 128, (2 * H, H)).astype(np.int8)
    scales = np.linspace(0.01, 0.2, 2 * H, dtype=np.float32)
    scale, zp = u8_range(h)
    units = np.clip(np.rint(h / scale) + float(zp), 0, 255) - float(zp)
    want = (units @ weights.T.astype(np.float64)).astype(np.float32) * (scale * scales)
    np.testing.assert_array_equal(recurrent.state_sums(h, weights, scales), want)
    assert np.abs(units * scale - h).max() <= scale / 2 * 1.001


@pytest.mark.parametrize("x, scale, zp", [
    ([-1, 2], 3 / 255, 85), ([1, 2], 2 / 255, 0), ([-3, -1], 3 / 255, 255), ([0, 0], 1 / 255, 0), ([], 1 / 255, 0),
    ([-0.5, 254.5], 1, 0), ([-1.5, 253.5], 1, 2), ([-2.5, 252.5], 1, 2), ([-127.5, 127.5], 1, 128)])
def test_ranges_of_u8(x, scale, zp):
    """Zero points that are ties go to the even one."""
    got = u8_range(np.float32(x))
    assert got == (np.float32(scale), zp) and (got[0].dtype, got[1].dtype) == (np.float32, np.uint8)


def test_bins_and_their_order():
    x = np.float32([-np.inf, -3, -1e-42, -0.0, 0, 1e-42, 2, 2.03, np.inf])
    bits = x.view(np.int32)
    assert (np.diff(ordered(bits).astype(np.int64)) > 0).all() and (ordered(ordered(bits)) == bits).all()
    counts, extremes = histogram(x[1:-1][::-1])
    assert extremes.tolist() == [-3, np.float32(2.03)] and counts.sum() == 7
    assert counts[np.float32(2).view(np.uint32) >> SHIFT] == 2 and counts.shape == (BINS,)


@pytest.mark.parametrize("k", [0, 1, 255, 256, 257, 600])
def test_blocks_of_float_sums(monkeypatch, k):
    """A chain of multiply-adds a block, each in f64 and rounded once more than a fused one now and then."""
    monkeypatch.setattr(float_sums, "_CHUNK", 5)
    a, w = normal(2, 3, k), normal(k, 2)
    want = np.zeros((2, 3, 2), np.float32)
    for start in range(0, k, 256):
        chain = np.zeros_like(want)
        for i in range(start, min(start + 256, k)):
            chain = (a[..., i, None].astype(np.float64) * w[i] + chain).astype(np.float32)
        want += chain
    got = float_sums.float_sums(a, w)
    assert got.dtype == np.float32 and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(got[1], float_sums.float_sums(a[1], w))


def spelled(order, n, width):
    """The sum as text, each operand a number of its own."""
    return mean_sums.total(order, str, n, width, "0", lambda x, y: f"({x}+{y})")


def test_orders_of_means():
    assert spelled("taps", 3, 2) == "(((0+0)+1)+2)"
    assert spelled("columns", 4, 2) == "((0+((0+0)+2))+((0+1)+3))"
    assert spelled("fours", 5, 5) == "((((0+0)+(0+2))+((0+1)+(0+3)))+4)"
    assert spelled("fours", 3, 1) == "(((((0+0)+(0+0))+0)+1)+2)"
    even, odd = "((((0+0)+(0+4))+8)+(((0+2)+(0+6))+10))", "((((0+1)+(0+5))+9)+(((0+3)+(0+7))+11))"
    assert spelled("eights", 13, 1) == f"(({even}+{odd})+12)"
    assert spelled("eights", 12, 1) == f"({even}+{odd})"
    assert [mean_sums.lanes_of(x) for x in ("taps", "columns", "fours", "eights")] == [1, 1, 4, 8]
    assert [np.signbit(mean_sums.start_of(x)) for x in ("taps", "columns", "fours", "eights")] == [0, 0, 0, 1]


NONE = ((0, 0), (0, 0))


@pytest.mark.parametrize("sizes, kernel, strides, pads, in_order, want", [
    ((7, 7), (7, 7), (1, 1), NONE, False, "fours"), ((7, 7), (7, 7), (1, 1), NONE, True, "taps"),
    ((7, 7), (7, 7), (2, 1), NONE, False, "columns"), ((7, 7), (7, 7), (1, 1), ((0, 0), (1, 0)), False, "columns"),
    ((7, 8), (7, 7), (1, 1), NONE, False, "columns"), ((9, 9), (2, 2), (3, 2), NONE, False, "columns"),
    ((9, 9), (2, 2), (2, 3), NONE, False, "taps"), ((9, 2045), (2, 2), (1, 1), NONE, False, "columns"),
    ((9, 2044), (2, 2), (1, 1), ((5, 5), (1, 1)), False, "taps"),
    ((9, 9, 9), (2, 2, 2), (1, 3, 2), (*NONE, (0, 0)), False, "columns"),
    ((9, 9, 9), (2, 2, 2), (1, 2, 3), (*NONE, (0, 0)), False, "taps"),
    ((9, 3000, 9), (2, 2, 2), (1, 1, 1), ((0, 0), (2, 2), (0, 0)), False, "columns"),
    ((9, 9, 3000), (2, 2, 2), (1, 1, 1), (*NONE, (0, 0)), False, "taps")])
def test_which_order_a_pool_has(sizes, kernel, strides, pads, in_order, want):
    assert mean_sums.pool_order(sizes, kernel, strides, pads, in_order) == want


@pytest.mark.parametrize("n", [1, 3, 7, 8, 9, 15, 16, 17, 33, 100])
def test_rows(n):
    x = normal(2, 3, n) * 3 + 5
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis=-1, keepdims=True))
    softmax = e / e.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(rows.softmax(x, inf_as_zero=False), softmax, rtol=3e-6)
    np.testing.assert_allclose(rows.log_softmax(x), np.log(softmax), rtol=3e-6, atol=3e-6)
    for epsilon in (1e-5, 0.5):
        d = wide - wide.mean(axis=-1, keepdims=True)
        var, square = (np.square(v).mean(axis=-1, keepdims=True) for v in (d, wide))
        np.testing.assert_allclose(rows.layer_norm(x, epsilon), d / np.sqrt(var + epsilon), rtol=1e-4, atol=3e-6)
        np.testing.assert_allclose(rows.rms_norm(x, epsilon), wide / np.sqrt(square + epsilon), rtol=3e-6)
    for how, want in (("sum", wide.sum(axis=-1)), ("mean", wide.mean(axis=-1)), ("l1", np.abs(wide).sum(axis=-1)),
                      ("l2", np.sqrt(np.square(wide).sum(axis=-1))), ("max", wide.max(axis=-1)),
                      ("min", wide.min(axis=-1))):
        np.testing.assert_allclose(rows.reduced(how, x), want, rtol=2e-6, err_msg=how)


def test_partial_results_are_of_lanes_and_folded_by_halves_or_by_neighbors():
    """Told by letters in place of numbers."""
    letters = np.array(list("abcdefghij"), object)
    assert rows.by_lanes(letters, 4, "", np.add).tolist() == ["aei", "bfj", "cg", "dh"]
    assert rows.folded(letters[:8], np.add) == "aecgbfdh" and rows.folded(letters[:8], np.add, pairs=True) == "abcdefgh"


@pytest.mark.parametrize("n", [3, 5, 11, 13, 16, 31, 37, 100])
def test_the_orders_of_sums_of_rows(n):
    """That of softmax and that of norms, by loops over numbers whose sums are different in any other order."""
    x = normal(30, n) * 3
    powers, sums = rows.powers(x, rows.top(x))
    for row, p, total, square in zip(x, powers, sums, rows.squares(x), strict=True):
        lanes, chains, rest = [np.float32(0)] * 16, [np.float32(0)] * 8, n // 8 * 8
        for k in range(n):
            lanes[k % 16] += p[k]
        lanes = [a + b for a, b in zip(lanes[:8], lanes[8:], strict=True)]
        while len(lanes) > 1:
            lanes = [a + b for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
        assert lanes == [total]
        for k in range(rest):
            chains[k % 8] = fused(row[k], row[k], chains[k % 8])
        while len(chains) > 1:
            half = len(chains) // 2
            chains = [a + b for a, b in zip(chains[:half], chains[half:], strict=True)]
        for k in range(rest, n):  # four of the rest are not fused
            y, (whole,) = row[k], chains
            chains = [whole + y * y if k < rest + 4 <= n else fused(y, y, whole)]
        assert chains == [square]


def test_special_values_of_rows():
    inf, nan = np.inf, np.nan
    x = np.float32([[-inf, -inf, -inf], [inf, 0, 0], [nan, 1, 2], [-inf, 0, 0]])
    with np.errstate(all="ignore"):
        plain, zero = (rows.softmax(x, inf_as_zero=flag) for flag in (False, True))
    np.testing.assert_array_equal(zero[[0, 3]], np.float32([[0, 0, 0], [0, 0.5, 0.5]]))
    assert np.isnan(plain[:3]).any(axis=1).all() and np.isnan(plain[[0, 2]]).all() and np.isnan(zero[2]).all()
    np.testing.assert_array_equal(plain[3], zero[3])
    for where in range(3):  # a NaN wherever it stands
        row = np.float32([1, 2, 3])
        row[where] = nan
        assert np.isnan(rows.reduced("max", row[None])).all() and np.isnan(rows.reduced("min", row[None])).all()


@pytest.mark.parametrize("low, high, want", [
    (-128, 127, 0), (0, 0, 0), (0, 127, 0), (0, 128, 1), (0, 255, 128), (-129, 0, -1), (-129, 126, -1), (-255, 0, -127),
    (3, 258, 131), (200, 201, 74), (-300, -290, -172)])
def test_the_least_offset_that_makes_weights_fit_a_byte(low, high, want):
    weights = np.array([[low, high]], np.float32)
    assert recurrent.offset_of(weights) == recurrent.offset_of(weights[:, ::-1]) == want
    assert -128 <= low - want and high - want <= 127


@pytest.mark.parametrize("low, high", [(-128, 128), (-129, 127), (0, 256)])
def test_weights_of_more_than_a_byte(low, high):
    with pytest.raises(GraphError, match=f"integer weights must have 8 bits, got {low} to {high}"):
        recurrent.offset_of(np.float32([low, 0, high]))


def test_a_histogram_of_nothing():
    counts, extremes = histogram(np.zeros((2, 0), np.float32))
    assert not counts.any() and counts.shape == (BINS,) and extremes.tolist() == [np.inf, -np.inf]
    counts, _ = histogram(np.ones((2, 3), np.float32))
    assert counts.sum() == 6


def test_rows_of_softmax_without_a_number_above_minus_infinity():
    x = np.float32([[-np.inf, -np.inf, -np.inf], [0, -np.inf, 0]])
    assert np.isnan(rows.softmax(x, inf_as_zero=False)[0]).all()
    assert rows.softmax(x, inf_as_zero=True).tolist() == [[0, 0, 0], [0.5, 0, 0.5]]
    assert rows.softmax(x, inf_as_zero=False)[1].tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_softmax_whose_steps_are_rounded(dtype):
    narrow = STORAGE[dtype]
    x = (np.random.default_rng(0).integers(-16, 17, (5, 7)) / 4).astype(np.float32)
    less = (x - x.max(axis=-1, keepdims=True)).astype(narrow).astype(np.float64)
    e = np.exp(less).astype(narrow).astype(np.float32)
    total = e.sum(axis=-1, keepdims=True).astype(narrow).astype(np.float32)
    np.testing.assert_allclose(rows.stepwise_softmax(x, dtype), e / total, rtol=1e-6)
