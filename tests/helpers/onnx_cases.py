"""One-node ONNX models of every operator, version and mode, with inputs whose dimensions all differ.

FORMS says, for each operator, what operands and attributes its nodes may have. `cases` makes a model of each form for
each version of the operator in ONNX's schemas that takes it: every combination of the attributes' values, every dtype
that the schema and graphq have, later operands as constants and as inputs.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx_forms import FORMS, Form

DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
          "tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(int32)": np.int32, "tensor(int64)": np.int64,
          "tensor(bool)": np.bool_}
"""The dtypes that operands are given in, by the names of ONNX's schemas."""


class Case(NamedTuple):
    """A model of one node; `op` with its domain, the version of its schema, what is special, and arrays by input."""

    op: str
    version: int
    mode: str
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]

    def __str__(self) -> str:
        return f"{self.op}-{self.version} {self.mode}"


@cache
def schemas() -> dict[str, list[onnx.defs.OpSchema]]:
    """All versions of every operator, by its name, which that of its domain precedes."""
    found = defaultdict(list)
    for s in onnx.defs.get_all_schemas_with_history():
        if s.domain in ("", "ai.onnx.ml"):
            found[f"{s.domain}.{s.name}" if s.domain else s.name].append(s)
    return {name: sorted(versions, key=lambda s: s.since_version) for name, versions in sorted(found.items())}


def cases(op: str) -> Iterator[Case]:
    """The cases of an operator."""
    for schema in schemas().get(op, ()):
        if schema.deprecated:
            continue
        seen = set()
        for form in FORMS[op]:
            if form.since <= schema.since_version < form.until and len(form.inputs) <= schema.max_input:
                for case in _of_form(op, schema, form):
                    if case.mode not in seen:
                        seen.add(case.mode)
                        yield case


def _of_form(op: str, schema: onnx.defs.OpSchema, form: Form) -> Iterator[Case]:
    options = {name: values for name, values in form.attrs.items() if name in schema.attributes}
    for k, chosen in enumerate(product(*options.values())):
        attrs = {name: v for name, v in zip(options, chosen, strict=True) if v is not None}
        for inputs in _dtypes(schema, form) if k == 0 else [form.inputs]:
            if _allowed(schema, inputs):
                later = sum(x is not None for x in inputs[1:])
                for constants in (False, True) if k == 0 and later and form.constants is None else [form.constants]:
                    yield _case(op, schema, form, inputs, attrs, bool(constants or constants is None and later))


def _parameter(schema: onnx.defs.OpSchema, k: int) -> onnx.defs.OpSchema.FormalParameter:
    return schema.inputs[min(k, len(schema.inputs) - 1)]


def _dtypes(schema: onnx.defs.OpSchema, form: Form) -> Iterator[tuple[np.ndarray | None, ...]]:
    """The operands, then with those of the first one's type in every other dtype that it may have."""
    yield form.inputs
    if not form.inputs or not form.dtypes or form.inputs[0] is None:
        return
    of_first = [k for k in range(len(form.inputs))
                if _parameter(schema, k).type_str == schema.inputs[0].type_str and form.inputs[k] is not None]
    for name in sorted(schema.inputs[0].types):
        dtype = DTYPES.get(name)
        if dtype not in (None, form.inputs[0].dtype):
            yield tuple(_as(x, dtype) if k in of_first else x for k, x in enumerate(form.inputs))


def _as(x: np.ndarray, dtype: Any) -> np.ndarray:
    """`x` in another dtype: floats get whole numbers of some size in integers, none below zero in unsigned ones."""
    if x.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        x = np.rint(np.nan_to_num(x, posinf=3, neginf=-3) * 8)
    return (np.abs(x) if np.dtype(dtype).kind == "u" else x).astype(dtype)


def _allowed(schema: onnx.defs.OpSchema, inputs: tuple[np.ndarray | None, ...]) -> bool:
    """Whether the schema has these dtypes."""
    for k, x in enumerate(inputs):
        name = None if x is None else f"tensor({_NAMES.get(x.dtype.name, x.dtype.name)})"
        if name is not None and name not in _parameter(schema, k).types:
            return False
    return True


_NAMES = {"float32": "float", "float64": "double"}


def _case(op: str, schema: onnx.defs.OpSchema, form: Form, inputs: tuple[np.ndarray | None, ...],
          attrs: dict[str, Any], constants: bool) -> Case:
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if n}
    given = [n for n in arrays if n == "i0" or not constants]
    outputs = [f"o{k}" for k in range(min(form.outputs, schema.max_output))]
    node = helper.make_node(schema.name, names, outputs, domain=schema.domain, **attrs)
    graph = helper.make_graph(
        [node], "net", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(arrays[n].dtype),
                                                      arrays[n].shape) for n in given],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(arrays[n], n) for n in arrays if n not in given])
    opsets = [helper.make_opsetid("", schema.since_version if not schema.domain else 21)]
    if schema.domain:
        opsets.append(helper.make_opsetid(schema.domain, schema.since_version))
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    mode = [f"{n}={v}" if not isinstance(v, onnx.GraphProto | onnx.TensorProto) else n for n, v in attrs.items()]
    types = [f"{x.dtype}{list(x.shape)}" if n else "-" for n, x in zip(names, inputs, strict=True)]
    mode.insert(0, f"({', '.join(types)}{' constant' if constants else ''}) -> {len(outputs)}")
    return Case(op, schema.since_version, " ".join(mode),
                model, {n: arrays[n] for n in given})
