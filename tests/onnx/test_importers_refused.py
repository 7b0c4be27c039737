"""Importers: nodes that break an operator's rule, and those that graphq has no operations for."""
import json

import numpy as np
import onnx
import pytest
from one_onnx_node import run
from onnx import TensorProto, helper, numpy_helper

import graphq as gq
from graphq.errors import GraphError

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 12, 4, 6)).astype(np.float32)
WHOLE = RNG.integers(-50, 50, (2, 3, 4, 5)).astype(np.int32)
BIDIRECTIONAL = 'direction = "bidirectional",'

REFUSED = [  # the version, the graph, what is said
    (8, "(float[2,3,4] x, int64[2] n) => (float[2,3,4] y) { y = Scan <num_scan_inputs = 1, "
        "body = b (float[4] i) => (float[4] o) { o = Neg(i) }> (n, x) }", "Scan 'y': a Scan with sequence lengths"),
    (13, '(float[1,4,2,2] x) => (float[1,1,4,4] y) { y = DepthToSpace <blocksize = 2, mode = "xyz"> (x) }',
     "attribute 'mode' must be DCR or CRD, got 'xyz'"),
    *((9, f"(float[3,4] x) => (float[3,4] y) {{ y = Scan <num_scan_inputs = {count}, "
          "body = b (float[4] i) => (float[4] o) { o = Neg(i) }> (x) }", message)
      for count, message in ((2, r"num_scan_inputs must be in \[0, 1\], the number of operands, got 2"),
                             (-1, "num_scan_inputs must be in"))),
    (9, "(float[3,4] x) => (float[3,4] y) { y = Scan <num_scan_inputs = 1, "
        "body = b (float[4] i, float[4] j) => (float[4] o) { o = Add(i, j) }> (x) }",
     "the graph 'b' takes 2 values, got 1"),
    (17, "(float[1,2,7] x, float[3,2,3] w) => (float[1,3,n] y) { y = Conv <auto_pad = \"SAME\"> (x, w) }",
     "Conv 'y': auto_pad must be one of NOTSET, .* got 'SAME'"),
    (17, "(float[1,2,7] x, float[3,2,3] w) => (float[1,3,n] y) { y = Conv <pads = [1]> (x, w) }",
     r"Conv 'y': pads must be 2 numbers, got \[1\]"),
    *((17, f"(double[1,2,7] x, double[2,3,3] w) => (double[1,3,n] y) {{ y = ConvTranspose <{attribute}> (x, w) }}",
       "a ConvTranspose of f64 .* takes only strides, pads and dilations")
      for attribute in ("output_shape = [14]", "output_padding = [0]", 'auto_pad = "SAME_UPPER"')),
    (17, "(float[2,3] x) => (float[n] y) { y = Einsum <equation = \"ij->ik\"> (x) }",
     "equation 'ij->ik' has names in its result that no operand has"),
    (17, "(float[2,3] x) => (float[n] y) { y = Einsum <equation = \"ijk->i\"> (x) }", "'ijk' does not fit rank 2"),
    (17, "(float[2,3] x) => (float[n] y) { y = Einsum <equation = \"i->i\"> (x) }", "'i' does not fit rank 2"),
    (17, "(float[2,3] x) => (float[n] y) { y = Einsum <equation = \"ij,jk->i\"> (x) }", "needs 2 operands, got 1"),
    (18, "(float[4] x) => (float[2] y, float[2] z) { y, z = Split <num_outputs = 3> (x) }",
     "num_outputs must be the number of outputs, 2, got 3"),
    *((13, f"(float[4] x) => (float[a] y, float[b] z) <int64[{len(s)}] s = {{{', '.join(map(str, s))}}}> "
           "{ y, z = Split(x, s) }", r"sizes \[.*\] do not split 4 elements into 2 outputs")
      for s in ((1, 2), (5, -1), (1, 1, 2), (4,))),
    (17, "(float[4] x) => (float[n] y) <int64[1] s = {-4}> { y = Expand(x, s) }", "must have no negative dimensions"),
    (17, "(float[4] x) => (float[n] y) <int64[1] s = {-4}> { y = Pad(x, s) }", r"pads must be 2 numbers, got \[-4\]"),
    (9, "(float[2,3,4,5] x) => (float[2,3,4,5] y, float[3] m, float[3] v, float[3] a, float[3] b) "
        "<float[3] w = {1, 2, 3}> { y, m, v, a, b = BatchNormalization(x, w, w, w, w) }",
     "training in version 9 of f32 is not supported"),
    (15, "(float16[2,3,4,5] x) => (float16[2,3,4,5] y, float[3] m, float[3] v) <float[3] w = {1, 2, 3}> "
         "{ y, m, v = BatchNormalization <training_mode = 1> (x, w, w, w, w) }",
     "training in version 15 of f16 is not supported"),
    (17, "(float[2,3] x) => (float[2,3] y) <float[3] w = {1, 2, 3}> "
         "{ y = com.microsoft.SimplifiedLayerNormalization <stash_type = 10> (x, w) }",
     "attribute 'stash_type' must be 1, for f32, got 10"),
    (17, "(double[2,3,4,5] x) => (double[2,3,4,5] y) { y = LRN <size = 3> (x) }", r"f64\[2,3,4,5\], but must be f32"),
    (17, "(double[1,1,4] x) => (double[1,1,n] y, int64[1,1,n] z) { y, z = MaxPool <kernel_shape = [2]> (x) }",
     r"indices of maxima of f64\[1,1,4\] are not supported"),
    (17, "(float[1,1,2000] x) => (float[1,1,n] y, int64[1,1,n] z) { y, z = MaxPool <kernel_shape = [1025]> (x) }",
     r"windows of at most 1024 elements, got \[1025\]"),
    (17, "(bool[1,1,4] x) => (bool[1,1,8] y) <float[3] s = {1, 1, 2}> { y = Resize(x, '', s) }",
     "booleans are not resized"),
    (17, "(double[1,1,4] x) => (double[1,1,1] y) { y = GlobalLpPool <p = 3> (x) }", "a norm of p 3 takes f32, bf16"),
    (17, "(float[1,1,0] x) => (float[1,1,1] y) { y = GlobalMaxPool(x) }", "an image without pixels has no"),
    (17, "(float[4] x) => (int8[4] y) <float[4] s = {1, 1, 1, 1}> { y = com.microsoft.QuantizeLinear(x, s) }",
     "without an axis the scale must be one number"),
    (21, "(float[4] x) => (int8[4] y) <float s = {1}, uint8 z = {3}> "
         "{ y = QuantizeLinear <output_dtype = 3> (x, s, z) }",
     "output_dtype s8 and a zero point of u8 contradict each other"),
    (14, "(double[3,1,2] x, double[1,1,2] w, double[1,1,1] r) => (double[3,1,1,1] y) "
         "{ y = RNN <hidden_size = 1> (x, w, r) }", "a recurrence of f64 is not supported"),
    *((14, f"(float[3,1,2] x, float[1,1,2] w, float[1,1,1] r) => (float[3,1,1,1] y) "
           f"{{ y = RNN <hidden_size = 1, {attribute}> (x, w, r) }}", message)
      for attribute, message in (("clip = 2.0", "clip is not supported"),
                                 ('activations = ["Relu"]', "activations must be Tanh, got Relu"),
                                 ('activations = ["Tanh", "Tanh"]', "activations must be Tanh, got Tanh, Tanh"))),
    *((14, f"(float[3,1,2] x, float[{d},{g},2] w, float[{d},{g},1] r) => (float[3,{d},1,1] y) {{ y = {op} "
           f"<hidden_size = 1, {BIDIRECTIONAL * (d == 2)} activations = {json.dumps(given.split())}> (x, w, r) }}",
       f"got {given.replace(' ', ', ')}$")
      for op, d, g, given in (("LSTM", 1, 4, "Tanh Sigmoid Tanh"), ("LSTM", 1, 4, "Sigmoid Tanh"),
                              ("LSTM", 1, 4, "Sigmoid Sigmoid Tanh"), ("GRU", 1, 3, "Tanh Sigmoid"),
                              ("GRU", 2, 3, "Sigmoid Tanh"), ("GRU", 2, 3, "Sigmoid Tanh Tanh Sigmoid"))),
    (17, "(float[4] x) => (float[4] y) { y = com.microsoft.Nope(x) }",
     "operator Nope of domain com.microsoft is not supported"),
    *((18, f"(int32[4] x) => (int32[1] y) {{ y = {op}(x) }}", r"a logarithm of sums takes floats, got s32\[4\]")
      for op in ("ReduceLogSum", "ReduceLogSumExp")),
    *((17, f"(float[2,3] x) => (float[n,m] y) {{ y = Flatten <axis = {axis}> (x) }}",
       rf"axis must be in \[-r, r\] with r = 2, got {axis}") for axis in (3, -3)),
    *((17, f"(float[2,3] x) => (float[n] y) <int64[2] a = {{1, {k}}}> {{ y = Unsqueeze(x, a) }}",
       r"axes must be different, got \[1, ") for k in (1, -3)),
    (17, "(float[2,1] x) => (float[n] y) <int64[1] a = {0}> { y = Squeeze(x, a) }",
     r"dimensions at axes \[0\] of f32\[2,1\] must be 1"),
    (17, "(double[1,9] x) => (double[1,n,m,2] y) <int64 s = {2}, int64 l = {4}> { y = STFT(x, s, '', l) }",
     r"the signal must be f32, got f64\[1,9\]"),
    (17, "(float[1,9] x) => (float[1,n,m,2] y) <int64 s = {2}, float[3] w = {1, 1, 1}, int64 l = {4}> "
         "{ y = STFT(x, s, w, l) }", r"the window must have the frame's length 4, got \[3\]"),
    (17, "(float[1,1,4,4] x, float[1,5] r) => (float[1,1,2,2] y) { y = MaxRoiPool <pooled_shape = [2, 2]> (x, r) }",
     "it is not supported: ONNX's reference does not implement it"),
    *((17, f"(float[2,1,4,4] x, float[1,4] r) => (float[1,1,1,1] y) <int64[1] i = {{{k}}}> {{ y = RoiAlign(x, r, i) }}",
       rf"input 2 must have indices of images in \[0, 1\], got {k}") for k in (2, -1)),
    (17, "(float[1,3,1] x) => (float[1,n,m,2] y) <int64 s = {2}, int64 l = {4}> { y = STFT(x, s, '', l) }",
     r"a frame of 4 samples is longer than the signal f32\[1,3,1\]"),
    (17, "(float[4,3] x, int64[4] n) => (float[4,3] y) { y = ReverseSequence <time_axis = 1> (x, n) }",
     r"time_axis and batch_axis must be 0 and 1 of f32\[4,3\], got 1 and 1"),
    (18, "(float[1,5,4] x) => (float[1,n,2,2] y) <int64[2] i = {2, 2}, int64[2] b = {2, 1}>"
         " { y = Col2Im <pads = [0, 1, 1, 0]> (x, i, b) }", r"input 0 must be \[1,4,6\], got f32"),
    (18, "(float[1,3,4] x) => (float[1,1,2] y) <int64[1] i = {2}, int64[1] b = {3}> { y = Col2Im (x, i, b) }",
     r"a block of \[3\] pixels is larger than the padded image of \[2\]"),
    (17, "(float x) => (float[5,n] y) <int64 b = {2}, int64 n = {8}, int64 r = {0}, float h = {3}>"
         " { y = MelWeightMatrix (b, n, r, h, h) }", "the sample rate, must be positive, got 0"),
    (17, "(float[2,1] x) => (int64[2] y, float[2,2] z) { y, z = ai.onnx.ml.LinearClassifier <classlabels_ints = [0, 1],"
         " coefficients = [1.0], intercepts = [0.5]> (x) }", "one row of coefficients for two labels"),
    (17, "(int64[2,1] x) => (float[2,1] y) { y = ai.onnx.ml.SVMRegressor <coefficients = [1.0]> (x) }",
     "support vector machines of integers or with probabilities"),
    (17, "(float[2,1] x) => (int64[2] y, float[2,2] z) { y, z = ai.onnx.ml.SVMClassifier <classlabels_ints = [0, 1], "
         "prob_a = [1.0]> (x) }", "support vector machines of integers or with probabilities"),
]


@pytest.mark.parametrize("opset, text, message", REFUSED, ids=range(len(REFUSED)))
def test_nodes_that_break_a_rule(opset, text, message):
    text = text.replace("''", "")
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml": 1, '
                                    f'"com.microsoft": 1]>\nnet {text}')
    with pytest.raises(GraphError, match=message):
        gq.load_onnx(model)


def test_constants_of_one_value_elsewhere():
    """`sparse_value`: elements by flat places, or by tuples of indices."""
    for indices in (np.int64([1, 5]), np.int64([[0, 1], [1, 2]])):
        sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.float32([2, 3])),
                                           numpy_helper.from_array(indices), [2, 3])
        graph = helper.make_graph([helper.make_node("Constant", [], ["c"], sparse_value=sparse),
                                   helper.make_node("Add", ["x", "c"], ["y"])], "g",
                                  [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
                                  [helper.make_empty_tensor_value_info("y")])
        g = gq.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
        np.testing.assert_array_equal(gq.reference(g, x=np.ones((2, 3), np.float32)), [[1, 3, 1], [1, 1, 4]])


def test_cubic_sizes_are_not_linear():
    x, scales = X[:, :1], np.float32([1, 1, 2, 2])
    cubic = run("Resize", x, None, scales, opset=13, native=False, mode="cubic")
    linear = run("Resize", x, None, scales, opset=13, mode="linear")
    assert cubic.shape == linear.shape == (2, 1, 8, 12) and abs(cubic - linear).max() > 0.01


def test_a_shape_of_no_elements():
    assert run("Expand", np.ones((3, 1), np.float32), np.int64([0]), opset=13).shape == (3, 0)


@pytest.mark.parametrize("op, more", [("Conv", ", w"), ("ConvTranspose", ", w"), ("MaxPool <kernel_shape = [2]>", ""),
                                      ("GlobalAveragePool", "")])
def test_windows_over_an_unknown_rank(op, more):
    """Until shapes are known they are nodes of ONNX's reference."""
    text = f"net (float[n] s, int64[k] d, float[3,3,2] w) => (float[a] y) {{ x = Reshape(s, d) y = {op}(x{more}) }}"
    g = gq.load_onnx(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'))
    assert [n.op.name for n in g.nodes] == ["onnx_node", "onnx_node"]


@pytest.mark.parametrize("training", ["t", "true", ""])
def test_a_dropout_without_a_seed_is_refused_if_it_may_train(training):
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, bool t) => (float[2] y) {'
    body = "true = Constant<value = bool {1}>() half = Constant<value_float = 0.5>() y = Dropout(x, half, "
    model = onnx.parser.parse_model(f"{head}{body}{training}) }}")
    if training:
        with pytest.raises(GraphError, match="Dropout 'y': .* random: set training_mode to false, or give"):
            gq.load_onnx(model)
    else:
        assert not gq.load_onnx(model).nodes


@pytest.mark.parametrize("draw, reason", [
    ("RandomNormalLike(e)", "random numbers"), ("Dropout(e, half, k)", "dropout in training mode is random")])
def test_random_numbers_in_a_body_that_onnx_runs_are_refused(draw, reason):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {
        n = Constant<value_int = 3>() c = Constant<value = bool {1}>() half = Constant<value_float = 0.5>()
        y = Loop(n, c, x) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] t) {
            k2 = Identity(k) q = SequenceConstruct(s, s, s) e = SequenceAt(q, i)
            t = DRAW }>
    }""".replace("DRAW", draw))
    with pytest.raises(GraphError, match=f"Loop 'y': {reason}"):
        gq.load_onnx(model)
