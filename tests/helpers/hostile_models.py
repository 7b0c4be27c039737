"""Small ONNX files that ask for much memory, or for ever: name -> bytes. Run as a script, it tries them.

    python hostile_models.py        one line a model: how it ended, and the process's peak in MB so far
"""
import gc
import resource
import signal

import numpy as np
from onnx import TensorProto, helper, numpy_helper

T40, T62 = 1 << 40, 1 << 62
LIMIT = 6 << 30
"""The address space that the script allows itself."""



def peak_kilobytes():
    """Of this process: `ru_maxrss` begins with that of the process that started it."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def info(name, dims, type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, type, dims)


def const(name, value, dtype=np.int64):
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def model(op, *operands, opset=17, domain="", **attrs):
    """One node on inputs, initializers and names, as bytes."""
    names = [x if isinstance(x, str) else x.name for x in operands]
    inputs = [x for x in operands if not isinstance(x, str | TensorProto)]
    return of_nodes([helper.make_node(op, names, ["y"], domain=domain, **attrs)], inputs,
                    [x for x in operands if isinstance(x, TensorProto)], opset, domain)


def of_nodes(nodes, inputs, initializers, opset=17, domain=""):
    outputs = [helper.make_empty_tensor_value_info(name) for node in nodes for name in node.output]
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def loop(*body):
    """2**62 turns of a body on a constant."""
    inner = helper.make_graph([helper.make_node("Identity", ["c"], ["d"]), *body], "body",
                              [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("v", [1])],
                              [info("d", [], TensorProto.BOOL), info("w", [1])])
    return of_nodes([helper.make_node("Loop", ["n", "go", "x"], ["y"], body=inner)], [],
                    [const("n", T62), const("go", True, bool), const("x", [1.0], np.float32)])


X, X2, ONE = info("x", [1, 1, 8]), info("x", [1, 1, 8, 8]), const("x", [1.0], np.float32)
C = const("x", np.ones((1, 1, 8)), np.float32)
W, W2 = (const("w", np.ones((1, 1, *[2] * n)), np.float32) for n in (1, 2))
NOWHERE = const("z", [], np.float32)
TREE = dict(nodes_falsenodeids=[0], nodes_featureids=[0], nodes_modes=["LEAF"], nodes_nodeids=[0], nodes_treeids=[0],
            nodes_truenodeids=[0], nodes_values=[0.0], target_ids=[0], target_nodeids=[0], target_treeids=[0],
            target_weights=[1.0], domain="ai.onnx.ml")

REFUSED = {
    "Conv pads": model("Conv", X, W, pads=[T40, 0]),
    "Conv pads along two axes": model("Conv", X2, W2, pads=[1 << 20] * 4),
    "Conv pads of 2**62": model("Conv", X, W, pads=[T62, T62]),
    "Conv strides and pads": model("Conv", X, W, pads=[T40, T40], strides=[T40]),
    "Conv of constants": model("Conv", C, W, pads=[T40, T40], strides=[T40]),
    "ConvTranspose strides": model("ConvTranspose", X, W, strides=[T40]),
    "ConvTranspose dilations": model("ConvTranspose", X, W, dilations=[T40]),
    "ConvTranspose output_shape": model("ConvTranspose", X, W, output_shape=[T40]),
    "ConvTranspose of constants": model("ConvTranspose", C, W, strides=[T40], pads=[3 * T40] * 2),
    "MaxPool kernel": model("MaxPool", X, pads=[1 << 31] * 2, kernel_shape=[(1 << 31) + 3]),
    "MaxPool kernel, padded to the same": model("MaxPool", X, auto_pad="SAME_UPPER", kernel_shape=[1 << 33]),
    "MaxPool of constants": model("MaxPool", C, auto_pad="SAME_UPPER", kernel_shape=[1 << 33]),
    "AveragePool kernel": model("AveragePool", X, pads=[1 << 23] * 2, kernel_shape=[1 << 24]),
    "AveragePool of constants": model("AveragePool", C, pads=[1 << 23] * 2, kernel_shape=[1 << 24]),
    "AveragePool dilations": model("AveragePool", X, pads=[1 << 33] * 2, kernel_shape=[2], dilations=[1 << 33],
                                   opset=19),
    "Expand": model("Expand", X, const("s", [T40, 1, 8])),
    "Expand of constants": model("Expand", ONE, const("s", [T40])),
    "Expand to 2**62": model("Expand", ONE, const("s", [T62])),
    "Tile": model("Tile", X, const("s", [1, 1, T40])),
    "Tile by 2**62": model("Tile", X, const("s", [T62, T62, 1])),
    "ConstantOfShape": model("ConstantOfShape", const("s", [T40])),
    "ConstantOfShape of 2**124": model("ConstantOfShape", const("s", [T62, T62])),
    "ConstantOfShape of nothing": model("ConstantOfShape", const("s", [0, T62, T62])),
    "Range": model("Range", const("a", 0), const("b", T40), const("c", 1)),
    "Range of f32": model("Range", *(const(n, v, np.float32) for n, v in (("a", 0), ("b", 3e38), ("c", 1e-30)))),
    "Range whose temporaries are large": model("Range", const("a", 0), const("b", 1 << 27), const("c", 1)),
    "Pad": model("Pad", X, const("p", [0, 0, T40] * 2)),
    "Pad of constants": model("Pad", ONE, const("p", [1 << 34] * 2), mode="edge"),
    "Resize sizes": model("Resize", X, "", "", const("s", [1, 1, T40])),
    "Resize scales": model("Resize", X, "", const("s", [1, 1, 1 << 28], np.float32), mode="linear"),
    "Upsample": model("Upsample", X, const("s", [1, 1, 1e12], np.float32), opset=9),
    "OneHot": model("OneHot", const("i", [1, 2]), const("d", T40), const("v", [0, 1], np.float32)),
    "Gather": model("Gather", info("x", [1 << 20, 1 << 20]), const("i", np.zeros((64, 64)))),
    "MatMul": model("MatMul", info("x", [1 << 24, 1]), info("z", [1, 1 << 24])),
    "Add": model("Add", info("x", [1 << 24, 1]), info("z", [1, 1 << 24])),
    "Einsum": model("Einsum", info("x", [1 << 20]), info("z", [1 << 20]), equation="i,j->ij"),
    "Split": model("Split", X, opset=18, num_outputs=T40),
    "SplitToSequence": model("SplitToSequence", info("x", [1 << 30])),
    "SplitToSequence by a vector": model("SplitToSequence", info("x", [1 << 30]),
                                         info("s", [1 << 30], TensorProto.INT64)),
    "HannWindow": model("HannWindow", const("s", T40)),
    "DFT": model("DFT", info("x", [1, 8, 1]), const("n", T40), axis=1),
    "AffineGrid": model("AffineGrid", info("x", [1, 2, 3]), const("s", [1, 1, 1 << 20, 1 << 20]), opset=20),
    "CenterCropPad": model("CenterCropPad", ONE, const("s", [T40]), opset=18),
    "Col2Im": model("Col2Im", info("x", [1, 5, 5]), const("a", [1 << 30] * 2), const("b", [1, 5]), opset=18),
    "DepthToSpace": model("DepthToSpace", X2, blocksize=T40),
    "TreeEnsembleRegressor": model("TreeEnsembleRegressor", info("x", [1, 4]), n_targets=T40, **TREE),
    "sparse Constant": model("Constant", sparse_value=helper.make_sparse_tensor(ONE, const("i", [5]), [T40])),
    "Scan inputs": model("Scan", ONE, num_scan_inputs=1 << 28, body=helper.make_graph(
        [helper.make_node("Identity", ["a"], ["b"])], "body", [info("a", [])], [info("b", [])])),
    "Attention heads": model("GroupQueryAttention", info("q", [1, 4, 64]), info("k", [1, 4, 64]), info("v", [1, 4, 64]),
                             "", "", const("s", [3], np.int32), const("t", 4, np.int32), domain="com.microsoft",
                             num_heads=T40, kv_num_heads=T40),
    "nine constants": of_nodes([helper.make_node("ConstantOfShape", ["s"], [f"y{k}"]) for k in range(9)], [],
                               [const("s", [1 << 26])]),
    "many ranges": of_nodes([helper.make_node("Range", ["a", "b", "c"], [f"y{k}"]) for k in range(99)], [],
                            [const("a", 0), const("b", 1 << 24), const("c", 1)]),
    "MaxPool and its indices": of_nodes([helper.make_node("MaxPool", ["x"], ["y", "z"], auto_pad="SAME_UPPER",
                                                          kernel_shape=[1 << 33])], [], [C]),
}
"""What must be refused with a graphq error."""

LOADED = {
    "Loop": loop(helper.make_node("Add", ["v", "v"], ["w"])),
    "Loop by ONNX's reference": loop(helper.make_node("SequenceConstruct", ["v"], ["s"]),
                                     helper.make_node("Mod", ["i", "i"], ["k"]),
                                     helper.make_node("SequenceAt", ["s", "k"], ["w"])),
    **{f"{op} in blocks of 2**{bits}": model(
        op, const("q", np.ones((2, 3)), dtype), const("s", np.ones((2, 1)), np.float32), *zero,
        opset=21, axis=1, block_size=1 << bits)
       for op, dtype, zero in (("DequantizeLinear", np.int8, ()),
                               ("QuantizeLinear", np.float32, (const("z", np.zeros((2, 1)), np.int8),)))
       for bits in (28, 40, 62)},
    "RoiAlign": model("RoiAlign", const("x", np.ones((1, 1, 4, 4)), np.float32), const("r", [[0, 0, 3, 3]], np.float32),
                      const("i", [0]), sampling_ratio=1 << 28, output_height=2, output_width=2),
    "Unsqueeze": model("Unsqueeze", X, const("a", np.arange(100_000))),
}
"""What may load, and be compiled without kernels, for a run alone would take long."""


def main():
    """Try all, in a small address space."""
    import graphq as gq

    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    gc.freeze()  # the collections below do not scan what is imported
    for name, data in {**REFUSED, **LOADED}.items():
        gc.collect()  # an error's frames may hold the graph of the model before
        signal.alarm(60)  # ends the process
        try:
            gq.compile(gq.load_onnx(data), threads=1)
            ended = "done"
        except gq.GraphqError as e:
            ended = f"refused: {str(e)[:200]}"
        except Exception as e:
            ended = f"{type(e).__name__}: {str(e)[:200]}"
        peak = peak_kilobytes() // 1000
        print(name, ended.replace("\n", " "), peak, sep="|", flush=True)


if __name__ == "__main__":
    main()
