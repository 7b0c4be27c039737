"""The first seeds of tests/helpers/fuzz.py: models and graphs agree with the reference, kernels with formulas."""
import re

import fuzz
import numpy as np
import pytest
from differential import difference

PART = 40
"""Seeds of a test."""


@pytest.mark.parametrize("kind, first", [(kind, first) for kind in fuzz.KINDS
                                         for first in range(0, 80 if kind in ("control", "signs") else 320, PART)])
def test_random_models(kind, first):
    found = [text for seed in range(first, first + PART) for text in fuzz.check(kind, seed, compiled=False)]
    assert found == []


@pytest.mark.parametrize("kind,seed", [(kind, seed) for kind in fuzz.KINDS for seed in range(1000, 1004)])
def test_random_models_compiled(kind, seed):
    assert fuzz.check(kind, seed, compiled=True) == []


def test_the_command_runs_until_its_time_is_over(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fuzz.py", "--hours", "0.0005", "--seed", "1"])
    assert fuzz.main() == 0
    total, first = map(int, re.fullmatch(r"(\d+) models from seed (\d+) on in 0.0005 hours, 0 with faults\n",
                                         capsys.readouterr().out).groups())
    assert total >= 2 and first == 1


def test_the_command_repeats_a_seed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fuzz.py", "--one", "graphs:1000"])
    assert fuzz.main() == 0 and capsys.readouterr().out == "no fault\n"


@pytest.mark.parametrize("near, allowed", [([], False), ([1.0], False), ([1.02], False), ([1.02, 0.97], True)])
def test_only_what_the_reference_itself_differs_by_is_allowed(near, allowed):
    """0.1 is less than four times 0.03, and more than four times 0.02."""
    found = difference(np.float32([1.1]), np.float32([1.0]), None, near=lambda: [np.float32([x]) for x in near])
    assert (found is None) == allowed
