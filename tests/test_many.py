"""Graphs of many things: twice as many take at most about twice the steps, from text to text through the passes.

Steps are calls of functions, Python's and C's, while the passes run; a time would depend on the machine.
"""
import cProfile

import numpy as np
import pytest

import graphq as gq
from graphq.passes import run_passes

FEW = 150


def chain(g, x, n):
    for k in range(n):
        x = g.tanh(x) if k % 2 else g.abs(x)
    return [x]


def users(g, x, n):
    return [g.relu(g.add(x, g.constant(np.float32(k)))) for k in range(n)]


def inputs(g, x, n):
    for k in range(n):
        x = g.add(x, g.input(f"x{k}", dtype="f32", shape=(1, 8)))
    return [x]


def concat(g, x, n):
    return [g.concat(*[x] * n, axis=0)]


def concat_of_inputs(g, x, n):
    return [g.relu(g.concat(*(g.input(f"x{k}", dtype="f32", shape=(1, 8)) for k in range(n)), axis=0))]


def concat_of_integers(g, x, n):
    parts = [g.dequantize(g.input(f"x{k}", dtype="u8", shape=(1, 8)), scales=[0.5 + k]) for k in range(n)]
    return [g.quantize(g.concat(*parts, axis=0), dtype="u8", scales=[0.5])]


def slices(g, x, n):
    x = g.input("long", dtype="f32", shape=(n, 8))
    return [g.concat(*(g.slice(x, axes=[0], starts=[k], ends=[k + 1], steps=[1]) for k in range(n)), axis=0)]


def equal_nodes(g, x, n):
    return [g.concat(*(g.tanh(x) for _ in range(n)), axis=0)]


def quantized_chain(g, x, n):
    for k in range(n):
        x = g.dequantize(g.quantize(x, dtype="u8", scales=[0.1 + k]), scales=[0.1 + k])
    return [x]


def constants(g, x, n):
    for k in range(n):
        x = g.multiply(x, g.constant(np.full(8, k, np.float32)))
    return [x]


def channels(g, x, n):
    x = g.input("wide", dtype="f32", shape=(2, n))
    return [g.quantize(x, dtype="u8", qtype="per_channel", axis=1, scales=[0.1] * n, zps=[3] * n)]


def transposes(g, x, n):
    for _ in range(n):
        x = g.static_transpose(x, order=[1, 0])
    return [x]


def steps(make, n):
    g = gq.Graph()
    results = make(g, g.input("x", dtype="f32", shape=(1, 8)), n)
    g.set_outputs(results, [f"y{k}" for k in range(len(results))])
    text = gq.to_text(g)
    with cProfile.Profile() as profile:
        g = gq.parse(text)
        run_passes(g)
        gq.to_text(g)
    return sum(entry.callcount for entry in profile.getstats())


MAKERS = (chain, users, inputs, concat, concat_of_inputs, concat_of_integers, slices, equal_nodes, quantized_chain,
          constants, channels, transposes)


@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
def test_twice_as_many_take_twice_the_steps(make):
    few, many = steps(make, FEW), steps(make, 2 * FEW)
    assert FEW < few and many <= 2.3 * few, (few, many)
