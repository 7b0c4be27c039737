"""Models of one node; their results by graphq and by ONNX Runtime."""
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx_runtime import results

import graphq as gq

MICROSOFT = "com.microsoft"


def node_model(op: str, inputs: Sequence[tuple[str, Any]], attrs: dict[str, Any] | None = None, outputs: int = 1, *,
              open_shapes: bool = False, domain: str = MICROSOFT, opset: int = 17) -> onnx.ModelProto:
    """The model of one node: inputs by name (None: absent, upper case: constants); outputs o0, o1 ... without types."""
    constants = [numpy_helper.from_array(np.asarray(x), n) for n, x in inputs if x is not None and n.isupper()]
    given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype),
                                           [f"{n}{k}" for k in range(np.ndim(x))] if open_shapes else np.shape(x))
             for n, x in inputs if x is not None and not n.isupper()]
    names = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op, ["" if x is None else n for n, x in inputs], names, domain=domain, **attrs or {})
    graph = helper.make_graph([node], "net", given, [onnx.ValueInfoProto(name=n) for n in names], constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset),
                                                                 helper.make_opsetid(MICROSOFT, 1)])


def feeds(inputs: Sequence[tuple[str, Any]]) -> dict[str, np.ndarray]:
    """The arrays of the inputs that are no constants."""
    return {n: np.asarray(x) for n, x in inputs if x is not None and not n.isupper()}


def by_onnx_runtime(model: onnx.ModelProto, inputs: Sequence[tuple[str, Any]]) -> list[np.ndarray]:
    """What its CPU kernel gives (`onnx_runtime.results`)."""
    return results(model, feeds(inputs))


def by_graphq(model: onnx.ModelProto, inputs: Sequence[tuple[str, Any]]) -> Iterator[list[np.ndarray]]:
    """The results operation by operation, then compiled."""
    g = gq.load_onnx(model)
    for out in (gq.reference(g, feeds(inputs)), gq.compile(g, threads=1)(feeds(inputs))):
        yield list(out.values()) if isinstance(out, dict) else [out]


def assert_near(got: Sequence[np.ndarray], want: Sequence[np.ndarray], *, tolerance: float = 1e-5, steps: int = 0,
                rare: float = 0.01) -> None:
    """Floats within the tolerance; integers equal, or but for a few of them within so many steps."""
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if b.dtype.kind in "iu":
            difference = np.abs(a.astype(np.int64) - b.astype(np.int64))
            assert difference.max(initial=0) <= steps and (difference > 0).mean() <= rare
        else:
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
