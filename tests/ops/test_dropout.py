"""dropout against values that oneDNN 3.13 gave, and Philox against the test vectors of its authors."""
import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import GraphError
from graphq.ops.dropout import _philox, random_words

# (seed, offset) -> the upper 20 bits of oneDNN's numbers, found by bisection on the probability
WORDS = {
    (1, 4): "3f6d6 a9cc4 a7e35 d57c8 ef8c1 b3abb 95c90 3c35a d1ccd 50dd1 9d803 4732c",
    (1, 1): "ac081 dfc5c 79c07 a7f66 e7d94 41eef 1e131 866c3",
    (2**33 + 1, 4): "d2e6f 72454 c7dd9 1d75f c5fd6 ec330",
    (1, 2**33 + 4): "3ef7f 7bd8e bc34a 863d1 b92b3 c4918",
    (1, 0): "b0601 b0601 b0601 b0601 8a529 8a529 8a529 8a529 bc048 bc048 bc048 bc048",
    (0, 0): "ffd17 ffd17 ffd17 ffd17 48ff0 48ff0 48ff0 48ff0 191c1 191c1 191c1 191c1",
}

# seed, offset, which of 32 elements oneDNN kept at probability 1/2
KEPT = [(1, 4, "01111110101001000010110010111010"), (1, 1, "11011001111000101100001000011001"),
        (1, -4, "11000101101101000110000011110110"),
        (-1, 4, "11101000010111000100110001101010"), (0, 0, "11110000000000001111000011110000")]


def draw(run, x, seed, offset, p):
    return run("dropout", x, np.array(seed, np.int32), np.array(offset, np.int32), np.array(p, np.float32))


@pytest.mark.parametrize("counter, key, want", [
    ([0] * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([2**32 - 1] * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], (0xa4093822, 0x299f31d0), "d16cfe09 94fdcceb 5001e420 24126ea1"),
])
def test_philox(counter, key, want):
    """kat_vectors of Random123."""
    words = _philox([np.uint64([c]) for c in counter], *key)
    assert " ".join(f"{int(w[0]):08x}" for w in words) == want


@pytest.mark.parametrize("seed, offset", WORDS)
def test_words_as_onednn(seed, offset):
    want = [int(w, 16) for w in WORDS[seed, offset].split()]
    got = (random_words(len(want), seed, offset) >> np.uint64(12)).astype(int)
    assert np.abs(got - want).max() <= 2  # the bisection stopped at about 20 bits


def test_the_counter_is_of_64_bits():
    first = random_words(8, 5, 9)
    assert len(set(first.tolist())) == 8
    np.testing.assert_array_equal(random_words(5, 5, 9), first[:5])
    assert random_words(0, 5, 9).shape == (0,)


@pytest.mark.parametrize("seed, offset, kept", KEPT)
def test_as_onednn(run, seed, offset, kept):
    got = draw(run, np.ones((2, 2, 2, 4), np.float32), seed, offset, 0.5)
    assert "".join("1" if v else "0" for v in got.ravel()) == kept
    assert set(got.ravel().tolist()) == {0, 2}


def test_the_mask_is_the_second_output(tmp_path):
    """It is 1 for kept elements, also for those that are 0. A file expresses it by a second output of Dropout."""
    g = gq.Graph()
    x, seed, offset, p = (g.input(name, shape=shape, dtype=dtype) for name, shape, dtype in (
        ("x", (4, 8), "bf16"), ("seed", (), "s64"), ("offset", (), "s64"), ("p", (), "f32")))
    for name, value in zip(("y", "mask"), g.dropout(g.relu(x), seed, offset, p, keep_mask=True), strict=True):
        g.output(value, name=name)
    gq.save_onednn_json(g, tmp_path / "g.json")
    loaded = gq.load_onednn_json(tmp_path / "g.json")
    assert [v.type for v in loaded.outputs] == [v.type for v in g.outputs]
    for seed, offset, kept in KEPT[:2]:
        feeds = {"seed": np.int64(seed), "offset": np.int64(offset), "p": np.float32(0.5)}
        for each in (-1, 1):
            y, mask = gq.compile(loaded)(x=np.full((4, 8), each, DTYPES["bf16"].numpy), **feeds).values()
            assert mask.dtype == np.uint8 and "".join(map(str, mask.ravel())) == kept
            assert (y == max(each, 0) * 2 * mask).all()


@pytest.mark.parametrize("p, want", [(0, 3), (1, 0), (-0.5, 2), (1.5, 0)])
def test_all_or_nothing_as_onednn(run, p, want):
    assert (draw(run, np.full(32, 3, np.float32), 1, 4, p) == want).all()


def test_rates_and_rounding(run, float_dtype):
    x = np.full(20000, 1.5, DTYPES[float_dtype].numpy)
    got = draw(run, x, 3, 7, 0.25).astype(np.float32)
    assert abs((got == 0).mean() - 0.25) < 0.02
    assert set(got.tolist()) == {0, 2}


def test_types(infer):
    assert infer("dropout", "bf16[?,3]", "s32[]", "s32[1]", "f32[?]") == "bf16[?,3]"


@pytest.mark.parametrize("types, match", [
    (["s8[2]", "s32[]", "s32[]", "f32[]"], "'src' must be f32"),
    (["f32[2]", "f32[]", "s32[]", "f32[]"], "'seed' must be an integer of 32 or 64 bits, got f32"),
    (["f32[2]", "s32[]", "s8[]", "f32[]"], "'offset' must be an integer of 32 or 64 bits, got s8"),
    (["f32[2]", "s32[]", "s32[]", "f16[]"], "'probability' must be f32, got f16"),
    (["f32[2]", "s32[2]", "s32[]", "f32[]"], r"'seed' must be one number, \[\] or \[1\], got s32\[2\]"),
])
def test_rules(infer, types, match):
    with pytest.raises(GraphError, match=match):
        infer("dropout", *types)
