"""Mutated models: load_onnx, reference and compile give results or graphq errors, nothing else."""
import random

import numpy as np
import onnx
import pytest

import graphq as gq
from graphq.errors import GraphqError

MODEL = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 4] x, bool c) => (float[a, b] y) <int64[2] i = {0, 1}, float s = {0.5}, uint8 z = {3},
        float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> {
        sh = Shape(x)  q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  m = MatMul(d, w)
        r = Reshape(m, sh)  t = Transpose <perm = [1, 0]> (r)  u = Concat <axis = 0> (t, t)  v = Slice(u, i, sh)
        k = NonZero(v)  e = Cast <to = 1> (k)
        l = If (c) <then_branch = p () => (float n) { n = Identity(s) }, else_branch = o () => (float f) { f = Neg(s) }>
        y = Mul(e, l) }""")

TYPES = ["Relu", "Add", "Conv", "Reshape", "Gather", "QuantizeLinear", "DequantizeLinear", "TopK", "Resize", "Expand",
         "Tile", "Pad", "Split", "OneHot", "Range", "ConstantOfShape", "Squeeze", "Nope", "Where", "MaxPool", "Gemm"]
INTEGERS = [0, -1, 1, 2, 7, 2**31, 2**62, -2**63, 2**63 - 1]


def change(rng, model):
    """One random change of the model in place."""
    g = model.graph
    node, tensor = rng.choice(g.node), rng.choice(g.initializer)
    kind = rng.randrange(10)
    if kind == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(["", "x", *(o for n in g.node for o in n.output)])
    elif kind == 1 and node.attribute:
        a = rng.choice(node.attribute)
        a.i = rng.choice(INTEGERS)
        for k in range(len(a.ints)):
            a.ints[k] = rng.choice(INTEGERS)
    elif kind == 2:
        node.op_type = rng.choice(TYPES)
    elif kind == 3 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(INTEGERS)
    elif kind == 4:
        tensor.data_type = rng.choice([0, 1, 2, 3, 7, 8, 9, 10, 11, 16, 17, 21, 99])
    elif kind == 5:
        for field in (tensor.int64_data, tensor.float_data, tensor.int32_data):
            for k in range(len(field)):
                field[k] = rng.choice([0, 1, -1, 5, 2**30])
    elif kind == 6:
        rng.choice(g.input).type.tensor_type.elem_type = rng.choice([0, 1, 2, 3, 7, 8, 9, 10, 11, 16])
    elif kind == 7:
        model.opset_import[0].version = rng.choice([-1, 0, 1, 7, 9, 10, 11, 13, 18, 21, 25, 28, 99])
    elif kind == 8:
        del g.node[rng.randrange(len(g.node))]
    elif node.input:
        del node.input[rng.randrange(len(node.input))]


@pytest.mark.parametrize("seed", range(8))
def test_changed_models(seed):
    rng = random.Random(seed)
    for _ in range(25):
        model = onnx.ModelProto()
        model.CopyFrom(MODEL)
        for _ in range(rng.randint(1, 3)):
            change(rng, model)
        try:
            g = gq.load_onnx(model)
            feeds = {str(v.name): np.ones([3 if d is None else d for d in v.shape or ()], v.dtype.numpy)
                     for v in g.inputs}
            gq.reference(g, feeds)
        except GraphqError:
            continue


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes(seed):
    rng = random.Random(seed)
    whole = MODEL.SerializeToString()
    for _ in range(100):
        data = bytearray(whole[:rng.randrange(len(whole))] if rng.random() < 0.3 else whole)
        for _ in range(rng.randint(1, 20)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            gq.load_onnx(bytes(data))
        except GraphqError:
            continue
