"""Check that operands have the same dtype if ONNX's schema, or a table for com.microsoft, requires it."""
from collections.abc import Sequence
from functools import lru_cache

import onnx
from onnx import NodeProto

from graphq.ir import Value

QUANTIZED = dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearReduceMean",
                           "QLinearSigmoid", "QLinearSoftmax"), "T-T-T")
BINARY = dict.fromkeys(("BiasGelu", "BiasSoftmax", "BiasSplitGelu", "FastGelu", "FusedMatMul", "FusedMatMulActivation",
                        "GridSample", "QuantizeLinear", "TransposeMatMul"), "TT")
OPERANDS = {"com.microsoft": QUANTIZED | BINARY | {
    "Attention": "TTT-TT", "BiasAdd": "TTT", "DequantizeLinear": "T-T", "DynamicQuantizeLSTM": "TUUT-TTTTUTU",
    "DynamicQuantizeMatMul": "TUTUT", "EmbedLayerNormalization": "--TTTTT", "FusedConv": "TTTT", "FusedGemm": "TTT",
    "GatedAdd": "TTTT", "GatherBlockQuantized": "T--T", "GemmFastGelu": "TTT", "GroupQueryAttention":
    "TTTCC--TT-TT--TT", "LayerNormalization": "-VV", "MatMulIntegerToFloat": "TUSSTUS", "MatMulNBits": "T-T--T",
    "MulInteger": "TTTT", "MultiHeadAttention": "TTTT-TTT", "NhwcConv": "TTT", "NhwcFusedConv": "TTTT", "Pad": "T-T",
    "QAttention": "TUSSS-TUS", "QEmbedLayerNormalization": "--TTTTT-SSSSSTTTTT", "QGemm": "TSTUSU-S",
    "QLinearAdd": "T-TT-T-T", "QLinearConv": "T-TU-U", "QLinearMul": "T-TT-T-T", "QLinearWhere": "-TFTTFTFT",
    "Range": "TTT", "RotaryEmbedding": "T-TT", "SkipLayerNormalization": "TTTTT",
    "SkipSimplifiedLayerNormalization": "TTTT"}}
"""One letter per operand, for operators without schemas in ONNX.

Operands with the same letter must have the same dtype; "-" allows any dtype. Source: the schemas of ONNX Runtime.
"""


def clash(node: NodeProto, domain: str, version: int, inputs: Sequence[Value | None]) -> str | None:
    """The error message if operands with the same type variable have different dtypes, or None."""
    variables, more = type_variables(node.op_type, domain, version)
    seen: dict[str, tuple[int, Value]] = {}
    for k, value in enumerate(inputs):
        variable = variables[k] if k < len(variables) else more
        if value is None or variable is None:
            continue
        first, other = seen.setdefault(variable, (k, value))
        if value.dtype != other.dtype:
            return (f"inputs {first} and {k} must have one dtype, got {other.type} for '{node.input[first]}' and "
                    f"{value.type} for '{node.input[k]}': cast one of them")
    return None


@lru_cache(4096)
def type_variables(op_type: str, domain: str, version: int) -> tuple[tuple[str | None, ...], str | None]:
    """The type variable of each operand in the schema, and of the further operands of a variadic operator."""
    if domain in OPERANDS:
        return tuple(None if x == "-" else x for x in OPERANDS[domain].get(op_type, "")), None
    schema = onnx.defs.get_schema(op_type, version, domain)
    known = {c.type_param_str for c in schema.type_constraints}
    variables = [x.type_str if x.type_str in known and x.is_homogeneous else None for x in schema.inputs]
    variadic = bool(schema.inputs) and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return tuple(variables), variables[-1] if variadic else None
