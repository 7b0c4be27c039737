"""Operations on constants fold, text in and text out; what stays."""
import sys
from functools import partial

import numpy as np

import graphq as gq
from graphq.ir import Graph
from graphq.ir.text import parse
from graphq.ir.verify import verify
from graphq.passes import (
    fold_constants,
    fold_dequantized_constants,
    fold_dequantized_operands,
)
from graphq.passes.pipeline import run_passes
from graphq.testing import check_pass

check = partial(check_pass, inputs="x: f32[4], y: f32[4]")


def test_operations_on_constants_fold():
    check(fold_constants, """%0 = constant(value=f32[4]{1, 2, 3, 4})
          %1 = constant(value=f32[]{2})
          %w = multiply(%0, %1)
          %2 = exp(%w)
          %3 = relu(%w)
          %4 = add(x, %3)
          return %4, %w""", """%w = constant(value=f32[4]{2, 4, 6, 8})
          %0 = constant(value=f32[4]{2, 4, 6, 8})
          %1 = add(x, %0)
          return %1, %w""")


def test_quantized_constants_fold_but_are_not_dequantized():
    check(fold_constants, """%0 = constant(value=f32[2]{0.26, -1})
          %1 = quantize(%0, dtype=s8, scales=[0.5])
          %2 = dequantize(%1, scales=[0.5])
          %3 = relu(%2)
          return %3""", """%0 = constant(value=s8[2]{1, -2})
          %1 = dequantize(%0, scales=[0.5])
          %2 = relu(%1)
          return %2""", count=1)


def test_wide_integers_fold():
    """Biases, s32: no anchor takes them as they are."""
    check(fold_constants, """%0 = constant(value=s32[4]{1, -2, 3, 4})
          %1 = dequantize(%0, scales=[0.5])
          %2 = add(x, %1)
          return %2""", """%0 = constant(value=f32[4]{0.5, -1, 1.5, 2})
          %1 = add(x, %0)
          return %1""", count=1)


def test_dequantized_operands_fold_but_those_of_anchors():
    check(fold_dequantized_operands, """%0 = constant(value=s8[2,2]{2, 2, 2, 2})
          %1 = dequantize(%0, scales=[0.5])
          %2 = matmul(x, %1)
          %3 = dequantize(%0, scales=[0.5])
          %4 = add(%2, %3)
          return %4""", """%0 = constant(value=s8[2,2]{2, 2, 2, 2})
          %1 = dequantize(%0, scales=[0.5])
          %2 = matmul(x, %1)
          %3 = constant(value=f32[2,2]{1, 1, 1, 1})
          %4 = add(%2, %3)
          return %4""", count=1, inputs="x: f32[2,2]")


def test_dequantized_constants_fold_last():
    check(fold_dequantized_constants, """%0 = constant(value=s8[2]{1, -2})
          %1 = dequantize(%0, scales=[0.5])
          %2 = relu(%1)
          return %2""", "%0 = constant(value=f32[2]{0.5, 0})\n return %0", count=2)


def test_what_depends_on_inputs_stays():
    text = "%0 = constant(value=f32[4]{1, 2, 3, 4})\n %1 = add(x, %0)\n return %1, %0"
    check(fold_constants, text)
    check(fold_dequantized_constants, text)


def test_partitions_of_constants_fold():
    check(fold_dequantized_constants, """%0 = constant(value=s8[2]{1, -2})
          %1 = partition(%0, body=graph body(i: s8[2]) {
            %0 = dequantize(i, scales=[0.5])
            return %0
          }, anchor="eltwise")
          return %1""", "%0 = constant(value=f32[2]{0.5, -1})\n return %0", count=1)


def test_an_integer_matmul_of_constants_folds():
    """It once failed: f32[2,1] may not become f32[1,2,1], the partition's results as one array."""
    g = parse("""graph(x: f32[2,1]) {
      %0 = constant(value=u8[2,2]{1, 2, 3, 4})
      %1 = constant(value=s8[2,1]{1, -2})
      %2 = dequantize(%0, scales=[0.5])
      %3 = dequantize(%1, scales=[2])
      %4 = matmul(%2, %3)
      %5 = add(x, %4)
      return %4, %5
    }""")
    run_passes(g)
    assert [n.op.name for n in g.nodes] == ["constant", "partition"]
    assert g.outputs[0].data.tolist() == [[-3.0], [-5.0]]


def test_several_results_fold():
    check(fold_constants, "%0 = constant(value=f32[3]{1, 3, 2})\n %1, %2 = top_k(%0, k=2)\n return %1, %2",
          "%0 = constant(value=f32[2]{3, 2})\n %1 = constant(value=s64[2]{1, 2})\n return %0, %1", count=1)


def test_what_cannot_run_stays():
    for attrs in ("dtypes=[f32]", "dtypes=[f32], shapes=[[2]]"):
        g = parse(f"graph() {{\n %0 = constant(value=f32[1]{{1}})\n %1 = wildcard(%0, {attrs})\n return %1\n}}")
        assert fold_constants(g) == 0 == fold_dequantized_constants(g)
        verify(g)


def test_large_results_stay(monkeypatch):
    monkeypatch.setattr(sys.modules["graphq.passes.fold_constants"], "MAX_ELEMENTS", 3)
    check(fold_constants, "%0 = constant(value=f32[4]{1, 2, 3, 4})\n %1 = exp(%0)\n return %1")


def test_every_dtype_folds():
    g = Graph()
    for dtype in ("u8", "s4", "bf16", "f8_e5m2", "boolean"):
        c = g.constant(np.ones((2, 3), gq.dtypes.as_dtype(dtype).numpy))
        g.output(g.static_transpose(c, order=[1, 0]))
    want = gq.reference(g)
    assert fold_constants(g) == 5 and all(n.op.name == "constant" for n in g.nodes)
    verify(g)
    got = gq.reference(g)
    assert all(got[k].dtype == want[k].dtype and np.array_equal(got[k], want[k]) for k in want)
