"""Nodes that leave attributes out, of every operator in every version: what is taken in their place."""
from contextlib import suppress

import numpy as np
import pytest
from onnx_cases import cases
from onnx_forms import FORMS
from onnx_node import node_model

import graphq as gq
from graphq.errors import GraphqError
from graphq.onnx.importers.importer import Call


@pytest.mark.parametrize("op", FORMS)
def test_absent_attributes_have_the_defaults_of_schemas(op):
    """The fixture of conftest.py compares them: here every combination of attributes is loaded once."""
    seen = set()
    for case in cases(op):
        (node,) = case.model.graph.node
        present = case.version, *sorted(a.name for a in node.attribute)
        if present not in seen:
            seen.add(present)
            with suppress(GraphqError):
                gq.load_onnx(case.model)


@pytest.mark.parametrize("domain, op, name, value", [
    ("", "Softmax", "axis", 1), ("com.microsoft", "BiasSoftmax", "axis", -1), ("", "Selu", "alpha", 1.67),
    ("", "MaxPool", "auto_pad", "VALID")])
def test_another_default_would_be_seen(domain, op, name, value):
    m = node_model(op, [("x", np.ones((1, 2, 3), np.float32))], domain=domain)
    c = Call(gq.Graph(), m.graph.node[0], None, 1 if domain else 13, ())
    with pytest.raises(AssertionError, match=f"without '{name}' it is"):
        c.attr(name, value)
    assert c.attr(name) is None
