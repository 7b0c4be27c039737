"""What is returned, or read, in floats: `explain()` lists it apart from other obstacles."""
import pytest

import graphq as gq
from graphq.report.given import BORDER

Q = "dtype=u8, scales=[0.2], zps=[7]"


def report(text):
    return gq.compile(gq.parse(text), threads=1).explanation()


def test_borders_stand_apart():
    text = f"graph(x: f32[3,4]) {{\n %q = quantize(x, {Q})\n %d = dequantize(%q, scales=[0.2])\n return %d\n}}"
    assert {c.check for c in report(text).causes} == {BORDER}
    shown = gq.compile(gq.parse(text), threads=1).explain()
    assert "in floats at the graph's border:" in shown
    assert "why:  %d, a dequantize, is returned in f32\n    edit: return %q instead" in shown


@pytest.mark.parametrize("after", ["%e = exp(%s)", f"%t = exp(%s)\n %e = quantize(%t, {Q})",
                                   "%t = exp(%s)\n %e = softmax(%t, axis=0)"])
def test_a_chain_ends_where_it_is_returned(after):
    """Whatever else reads what is returned, and even if that is quantized."""
    found = report(f"graph(x: u8[4,8]) {{\n %d = dequantize(x, scales=[0.1], zps=[3])\n %r = relu(%d)\n"
                   f" %s = softmax(%r, axis=0)\n {after}\n return %s, %e\n}}").causes
    (cause,) = (c for c in found if c.value == "%r")
    assert (cause.check, cause.reason) == (BORDER, "%s is returned in f32, and not quantized")


@pytest.mark.parametrize("move", ["static_transpose(%t, order=[1,0])", "static_reshape(%t, shape=[32])"])
def test_moves_end_where_they_are_returned(move):
    """Even if only another move reads what is returned."""
    found = report("graph(x: u8[4,8]) {\n %d = dequantize(x, scales=[0.1], zps=[3])\n %r = relu(%d)\n"
                   f" %t = static_transpose(%r, order=[1,0])\n %u = {move}\n %e = softmax(%u, axis=0)\n"
                   " return %t, %e\n}").causes
    (cause,) = (c for c in found if c.value == "%r")
    assert cause.reason.startswith("%t has 2 users in f32: %u = ")
    assert cause.reason.endswith(" and an output of the graph")
