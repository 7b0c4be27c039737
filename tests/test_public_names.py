"""The public names: what `import graphq` promises, and that nothing else slips in unnoticed."""
import inspect

import pytest

import graphq as gq
from graphq.rewrite.fixpoint import pass_name

NAMES = {
    "CompileError", "CompiledGraph", "DType", "Graph", "GraphError", "GraphqError", "InputError", "KernelError", "Node",
    "ParseError", "Partition", "Predictor", "TensorType", "Value", "VerifyError", "compile", "dtypes", "errors",
    "from_torch", "load_compiled", "load_onednn_json", "load_onnx", "ops", "parse", "passes", "quantization",
    "reference", "save_onednn_json", "save_onnx", "testing", "to_text",
}
OPS = {"add", "bias_add", "clamp", "dequantize", "divide", "gelu", "matmul", "maximum", "minimum", "multiply",
       "quantize", "relu", "sigmoid", "softmax", "static_reshape", "static_transpose", "subtract", "tanh", "type_cast"}


def test_all_is_the_list_of_public_names():
    assert set(gq.__all__) == NAMES
    assert all(hasattr(gq, name) for name in NAMES)
    assert len(gq.__all__) == len(NAMES)


def test_completion_offers_the_public_names_alone():
    assert {name for name in dir(gq) if not name.startswith("_")} == NAMES
    assert "__version__" in dir(gq)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_public_names_are_documented(name):
    assert inspect.getdoc(getattr(gq, name))


def test_compile_has_the_parameters_of_the_design():
    parameters = inspect.signature(gq.compile).parameters
    assert list(parameters) == ["graph", "outputs", "isa", "threads", "strict", "passes", "cache", "memory", "verify",
                                "precision", "ties", "ranges"]
    assert all(p.kind is p.KEYWORD_ONLY for name, p in parameters.items() if name != "graph")
    assert [p.default for p in list(parameters.values())[1:]] == [None, None, None, False, None, True, None, None,
                                                                    "f32", "settled", "tensor"]


@pytest.mark.parametrize("function, defaults", [
    (gq.Predictor, {"threads": None, "batch": None, "pad_to": None, "pad": None, "convert": False,
                    "ranges": "tensor"}),
    (gq.load_compiled, {"isa": None, "threads": None}), (gq.load_onnx, {"memory": None}), (gq.save_onnx, {"opset": 21}),
    (gq.to_text, {"elide": None, "indent": ""}), (gq.Graph, {"name": "graph"}),
    (gq.CompiledGraph.profile, {"runs": 20, "peaks": False}),
    (gq.CompiledGraph.report, {"profile": None, "title": None}),
    (gq.CompiledGraph.explain, {"name": None, "kernels": False, "full": False, "profile": None, "format": "text"}),
    (gq.quantization.automatic, {"scheme": None}), (gq.quantization.compare, {"rank": True}),
    (gq.quantization.calibrate, {"tensors": None, "histograms": True}),
    (gq.quantization.quantize, {"data": None, "scheme": None}),
    (gq.testing.check_pass, {"after": None, "inputs": None, "count": None, "seed": 0, "rtol": None, "atol": None,
                             "sizes": None, "vary": True}),
    (gq.testing.check_same_numbers, {"seed": 0, "rtol": 0.0, "atol": 0.0, "sizes": None}),
    (gq.testing.random_inputs, {"seed": 0, "sizes": None})])
def test_defaults(function, defaults):
    parameters = inspect.signature(function).parameters.values()
    assert {p.name: p.default for p in parameters if p.default is not p.empty} == defaults


def test_compiled_graph_has_its_public_members():
    for name in ("__call__", "coverage", "explain", "formula", "inputs", "outputs", "profile"):
        assert inspect.getdoc(getattr(gq.CompiledGraph, name)), name


def test_builder_has_a_documented_method_for_each_op():
    g = gq.Graph()
    assert set(dir(g)) >= OPS | {"input", "constant", "output", "inputs", "outputs", "nodes"}
    for name in OPS:
        assert inspect.getdoc(getattr(g, name)), name


def test_passes_and_testing_have_what_a_pass_author_needs():
    for name in ("ANY", "PIPELINE", "Match", "Pass", "Refusal", "Rewrite", "run_passes"):
        assert hasattr(gq.passes, name), name
    assert isinstance(gq.passes.PIPELINE, tuple) and all(callable(p) for p in gq.passes.PIPELINE)
    assert callable(gq.testing.check_pass)


def test_each_pass_of_the_pipeline_is_public():
    rewrites = gq.passes.canonicalize.passes
    for p in (*gq.passes.PIPELINE, *rewrites):
        assert ("Fuse" if isinstance(p, gq.passes.Fuse) else pass_name(p)) in gq.passes.__all__


def test_errors_have_one_base():
    for name in NAMES:
        if name.endswith("Error"):
            assert issubclass(getattr(gq, name), gq.GraphqError), name


def test_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert gq.__version__ == version("graphq-compiler")
