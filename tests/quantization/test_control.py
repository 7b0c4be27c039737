"""What accuracy control tries, and in which order: with accuracies that are stated, of models that are not made."""
import json

import pytest

from graphq.errors import GraphError, InputError
from graphq.quantization import control
from graphq.quantization.scheme import Scheme, Setting

BETWEEN = Setting(scheme=Scheme(between=("v", "w")))


class Searched:
    """The result of a search: a model is its setting, and products are ranked a, b, c."""

    graph, batches = "f32", ({},)

    def ranked(self, setting):
        return ["a", "b", "c"]

    def made(self, setting):
        return setting


@pytest.fixture
def controlled(monkeypatch):
    """Accuracy control from a setting on, and the settings that it evaluates."""
    monkeypatch.setattr(control, "Search", lambda graph, batches: Searched())
    monkeypatch.setattr(control, "compile", lambda model, cache: model)
    monkeypatch.setattr(control, "run_times", lambda models, batch: [2.0])

    def run(setting, accuracy, max_drop=0.25, **options):
        monkeypatch.setattr(Searched, "run", lambda self: setting, raising=False)
        tried = []

        def evaluate(model):
            if model == "f32":
                return 1.0
            tried.append((model.scheme.between, model.scheme.exclude))
            return accuracy(*tried[-1])

        found = control.quantize_with_accuracy_control(None, None, evaluate, max_drop, **{"report": None, **options})
        assert found.graph == control.with_scheme(found.graph, exclude=found.in_f32)
        assert (found.accuracy_f32, found.milliseconds_f32, found.milliseconds) == (1.0, 2.0, 2.0)
        return found, tried

    return run


@pytest.mark.parametrize("accuracy", [1.0, 0.75, 2.0])
@pytest.mark.parametrize("setting", [Setting(), BETWEEN])
def test_what_is_accurate_enough_stays(controlled, setting, accuracy):
    """A drop of just max_drop too."""
    found, tried = controlled(setting, lambda *_: accuracy)
    assert (found.graph, found.in_f32, found.accuracy) == (setting, (), accuracy) and len(tried) == 1
    assert found.drop == 1.0 - accuracy


def test_values_between_products_return_to_f32_first(controlled):
    found, tried = controlled(BETWEEN, lambda between, exclude: 0.5 if between else 0.875)
    assert tried == [(("v", "w"), ()), ((), ())]
    assert (found.graph, found.in_f32, found.accuracy) == (Setting(), (), 0.875)


@pytest.mark.parametrize("needed, in_f32, count", [
    ({"a"}, ("a",), 2), ({"b"}, ("b",), 4), ({"c"}, ("c",), 6), ({"a", "c"}, ("a", "c"), 6),
    ({"a", "b"}, ("a", "b"), 4), ({"a", "b", "c"}, ("a", "b", "c"), 6)])
def test_the_fewest_products_stay_in_f32(controlled, needed, in_f32, count):
    """One more at a time in their order, until it is accurate; then each but the last is tried in integers again."""
    found, tried = controlled(Setting(), lambda _, left: 1 - len(left) / 64 if needed <= {*left} else 0.5)
    assert (found.in_f32, found.accuracy) == (in_f32, 1 - len(in_f32) / 64)
    assert tried[:2] == [((), ()), ((), ("a",))] and len(tried) == len({(x, frozenset(y)) for x, y in tried}) == count


def test_what_no_products_in_f32_mend_is_refused(controlled):
    with pytest.raises(GraphError, match="accuracy 0.5 with all layers in f32 is more than 0.25 below 1"):
        controlled(BETWEEN, lambda *_: 0.5)


def test_a_state_has_all_accuracies(controlled, tmp_path):
    path = tmp_path / "state.json"
    first, tried = controlled(BETWEEN, lambda between, exclude: float("b" in exclude), state=path)
    assert len(tried) == 5 and len(json.loads(path.read_text())) == 1 + len(tried)
    again, tried = controlled(BETWEEN, lambda *_: 0.0, state=path)
    assert again == first and tried == []


def test_what_the_search_left_in_f32_stays_there(controlled):
    """Only layers that accuracy asked for are tried in integers again."""
    setting = Setting(scheme=Scheme(exclude=("z",)))
    found, tried = controlled(setting, lambda _, left: float({"b", "z"} <= {*left}))
    assert found.in_f32 == ("z", "b") and [left for _, left in tried] == [
        ("z",), ("z", "a"), ("z", "a", "b"), ("z", "b")]


@pytest.mark.parametrize("accuracy, max_drop, message", [
    (1.0, -0.25, "max_drop must not be negative, got -0.25"), (1.0, float("nan"), "max_drop must not be negative"),
    (float("nan"), 0.25, "evaluate must return a finite number, got nan"), (float("inf"), 0.25, "got inf")])
def test_numbers_that_are_refused(controlled, accuracy, max_drop, message):
    with pytest.raises(InputError, match=message):
        controlled(Setting(), lambda *_: accuracy, max_drop)


def test_no_drop_at_all(controlled):
    assert controlled(Setting(), lambda _, left: 1.0 if left == ("a",) else 0.99, 0)[0].in_f32 == ("a",)


def test_each_trial_is_reported(controlled):
    lines = []
    controlled(Setting(), lambda _, left: 0.875 if left else 0.5, report=lines.append)
    assert [line.partition(":")[0] for line in lines] == [
        f"accuracy {a:.5g}, 2.00 ms" for a in (1, 0.5, 0.875)] and lines[0].endswith(": f32")
