"""One ONNX node, loaded and run."""
import numpy as np
from onnx import helper, numpy_helper

import graphq as gq

ML = "ai.onnx.ml"


def run(op, *inputs, opset, outputs=1, domain="", native=True, open_inputs=(), **attrs):
    """The results of one node; the first input is given when it runs, others are initializers, None is left out."""
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    outs = [f"o{k}" for k in range(outputs)] if isinstance(outputs, int) else outputs
    given = {names[k]: np.asarray(inputs[k]) for k in (0, *open_inputs)}
    graph = helper.make_graph(
        [helper.make_node(op, names, outs, domain=domain, **attrs)], "g",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in outs if name],
        [numpy_helper.from_array(np.asarray(x), n) for n, x in zip(names, inputs, strict=True)
         if x is not None and n not in given])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 1), helper.make_opsetid("com.microsoft", 1)]
    g = gq.load_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    assert not native or not any(n.op.name == "onnx_node" for n in g.nodes), "ONNX's reference would run it"
    got = gq.reference(g, given)
    return got if outputs == 1 else [got[name] for name in outs if name]
