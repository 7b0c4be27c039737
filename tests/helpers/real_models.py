"""Two quantized models out of installed packages: made by onnxruntime.quantization in QDQ form, and inputs for them."""
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_runtime import session
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static


class Samples(CalibrationDataReader):
    """Inputs one by one, for the ranges of activations."""

    def __init__(self, name, samples):
        self.feeds = iter([{name: x} for x in samples])

    def get_next(self):
        return next(self.feeds, None)


def quantized(model, samples, path):
    """The model in 8 bits, weights per channel, at `path`."""
    plain = path.with_suffix(".f32.onnx")
    onnx.save(model, plain)
    quantize_static(plain, path, Samples(model.graph.input[0].name, samples), quant_format=QuantFormat.QDQ,
                    per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    return path


def digits(folder):
    """A perceptron that scikit-learn trains on its pictures of digits, and 450 other pictures, as (path, inputs)."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra `examples`)")
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    with threadpool_limits(1):
        network = MLPClassifier((96, 48), random_state=0, max_iter=20, tol=1).fit(images[450:], labels[450:])
    nodes, constants, x = [], [], "x"
    for k, (w, b) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        last = k + 1 == len(network.coefs_)
        constants += [numpy_helper.from_array(np.float32(v), f"{n}{k}") for n, v in (("w", w), ("b", b))]
        nodes += [helper.make_node("Gemm", [x, f"w{k}", f"b{k}"], ["y" if last else f"h{k}"])]
        nodes += [] if last else [helper.make_node("Relu", [f"h{k}"], [f"x{k}"])]
        x = f"x{k}"
    graph = helper.make_graph(nodes, "digits", [helper.make_tensor_value_info("x", 1, [450, 64])],
                              [helper.make_tensor_value_info("y", 1, [450, 10])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return quantized(model, [images[450:900]], folder / "digits.onnx"), images[:450]


def squeezenet(folder):
    """SqueezeNet as the onnx package has it, without weights: they are random here, and so are the pictures."""
    rng = np.random.default_rng(0)
    model = onnx.load(Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx")
    graph = model.graph
    made = [n for n in graph.node if n.op_type == "ConstantOfShape"]
    shapes = {n.output[0]: numpy_helper.to_array(next(i for i in graph.initializer if i.name == n.input[0]))
              for n in made}
    image = next(v for v in graph.input if v.name not in {i.name for i in graph.initializer} | set(shapes))
    nodes = [n for n in graph.node if n.op_type not in ("ConstantOfShape", "Dropout", "Softmax")]
    skipped = {n.output[0]: n.input[0] for n in graph.node if n.op_type in ("Dropout", "Softmax")}
    for node in nodes:
        for k, name in enumerate(node.input):
            node.input[k] = skipped.get(name, name)
    weights = [numpy_helper.from_array(np.float32(rng.standard_normal(s) * (2 / max(1, np.prod(s[1:])))**0.5), n)
               for n, s in shapes.items()]
    used = {name for node in nodes for name in node.input}
    weights += [i for i in graph.initializer if i.name in used]
    image.CopyFrom(helper.make_tensor_value_info(image.name, 1, [1, 3, 96, 96]))
    end = onnx.ValueInfoProto(name=skipped.get(graph.output[0].name, graph.output[0].name))
    end.type.tensor_type.elem_type = 1
    whole = helper.make_graph(nodes, "squeezenet", [image], [end], weights)
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    pictures = rng.uniform(size=(3, 1, 3, 96, 96)).astype(np.float32)
    return quantized(model, pictures, folder / "squeezenet.onnx"), pictures[0]


PACKAGED = {f.__name__: f for f in (digits, squeezenet)}


def as_written(path, x):
    """The outputs of ONNX Runtime, which executes each operation by itself, in f32."""
    literal = session(path)
    return literal.run(None, {literal.get_inputs()[0].name: x})
