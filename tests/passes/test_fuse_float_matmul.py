"""FuseFloatMatmul: what becomes a partition, what the integer fusion keeps, and why others do not fuse."""
import pytest

from graphq.ir.text import parse
from graphq.passes import Fuse
from graphq.testing import check_pass


def test_a_dense_layer():
    check_pass(Fuse("matmul", floats=True), before="""
        graph(x: f32[4,3], w: f32[3,2], b: f32[2]) {
          %0 = matmul(x, w, b)
          %1 = relu(%0)
          return %1
        }""", after="""
        graph(x: f32[4,3], w: f32[3,2], b: f32[2]) {
          %0 = partition(x, w, b, body=graph body(x: f32[4,3], w: f32[3,2], b: f32[2]) {
            %0 = matmul(x, w, b)
            %1 = relu(%0)
            return %1 as out0
          }, anchor="matmul")
          return %0
        }""", count=1)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_every_float_dtype_fuses(dtype):
    graph = parse(f"graph(x: {dtype}[4,3], w: {dtype}[3,2]) {{ %0 = matmul(x, w) return %0 }}")
    assert Fuse("matmul", floats=True).apply(graph)[0] == 1


@pytest.mark.parametrize(("text", "reason"), [
    ("graph(x: f32[4,3], w: f32[3]) { %0 = matmul(x, w) return %0 }", "one-dimensional operands"),
    ("graph(x: f32[3], w: f32[2,3,2]) { %0 = matmul(x, w) return %0 }", "one-dimensional operands"),
    ("graph(x: f32[?,3], w: f32[3,2]) { %0 = matmul(x, w) return %0 }", "known only at the first call"),
    ("graph(x: f32[4,3], w: f32[3,2], z: f32[5,4,2]) { %0 = matmul(x, w) %1 = add(%0, z) return %1 }",
     "computed more than once"),
    ("graph(x: f32[4,3], w: f32[3,2]) { %0 = matmul(x, w) %1 = relu(%0) %2 = softmax(%0) %3 = add(%1, %2) return %3 }",
     "is also used by"),
])
def test_reasons(text, reason):
    _, refusals = Fuse("matmul", floats=True).apply(parse(text))
    assert any(reason in r.reason for r in refusals)


def test_integers_come_first_and_operands_keep_their_dequantize():
    text = """graph(x: u8[4,3], w: s8[3,2], y: u8[4,2]) {
      %0 = dequantize(x, scales=[0.5])
      %1 = dequantize(w, scales=[0.25])
      %2 = matmul(%0, %1)
      return %2
    }"""
    graph = parse(text)
    assert Fuse("matmul").apply(graph)[0] == 1 and Fuse("matmul", floats=True).apply(graph)[0] == 0
    graph = parse(text)
    assert Fuse("matmul", floats=True).apply(graph)[0] == 1
    assert [n.op.name for n in graph.nodes] == ["dequantize", "dequantize", "partition"]
