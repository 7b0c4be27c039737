"""Programs: names, open dimensions, constants, and errors that say what to do."""
from collections import OrderedDict

import numpy as np
import pytest
from torch_modules import Module, torch

import graphq as gq
from graphq.torch.operators.importer import OPERATORS, array_of

pytestmark = pytest.mark.filterwarnings("ignore")
nn, F = torch.nn, torch.nn.functional
Dim, export = torch.export.Dim, torch.export.export


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.blocks = nn.Sequential(Block(size), Block(size))
        self.blocks[1].up.weight = self.blocks[0].up.weight

    def forward(self, x):
        return {"y": self.blocks(x), "mean": x.mean((0, 1))}


def net_and_graph(dynamic=True):
    torch.manual_seed(0)
    net = Net().eval()
    shapes = ({0: Dim("batch", max=64), 1: Dim("tokens", max=64)},) if dynamic else None
    return net, gq.from_torch(export(net, (torch.randn(2, 5, 8),), dynamic_shapes=shapes))


def test_values_have_the_paths_of_their_modules():
    _, graph = net_and_graph()
    names = {v.name for v in graph.values}
    assert {"blocks.0.norm", "blocks.0.up", "blocks.0.gelu", "blocks.0.down", "blocks.0.add", "blocks.1.up",
            "blocks.0.up.weight", "mean"} <= names


def test_explain_takes_the_path_of_a_module():
    _, graph = net_and_graph(dynamic=False)
    model = gq.compile(graph)
    text = str(model.explain("blocks.0"))
    assert text.startswith("blocks.0 computes 5 values")
    assert "blocks.0.down" in text and "blocks.1" not in text.replace("blocks.0", "")
    assert len(model.explain("blocks.0", format="json")["within"]) == 5
    assert "  from File " in str(model.explain("blocks.0.up"))
    line = model.explain("blocks.0.up", format="json")["operation"]["line"]
    assert line.startswith(f'File "{__file__}", line ') and line.endswith(", in forward")
    with pytest.raises(gq.GraphError, match="has no value 'blocks.7'"):
        model.explain("blocks.7")


class Sizes(nn.Module):
    """Sizes as numbers, a variance over an open axis, and an image of the size of another."""

    def forward(self, x, y):
        return (x.sum() / x.size(0), torch.scalar_tensor(x.size(0)), x.var(0), x.std((0, 2), correction=0),
                F.interpolate(x, y.shape[2:], mode="bilinear"), F.cross_entropy(x[..., 0, 0], x[..., 0, 1].softmax(1)))


class Added(nn.Module):
    """PyTorch writes sums of three sizes as one call."""

    def forward(self, x, y):
        return F.pad(x, (0, torch.sym_sum([y.shape[0], x.shape[0], y.shape[1]])))


def test_sums_of_several_sizes():
    n, inputs = Dim("n"), (torch.ones(4, 3), torch.ones(5, 6))
    graph = gq.from_torch(export(Added(), inputs, dynamic_shapes=({0: n}, {0: Dim("m"), 1: Dim("k")})))
    for sizes in ((4, 5, 6), (3, 7, 2)):
        x, y = torch.randn(sizes[0], 3), torch.randn(sizes[1:])
        np.testing.assert_array_equal(gq.reference(graph, x.numpy(), y.numpy()), Added()(x, y).numpy())


def test_open_sizes_are_numbers_and_targets():
    places = {0: Dim("n", min=2), 2: Dim("h"), 3: Dim("w")}
    graph = gq.from_torch(export(Sizes(), (torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 7)), dynamic_shapes=(
        {0: places[0]}, places)))
    for n in (3, 7):
        x, y = torch.randn(n, 3, 4, 5), torch.randn(n, 3, 2 + n, 9 - n)
        found = gq.reference(graph, x.numpy(), y.numpy()).values()
        for got, want in zip(found, Sizes()(x, y), strict=True):
            assert got.shape == tuple(want.shape)
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


class Masked(nn.Module):
    """Elements that a mask replaces, and a product in autocast."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, mask):
        y = x.clone()
        y[mask] = 2.0
        with torch.autocast("cpu", torch.bfloat16):
            return y, self.fc(x)


def test_masks_and_autocast():
    torch.manual_seed(0)
    net, x, mask = Masked().eval(), torch.randn(2, 3, 4), torch.rand(2, 3) > 0.5
    graph = gq.from_torch(export(net, (x, mask)))
    y, product = gq.reference(graph, x.numpy(), mask.numpy()).values()
    wanted, wide = net(x, mask)
    np.testing.assert_array_equal(y, wanted.numpy())
    assert product.dtype.name == "bfloat16"
    np.testing.assert_allclose(product.astype(np.float32), wide.float().detach().numpy(), rtol=0.01)


def test_open_dimensions_run_at_several_sizes():
    net, graph = net_and_graph()
    assert graph.inputs[0].shape == (None, None, 8)
    model = gq.compile(graph)
    for batch, tokens in ((1, 3), (2, 5), (4, 17)):
        x = torch.randn(batch, tokens, 8)
        got, want = model(x.numpy()), net(x)
        np.testing.assert_allclose(list(got.values())[0], want["y"].detach(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(list(got.values())[1], want["mean"].detach(), rtol=1e-5, atol=1e-5)


def test_parameters_are_not_copied_and_tied_weights_are_one_constant():
    net, graph = net_and_graph()
    weights = [v for v in graph.values if v.data is not None and v.shape == (16, 8)]
    assert len(weights) == 1
    assert np.shares_memory(weights[0].data, net.blocks[0].up.weight.detach().numpy())
    assert not weights[0].data.flags.writeable


def converted(f, *inputs, **options):
    return gq.from_torch(export(Module(f), inputs, **options))


def test_changes_in_place():
    def f(x):
        y = x * 2
        y[:, 1:] += 1  # changes a part
        z = y.view(-1)
        z.relu_()
        return y, F.relu(x.clone(), inplace=True), x + 1

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    for got, want in zip(gq.reference(converted(f, x), x.numpy()).values(), f(x), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)


def test_bf16_constants_and_results():
    weights = torch.randn(4, 3).bfloat16()
    graph = converted(lambda x: F.linear(x, weights), torch.randn(2, 3).bfloat16())
    assert graph.inputs[0].dtype == "bf16" and graph.outputs[0].dtype == "bf16"


def assert_equal_at_sizes(graph, f):
    """The outputs equal PyTorch's at three sizes."""
    for shape in ((2, 6, 4), (1, 5, 4), (3, 8, 4)):
        x = torch.randn(*shape)
        for got, want in zip(gq.reference(graph, x.numpy()).values(), f(x), strict=True):
            np.testing.assert_array_equal(got, want.numpy())


def test_sizes_of_a_call_are_computed():
    def f(x):
        batch, tokens, _ = x.shape
        mask = torch.arange(tokens)[None] <= torch.arange(tokens)[:, None]
        grid = torch.zeros(batch, tokens, tokens) + mask
        return grid, x.reshape(batch * tokens, 2, 2).transpose(0, 1), x[:, :tokens - 1], x[:, tokens - 2:], x.new_ones(
            batch, 1) * tokens

    graph = converted(f, torch.randn(2, 6, 4), dynamic_shapes=(({0: Dim("b", max=9), 1: Dim("t", min=4, max=40)},),))
    assert_equal_at_sizes(graph, f)


def test_a_reshape_of_two_open_sizes_at_other_places():
    def f(x):
        return x.reshape(-1, 4).relu().reshape(x.shape), x.reshape(x.shape[0], -1, 2)

    graph = converted(f, torch.randn(2, 6, 4), dynamic_shapes=(({0: Dim("b"), 1: Dim("t")},),))
    assert_equal_at_sizes(graph, f)


def test_numbers_that_follow_from_open_sizes():
    def f(x):
        n = x.shape[0]
        return (x * n ** -0.5, x / (n / 7), torch.arange(n, 2 * n) + x[:, 0], x * torch.sym_float(n),
                F.pad(x, (0, 0, 0, 16 - n)), F.pad(x, (0, n)))

    graph = converted(f, torch.randn(3, 4), dynamic_shapes=(({0: Dim("n", max=16)},),))
    for n in (1, 3, 16):
        x = torch.randn(n, 4)
        for got, want in zip(gq.reference(graph, x.numpy()).values(), f(x), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells_with_an_open_batch(kind):
    torch.manual_seed(0)
    cell, rows = getattr(nn, kind)(4, 6).eval(), {0: Dim("rows")}
    given = (torch.randn(3, 4), (torch.randn(3, 6), torch.randn(3, 6)) if kind == "LSTMCell" else torch.randn(3, 6))
    rows = rows, (rows, rows) if kind == "LSTMCell" else rows
    model = gq.torch.compile(cell, given, dynamic_shapes=rows)
    for n in (1, 5):
        x, h = torch.randn(n, 4), torch.randn(n, 6)
        h = (h, h.sin()) if kind == "LSTMCell" else h
        torch.testing.assert_close(model(x, h), cell(x, h), rtol=1e-5, atol=1e-6)


def test_a_program_that_its_example_has_specialized_refuses_other_sizes():
    def float_of_size(x):
        return x * float(x.shape[0])

    def part(x):
        return x[:int(x.shape[0] / 2)]

    for f in (float_of_size, part):
        model = gq.torch.compile(Module(f).eval(), (torch.ones(4, 3),), dynamic_shapes=(({0: Dim.AUTO},),))
        torch.testing.assert_close(model(torch.ones(4, 3)), f(torch.ones(4, 3)))
        with pytest.raises(gq.InputError, match=r"must be f32\[4,3\]|not exported for these sizes.*== 2"):
            model(torch.ones(6, 3))


def test_an_argument_that_an_importer_does_not_read_is_refused(monkeypatch):
    """As if the importer of gelu forgot `approximate`."""
    monkeypatch.setitem(OPERATORS, "aten.gelu", lambda c: c.Gelu(c.x))

    class Net(nn.Module):
        def __init__(self, how):
            super().__init__()
            self.act = nn.GELU(how)

        def forward(self, x):
            return self.act(x)

    gq.from_torch(export(Net("none"), (torch.ones(2),)))
    with pytest.raises(gq.GraphError, match=r"aten.gelu.default in module 'act'.*argument approximate=tanh is not"):
        gq.from_torch(export(Net("tanh"), (torch.ones(2),)))


def test_functions_of_narrow_floats_are_computed_in_f32():
    x = torch.randn(2, 40).abs().to(torch.bfloat16)
    for f in (torch.exp2, torch.log10, torch.log2, torch.expm1, torch.log1p):
        (got,), want = [gq.reference(converted(f, x), array_of(x))], f(x)
        assert got.dtype == array_of(want).dtype
        np.testing.assert_allclose(got.astype(np.float32), want.float().numpy(), rtol=2 ** -7)
    got = gq.reference(converted(torch.atan2, x[0], x[1]), *map(array_of, x))
    np.testing.assert_allclose(got.astype(np.float32), torch.atan2(*x).float().numpy(), rtol=2 ** -7)


def test_variants_of_operators_keep_their_arguments():
    index = torch.tensor([[0, 2], [1, 1]])
    x, y = torch.randn(2, 3), torch.randn(2, 2)
    for reduce in ("add", "multiply"):
        graph = converted(lambda x, y, how=reduce: x.scatter(1, index, y, reduce=how), x, y)
        want = x.scatter(1, index, y, reduce=reduce)
        np.testing.assert_allclose(gq.reference(graph, x.numpy(), y.numpy()), want.numpy(), rtol=1e-6)
    with pytest.raises(gq.GraphError, match=r"aten.view.dtype.*does not reinterpret the bits"):
        converted(lambda x: x.view(torch.int32), x)
    def f(x):
        return (1 - x) * -1e9, x / 1e5, x * 1e-3 + 1e-4, x - 1e6, x ** 0.3

    for dtype in (torch.float16, torch.bfloat16):  # PyTorch keeps the numbers in f32
        x16 = torch.tensor([0.0, 1.0, 0.5, 3.0], dtype=dtype)
        for got, want in zip(gq.reference(converted(f, x16), array_of(x16)).values(), f(x16), strict=True):
            np.testing.assert_array_equal(got.astype(np.float32), want.float().numpy())
    narrow = x.to(torch.bfloat16)
    graph = converted(torch.nn.functional.softplus, narrow)
    assert graph.outputs[0].dtype.name == "bf16"


def test_errors_name_operator_module_and_line():
    class Sorter(nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x)[0]

    net = nn.Sequential(nn.Linear(4, 4), Sorter())
    with pytest.raises(gq.GraphError, match=r"aten.linalg_qr.default in module '1' \(File \".*test_program.py\", line "
                                            r"\d+, in forward\): graphq lacks this operator") as e:
        gq.from_torch(export(net.eval(), (torch.randn(4, 4),)))
    assert "open an issue" in str(e.value)


def test_changed_tensors_are_inputs_and_outputs_of_the_graph():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(2, 4))

        def forward(self, x, place):
            self.rows[:, place] = x.add_(1)
            return self.rows.sum()

    graph = gq.from_torch(export(Cache().eval(), (torch.ones(2, 1), torch.tensor([1]))))
    assert [v.name for v in graph.inputs] == ["rows", "x", "place"]
    before, x = np.arange(8, dtype=np.float32).reshape(2, 4), np.float32([[1], [2]])
    found = gq.reference(graph, before, x, np.int64([3]))
    after = np.float32([[0, 1, 2, 2], [4, 5, 6, 3]])
    np.testing.assert_array_equal(found["rows.new"], after)
    np.testing.assert_array_equal(found["x.new"], x + 1)
    np.testing.assert_array_equal(found["sum_1"], after.sum())


def test_batch_normalization_in_training_mode_is_refused():
    with pytest.raises(gq.GraphError, match=r"module 'norm' .*training mode.*export module.eval\(\)"):
        gq.from_torch(export(nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(3))).train(), (torch.randn(4, 3),)))


@pytest.mark.parametrize(("f", "message"), [
    (lambda x: x[x > 0], "data"),
    (lambda x: torch.complex(x, x), r"the result .* is complex: return torch.view_as_real"),
    (lambda x: (torch.complex(x, x) + 1).real, r"aten.add.Tensor .*lacks this operator on complex numbers"),
    (lambda x: (torch.complex(x, x) * 2j).real, r"aten.mul.Tensor .*lacks this operator on complex numbers"),
    (lambda x: torch.fft.rfft(x).abs(), r"aten.fft_rfft.default .*on complex numbers: .*also a matrix product"),
    (lambda x: x.cummax(1)[0], r"aten.cummax.default .*cannot decompose it: change the module"),
    (lambda x: x.index_reduce(0, torch.tensor([0]), x[:1], "amax"), r"aten.index_reduce.default .*: change the module"),
    (lambda x: F.dropout(x, 0.5, True), "random: export module.eval")])
def test_programs_that_are_refused(f, message):
    with pytest.raises(gq.GraphError, match=message):
        converted(f, torch.randn(3, 4))


def test_complex_inputs_are_refused():
    with pytest.raises(gq.GraphError, match=r"input '.*' is complex: pass torch.view_as_real"):
        converted(lambda z: z.real, torch.ones(2, dtype=torch.complex64))


def test_rotary_embeddings_as_products_of_complex_numbers():
    torch.manual_seed(0)
    turns = torch.polar(torch.ones(40, 2), torch.outer(torch.arange(40.0), torch.tensor([1.0, 0.01])))

    def f(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[:x.shape[1]]).flatten(2), x

    graph = converted(f, torch.randn(2, 6, 4), dynamic_shapes=(({0: Dim("b", max=9), 1: Dim("t", max=40)},),))
    for shape in ((2, 6, 4), (1, 1, 4), (3, 40, 4)):
        x = torch.randn(*shape)
        np.testing.assert_allclose(gq.compile(graph)(x.numpy())[graph.output_names[0]], f(x)[0], atol=1e-6)


def test_a_decomposition_that_needs_a_known_size_is_refused():
    shapes = (({0: Dim("n"), 1: Dim("m", min=4)},),)
    with pytest.raises(gq.GraphError, match="aten.adaptive_max_pool2d.default .*needs known sizes, got .*s[0-9]"):
        converted(lambda x: F.adaptive_max_pool2d(x[None], 3), torch.randn(3, 5), dynamic_shapes=shapes)


def test_bags_of_an_open_batch():
    """From two bags as examples, PyTorch must not conclude that a size of 1 broadcasts."""
    torch.manual_seed(0)
    bags, places = nn.EmbeddingBag(9, 4, mode="mean"), torch.randint(0, 9, (5, 3))
    graph = gq.from_torch(export(bags.eval(), (places[:2],), dynamic_shapes=({0: Dim("b", max=64)},)))
    for n in (1, 2, 5):
        np.testing.assert_allclose(gq.reference(graph, places[:n].numpy()), bags(places[:n]).detach(), rtol=1e-6)


def test_windows_along_open_axes():
    def f(x):
        return x.unfold(1, 2, 1), x.unfold(-1, 4, 3), x.unfold(0, 2, 2)

    shapes = (({0: 2 * Dim("n", min=2), 1: Dim("m", min=4), 2: 3 * Dim("k", min=3) + 1},),)
    graph = converted(f, torch.randn(4, 5, 10), dynamic_shapes=shapes)
    for sizes in ((4, 4, 13), (6, 5, 10), (10, 9, 31)):
        x = torch.randn(*sizes)
        for got, want in zip(gq.reference(graph, x.numpy()).values(), f(x), strict=True):
            np.testing.assert_array_equal(got, want.numpy())


def test_a_module_is_refused_with_the_line_that_converts_it():
    with pytest.raises(gq.GraphError, match=r"from_torch\(torch.export.export\(module.eval"):
        gq.from_torch(nn.Linear(2, 2))


@pytest.mark.parametrize(("kind", "options"), [("LSTM", {}), ("GRU", {}), ("RNN", {}), ("LSTM", {"proj_size": 2})])
def test_recurrent_layers(kind, options):
    torch.manual_seed(0)
    net = getattr(nn, kind)(6, 5, num_layers=2, bidirectional=True, batch_first=True, **options).eval()
    x, shapes = torch.randn(3, 4, 6), (({0: Dim("batch")},),)
    program = export(Module(lambda x: net(x)), (x[:2],), dynamic_shapes=shapes)
    got = gq.reference(gq.from_torch(program), x.numpy())
    y, ends = net(x)
    for a, b in zip(got.values(), (y, *(ends if kind == "LSTM" else (ends,))), strict=True):
        np.testing.assert_allclose(a, b.detach(), rtol=1e-5, atol=1e-6)
