"""Quantized operators: the same integers as PyTorch's, for all scales and numbers, ties too."""
import numpy as np
import pytest
from torch_modules import Module, torch

import graphq as gq

pytest.importorskip("torch.ao.quantization.fx._decomposed")  # defines quantized_decomposed
pytestmark = pytest.mark.filterwarnings("ignore")
Q = torch.ops.quantized_decomposed


def converted(f, *inputs):
    return gq.from_torch(torch.export.export(Module(f), inputs))


def numbers(scale, zp=0):
    """Products near ties of this scale, their neighbors, and numbers of other kinds, as f32."""
    ties = (np.arange(-300, 300) + 0.5).astype(np.float32)
    near = [ties * np.float32(scale), ties / np.float32(1 / scale)]
    near += [np.nextafter(x, np.float32(to)) for x in near for to in (-np.inf, np.inf)]
    rng = np.random.default_rng(0)
    other = [rng.normal(0, 100 * scale, 400), [0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-45, 1e-38]]
    return np.concatenate([*near, *other]).astype(np.float32)


SCALES = [0.1, 0.25, 1.0, 0.0078431377, 1 / 3, 3.7e-5, 12.5, 2.0 ** -9, 0.019999999552965164, 0.3333333432674408]


@pytest.mark.parametrize(("dtype", "low", "high", "zp"), [(torch.uint8, 0, 255, 113), (torch.int8, -128, 127, -3),
                                                         (torch.int8, -127, 127, 0), (torch.int32, -1000, 1000, 0)])
def test_quantize_multiplies_by_the_reciprocal(dtype, low, high, zp):
    x = torch.from_numpy(np.stack([numbers(s) for s in SCALES]))

    def f(x):
        return tuple(Q.quantize_per_tensor(row, s, zp, low, high, dtype)
                     for s, row in zip(SCALES, x.unbind(0), strict=True))

    graph = converted(f, x)
    model = gq.compile(graph)
    for run in (gq.reference(graph, x.numpy()), model(x.numpy())):
        for got, want in zip(run.values(), f(x), strict=True):
            np.testing.assert_array_equal(got, want.numpy())


def test_quantize_per_channel():
    x = torch.from_numpy(np.stack([numbers(s) for s in SCALES[:4]]))
    scales, zps = torch.tensor(SCALES[:4]), torch.tensor([3, 0, -5, 7])

    def f(x):
        q = Q.quantize_per_channel(x, scales, zps, 0, -127, 127, torch.int8)
        return q, Q.dequantize_per_channel(q, scales, zps, 0, -127, 127, torch.int8)

    for got, want in zip(gq.reference(converted(f, x), x.numpy()).values(), f(x), strict=True):
        np.testing.assert_array_equal(got, want.numpy())


def per_tensor(x, low, high, dtype):
    scale, zp = Q.choose_qparams.tensor(x, low, high, 2.0 ** -12, dtype)
    q = Q.quantize_per_tensor.tensor(x, scale, zp, low, high, dtype)
    return q, Q.dequantize_per_tensor.tensor(q, scale, zp, low, high, dtype)


def symmetric(x):
    scale, zp = Q.choose_qparams_symmetric.tensor(x, -127, 127, 2.0 ** -12, torch.int8)
    return Q.quantize_per_tensor.tensor(x, scale, zp, -127, 127, torch.int8)


def per_token(x):
    scale, zp = Q.choose_qparams_per_token(x, torch.int8)
    q = Q.quantize_per_token(x, scale, zp, -128, 127, torch.int8)
    return q, Q.dequantize_per_token(q, scale, zp, -128, 127, torch.int8, torch.float32)


def per_token_asymmetric(x):
    scale, zp = Q.choose_qparams_per_token_asymmetric(x, torch.int8)
    q = Q.quantize_per_token(x, scale, zp, -128, 127, torch.int8)
    return q, Q.dequantize_per_token(q, scale, zp, -128, 127, torch.int8, torch.float32)


def test_ranges_at_run_time():
    x = torch.randn(7, 33, generator=torch.Generator().manual_seed(1))

    def f(x):
        return (*per_tensor(x, 0, 255, torch.uint8), *per_tensor(x - 3, -128, 127, torch.int8), symmetric(x),
                *per_token(x), *per_token_asymmetric(x + 0.5), *per_tensor(x * 0, 0, 255, torch.uint8))

    for k, (got, want) in enumerate(zip(gq.reference(converted(f, x), x.numpy()).values(), f(x), strict=True)):
        np.testing.assert_array_equal(got, want.numpy(), err_msg=str(k))


def test_rows_of_open_batches_and_lengths():
    sizes = {axis: torch.export.Dim(name, max=64) for axis, name in enumerate(("batch", "length"))}
    module = Module(lambda x: per_token(x)[1] + per_token_asymmetric(x)[1])
    graph = gq.from_torch(torch.export.export(module, (torch.ones(2, 3, 8),), dynamic_shapes=((sizes,),)))
    for shape in ((4, 5, 8), (1, 1, 8)):
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(2))
        np.testing.assert_array_equal(gq.reference(graph, x.numpy()), module(x).numpy())


def conv_of_integers(w, scales):
    def f(x):
        x = Q.dequantize_per_tensor(Q.quantize_per_tensor(x, 0.019, 128, 0, 255, torch.uint8), 0.019, 128, 0, 255,
                                    torch.uint8)
        weights = Q.dequantize_per_channel(w, scales, None, 0, -127, 127, torch.int8)
        y = torch.relu(torch.nn.functional.conv2d(x, weights, padding=1))
        y = Q.dequantize_per_tensor(Q.quantize_per_tensor(y, 0.031, 0, 0, 255, torch.uint8), 0.031, 0, 0, 255,
                                    torch.uint8)
        return Q.quantize_per_tensor(torch.nn.functional.max_pool2d(y, 2), 0.031, 0, 0, 255, torch.uint8)
    return f


def test_a_quantized_convolution_is_one_integer_partition():
    """The multiplication by the reciprocal is part of the partition; the result is that of the graph as written."""
    rng = np.random.default_rng(0)
    w = torch.from_numpy(rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8))
    f = conv_of_integers(w, torch.rand(8, generator=torch.Generator().manual_seed(0)) * 0.01 + 0.001)
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    graph = converted(f, x)
    model = gq.compile(graph)
    assert model.coverage().share == 1.0
    np.testing.assert_array_equal(model(x.numpy()), gq.reference(graph, x.numpy()))
    np.testing.assert_array_equal(model(x.numpy()), f(x).numpy())


@pytest.mark.parametrize("asymmetric", [False, True])
def test_rows_with_ranges_at_run_time_are_multiplied_as_integers(asymmetric):
    """The form of torchao's dynamic quantization: a scale per token, and a scale per output channel."""
    torch.manual_seed(0)
    w, scales = torch.randint(-127, 128, (24, 40), dtype=torch.int8), torch.rand(24, 1) * 0.01 + 0.001
    bias = torch.randn(24)

    def f(x):
        choose = Q.choose_qparams_per_token_asymmetric if asymmetric else Q.choose_qparams_per_token
        scale, zp = choose(x, torch.int8)
        q = Q.quantize_per_token(x, scale, zp, -128, 127, torch.int8)
        x = Q.dequantize_per_token(q, scale, zp, -128, 127, torch.int8, torch.float32)
        weights = Q.dequantize_per_token(w, scales, torch.zeros(24, 1), -128, 127, torch.int8, torch.float32)
        return torch.nn.functional.linear(x, weights, bias)

    sizes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=64)}
    program = torch.export.export(Module(f), (torch.ones(2, 3, 40),), dynamic_shapes=((sizes,),))
    model = gq.compile(gq.from_torch(program))
    for shape in ((2, 5, 40), (1, 1, 40)):
        x = torch.randn(*shape) + 0.5
        np.testing.assert_allclose(model(x.numpy()), f(x).numpy(), rtol=1e-5, atol=1e-5)
    assert model.coverage().share == 1.0
