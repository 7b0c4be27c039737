"""These tests need the onnx package (in the extra `test`); they are not collected where it is missing."""
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("onnx") else ["test_*.py"]
