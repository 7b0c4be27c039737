"""Importers of operators that ONNX's reference evaluator runs because graphq has no operations for them.

If the evaluator contradicts the specification, the importer expresses the node in a form that the evaluator computes
correctly, or refuses the node.
"""
from __future__ import annotations

import numpy as np

from graphq.dtypes import bf16, f16, f32
from graphq.ir import Value
from graphq.onnx.importers.composed import standard
from graphq.onnx.importers.importer import Call, Outputs, imports


@imports("Det", "DeformConv")
def in_f32(c: Call) -> Outputs:
    """Import Det and DeformConv. f16 and bf16 are computed in f32, because the reference would round partial sums."""
    x, g = c.input(0), c.graph
    if x.dtype not in (bf16, f16):
        return None
    wide = [v if v is None else g.type_cast(v, dtype=f32) for v in c.inputs]
    return g.type_cast(standard(c, c.node.op_type, wide, **c.attrs)[0], dtype=x.dtype)


@imports("RoiAlign")
def roi_align(c: Call) -> Outputs:
    """Import RoiAlign; before version 16, without a shift by half a pixel. Refuses indices of missing images."""
    shape, images = c.input(0).shape, c.data(2)
    if shape and shape[0] is not None and images is not None and \
            (wrong := images[(images < 0) | (images >= shape[0])]).size:
        c.refuse(f"input 2 must have indices of images in [0, {shape[0] - 1}], got {wrong[0]}")
    if c.version >= 16:
        return None
    return standard(c, "RoiAlign", list(c.inputs), **c.attrs, coordinate_transformation_mode="output_half_pixel")


@imports("MaxRoiPool")
def max_roi_pool(c: Call) -> Outputs:
    """Refuse MaxRoiPool, because ONNX's reference evaluator does not implement it."""
    c.refuse("MaxRoiPool is not supported")


@imports("Unique")
def unique(c: Call) -> Outputs:
    """Import Unique. Refuses `sorted=0` along an axis other than the first: the reference would lose the order."""
    x = c.input(0)
    if not c.attr("sorted", 1) and c.attr("axis", 0) not in (0, -len(x.shape or ())):
        c.refuse(f"the order of elements along axis {c.attr('axis')} of {x.type}, sorted 0, is not supported")
    if "axis" in c.attrs or x.shape is None or len(x.shape) == 1:
        return None
    row: list[Value | None] = [c.graph.static_reshape(x, shape=[-1])]
    return standard(c, "Unique", row, c.outputs, opset=c.scope.opsets[""], **c.attrs)


ML = "ai.onnx.ml"
TRANSFORMS = {"NONE": "", "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}
"""For each supported value of the attribute `post_transform`, the ONNX operator that computes it ("" for none)."""


@imports("LinearRegressor", domain=ML)
def linear_regressor(c: Call) -> Outputs:
    """Import LinearRegressor: `transform(x @ coefficients.T + intercepts)`; coefficients have one row per target."""
    x, g, targets, transform = c.input(0), c.graph, c.attr("targets", 1), c.attr("post_transform", "NONE")
    if transform not in TRANSFORMS or x.shape is None or len(x.shape) != 2:
        c.refuse(f"post_transform {transform} of {x.type} is not supported")
    rows = np.float32(c.attr("coefficients")).reshape(targets, -1)
    y = g.matmul(x if x.dtype == f32 else g.cast(x, dtype=f32), g.constant(np.ascontiguousarray(rows.T)))
    if c.attr("intercepts"):
        y = g.add(y, g.constant(np.array(c.attr("intercepts"), np.float32)))
    return standard(c, TRANSFORMS[transform], [y]) if TRANSFORMS[transform] else y


@imports("LinearClassifier", domain=ML)
def linear_classifier(c: Call) -> Outputs:
    """Leave LinearClassifier to the reference; refuse it unless each label has a row of coefficients."""
    labels = c.attr("classlabels_ints") or c.attr("classlabels_strings") or ()
    if len(c.attr("intercepts") or labels) != len(labels):
        c.refuse("one row of coefficients for two labels is not supported: ONNX does not define the second score")
    return None


@imports("Normalizer", domain=ML)
def normalizer(c: Call) -> Outputs:
    """Import Normalizer. MAX divides a row by its maximum; the reference would divide by its greatest magnitude."""
    x, g = c.input(0), c.graph
    if c.attr("norm", "MAX") != "MAX":
        return None
    wide = x if x.dtype == f32 else g.cast(x, dtype=f32)
    return g.divide(wide, g.reduce_max(wide, axes=[-1], keep_dims=True))


@imports("SVMClassifier", "SVMRegressor", domain=ML)
def support_vectors(c: Call) -> Outputs:
    """Leave support vector machines to the reference; refuse integers and probabilities."""
    if c.input(0).dtype.name.startswith("s") or c.attr("prob_a"):
        c.refuse("support vector machines of integers or with probabilities are not supported")
    return None
