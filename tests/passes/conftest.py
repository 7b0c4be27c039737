"""The families and networks of this folder as fixtures (tests are imported by path)."""
import importlib.util
from pathlib import Path

import pytest


def _module(name):
    spec = importlib.util.spec_from_file_location(f"group_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FAMILIES, NETWORKS = _module("families"), _module("networks")


def pytest_generate_tests(metafunc):
    """`family` runs over all families, `network` over all networks."""
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", list(FAMILIES.FAMILIES))
    if "network" in metafunc.fixturenames:
        metafunc.parametrize("network", NETWORKS.NETWORKS, ids=lambda f: f.__name__)


@pytest.fixture
def member():
    return FAMILIES.member


@pytest.fixture
def random_graph():
    return NETWORKS.random_graph
