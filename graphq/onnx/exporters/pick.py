"""Exporters of comparisons, of operations on booleans and integers, and of operations that pick elements."""
from __future__ import annotations

import numpy as np

from graphq.ir import Node
from graphq.ir.op import OPS
from graphq.onnx.exporters.writer import Writer, exports


@exports("arg_max", "arg_min")
def arg(w: Writer, node: Node) -> None:
    """Write ArgMax or ArgMin."""
    w.node(node, "ArgMax" if node.op.name == "arg_max" else "ArgMin", axis=node.attrs["axis"],
           keepdims=int(node.attrs["keep_dims"]), select_last_index=int(node.attrs["select_last_index"]))


@exports("top_k")
def top_k(w: Writer, node: Node) -> None:
    """Write TopK, with k as an initializer."""
    w.node(node, "TopK", w.integers(node.attrs["k"]), axis=node.attrs["axis"], largest=int(node.attrs["largest"]))


@exports("cum_sum")
def cum_sum(w: Writer, node: Node) -> None:
    """Write CumSum, with the axis as an initializer."""
    w.node(node, "CumSum", w.constant(np.int64(node.attrs["axis"])), exclusive=int(node.attrs["exclusive"]),
           reverse=int(node.attrs["reverse"]))


@exports("trilu")
def trilu(w: Writer, node: Node) -> None:
    """Write Trilu, with the diagonal as an initializer."""
    w.node(node, "Trilu", w.constant(np.int64(node.attrs["k"])), upper=int(node.attrs["upper"]))


@exports("arithmetic")
def arithmetic(w: Writer, node: Node) -> None:
    """Write the ONNX operator of the function, which is that of the float operation of this name, or Mod."""
    function = node.attrs["function"]
    if function in OPS:
        w.node(node, str(OPS[function].onnx))
    else:
        w.node(node, "Mod", fmod=int(function == "remainder"))
