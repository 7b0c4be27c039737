"""Write a pytest file for a graph that a pass gets wrong."""
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from graphq.errors import GraphError
from graphq.ir import Graph, to_text
from graphq.passes import PIPELINE
from graphq.rewrite.fixpoint import find_pass, pass_name
from graphq.rewrite.rule import Pass


def as_test(step: Pass, graph: Graph) -> str:
    """The source of a test that fails as long as the pass changes the numbers of `graph`.

    The test finds a pass of the pipeline by name, and imports any other pass from its module. If the module cannot be
    imported, for example a script, the test contains the source of the pass and of everything that it uses.
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
    if _importable(place) and getattr(module, word, None) is maker:
        return called, f"from {place} import {word}\n"
    try:
        return called, _source(maker, module)
    except (OSError, TypeError, SyntaxError):
        return called, f"# {word} has no source file: define it here\n"


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


def _source(maker: Any, module: ModuleType | None) -> str:
    """The source of a class or function, and of the closure variables and module statements that it uses."""
    own = textwrap.dedent(inspect.getsource(maker))
    used = _names(ast.parse(own))
    free = "".join(f"{name} = {value}\n" for name, value in _closure(maker) if name in used)
    if module is None:
        return free + own
    text = inspect.getsource(module)
    bound: dict[str, ast.stmt] = {}
    for statement in ast.parse(text).body:
        for name in _bound(statement):
            bound.setdefault(name, statement)
    needed: dict[ast.stmt, None] = {}
    work = list(used)
    while work:
        found = bound.get(work.pop())
        if found is not None and found not in needed and getattr(found, "name", None) != maker.__name__:
            needed[found] = None
            work += _names(found)
    ordered = sorted(needed, key=lambda s: s.lineno)
    imports = [ast.get_source_segment(text, s) or "" for s in ordered if isinstance(s, ast.Import | ast.ImportFrom)]
    others = []
    for s in ordered:
        if not isinstance(s, ast.Import | ast.ImportFrom):
            first = min([s.lineno, *(d.lineno for d in getattr(s, "decorator_list", ()))])
            others.append("\n".join(text.splitlines()[first - 1:s.end_lineno]))
    return "\n".join([*imports, *(f"\n{x}" for x in others), *([free] if free else []), f"\n{own}"])


def _names(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((a.asname or a.name.partition(".")[0]) for a in statement.names)
    elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))


def _closure(maker: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the `repr` of each plain value that a function or the methods of a class capture."""
    for f in [maker] if inspect.isfunction(maker) else [x for x in vars(maker).values() if inspect.isfunction(x)]:
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            if isinstance(cell.cell_contents, int | float | str | tuple | list | dict | None):
                yield name, repr(cell.cell_contents)
