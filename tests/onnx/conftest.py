"""These tests need the onnx package (in the extra `test`); they are not collected where it is missing."""
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("onnx") else ["test_*.py"]
if not find_spec("onnxruntime"):
    collect_ignore_glob += ["test_dynamic_quantization.py", "test_microsoft.py", "test_qdq_layers.py", "test_rows.py"]
