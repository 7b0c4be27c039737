"""Caches that a call writes where the past ones lie: `out` has the same arrays as the inputs."""
import numpy as np
import pytest
from onnx_node import node_model

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import InputError

rng = np.random.default_rng(8)
HEADS, GROUPS, SIZE, ROWS, BATCH = 4, 2, 8, 24, 2


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def step(tokens, lengths, dtype="f4"):
    """The inputs of a step but for the caches; `lengths` with the new tokens."""
    widths = {"q": HEADS * SIZE, "k": GROUPS * SIZE, "v": GROUPS * SIZE}
    return {n: floats(BATCH, tokens, width).astype(dtype) for n, width in widths.items()} | {
        "lengths": np.int32(lengths) - 1, "total": np.array([max(lengths)], np.int32)}


def layer(open_shapes=True, more=None, dtype="f4"):
    x = step(1, [3, 5], dtype)
    past = floats(BATCH, GROUPS, ROWS, SIZE).astype(dtype)
    inputs = [(n, x.get(n)) for n in ("q", "k", "v")] + [("past_k", past), ("past_v", past)]
    inputs += [(n, x[n]) for n in ("lengths", "total")]
    m = node_model("GroupQueryAttention", inputs, {"num_heads": HEADS, "kv_num_heads": GROUPS}, 3,
                   open_shapes=open_shapes)
    if open_shapes:
        for v in m.graph.input:
            if v.name in ("q", "k", "v"):
                v.type.tensor_type.shape.dim[2].dim_value = x[v.name].shape[2]
            if v.name == "total":
                v.type.tensor_type.shape.dim[0].dim_value = 1
    return gq.load_onnx(m)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", ["open", "fixed", "saved", "f16", "bf16"])
def test_a_generation_in_one_array(form, threads, tmp_path):
    dtype = DTYPES[form if form in ("f16", "bf16") else "f32"].numpy
    graph = layer(open_shapes=form != "fixed", dtype=dtype)
    model = gq.compile(graph, strict=True, threads=threads)
    y, key, value = model.outputs
    keys, values = np.zeros((2, BATCH, GROUPS, ROWS, SIZE), dtype)
    past = [keys.copy(), values.copy()]
    steps = [(1, [3 + k, 7 + k]) for k in range(4)] if form == "fixed" else \
        [(3, [3, 2]), (1, [4, 3]), (1, [5, 4]), (2, [7, 6])]
    for count, (tokens, lengths) in enumerate(steps):
        x = step(tokens, lengths, dtype)
        want = model(x | {"past_k": past[0], "past_v": past[1]})
        if form == "saved" and count == 0:
            model.save(tmp_path / "m.graphq")
            model = gq.load_compiled(tmp_path / "m.graphq", threads=threads)
        out = {y: np.empty((BATCH, tokens, HEADS * SIZE), dtype), key: keys, value: values}
        got = model(x | {"past_k": keys, "past_v": values}, out=out)
        assert got[key] is keys and got[value] is values
        np.testing.assert_array_equal(got[y], want[y])
        np.testing.assert_array_equal(keys, want[key])
        np.testing.assert_array_equal(values, want[value])
        past = [want[key], want[value]]


def test_rows_behind_stay_and_do_not_matter():
    model = gq.compile(layer())
    y, key, value = model.outputs
    keys, values = floats(2, BATCH, GROUPS, ROWS, SIZE)
    keys[0, :, 9:], values[0, :, 9:] = np.nan, np.inf
    before, x = keys.copy(), step(1, [9, 24])
    want = model(x | {"past_k": keys, "past_v": values})
    out = {y: np.empty((BATCH, 1, HEADS * SIZE), np.float32), key: keys, value: values}
    got = model(x | {"past_k": keys, "past_v": values}, out=out)
    np.testing.assert_array_equal(got[y], want[y])
    np.testing.assert_array_equal(keys[0, :, :9], want[key][0, :, :9])
    np.testing.assert_array_equal(keys[0, :, 9:], before[0, :, 9:])


def arrays(rows=ROWS):
    return floats(2 * BATCH * GROUPS * rows * SIZE).reshape(2, BATCH, GROUPS, rows, SIZE)


def test_what_is_refused():
    """The other cache's array, one that begins elsewhere, one of another shape, and one that is read twice."""
    model = gq.compile(layer())
    y, key, value = model.outputs
    x = step(1, [9, 24])
    out = {y: np.empty((BATCH, 1, HEADS * SIZE), np.float32)}
    keys, values = arrays()
    with pytest.raises(InputError, match=f"out '{value}' shares memory with input 'past_k', which is not its cache"):
        model(x | {"past_k": keys, "past_v": values}, out=out | {key: values, value: keys})
    room = floats(2 * keys.size)
    shifted = room[SIZE:SIZE + keys.size].reshape(keys.shape)
    with pytest.raises(InputError, match=f"out '{key}' shares memory with input 'past_k', .* not the same array"):
        model(x | {"past_k": shifted, "past_v": values},
              out=out | {key: room[:keys.size].reshape(keys.shape), value: values})
    with pytest.raises(InputError, match="'past_k', which is not its cache"):
        model(x | {"past_k": keys, "past_v": keys}, out=out | {key: values, value: keys})
    with pytest.raises(InputError, match="shares memory with an input or another output"):
        model(x | {"past_k": keys, "past_v": values}, out=out | {key: room[:keys.size].reshape(keys.shape),
                                                                 value: room[4:4 + keys.size].reshape(keys.shape)})
    grown = step(1, [25, 3])
    keys, values = room[:keys.size].reshape(keys.shape), floats(*keys.shape)
    longer = room[:keys.size // ROWS * (ROWS + 1)].reshape(BATCH, GROUPS, ROWS + 1, SIZE)
    with pytest.raises(InputError, match=f"out '{key}' shares memory with input 'past_k', .* not the same array"):
        model(grown | {"past_k": keys, "past_v": values}, out=out | {key: longer, value: np.empty_like(longer)})


@pytest.mark.parametrize("reader", ["another operation", "an output", "the other cache"])
def test_a_cache_that_is_read_elsewhere(reader):
    g = gq.Graph()
    q, n = g.input("q", dtype="f32", shape=(1, 1, 3 * SIZE)), g.input("n", dtype="s32", shape=(1,))
    past = g.input("past", dtype="f32", shape=(1, 1, ROWS, SIZE))
    other = past if reader == "the other cache" else g.input("other", dtype="f32", shape=past.shape)
    y, keys, values = g.cached_attention(q, n, g.constant(np.int32([1])), None, None, past, other, heads=1, groups=1,
                                         scale=1.0, capacity=ROWS)
    for name, v in (("y", y), ("keys", keys), ("values", values)):
        g.output(v, name=name)
    if reader != "the other cache":
        g.output(g.relu(past) if reader == "another operation" else past, name="more")
    model = gq.compile(g)
    feeds = {str(v.name): np.int32([3]) if v.name == "n" else floats(*v.shape) for v in g.inputs}
    out = {name: np.empty(t.dims, np.float32) for name, t in model.outputs.items()}
    with pytest.raises(InputError, match="out 'keys' shares memory with input 'past', which is not its cache"):
        model(feeds, out=out | {"keys": feeds["past"]})
