"""tensor_scatter: by a kernel and its reference, equal to the specification; in place; and what it refuses."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import InputError

rng = np.random.default_rng(24)


def model(past, update, places, axis, mode):
    g = gq.Graph()
    values = [g.input(name, shape=x.shape, dtype=x.dtype) for name, x in (("past", past), ("update", update),
                                                                          ("places", places)) if x is not None]
    g.output(g.tensor_scatter(*values, axis=axis, mode=mode), name="y")
    return g


def case(mode, axis, dtype):
    past = rng.integers(-99, 99, (2, 3, *rng.integers(1, 6, 2))).astype(dtype)
    k, size = axis % 4, past.shape[axis]
    shape = [*past.shape]
    shape[k] = int(rng.integers(1, size + 1))
    places = rng.integers(0, size - shape[k] + 1 if mode == "linear" else 9, 2)
    return past, rng.integers(-99, 99, shape).astype(dtype), places


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis, dtype", [(1, "f4"), (-2, "f2"), (-1, "i1"), (2, "i8")])
def test_as_the_specification(axis, dtype, mode):
    for given in (True, False):
        past, update, places = case(mode, axis, dtype)
        first, want, k = places if given else [0, 0], past.copy(), axis % 4
        for prefix in np.ndindex(*past.shape[:k]):
            for step in range(update.shape[k]):
                want[(*prefix, (first[prefix[0]] + step) % past.shape[k])] = update[(*prefix, step)]
        g = model(past, update, places if given else None, axis, mode)
        feeds = dict(zip([v.name for v in g.inputs], (past, update, places), strict=False))
        compiled = gq.compile(g, strict=True)
        np.testing.assert_array_equal(gq.reference(g, feeds), want)
        np.testing.assert_array_equal(compiled(feeds), want)
        compiled(feeds, out={"y": past})  # in place
        np.testing.assert_array_equal(past, want)


def test_places_outside():
    past, update = np.zeros((2, 1, 6, 3), np.float32), np.ones((2, 1, 2, 3), np.float32)
    g = model(past, update, np.zeros(2, np.int64), -2, "linear")
    compiled = gq.compile(g)
    for place in (-1, 5, 2**63 - 1, -2**63):
        feeds = {"past": past, "update": update, "places": np.int64([0, place])}
        for runs in (compiled, lambda feeds: gq.reference(g, feeds)):
            with pytest.raises(InputError, match=rf"places must be in \[0, 4\], got {place}"):
                runs(feeds)
