"""torch.compile(model, backend="graphq"): shapes, graph breaks, weights that change, errors and the fallback."""
import logging
import sys
from pathlib import Path

import numpy as np
import pytest

import graphq as gq
from graphq.ir.node import SOURCE_LINE

torch = pytest.importorskip("torch", reason="needs the package torch")
backend = pytest.importorskip("graphq.torch.backend").backend
TorchModel = pytest.importorskip("graphq.torch.model").TorchModel
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch.compiler.reset()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(16, 3)

    def forward(self, x):
        y = torch.relu(self.bn(self.conv(x)))
        return self.fc(y.reshape(x.shape[0], -1)), {"sum": y.sum()}


class Spy:
    """Count the graphs that a backend compiles."""

    def __init__(self, **options):
        self.options, self.graphs = options, 0

    def __call__(self, module, inputs):
        self.graphs += 1
        return backend(module, inputs, options=self.options)


def image(n=2):
    return torch.arange(n * 16, dtype=torch.float32).reshape(n, 1, 4, 4) / 50


def test_parameters_and_values_have_the_paths_of_the_modules(monkeypatch):
    made = []

    class Recorded(TorchModel):
        def __init__(self, graph, **options):
            made.append(graph)
            super().__init__(graph, **options)

    monkeypatch.setattr("graphq.torch.backend.TorchModel", Recorded)
    net = torch.nn.Sequential(Net().eval())
    torch.compile(net, backend="graphq")(image())
    values = {v.name: v for v in made[0].values}
    assert {"0.conv", "0.fc", "0.conv.weight", "0.fc.bias", "0.bn.running_mean"} <= {*values}
    assert values["0.conv"].node.meta[SOURCE_LINE].startswith(f'File "{__file__}"')


def test_sizes_that_change_are_one_open_graph():
    net, spy = Net().eval(), Spy(threads=1)
    model = torch.compile(net, backend=spy)
    for n in (2, 5, 3, 7):
        torch.testing.assert_close(model(image(n)), net(image(n)))
    assert spy.graphs == 2  # the first with fixed sizes, and one with an open size
    marked = image(4)
    torch._dynamo.mark_dynamic(marked, 0)
    spy = Spy()
    model = torch.compile(net, backend=spy)
    for x in (marked, image(6)):
        torch.testing.assert_close(model(x), net(x))
    assert spy.graphs == 1


def test_graph_breaks_are_left_to_dynamo():
    class Broken(Net):
        def forward(self, x):
            y, rest = super().forward(x)
            torch._dynamo.graph_break()
            return torch.softmax(y, -1), rest

    net, spy = Broken().eval(), Spy()
    model = torch.compile(net, backend=spy)
    torch.testing.assert_close(model(image()), net(image()))
    assert spy.graphs == 2


def test_weights_that_change_are_used():
    net = Net().eval()
    model = torch.compile(net, backend=backend)
    before = model(image())[0]
    net.bn.running_mean = net.bn.running_mean + 0.5  # other memory
    torch.testing.assert_close(model(image()), net(image()))
    net.fc.weight.mul_(2)  # in place: read again after a reset
    torch.compiler.reset()
    after = model(image())
    torch.testing.assert_close(after, net(image()))
    assert not torch.equal(before, after[0])


def test_changes_in_place_between_calls_are_seen():
    """A graph reads a buffer that code after a graph break changes; weights change by an optimizer or a file."""
    class Steps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)
            self.register_buffer("step", torch.ones(4))

        def forward(self, x):
            y = self.fc(x) * self.step
            torch._dynamo.graph_break()
            self.step.add_(1)
            return y.relu()

    mine, theirs = Steps().eval(), Steps().eval()
    theirs.load_state_dict(mine.state_dict())
    model = torch.compile(mine, backend=backend)
    for k in range(5):
        torch.testing.assert_close(model(image()), theirs(image()))
        if k == 2:
            mine.fc.weight.mul_(2)
            theirs.load_state_dict(mine.state_dict())
    assert mine.step.tolist() == [6] * 4


def test_autocast_around_a_model():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    model = torch.compile(net, backend=backend)
    torch.testing.assert_close(model(image()), net(image()))
    with torch.autocast("cpu", torch.bfloat16):
        got, want = model(image()), net(image())
        with pytest.raises(gq.GraphError, match="autocast is on"):
            gq.torch.compile(net, (image(),))
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("first", [False, True])
def test_layers_that_pytorch_fuses_without_gradients(first):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first,
                                             activation="gelu" if first else "relu")
    net = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    attend = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, absent = torch.randn(3, 5, 8), torch.arange(5) > torch.tensor([[4], [2], [3]])
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)

    def run(net, attend):
        return (net(x), net(x, src_key_padding_mask=absent)[~absent], net(x, mask=future),
                net(x, future, absent)[~absent], *attend(x, x, x))

    torch.testing.assert_close(run(torch.compile(net, backend=backend), torch.compile(attend, backend=backend)),
                               run(net, attend), rtol=1e-5, atol=1e-6)


def test_errors_and_values_have_the_paths_of_modules():
    class Det(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.det(x)

    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(Det())).eval()
    with pytest.raises(gq.GraphError, match=r"linalg_det.default in module '1.0' \(File .*test_backend.py"):
        torch.compile(net, backend=backend)(torch.eye(3))


def test_functions_and_options():
    model = torch.compile(lambda x: torch.relu(x) @ x.T, backend=backend, options={"threads": 1, "isa": "scalar"})
    torch.testing.assert_close(model(torch.eye(4)), torch.eye(4))
    with pytest.raises(Exception, match="no_such_option"):
        torch.compile(lambda x: x + 1, backend=backend, options={"no_such_option": 1})(torch.eye(4))


def test_an_operator_that_graphq_lacks(caplog):
    def f(x):
        return torch.linalg.det(x) + 1

    with pytest.raises(gq.GraphError, match="linalg_det.*graphq lacks this operator"):
        torch.compile(f, backend=backend)(torch.eye(3))
    torch.compiler.reset()
    with caplog.at_level(logging.WARNING, "graphq"):
        model = torch.compile(f, backend=backend, options={"fallback": True})
        assert model(torch.eye(3)) == model(torch.eye(3)) == 2
    (record,) = (r for r in caplog.records if "runs in PyTorch" in r.message)
    assert "linalg_det" in record.message


def test_all_dimensions_may_be_marked_dynamic():
    """Dynamo then has symbols also for sizes that the weights fix."""
    nets = (torch.nn.Linear(4, 8), [(2, 4), (5, 4)]), (torch.nn.Conv2d(3, 4, 3), [(1, 3, 8, 8), (2, 3, 9, 7)])
    for net, shapes in nets:
        model = torch.compile(net.eval(), backend=backend, dynamic=True)
        for shape in shapes:
            x = torch.randn(*shape)
            torch.testing.assert_close(model(x), net(x))


def test_numbers_of_modules_are_constants_if_all_is_dynamic():
    """Dynamo passes the epsilons of normalizations, and numbers of modules that change, as tensors."""
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.bn, self.factor = torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(4), 0.5

        def forward(self, x):
            return self.bn(self.norm(x)) * self.factor

    net, spy = Scaled().eval(), Spy()
    model = torch.compile(net, backend=spy, dynamic=True)
    for n, factor in ((2, 0.5), (5, 0.5), (3, 0.7)):
        net.factor, x = factor, torch.randn(n, 4)
        torch.testing.assert_close(model(x), net(x))
    assert spy.graphs == 1
    net.factor = 0.9
    with pytest.raises(gq.GraphError, match="a number that is no size changes from call to call: pass a tensor"):
        model(torch.randn(3, 4))


def test_numbers_of_numpy_are_inputs():
    """Dynamo passes them as tensors as well. They keep their types, and may change from call to call."""
    def f(x, n):
        return x * n

    for dynamic in (False, True):
        spy = Spy()
        model = torch.compile(f, backend=spy, dynamic=dynamic)
        for n in (np.int64(2**60 + 1), np.int64(3), np.int64(5), np.int64(7)):
            x = torch.arange(3)
            got, wanted = model(x, n), f(x, n)
            assert got.dtype == wanted.dtype and torch.equal(got, wanted)
        assert spy.graphs == 1
        torch.compiler.reset()


def test_a_number_that_changes_from_call_to_call(caplog):
    def f(x, n):
        return x * n

    model = torch.compile(f, backend=backend)
    assert torch.equal(model(torch.ones(3), 2), f(torch.ones(3), 2))
    with pytest.raises(gq.GraphError, match="a number that is no size changes from call to call: pass a tensor"):
        model(torch.ones(3), 3)
    torch.compiler.reset()
    model = torch.compile(f, backend=backend, options={"fallback": True})
    for n in (2, 3, 4):
        assert torch.equal(model(torch.ones(3), n), f(torch.ones(3), n))


def test_a_log_message_says_that_there_are_no_gradients(caplog):
    net = Net().eval()
    with torch.enable_grad():
        y, _ = torch.compile(net, backend=backend)(image())
    assert not y.requires_grad and "no gradients" in caplog.text


def test_the_entry_point_makes_the_name_known(tmp_path, monkeypatch):
    """As the metadata of an installed package: this checkout may have none."""
    import tomllib

    text = Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    ((name, place),) = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"].items()
    info = tmp_path / "graphq_entry-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: graphq-entry\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{name} = {place}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    from importlib.metadata import entry_points

    (found,) = {e.value: e for e in entry_points(group="torch_dynamo_backends", name="graphq")}.values()
    assert found.load() is backend
