"""The ops' signatures and dtypes against oneDNN's tables, written out here by hand."""
import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import GraphError
from graphq.ir.op import OPS

REQ = object()
BROADCAST = {"auto_broadcast": "numpy"}
QUANT = {"qtype": "per_tensor", "axis": 1, "scales": REQ, "zps": None}

# op -> oneDNN's kind, operands, attributes with their defaults
SCHEMA = {
    "abs": ("Abs", "src", {}), "exp": ("Exp", "src", {}), "log": ("Log", "src", {}), "mish": ("Mish", "src", {}),
    "reciprocal": ("Reciprocal", "src", {}), "relu": ("ReLU", "src", {}), "round": ("Round", "src", {}),
    "sigmoid": ("Sigmoid", "src", {}), "sqrt": ("Sqrt", "src", {}), "square": ("Square", "src", {}),
    "tanh": ("Tanh", "src", {}), "hard_swish": ("HardSwish", "src", {}),
    "gelu": ("GELU", "src", {"mode": "gelu_erf"}),
    "elu": ("Elu", "src", {"alpha": REQ}),
    "leaky_relu": ("LeakyReLU", "src", {"alpha": REQ}),
    "hard_sigmoid": ("HardSigmoid", "src", {"alpha": REQ, "beta": REQ}),
    "softplus": ("SoftPlus", "src", {"beta": 1.0}),
    "pow": ("Pow", "src", {"beta": REQ}),
    "clamp": ("Clamp", "src", {"min": REQ, "max": REQ}),
    "type_cast": ("TypeCast", "src", {"dtype": REQ}),
    **{name: (kind, "src_0 src_1", {**BROADCAST, "dtype": None}) for name, kind in {
        "add": "Add", "subtract": "Subtract", "multiply": "Multiply", "divide": "Divide"}.items()},
    **{name: (kind, "src_0 src_1", BROADCAST) for name, kind in {
        "maximum": "Maximum", "minimum": "Minimum", "squared_difference": "SquaredDifference",
        "greater_equal": "GreaterEqual"}.items()},
    "select": ("Select", "cond src_0 src_1", BROADCAST),
    "prelu": ("PReLU", "src slope", {"data_format": "NXC", "per_channel_broadcast": True}),
    "bias_add": ("BiasAdd", "src bias", {"data_format": "NXC"}),
    "matmul": ("MatMul", "src weights bias?", {"transpose_a": False, "transpose_b": False,
                                               "accumulation_mode": "strict", "dtype": None}),
    "quantize": ("Quantize", "src", {**QUANT, "dtype": REQ}),
    "dequantize": ("Dequantize", "src", {**QUANT, "group_axis": None}),
    "static_reshape": ("StaticReshape", "src", {"shape": REQ, "special_zero": False}),
    "static_transpose": ("StaticTranspose", "src", {"order": REQ}),
    "constant": ("Constant", "", {"value": REQ}),
}

WINDOW = {"strides": REQ, "pads_begin": REQ, "pads_end": REQ, "auto_pad": "none", "data_format": "NXC"}
CONV = {**WINDOW, "dilations": REQ, "groups": 1, "dtype": None}
POOL = {**WINDOW, "kernel": REQ, "rounding_type": "floor"}
NORM = {"epsilon": 1e-5, "keep_stats": True, "use_affine": True}

MORE = {  # ops that are not elementwise; a * marks any number of operands
    "convolution": ("Convolution", "src weights bias?", {**CONV, "weights_format": "XIO"}),
    "conv_transpose": ("ConvTranspose", "src weights bias?", {**CONV, "weights_format": "XOI", "output_padding": None}),
    "max_pool": ("MaxPool", "src", {**POOL, "dilations": None}),
    "avg_pool": ("AvgPool", "src", {**POOL, "exclude_pad": REQ, "in_order": False}),
    "batch_norm_inference": ("BatchNormInference", "src gamma beta mean variance",
                             {"epsilon": REQ, "data_format": "NXC"}),
    "layer_norm": ("LayerNorm", "src gamma? beta?", {**NORM, "begin_norm_axis": -1}),
    "group_norm": ("GroupNorm", "src gamma? beta?", {**NORM, "groups": REQ, "data_format": "NXC"}),
    "rms_norm": ("RMSNorm", "src gamma?", {"epsilon": 1e-5, "begin_norm_axis": -1}),
    "concat": ("Concat", "srcs*", {"axis": REQ}), "wildcard": ("Wildcard", "srcs*", {"dtypes": (), "shapes": None}),
    "end": ("End", "src", {}), "reorder": ("Reorder", "src", {}), "gen_index": ("GenIndex", "src", {"axis": REQ}),
    "dropout": ("Dropout", "src seed offset probability", {"keep_mask": False}),
    "log_softmax": ("LogSoftmax", "src", {"axis": -1}),
    "dynamic_quantize": ("DynamicQuantize", "src scales zps?", {"qtype": "per_tensor", "axis": 1, "dtype": REQ}),
    "dynamic_dequantize": ("DynamicDequantize", "src scales zps?",
                           {"qtype": "per_tensor", "axis": 1, "group_shape": (), "dtype": None}),
    "interpolate": ("Interpolate", "src sizes_tensor?",
                    {"mode": REQ, "coordinate_transformation_mode": "half_pixel", "sizes": (), "scales": (),
                     "data_format": "NXC"}),
    **{f"reduce_{name.lower()}": (f"Reduce{name}", "src axes_tensor?", {"axes": (), "keep_dims": False})
       for name in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")},
}

COMMUTATIVE = {"add", "multiply", "maximum", "minimum"}
NOT_ELEMENTWISE = {"matmul", "softmax", "static_reshape", "static_transpose", "constant"}


WHOLE = {"axis": 0, "keep_dims": True, "select_last_index": False}
OWN = {  # operations that oneDNN has not, or that are ONNX's: their attributes
    "arg_max": WHOLE, "arg_min": WHOLE, "arithmetic": {"function": REQ},
    "cached_attention": {"heads": REQ, "groups": REQ, "scale": REQ, "softcap": 0.0, "window": 0, "causal": True,
                         "interleaved": False, "kept": "f32", "capacity": -1},
    "bit_cast": {"dtype": REQ}, "rotary_embedding": {"interleaved": False},
    "tensor_scatter": {"axis": -2, "mode": "linear"},
    "unique": {"axis": None, "sorted": True},
    "cast": {"dtype": REQ}, "conv_integer": {name: CONV[name] for name in (
        "strides", "pads_begin", "pads_end", "dilations", "auto_pad", "groups")},
    **dict.fromkeys(("cum_prod", "cum_sum"), {"axis": REQ, "exclusive": False, "reverse": False}),
    "expand": {"shape": REQ}, "gather": {"axis": 0},
    "dequantize_linear": {"dtype": DTYPES["f32"], "axis": 1, "block_size": 0}, "gather_elements": {"axis": 0},
    "gather_nd": {"batch_dims": 0},
    "grid_sample": {"mode": "linear", "padding_mode": "zeros", "align_corners": False},
    "gru": {"linear_before_reset": False, "reverse": False}, "if_else": {"then_body": REQ, "else_body": REQ},
    "integer_sum": {"axes": (), "keep_dims": False}, "is_inf": {"detect_negative": True, "detect_positive": True},
    "loop": {"body": REQ, "states": REQ},
    "lrn": {"size": REQ, "alpha": 1e-4, "beta": 0.75, "bias": 1.0, "data_format": "NXC"},
    "lstm": {"reverse": False, "by_row": False},
    "non_max_suppression": {"center_point_box": False}, "partition": {"body": REQ, "anchor": REQ, "ties": "settled"},
    "pad": {"pads_begin": REQ, "pads_end": REQ, "mode": "constant", "value": 0.0}, "rnn": {"reverse": False},
    "quantize_linear": {"dtype": REQ, "axis": 1, "block_size": 0, "saturate": True, "precision": DTYPES["f32"]},
    "scan": dict.fromkeys(("body", "states", "scanned", "input_axes", "reverse_inputs", "output_axes",
                           "reverse_outputs"), REQ),
    "scatter_elements": {"axis": 0, "reduction": "none"}, "scatter_nd": {"reduction": "none"},
    "slice": dict.fromkeys(("axes", "starts", "ends", "steps"), REQ), "softmax": {
        "axis": 1, "mode": "none", "dtype": None, "keep_stats": False},
    "top_k": {"k": REQ, "axis": -1, "largest": True}, "trilu": {"upper": True, "k": 0}}


def attributes(op):
    """The attributes and their defaults."""
    return {a.name: REQ if a.required else a.default for a in op.attributes.values()}


def test_attributes_of_own_operations():
    of_ops = [op for op in OPS.values() if op.reference.__module__.startswith("graphq.ops.")]
    assert {op.name: made for op in of_ops if op.name not in SCHEMA | MORE and (made := attributes(op))} == OWN


@pytest.mark.parametrize("name", [*SCHEMA, *MORE])
def test_signature(name):
    kind, operands, declared = {**SCHEMA, **MORE}[name]
    op = OPS[name]
    assert op.kind == kind
    assert [p.name + "?" * p.optional + "*" * p.variadic for p in op.operands] == operands.split()
    assert attributes(op) == declared
    assert op.commutative == (name in COMMUTATIVE)
    assert op.elementwise == (name not in NOT_ELEMENTWISE and name not in MORE)
    assert "oneDNN" in op.doc


def test_softmax_signature():
    op = OPS["softmax"]
    assert [p.name for p in op.operands] == ["src"]
    assert not op.elementwise


FLOATS = [("f32",), ("bf16",), ("f16",)]
FLOAT_PAIRS = [t * 2 for t in FLOATS]
MIXED = [("f32", "bf16"), ("f32", "f16"), ("bf16", "f32"), ("f16", "f32")]
SHAPES = {"select": ([2, 3],) * 3, "prelu": ([2, 3], [3]), "bias_add": ([2, 3], [3]), "matmul": ([2, 3], [3, 4], [4])}
ATTRS = {"elu": {"alpha": 1}, "leaky_relu": {"alpha": 1}, "hard_sigmoid": {"alpha": 1, "beta": 1}, "pow": {"beta": 2},
         "clamp": {"min": 0, "max": 1}, "static_reshape": {"shape": [3, 2]}, "static_transpose": {"order": [1, 0]},
         "dequantize": {"scales": [1]}, "quantize": {"scales": [1], "dtype": "u8"}}

# op -> {source dtypes: output dtype}
DTYPE_TABLE = {
    **{name: {t: t[0] for t in FLOATS} for name, (_, operands, _) in SCHEMA.items()
       if operands == "src" and name not in ("quantize", "dequantize", "type_cast", "static_reshape",
                                             "static_transpose")},
    **{name: {**{t: t[0] for t in FLOAT_PAIRS}, **dict.fromkeys(MIXED, "f32")} for name in ("multiply", "divide")},
    **{name: {**{t: t[0] for t in FLOAT_PAIRS}, **dict.fromkeys(MIXED, "f32"), ("s32", "s32"): "s32"}
       for name in ("add", "subtract")},
    **{name: {t: t[0] for t in FLOAT_PAIRS}
       for name in ("maximum", "minimum", "squared_difference", "prelu", "bias_add", "matmul")},
    "greater_equal": dict.fromkeys([*FLOAT_PAIRS, ("s32", "s32")], "boolean"),
    "select": {("boolean", *t): t[0] for t in FLOAT_PAIRS},
    "quantize": {("f32",): "u8"},
    "dequantize": {(t,): "f32" for t in ("s8", "u8", "s16", "u16", "f8_e4m3", "f8_e5m2", "s32")},
    "static_reshape": {(t,): t for t in DTYPES},
    "static_transpose": {(t,): t for t in DTYPES},
    "softmax": {t: t[0] for t in FLOATS},
}


def _combinations(count):
    first = [(a, b) for a in DTYPES for b in DTYPES] if count > 1 else [(a,) for a in DTYPES]
    return first if count < 3 else [(a, b, b) for a, b in first] + [("boolean", "f32", "f16")]


@pytest.mark.parametrize("name", DTYPE_TABLE)
def test_dtypes(name, infer):
    table = DTYPE_TABLE[name]
    count = len(next(iter(table)))
    shapes = SHAPES.get(name, ([2, 3],) * count)
    for dtypes in _combinations(count):
        types = [f"{t}[{','.join(map(str, s))}]" for t, s in zip(dtypes, shapes, strict=False)]
        if dtypes in table:
            assert infer(name, *types, **ATTRS.get(name, {})).startswith(table[dtypes] + "[")
        else:
            with pytest.raises(GraphError, match="must be|same dtype"):
                infer(name, *types, **ATTRS.get(name, {}))


CHOSEN = {  # ops with an attribute dtype -> {source: outputs}
    "type_cast": {"f32": {"bf16", "f16"}, "bf16": {"f32"}, "f16": {"f32"}},
    "softmax": {"f32": {"f32", "bf16", "f16"}, "bf16": {"f32", "bf16"}, "f16": {"f32", "f16"}},
    "matmul": {"f32": {"f32"}, "bf16": {"f32", "bf16"}, "f16": {"f32", "f16"}},
    "quantize": {"f32": {"s8", "u8", "s16", "u16", "f8_e4m3", "f8_e5m2"}},
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("out", DTYPES)
def test_chosen_output_dtype(name, out, infer):
    attrs = {"scales": [1.0]} if name == "quantize" else {}
    for src, outs in CHOSEN[name].items():
        types = [f"{src}[2,2]"] * (2 if name == "matmul" else 1)
        if out in outs:
            assert infer(name, *types, dtype=out, **attrs) == f"{out}[2,2]"
        else:
            with pytest.raises(GraphError, match=rf"dtype must be .*, got {out}"):
                infer(name, *types, dtype=out, **attrs)


@pytest.mark.parametrize("name", [n for n in SCHEMA if REQ in SCHEMA[n][2].values()])
def test_required_attributes(name):
    with pytest.raises(GraphError, match=r"attribute '\w+' is required"):
        OPS[name].complete({})


@pytest.mark.parametrize("name, attrs, match", [
    ("gelu", {"mode": "gelu_fast"}, "'mode' must be one of 'gelu_erf', 'gelu_tanh', got 'gelu_fast'"),
    ("softmax", {"mode": "log"}, "'mode' must be one of 'none', 'inf_as_zero'"),
    ("quantize", {"qtype": "per_row", "scales": [1], "dtype": "u8"}, "'qtype' must be one of"),
    ("quantize", {"scales": "1.0", "dtype": "u8"}, "'scales' must be a list, got '1.0'"),
    ("quantize", {"scales": [1.0], "zps": [0.5], "dtype": "u8"}, "'zps' must be of type int, got 0.5"),
    ("static_reshape", {"shape": 4}, "'shape' must be a list"),
    ("relu", {"alpha": 1}, "has no attribute 'alpha'"),
])
def test_bad_attributes(name, attrs, match, infer):
    with pytest.raises(GraphError, match=match):
        infer(name, "f32[2,2]", **attrs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_constant(dtype, shape):
    g = gq.Graph()
    array = np.ones(shape, DTYPES[dtype].numpy)
    c = g.constant(array, dtype=dtype, name="c")
    assert (c.dtype, c.shape) == (dtype, shape)
    got = c.node.op.reference(**c.node.attrs)
    assert got.dtype == array.dtype and (got == array).all()


def test_constant_of_an_unknown_dtype():
    with pytest.raises(GraphError, match="unknown dtype"):
        gq.Graph().constant(np.ones(3, np.complex64))
