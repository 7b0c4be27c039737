"""Operations with a kernel of their own: which they are, and the multiply-accumulates of recurrent layers."""
import pytest

import graphq as gq
from graphq.kernels.moves.integers import COMPARISONS
from graphq.kernels.native import NATIVE, recurrent_macs
from graphq.kernels.recurrent.steps import GATES


def test_the_operations():
    assert NATIVE.keys() == {"static_transpose", "dynamic_range", "slice", "gather", "pad", "expand", "cast",
                             "histogram", "lstm", "gru", "rnn", "cached_attention", "integer_sum", "arithmetic",
                             "rotary_embedding", "tensor_scatter", "linear_attention",
                             *COMPARISONS}, "a new one has its name here"
    assert {name for name, x in NATIVE.items() if x.macs} == {*GATES, "cached_attention", "linear_attention"}
    assert set(GATES) == {"lstm", "gru", "rnn"}


@pytest.mark.parametrize("op, gates", [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_macs_of_recurrent_layers(op, gates):
    steps, rows, hidden = 7, 3, 5
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(steps, rows, gates * hidden))
    w = g.input("w", dtype="f32", shape=(gates * hidden, hidden))
    node = getattr(g, op)(x, w)[0].node
    assert recurrent_macs(node) == NATIVE[op].macs(node) == steps * rows * hidden * gates * hidden
