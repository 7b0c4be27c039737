"""Arrays that the plans of a model share."""
import numpy as np

import graphq as gq
from graphq.model.open_shapes import Shared


def test_equal_arrays_of_later_variants_are_those_of_earlier_ones():
    """Of another type, shape or element they are not equal."""
    x = np.arange(6, dtype=np.int32)
    first = [x, x.copy(), np.float32([0])]
    shared = Shared()
    assert all(a is b for a, b in zip(shared.of(first), first, strict=True))
    others = [x.copy(), x.reshape(2, 3), x.view(np.uint32), x.view(np.float32), x[::-1], x[::2], x + 1,
              np.float32([-0.0])]
    found = shared.of(others)
    assert found[0] is first[0] and all(a is b for a, b in zip(found[1:], others[1:], strict=True))
    again = shared.of([y.copy() for y in others])
    assert all(a is b for a, b in zip(again, found, strict=True))
    narrow = [np.zeros(4, t.numpy) for t in (gq.dtypes.s4, gq.dtypes.u4, gq.dtypes.f8_e4m3)]
    assert all(a is b for a, b in zip(shared.of(narrow), narrow, strict=True))


def test_plans_that_are_made_at_a_time_get_arrays_equal_to_their_own(monkeypatch):
    """Another thread shares its arrays while those of the first plan are compared."""
    shared, compare = Shared(), Shared._one_for
    arrays_of = [[np.full(n, k) for n in (3, 4, 5)] for k in range(3)]
    shared.of(arrays_of[0])
    found = []

    def interrupted(self, array):
        monkeypatch.setattr(Shared, "_one_for", compare)
        found.append(shared.of(arrays_of[1]))
        return compare(self, array)

    monkeypatch.setattr(Shared, "_one_for", interrupted)
    found.append(shared.of(arrays_of[2]))
    assert all(a.tolist() == b.tolist() for one, own in zip(found, arrays_of[1:], strict=True)
               for a, b in zip(one, own, strict=True))
