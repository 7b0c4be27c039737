"""Importers of operators that gather elements from computed positions."""
from graphq.dtypes import s64
from graphq.onnx.importers.composed import one, places, standard
from graphq.onnx.importers.importer import Call, Outputs, imports


@imports("Compress")
def compress(c: Call) -> Outputs:
    """Import Compress: gather the slices along `axis`, or the elements, where the condition is true."""
    x = c.input(0) if "axis" in c.attrs else c.graph.static_reshape(c.input(0), shape=[-1])
    found, = standard(c, "NonZero", [c.input(1)])
    return c.graph.gather(x, c.graph.static_reshape(found, shape=[-1]), axis=c.attr("axis", 0))


@imports("ReverseSequence")
def reverse_sequence(c: Call) -> Outputs:
    """Import ReverseSequence: gather the steps of each sequence, with the order of the first steps reversed."""
    x, g, rank = c.input(0), c.graph, len(c.input(0).type.dims)
    order, time = [1, 0, *range(2, rank)], c.attr("time_axis", 0)
    if rank < 2 or {time, c.attr("batch_axis", 1)} != {0, 1}:
        c.refuse(f"time_axis and batch_axis must be 0 and 1 of {x.type}, got {time} and {c.attr('batch_axis', 1)}")
    c.expect(1, (x.type.dims[1 - time],))
    rows = x if time else g.static_transpose(x, order=order)
    lengths, steps = g.static_reshape(c.input(1), shape=[-1, 1]), g.cast(places(c, x, time), dtype=s64)
    last = g.arithmetic(lengths, one(lengths, 1), function="subtract")
    taken = g.choose(g.less(steps, lengths), g.arithmetic(last, steps, function="subtract"), steps)
    y = g.gather_nd(rows, g.static_reshape(taken, shape=[0, 0, 1], special_zero=True), batch_dims=1)
    return y if time else g.static_transpose(y, order=order)
