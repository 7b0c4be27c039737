"""ONNX Runtime as an oracle: every comparison with its CPU kernels makes its session here.

On x86 CPUs without VNNI those kernels add two products of u8 and s8 in 16 bits, and saturate: 2 * 255 * 127 is beyond
32,767. Products of u8 and u8, and of s8 and s8, are exact on all of them. So a session here gets the constant s8
weights of integer operators as u8: weights and zero point 128 higher, which changes no result. A session that optimizes
the graph makes such operators itself of floats between quantizes; `session.x64quantprecision` has ONNX Runtime do the
same with those. `tests/onnx/test_onnx_runtime.py` holds that both are exact, on whatever machine it runs.

Floats have no such option: sums of f32 are in the order of the kernels that the machine has. Tests that compare those
bit for bit say from which instructions on they hold (docs/numbers.md).
"""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

WEIGHTS = {  # operator -> pairs of inputs: weights, and their zero points
    "MatMulInteger": [(1, 3)], "ConvInteger": [(1, 3)], "QLinearConv": [(3, 5)], "QLinearMatMul": [(3, 5)],
    "QGemm": [(3, 5)], "MatMulIntegerToFloat": [(1, 5)], "DynamicQuantizeMatMul": [(1, 3)], "QAttention": [(1, 7)],
    "DynamicQuantizeLSTM": [(1, 9), (2, 11)]}
"""Operators whose first input may be u8 where these are s8."""
OFFSET = 128


def exact(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which integer operators of u8 activations have u8 weights."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    constants = {t.name: t for t in model.graph.initializer}
    dtypes = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    dtypes |= {t.name: t.data_type for t in constants.values()}
    shifted: dict[str, str] = {}
    for node in model.graph.node:
        for weights, zero in WEIGHTS.get(node.op_type, ()):
            if dtypes.get(node.input[0]) == TensorProto.INT8 or dtypes.get(node.input[weights]) != TensorProto.INT8:
                continue
            node.input.extend([""] * (zero + 1 - len(node.input)))
            for place in (weights, zero):
                name = node.input[place]
                if name not in shifted:
                    values = numpy_helper.to_array(constants[name]) if name else np.int8(0)
                    shifted[name] = f"{name}_as_u8"
                    values = np.asarray(values.astype(np.int16) + OFFSET, np.uint8)
                    model.graph.initializer.append(numpy_helper.from_array(values, shifted[name]))
                node.input[place] = shifted[name]
    return model


def session(model: onnx.ModelProto | Path, *, optimized: bool = False) -> Any:
    """A session that executes each operation by itself, or with all optimizations.

    The test is skipped without ONNX Runtime, and if its version is older than an operation of com.microsoft.
    """
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra `test`)")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if optimized:
        options.add_session_config_entry("session.x64quantprecision", "1")
    else:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = onnx.load(model) if isinstance(model, Path) else model
    try:
        return ort.InferenceSession(exact(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a kind that has no public name
        if "com.microsoft:" in str(error) and "is not a registered function/op" in str(error):
            pytest.skip(f"onnxruntime {ort.__version__}: {error}")
        raise


def results(model: onnx.ModelProto | Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What each operation by itself gives for these inputs."""
    return session(model).run(None, dict(feeds))
