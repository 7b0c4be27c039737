"""The ops against oneDNN's tables in the folder GRAPHQ_SHARED (../shared): kinds, inputs, attributes, defaults, dtypes.

Skipped where that folder is not there.
"""
import json
import os
import re
from itertools import product
from pathlib import Path

import pytest

from graphq.dtypes import DTYPES, as_dtype
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ir.op import OPS
from graphq.onednn import files as onednn_json

TABLES = Path(os.environ.get("GRAPHQ_SHARED", "../shared")) / "spec" / "onednn_ops.json"
OPERATIONS = json.loads(TABLES.read_text(encoding="utf-8")) if TABLES.is_file() else {}

pytestmark = pytest.mark.skipif(not OPERATIONS, reason=f"no tables at {TABLES}")

BY_KIND = {"Softmax" if op.kind == "SoftMax" else op.kind: op for op in OPS.values()}

# Inputs of ours under another name: an attribute has theirs, or it is one of oneDNN's list, or no name at all.
RENAMED = {"axes": "axes_tensor", "sizes": "sizes_tensor", "src_i": "srcs", "variance (\\sigma^2)": "variance"}
# Attributes that oneDNN's files state by the type or number of outputs, or (group_axis) by the number of scales.
OURS = {"in_order", "dtype", "keep_mask", "keep_stats", "dtypes", "shapes", "group_axis"}
# Where the documentation and oneDNN 3.13 disagree, the library is followed.
DIFFERS = {("ConvTranspose", "weights_format")}
# Required by oneDNN, with a default here: save_onednn_json writes them.
OPTIONAL = onednn_json.REQUIRED


def param(*values):
    return pytest.mark.parametrize("kind", [k for k in OPERATIONS if k not in values])


def test_all_operations_are_there():
    assert len(OPERATIONS) == 62
    assert [kind for kind in OPERATIONS if kind not in BY_KIND] == []


@param()
def test_inputs(kind):
    operands = BY_KIND[kind].operands
    table = [(RENAMED.get(i["name"], i["name"]), i["required"]) for i in OPERATIONS[kind]["inputs"]]
    if kind in ("Concat", "Wildcard"):
        assert [p.variadic for p in operands] == [True]
        return
    assert [(p.name, not p.optional) for p in operands] == table


def default(a):
    """The default that a table names: a word before or after "default", None for "none is default"."""
    text = a["values"]
    if "none is default" in text:
        return ()
    if a["name"] in ("dilations", "output_padding"):
        return None  # as many ones or zeros as there are axes
    if "Empty list(default)" in text or "group size" in text:
        return ()
    m = re.search(r"default is (\w+)", text) or re.search(r"([\w.-]+) ?\(?(?:by |in |is )?default", text)
    if m is None:
        return None
    number = re.fullmatch(r"-?[\d.]+(e-?\d+)?", m.group(1).removesuffix("f"))
    return float(number.group()) if number else {"true": True, "false": False}.get(m.group(1).lower(), m.group(1))


@param()
def test_attributes(kind):
    attributes = BY_KIND[kind].attributes
    table = {a["name"]: a for a in OPERATIONS[kind]["attributes"]}
    assert set(table) <= set(attributes) and set(attributes) - set(table) <= OURS
    for name, a in table.items():
        ours = attributes[name]
        assert ours.required == (a["required"] and (kind, name) not in OPTIONAL), name
        if a["required"] or (kind, name) in DIFFERS:
            continue
        assert ours.default == default(a), (name, a["values"])


SHAPES = {
    "MatMul": ([2, 3], [3, 4], [4]), "BiasAdd": ([2, 3], [3]), "PReLU": ([2, 3], [3]),
    "Convolution": ([1, 5, 5, 4], [3, 3, 4, 6], [6]), "ConvTranspose": ([1, 5, 5, 4], [3, 3, 6, 4], [6]),
    "AvgPool": ([1, 5, 5, 4],), "MaxPool": ([1, 5, 5, 4],), "Interpolate": ([1, 5, 5, 4],),
    "BatchNormInference": ([2, 3], *[[3]] * 4), "LayerNorm": ([2, 3], [3], [3]), "GroupNorm": ([2, 4, 3], [3], [3]),
    "RMSNorm": ([2, 3], [3]), "Dropout": ([2, 3], [], [], []), "DynamicQuantize": ([2, 3], [1], [1]),
    "DynamicDequantize": ([2, 3], [1], [1]),
}
WINDOW = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0]}
ATTRS = {
    "Clamp": {"min": 0, "max": 1}, "Elu": {"alpha": 1}, "LeakyReLU": {"alpha": 1}, "Pow": {"beta": 2},
    "HardSigmoid": {"alpha": 1, "beta": 1}, "StaticReshape": {"shape": [3, 2]}, "StaticTranspose": {"order": [1, 0]},
    "Quantize": {"scales": [1]}, "Dequantize": {"scales": [1]}, "Concat": {"axis": 0}, "GenIndex": {"axis": 0},
    "Convolution": {**WINDOW, "dilations": [1, 1]}, "ConvTranspose": {**WINDOW, "dilations": [1, 1]},
    "MaxPool": {**WINDOW, "kernel": [2, 2]}, "AvgPool": {**WINDOW, "kernel": [2, 2], "exclude_pad": True},
    "BatchNormInference": {"epsilon": 0.1}, "GroupNorm": {"groups": 3},
    "Interpolate": {"mode": "linear", "sizes": [2, 2]},
}


def rows(kind):
    """(operand dtypes, output dtype) of every combination of a table."""
    for row in OPERATIONS[kind]["dtypes"]:
        columns = {}
        for names, dtypes in row.items():
            for name in names.lower().split(" / "):
                columns[name] = [t.strip() for t in dtypes.replace("u64", "s32").split(",")]
        wanted = columns.pop("dst", [None])
        names = [RENAMED.get(i["name"], i["name"]) for i in OPERATIONS[kind]["inputs"]]
        given = [(n, columns.get(n if n != "srcs" else "src_i", columns.get("src", columns.get("src_i"))))
                 for n in names if n not in ("axes_tensor", "sizes_tensor")]
        # Parameters that share a column have one dtype.
        shared = [n for n in ("gamma", "beta", "mean", "variance") if n in names]
        for out in wanted:
            for choice in product(*[dtypes for _, dtypes in given]):
                chosen = dict(zip([n for n, _ in given], choice, strict=True))
                if len({chosen[n] for n in shared}) <= 1 and (len(row) > 1 or len(choice) == 1):
                    yield list(choice), out


@param("End", "Wildcard")
def test_dtypes(kind):
    """Every combination of the table is taken, and gives the table's output."""
    op = BY_KIND[kind]
    seen = 0
    for dtypes, out in rows(kind):
        if any(t not in DTYPES for t in dtypes):
            continue
        shapes = SHAPES.get(kind, ([2, 3],) * len(dtypes))
        types = [TensorType(as_dtype(t), tuple(s)) for t, s in zip(dtypes, shapes, strict=True)]
        attrs = dict(ATTRS.get(kind, {}))
        if "dtype" in op.attributes:
            attrs["dtype"] = out
        got = op.infer(*types, **op.complete(attrs))
        assert (got if isinstance(got, TensorType) else got[0]).dtype == (out or dtypes[0]), (dtypes, out)
        seen += 1
    assert seen > 0


@param("Concat", "End", "Wildcard", "StaticReshape", "StaticTranspose")
def test_no_other_dtypes(kind):
    """A source that no row has is refused. Dequantize of 16 and 32 bits, and dtypes of compressed weights, are ours."""
    op = BY_KIND[kind]
    sources = {dtypes[0] for dtypes, _ in rows(kind)}
    extra = {"Dequantize": {"s32", "s16", "u16"},
             "DynamicDequantize": {"f8_e4m3", "f8_e5m2", "f4_e2m1", "f6_e2m3", "f6_e3m2", "s2", "u2"}}.get(kind, set())
    first = next(dtypes for dtypes, _ in rows(kind))
    for name in set(DTYPES) - sources - extra:
        shapes = SHAPES.get(kind, ([2, 3],) * len(first))
        types = [TensorType(as_dtype(t), tuple(s)) for t, s in zip([name, *first[1:]], shapes, strict=True)]
        attrs = dict(ATTRS.get(kind, {}))
        if "dtype" in op.attributes and op.attributes["dtype"].required:
            attrs["dtype"] = "s8" if "uantize" in kind else "f32"
        with pytest.raises(GraphError, match="must be|same dtype"):
            op.infer(*types, **op.complete(attrs))
