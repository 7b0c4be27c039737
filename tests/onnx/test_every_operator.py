"""Every operator in every version and mode: what loads runs, with the numbers of another implementation.

ONNX's reference evaluator, which runs what graphq has no operation for, is no oracle: some of its operators are wrong
for unequal dimensions, older versions and other dtypes. ONNX Runtime is the oracle here; where it lacks a dtype or an
old version, it runs the same node of f32 or of the next newer version that it has. DIFFERENT says where it differs from
the specification. A tenth of the cases and the first of each version run by default;
`GRAPHQ_ONNX_CASES=all pytest -s tests/onnx/test_every_operator.py` runs all 10,000 and says how many are native.
"""
import os
import re
from collections import Counter
from functools import partial

import numpy as np
import onnx
import pytest
from onnx_cases import cases, schemas
from onnx_forms import FORMS

import graphq as gq
from graphq.errors import GraphqError
from graphq.ir.op import walk_ops
from graphq.onnx.importers.importer import IMPORTERS, MICROSOFT

ort = pytest.importorskip("onnxruntime")

ALL = os.environ.get("GRAPHQ_ONNX_CASES") == "all"
SHARE = 10
"""One case of so many runs by default."""

ABSENT = set("""Bernoulli ConcatFromSequence Multinomial Optional OptionalGetElement OptionalHasElement RandomNormal
    RandomNormalLike RandomUniform RandomUniformLike RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty
    SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence StringConcat StringNormalizer StringSplit
    ai.onnx.ml.CastMap ai.onnx.ml.DictVectorizer ai.onnx.ml.ZipMap""".split())
"""Operators on types that graphq does not have, and random ones."""

REFUSED = {
    "BatchNormalization": r"training in version \d+ of", "Cast": "must be a tensor, got no type",
    "ConvTranspose": "a ConvTranspose of f64", "GRU": "clip is not|a recurrence of f64",
    "LSTM": "clip is not|input_forget is not|a recurrence of f64", "RNN": "clip is not|a recurrence of f64",
    "LRN": "f64.*, but must be f32", "MaxPool": "indices of maxima of f64", "MaxRoiPool": "does not implement it",
    "MeanVarianceNormalization": "ShapeInferenceError", "RMSNormalization": "ShapeInferenceError",
    "QuantizeLinear": "scales must not be NaN, -inf or 0, got 0", "ReduceLogSum": "takes floats, got s",
    "ReduceLogSumExp": "takes floats, got s", "Resize": "booleans are not resized|ShapeInferenceError",
    "Upsample": "booleans are not resized", "STFT": "the signal must be f32",
    "GlobalLpPool": "takes f32, bf16 and f16, got f64",
    "ai.onnx.ml.CategoryMapper": "strings are not|element type string",
    "ai.onnx.ml.LinearClassifier": "one row of coefficients",
    "ai.onnx.ml.LinearRegressor": "post_transform", "ai.onnx.ml.SVMClassifier": "support vector machines",
    "ai.onnx.ml.SVMRegressor": "support vector machines", "ai.onnx.ml.TreeEnsemble": "transforms, and a minimum",
    "ai.onnx.ml.TreeEnsembleRegressor": "transforms, and a minimum",
}
"""Why forms of an operator are refused when they are loaded, most of them since ONNX's reference has them wrong."""

DIFFERENT = {
    "ConvTranspose": r"strides=\[2, 3\] auto_pad=SAME",  # output = input * stride, also for windows below the stride
    "MaxUnpool": r"int64\[4\]",  # as ONNX's node test has it: places are those without output_shape
    "QuantizeLinear": r"float16.*int16",  # the quotient of two f16 is f16, as version 23 says by `precision`
    "Resize": r"\((u?int|-).*mode=(linear|cubic)", "Upsample": r"\(u?int.*mode=linear",  # how integers are rounded
    "Selu": r"^(?!.*alpha=)",  # it has no version 1, whose alpha is another
    "Sign": r"float16\[5\]",  # of NaN
    "ai.onnx.ml.TreeEnsembleClassifier": r"LOGISTIC classlabels_int64s=\[5, 7\]",  # a threshold where all are positive
    "ai.onnx.ml.TreeEnsembleRegressor": r"base_values=\[0.5, 0.25\]",  # added to targets that no leaf has, too
}
"""Where ONNX Runtime differs from the specification, or that leaves the numbers open, by a pattern of the mode."""
if tuple(map(int, ort.__version__.split(".")[:2])) < (1, 32):
    DIFFERENT["STFT"] = r"float32\[2, 40, 2\]"  # of complex signals

BY_REFERENCE = dict.fromkeys("""DeformConv Det Hardmax Mod Pow Range
    ReduceLogSumExp Resize RoiAlign Upsample
    ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.Binarizer ai.onnx.ml.FeatureVectorizer ai.onnx.ml.Imputer
    ai.onnx.ml.LinearClassifier ai.onnx.ml.Normalizer ai.onnx.ml.SVMClassifier ai.onnx.ml.SVMRegressor
    ai.onnx.ml.Scaler ai.onnx.ml.TreeEnsemble ai.onnx.ml.TreeEnsembleClassifier
    ai.onnx.ml.TreeEnsembleRegressor""".split(), "") | {
    "AveragePool": "dilations", "BatchNormalization": "training_mode", "Cast": r"to=\d\d", "Clip": r"float32\[\][,)]",
    "DFT": "inverse=1", "Dropout": "-> 2", "LayerNormalization": "-> 3", "LpPool": "dilations",
    "ReduceL1": "noop", "ReduceL2": "noop"}
"""Where ONNX's reference runs nodes that read only f32, by a pattern of the mode. An importer that fails falls back to
it: the numbers stay right, so only this table tells."""

FLOATS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


def by_onnx_runtime(model, feeds):
    """Its results without optimizations; None where it has no kernel, or refuses the node."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)
    except Exception:  # of several kinds, without a base of their own
        return None


def of_f32(case):
    """The node with operands of f16 and f64 in f32."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    for v in model.graph.input:
        if v.type.tensor_type.elem_type in FLOATS:
            v.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for t in model.graph.initializer:
        if t.data_type in FLOATS:
            t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t).astype(np.float32), t.name))
    feeds = {n: x.astype(np.float32) if x.dtype in (np.float16, np.float64) else x for n, x in case.feeds.items()}
    return by_onnx_runtime(model, feeds)


def expected(case, newer):
    """What the oracle says; None where there is none."""
    if re.search(DIFFERENT.get(case.op, "$^"), case.mode):
        return None
    for results in (by_onnx_runtime(case.model, case.feeds), of_f32(case), newer):
        if results is not None:
            return results
    return None


def check(case, got, want):
    """Raise AssertionError unless the results agree: floats to the roundings of a few operations, others equal."""
    assert len(got) == len(want)
    for a, b in zip(map(np.asarray, got), map(np.asarray, want), strict=True):
        assert a.shape == b.shape, f"{case}: shape {a.shape}, wanted {b.shape}"
        if a.dtype.kind == "f":
            rounding = 2e-3 if np.float16 in (a.dtype, b.dtype) else 1e-5
            wide = b.astype(np.float64)
            size = np.abs(wide[np.isfinite(wide)]).max(initial=0)
            np.testing.assert_allclose(a.astype(np.float64), wide, rtol=rounding, atol=rounding * max(1, size),
                                       err_msg=str(case))
        else:
            assert a.dtype.itemsize == b.dtype.itemsize and a.tobytes() == b.tobytes(), f"{case}: {a}, wanted {b}"


def run(case):
    """Who computes it, and the results; an error of loading is the results."""
    try:
        graph = gq.load_onnx(case.model)
    except GraphqError as e:
        assert re.search(REFUSED.get(case.op, "$^"), str(e)), f"{case}: {e}"
        return "refused", None
    ops = {n.op.name for n in graph.nodes} - {"constant"}
    if "onnx_node" in ops and {v.dtype.name for v in graph.inputs} == {"f32"}:
        assert re.search(BY_REFERENCE.get(case.op, "$^"), case.mode), f"{case} runs by ONNX's reference"
    try:  # graphs that need no kernel are compiled
        out = (gq.compile(graph, threads=1) if ops == {"onnx_node"} else partial(gq.reference, graph))(case.feeds)
    except GraphqError as e:
        raise AssertionError(f"{case} loads and then fails: {e}") from e
    by = "by ONNX's reference" if "onnx_node" in ops else "native"
    return by, list(out.values()) if isinstance(out, dict) else [out]


def chosen(op):
    """The cases that run, from the newest version to the oldest: all, or one in SHARE and the first of each version."""
    every, versions = list(cases(op))[::-1], set()
    first = {c.version: str(c) for c in every}  # the last one of the reversed list is the first
    for k, case in enumerate(every):
        if ALL or k % SHARE == len(op) % SHARE or str(case) == first[case.version]:
            versions.add(case.version)
            yield case


@pytest.mark.parametrize("op", FORMS)
def test_operator(op, record):
    if op == "ImageDecoder":
        pytest.importorskip("PIL")
    newest = {}
    for case in chosen(op):
        kind, got = run(case)
        want = None if got is None else expected(case, newest.get(case.mode))
        if want is not None:
            check(case, got, want)
            newest.setdefault(case.mode, want)
        record[kind, "refused" if got is None else "compared" if want is not None else "not compared"] += 1


def test_all_operators_have_forms():
    assert set(schemas()) <= set(FORMS) | ABSENT
    names = {f"{domain}.{op}" if domain else op for domain, op in IMPORTERS if domain != MICROSOFT}
    names |= {op.onnx for op in walk_ops() if op.onnx}
    assert names - {"SimplifiedLayerNormalization"} - ABSENT <= set(FORMS)


@pytest.mark.parametrize("op", FORMS)
def test_every_version_has_cases(op):
    versions = {s.since_version for s in schemas().get(op, ()) if not s.deprecated}
    assert {c.version for c in cases(op)} == versions - ({1} if op == "ai.onnx.ml.LabelEncoder" else set())


@pytest.fixture(scope="module")
def record():
    counts: Counter = Counter()
    yield counts
    print("\n" + ", ".join(f"{n} {kind} ({what})" for (kind, what), n in sorted(counts.items())))
