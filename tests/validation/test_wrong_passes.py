"""Wrong passes, planted in a large graph: each is found, named, and shrunk to a test of few nodes that fails."""
import re

import pytest
from networks import relu_or_tanh
from wrong_passes import WRONG, DropZeroPoint, ReluAsSelect, residual_network

import graphq as gq
from graphq.errors import PassError, VerifyError
from graphq.passes import PIPELINE, Fixpoint, canonicalize
from graphq.rewrite.fixpoint import pass_name
from graphq.rewrite.rule import Rewrite
from graphq.validation.validator import validate


@pytest.fixture(scope="module")
def network():
    g = residual_network()
    assert len(g.nodes) > 100
    return g


@pytest.mark.parametrize("wrong", WRONG, ids=pass_name)
def test_a_wrong_pass_is_found_named_and_shrunk(network, wrong):
    with pytest.raises(PassError, match=f"^pass {pass_name(wrong)} changed the graph's numbers") as error:
        validate(network, [wrong])
    assert error.value.name == pass_name(wrong)
    nodes = int(re.search(r"The smallest graph that was found has (\d+) node", str(error.value)).group(1))
    assert nodes <= 5
    assert error.value.test in str(error.value)
    scope = {}
    exec(error.value.test, scope)
    (test,) = [f for name, f in scope.items() if name.startswith("test_")]
    with pytest.raises((AssertionError, VerifyError)):
        test()


def test_a_wrong_pass_in_the_pipeline_is_named_by_compile(network):
    passes = [*PIPELINE[:2], Fixpoint("mine", canonicalize, DropZeroPoint()), *PIPELINE[2:]]
    with pytest.raises(PassError, match="^pass DropZeroPoint changed"):
        gq.compile(network, passes=passes, verify="numeric")


class ReluAsHalf(Rewrite):
    """relu(x) -> type_cast(relu(x)), which has another type"""

    def pattern(self, g, x):
        return g.relu(x)

    def replace(self, g, x):
        return g.type_cast(g.relu(x), dtype="f16")


def test_a_rewrite_that_gives_another_type_is_shrunk(network):
    with pytest.raises(PassError, match=r"^pass ReluAsHalf raises GraphError: .* may not become .*: f16") as error:
        validate(network, [*PIPELINE[:1], Fixpoint("mine", ReluAsHalf())])
    assert error.value.name == "ReluAsHalf" and "The smallest graph that was found has 1 node." in str(error.value)
    scope = {}
    exec(error.value.test, scope)
    with pytest.raises(gq.GraphError, match="may not become"):
        next(test for name, test in scope.items() if name.startswith("test_"))()


def test_the_pipeline_is_right(network):
    text = gq.to_text(network)
    validate(network, PIPELINE)
    assert gq.to_text(network) == text


def test_a_model_compiles_after_it_was_verified():
    model = gq.compile(gq.parse("""graph(x: u8[2,4]) {
      %0 = dequantize(x, scales=[0.5], zps=[3])
      %1 = relu(%0)
      %2 = quantize(%1, dtype=u8, scales=[0.25])
      return %2
    }"""), verify="numeric")
    assert model.inputs["x"].dims == (2, 4)
    with pytest.raises(gq.CompileError, match='verify must be None or "numeric", got True'):
        gq.compile(model.source, verify=True)


def test_open_shapes_get_sizes():
    text = """graph(x: f32[?,12], w: f32[12,?]) {
      %0 = matmul(x, w)
      %1 = static_reshape(%0, shape=[-1,8])
      %2 = relu(%1)
      return %2
    }"""
    validate(gq.parse(text), PIPELINE)
    with pytest.raises(PassError, match="ReluAsSelect"):
        validate(gq.parse(text), [ReluAsSelect()])
    with pytest.raises(gq.GraphError, match="runs with no open dimensions of 2, 3, 1"):
        validate(gq.parse(text.replace("[-1,8]", "[7,11]")), PIPELINE)


def test_bodies_are_verified_too():
    g = relu_or_tanh()
    validate(g, PIPELINE)
    with pytest.raises(PassError, match="ReluAsSelect"):
        validate(g, [ReluAsSelect()])


def test_a_pass_that_breaks_the_graph_is_shrunk():
    def forgets_a_use(graph):
        for node in graph.nodes_of(["relu"]):
            node.output.uses.clear()
        return 1

    with pytest.raises(PassError, match="inconsistent") as error:
        validate(residual_network(2), [forgets_a_use])
    assert "has 1 node" in str(error.value)


def test_a_pass_that_is_wrong_once_has_no_test():
    class Once(DropZeroPoint):
        left = 1

        def check(self, match):
            if self.left and super().check(match) is None:
                self.left -= 1
                return None
            return ""

    with pytest.raises(PassError, match="a second run on the same graph does not") as error:
        validate(residual_network(2), [Once()])
    assert error.value.test is None


def test_what_raises_is_raised():
    def refuses(graph):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        validate(residual_network(1), [refuses])
