"""Operands that ONNX gives one type variable have one dtype, whichever the operator, and errors name node and types."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphq as gq
from graphq.errors import GraphError
from graphq.onnx.importers.importer import IMPORTERS, importer_of
from graphq.onnx.importers.operand_types import OPERANDS

OPSET = 21
NAMES = {TensorProto.FLOAT: "f32", TensorProto.FLOAT16: "f16", TensorProto.INT8: "s8", TensorProto.UINT8: "u8"}


def node_model(op, dtypes, domain="", attrs=None):
    """A model of one node called `it`, with a vector of each dtype as an operand; None stands for no operand."""
    names = ["" if d is None else f"x{k}" for k, d in enumerate(dtypes)]
    node = helper.make_node(op, names, ["y0"], "it", domain=domain, **(attrs or {}))
    inputs = [helper.make_tensor_value_info(n, d, [2]) for n, d in zip(names, dtypes, strict=True) if n]
    outs = [helper.make_empty_tensor_value_info("y0")]
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(helper.make_graph([node], "net", inputs, outs), ir_version=10, opset_imports=opsets)


def expected(k, j, a, b, op):
    return (rf"^net: {op} 'it': inputs {k} and {j} must have one dtype, got {NAMES[a]}\[2\] for 'x{k}' and "
            rf"{NAMES[b]}\[2\] for 'x{j}': cast one of them$")


def pairs():
    """For each operator of ONNX that graphq imports, the places of each type variable that takes f32 and f16."""
    schemas = {s.name: s for s in onnx.defs.get_all_schemas_with_history() if not s.domain and s.since_version <= OPSET
               and s.since_version == onnx.defs.get_schema(s.name, OPSET).since_version}
    for schema in schemas.values():
        if schema.deprecated or not importer_of("", schema.name):
            continue
        variables = [x.type_str if x.is_homogeneous else None for x in schema.inputs]
        if schema.inputs and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
            variables += variables[-1:] * 2
        for c in schema.type_constraints:
            places = [k for k, x in enumerate(variables) if x == c.type_param_str]
            if len(places) > 1 and {"tensor(float)", "tensor(float16)"} <= set(c.allowed_type_strs):
                yield schema.name, tuple(places)


PAIRS = sorted(pairs())
ATTRS = {"Concat": {"axis": 0}, "Einsum": {"equation": "i,i,i->i"}, "GroupNormalization": {"num_groups": 1}}


def test_many_operators_have_such_operands():
    assert len(PAIRS) >= 39
    assert {op for op, _ in PAIRS} >= {"Add", "Clip", "Concat", "Conv", "LSTM", "MatMul", "Max", "PRelu", "Where"}


@pytest.mark.parametrize("op, places", PAIRS)
def test_two_dtypes_of_one_variable_are_refused(op, places):
    k, *others = places
    least = max(onnx.defs.get_schema(op, OPSET).min_input, places[-1] + 1)
    for j in others:
        for a, b in ((TensorProto.FLOAT, TensorProto.FLOAT16), (TensorProto.FLOAT16, TensorProto.FLOAT)):
            dtypes = [a if n in places else TensorProto.INT64 for n in range(least)]
            dtypes[j] = b
            with pytest.raises(GraphError, match=expected(k, j, a, b, op)):
                gq.load_onnx(node_model(op, dtypes, attrs=ATTRS.get(op)))


@pytest.mark.parametrize("op", sorted(OPERANDS["com.microsoft"]))
def test_operators_of_onnx_runtime(op):
    """The same rule; letters of the table stand for type variables."""
    letters = OPERANDS["com.microsoft"][op]
    assert ("com.microsoft", op) in IMPORTERS and any(letters.count(x) > 1 for x in letters if x != "-")
    for x in set(letters) - {"-"}:
        k, *others = [n for n, y in enumerate(letters) if x == y]
        for j in others:
            dtypes = [None] * (j + 1)
            dtypes[k], dtypes[j] = TensorProto.INT8, TensorProto.UINT8
            with pytest.raises(GraphError, match=expected(k, j, TensorProto.INT8, TensorProto.UINT8, op)):
                gq.load_onnx(node_model(op, dtypes, "com.microsoft"))


@pytest.mark.parametrize("text, dtype", [
    ("(float[3] x, float16[] y) => (z) { z = Pow(x, y) }", "f32"),
    ("(uint8[3] x, float16[] y) => (z) { z = DequantizeLinear(x, y) }", "f16"),
    ("(float[3] x, float16[3] y) => (z) { z = CastLike(x, y) }", "f16"),
    ("(bool[3] c, float16[3] y) => (z) { z = Where(c, y, y) }", "f16")])
def test_operands_of_other_variables_may_have_other_dtypes(text, dtype):
    graph = gq.load_onnx(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 19]> net {text}'))
    assert graph.outputs[0].dtype == dtype


def test_nodes_in_bodies_are_named():
    m = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (bool c, float[3] x, float16[3] h) => (y) {
            y = If (c) <then_branch = t () => (float[3] a) { a = Mul(x, h) },
                        else_branch = e () => (float[3] b) { b = Neg(x) }> }""")
    with pytest.raises(GraphError, match=r"If 'y': Mul 'a': inputs 0 and 1 .* f32\[3\] for 'x' and f16\[3\] for 'h'"):
        gq.load_onnx(m)


def test_functions_of_onnx_may_do_what_models_may_not():
    """ONNX lets the values of Attention have another type than queries and keys; its function multiplies both."""
    shapes = {"q": ("f8", (1, 2, 3, 4)), "k": ("f8", (1, 2, 3, 4)), "v": ("f4", (1, 2, 3, 4))}
    arrays = {n: np.ones(s, d) for n, (d, s) in shapes.items()}
    node = helper.make_node("Attention", list(arrays), ["y"])
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
              for n, x in arrays.items()]
    m = helper.make_model(helper.make_graph([node], "net", inputs, [helper.make_empty_tensor_value_info("y")]),
                          ir_version=10, opset_imports=[helper.make_opsetid("", 23)])
    np.testing.assert_allclose(gq.reference(gq.load_onnx(m), **arrays), arrays["v"])


DECLARED = [
    ("Add 'sum' gives f32\\[3\\]", "(float[3] x) => (float16[3] y)", "y = Add(x, x)"),
    ("Add 'sum' gives f32\\[3\\]", "(float[3] x) => (float[4] y)", "y = Add(x, x)"),
    ("TopK 'sum' gives s64\\[2\\]", "(float[3] x) => (float[2] y) <int64[1] k = {2}>", "v, y = TopK(x, k)"),
    ("its input or initializer gives f32\\[3\\]", "(float[3] y) => (float16[3] y)", "z = Neg(y)")]


@pytest.mark.parametrize("message, signature, node", DECLARED)
def test_an_error_for_a_declared_output_names_its_node(message, signature, node):
    m = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net {signature} {{ {node} }}')
    m.graph.node[0].name = "sum"
    said = "f16\\[3\\]" if "float16" in signature else "f32\\[[24]\\]"
    with pytest.raises(GraphError, match=f"net: output 'y': the model says {said}, {message}"):
        gq.load_onnx(m)
