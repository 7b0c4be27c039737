"""A builder of ONNX models that runs each node by ONNX's reference evaluator as it is added."""
import warnings

import numpy as np
import onnx
from onnx import defs, helper
from onnx.reference import ReferenceEvaluator

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
MAKERS = []
"""The functions that add a node, or a few, of their choice."""
MOST = 4096
"""Elements of the largest tensor."""


class Skip(Exception):
    """The builder has no value for this node, or the node is not allowed."""


def maker(f):
    MAKERS.append(f)
    return f


class Builder:
    """A model that grows node by node; `arrays` holds the numbers of every value."""

    def __init__(self, rng):
        self.rng = rng
        self.opset = int(rng.choice(OPSETS))
        self.arrays, self.nodes, self.constants, self.inputs = {}, [], [], []

    def name(self, prefix):
        return f"{prefix}{len(self.arrays)}"

    def input(self, x):
        name = self.name("x")
        self.arrays[name] = x
        self.inputs.append(name)
        return name

    def constant(self, x, dtype=None):
        name = self.name("c")
        self.arrays[name] = np.asarray(x, dtype)
        self.constants.append(name)
        return name

    def pick(self, accept=lambda x: True, dtypes="f"):
        """A value, later ones more often; raises Skip where there is none."""
        names = [n for n, x in self.arrays.items() if n not in self.constants and x.dtype.kind in dtypes and accept(x)]
        if not names:
            raise Skip
        return names[min(len(names) - 1, int(len(names) * self.rng.random() ** 0.5))]

    def far(self, name, *distances):
        """Raise Skip if rounding errors of a value may decide on which side of a step its numbers lie.

        `distances` are those of its numbers from the steps of the operation that reads it.
        """
        least = 1e-4 * np.abs(self.arrays[name]).max(initial=0)
        if any(d.size and np.abs(d).min() < least for d in distances):
            raise Skip

    def node(self, op, inputs, outputs=1, wanted=None, **attrs):
        """Add a node and run it; raises Skip where ONNX's reference refuses."""
        names = [self.name(f"y{k}_") for k in range(outputs)]
        node = helper.make_node(op, inputs, names, **{k: v for k, v in attrs.items() if v is not None})
        self.version(op)
        used = list(dict.fromkeys(n for n in inputs if n))
        if wanted is None:
            outs = [helper.make_empty_tensor_value_info(n) for n in names]
            graph = helper.make_graph([node], "g", self.infos(used), outs)
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
            try:
                onnx.checker.check_node(node, _context(self.opset))
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    wanted = ReferenceEvaluator(model).run(None, {n: self.arrays[n] for n in used})
            except Exception as e:  # whatever an operator's implementation raises
                raise Skip from e
        wanted = [np.asarray(w) for w in wanted]
        if any(w.size > MOST or w.dtype.kind not in "fiub" or w.dtype == np.float64 or w.ndim > 5 for w in wanted):
            raise Skip
        if "kernel_shape" in attrs and any(w.size == 0 for w in wanted):  # a window larger than the padded source
            raise Skip
        if any(w.dtype.kind == "f" and not (np.abs(w) < 1e6).all() for w in wanted):  # small differences would grow
            raise Skip
        self.nodes.append(node)
        self.arrays.update(zip(names, wanted, strict=True))
        return names[0] if outputs == 1 else names

    def infos(self, names):
        """The types of values."""
        return [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(self.arrays[n].dtype),
                                              self.arrays[n].shape) for n in names]

    def version(self, op):
        """The version of the operator; raises Skip where the opset has none."""
        try:
            return defs.get_schema(op, self.opset, "").since_version
        except defs.SchemaError:
            raise Skip from None

    def choice(self, *options):
        return options[self.rng.integers(len(options))]

    def chance(self, p=0.5):
        return bool(self.rng.random() < p)

    def floats(self, *shape):
        return self.rng.normal(size=shape).astype(np.float32)

    def ints_attr_or_input(self, name, values, first_version):
        """Integers as an attribute, or from `first_version` of the operator set on as a constant: (attrs, inputs)."""
        if values is None:
            return {}, []
        return ({name: values}, []) if self.opset < first_version else ({}, [self.constant(values, np.int64)])


def _context(opset):
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 8, {"": opset}
    return context
