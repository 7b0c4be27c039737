"""What accuracy control tries, and in which order: with accuracies that are stated, of models that are not made."""
import pytest

from graphq.errors import GraphError, InputError
from graphq.quantization import control
from graphq.quantization.scheme import Scheme, Setting
from graphq.quantization.search import Point

SETTINGS = [Setting(scheme=Scheme(exclude=names)) for names in ((), ("a",), ("a", "b"))]


class Searched:
    """The result of a search: a frontier of three points. A model is its setting."""

    graph, batches, failed = "f32", ({},), ()
    curve = [Point(s, 0.5 + k / 8, 0.1 / 4**k) for k, s in enumerate(SETTINGS)]

    def run(self, *, narrow):
        assert narrow  # as in `automatic`
        return SETTINGS[1]

    def possible(self, setting):
        return setting

    made = possible


@pytest.fixture
def controlled(monkeypatch):
    """Accuracy control with the accuracies of the points, and the settings that it evaluates."""
    monkeypatch.setattr(control, "Search", lambda graph, batches: Searched())
    monkeypatch.setattr(control, "compile", lambda model, cache: model)
    monkeypatch.setattr(control, "run_times", lambda models, batch: [2.0])

    def run(*accuracies, max_drop=0.25, report=None):
        tried = []

        def evaluate(model):
            tried.append(model)
            return 1.0 if model == "f32" else accuracies[SETTINGS.index(model)]

        found = control.quantize_with_accuracy_control(None, None, evaluate, max_drop, report=report)
        assert found.graph == found.setting and (found.accuracy_f32, found.milliseconds_f32) == (1.0, 2.0)
        assert tried == ["f32", *SETTINGS[:len(tried) - 1]] and found.setting == tried[-1]
        return found, len(tried) - 1

    return run


@pytest.mark.parametrize("accuracy", [1.0, 0.75, 2.0])
def test_what_is_accurate_enough_stays(controlled, accuracy):
    """A drop of just max_drop too."""
    found, tried = controlled(accuracy)
    assert (tried, found.accuracy) == (1, accuracy)


@pytest.mark.parametrize("accuracies, count", [((0.5, 0.8), 2), ((0.5, 0.7, 0.75), 3), ((0.9, 0.0, 0.0), 1)])
def test_the_fastest_point_that_keeps_the_accuracy_is_taken(controlled, accuracies, count):
    found, tried = controlled(*accuracies)
    assert tried == count and found.accuracy == accuracies[count - 1] and found.milliseconds == 2.0


def test_no_drop_at_all(controlled):
    assert controlled(0.99, 1.0, max_drop=0)[1] == 2


def test_what_no_point_keeps_is_refused(controlled):
    with pytest.raises(GraphError, match="the best has 0.6, more than 0.25 below f32's 1"):
        controlled(0.5, 0.6, 0.55)


@pytest.mark.parametrize("accuracy, max_drop, message", [
    (1.0, -0.25, "max_drop must not be negative, got -0.25"), (1.0, float("nan"), "max_drop must not be negative"),
    (float("nan"), 0.25, "evaluate must return a finite number, got nan"), (float("inf"), 0.25, "got inf")])
def test_numbers_that_are_refused(controlled, accuracy, max_drop, message):
    with pytest.raises(InputError, match=message):
        controlled(accuracy, max_drop=max_drop)


def test_each_model_is_reported(controlled):
    lines = []
    controlled(0.5, 0.875, report=lines.append)
    assert [line.partition(":")[0] for line in lines] == [
        f"accuracy {a:.5g}, 2.00 ms" for a in (1, 0.5, 0.875)] and lines[0].endswith(": f32")
