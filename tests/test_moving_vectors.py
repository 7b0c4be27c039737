"""What users of other engines report: the vector of a text moves with padding, neighbors, order, or threads.

Each situation is one that makes vectors differ elsewhere. Here every vector has the bits that it has alone.
"""
from functools import cache

import numpy as np
import pytest
from encoders import encoder, feed

import graphq as gq

LENGTHS = [5, 1, 12, 7, 5]
ENCODERS = {
    "f32, a vector for each token": ({}, "tensor"),
    "static u8, the first token": ({"pooling": "cls", "quantized": "static"}, "tensor"),
    "dynamic u8, a range per token, masked mean": ({"pooling": "mean", "quantized": "dynamic"}, "rows"),
}
SITUATIONS = {  # the texts of a batch, and the width that they are padded to
    "padded to a power of two": ([2], 16), "padded to the longest of a model": ([2], 40),
    "next to longer texts": ([1, 2], 12), "in a batch": ([0, 1, 2, 3, 4], 12),
    "in another order": ([3, 4, 2, 1, 0], 12), "next to itself": ([3, 3, 3], 7), "the smaller last batch": ([4], 12),
}


@cache
def compiled(name, threads=1):
    options, ranges = ENCODERS[name]
    return gq.compile(encoder(**options), ranges=ranges, threads=threads)


def moved(model):
    """The texts whose vectors differ in a bit from the text alone, with the situation."""
    alone, found = [model(feed([n], n))[0] for n in LENGTHS], []
    for situation, (texts, width) in SITUATIONS.items():
        given = feed([LENGTHS[k] for k in texts], width)
        given["ids"][given["mask"] == 0] = 7  # anything
        for k, y in zip(texts, model(given), strict=True):
            own = y[:LENGTHS[k]] if y.ndim > 1 else y
            found += [] if np.array_equal(own.view(np.int32), alone[k].view(np.int32)) else [(situation, k)]
    return found


@pytest.mark.parametrize("name", ENCODERS)
def test_no_vector_moves(name):
    model = compiled(name)
    assert (model.rows_mix, model.padding_mixes, model.padding_zeros) == (None, None, ("mask",))
    assert moved(model) == []


def test_vectors_move_if_a_range_is_that_of_the_whole_tensor():
    """As the file says: padding and neighbors are part of the range, and graphq says that rows mix."""
    model = gq.compile(encoder(pooling="mean", quantized="dynamic"), threads=1)
    assert moved(model) and model.rows_mix and model.padding_mixes


def test_threads_move_no_vector():
    (name, *_), given = ENCODERS, feed([40] * 24, 40)
    assert np.array_equal(compiled(name)(given), compiled(name, 2)(given))


@pytest.mark.parametrize("options", [{"pad": "longest"}, {"pad": "buckets", "batch": 2}, {"batch": 1}])
def test_a_predictor_moves_no_vector(options):
    model = compiled(next(iter(ENCODERS)))
    texts = [feed([n], n) for n in LENGTHS]
    if "pad" not in options:
        texts = texts[:1] * 3
    rows = {name: [text[name][0] for text in texts] for name in ("ids", "mask")}
    given = rows if "pad" in options else {name: np.stack(x) for name, x in rows.items()}
    found = gq.Predictor(model, threads=1, **options)(given)["y"]
    for text, y in zip(texts, found, strict=True):
        assert np.array_equal(y.view(np.int32), model(text)[0].view(np.int32))
