"""Wrong passes in a graph with open dimensions: found by verification and by reduction, named, and shrunk to a test."""
import re

import pytest
from wrong_open_passes import WRONG_OPEN, open_network

import graphq as gq
from graphq.cli import main
from graphq.errors import PassError, VerifyError
from graphq.passes import PIPELINE
from graphq.rewrite.fixpoint import pass_name
from graphq.validation.inputs import adversarial_inputs, sized_copies
from graphq.validation.reduce import reduce_graph
from graphq.validation.validator import failing, failure, validate


def fails(test):
    scope = {}
    exec(test, scope)
    (function,) = [f for name, f in scope.items() if name.startswith("test_")]
    with pytest.raises((AssertionError, VerifyError)):
        function()


@pytest.mark.parametrize("wrong", WRONG_OPEN, ids=pass_name)
def test_a_wrong_pass_is_found_named_and_shrunk(wrong):
    with pytest.raises(PassError, match=f"^pass {pass_name(wrong)} changed the graph's numbers") as error:
        gq.compile(open_network(), passes=[wrong], verify="numeric")
    assert int(re.search(r"The smallest graph that was found has (\d+) node", str(error.value)).group(1)) <= 2
    fails(error.value.test)


@pytest.mark.parametrize("wrong", WRONG_OPEN, ids=pass_name)
def test_reduction_finds_and_shrinks_it(wrong):
    start = failing(wrong, open_network())
    least = reduce_graph(start, lambda g: failure(wrong, g) is not None)
    assert len(least.nodes) <= 2 and failure(wrong, least) is not None


def test_the_command_reduces_a_graph_with_an_open_dimension(tmp_path, capsys):
    path = tmp_path / "open.txt"
    path.write_text("graph(x: u8[?,8]) {\n %0 = dequantize(x, scales=[0.5], zps=[3])\n %1 = relu(%0)\n return %1\n}")
    helpers = "tests/helpers/wrong_passes.py"
    assert main(["reduce", str(path), "--pass", f"{helpers}:DropZeroPoint"]) == 0
    assert "%0 = dequantize(x, scales=[0.5], zps=[3]) : f32[1,1]" in capsys.readouterr().out
    assert main(["reduce", str(path), "--pass", f"{helpers}:NextChannel"]) == 1
    assert "the pass gets it right" in capsys.readouterr().err


def test_the_pipeline_is_right():
    text = gq.to_text(open_network())
    validate(g := open_network(), PIPELINE)
    assert gq.to_text(g) == text


def test_a_fault_that_needs_an_open_dimension_stays_open():
    with pytest.raises(PassError) as error:
        validate(open_network(), [w for w in WRONG_OPEN if pass_name(w) == "ConcatOtherAxis"])
    assert "f32[?,?]" in error.value.test and "with x0: f32[2,2]" in str(error.value)


def shapes(text):
    return [tuple(v.type.dims for v in g.inputs) for g in sized_copies(gq.parse(text))]


def test_sizes_are_several_with_0_and_1_among_them():
    found = shapes("graph(x: f32[?,?,4]) {\n %0 = relu(x)\n return %0\n}")
    (a, b, _), = found[1]
    assert found[0] == ((2, 2, 4),) and a != b and 2 < min(a, b)
    assert [x for x, in found[2:]] == [(0, b, 4), (1, b, 4), (a, 0, 4), (a, 1, 4)]
    assert shapes("graph(x: f32[2,3]) {\n %0 = relu(x)\n return %0\n}") == [((2, 3),)]


def test_sizes_are_those_that_the_graph_accepts():
    product = """graph(x: f32[?,12], w: f32[12,?]) {
      %0 = matmul(x, w)
      %1 = static_reshape(%0, shape=[-1,8])
      return %1
    }"""
    assert all((x[0] * w[1]) % 8 == 0 for x, w in shapes(product)) and len(shapes(product)) >= 3
    kernel = "graph(x: f32[?,?]) {\n %0 = constant(value=f32[12,1]{" + "1.0," * 11
    kernel += "2.0})\n %1 = matmul(x, %0)\n return %1\n}"
    assert {x for x, in shapes(kernel)} == {(12, 12), (0, 12), (1, 12)}
    with pytest.raises(gq.GraphError, match="runs with no open dimensions of 2, 3, 1.*static_reshape"):
        shapes(product.replace("[-1,8]", "[7,11]"))


def test_an_open_rank_gets_one():
    text = "graph(x: f32[*]) {\n %0 = static_transpose(x, order=[0,2,1])\n %1 = relu(%0)\n return %1\n}"
    assert {len(x) for x, in shapes(text)} == {3}
    with pytest.raises(PassError, match="ReluAsSelect"):
        validate(gq.parse(text), [w for w in WRONG_OPEN if pass_name(w) == "ReluAsSelect"])


def test_sizes_that_are_given_are_not_drawn():
    g = gq.parse("graph(x: f32[?,4], y: f32[?]) {\n %0 = relu(x)\n %1 = relu(y)\n return %0, %1\n}")
    made = list(adversarial_inputs(g, sizes={"x": (5, 4)}))
    assert {x.arrays["x"].shape for x in made} == {(5, 4)} and {x.arrays["y"].shape for x in made} > {(0,), (1,), (2,)}
    assert made[0].drawn == ("y: f32[2]",) and "with y: f32[2]" in str(made[0])
