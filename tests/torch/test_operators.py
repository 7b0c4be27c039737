"""Each operator, as `export` states it and in core ATen, gives what PyTorch computes."""
import numpy as np
import pytest
from torch_modules import Module, torch

import graphq as gq

pytestmark = pytest.mark.filterwarnings("ignore")
F = torch.nn.functional


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y, POSITIVE = randn(2, 3, 4), randn(2, 3, 4, seed=1), randn(2, 3, 4).abs() + 0.5
INTS, MORE = torch.arange(-12, 12).reshape(2, 3, 4), torch.arange(1, 25).reshape(2, 3, 4) % 5 + 1
IMAGE, PLACES = randn(2, 4, 6, 6), torch.tensor([[0, 2], [1, 0]])
ALL = {}


def case(*inputs):
    """Register a function of tensors as a case."""
    def declare(f):
        ALL[f.__name__] = f, inputs
        return f
    return declare


@case(X)
def unary(x):
    return (x.abs(), x.ceil(), x.cos(), x.erf(), x.exp(), x.floor(), x.neg(), x.reciprocal(), x.relu(), x.round(),
            x.sigmoid(), x.sign(), x.sin(), x.tan(), x.tanh(), F.softplus(x), F.softsign(x), F.mish(x),
            F.hardswish(x), x.isnan(), x.isinf(), (x > 0).logical_not(), ~(x > 0), x.atan(), x.cosh(), x.sinh(),
            (x * 3).trunc(), x.asinh(), torch.logaddexp(x, x * 2))


@case(POSITIVE)
def of_positive(x):
    return x.log(), x.sqrt(), x.rsqrt(), x.log1p(), (x / 4).acos(), (x / 4).asin(), x ** 2, x ** 0.5, x ** 3, 2 ** x


@case(X)
def activations(x):
    return (F.gelu(x), F.gelu(x, approximate="tanh"), F.elu(x), F.hardsigmoid(x), F.leaky_relu(x, 0.2), F.silu(x),
            F.hardtanh(x), F.relu6(x * 4), x.square(), F.dropout(x, 0.5, False),
            x.softmax(-1), x.log_softmax(1), x.softmax(0), x.clamp(-0.5), x.clamp(max=0.3), x.clamp_min(0.1),
            x.clamp_max(0.2), +x, F.prelu(x, torch.tensor([0.1, 0.2, 0.3])))


@case(X, Y, INTS)
def binary(x, y, n):
    return (x + y, x - y, x * y, x / y, torch.maximum(x, y), torch.minimum(x, y), x.fmod(y), x == y, x != y,
            x > y, x < y, x >= y, x <= y, torch.add(x, y, alpha=2), 3 - x, torch.rsub(x, y), x + 1, x * n, n + 0.5,
            torch.where(x > 0, x, y), torch.where(x > 0, x, 0.5), x.masked_fill(y > 0, 2.0),
            x.remainder(0.7), x.remainder(-0.7), (n * 0.7).remainder(0.7),
            x.div(y, rounding_mode="floor"), x.div(y, rounding_mode="trunc"))


@case(INTS, MORE)
def integers(n, m):
    return (n + m, n * 2, n - m, n // m, n % m, n.div(m, rounding_mode="trunc"), n / m, n == m, n ** 2, n.abs(), -n,
            torch.maximum(n, m), (n > 0) & (m > 2), (n > 0) | (m > 2), (n > 0) ^ (m > 2), n & m, n | m, n.sum(),
            n.max(), (n > 0).any(1), (n > 0).all(1, keepdim=True), (n > 0).any(), n.float(), n.to(torch.int32),
            (n > 0).int(), (n > 0).logical_and(m > 1), (n > 0).logical_or(m > 9), (n > 0).logical_xor(m > 1),
            n.bitwise_xor(m), m.log2(), m.log10(), m.log1p(), m.expm1(), m.exp2(), torch.atan2(n, m))


@case(X)
def reductions(x):
    return (x.mean(1), x.mean(), x.sum(-1, keepdim=True), x.sum(), x.amax(1), x.amin((0, 2)), x.prod(1), x.logsumexp(2),
            *x.max(1), *x.min(2, keepdim=True), x.max(), x.argmax(1), x.argmin(), x.var(1), x.var((0, 1), correction=0),
            x.std(2), *torch.var_mean(x, 1, keepdim=True), x.norm(dim=1), torch.linalg.vector_norm(x, 1, dim=2),
            x.cumsum(1), *x.topk(2))


@case(X, Y)
def shapes(x, y):
    return (x.view(6, 4), x.reshape(-1), x.flatten(1), x.unflatten(2, (2, 2)), x[:, :1].squeeze(1), x.unsqueeze(-1),
            x.permute(2, 0, 1), x.transpose(0, 1), x[0].t(), x[None].T, x.swapaxes(0, 2),
            x[:, :1].expand(2, 5, 4), torch.cat([x, y], 1),
            torch.stack([x, y], -1), x[:, 1:3], x[..., ::2], x[0], x[:, -1], *x.split(2, 1), *x.split([1, 3], 2),
            *x.chunk(2, 2), *x.unbind(1), x.narrow(2, 1, 2), x.repeat(2, 1, 3), x.repeat_interleave(2, 1), x.flip(1, 2),
            x.roll(1, 2), F.pad(x, (1, 2), value=3.0), F.pad(x, (1, 2), mode="reflect"), F.pad(x, (1, 1), "replicate"),
            x.tril(), x.triu(1), x.clone(), x.detach(), x.contiguous(),
            x.expand_as(y), x.broadcast_to(3, 2, 3, 4))


@case(X, PLACES)
def picks(x, i):
    return (x.index_select(1, torch.tensor([2, 0])), x[:, i], x[i[1], i[0]], x[:, i[0], i[1]],
            x.gather(1, i[:, :, None]), F.embedding(i, x[0]), x.scatter(1, i[:, :, None], 5.0),
            x.scatter_add(1, i[:, :, None], x[:, :2, :1]), x.scatter_reduce(1, i[:, :, None], x[:, :2, :1] * 2, "amax"),
            *x.sort(2), *x.sort(0, descending=True), x.argsort(1),
            x.slice_scatter(x[:, :1] * 2, 1, 1, 2), x.select_scatter(x[:, 0] * 2, 1, -1), x.slice_scatter(x, 1))


@case(X)
def made(x):
    return (torch.arange(5), torch.arange(1, 7, 2) + x.sum(), torch.full((2, 2), 3.0), torch.zeros(2), torch.ones(3),
            torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 2), x.new_zeros(3), x.new_ones(2),
            x.new_full((2,), 7), torch.empty_like(x).fill_(1), torch.tensor(2.5) * x)


@case(IMAGE, randn(8, 4, 3, 3), randn(8), randn(4, 2, 3, 3), randn(8, 2, 3, 3))
def convolutions(x, w, b, t, grouped):
    return (F.conv2d(x, w, b, padding=1), F.conv2d(x, w, None, 2, 2, 2), F.conv2d(x, grouped, groups=2),
            F.conv2d(x, w, b, padding="same"), F.conv1d(x[:, :, 0], w[..., 0], b), F.conv2d(x[0], w, b),
            F.conv_transpose2d(x, t, stride=2, padding=1, output_padding=1))


@case(IMAGE)
def pools(x):
    return (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.max_pool1d(x[:, :, 0], 2), F.avg_pool1d(x[:, :, 0], 3),
            F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, 3), F.adaptive_avg_pool2d(x, 4),
            F.adaptive_avg_pool1d(x[:, :, 0], 1), F.adaptive_max_pool2d(x, 1), F.adaptive_avg_pool2d(x, 6),
            F.adaptive_max_pool1d(x[:, :, 0], 3))


@case(IMAGE, randn(4), randn(4), randn(4), randn(4).abs())
def norms(x, g, b, m, v):
    y = x.transpose(1, 3)
    return (F.batch_norm(x, m, v, g, b), F.batch_norm(x, m, v), F.layer_norm(y, (4,), g, b), F.layer_norm(y, (6, 4)),
            F.group_norm(x, 2, g, b), F.instance_norm(x, weight=g, bias=b), F.rms_norm(y, (4,), g),
            F.rms_norm(y, (4,), None, 1e-3))


@case(randn(2, 4, 5, 8), randn(2, 4, 5, 8, seed=1), randn(2, 2, 5, 8, seed=2))
def attention(q, k, v):
    mask = torch.arange(5)[None] <= torch.arange(5)[:, None]
    attend = F.scaled_dot_product_attention
    return (attend(q, k, q), attend(q, k, q, is_causal=True), attend(q, k, q, mask), attend(q, k, q, scale=0.3),
            attend(q, k, q, mask.float()), attend(q, v, v, enable_gqa=True), attend(q[0], k[0], q[0]))


@case(X, randn(5, 4), randn(5), randn(2, 4, 3))
def products(x, w, b, y):
    return (F.linear(x, w, b), F.linear(x, w), x @ w.t(), x.bmm(y), x[0] @ y[0], torch.addmm(b, x[0], w.t()),
            torch.addmm(x[0], x[0], w[:4], beta=2, alpha=0.5),
            torch.einsum("bij,bjk->bik", x, y), torch.mm(x[0], w.t()))


@case(X, IMAGE, randn(2, 4, 3))
def decomposed(x, image, y):
    """Operators that are decomposed."""
    return (F.logsigmoid(x), F.glu(x), x.addcmul(x, x, value=0.5), x.addcdiv(x, x.exp()), x.diff(), x.diff(2, 1),
            F.channel_shuffle(image, 2), torch.baddbmm(x[:, :, :3], x, y), x.movedim(0, 2), x.tensor_split(2, 2)[1],
            torch.cdist(x, x + 1), (x * x).log2(), x.expm1(), x.unfold(2, 2, 1),
            torch.vander(x[0, 0]), torch.atleast_3d(x[0]), x.index_add(1, torch.tensor([0, 2]), x[:, :2]))


@case(IMAGE)
def images(x):
    return (F.interpolate(x, scale_factor=2), F.interpolate(x, scale_factor=2, mode="bilinear"),
            F.interpolate(x, size=(12, 12), mode="bilinear", align_corners=True), F.pixel_shuffle(x, 2),
            F.interpolate(x, size=(12, 18)), F.interpolate(x, scale_factor=1.7),
            *(F.interpolate(x, scale_factor=s, mode="bilinear") for s in (0.4, 1.7, (2, 0.7))),
            F.interpolate(x, scale_factor=1.7, mode="bilinear", align_corners=True),
            F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False))


@case(X, Y)
def arguments(x, y):
    """Arguments that are seldom given."""
    return (F.selu(x), F.celu(x, 0.3), F.softplus(x, 1, 0.5), torch.rsub(x, y, alpha=2), (x * 9).round(decimals=1),
            (x * 900).round(decimals=-2), x.norm(float("inf"), 1), x.norm(-float("inf"), (0, 2)), x.norm(3, 1, True),
            x.norm(0), x.scatter_reduce(1, PLACES[:, :1, None], y, "amax"), x.scatter_add(2, PLACES[:, :, None], y),
            x.gather(2, PLACES[:, :, None]), torch.addmv(x[0, :, 0], x[0], y[0, 0], beta=0.5, alpha=2))


@case(torch.tensor([0.0, -0.0, 1, -1, 0.5, -2, 3e30, float("inf"), -float("inf")]))
def of_points(x):
    """Operators of two operands where signs, zeros and infinities matter."""
    return (torch.atan2(x[:, None], x), torch.hypot(x[:, None], x), torch.fmax(x[:, None] / 0, x),
            torch.fmin(x[:, None] / 0, x))


@case(X, INTS)
def of_rank(x, n):
    bounds = torch.tensor([-1.0, 0.0, 0.5])
    return (x.exp2(), (x * x).log10(), torch.ldexp(x, n), n << 2, n >> 1, x.cumprod(1), x.diagonal(1),
            x[0].diagonal(-1), x.diagonal(9), torch.diagonal(x, -1, 2, 0), *x.kthvalue(2), x.kthvalue(1, 0, True)[0],
            torch.dist(x, x + n), torch.bucketize(x, bounds), torch.bucketize(bounds, bounds, right=True),
            torch.searchsorted(bounds, x), n + torch.tril_indices(3, 4)[:, :4].sum(), x * torch.linspace(0, 1, 4))


@case(randn(20, 8), INTS.abs().flatten(), torch.tensor([0, 3, 3, 9]), randn(24))
def bags(table, places, offsets, weights):
    bag = F.embedding_bag
    return (bag(places.reshape(4, 6), table), bag(places, table, offsets, mode="sum"),
            bag(places, table, offsets, mode="mean", padding_idx=3), bag(places, table, offsets, mode="sum",
            per_sample_weights=weights), bag(places, table, offsets, mode="sum", include_last_offset=True))


@case(IMAGE, randn(3, 6, 6), randn(3))
def places(x, w, b):
    """Pools with places, sums of windows, and resized images with smooth kernels."""
    y, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    return (y, at, F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
            F.max_pool2d(x[0], 2), F.avg_pool2d(x[0], 3),
            F.fold(F.unfold(x, 3, padding=1), (6, 6), 3, padding=1), F.interpolate(x, scale_factor=2, mode="bicubic"),
            F.interpolate(x, size=(9, 11), mode="bicubic", align_corners=True),
            *(F.interpolate(x, size=size, mode=mode, antialias=True) for mode in ("bilinear", "bicubic")
              for size in ((9, 4), (3, 2))), F.bilinear(x, x, w, b),
            F.adaptive_avg_pool3d(x[None].permute(0, 4, 1, 2, 3), 1), F.adaptive_avg_pool3d(x[None], (2, 3, 1)))


@case(torch.tensor([[800.0, 900, -900], [-1e5, -1e5, -2e5], [float("inf"), 1, 2], [1e-9, -1e-8, 1e-6],
                    [-1, 0, 1e-3], [-0.9999, 3e38, -88]]))
def of_extremes(x):
    """Functions that must neither overflow on the way nor lose the digits of small numbers."""
    return x.logsumexp(1), x.logsumexp(1, True), x.log1p(), x.expm1()


@case(X[0], INTS[0] % 3)
def assigned(x, i):
    def put(where):
        y = x.clone()
        y[where] = 7
        return y

    new, ways = x.flip(0) * 2, ("sum", "prod", "mean", "amax", "amin")
    return (*(put(slice(*s)) for s in ((2, 1), (-1, -3), (0, 2), (None, None, 2), (1, 9, 2), (-2, None))),
            *(x.scatter_reduce(0, i, new, way, include_self=self) for way in ways for self in (True, False)),
            x.median(), *x.median(1), torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
            torch.cond(x.sum() < 0, lambda v: v.sin(), lambda v: v.cos(), (x,)))


@case(X, Y)
def of_complex_numbers(x, y):
    a, b = torch.complex(x, y), torch.polar(x.abs(), y)
    numbers = (a * b, a + b, a - b, a * 2, a * x, -a, a.conj() * b, a[:, 1:], torch.cat([a, b], -1), a.mT, a.sum(-1),
               a[:, [0, 2]], a.reshape(-1, 2), torch.stack([a, b], -1))
    return (*(torch.view_as_real(z) for z in numbers), a.abs(), b.angle(), a.real, b.imag)


def results(graph, inputs):
    found = gq.reference(graph, *(x.numpy() for x in inputs))
    return list(found.values()) if isinstance(found, dict) else [found]


def check(got, want, k):
    want = want.detach().numpy()
    assert (got.shape, got.dtype) == (want.shape, want.dtype), k
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6, err_msg=f"result {k}")


@pytest.mark.parametrize("core", [False, True], ids=["raw", "core"])
@pytest.mark.parametrize("name", ALL)
def test_results_are_those_of_pytorch(name, core):
    f, inputs = ALL[name]
    program = torch.export.export(Module(f), inputs)
    graph = gq.from_torch(program.run_decompositions() if core else program)
    wanted = f(*inputs)
    for k, (got, want) in enumerate(zip(results(graph, inputs), wanted, strict=True)):
        check(got, want, k)
