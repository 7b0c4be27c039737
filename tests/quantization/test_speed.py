"""The time of a run that a quantized model is reported with."""
import pytest
from float_networks import perceptron

from graphq.quantization import Scheme, automatic, quantize
from graphq.quantization import speed as module
from graphq.quantization.speed import Speed, speed


@pytest.fixture
def measured():
    """Here results are timed."""


@pytest.mark.parametrize("int8, f32, text", [
    (1.0, 2.5, "1 ms per run, f32 2.5 ms: speedup 2.50 on this machine (avx2, 1 thread)"),
    (2.0, 1.5, "2 ms per run, f32 1.5 ms: int8 does not pay on this machine (avx2, 1 thread), speedup 0.75"),
    (1.0, 1.04, "1 ms per run, f32 1.04 ms: int8 does not pay on this machine (avx2, 1 thread), speedup 1.04")])
def test_a_line_says_whether_int8_pays(int8, f32, text):
    found = Speed(int8, f32, "avx2", 1)
    assert str(found) == text and found.pays == ("not" not in text)
    assert found.json() == {"milliseconds": int8, "milliseconds_f32": f32, "level": "avx2", "threads": 1,
                            "ratio": f32 / int8, "pays": found.pays}


def test_both_models_are_timed_on_the_first_batch(monkeypatch):
    """Each model makes at least TURNS runs after its first one; a batch of more rows than the model takes is cut."""
    graph, batches = perceptron()
    made = quantize(graph, batches, Scheme())
    runs = []
    monkeypatch.setattr(module, "compile", lambda g, cache: Model("int8" if g is made else "f32", runs))
    monkeypatch.setattr(module, "SECONDS", 0)
    monkeypatch.setattr(module, "run_until_settled", lambda run: run())
    found = speed(made, graph, iter(batches))
    assert runs == ["int8", "f32"] * (1 + module.TURNS) and (found.level, found.threads) == ("scalar", 3)


class Model:
    """Stands for a compiled model."""

    level, threads = type("Level", (), {"name": "scalar"}), 3

    def __init__(self, name, runs):
        self.name, self.runs = name, runs

    def __call__(self, batch):
        assert set(batch) == {"x"}
        self.runs.append(self.name)


def test_the_automatic_setting_has_its_speed():
    graph, batches = perceptron()
    found = automatic(graph, batches)
    assert str(found).splitlines()[-1] == str(found.speed) and found.speed.milliseconds > 0
    assert found.graph.meta["quantization"]["speed"] == found.speed.json()
