"""trees, non_max_suppression and histogram: small cases by hand, and what is refused."""
import numpy as np
import pytest

from graphq.errors import GraphError
from graphq.ir.op import lookup
from graphq.kernels.numbers.observed import BINS, SHIFT
from graphq.ops import trees as module

# Two trees: node 0 asks for feature 1 and goes to the leaf 1 or to node 2, which asks for feature 0 and goes to the
# leaves 3 and 4; the leaf 5 is the second tree.
FEATURE, TRUE, FALSE = np.int64([1, 0, 0, 0, 0, 0]), np.int64([1, 1, 3, 3, 4, 5]), np.int64([2, 1, 4, 3, 4, 5])
SPLIT = np.float32([2, 0, -1, 0, 0, 0])
WEIGHTS = np.float32([[0, 0], [1, 10], [0, 0], [2, 20], [4, 40], [100, 1000]])
ROWS = np.float32([[0, 1], [0, 2], [0, 3], [-1, 3], [-2, 3], [np.nan, 3], [0, np.nan], [np.nan, np.nan]])


def reference(name, *arrays, **attrs):
    """Of operations whose other operands have known shapes, which the fixture `run` leaves open."""
    op = lookup(name)
    return op.reference(*arrays, **op.complete(attrs))


def forest(mode=0, missing=(0, 0, 0, 0, 0, 0), second=None):
    modes = np.uint8([mode, 0, mode if second is None else second, 0, 0, 0])
    return (FEATURE, SPLIT, modes, np.array(missing, bool), TRUE, FALSE, np.int64([0, 5]), WEIGHTS,
            np.float32([0.5, 0.25]))


# the leaf of each row: 1 where feature 1 <= 2, then 3 where feature 0 <= -1, else 4
LEAVES = {0: [1, 1, 4, 3, 3, 4, 4, 4], 1: [1, 4, 4, 4, 3, 4, 4, 4], 2: [3, 1, 1, 1, 1, 1, 3, 4],
          3: [3, 3, 1, 1, 1, 1, 3, 4], 4: [4, 1, 4, 3, 4, 4, 4, 4], 5: [1, 3, 1, 1, 1, 1, 1, 1]}


@pytest.mark.parametrize("block", [1, 5, 1 << 18])
@pytest.mark.parametrize("mode", LEAVES)
def test_comparisons(monkeypatch, mode, block):
    monkeypatch.setattr(module, "BLOCK", block)
    got = reference("trees", ROWS, *forest(mode), depth=2)
    np.testing.assert_array_equal(got, WEIGHTS[LEAVES[mode]] + np.float32([100.5, 1000.25]))


def test_trees_of_several_comparisons_and_what_is_missing():
    def leaves(*args):
        sums = reference("trees", ROWS, *forest(*args), depth=2)
        return np.argmax(sums[:, :1] - 100.5 == WEIGHTS[:, 0], axis=1).tolist()

    assert leaves(0, (0,) * 6, 2) == [1, 1, 3, 3, 4, 4, 3, 4]  # <= and then >=
    assert leaves(0, (1, 0, 0, 0, 0, 0)) == [1, 1, 4, 3, 3, 4, 1, 1]
    assert leaves(0, (0, 0, 1, 0, 0, 0)) == [1, 1, 4, 3, 3, 3, 4, 3]


def test_what_trees_refuse(infer):
    with pytest.raises(GraphError, match=r"features must be in \[0, 1\), got from 0 to 1"):
        reference("trees", ROWS[:, :1], *forest(), depth=2)
    assert reference("trees", ROWS[:0], *forest(), depth=2).shape == (0, 2)
    types = ["f32[?,2]", "s64[6]", "f32[6]", "u8[6]", "boolean[6]", "s64[6]", "s64[6]", "s64[2]", "f32[6,2]", "f32[2]"]
    assert infer("trees", *types, depth=2) == "f32[?,2]"
    for k, wrong in ((0, "f16[?,2]"), (0, "f32[2]"), (1, "s32[6]"), (2, "f32[5]"), (2, "f16[6]"), (3, "u8[1]"),
                     (4, "u8[6]"), (5, "s64[7]"), (6, "s32[6]"), (7, "s32[2]"), (8, "f32[5,2]"), (8, "f32[6]"),
                     (9, "f64[2]"), (9, "f32[3]")):
        with pytest.raises(GraphError):
            infer("trees", *types[:k], wrong, *types[k + 1:], depth=2)


BOXES = np.float32([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [2, 1, 1, 0], [0, 0, 0, 1], [0.5, 0, 1.5, 1]]])
SCORES = np.float32([[[0.9, 0.75, 0.6, 0.95, 0.9]]])


@pytest.mark.parametrize("most, overlap, least, picked", [
    (9, 0.5, None, [3, 0, 4, 2]), (9, 0.9, None, [3, 0, 4, 1, 2]), (9, 0, None, [3, 0, 2]), (2, 0.5, None, [3, 0]),
    (9, None, None, [3, 0, 2]), (9, 0.5, 0.6, [3, 0, 4]), (9, 0.5, 0.9, [3]), (0, 0.5, None, []),
    (None, 0.5, None, []), (9, 1 / 3 - 1e-6, None, [3, 0, 2]), (9, 1 / 3 + 1e-6, None, [3, 0, 4, 2])])
def test_picked_boxes(most, overlap, least, picked):
    """Of equal scores the first; a box without an area overlaps with none, boxes that touch do not; corners in any
    order."""
    options = [None if x is None else dtype(x).reshape(1) for x, dtype in
               ((most, np.int64), (overlap, np.float32), (least, np.float32))]
    assert reference("non_max_suppression", BOXES, SCORES, *options).tolist() == [[0, 0, k] for k in picked]


def test_boxes_by_their_centers_in_each_image_and_class():
    centers = np.float32([[[0, 0, 2, 2], [0.5, 0, 2, 2], [5, 0, 2, 2]], [[0, 0, 2, 2], [0, 3, 2, 2], [0, 0, 2, 2]]])
    scores = np.float32([[[1, 2, 3], [3, 2, 1]], [[1, 1, 2], [0, 5, 0]]])
    got = reference("non_max_suppression", centers, scores, np.array(2), np.float32(0.5), center_point_box=True)
    assert got.tolist() == [[0, 0, 2], [0, 0, 1], [0, 1, 0], [0, 1, 2], [1, 0, 2], [1, 0, 1], [1, 1, 1], [1, 1, 0]]


def test_what_non_max_suppression_refuses(infer):
    assert infer("non_max_suppression", "f32[1,?,4]", "f32[?,3,7]", "s64[1]", "f32[]") == "s64[?,3]"
    for types in (("f16[1,7,4]", "f32[1,3,7]"), ("f32[1,7,5]", "f32[1,3,7]"), ("f32[1,7,4]", "f32[1,3,8]"),
                  ("f32[1,7,4]", "f32[2,3,7]"), ("f32[7,4]", "f32[1,3,7]"), ("f32[1,7,4]", "f32[1,7]"),
                  ("f32[1,7,4]", "f32[1,3,7]", "s32[]"), ("f32[1,7,4]", "f32[1,3,7]", "s64[2]"),
                  ("f32[1,7,4]", "f32[1,3,7]", None, "f32[2]"), ("f32[1,7,4]", "f32[1,3,7]", None, None, "f64[]")):
        with pytest.raises(GraphError):
            infer("non_max_suppression", *types)


def test_histogram(run):
    x = np.float32([1, 1.01, -1, 0, -0.0, 2, np.inf])
    counts, extremes = run("histogram", x)
    bins = {int(k): int(n) for k, n in enumerate(counts) if n}
    assert bins == {int(np.float32(v).view(np.uint32)) >> SHIFT: n for v, n in
                    ((1, 2), (-1, 1), (0, 1), (-0.0, 1), (2, 1), (np.inf, 1))}
    assert extremes.tolist() == [-1, np.inf] and counts.shape == (BINS,)
    assert np.isnan(run("histogram", np.append(x, np.float32(np.nan)))[1][1])
    counts, extremes = run("histogram", np.empty((0, 3), np.float32))
    assert not counts.any() and extremes.tolist() == [np.inf, -np.inf]
