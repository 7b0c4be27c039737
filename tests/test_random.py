"""The first seeds of tests/fuzz.py: random models and graphs agree with the reference, kernels with formulas."""
import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("fuzz", Path(__file__).parent / "fuzz.py")
fuzz = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz)

PART = 40
"""Seeds of a test."""


@pytest.mark.parametrize("first", range(0, 320, PART))
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_random_models(kind, first):
    found = [text for seed in range(first, first + PART) for text in fuzz.check(kind, seed, compiled=False)]
    assert found == []


@pytest.mark.parametrize("kind,seed", [(kind, seed) for kind in fuzz.KINDS for seed in range(1000, 1004)])
def test_random_models_compiled(kind, seed):
    assert fuzz.check(kind, seed, compiled=True) == []
