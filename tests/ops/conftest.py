"""Fixtures: `infer` types from text, `run` an op's reference and hold its result against the inferred type."""
from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import as_dtype
from graphq.ir import TensorType
from graphq.ir.op import lookup


def parse(text):
    """"f32[4,?]" -> TensorType; "f32[*]" has unknown rank, None stays."""
    if text is None:
        return None
    dtype, dims = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()
    if dims == "*":
        return TensorType(as_dtype(dtype), None)
    return TensorType(as_dtype(dtype), tuple(None if d == "?" else int(d) for d in dims.split(",") if d))


@pytest.fixture
def infer():
    """infer("add", "f32[4]", "f32[4]") -> "f32[4]"; several outputs give a tuple."""

    def infer(name, *types, **attrs):
        g = gq.Graph()
        parsed = [parse(t) for t in types]
        values = [None if t is None else g.input(f"x{k}", dtype=t.dtype, shape=t.shape) for k, t in enumerate(parsed)]
        out = getattr(g, name)(*values, **attrs)
        return tuple(str(v.type) for v in out) if isinstance(out, tuple) else str(out.type)

    return infer


def agrees(type, array):
    fits = type.shape is None or (len(type.shape) == array.ndim
                                  and all(d in (None, n) for d, n in zip(type.shape, array.shape, strict=True)))
    return isinstance(array, np.ndarray) and type.dtype.numpy == array.dtype and fits


def partly_known(shapes):
    """Shapes of which each is known, has unknown dimensions or no rank; and those with one dimension unknown."""
    ways = [[s] if s is None else [s, (None,) * len(s), None] for s in shapes]
    if len(shapes) <= 4:
        yield from product(*ways)
    else:
        yield from zip(*((way * 3)[:3] for way in ways), strict=True)
    for k, shape in enumerate(shapes):
        for d in range(len(shape or ())):
            yield [(*s[:d], None, *s[d + 1:]) if j == k else s for j, s in enumerate(shapes)]


@pytest.fixture
def run():
    """The reference of an op on arrays; it must have the type inferred from whatever is known of their shapes."""

    def run(name, *arrays, **attrs):
        op = lookup(name)
        attrs = op.complete(attrs)
        out = op.reference(*arrays, **attrs)
        outs = out if isinstance(out, tuple) else (out,)
        for shapes in partly_known([None if a is None else a.shape for a in arrays]):
            types = op.infer(*(None if a is None else TensorType(as_dtype(a.dtype), shape)
                               for a, shape in zip(arrays, shapes, strict=True)), **attrs)
            for t, y in zip(types if isinstance(types, tuple) else (types,), outs, strict=True):
                assert agrees(t, y), f"{name} inferred {t} for {y.dtype}{y.shape} from {shapes}"
        known = op.infer(*(None if a is None else TensorType(as_dtype(a.dtype), a.shape) for a in arrays), **attrs)
        assert all(t.known for t in (known if isinstance(known, tuple) else (known,)))
        return out

    return run


def pytest_generate_tests(metafunc):
    """A parameter named `float_dtype` runs over f32, bf16 and f16."""
    if "float_dtype" in metafunc.fixturenames:
        metafunc.parametrize("float_dtype", ["f32", "bf16", "f16"])


@pytest.fixture
def onnx_node():
    """onnx_node("Conv", [x, w], opset=22, pads=[...]) -> the outputs of one node in ONNX's reference evaluator."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    def run(op_type, arrays, *, opset=22, outputs=1, **attrs):
        given = {f"x{k}": a for k, a in enumerate(arrays) if a is not None}
        names = ["" if a is None else f"x{k}" for k, a in enumerate(arrays)]
        results = [f"y{k}" for k in range(outputs)]
        inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                  for n, a in given.items()]
        graph = helper.make_graph([helper.make_node(op_type, names, results, **attrs)], "g", inputs,
                                  [helper.make_tensor_value_info(r, onnx.TensorProto.FLOAT, None) for r in results])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        got = ReferenceEvaluator(model).run(None, given)
        return got[0] if outputs == 1 else got

    return run
