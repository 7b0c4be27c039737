"""PyTorch for the tests of its front end, which are skipped without it, and a module of one function."""
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")


class Module(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *inputs):
        """Call the function."""
        return self.f(*inputs)
