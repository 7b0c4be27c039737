"""Write a pytest file for a graph that a pass gets wrong."""
import inspect
import re
import sys
import textwrap
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from graphq.errors import GraphError
from graphq.ir import Graph, to_text
from graphq.passes import PIPELINE
from graphq.rewrite.fixpoint import find_pass, pass_name
from graphq.rewrite.rule import Pass


def as_test(step: Pass, graph: Graph) -> str:
    """The source of a test that fails as long as the pass changes the numbers of `graph`.

    The test finds a pass of the pipeline by name, and imports any other pass from its module, or from its file if the
    module cannot be imported (a script, say). So it passes as soon as the pass is mended.
    """
    made, needs = _expression(step)
    name = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", pass_name(step))).lower()
    text = to_text(graph).replace("\\", r"\\").replace('"""', r'\"""')
    body = f'''def test_{name}_keeps_numbers():
    check_pass({made}, after=ANY, before="""
{textwrap.indent(text, " " * 8)}""")
'''
    imports = "from graphq.passes import ANY\nfrom graphq.testing import check_pass\n"
    return "\n".join(part for part in (imports, needs, "\n" + body) if part)


def _expression(step: Pass) -> tuple[str, str]:
    name = pass_name(step)
    try:
        if find_pass(PIPELINE, name) is step:
            return f'find_pass(PIPELINE, "{name}")', "from graphq.passes import PIPELINE, find_pass\n"
    except GraphError:
        pass
    maker: Any = step if inspect.isfunction(step) else type(step)
    word, place = maker.__name__, maker.__module__
    called = word if inspect.isfunction(step) else f"{word}({_arguments(step)})"
    module = sys.modules.get(place)
    if getattr(module, word, None) is not maker:
        return called, f"# {word} is not at the top of a module: define it here\n"
    if _importable(place):
        return called, f"from {place} import {word}\n"
    file = getattr(module, "__file__", None)
    if file is None:
        return called, f"# {word} has no source file: define it here\n"
    found = f"{Path(file).absolute()}:{word}"
    return called, f"from graphq.base.paths import named_object\n\n{word} = named_object({found!r})\n"


def _importable(module: str) -> bool:
    """Whether another process can import the module: it is no script, and no file that pytest loaded by path."""
    try:
        return module != "__main__" and PathFinder.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _arguments(step: Pass) -> str:
    """The arguments that made the pass `step`, as code: each is read from the attribute with the parameter's name."""
    try:
        parameters = inspect.signature(type(step)).parameters.values()
    except (TypeError, ValueError):
        return ""
    given = []
    for p in parameters:
        value = getattr(step, p.name, p.empty)
        if value is not p.empty and value is not p.default and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            given.append(f"{p.name}={value!r}")
    return ", ".join(given)
