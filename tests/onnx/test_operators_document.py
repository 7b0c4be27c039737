"""docs/onnx_operators.md says what the code has; all of the installed onnx has an operation or a reason."""
import subprocess
import sys
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


def test_every_operator_is_native_a_function_or_on_a_list_of_reasons():
    """In all versions. A new version of onnx with a new operator fails here, and so does a reason without need."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history()
               if not s.deprecated and s.support_level == s.SupportType.COMMON
               and not s.domain.startswith("ai.onnx.preview")]
    native = {title(s.domain, s.name) for s in schemas
              if (f := importer_of(s.domain, s.name)) is not None and f.__module__ != by_reference.__name__}
    functions = {title(s.domain, s.name) for s in schemas if s.has_function or s.has_context_dependent_function}
    reasons = REFUSED.keys() | BY_REFERENCE.keys()
    assert {title(s.domain, s.name) for s in schemas} - native - functions - reasons == set()
    assert reasons - {title(s.domain, s.name) for s in schemas} == set() == reasons & native
    assert not REFUSED.keys() & BY_REFERENCE.keys()


def test_every_element_type_has_a_dtype_or_a_reason():
    types = set(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}
    assert types - ELEMENTS.keys() == NO_NUMBERS.keys()
