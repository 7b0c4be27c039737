"""Sequences: lists of values during the import. ONNX Runtime is the oracle."""
import numpy as np
import onnx
import onnxruntime
import pytest

import graphq as gq
from graphq.errors import GraphError, InputError
from graphq.onnx import backend


def parsed(text, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> net {text}')


X = np.arange(24, dtype=np.float32).reshape(4, 6)

MODELS = ["""(float[4,6] x) => (float[4,n] y, int64 n) <int64 two = {2}, int64 last = {-1}, int64 first = {0}> {
    s = SplitToSequence <axis = 1> (x, two) t = SequenceAt(s, last) u = SequenceAt(s, first)
    v = SequenceConstruct(t, u, x) n = SequenceLength(v) y = ConcatFromSequence <axis = 1> (v) }""",
          """(float[4,6] x) => (float[6,k] y) {
    s = SplitToSequence <keepdims = 0> (x) t = Identity(s) y = ConcatFromSequence <axis = -1, new_axis = 1> (t) }""",
          """(float[4,6] x) => (seq(float[4,n]) y, float[4,6] z) <int64 four = {4}> {
    y = SplitToSequence <axis = -1> (x, four) z = Neg(x) }"""]


def flat(outputs):
    return [x for v in outputs for x in (v if isinstance(v, list) else [v])]


@pytest.mark.parametrize("text", MODELS)
def test_equals_onnx_runtime(text):
    model = parsed(text)
    wanted = flat(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X}))
    graph = gq.load_onnx(model)
    assert not graph.nodes_of(("onnx_node",))
    got = gq.reference(graph, {"x": X})
    for a, b in zip([got] if len(wanted) == 1 else got.values(), wanted, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def test_the_backend_returns_lists():
    sequence, negative = backend.prepare(parsed(MODELS[2])).run([X])
    for got, wanted in zip(sequence, (X[:, :4], X[:, 4:]), strict=True):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(negative, -X)


def test_outputs_of_a_sequence_are_named_by_position():
    graph = gq.load_onnx(parsed("(float[4,6] x) => (seq(float[4,n]) y) { y = SplitToSequence <axis = 1> (x) }"))
    assert graph.output_names == [f"y[{k}]" for k in range(6)]


@pytest.mark.parametrize("text, message", [
    ("(float[4,6] x, int64 n) => (float[4,m] y) { s = SplitToSequence(x, n) y = SequenceAt(s, n) }",
     "SplitToSequence 's': input 1 is not known before it runs"),
    ("(float[4,6] x) => (float[4,6] y) <int64 n = {1}> { s = SequenceConstruct(x) y = SequenceAt(s, n) }",
     "SequenceAt 'y': malformed: IndexError"),
    ("(float[4,6] x) => (int64 n) { n = SequenceLength(x) }",
     "SequenceLength 'n': input 0 must be a sequence, got f32"),
    *((f"(float[4,6] x) => (float[4,6] y) <int64 n = {{{n}}}> {{ s = SplitToSequence(x, n) y = SequenceAt(s, n) }}",
       f"SplitToSequence 's': 4 elements must be split into 1 to 65536 parts, got {k} parts of {n}")
      for n, k in ((0, 4), (-1, 4))),
    ("(float[n,6] x) => (float[4,6] y) <int64 n = {0}> { s = SplitToSequence(x) y = SequenceAt(s, n) }",
     "SplitToSequence 's': "),
    ("(float[4,6] x, bool c) => (seq(float[4,6]) y) { y = If (c) <then_branch = a () => (seq(float[4,6]) s) "
     "{ s = SequenceConstruct(x) }, else_branch = b () => (seq(float[4,6]) s) { s = SequenceConstruct(x, x) }> }",
     "If 'y': .*sequence"),
    ("(float[4,6] x) => (float[4,6] y) { s = SequenceConstruct(x) y = Neg(s) }",
     "Neg 'y': optionals, maps and changing sequences")])
def test_refuses(text, message):
    with pytest.raises(GraphError, match=message):
        gq.load_onnx(parsed(text))


def test_lists_are_inputs():
    model = parsed("""(seq(float[n]) x, float[2] z) => (float[m] y, int64 k) {
        s = OptionalGetElement(x) t = ConcatFromSequence <axis = 0> (s) y = Concat <axis = 0> (t, z)
        k = SequenceLength(s) }""")
    session, rep = onnxruntime.InferenceSession(model.SerializeToString()), backend.prepare(model)
    for count in (1, 3):
        given = {"x": [X[0, :k + 1] for k in range(count)], "z": X[1, :2]}
        for inputs in (given, list(given.values())):
            for got, wanted in zip(rep.run(inputs), session.run(None, given), strict=True):
                np.testing.assert_array_equal(got, wanted, strict=True)
    with pytest.raises(InputError, match="takes 2 inputs"):
        rep.run([[X[0]]])
    with pytest.raises(GraphError, match="ConcatFromSequence"):
        rep.run([[], X[1, :2]])
    length = parsed("(seq(float[n]) x) => (int64 k) { k = SequenceLength(x) }")
    assert backend.prepare(length).run([[]]) == (0,)
