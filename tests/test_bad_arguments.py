"""Arguments of no use are graphq's errors, whatever they are."""
import os

import numpy as np
import pytest

import graphq as gq


class Unwilling:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("no")


STRANGE = [None, 3, 1.5, -1, True, "strange", b"bytes", [1, 2], {}, {"x": 1}, len, int, object(), Unwilling(),
           np.zeros(()), np.zeros((2, 3)), np.zeros(0), np.asarray(["text"]), np.float32(2), range(2), gq.dtypes.f32]


def built():
    """A graph of one relu, x -> y."""
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32", shape=(2, 3))), name="y")
    return g


CALLS = {
    "compile": gq.compile,
    "compile isa": lambda v: gq.compile(built(), isa=v),
    "compile threads": lambda v: gq.compile(built(), threads=v),
    "compile strict": lambda v: gq.compile(built(), strict=v),
    "compile cache": lambda v: gq.compile(built(), cache=v),
    "compile passes": lambda v: gq.compile(built(), passes=v),
    "reference": gq.reference,
    "reference of inputs": lambda v: gq.reference(built(), v),
    "reference of x": lambda v: gq.reference(built(), x=v),
    "run_passes": gq.passes.run_passes,
    "run_passes of passes": lambda v: gq.passes.run_passes(built(), v),
    "to_text": gq.to_text,
    "parse": gq.parse,
    "load_onednn_json": gq.load_onednn_json,
    "save_onednn_json": lambda v: gq.save_onednn_json(v, "unused"),
    "as_dtype": gq.dtypes.as_dtype,
    "input name": lambda v: built().input(v, dtype="f32"),
    "input dtype": lambda v: built().input("z", dtype=v),
    "input shape": lambda v: built().input("z", dtype="f32", shape=v),
    "input property": lambda v: built().input("z", dtype="f32", property=v),
    "constant": lambda v: built().constant(v),
    "operand": lambda v: built().relu(v),
    "output": lambda v: built().output(v),
    "output name": lambda v: (g := built()).output(g.nodes[0].output, name=v),
    "rename": lambda v: built().rename(v, "z"),
    "name": lambda v: (g := built()).rename(g.inputs[0], v),
    "before": lambda v: built().before(v).__enter__(),
    "replace_uses": lambda v: (g := built()).replace_uses(v, g.inputs[0]),
    "specialize": lambda v: built().specialize(v),
    "type": lambda v: built().specialize({"x": v}),
    "attribute": lambda v: (g := built()).clamp(g.inputs[0], min=v, max=9),
    "list": lambda v: (g := built()).static_transpose(g.inputs[0], order=v),
}


@pytest.mark.parametrize("name", CALLS)
def test_strange_arguments_are_taken_or_refused(name):
    for value in STRANGE:
        try:
            CALLS[name](value)
        except gq.GraphqError as error:
            assert 0 < len(str(error)) < 1000
        except FileNotFoundError:  # a path of which there is no file
            assert name == "compile" and isinstance(value, str | os.PathLike) and not os.path.exists(value)


@pytest.mark.parametrize("save", [gq.save_onednn_json, gq.save_onnx])
def test_where_graphs_are_saved(save):
    if save is gq.save_onnx:
        pytest.importorskip("onnx")
    for path in (None, 1, True, b"bytes", 1.5, []):  # 1 and True would be the standard output
        with pytest.raises(gq.GraphError, match="a path must be a str or a path object, got"):
            save(built(), path)
    with pytest.raises(gq.GraphError, match="takes a Graph, got 3"):
        save(3, "unused")
