"""Messages have a bounded length, whatever the model has for names, equations, inputs and locations."""
import pickle

import numpy as np
import pytest

import graphq as gq
from graphq.errors import LONGEST, GraphError, GraphqError, PassError, shortened


def test_the_middle_of_a_long_message_is_left_out():
    text = shortened("a" * 5000 + "middle" + "b" * 5000)
    assert len(text) <= LONGEST and text.startswith("aaa") and text.endswith("bbb") and "middle" not in text
    (gone,) = (int(word) for word in text.split() if word.isdigit())
    assert gone == 10006 - (len(text) - len(f" [... {gone} characters are left out here ...] "))
    assert shortened("x" * LONGEST) == "x" * LONGEST and shortened(text) == text
    assert str(GraphError("a rule")) == "a rule" and str(GraphqError()) == ""


def test_errors_are_pickled_as_they_are():
    error = GraphError("a" * 9000)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is GraphError and str(again) == str(error)
    whole = pickle.loads(pickle.dumps(PassError("m" * 9000, "step", "t" * 9000)))  # whose message has the test
    assert str(whole) == "m" * 9000 and whole.test == "t" * 9000


@pytest.mark.parametrize("length", [10, 100_000])
def test_messages_of_long_things_are_bounded(length):
    g = gq.Graph("g" * length)
    x = g.input("n" * length, dtype="f32", shape=(2, 3))
    with pytest.raises(GraphqError) as error:
        g.matmul(x, g.constant(np.ones((2, 2), np.float32)), transpose_b="no" * length)
    assert len(str(error.value)) <= LONGEST
    with pytest.raises(GraphqError, match="2,3|matmul") as error:
        g.matmul(x, g.constant(np.ones((2, 2), np.float32), name="w" * length))
    assert len(str(error.value)) <= LONGEST
    with pytest.raises(GraphqError) as error:
        gq.parse(f"graph(x: f32[2]) {{\n %0 = {'r' * length}(x)\n return %0\n}}")
    assert len(str(error.value)) <= LONGEST


def test_a_call_of_a_graph_with_many_inputs():
    g = gq.Graph()
    total = g.input("x", dtype="f32", shape=(2,))
    for k in range(1500):
        total = g.add(total, g.input(f"an_input_with_a_name_{k}", dtype="f32", shape=(2,)))
    g.output(total)
    with pytest.raises(gq.InputError, match="takes inputs .*left out here") as error:
        gq.reference(g, x=np.zeros(2, np.float32))
    assert len(str(error.value)) <= LONGEST


def test_an_equation_of_a_long_einsum():
    helper = pytest.importorskip("onnx").helper
    node = helper.make_node("Einsum", ["x"], ["y"], equation="i" * 200_000 + "->i")
    inputs = [helper.make_tensor_value_info("x", 1, [2])]
    m = helper.make_model(helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")]))
    with pytest.raises(GraphqError, match="Einsum") as error:
        gq.load_onnx(m)
    assert len(str(error.value)) <= LONGEST
