"""docs/onnx_operators.md says what the code has; all of the installed onnx has an operation or a reason."""
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import onnx
import pytest

from graphq.onnx.importers import by_reference
from graphq.onnx.importers.importer import BY_REFERENCE, REFUSED, importer_of
from graphq.onnx.protos.fallback import title
from graphq.onnx.protos.tensors import ELEMENTS, NO_NUMBERS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_list_of_operators_is_current():
    text = (DOCS / "onnx_operators.md").read_text(encoding="utf-8")
    if f"onnx {onnx.__version__} " not in text:
        pytest.skip("written with another version of onnx")
    done = subprocess.run([sys.executable, DOCS / "onnx_operators.py"], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout == text, "run: python docs/onnx_operators.py > docs/onnx_operators.md"


FUNCTIONS = {"AffineGrid", "BlackmanWindow", "CausalConvWithState", "CenterCropPad", "HammingWindow", "HannWindow",
             "NegativeLogLikelihoodLoss", "Shrink", "SoftmaxCrossEntropyLoss", "SwiGLU"}
"""The operators that are computed by ONNX's functions, which have few steps."""


def test_every_operator_is_native_or_on_a_list():
    """In all versions. A new version of onnx with a new operator fails here, and so does a reason without need."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history()
               if not s.deprecated and s.support_level == s.SupportType.COMMON
               and not s.domain.startswith("ai.onnx.preview")]
    native = {title(s.domain, s.name) for s in schemas
              if (f := importer_of(s.domain, s.name)) is not None and f.__module__ != by_reference.__name__}
    functions = {title(s.domain, s.name) for s in schemas if s.has_function or s.has_context_dependent_function}
    lists = [native, FUNCTIONS, REFUSED.keys(), BY_REFERENCE.keys()]
    names = {title(s.domain, s.name) for s in schemas}
    assert set().union(*lists) >= names >= REFUSED.keys() | BY_REFERENCE.keys()
    assert functions >= FUNCTIONS & names  # an older onnx lacks some of them
    assert sum(map(len, lists)) == len(set().union(*lists)), "an operator has one place"
    assert len([name for name in BY_REFERENCE if "." not in name]) <= 5


@pytest.mark.parametrize("known", [True, False])
def test_a_new_operator_is_found(known, monkeypatch):
    """Also if it has a function."""
    new = onnx.defs.OpSchema("Abs" if known else "MadeUp", "", onnx.defs.onnx_opset_version() + 1)
    schemas = [*onnx.defs.get_all_schemas_with_history(), new]
    monkeypatch.setattr(onnx.defs, "get_all_schemas_with_history", lambda: schemas)
    with nullcontext() if known else pytest.raises(AssertionError, match="MadeUp"):
        test_every_operator_is_native_or_on_a_list()


def test_every_element_type_has_a_dtype_or_a_reason():
    types = set(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}
    assert types - ELEMENTS.keys() == NO_NUMBERS.keys()
