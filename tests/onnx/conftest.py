"""These tests need the onnx package (in the extra `test`); they are not collected where it is missing."""
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("onnx") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def defaults_are_those_of_schemas():
    """Whatever a test loads: an attribute that a node leaves out has its schema's default."""
    from onnx_defaults import check_defaults

    with pytest.MonkeyPatch.context() as patch:
        check_defaults(patch)
        yield
