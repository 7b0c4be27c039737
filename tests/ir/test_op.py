"""Own operations, and what a declaration may not be."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError
from graphq.ir import Graph
from graphq.ir.op import OPS, register_op


@pytest.fixture
def registry():
    before = dict(OPS)
    yield OPS
    OPS.clear()
    OPS.update(before)


def test_own_ops(registry):
    g = Graph("test")
    x = g.input("x", dtype="f32", shape=(2, 3))

    @register_op(infer=lambda src, *, factor: src)
    def scaled(src, *, factor: float = 2.0):
        """Scale."""
        return src * np.float32(factor)

    g.output(g.scaled(x, factor=3), name="y")
    assert scaled.kind == "Scaled" and gq.reference(g, x=np.ones((2, 3), np.float32)).tolist() == [[3.0] * 3] * 2


def test_registering_a_name_twice(registry):
    with pytest.raises(GraphError, match="op 'relu' is registered already, by graphq.ops.threshold"):
        @register_op(infer=None)
        def relu(src):
            """Again."""


def test_bad_signatures(registry):
    def named(src, *, name: str = ""):
        """An attribute that builder methods use themselves."""

    def variable(src, **attrs):
        """Attributes without names."""

    def positional(src, alpha=1.0):
        """An attribute in a tensor's place."""

    for f, message in ((named, "cannot be called 'name'"), (variable, "variable"), (positional, "'alpha' is a tensor")):
        with pytest.raises(GraphError, match=message):
            register_op(infer=None)(f)
        assert f.__name__ not in OPS
