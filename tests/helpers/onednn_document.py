"""oneDNN Graph documents, as Python values, for tests; and their files."""
import json
import math

from graphq.onednn.files import load_onednn_json

UNKNOWN = -(2**63)


def tensor(id, shape, dtype="f32", *, stride=None, layout="strided", property="undef"):
    if stride is None:
        stride = [math.prod(shape[k + 1:]) for k in range(len(shape))]
    return {"id": id, "dtype": dtype, "shape": shape, "stride": stride, "layout_type": layout,
            "property_type": property}


def op(id, kind, inputs, outputs, **attrs):
    return {"id": id, "name": f"{kind}_{id}", "kind": kind,
            "attrs": {k: {"type": t, "value": v} for k, (t, v) in attrs.items()}, "inputs": inputs, "outputs": outputs}


def document(*ops, **header):
    return {"version": "3.13.0", "engine_kind": "cpu", "fpmath_mode": "strict", **header, "graph": list(ops)}


def dense():
    """dequantize -> matmul with a bias -> relu -> quantize, ids and names as PyTorch gives them."""
    return document(
        op(139695268706816, "Dequantize", [tensor(0, [4, 8], "u8")], [tensor(10, [4, 8])],
           qtype=("string", "per_tensor"), axis=("s64", 1), scales=("f32[]", [1]), zps=("s64[]", [3])),
        op(7, "Dequantize", [tensor(1, [8, 2], "s8", stride=[1, 8], property="constant")],
           [tensor(11, [8, 2], property="constant")],
           qtype=("string", "per_channel"), axis=("s64", 1), scales=("f32[]", [0.1, 2]), zps=("s64[]", [0, 0])),
        op(8, "MatMul", [tensor(10, [4, 8]), tensor(11, [8, 2], property="constant"), tensor(2, [2])],
           [tensor(12, [4, 2])], transpose_a=("bool", 0), transpose_b=("bool", False)),
        op(9, "ReLU", [tensor(12, [4, 2])], [tensor(13, [UNKNOWN], stride=[UNKNOWN])]),
        op(2, "Quantize", [tensor(13, [UNKNOWN], stride=[UNKNOWN])], [tensor(14, [4, 2], "s8")],
           scales=("f32[]", [0.5])))


def write(folder, doc, name="graph.json"):
    path = folder / name
    path.write_text(doc if isinstance(doc, str) else json.dumps(doc), encoding="utf-8")
    return path


def load(folder, doc):
    return load_onednn_json(write(folder, doc))
