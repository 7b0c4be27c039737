"""Models that are called with tensors: graphq.torch.compile, quantization with tensors, and errors that guide."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError, InputError, ParseError

torch = pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("onnx", reason="needs the package onnx")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Net(torch.nn.Module):
    """A network with a nested result; one argument is optional."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 3)

    def forward(self, x, scale=None, *, shift=None):
        y = torch.relu(self.bn(self.conv(x)))
        y = y if scale is None else y * scale
        return {"logits": self.fc(y.mean((2, 3))), "rest": (y if shift is None else y + shift, None, x.shape[0], 7)}


def image(n=2):
    return torch.arange(n * 36, dtype=torch.float32).reshape(n, 1, 6, 6) / 50


def check(got, wanted):
    assert got.keys() == wanted.keys() and got["rest"][1:] == wanted["rest"][1:]
    torch.testing.assert_close((got["logits"], got["rest"][0]), (wanted["logits"], wanted["rest"][0]))


def test_a_module_is_called_with_tensors_and_returns_its_structure():
    net = Net().eval()
    model = gq.torch.compile(net, (image(),), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    for n in (2, 5):
        check(model(image(n)), net(image(n)))
    check(model(image(2).transpose(2, 3)), net(image(2).transpose(2, 3)))  # not contiguous
    assert "conv" in model.compiled.explain("conv")


def test_keyword_arguments():
    net, given = Net().eval(), {"shift": torch.ones(4, 1, 1)}
    model = gq.torch.compile(net, (image(), torch.tensor(2.0)), given)
    check(model(image(), torch.tensor(3.0), **given), net(image(), torch.tensor(3.0), **given))
    for args, kwargs in (((image(),), given), ((image(), torch.tensor(2.0)), {}), ((image(), 2.0), given)):
        with pytest.raises(InputError, match="structure of the example inputs|must be tensors on the CPU"):
            model(*args, **kwargs)


def test_buffers_and_arguments_change_as_in_pytorch():
    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(1, 8, 4))
            self.register_buffer("count", torch.zeros(1), persistent=False)

        def forward(self, x, place):
            self.keys[:, place] = x
            self.count += 1
            return 7, (self.keys * self.count).sum(-1), x.mul_(2)

    mine, theirs = Cache().eval(), Cache().eval()
    model = gq.torch.compile(mine, (torch.ones(1, 1, 4), torch.tensor([0])))
    for k in (0, 3, 3):
        x = torch.full((1, 1, 4), k + 1.0)
        y = x.clone()
        torch.testing.assert_close(model(x, torch.tensor([k])), theirs(y, torch.tensor([k])))
        torch.testing.assert_close(x, y)
        torch.testing.assert_close([*mine.buffers()], [*theirs.buffers()])


def test_tensors_are_not_copied():
    class Echo(torch.nn.Module):
        def forward(self, x):
            return x * 1, x.to(torch.bfloat16)

    model = gq.torch.compile(Echo().eval(), (torch.ones(3),))
    seen = []
    run = model.compiled
    model.compiled = type("Spy", (), {"outputs": run.outputs, "__call__": lambda _, *x: seen.append((x, run(*x)))
                                      or seen[-1][1]})()
    x = torch.tensor([1.0, 2.0, 2.51], requires_grad=True)
    same, narrow = model(x)
    ((array,), results), = seen
    assert np.shares_memory(array, x.detach().numpy())
    assert np.shares_memory(same.numpy(), next(iter(results.values())))
    assert narrow.dtype == torch.bfloat16 and torch.equal(narrow, x.detach().to(torch.bfloat16))


def test_programs_files_and_quantized_graphs_are_compiled(tmp_path):
    net = Net().eval()
    program = torch.export.export(net, (image(),))
    torch.export.save(program, tmp_path / "net.pt2")
    check(gq.torch.compile(program)(image()), net(image()))
    sources = program, tmp_path / "net.pt2", gq.from_torch(program)
    arrays = [[*gq.compile(x)(image().numpy()).values()] for x in sources]
    for found in arrays[1:]:
        for a, b in zip(arrays[0], found, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("batches", [
    lambda: [image(), (image(3), torch.zeros(3))],
    lambda: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(image(8), torch.zeros(8)), batch_size=4),
    lambda: [{"x": image(4)}]], ids=["tensors", "loader with labels", "dicts"])
def test_quantization_takes_tensors_and_gives_a_model_for_tensors(batches):
    net = Net().eval()
    program = torch.export.export(net, (image(),), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    graph = gq.quantization.quantize(gq.from_torch(program), batches(), gq.quantization.Scheme())
    model = gq.torch.compile(graph)
    got, wanted = model(image(3)), net(image(3))
    assert got["rest"][1:] == wanted["rest"][1:]
    torch.testing.assert_close(got["logits"], wanted["logits"], atol=0.05, rtol=0)
    assert model.compiled.coverage().share == 1


def test_batches_of_several_inputs():
    class Sum(torch.nn.Module):
        def forward(self, a, b):
            return a @ b

    graph = gq.from_torch(torch.export.export(Sum(), (torch.ones(4, 8), torch.ones(8, 4))))
    data = [(torch.randn(4, 8), torch.randn(8, 4), torch.zeros(1)) for _ in range(2)]
    by_name = [{"a": a, "b": b} for a, b, _ in data]
    scheme = gq.quantization.Scheme()
    assert str(gq.quantization.quantize(graph, data, scheme)) == str(gq.quantization.quantize(graph, by_name, scheme))
    with pytest.raises(InputError, match="inputs a, b"):
        gq.quantization.quantize(graph, [(torch.ones(4, 8),)], scheme)
    with pytest.raises(InputError, match="put it into a list"):
        gq.quantization.quantize(graph, torch.ones(4, 8), scheme)


def test_errors_say_what_to_write(tmp_path):
    net = Net().eval()
    lines = r"(?s)needs example inputs.*torch.export.export\(module.eval\(\), .*from_torch.*graphq.torch.compile"
    for call in (gq.compile, gq.torch.compile):
        with pytest.raises(GraphError, match=lines):
            call(net)
    for wrong in (net, torch.export.export(net, (image(),))):
        with pytest.raises(GraphError, match="from_torch makes a Graph"):
            gq.load_onnx(wrong)
    with pytest.raises(GraphError, match="training mode"):
        gq.torch.compile(Net(), (image(),))
    with pytest.raises(GraphError, match="fixes the length of LSTM.*compile a model for each length"):
        shapes = ({0: torch.export.Dim("t")},)
        gq.torch.compile(torch.nn.LSTM(2, 2).eval(), (torch.ones(3, 1, 2),), dynamic_shapes=shapes)
    with pytest.raises(GraphError, match="cannot trace packed sequences: pass padded sequences"):
        gq.torch.compile(Packed().eval(), (torch.ones(2, 3, 2), torch.tensor([3, 2])))
    with pytest.raises(GraphError, match="not made by from_torch"):
        gq.torch.compile(gq.Graph())
    with pytest.raises(GraphError, match="Tensor: this object of PyTorch has no graph"):
        gq.compile(image())
    with pytest.raises(GraphError, match="belong to a module"):
        gq.torch.compile(gq.Graph(), (image(),))
    (tmp_path / "bad.pt2").write_text("text")
    with pytest.raises(ParseError, match="not a program of torch.export.save"):
        gq.compile(tmp_path / "bad.pt2")
    with pytest.raises(FileNotFoundError):
        gq.compile(tmp_path / "missing.pt2")


class Packed(torch.nn.LSTM):
    """An LSTM of sequences of several lengths."""

    def __init__(self):
        super().__init__(2, 2, batch_first=True)

    def forward(self, x, lengths):
        return super().forward(torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[0].data


class Masked(torch.nn.Module):
    """Its buffer has the name of an argument, as `position_ids` in encoders of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0]))

    def forward(self, x, mask=None, n=2):
        return x * (self.mask if mask is None else mask * self.mask) * n


def test_arguments_that_are_no_tensors_stay_as_they_were_exported():
    x, net = torch.randn(2, 3), Masked().eval()
    model = gq.torch.compile(net, (x, None, 2))
    torch.testing.assert_close(model(x, None, 2), net(x))
    for args, message in (((x, None, 3), "argument 2 was 2 when the program was exported, and is 3"),
                          ((x, None, 2.0), "argument 2 was 2 when the program was exported, and is 2.0"),
                          ((x, torch.ones(3), 2), "argument 1 was None when the program was exported, and is Tensor")):
        with pytest.raises(gq.InputError, match=message):
            model(*args)


def test_a_buffer_may_have_the_name_of_an_argument():
    class Counts(Masked):
        def forward(self, x, mask=None, n=2):
            self.mask += 1
            return super().forward(x, mask, n)

    args = torch.randn(2, 3), torch.randn(3)
    torch.testing.assert_close(gq.torch.compile(Masked().eval(), args)(*args), Masked()(*args))
    model, net = gq.torch.compile(Counts().eval(), args), Counts()
    for _ in range(2):
        torch.testing.assert_close(model(*args), net(*args))


def test_sizes_are_those_that_the_program_was_exported_for():
    class Steps(torch.nn.Module):
        def forward(self, x, y):
            return x * 2 + y if x.shape[0] <= 8 else x * 3

    n = torch.export.Dim("n", min=2, max=8)
    model = gq.torch.compile(Steps().eval(), (torch.ones(4, 3), torch.ones(4, 3)), dynamic_shapes=({0: n}, {0: n}))
    for rows in (1, 2, 8):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(model(x, x), 3 * x)
    nine = r"not exported for these sizes, \[\(9, 3\), \(9, 3\)\]: .*x.size\(\)\[0\] <= 8"
    with pytest.raises(gq.InputError, match=nine):
        model(torch.ones(9, 3), torch.ones(9, 3))
    with pytest.raises(gq.InputError, match=r"not exported for these sizes.*y.size\(\)\[0\] == x.size\(\)\[0\]"):
        model(torch.ones(5, 3), torch.ones(1, 3))
    array = np.ones((9, 3), np.float32)
    graph = gq.from_torch(torch.export.export(Steps(), (torch.ones(4, 3),) * 2, dynamic_shapes=({0: n}, {0: n})))
    for run in (gq.compile(graph), lambda x, y: gq.reference(graph, x, y)):
        np.testing.assert_allclose(run(array[:8], array[:8]), 3)
        with pytest.raises(gq.InputError, match=nine):
            run(array, array)
