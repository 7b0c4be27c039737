"""concat, reorder, gen_index, end and wildcard."""
import itertools

import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import GraphError
from graphq.ir.op import lookup

rng = np.random.default_rng(2)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_as_onnx(run, onnx_node, axis):
    shapes = [[2, 3, 4] for _ in range(3)]
    for k, s in enumerate(shapes):
        s[axis] = k + 1
    xs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    np.testing.assert_array_equal(lookup("concat").reference(*xs, axis=axis), onnx_node("Concat", xs, axis=axis))


def test_concat_of_one_and_of_nothing(run, float_dtype):
    from graphq.dtypes import DTYPES

    x = np.ones((2, 0, 3), DTYPES[float_dtype].numpy)
    assert run("concat", x, axis=1).shape == (2, 0, 3)
    assert run("concat", x, axis=1).dtype == x.dtype


@pytest.mark.parametrize("types, axis, want", [
    (["f32[2,3]", "f32[2,4]"], 1, "f32[2,7]"), (["f32[?,3]", "f32[2,?]"], -1, "f32[2,?]"),
    (["f32[*]", "f32[2,4]"], 1, "f32[2,?]"), (["f16[*]", "f16[*]"], 5, "f16[*]"), (["bf16[?,3]"] * 3, 0, "bf16[?,3]"),
])
def test_concat_types(infer, types, axis, want):
    assert infer("concat", *types, axis=axis) == want


@pytest.mark.parametrize("types, axis, match", [
    ([], 0, "takes at least one operand, got none"),
    (["f32[2,3]", "f16[2,3]"], 0, "the same dtype, got f32 and f16"),
    (["f32[2,3]", "f32[2]"], 0, r"the same rank, got \[2,3\] and \[2\]"),
    (["f32[2,3]", "f32[4,4]"], 0, r"must have equal shapes except along axis 0, got \[2,3\] and \[4,4\]"),
    (["f32[2,3]", "f32[2,3]"], 2, "axis must be in .* got 2"),
])
def test_concat_rules(infer, types, axis, match):
    with pytest.raises(GraphError, match=match):
        infer("concat", *types, axis=axis)


@pytest.mark.parametrize("types", [(None, "f32[2]"), ("f32[2]", None), ("f32[2]", None, "f32[2]")])
def test_concat_has_no_absent_sources(infer, types):
    with pytest.raises(GraphError, match="operand 'srcs' is required, got None"):
        infer("concat", *types, axis=0)


@pytest.mark.parametrize("axis, want", [(0, [[0, 0, 0], [1, 1, 1]]), (1, [[0, 1, 2]] * 2), (-1, [[0, 1, 2]] * 2)])
def test_gen_index(run, axis, want):
    got = run("gen_index", np.full((2, 3), np.nan, np.float32), axis=axis)
    assert got.tolist() == want and got.flags.writeable
    assert run("gen_index", np.zeros((0, 3), np.float32), axis=axis).shape == (0, 3)


def test_gen_index_rules(infer):
    assert infer("gen_index", "bf16[?,3]", axis=0) == "s32[?,3]"
    with pytest.raises(GraphError, match="axis must be in .* got 2"):
        infer("gen_index", "f32[2,3]", axis=2)
    with pytest.raises(GraphError, match="'src' must be f32, bf16 or f16, got s32"):
        infer("gen_index", "s32[2,3]", axis=0)


def test_reorder(run, infer):
    x = rng.standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_array_equal(run("reorder", x), x)
    assert infer("reorder", "f16[?,3]") == "f16[?,3]"
    with pytest.raises(GraphError, match="'src' must be f32"):
        infer("reorder", "s8[2]")


def test_end_has_no_outputs():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(3,))
    y = g.output(g.relu(x), name="y")
    assert g.end(y) == ()
    assert "  end(" in str(g)
    assert gq.reference(g, x=np.float32([-1, 0, 2])).tolist() == [0, 0, 2]


def test_wildcard_types(infer):
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(3,))
    assert g.wildcard(x, x, x) == () and g.wildcard() == ()
    assert infer("wildcard", "f32[2]", dtypes=["s8"]) == "s8[*]"
    assert infer("wildcard", "f32[2]", dtypes=["s8", "f32"], shapes=[[2, -1], []]) == ("s8[2,?]", "f32[]")
    with pytest.raises(GraphError, match=r"shapes must be a list of dimensions >= -1 for each of 1 dtypes, got \[\]"):
        infer("wildcard", "f32[2]", dtypes=["s8"], shapes=[])
    with pytest.raises(GraphError, match=r"got \[\[-2\]\]"):
        infer("wildcard", "f32[2]", dtypes=["s8"], shapes=[[-2]])


def test_wildcard_does_not_run():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(3,))
    g.output(g.relu(g.wildcard(x, dtypes=["f32"])), name="y")
    with pytest.raises(GraphError, match="wildcard stands for an operation that is not known"):
        gq.reference(g, x=np.zeros(3, np.float32))


def arange(*shape, dtype="f32"):
    return np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), DTYPES[dtype].numpy)


@pytest.mark.parametrize("src, shape, special_zero, want", [
    ((2, 6), [3, 4], False, (3, 4)), ((2, 6), [-1], False, (12,)), ((2, 6), [4, -1, 1], False, (4, 3, 1)),
    ((2, 6), [0, 3, -1], True, (2, 3, 2)), ((2, 6), [-1, 0], True, (2, 6)),
    ((2, 3, 4), [0, 0, 2, 2], True, (2, 3, 2, 2)),
    ((), [], False, ()), ((), [1, 1], False, (1, 1)), ((1,), [], False, ()), ((), [-1], False, (1,)),
    ((0, 4), [0], False, (0,)), ((0, 4), [7, 0], False, (7, 0)), ((0, 4, 5), [-1, 20], False, (0, 20)),
    ((0, 4, 5), [0, -1], True, (0, 20)), ((0, 4), [0, 2, 2], True, (0, 2, 2)), ((3, 0), [-1, 5], False, (0, 5)),
])
def test_reshape(run, src, shape, special_zero, want):
    x = arange(*src)
    got = run("static_reshape", x, shape=shape, special_zero=special_zero)
    np.testing.assert_array_equal(got, x.reshape(want))
    assert got.shape == want


@pytest.mark.parametrize("src, shape, special_zero, want", [
    ("[?,6]", [-1, 3], False, "[?,3]"), ("[?,6]", [4, 3], False, "[4,3]"), ("[?,?]", [7], False, "[7]"),
    ("[?,4,5]", [0, -1], True, "[?,20]"), ("[?,4,5]", [0, 20], True, "[?,20]"), ("[?,0]", [-1, 2], False, "[0,2]"),
    ("[?,0]", [3, 0], False, "[3,0]"), ("[?,4]", [0], False, "[0]"), ("[*]", [2, -1, 0], True, "[2,?,?]"),
    ("[*]", [2, 0], False, "[2,0]"), ("[?,?,6]", [0, 0, 2, -1], True, "[?,?,2,3]"),
])
def test_reshape_types(infer, src, shape, special_zero, want):
    assert infer("static_reshape", "u8" + src, shape=shape, special_zero=special_zero) == "u8" + want


@pytest.mark.parametrize("src, shape, special_zero, match", [
    ("[2,3]", [4], False, r"cannot reshape \[2,3\] to \[4\]: 6 elements against 4"),
    ("[]", [2], False, "1 elements against 2"), ("[2,3]", [], False, "6 elements against 1"),
    ("[0,3]", [1], False, "0 elements against 1"), ("[2,3]", [0, 3], False, "6 elements against 0"),
    ("[2,3]", [-1, -1], False, r"at most one -1, got \[-1, -1\]"),
    ("[*]", [-1, -1], False, "at most one -1"), ("[2,3]", [-2, 3], False, "dimensions >= 0 and at most one -1"),
    ("[2,3]", [-1, 4], False, r"6 elements are not a multiple of 4"),
    ("[0,3]", [0, -1], False, "-1 is not determined next to a dimension of 0"),
    ("[2,3]", [3, 2, 0], True, r"special_zero copies dimension 2, which \[2,3\] does not have"),
    ("[2,3]", [0, 2], True, "3 elements against 2"), ("[?,3]", [4], False, r"3 \* \? elements against 4"),
    ("[?,0]", [4], False, r"0 \* \? elements against 4"),
])
def test_reshape_rules(infer, src, shape, special_zero, match):
    with pytest.raises(GraphError, match=match):
        infer("static_reshape", "f32" + src, shape=shape, special_zero=special_zero)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_transpose(run, order):
    x = arange(2, 3, 4)
    want = np.empty([x.shape[k] for k in order], np.float32)
    for index in np.ndindex(2, 3, 4):
        want[tuple(index[k] for k in order)] = x[index]
    np.testing.assert_array_equal(run("static_transpose", x, order=list(order)), want)
    np.testing.assert_array_equal(run("static_transpose", x, order=[k - 3 for k in order]), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(run, dtype):
    x = arange(2, 3, dtype=dtype)
    turned, flat = run("static_transpose", x, order=[1, 0]), run("static_reshape", x, shape=[6])
    for got, want in ((turned, x.T), (flat, x.ravel())):
        assert got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


def test_transpose_of_nothing(run):
    assert run("static_transpose", arange(), order=[]).shape == ()
    assert run("static_transpose", np.zeros((2, 0, 3), np.float32), order=[2, -2, 0]).shape == (3, 0, 2)


@pytest.mark.parametrize("src, order, want", [("[?,3]", [1, 0], "[3,?]"), ("[*]", [1, 0], "[?,?]"), ("[*]", [], "[]")])
def test_transpose_types(infer, src, order, want):
    assert infer("static_transpose", "s8" + src, order=order) == "s8" + want


@pytest.mark.parametrize("src, order", [("[2,3]", [0]), ("[2,3]", [0, 1, 2]), ("[2,3]", [0, 0]), ("[2,3]", [0, 2]),
                                        ("[2,3]", [-3, 0]), ("[2,3]", [1, -1]), ("[*]", [0, 2]), ("[]", [0])])
def test_transpose_rules(infer, src, order):
    with pytest.raises(GraphError, match=r"order must be a permutation of the \d axes of f32.*, got \["):
        infer("static_transpose", "f32" + src, order=order)
