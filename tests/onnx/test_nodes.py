"""The ONNX project's node tests: a sample of their modules compiled, or all with GRAPHQ_ONNX_NODES=all.

Of the expanded ones, whose nodes are those of a function's body, a third runs. What is not compiled runs by the
formulas of what the passes make of it, which kernels equal bit for bit (as other tests say).
`GRAPHQ_ONNX_NODES=all pytest tests/onnx/test_nodes.py -s` prints how many pass natively and which are refused.
"""
import importlib
import os
import pkgutil
import re
import warnings
from collections import Counter

import numpy as np
import onnx
import onnx.backend.test.case.node as cases
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import graphq as gq
from graphq.errors import GraphqError
from graphq.ir import TensorType
from graphq.ir.interpret import check_inputs, pack_outputs
from graphq.model.build_plan import evaluate_formulas
from graphq.onnx import backend
from graphq.passes.pipeline import run_passes
from graphq.plan.plan import in_one_plan

UNSUPPORTED = "element type string is not|must be a tensor, got|random numbers are not|are not supported: graphq"
"""The reasons that a test may be refused for: types that graphq does not have, and random numbers."""

REFUSED = {"test_split_to_sequence_1": "input 1 is not known before it runs",
           "test_optional_has_element_empty_optional_input": r"must be s32\[\], got "}
"""Tests that are refused for another reason: an input would decide the length of a sequence, or is absent."""

PILLOW = "Pillow must be installed"
"""Why ONNX's own implementation of a decoder of images may be missing."""

_made: dict[str, list] = {}


def modules():
    """The names of all modules, those of subpackages with their package's."""
    prefix = f"{cases.__name__}."
    return sorted(m.name.removeprefix(prefix) for m in pkgutil.walk_packages(cases.__path__, prefix)
                  if not (m.ispkg or m.name.removeprefix(prefix).startswith("_")))


def collect(module):
    """The tests that a module of onnx.backend.test.case.node makes when it is imported first."""
    if module not in _made:
        before = len(cases._NodeTestCases)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(f"{cases.__name__}.{module}")
        _made[module] = cases._NodeTestCases[before:]
    return _made[module]


def array(x):
    """A TensorProto or number as an array."""
    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)


class Formulas:
    """A graph as a compiled model is seen by ONNX's test interface."""

    def __init__(self, graph):
        self.source, self.names = graph, [v.name for v in graph.inputs]

    def __call__(self, inputs):
        after = self.source.specialize({n: TensorType(v.dtype, np.shape(inputs[n]))
                                        for n, v in zip(self.names, self.source.inputs, strict=True)})
        if not in_one_plan(after):
            return gq.reference(self.source, inputs)
        run_passes(after)
        return pack_outputs(after.output_names, evaluate_formulas(after, check_inputs(self.source, inputs)))


def of_tensors(model):
    """Whether all inputs and outputs of a model are tensors."""
    return all(v.type.HasField("tensor_type") for v in (*model.graph.input, *model.graph.output))


def run(case, *, compiled=True):
    """Run a test compiled, or by formulas: the loaded graph. Raises AssertionError for wrong results.

    The backend runs a test with sequences or optionals, because its graph depends on the inputs; the result is empty.
    """
    if not of_tensors(case.model):
        for inputs, outputs in case.data_sets:
            compare(case, backend.prepare(case.model, threads=1).run(inputs), outputs)
        return gq.Graph()
    graph = gq.load_onnx(case.model)
    model = gq.compile(graph, threads=1) if compiled else Formulas(graph)
    for inputs, outputs in case.data_sets:
        check(case, model, inputs, outputs)
    return graph


def run_with_constants(case):
    """Run a test by formulas, with all its inputs but the first as initializers: the loaded graphs.

    In the tests as they stand axes, sizes, scales and the like are inputs, for which many importers have another way.
    """
    for inputs, outputs in case.data_sets:
        model = onnx.ModelProto.FromString(case.model.SerializeToString())
        later = [v.name for v in model.graph.input][1:]
        if len(model.graph.input) != len(inputs):
            return
        for name, x in zip(later, inputs[1:], strict=True):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array(x), name))
        del model.graph.input[1:]
        model.ir_version = max(model.ir_version, 4)  # before, initializers had to be inputs
        graph = gq.load_onnx(model)
        check(case, Formulas(graph), inputs[:1], outputs)
        yield graph


def check(case, model, inputs, outputs):
    """Raise AssertionError unless the model gives these outputs."""
    compare(case, backend.GraphqRep(model).run([array(x) for x in inputs]), outputs)


def compare(case, got, outputs):
    """Raise AssertionError unless these are the test's outputs; a sequence is a list."""
    assert [isinstance(x, list) for x in got] == [isinstance(x, list) for x in outputs]
    flat = ([x for v in values for x in (v if isinstance(v, list) else [v])] for values in (got, outputs))
    for g, w in zip(*(map(array, values) for values in flat), strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape, (g.dtype, w.dtype, g.shape, w.shape)
        if np.issubdtype(g.dtype, np.integer) or g.dtype == bool:
            np.testing.assert_array_equal(g, w)
        else:
            # ONNX's reference rounds a sum of bf16 after each element, graphq once.
            least = 2**-6 if g.dtype.name == "bfloat16" else 1e-3
            np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=max(case.rtol, least),
                                       atol=max(case.atol, 1e-7))


def by(graph):
    """Whether all operations of a graph are native."""
    return "by ONNX's reference" if any(n.op.name == "onnx_node" for n in graph.nodes) else "native"


ALL = os.environ.get("GRAPHQ_ONNX_NODES") == "all"

QUANTIZATION = ("convinteger", "dequantizelinear", "dynamicquantizelinear", "matmulinteger", "qlinearconv",
                "qlinearmatmul", "quantizelinear")
SAMPLE = ("add", "ai_onnx_ml.tree_ensemble", "batch_normalization", "clip", "compress", "concat", "conv",
          "convtranspose", "einsum", "flatten", "gather", "gemm", "globalaveragepool", "gridsample", "gru", "identity",
          "if_", "loop", "lstm", "matmul", "nonmaxsuppression", "nonzero", "rnn", "scan", "slice", "split", "squeeze",
          "string_concat", "unique", "where")


@pytest.mark.parametrize("module", QUANTIZATION)
def test_quantization_is_native_and_exact(module, record):
    tests = collect(module)
    assert tests
    for case in tests:
        kind = by(run(case))
        assert kind == "native" or case.name.endswith("_expanded"), case.name
        record[kind] += 1


def test_dequantized_numbers_are_equal_bit_for_bit():
    for case in collect("dequantizelinear"):
        (inputs, (want,)), = case.data_sets
        (got,) = backend.prepare(case.model).run([array(x) for x in inputs])
        assert got.dtype == want.dtype and np.array_equal(got, want), case.name


class Softmax(OpRun):
    """Softmax with each step in bf16, as ONNX's reference has it, but a sum that is rounded once."""

    def _run(self, x, axis=None):
        with np.errstate(invalid="ignore"):
            powers = np.exp(x - x.max(axis=axis, keepdims=True))  # NaN for a query that sees no key
        return (powers / powers.astype(np.float64).sum(axis=axis, keepdims=True).astype(x.dtype),)


def test_attention_in_bf16_differs_from_the_reference_by_one_sum_only():
    """With that sum rounded once, the reference has graphq's outputs in all bits."""
    tests = [case for case in collect("attention") if case.name.endswith("bf16_expanded")]
    for case in tests:
        (inputs, _), = case.data_sets
        names = [v.name for v in case.model.graph.input]
        want, = ReferenceEvaluator(case.model, new_ops=[Softmax]).run(None, dict(zip(names, inputs, strict=True)))
        got, = backend.GraphqRep(Formulas(gq.load_onnx(case.model))).run(inputs)
        np.testing.assert_array_equal(got, want, err_msg=case.name)
    assert len(tests) == 5


@pytest.mark.parametrize("module", [m for m in modules() if m not in QUANTIZATION])
def test_module(module, record):
    expanded = [case.name for case in collect(module) if case.name.endswith("_expanded")]
    left = set() if ALL else set(expanded) - set(expanded[::3])
    for case in collect(module):
        if case.name in left:
            continue
        try:
            source = run(case, compiled=ALL or module in SAMPLE)
        except GraphqError as e:
            assert re.search(f"{REFUSED.get(case.name, UNSUPPORTED)}|{PILLOW}", str(e)), f"{case.name}: {e}"
            record["refused", case.name] += 1
            continue
        record[by(source)] += 1


@pytest.mark.parametrize("module", modules())
def test_module_with_constants(module, record):
    for case in collect(module):
        if case.name.endswith("_expanded"):
            continue  # its nodes are those of other modules
        if not of_tensors(case.model) or len(case.model.graph.input) < 2:
            continue
        try:
            for graph in run_with_constants(case):
                record["constants: " + by(graph)] += 1
        except GraphqError as e:
            assert re.search(f"{REFUSED.get(case.name, UNSUPPORTED)}|{PILLOW}", str(e)), f"{case.name}: {e}"


@pytest.fixture(scope="module")
def record():
    counts: Counter = Counter()
    yield counts
    passed = {k: n for k, n in counts.items() if isinstance(k, str)}
    refused = sorted(k[1] for k in counts if k not in passed)
    print(f"\n{sum(passed.values())} pass {passed}, {len(refused)} refused: {', '.join(refused)}")
