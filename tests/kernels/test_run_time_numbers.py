"""Numbers of a call that kernels use as an index or a length: at a limit, just beyond it and far beyond.

NUMBERS is the list of all of them. A number that is allowed gives what the reference gives; another one is refused in
the words of the reference, and nothing is written outside of a buffer: those between steps and those of results have
fences, inputs end where unreadable memory begins. Numbers that decide shapes are in tests/onnx/test_run_time_sizes.py.

The code of these kernels is the same at all ISA levels of a width (tests/kernels/test_widths.py).
"""
from functools import partial

import numpy as np
import pytest
from all_pairs import all_pairs
from guarded_memory import FENCE, fenced, guarded, is_intact
from levels import WIDTHS
from onnx_node import node_model

import graphq as gq
from graphq.dtypes import DTYPES, as_dtype
from graphq.errors import InputError
from graphq.kernels.jit.memory import aligned_empty
from graphq.plan import runtime

rng = np.random.default_rng(11)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def graph(op, x, *, opened, unknown=None, outputs=("y",), **attrs):
    """A graph of one node, whose operands are `x`; None is left out, and operands in upper case are constants.

    If `opened`, all dimensions of inputs are unknown, but those that `unknown` lists for some of them say which.
    """
    g, operands = gq.Graph(op), []
    for name, a in x.items():
        axes = (unknown or {}).get(name, range(np.ndim(a))) if opened and a is not None else ()
        operands.append(None if a is None else g.constant(a) if name.isupper() else
                        g.input(name, shape=[None if k in axes else d for k, d in enumerate(a.shape)],
                                dtype=as_dtype(a.dtype)))
    outs = getattr(g, op)(*operands, **attrs)
    for name, v in zip(outputs, outs if isinstance(outs, tuple) else (outs,), strict=False):
        g.output(v, name=name)
    return g, {name: a for name, a in x.items() if a is not None and not name.isupper()}


def gathering(opened, axis=0, dtype=np.int64):
    """Rows of 20 numbers."""
    indices = np.array([[1, 0], [2, -1]], dtype)
    return graph("gather", {"x": floats(5, 7, 20), "n": indices}, opened=opened, axis=axis)


ONE = {"tokens": 1}
CACHES = {"f32": {}, "f16": ONE, "bf16": ONE, "s8": {**ONE, "interleaved": True}, "s4": ONE}
"""The types of caches, and what goes with them so that tests/kernels/attention has compiled the kernels."""


def attention(opened, kept="f32", *, tokens=2, rows=40, keys=40, total=30, past=True, places=60, of="length",
              interleaved=False, onnx=False):
    """Two batch elements of the same length; the input `n` has the lengths less 1, or the positions.

    The bias has `keys` keys, or is absent. If `onnx`, the graph is that of an ONNX file of one GroupQueryAttention.
    """
    heads, groups, size = 4, 2, 20
    packed = {"s8": np.int8, "s4": np.uint8}.get(kept)
    shape = (2, groups, rows, size // 2 if kept == "s4" else size)
    caches = [rng.integers(0, 100, shape).astype(packed) if packed else floats(*shape).astype(DTYPES[kept].numpy)
              for _ in range(2)] if past else [None, None]
    positions = np.full((2, tokens), 1)
    x = {"q": floats(2, tokens, heads * size), "n" if of == "length" else "lengths": np.int32([tokens - 1] * 2),
         "total" if opened or onnx else "TOTAL": np.int32([total]),
         "k": floats(2, tokens, groups * size), "v": floats(2, tokens, groups * size),
         "past_k": caches[0], "past_v": caches[1], "cos": floats(places, 8), "sin": floats(places, 8),
         "n" if of == "position" else "places": positions if of == "position" else None,
         "bias": None if keys is None else floats(2, heads, tokens, keys), "sinks": floats(heads)}
    if packed:
        x |= {name: np.abs(floats(groups, size)) for name in ("k_scale", "v_scale")}
    attrs = {"scale": 0.3, "softcap": 2.0}
    if onnx:
        return by_onnx(opened, x, {**attrs, "num_heads": heads, "kv_num_heads": groups, "local_window_size": 9,
                                   "do_rotary": 1, "rotary_interleaved": int(interleaved),
                                   **({"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL",
                                       "kv_cache_bit_width": int(kept[1])} if packed else {})})
    unknown = {"q": (0, 1), "k": (0, 1), "v": (0, 1), "past_k": (0, 2), "past_v": (0, 2), "cos": (0,), "sin": (0,),
               "total": (), "bias": (0, 2, 3), "sinks": (), "k_scale": (), "v_scale": ()}
    return graph("cached_attention", x, opened=opened, unknown=unknown, outputs=("y", "keys", "values"), heads=heads,
                 groups=groups, kept=kept, window=9, interleaved=interleaved,
                 capacity=-1 if opened or not past else max(rows, total), **attrs)


def by_onnx(opened, x, attrs):
    """The same operands in the order of GroupQueryAttention; widths are known."""
    order = ("q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin", "places", "bias", "sinks", "k_scale",
             "v_scale")
    if "n" in x:
        order = ["n" if name not in x and name in ("lengths", "places") else name for name in order]
    inputs = [(name, x.get(name)) for name in order]
    while inputs[-1][1] is None:
        inputs.pop()
    model = node_model("GroupQueryAttention", inputs, attrs, 3, open_shapes=opened)
    for v in model.graph.input if opened else ():
        if v.name not in ("n", "lengths", "total", "bias"):
            dims = v.type.tensor_type.shape.dim
            dims[-1].dim_value = x[v.name].shape[-1]
            if v.name in ("sinks", "k_scale", "v_scale"):
                dims[0].dim_value = x[v.name].shape[0]
            elif v.name[:4] == "past":
                dims[1].dim_value = x[v.name].shape[1]
        elif v.name == "total":
            v.type.tensor_type.shape.dim[0].dim_value = 1
    return gq.load_onnx(model), {name: a for name, a in inputs if a is not None}


def layer(opened, op="lstm", quantized=False, reverse=False, **attrs):
    """A layer of 4 steps and 3 rows, the last of which has the length."""
    gates, units = {"lstm": 4, "gru": 3, "rnn": 1}[op], 5
    weights = rng.integers(-128, 128, (gates * units, units)) if quantized else floats(gates * units, units)
    x = {"x": floats(4, 3, gates * units), "R": np.float32(weights), "h": None, "c": None,
         "S": np.float32([0.01]) if quantized else None, "n": np.int32([0, 4, 2])}
    if op != "lstm":
        x = {name: a for name, a in x.items() if name in ("x", "R", "h", "n") or name == "S" and op == "gru"}
    return graph(op, x, opened=opened, unknown={"x": (0, 1)}, outputs=("y", "last", "cell"), reverse=reverse, **attrs)


NUMBERS = {
    "index of a gather": (gathering, -5, 4),
    "s32 index of a gather": (partial(gathering, dtype=np.int32), -5, 4),
    "index of a gather along a second axis": (partial(gathering, axis=1), -7, 6),
    **{f"length, caches of {kept}": (partial(attention, kept=kept, keys=90, **more), 0, 39)
       for kept, more in CACHES.items()},
    **{f"position, caches of {kept}": (partial(attention, kept=kept, of="position", keys=90, **more), 0, 59)
       for kept, more in CACHES.items()},
    **{f"length in a file of one node, caches of {kept}": (
        partial(attention, kept=kept, keys=41, onnx=True, **more), 0, 39) for kept, more in CACHES.items()},
    "position in a file of one node": (partial(attention, of="position", onnx=True), 0, 59),
    "length without a bias": (partial(attention, keys=None, **ONE), 0, 39),
    "length in a cache that grows": (partial(attention, total=41, keys=60), 0, 40),
    "length in a cache that grows, bias of as many keys": (partial(attention, total=44, keys=44), 0, 41),
    "length, bias of fewer keys": (partial(attention, keys=33), 0, 32),
    "length of a prompt": (partial(attention, past=False), 0, 1),
    "length, caches of no rows": (partial(attention, rows=0, total=3), 0, 1),
    "length whose last token has a place": (partial(attention, places=32), 0, 31),
    "length of a sequence, LSTM": (layer, 0, 4),
    "length of a sequence, LSTM backwards": (partial(layer, reverse=True), 0, 4),
    "length of a sequence, quantized LSTM": (partial(layer, quantized=True), 0, 4),
    "length of a sequence, GRU": (partial(layer, op="gru", linear_before_reset=True), 0, 4),
    "length of a sequence, RNN": (partial(layer, op="rnn"), 0, 4),
}
"""Each number by its name: a function that makes a graph and its inputs, and the least and greatest number allowed.

The graph has open shapes if the function is told so. The number is the last one of the input `n`.
"""


@pytest.fixture(autouse=True, scope="module")
def fences():
    """Fences behind the buffers between steps. Yields a function that tells whether they are intact."""
    rooms = []

    def empty(nbytes):
        rooms.append(aligned_empty(nbytes + FENCE))
        rooms[-1][nbytes:] = 0xA5
        return rooms[-1][:nbytes]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "aligned_empty", empty)
        yield lambda: all((room[-FENCE:] == 0xA5).all() for room in rooms)


def words(call):
    """What an InputError says after the text of the node, that is after the last name of an operation."""
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value).rsplit(": ", 2)[1:]


@pytest.mark.parametrize("name, width, opened", all_pairs(NUMBERS, WIDTHS, [False, True]), indirect=["width"])
def test_numbers_at_their_limits_and_beyond(width, name, opened, fences):
    make, least, greatest = NUMBERS[name]
    g, x = make(opened)
    model = gq.compile(g, isa=width, threads=2, strict=True)
    x = {n: guarded(a) for n, a in x.items()}
    last, kind = x["n"].reshape(-1), np.iinfo(x["n"].dtype)
    for number in (least, greatest):
        last[-1] = number
        want, got = ({"y": y} if isinstance(y, np.ndarray) else y for y in (gq.reference(g, x), model(x)))
        for n in want:
            np.testing.assert_array_equal(got[n], want[n], err_msg=f"{n} at {number}")
    out = {n: fenced(y.shape, y.dtype) for n, y in zip(model.outputs, want.values(), strict=True)}
    for number in (least - 1, greatest + 1, greatest + 7, kind.min, kind.min + 1, kind.max - 1, kind.max):
        last[-1] = number
        assert words(lambda: model(x, out={n: a for n, (a, _) in out.items()})) == words(lambda: gq.reference(g, x))
        assert all(is_intact(room) for _, room in out.values()) and fences(), f"{number} wrote elsewhere"


def test_a_wrong_number_is_reported_before_its_results_are_read():
    """The reference that runs after the kernel would refuse what the kernel left."""
    g = gq.Graph()
    table, n = g.constant(np.array([99, 0, 1])), g.input("n", shape=(1,), dtype="s64")
    g.output(g.gather_elements(g.input("x", shape=(2,), dtype="f32"), g.gather(table, n)), name="y")
    model, x = gq.compile(g, threads=1), floats(2)
    assert model(x=x, n=np.array([2])) == x[1]
    with pytest.raises(InputError, match=r"gather: indices must be in \[-3, 2\] .* got 3"):
        model(x=x, n=np.array([3]))


def test_the_capacity_of_a_cache_is_that_of_its_type():
    """Also where `total`, which a call gives, asks for more."""
    g, x = attention(True, keys=None)
    node = next(n for n in g.nodes if n.op.name == "cached_attention")
    fixed = gq.Graph()
    given = [None if v is None else fixed.input(v.name, shape=x[v.name].shape, dtype=v.dtype) for v in node.inputs]
    for name, v in zip("abc", fixed.cached_attention(*given, **{**node.attrs, "capacity": 41}), strict=True):
        fixed.output(v, name=name)
    x["total"][:] = 50
    got, want = gq.compile(fixed, threads=1, strict=True)(x), gq.reference(fixed, x)
    for name in "abc":
        np.testing.assert_array_equal(got[name], want[name])
    assert got["b"].shape[2] == 41
