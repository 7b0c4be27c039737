"""The names in files: every function that a trace records has its own, which leads a reader of plans to it."""
import ast
import operator
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import graphq.kernels
from graphq.base import sizes
from graphq.base.sizes import RECORDED, name_of, recorded
from graphq.model.saved_values import GROUPS

RECORDING = ("later", "number", "numbers", "call", "decide",
             "_computes", "_changes", "_converts", "_decides", "_defers")
"""The functions of `base.sizes` that record calls of their first argument (`numbers`: of the second)."""


def sources():
    """Each module of graphq whose functions have names in files or are recorded, with its syntax tree."""
    for package in ("graphq", "graphq.kernels", "graphq.passes"):
        folder = Path(import_module(package).__path__[0])
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text()
            if "graphq.base.sizes import" in text or path.name == "sizes.py":
                name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
                yield import_module(name), ast.parse(text)


@pytest.fixture(scope="module")
def modules():
    pytest.importorskip("onnx")
    return dict(sources())


def recorded_by(module, tree):
    """Each expression for a function whose calls are recorded, except for parameters of functions of `base.sizes`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func)
            if module is sizes:
                name = name.rpartition(".")[2]
            elif vars(module).get(name, module) is not vars(sizes).get(name):
                continue  # another function of this name
            if name in RECORDING and len(node.args) > (name == "numbers"):
                argument = ast.unparse(node.args[name == "numbers"])
                if not (module is sizes and argument.startswith(("function", "kind if", "getattr(ufunc"))):
                    yield argument


def evaluated(text, module, tree):
    """The value of an expression of names of a module, also of names that a function imports."""
    late = {alias.name: getattr(import_module(node.module), alias.name) for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) for alias in node.names if alias.name == text}
    return eval(text, vars(module) | late)


def test_every_recorded_function_has_a_name(modules):
    found = [(f"{module.__name__}: {text}", evaluated(text, module, tree)) for module, tree in modules.items()
             for text in recorded_by(module, tree)]
    assert [text for text, x in found if name_of(x) is None] == [] and len(found) > 80


def test_groups_are_modules(modules):
    """A reader imports the module of a name's group. Without a group, it has the function from the start."""
    own = {name: x for name, x in RECORDED.items() if x.__module__ and x.__module__.startswith("graphq.")}
    assert {name.partition(".")[0] for name in own if "." in name} == set(GROUPS)
    for name, x in own.items():
        assert "." not in name or x.__module__ == f"graphq.{GROUPS[name.partition('.')[0]]}"
    code = ("import sys, graphq.model.saved_models\nfrom graphq.base.sizes import RECORDED\nprint(*RECORDED)\n"
            "from graphq.model.saved_values import PlanReader\n"
            "print(*[PlanReader([].__getitem__, []).of(['name', x]).__name__ for x in sys.argv[1:]])")
    run = subprocess.run([sys.executable, "-c", code, *own], capture_output=True, text=True, check=True)
    first, functions = run.stdout.splitlines()
    assert {name for name in own if "." not in name} <= set(first.split())
    assert "space.offsets" not in first.split() and functions.split() == [x.__name__ for x in own.values()]


def test_a_name_belongs_to_one_function():
    for name, x in (("element", len), ("add", np.add), ("Step", dict)):
        with pytest.raises(ValueError, match=rf"{x.__name__} cannot have the name '{name}' in files: .* has it"):
            recorded(name)(x)
        assert RECORDED[name] is not x
    assert recorded("add")(operator.add) is operator.add and name_of(operator.add) == "add"
    assert len({id(x) for x in RECORDED.values()}) == len(RECORDED)
    assert all(name_of(x) == name for name, x in RECORDED.items())


def test_other_objects_have_no_name():
    assert [*map(name_of, (test_other_objects_have_no_name, [], {1}, graphq.kernels, None, "add", 0))] == [None] * 7
