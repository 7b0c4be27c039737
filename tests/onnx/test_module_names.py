"""Files of PyTorch's exporter: values get the paths of their modules, and the file's names still find them."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphq as gq
from graphq.errors import GraphError
from graphq.quantization import Scheme, compare, quantize

SCOPES = "pkg.torch.onnx.name_scopes"


def node(op_type, inputs, output, *scopes, **attrs):
    """A node with the metadata that `torch.onnx.export(dynamo=True)` writes."""
    made = helper.make_node(op_type, inputs, [output], f"node_{output}", **attrs)
    if scopes:
        made.metadata_props.add(key=SCOPES, value=str(list(scopes)))
    return made


def network(**changed):
    """A convolution with a folded batch norm, a linear layer of two nodes, two relus, and a quantizer's nodes."""
    rng = np.random.default_rng(0)
    arrays = {"blocks.0.dw.weight": rng.standard_normal((4, 1, 3, 3)), "blocks.0.dw.bias": rng.standard_normal(4),
              "val_5": rng.standard_normal((4, 6)), "head.bias": rng.standard_normal(6)}
    nodes = [
        node("Conv", ["x", "blocks.0.dw.weight", "blocks.0.dw.bias"], "getitem_3", "", "blocks.0", "blocks.0.bn",
             "batch_norm_1", group=4),
        node("Relu", ["getitem_3"], "relu", "", "blocks.0", "relu"),
        node("Neg", ["relu"], "neg", "", "neg"),
        node("Relu", ["neg"], "relu_1", "", "blocks.0", "relu_1"),
        node("ReduceMean", ["relu_1"], "mean", "_empty_nn_module_stack_from_metadata_hook", "mean", axes=[2, 3],
             keepdims=0),
        node("MatMul", ["mean", "val_5"], "val_6", "", "head", "linear"),
        node("Add", ["val_6", "head.bias"], "linear", "", "head", "linear")]
    for output, scopes in changed.items():
        (found,) = (n for n in nodes if n.output[0] == output)
        del found.metadata_props[:]
        found.metadata_props.add(key=SCOPES, value=scopes)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "net", [info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
                              [info("linear", TensorProto.FLOAT, [1, 6])],
                              [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def names(graph):
    return [n.output.name for n in graph.nodes if n.op.name != "constant"]


def test_values_have_the_paths_of_their_modules():
    graph = gq.load_onnx(network())
    assert names(graph) == ["blocks.0.dw", "blocks.0.relu", "neg", "blocks.0.relu_2", "mean", "head.matmul", "head"]
    assert [v.name for v in graph.inputs] == ["x"] and graph.output_names == ["linear"]


@pytest.mark.parametrize("scopes", ["", "[", "['']", "['', '', 'neg']", "[[1, 2]]", "['x']"])
def test_other_metadata_leaves_the_names_of_the_file(scopes):
    assert "neg" in names(gq.load_onnx(network(neg=scopes)))


def test_names_are_unique_if_a_path_is_the_name_of_another_value():
    graph = gq.load_onnx(network(neg="['', 'x', 'neg']", relu="['', 'blocks.0.dw', 'relu']"))
    assert names(graph)[:3] == ["blocks.0.dw.batch_norm", "blocks.0.dw.relu", "x_2"]


def test_new_names_names_of_the_file_and_nodes_find_the_same_value():
    model = gq.compile(gq.load_onnx(network()))
    texts = {model.explain(name) for name in ("blocks.0.dw", "getitem_3", "node_getitem_3")}
    assert len(texts) == 1 and "convolution" in texts.pop()
    x = np.ones((1, 4, 8, 8), np.float32)
    wanted = gq.compile(gq.load_onnx(network()), outputs=["blocks.0.dw"])(x)
    np.testing.assert_array_equal(gq.compile(gq.load_onnx(network()), outputs=["getitem_3"])(x), wanted)
    np.testing.assert_array_equal(model(x, fetch="getitem_3"), wanted)


@pytest.mark.parametrize("scheme", [
    {"exclude": ["getitem_3"]}, {"exclude": ["blocks.0.*"]}, {"exclude": ["node_getitem_3"]},
    {"exclude": ["x..getitem_3"]}])
def test_quantization_finds_layers_by_both_names(scheme):
    made = quantize(gq.load_onnx(network()), [{"x": np.ones((1, 4, 8, 8), np.float32)}], Scheme(**scheme))
    assert made.meta["quantization"]["layers_f32"] == ["blocks.0.dw"]


def test_explain_and_errors_name_the_line_of_the_users_module():
    model = network()
    frames = [("/home/me/net.py", 14, "forward"), ("/x/site-packages/torch/nn/modules/module.py", 9, "_call"),
              ("/home/me/torch/net.py", 8, "run"), ("C:\\x\\torch\\nn\\functional.py", 7, "relu")]
    trace = "\n".join(f'  File "{file}", line {line}, in {name}\n    return f(x)' for file, line, name in frames)
    model.graph.node[1].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    report = gq.compile(gq.load_onnx(model)).explain("blocks.0.relu")
    assert 'from File "/home/me/torch/net.py", line 8, in run\n' in report
    model.graph.node[1].op_type = "StringNormalizer"
    with pytest.raises(GraphError, match=r"StringNormalizer 'node_relu' \(File .*net.py\", line 8, in run\): strings"):
        gq.load_onnx(model)


def test_limits_and_reports_have_module_names():
    graph, batches = gq.load_onnx(network(mean="['', 'pool', 'mean']")), [{"x": np.ones((1, 4, 8, 8), np.float32)}]
    by_old, by_new = (quantize(graph, batches, Scheme(limits={name: (-1, 3)})) for name in ("mean", "pool"))
    assert str(by_old) == str(by_new) != str(quantize(graph, batches))
    assert {"blocks.0.dw", "head"} <= {row.name for row in compare(by_new, graph, batches, rank=False).tensors}
    with pytest.raises(GraphError, match="did you mean blocks.0.dw"):
        quantize(graph, batches, Scheme(exclude=["blocks.0.dv"]))
