"""These tests need the packages torch and onnx (the extra `torch`); they are skipped where one is missing."""
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")
