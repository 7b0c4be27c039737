"""The estimated times by which 16 bits are priced."""
import pytest
from float_networks import perceptron

from graphq.kernels.jit.isa import available
from graphq.quantization.price import INTEGERS, LEAST_SAVED, Price
from graphq.quantization.products import prepared
from graphq.quantization.scheme import Scheme, Setting


class OfLevel:
    """Stands for a level of instructions."""

    def __init__(self, vnni):
        self.vnni = vnni

    def has(self, extension):
        assert extension == "vnni"
        return self.vnni


@pytest.mark.parametrize("vnni, of_eight, of_more", [(True, 3.8, 4.0), (False, 8.0, 8.0)])
def test_times_by_hand(vnni, of_eight, of_more, monkeypatch):
    """Of two products, one with 16 bits for both operands; without VNNI multiply-accumulates take longer."""
    price = Price(None, None, OfLevel(vnni))
    assert INTEGERS.of([(1e6, 2e6), (3e6, 0.0)]) == pytest.approx(4 * 3.8 + 2 * 74 + 2 * 0.76)
    wide = Setting(scheme=Scheme(wide=("a",), wide_weights=("a", "not known")))
    monkeypatch.setitem(price.__dict__, "work", {"a": (1e6, 2e6), "b": (3e6, 0.0)})
    eight = 4 * of_eight + 2 * 74 + 2 * 0.76
    assert price.repeated(Setting()) == 0
    assert price.repeated(wide) == pytest.approx(2 * (of_more + 2 * 100 + 0.4) / eight)
    assert price.saved == LEAST_SAVED
    monkeypatch.setitem(price.__dict__, "work", {"a": (1e8, 2e6), "b": (3e6, 0.0)})
    eight = 103 * of_eight + 2 * 74 + 2 * 0.76
    assert price.saved == pytest.approx(max(LEAST_SAVED, (103 * 9.6 + 2 * 55 + 2 * 0.6) / eight - 1))


def test_work_of_a_graph():
    graph, batches = perceptron()
    price = Price(prepared(graph), batches[0], available()[0])
    macs, elements = (sum(x) for x in zip(*price.shares.values(), strict=True))
    assert macs == pytest.approx(1) and elements == pytest.approx(1)
    means = [sum(x) for x in price.shares.values()]
    assert means == sorted(means) and set(price.work) == set(price.shares) and len(price.work) == 2
    assert price.work["hidden"] == (6 * 16 * 32, 6 * 16 + 6 * 32)
