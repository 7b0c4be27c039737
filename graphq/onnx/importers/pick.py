"""Importers of comparisons, of operators on booleans, and of operators that pick elements by value or index."""
from __future__ import annotations

from graphq.ir.op import lookup
from graphq.onnx.importers.importer import Call, Outputs, imports


@imports("GreaterOrEqual")
def greater_or_equal(c: Call) -> Outputs:
    """Import GreaterOrEqual: `a >= b` is `b <= a`."""
    return c.graph.less_equal(c.input(1), c.input(0))


@imports("ArgMax", "ArgMin")
def arg(c: Call) -> Outputs:
    """Import ArgMax and ArgMin along `axis`."""
    name = {"ArgMax": "arg_max", "ArgMin": "arg_min"}[c.node.op_type]
    return c.graph.add_node(lookup(name), [c.input(0)], {
        "axis": c.attr("axis", 0), "keep_dims": bool(c.attr("keepdims", 1)),
        "select_last_index": bool(c.attr("select_last_index", 0))})


@imports("TopK")
def top_k(c: Call) -> Outputs:
    """Import TopK, whose k is an attribute before version 10, then a constant.

    Without `sorted` ONNX allows any order, so sorted results are right, too.
    """
    k = c.attr("k") if c.version < 10 else c.numbers(1)[0]
    return c.graph.top_k(c.input(0), k=k, axis=c.attr("axis", -1), largest=bool(c.attr("largest", 1)))


@imports("CumSum")
def cum_sum(c: Call) -> Outputs:
    """Import CumSum along a constant axis."""
    return c.graph.cum_sum(c.input(0), axis=c.numbers(1)[0], exclusive=bool(c.attr("exclusive", 0)),
                           reverse=bool(c.attr("reverse", 0)))


@imports("Scatter", "ScatterElements")
def scatter_elements(c: Call) -> Outputs:
    """Import ScatterElements along `axis`, and Scatter, its older name."""
    return c.graph.scatter_elements(c.input(0), c.input(1), c.input(2), axis=c.attr("axis", 0),
                                    reduction=c.attr("reduction", "none"))


@imports("Trilu")
def trilu(c: Call) -> Outputs:
    """Import Trilu, whose diagonal is a constant, by default 0."""
    k = c.numbers(1)[0] if c.has(1) else 0
    return c.graph.trilu(c.input(0), upper=bool(c.attr("upper", 1)), k=k)


@imports("GridSample")
def grid_sample(c: Call) -> Outputs:
    """Import GridSample, whose modes have other names before version 20."""
    mode = c.attr("mode", "linear")
    return c.graph.grid_sample(c.input(0), c.input(1), mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode),
                               padding_mode=c.attr("padding_mode", "zeros"),
                               align_corners=bool(c.attr("align_corners", 0)))
