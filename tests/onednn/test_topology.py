"""The order of a document's operations, its tensors as declared, and the graph's inputs and outputs."""
import pytest

from graphq.errors import GraphError
from graphq.onednn.document import FileOp, GraphFile, LogicalTensor, dense_stride

in_order, interface, tensors = GraphFile.in_order, GraphFile.interface, GraphFile.tensors


def tensor(id, shape=(2,), dtype="f32"):
    return LogicalTensor(id, dtype, shape, dense_stride(shape))


def op(id, inputs, outputs, kind="Add"):
    return FileOp(id, f"o{id}", kind, None, *(tuple(x if isinstance(x, LogicalTensor) else tensor(x) for x in side)
                                              for side in (inputs, outputs)))


def file(*ops, **ports):
    return GraphFile(ports, ops)


def order(*ops):
    return [x.id for x in in_order(file(*ops), "f.json")]


def test_the_files_order_stays_where_it_is_one():
    assert order(op(5, [1], [2]), op(3, [9], [8]), op(1, [2, 8], [4])) == [5, 3, 1]
    assert order() == []


def test_producers_come_first():
    made = order(op(1, [4, 2], [5]), op(2, [0], [2]), op(3, [2, 1], [4]))
    assert made == [2, 3, 1]


@pytest.mark.parametrize("ops, message", [
    ([op(1, [0], [1]), op(1, [1], [2])], r"f.json: op 1 'o1' \(Add\): id: taken by op 1 'o1' \(Add\)"),
    ([op(1, [0], [1]), op(2, [0], [3, 1])],
     r"op 2 'o2' \(Add\): outputs\[1\].id: tensor 1 is computed by op 1 'o1' \(Add\) already"),
    ([op(1, [2], [1]), op(2, [1], [2])], r"graph: a cycle: op \d 'o\d' \(Add\) -> op \d 'o\d' \(Add\) -> op \d")])
def test_refusals(ops, message):
    with pytest.raises(GraphError, match=message):
        order(*ops)


def test_a_cycle_is_shown_from_producer_to_user():
    with pytest.raises(GraphError) as error:
        order(op(1, [30], [10]), op(2, [10], [20]), op(3, [20], [30]))
    shown = [int(x.split()[1]) for x in str(error.value).partition("a cycle: ")[2].split(" -> ")]
    assert len(shown) == 4 and shown[0] == shown[-1]
    assert all(b == a % 3 + 1 for a, b in zip(shown, shown[1:], strict=False))


@pytest.mark.parametrize("count, length", [(7, 8), (8, 9), (20, 9)])
def test_a_long_cycle_is_cut_short(count, length):
    ops = [op(k, [100 + (k - 1) % count], [100 + k]) for k in range(count)]
    with pytest.raises(GraphError) as error:
        order(*ops)
    parts = str(error.value).partition("a cycle: ")[2].split(" -> ")
    assert len(parts) == length and ("..." in parts) == (count > 7)
    if count > 7:
        assert parts[4] == "..." and parts[0] == parts[-1]


def test_tensors_are_as_their_producer_declares_them():
    first, again = tensor(1, (4, 3)), tensor(1, (1, 3))
    read = [tensor(7, (2, None)), tensor(7, (None, 5)), tensor(7, None)]
    made = tensors(file(op(1, [again, read[0]], [2]), op(2, [read[1]], [first]), op(3, [read[2]], [3])), "f")
    assert made[1] is first and made[7] is read[0] and set(made) == {1, 2, 3, 7}


@pytest.mark.parametrize("declared, message", [
    (tensor(1, (4, 3), "s8"), r"f: op 2 'o2' \(Add\): inputs\[1\].dtype: tensor 1 is f32 elsewhere, here s8"),
    (tensor(1, (4, 2)), r"inputs\[1\].shape: tensor 1 is f32\[4,3\] elsewhere, here f32\[4,2\]"),
    (tensor(1, (4, 3, 1)), r"here f32\[4,3,1\]")])
def test_tensors_of_other_types_are_refused(declared, message):
    with pytest.raises(GraphError, match=message):
        tensors(file(op(1, [0], [tensor(1, (4, 3))]), op(2, [0, declared], [2])), "f")


def test_ones_agree_where_the_tensor_is_computed_alone():
    with pytest.raises(GraphError, match="tensor 0 is"):
        tensors(file(op(1, [tensor(0, (4, 3))], [1]), op(2, [tensor(0, (1, 3))], [2])), "f")


def test_interface():
    ops = [op(1, [0, 9], [1, 2]), op(2, [1], [3]), op(3, [3], [], kind="End"), op(4, [8], [4])]
    assert interface(file(*ops), "f") == ([0, 9, 8], [2, 3, 4])
    listed = file(*ops, input_ports=(8, 77, 9), output_ports=(4, 1, 77, 3))
    assert interface(listed, "f") == ([8, 9, 0], [4, 1, 3, 2])
    again = op(5, [3], [5])  # a tensor that End and another operation read
    assert interface(file(*ops, again), "f")[1] == [2, 3, 4, 5]


@pytest.mark.parametrize("ports, message", [
    ({"input_ports": (9, 1)}, "f: input_ports: tensor 1 is computed by an op"),
    ({"output_ports": (2, 9)}, "f: output_ports: tensor 9 is computed by no op")])
def test_ports_on_the_wrong_side(ports, message):
    with pytest.raises(GraphError, match=message):
        interface(file(op(1, [0, 9], [1, 2]), **ports), "f")
