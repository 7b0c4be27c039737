"""Scorer: which columns make which input, which outputs and columns come back; without an engine or a model."""
import numpy as np
import pytest

from graphq.dtypes import f32, s64
from graphq.errors import GraphqError, InputError
from graphq.ir import TensorType
from graphq.scoring.score import Scorer, score


class Sums:
    """A predictor of three inputs and two outputs."""

    inputs = {"x": TensorType(f32, (None, 2)), "y": TensorType(f32, (None,)), "n": TensorType(s64, (None,))}
    outputs = {"sum": TensorType(f32, (None,)), "pair": TensorType(f32, (None, 2))}

    def __call__(self, given):
        assert set(given) == set(self.inputs)
        total = given["x"][:, 0] + 10 * given["x"][:, 1] + 100 * given["y"] + 1000 * given["n"]
        return {"sum": total, "pair": given["x"]}


def column(*values):
    return np.array(values, np.float32)


BATCH = {"a": column(1, 2), "b": column(3, 4), "c": column(5, 6), "y": column(7, 8), "n": np.array([9, 1])}


def test_columns_are_stacked_in_the_order_that_is_given():
    for columns, x in ((("a", "b"), [[1, 3], [2, 4]]), (["b", "a"], [[3, 1], [4, 2]]), (("c", "a"), [[5, 1], [6, 2]])):
        out = Scorer(Sums(), {"x": columns})(BATCH)
        assert list(out) == ["a", "b", "c", "y", "n", "sum", "pair"]
        np.testing.assert_array_equal(out["pair"], x)
        np.testing.assert_array_equal(out["sum"], np.array(x) @ [1, 10] + 100 * BATCH["y"] + 1000 * BATCH["n"])
        assert all(out[name] is BATCH[name] for name in BATCH)


def test_one_column_as_it_is_or_as_a_list():
    whole = {**BATCH, "x": np.stack([BATCH["a"], BATCH["b"]], axis=1)}
    np.testing.assert_array_equal(Scorer(Sums()).score(whole)["pair"], whole["x"])
    np.testing.assert_array_equal(Scorer(Sums(), {"x": "x", "y": "c"}).score(whole)["sum"],
                                  Scorer(Sums(), {"y": "c"}).score(whole)["sum"])
    assert Scorer(Sums(), {"y": ["c"]}).sources == {"x": ["x"], "y": ["c"], "n": ["n"]}
    found = []
    scorer = Scorer(Sums(), {"x": ("a", "b"), "y": ["c"]})
    object.__setattr__(scorer, "predictor", type("P", (Sums,), {"__call__": lambda self, given: found.append(given) or {
        "sum": 0, "pair": 0}})())
    scorer.score(BATCH)
    assert found[0]["y"].shape == (2, 1) and found[0]["x"].shape == (2, 2)


@pytest.mark.parametrize("outputs, keep, want", [
    (None, None, ["a", "b", "c", "y", "n", "sum", "pair"]), (["pair"], ["n", "a"], ["a", "n", "pair"]),
    (["pair", "sum"], [], ["pair", "sum"]), ([], ["c"], ["c"]), (["sum"], None, ["a", "b", "c", "y", "n", "sum"])])
def test_what_is_kept(outputs, keep, want):
    scorer = Scorer(Sums(), {"x": ("a", "b")}, outputs, keep)
    assert list(scorer(BATCH)) == want
    assert scorer.results == {name: Sums.outputs[name] for name in want if name in Sums.outputs}


@pytest.mark.parametrize("options, said", [
    ({"columns": {"z": "a"}}, "columns: the model has 'x', 'y' and 'n', not 'z'"),
    ({"columns": ["x"]}, "columns takes a mapping"),
    ({"columns": {"x": []}}, "input 'x' needs at least one column"),
    ({"outputs": ["sum", "no"]}, "outputs: the model has 'sum' and 'pair', not 'no'")])
def test_names_that_the_model_has_not(options, said):
    with pytest.raises(InputError, match=said):
        Scorer(Sums(), **options)


@pytest.mark.parametrize("columns, outputs, keep, names, said", [
    ({"x": ("a", "b")}, None, ["a", "no"], "abyn", "keep: there is no column 'no' among 'a', 'b', 'y' and 'n'"),
    ({"x": ("a", "z")}, None, None, "abyn", "input 'x': there is no column 'z' among"),
    ({"x": ("a", "b")}, None, ["a"], "abn", "input 'y': there is no column 'y' among"),
    ({"x": ("a", "b")}, None, None, ["a", "b", "y", "n", "pair"], "output 'pair' has the name of a column"),
    ({"x": ("a", "b")}, ["sum"], None, ["a", "b", "y", "n", "sum"], "output 'sum' has the name of a column")])
def test_columns_that_are_missing_or_taken(columns, outputs, keep, names, said):
    with pytest.raises(InputError, match=said):
        Scorer(Sums(), columns, outputs, keep).kept(list(names))


def test_a_column_of_the_name_of_an_output_that_is_left_out():
    names = ["a", "b", "y", "n", "pair"]
    assert Scorer(Sums(), {"x": ("a", "b")}, ["sum"]).kept(names) == names
    assert Scorer(Sums(), {"x": ("a", "b")}, None, ["n", "a"]).kept(names) == ["a", "n"]


@pytest.mark.parametrize("shape, refused", [((None, 2), True), ((None, 3), False), ((None, None), False),
                                            ((None, 3, 4), False), ((None,), False), (None, False)])
def test_the_number_of_columns_is_that_of_an_input_of_two_axes(shape, refused):
    model = type("Model", (), {"inputs": {"x": TensorType(f32, shape)}, "outputs": {"z": TensorType(f32, (None,))}})
    assert Scorer(model(), {"x": "abc"}).kept(["abc"]) == ["abc"]
    listed = Scorer(model(), {"x": ["a", "b", "c"]})
    if refused:
        with pytest.raises(InputError, match=r"input 'x' is f32\[\?, ?2\], got 3 columns"):
            listed.kept(["a", "b", "c"])
    else:
        assert listed.kept(["a", "b", "c"]) == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["outputs", "keep"])
def test_a_dataset_is_known_by_its_ancestors_and_takes_lists(name):
    origin = type("Bag", (), {"__module__": "dask.bag.core"})
    dataset = type("Mine", (origin,), {"__module__": "mine"})()
    with pytest.raises(InputError, match=f"{name} takes a list of names, got 'z'"):
        score(dataset, "model", **{name: "z"})
    with pytest.raises(GraphqError, match="takes a dask array, dataframe or bag, or a Ray dataset"):
        score(type("Bag", (), {"__module__": "daskish"})(), "model", **{name: "z"})
