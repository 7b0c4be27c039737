"""Dequantize moves behind gather, slice and expand; text in and text out, with the negatives."""
import numpy as np
import pytest

import graphq as gq
from graphq.passes.move_quantization import GatherBeforeDequantize, PickBeforeDequantize
from graphq.testing import check_pass

PICKS = ["slice({}, axes=[1], starts=[4], ends=[-9], steps=[-2])", "expand({}, shape=[3,1,1])"]
CHANNELS = 'dequantize(x, qtype="per_channel", axis=0, scales=[1,2,3,4])'


def check(rewrite, before, after=None, inputs="x: u8[4,6]", **kwargs):
    before, after = (None if t is None else f"graph({inputs}) {{\n{t}\n}}" for t in (before, after))
    return check_pass(rewrite, before=before, after=after, **kwargs)


@pytest.mark.parametrize("pick", PICKS)
def test_picks(pick):
    check(PickBeforeDequantize(),
          f"%0 = dequantize(x, scales=[0.1], zps=[3])\n %1 = {pick.format('%0')}\n return %1",
          f"%0 = {pick.format('x')}\n %1 = dequantize(%0, scales=[0.1], zps=[3])\n return %1", count=1)
    check(PickBeforeDequantize(), f"%0 = {CHANNELS}\n %1 = {pick.format('%0')}\n return %1")


def test_a_second_user_keeps_the_dequantize():
    text = f"%0 = dequantize(x, scales=[0.1])\n %1 = {PICKS[0].format('%0')}\n return %1, %0"
    check(PickBeforeDequantize(), text)


GATHERED = "%t = constant(value=u8[3,2]{1, 2, 3, 4, 5, 6}) : u8[3,2]\n"


def test_gather():
    g = gq.parse(f"""graph(i: s64[5]) {{\n {GATHERED} %0 = dequantize(%t, scales=[0.5], zps=[1])
        %1 = gather(%0, i)\n return %1\n}}""")
    h = g.copy()
    assert GatherBeforeDequantize()(h) == 1
    assert [n.op.name for n in h.nodes] == ["constant", "gather", "dequantize"]
    i = np.asarray([0, -1, 2, 1, -3])
    np.testing.assert_array_equal(gq.reference(h, i=i), gq.reference(g, i=i))


def test_gather_of_channels_stays():
    g = gq.parse(f"""graph(i: s64[5]) {{\n {GATHERED}
        %0 = dequantize(%t, qtype="per_channel", scales=[0.5,1])\n %1 = gather(%0, i)\n return %1\n}}""")
    assert GatherBeforeDequantize()(g) == 0


def test_a_table_stays_as_it_is_in_the_compiled_graph():
    g = gq.parse(f"""graph(i: s64[5]) {{\n {GATHERED} %0 = dequantize(%t, scales=[0.5], zps=[1])
        %1 = gather(%0, i)\n return %1\n}}""")
    model = gq.compile(g)
    assert {n.output.dtype.name for n in model.graph.nodes if n.op.name == "constant"} == {"u8"}
    i = np.asarray([0, -1, 2, 1, -3])
    np.testing.assert_array_equal(model(i=i), gq.reference(g, i=i))
