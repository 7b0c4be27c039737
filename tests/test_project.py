"""What pyproject.toml and the files at the top say of the project agrees with the source."""
import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import graphq as gq

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def imported() -> set[str]:
    """The packages that the source imports, except for the standard library."""
    found = set()
    for path in (p for room in ("graphq", "kernels", "passes") for p in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"graphq"}


def test_tests_that_ci_names_exist():
    """Also in the emulated step, which many machines skip."""
    words = re.findall(r"(?<![\w/])tests/[\w/{},.-]+", (ROOT / ".ci/run").read_text(encoding="utf-8"))
    command = ["bash", "-c", f"printf '%s\\n' {' '.join(words)}"]  # which expands braces
    paths = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(words) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_package_that_the_source_imports_is_declared():
    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    named = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in [*PROJECT["dependencies"], *extras]}
    found = imported()
    assert {"numpy", "numba", "llvmlite", "networkx", "ml_dtypes"} <= found
    # dask brings distributed and pandas, onnx brings google.protobuf, type checkers typing_extensions.
    assert found - {"distributed", "pandas", "google", "typing_extensions"} <= named


@pytest.mark.parametrize("package", ["numba", "llvmlite"])
def test_versions_of_the_compiler_are_bounded_and_stated(package):
    """The documentation names the minor versions that the bounds allow."""
    (line,) = (line for line in PROJECT["dependencies"] if line.startswith(package))
    lowest, beyond = re.fullmatch(rf"{package}>=0\.(\d+),<0\.(\d+)", line).groups()
    stated = f"{package} 0.{lowest} to 0.{int(beyond) - 1}"
    assert stated in (ROOT / "docs" / "limits.md").read_text(encoding="utf-8").replace("Numba", "numba")


def test_one_file_has_the_version():
    """The changelog's headings are the history; nothing else repeats the version."""
    assert PROJECT["dynamic"] == ["version"]
    for name in ("pyproject.toml", "CITATION.cff", "docs/conf.py"):
        assert gq.__version__ not in (ROOT / name).read_text(encoding="utf-8"), name


def test_passes_are_annotated():
    """Readers copy passes, so each function states its types (mypy checks them)."""
    for path in (ROOT / "passes").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                parameters = [x for x in ast.walk(node.args) if isinstance(x, ast.arg) and x.arg != "self"]
                types = [node.returns, *(x.annotation for x in parameters)]
                assert None not in types, f"{path.name}:{node.lineno} {node.name}"
