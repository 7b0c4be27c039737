"""Batches: what is one, how large ones are cut; statistics of channels, and what calibration refuses."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import InputError
from graphq.quantization.calibrate import calibrate, calibrate_parts, checked_batches
from graphq.quantization.quantize import quantize


def graph(shape=(2, 3)):
    g = gq.Graph("net")
    x = g.input("x", dtype="f32", shape=shape)
    g.output(g.matmul(g.relu(x), g.constant(np.ones((3, 4), np.float32))), name="y")
    return g


def cut(batches, shape=(2, 3), **more):
    g = graph(shape)
    for name, other in more.items():
        g.input(name, dtype="f32", shape=other)
    return list(checked_batches(batches, g))


def rows(*numbers):
    return np.repeat(np.float32(numbers)[:, None], 3, axis=1)


def test_large_batches_are_cut_and_the_last_row_fills_the_last():
    seven, eight = np.float32(7), np.float32(8)
    made = cut([{"x": rows(1, 2, 3, 4, 5), "other": seven}, {"x": rows(6, 7), "other": eight}], other=())
    assert [b["x"][:, 0].tolist() for b in made] == [[1, 2], [3, 4], [5, 5], [6, 7]]
    assert [b["other"] for b in made] == [7, 7, 7, 8]
    assert [b["x"][:, 0].tolist() for b in cut([{"x": rows(1, 2, 3, 4)}])] == [[1, 2], [3, 4]]
    (same,) = cut([{"x": (whole := rows(1, 2))}])
    assert same["x"] is whole
    assert len(cut([{"x": rows(*range(9))}], shape=(None, 3))) == 1


def test_all_inputs_are_cut_together_where_they_have_as_many_rows():
    made = cut([{"x": rows(1, 2, 3), "z": np.float32([7, 8, 9]), "s": np.float32(1)}], z=(2,), s=())
    assert [b["z"].tolist() for b in made] == [[7, 8], [9, 9]] and all(b["s"] == 1 for b in made)
    for z, shape in ((np.float32([7, 8]), (2,)), (np.float32([7, 8, 9]), (3,))):
        with pytest.raises(InputError, match=r"batch 2: input 'x' must be f32\[2,3\], got shape \[3, 3\]"):
            cut([{"x": rows(1, 2), "z": z}, {"x": rows(1, 2, 3), "z": z}], z=shape)


@pytest.mark.parametrize("batches, message", [
    ({"x": rows(1)}, "batches must be an iterable of dicts from input names to arrays, got dict: put it into a list"),
    (3, "got int$"), ([{"x": rows(1, 2)}, [1]], "batch 2 must be a dict from input names to arrays, got list")])
def test_what_is_no_batch(batches, message):
    with pytest.raises(InputError, match=message):
        cut(batches)


def test_lists_of_data_loaders_are_batches_of_one_input():
    x = rows(1, 2)
    for batch in ([x], (x, np.zeros(2)), [x, "label"]):
        (found,) = cut([batch])
        assert list(found) == ["x"] and found["x"] is x
    with pytest.raises(InputError, match=r"batch 1 must be a dict from input names to arrays, got list; the model has "
                                         "inputs x, z: give a list of tuples of 2 tensors"):
        cut([[x, x]], z=(2,))
    for wrong in ([], [[1.0]], x, ["x"]):
        with pytest.raises(InputError, match="batch 1 must be a dict"):
            cut([wrong])


class Tensor:
    """What is known of a tensor of PyTorch without importing it."""

    def __init__(self, array, error=None):
        self.array, self.error = array, error

    def detach(self):
        return self

    cpu = detach

    def __array__(self, dtype=None, copy=None):
        if self.error:
            raise self.error
        return self.array


def test_tensors_become_arrays():
    x = rows(1, 2)
    for batch in ({"x": Tensor(x)}, [Tensor(x)], (Tensor(x), Tensor(x)), Tensor(x)):
        (found,) = cut([batch])
        assert type(found["x"]) is np.ndarray and np.array_equal(found["x"], x)
    (found,) = cut([({"first": Tensor(x), "others": [Tensor(x + 1), "unused"]},)], z=(2, 3))
    assert np.array_equal(found["x"], x) and np.array_equal(found["z"], x + 1)
    with pytest.raises(InputError, match="batch 2: it has no elements"):
        cut([{"x": x}, [Tensor(x, RuntimeError("it has no elements"))]])


def test_tensors_of_types_that_numpy_lacks():
    torch = pytest.importorskip("torch")
    x = torch.tensor([[1, 1 / 3, -0.1]], dtype=torch.bfloat16)
    for like, found in (("f32", x.float().numpy()), ("bf16", x.view(torch.int16).numpy().view(gq.dtypes.bf16.numpy))):
        g = gq.Graph("net")
        g.input("x", dtype=like, shape=(1, 3))
        (batch,) = checked_batches([x], g)
        assert batch["x"].dtype == found.dtype and np.array_equal(batch["x"], found)
    g = gq.Graph("net")
    g.input("x", dtype="s8", shape=(1, 3))
    with pytest.raises(InputError, match="batch 1: Cannot cast"):
        [*checked_batches([x], g)]


def test_quantize_takes_the_batches_of_a_data_loader():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.randn(12, 3), torch.zeros(12))
    made = quantize(graph((None, 3)), torch.utils.data.DataLoader(data, batch_size=4))
    assert made.nodes_of(("quantize",))
    assert quantize(graph((None, 3)), [(x, 0) for x in data.tensors[0].reshape(3, 4, 3)]).nodes_of(("quantize",))


def test_a_reader_gives_batches_until_none():
    class Reader:
        left = [{"x": rows(1, 1)}, {"x": rows(2, 2)}, None, {"x": rows(3, 3)}]

        def get_next(self):
            return self.left.pop(0)

    assert [b["x"][0, 0] for b in cut(Reader())] == [1, 2]


def test_without_histograms_there_are_extremes_alone():
    (t,) = calibrate(graph(), [{"x": rows(1, 2)}], histograms=False).values()
    assert t.size == 0 and (t.low, t.high) == (1, 2)


def test_parts_of_batches_have_statistics_of_their_own():
    """They are those that each part by itself has, of one run a batch."""
    batches = [{"x": rows(2 - k, 3 * k)} for k in range(4)]
    parts = [(0, 1, 2, 3), (1, 3), (2,)]
    for part, found in zip(parts, calibrate_parts(graph(), iter(batches), parts), strict=True):
        (name, alone), = calibrate(graph(), [batches[k] for k in part]).items()
        t = found[name]
        assert found.batches == len(part) and (t.low, t.high, t.second) == (alone.low, alone.high, alone.second)
        np.testing.assert_array_equal(t.counts, alone.counts)
    with pytest.raises(gq.InputError, match="at least one batch"):
        calibrate_parts(graph(), batches, [(0,), (7,)])


@pytest.mark.parametrize("tensors, error, message", [
    (["z"], gq.GraphError, "graph 'net' has no value named 'z'"), (["q"], gq.GraphError, "'q' is u8"),
    ("x", gq.InputError, "tensors")])
def test_tensors_that_are_refused(tensors, error, message):
    g = graph()
    g.output(g.quantize(g.inputs[0], dtype="u8", scales=[1.0], name="q"), name="q2")
    with pytest.raises((error, gq.GraphError), match=message):
        calibrate(g, [{"x": rows(1, 2)}], tensors=tensors)


@pytest.mark.parametrize("number, said", [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_numbers_that_are_not_finite(number, said):
    bad = rows(1, 2)
    bad[1, 2] = number
    with pytest.raises(InputError, match=f"batch 2: tensor 'x' holds {said}: calibration needs finite numbers"):
        calibrate(graph(), [{"x": rows(1, 2)}, {"x": bad}], tensors=["x"])


def test_no_batches_and_no_elements():
    with pytest.raises(InputError, match="quantization needs at least one batch, got an empty iterable"):
        calibrate(graph(), [])
    with pytest.raises(InputError, match="tensor 'x' had no elements in 2 batches"):
        calibrate(graph((None, 3)), [{"x": np.zeros((0, 3), np.float32)}] * 2, tensors=["x"])
