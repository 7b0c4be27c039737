"""The plan of the source: which folder may import which, how large folders and files may be, and what is private.

A room is a folder with Python files; a file that lies directly in graphq/ or kernels/ is a room of its own. A room may
import the rooms that stand above it in ROOMS, at the top of a file or inside of a function alike. Imports for type
checkers alone (`if TYPE_CHECKING:`) may break that order, but no circle of modules joins two folders.
"""
import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
SOURCE = {"graphq": "graphq", "kernels": "graphq.kernels", "passes": "graphq.passes"}
"""The folders at the top, and the packages as which they are imported."""

ROOMS = {
    "graphq.errors": "exceptions",
    "graphq.base": "open sizes, memory limit, locks, file names, progress bars",
    "graphq.dtypes": "element types",
    "graphq.ir": "the graph: values, nodes, declarations of operations, text form, verifier, reference interpreter",
    "graphq.rewrite": "tools for passes: patterns, matcher, rewrites, partitions",
    "graphq.kernels": "the package of the kernels (empty)",
    "graphq.kernels.jit": "compile kernels with Numba and LLVM, cache them on disk",
    "graphq.kernels.target": "all that knows a CPU: ISA levels, and the instructions that kernels ask them for",
    "graphq.kernels.threads": "the team of threads, and the one prange",
    "graphq.kernels.lanes": "the expression compiler: lane-wise expressions become vector code and epilogues",
    "graphq.kernels.numbers": "NumPy formulas that references and kernels share",
    "graphq.ops": "operations by family: signature, reference, type rule",
    "graphq.kernels.operands": "how a tile finds its operands: rows, columns, windows, scratch space",
    "graphq.plan": "plans: steps, buffers, builder, runtime",
    "graphq.kernels.family": "what the lowerings of all families share",
    "graphq.kernels.pixels": "loops over output pixels, channels last",
    "graphq.kernels.eltwise": "chains of lane-wise operations",
    "graphq.kernels.moves": "transpose, cast, gather, pad, histogram",
    "graphq.kernels.rows": "softmax, norms and reductions along rows",
    "graphq.kernels.pool": "pooling",
    "graphq.kernels.interpolate": "resizing",
    "graphq.kernels.concat": "concatenation with one scale per operand",
    "graphq.kernels.matmul": "matrix products of integers and floats; measured peaks of the machine",
    "graphq.kernels.matmul_compressed": "matrix products with compressed weights",
    "graphq.kernels.depthwise": "depthwise convolution",
    "graphq.kernels.conv": "convolution and transposed convolution",
    "graphq.kernels.recurrent": "LSTM, GRU and RNN",
    "graphq.kernels.attention": "attention with key and value caches",
    "graphq.kernels.ties": "outputs near a rounding tie, computed as the graph is written",
    "graphq.kernels.native": "kernels of operations outside partitions",
    "graphq.kernels.families": "the list of kernel families",
    "graphq.kernels.levels": "choose the ISA level",
    "graphq.passes": "the passes and their order",
    "graphq.validation": "check that passes keep a graph's numbers; shrink failing graphs",
    "graphq.report": "explain, coverage, profile, pages",
    "graphq.model": "plans for open sizes, stages and files; CompiledGraph",
    "graphq.compile": "the function compile",
    "graphq.testing": "helpers for tests of passes",
    "graphq.onnx.protos": "access to ONNX protobufs",
    "graphq.onnx.importers": "ONNX operators become operations",
    "graphq.onnx.importers.com_microsoft": "operators of the domain com.microsoft",
    "graphq.onnx.exporters": "operations become ONNX nodes",
    "graphq.onnx": "load and save ONNX files",
    "graphq.torch.operators": "ATen operators become operations",
    "graphq.torch": "PyTorch programs become graphs, and models that are called with tensors",
    "graphq.quantization": "f32 graphs become int8 graphs: statistics, ranges, search",
    "graphq.onednn": "oneDNN Graph's files and partitions",
    "graphq.scoring": "batches of any size; Dask and Ray",
    "graphq": "the public names",
    "graphq.commands": "the commands of the command line",
    "graphq.cli": "the command line",
    "graphq.__main__": "python -m graphq",
}
"""The rooms from the bottom up, and the purpose of each. CONTRIBUTING.md shows them as a table."""

MAX_FILES, MAX_LINES = 40, 450
INTERNALS = ("numba.core", "numba.np", "numba.cpython")
"""Numba's modules without an underscore that are not its public interface."""


def modules() -> dict[str, Path]:
    """The modules of graphq, by the names that they are imported under."""
    found = {}
    for folder, package in SOURCE.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def room(module: str) -> str:
    """The room of a module."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    return module if package in ("graphq", "graphq.kernels") else package


def imports(node: ast.AST, *, types: bool) -> Iterator[tuple[int, str]]:
    """Line and full name of all that is imported; `types`: also for type checkers alone."""
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    else:
        typing = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in node.orelse if typing and not types else ast.iter_child_nodes(node):
            if isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):
                yield from imports(inner, types=types)


def target(name: str) -> str | None:
    """The module of graphq that an imported name is, or is in."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def test_a_room_imports_the_rooms_below_it():
    order, wrong = list(ROOMS), []
    for module, path in MODULES.items():
        for line, name in imports(ast.parse(path.read_text()), types=False):
            found = target(name)
            if found is not None and order.index(room(found)) > order.index(room(module)):
                wrong.append(f"{path}:{line} {room(module)} imports {found}")
    assert wrong == []


def test_no_circle_of_modules_joins_folders():
    """Imports for type checkers count; the public names (`graphq.X`), which annotations may use, do not."""
    graph = nx.DiGraph()
    for module, path in MODULES.items():
        found = {target(name) for _, name in imports(ast.parse(path.read_text()), types=True)}
        graph.add_edges_from((module, other) for other in found - {None, module, "graphq"})
    circles = [c for c in nx.strongly_connected_components(graph) if len({MODULES[m].parent for m in c}) > 1]
    assert [sorted(c) for c in circles] == []


def test_each_room_has_its_place():
    assert set(ROOMS) == {room(module) for module in MODULES}


def table() -> str:
    """ROOMS as a Markdown table, with the folder or file of each room."""
    rows = []
    for name, purpose in ROOMS.items():
        path = MODULES[name]
        place = path.parent if path.name == "__init__.py" else path
        rows.append(f"| `{place.relative_to(ROOT)}` | {purpose} |")
    return "\n".join(["| room | purpose |", "|---|---|", *rows])


def test_contributing_has_the_table_of_rooms():
    """`python tests/test_rooms.py` prints the table."""
    assert table() in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("code,found", [
    ("import graphq.ir.graph", ["graphq.ir.graph"]),
    ("def f():\n    from graphq.compile import compile", ["graphq.compile"]),
    ("if TYPE_CHECKING:\n    from graphq.plan import builder\nelse:\n    from graphq import ops", ["graphq.ops"]),
    ("try:\n    import numpy\nexcept ImportError:\n    from graphq.ir import Graph", ["graphq.ir"]),
])
def test_what_is_an_import(code, found):
    names = [target(name) for _, name in imports(ast.parse(code), types=False)]
    assert [name for name in names if name] == found


def test_folders_are_small():
    folders = [path.parent for path in MODULES.values()]
    assert {str(f): folders.count(f) for f in folders if folders.count(f) > MAX_FILES} == {}


def test_files_are_short():
    folders = (*SOURCE, "tests", "benchmarks", "examples", "docs")
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines())
               for folder in folders for path in (ROOT / folder).rglob("*.py")}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


@pytest.mark.parametrize("folder", ["kernels", "passes"])
def test_links_give_the_folders_at_the_top_their_names(folder):
    """Type checkers find `graphq.kernels` by a link; archives leave links out, and run without them."""
    if not (ROOT / "graphq" / folder).is_symlink():
        pytest.skip("there are no links in an archive")
    assert os.readlink(ROOT / "graphq" / folder) == f"../{folder}"
    assert f"graphq/{folder} export-ignore" in (ROOT / ".gitattributes").read_text()


def test_every_folder_is_a_package():
    assert {path.parent for path in MODULES.values()} == {p.parent for p in MODULES.values() if p.name == "__init__.py"}


@pytest.mark.parametrize("folder", SOURCE)
def test_private_names_stay_where_they_are(folder):
    wrong = []
    for module, path in MODULES.items():
        if not path.is_relative_to(ROOT / folder):
            continue
        for line, name in imports(ast.parse(path.read_text()), types=True):
            parts = name.split(".")
            private = any(part.startswith("_") and not part.endswith("__") for part in parts[1:])
            stdlib = parts[0] in sys.stdlib_module_names
            if private and not stdlib or name.startswith(INTERNALS):
                wrong.append(f"{module}:{line} {name}")
    assert wrong == []


if __name__ == "__main__":
    print(table())
