"""Which quantizes `explain()` says are not settled: after sums, after functions, and what it leaves unsaid."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.families import TIES
from graphq.passes.pipeline import run_passes
from graphq.report import survey as tie_report

W = "%w = constant(value=s8[2,2]{1, -2, 3, 4})\n %v = dequantize(%w, scales=[0.1])\n"
Q, DQ = "quantize({}, dtype=u8, scales=[0.1])", "dequantize({}, scales=[0.1])"


def ties(body, inputs="x: u8[4,2], f: f32[4,2]"):
    g = gq.parse(f"graph({inputs}) {{\n {body}\n}}")
    run_passes(g)
    return [line.split("quantize is not settled: ")[1].split(" may")[0] for line in tie_report.ties(g)[1:]]


@pytest.mark.parametrize("op", ["exp", "tanh", "sigmoid", "erf", "elu", "gelu", "softmax", "log_softmax", "mish"])
def test_functions_without_a_sum_are_named(op):
    attrs = {"elu": ", alpha=1.0", "softmax": ", axis=-1", "log_softmax": ", axis=-1"}.get(op, "")
    assert ties(f"%0 = {DQ.format('x')}\n %1 = {op}(%0{attrs})\n %2 = {Q.format('%1')}\n return %2") == [op]
    assert ties(f"%1 = {op}(f{attrs})\n %3 = relu(%1)\n %2 = {Q.format('%3')}\n return %2") == [op]


@pytest.mark.parametrize("op", ["relu", "abs", "square", "sqrt", "round", "leaky_relu", "hard_swish"])
def test_exact_operations_are_not(op):
    attrs = ", alpha=0.1" if op == "leaky_relu" else ""
    assert ties(f"%0 = {DQ.format('x')}\n %1 = {op}(%0{attrs})\n %2 = {Q.format('%1')}\n return %2") == []


def test_a_sum_of_the_same_partition_has_their_errors_in_its_band():
    assert ties(f"{W} %0 = {DQ.format('x')}\n %1 = matmul(%0, %v)\n %2 = tanh(%1)\n %3 = {Q.format('%2')}\n "
                "return %3") == []


def test_functions_after_the_quantize_of_a_sum():
    text = f"{W} %0 = {DQ.format('x')}\n %1 = matmul(%0, %v)\n %2 = {Q.format('%1')}\n %3 = {DQ.format('%2')}\n "
    assert ties(f"{text} %4 = tanh(%3)\n %5 = {Q.format('%4')}\n return %5") == ["tanh"]
    assert ties(f"{text} %4 = relu(%3)\n %5 = {Q.format('%4')}\n return %5") == []


def test_what_other_partitions_compute():
    """A result of f32 is used twice: its quantize stands in a partition of its own, or in none."""
    text = f"%0 = exp(f)\n %1 = softmax(%0, axis=-1)\n %2 = {Q.format('%0')}\n return %1, %2"
    assert ties(text) == ["exp"]
    text = f"{W} %0 = {DQ.format('x')}\n %1 = matmul(%0, %v)\n %2 = softmax(%1, axis=-1)\n %3 = {Q.format('%1')}\n "
    assert "matmul" in ties(f"{text} return %2, %3") or ties(f"{text} return %2, %3") == []


def test_a_sum_of_another_partition_is_named():
    text = f"%1 = matmul(f, f, transpose_b=true)\n %2 = softmax(%1, axis=-1)\n %3 = relu(%1)\n %4 = {Q.format('%3')}"
    assert ties(f"{text}\n return %2, %4") == ["matmul"]


def test_what_is_before_a_dynamic_quantize_does_not_count():
    text = f"""%0 = exp(f)
 %1, %2 = dynamic_range(%0)
 %3 = dynamic_quantize(%0, %1, %2, dtype=u8)
 %4 = dequantize(%3, scales=[0.3])
 %5 = sqrt(%4)
 %6 = {Q.format('%5')}"""
    assert ties(f"{text}\n return %6") == []


@pytest.mark.parametrize("op", ["exp", "tanh", "sigmoid", "erf", "mish", "log"])
def test_they_do_differ(op):
    """Of a thousand numbers some results are others than the reference's, which are rounded once."""
    from graphq.model.build_plan import evaluate_formulas

    g = gq.parse(f"graph(x: f32[100000]) {{\n %0 = {op}(x)\n return %0\n}}")
    x = np.linspace(0.01, 9, 100000, dtype=np.float32)
    h = g.copy()
    run_passes(h)
    assert (evaluate_formulas(h, {"x": x})[0] != gq.reference(g, x=x)).any()


def test_windows_of_many_taps_are_given_as_the_reason():
    g = gq.Graph("wide")
    x = g.dequantize(g.input("x", dtype="u8", shape=(1, 34, 34, 1)), scales=[0.02], zps=[3])
    w = g.dequantize(g.constant(np.ones((1, 1, 33, 33), np.int8)), scales=[0.01])
    y = g.convolution(x, w, data_format="NXC", weights_format="OIX")
    g.output(g.quantize(y, dtype="u8", scales=[0.5]), name="y")
    (line,) = [x for x in gq.compile(g, threads=1, isa="scalar").explain().splitlines() if "is not settled" in x]
    assert "does not multiply operands with constant scales, in windows of at most 1024 taps" in line


def test_what_a_plan_noted_of_its_ties_is_what_lowering_says(monkeypatch):
    body = f"{W} %0 = {DQ.format('x')}\n %1 = matmul(%0, %v)\n %2 = {Q.format('%1')}\n return %2"
    g = gq.parse(f"graph(x: u8[4,2]) {{\n {body}\n}}")
    model = gq.compile(g, threads=1)
    run_passes(g)
    lines = tie_report.ties(g)
    assert lines and lines[0].startswith("ties: 1 quantize settled")
    monkeypatch.setattr(tie_report, "lower_partition", None)
    assert model.explain(format="json")["ties"] == lines


def settled(count, proved, estimated):
    return (f"ties: {count} settled by the f32 sums of the graph as written: {proved} within proved bounds, "
            f"{estimated} within estimated ones")


@pytest.mark.parametrize("noted, said", [
    (("proved", "estimated"), [settled("2 quantizes", 1, 1)]),
    (("estimated", "estimated"), [settled("2 quantizes", 0, 2)]),
    (("formula", "formula"), ['ties: 2 quantizes not settled, as ties="formula" says']),
    (("formula", "proved"), ['ties: 1 quantize not settled, as ties="formula" says', settled("1 quantize", 1, 0)]),
    (("too wide", "proved"), [settled("1 quantize", 1, 0), "  %a: too wide"]),
    (("too wide", "no scale"), [settled("0 quantizes", 0, 0), "  %a: too wide", "  %b: no scale"])])
def test_what_partitions_noted_is_counted(noted, said):
    g = gq.parse(f"""graph(x: u8[4,2], y: u8[4,2]) {{
      {W}
      %0 = {DQ.format('x')}
      %1 = matmul(%0, %v)
      %a = {Q.format('%1')}
      %2 = {DQ.format('y')}
      %3 = matmul(%2, %v)
      %b = {Q.format('%3')}
      return %a, %b
    }}""")
    run_passes(g)
    for name, text in zip("ab", noted, strict=True):
        (node,) = (v.node for v in g.outputs if v.name == name)
        node.meta = {**node.meta, TIES: (text,)}
    assert tie_report.ties(g) == said


def test_the_record_of_a_value():
    g = gq.parse("graph(x: f32[2,?], y: u8[*], z: s64[3,4]) {\n return x, y, z\n}")
    x, y, z = map(tie_report.tensor, g.inputs)
    assert (x.label, x.type, x.dtype, x.shape, x.nbytes) == ("x", "f32[2,?]", "f32", (2, None), None)
    assert (y.label, y.type, y.shape, y.nbytes) == ("y", "u8[*]", None, None) and (z.shape, z.nbytes) == ((3, 4), 96)
