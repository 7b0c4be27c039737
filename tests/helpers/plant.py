"""Plants bugs one at a time and says which of them the tests of the same room catch.

    python tests/helpers/plant.py --seed 7 --count 60             # drawn from all rooms, in proportion to their lines
    python tests/helpers/plant.py --seed 7 --only graphq/onnx     # from one folder or file
    python tests/helpers/plant.py --patches bugs.txt              # written by hand
    python tests/helpers/plant.py --seed 7 --numbers 3 8          # two of a sample again, such as those that survived

A planted bug is one edit of one source file: a boundary moved, two operands swapped, a guard or a statement dropped,
the other attribute of a pair. It is made in a copy of the tree, never in the working tree, and the copy has a kernel
cache of its own. Tests run until the first that fails: the file that mirrors the source file, then the files of its
room, those first that speak most of what the source file defines. A bug that no test catches is printed as a
difference; whether it changes anything but speed or words is for a reader to judge.

A file of patches holds blocks of the form

    graphq/model/row_wise.py
    <<<<
    the old text, which the file holds once
    ====
    the new text
    >>>>
"""
from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCES = ("graphq", "kernels", "passes")
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And}
PAIRS = ("left right", "first last", "k n", "m n", "begin end", "lo hi", "low high", "start stop", "smallest largest",
         "rows columns", "inputs outputs", "min max", "any all", "minimum maximum", "floor ceil", "before after",
         "scale zero_point", "a b", "height width", "source target", "src dst", "append extend", "zps scales",
         "pads_begin pads_end", "input_type output_type", "operands results", "values names", "keys values")
OTHER = {a: b for pair in PAIRS for a, b in (pair.split(), pair.split()[::-1])}


class Bug(NamedTuple):
    """The file that it is in, what kind it is, and the text of the file with it."""

    path: str
    kind: str
    text: str


class Edit(NamedTuple):
    """What takes the place of a node."""

    kind: str
    node: ast.AST
    text: str


def edits(tree: ast.AST) -> Iterator[Edit]:
    """All bugs of the usual kinds in a file; messages, docstrings and annotations are left alone."""
    if isinstance(tree, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    for name, child in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for node in child if isinstance(child, list) else [child]:
            if isinstance(node, ast.AST):
                yield from edits(node)
                yield from _of(node)


def _of(node: ast.AST) -> Iterator[Edit]:
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in SWAPPED:
            yield Edit("comparison", node, f"({ast.unparse(ast.Compare(left, [SWAPPED[type(op)]()], [right]))})")
        case ast.BinOp(left, op, right):
            if type(op) in SWAPPED:
                yield Edit("arithmetic", node, f"({ast.unparse(ast.BinOp(left, SWAPPED[type(op)](), right))})")
            if isinstance(op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.MatMult):
                yield Edit("operands swapped", node, f"({ast.unparse(ast.BinOp(right, op, left))})")
        case ast.BoolOp(op, values):
            yield Edit("and, or", node, f"({ast.unparse(ast.BoolOp(SWAPPED[type(op)](), values))})")
            for index in range(len(values)):
                rest = values[:index] + values[index + 1:]
                yield Edit("condition dropped", node, f"({ast.unparse(ast.BoolOp(op, rest) if rest[1:] else rest[0])})")
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield Edit("sign or not dropped", node, f"({ast.unparse(operand)})")
        case ast.Constant(bool() as value):
            yield Edit("truth", node, str(not value))
        case ast.Constant(int() as value):
            yield Edit("off by one", node, str(value + 1))
            if value > 0:
                yield Edit("off by one", node, str(value - 1))
        case ast.Constant(float() as value):
            yield Edit("number", node, repr(value * 2 + 1))
        case ast.IfExp(test, body, orelse):
            yield Edit("branches swapped", node, f"({ast.unparse(ast.IfExp(test, orelse, body))})")
            yield Edit("branch always taken", node, f"({ast.unparse(body)})")
        case ast.If(test):
            yield Edit("guard dropped", test, "False")
            yield Edit("guard always taken", test, "True")
        case ast.Name(name) if name in OTHER:
            yield Edit("other of a pair", node, OTHER[name])
        case ast.Attribute(value, name) if name in OTHER:
            yield Edit("other of a pair", node, f"{ast.unparse(value)}.{OTHER[name]}")
        case ast.Call(function, arguments, keywords):
            if len(arguments) > 1 and not any(isinstance(x, ast.Starred) for x in arguments):
                swapped = [arguments[1], arguments[0], *arguments[2:]]
                yield Edit("arguments swapped", node, ast.unparse(ast.Call(function, swapped, keywords)))
            if keywords:
                yield Edit("keyword dropped", node, ast.unparse(ast.Call(function, arguments, keywords[:-1])))
            if isinstance(function, ast.Name) and function.id in ("reversed", "sorted", "abs") and len(arguments) == 1:
                kept = "" if function.id == "abs" else "list"
                yield Edit("call dropped", node, f"{kept}({ast.unparse(arguments[0])})")
        case ast.Tuple([_, _, *_] as elements, ast.Load()) if not any(isinstance(x, ast.Slice) for x in elements):
            yield Edit("last element dropped", node, f"({ast.unparse(ast.Tuple(elements[:-1], ast.Load()))})")
            swapped = ast.Tuple([*elements[1::-1], *elements[2:]], ast.Load())
            yield Edit("elements swapped", node, f"({ast.unparse(swapped)})")
        case ast.Subscript(value, ast.Slice(lower, upper, step)) if lower or upper:
            yield Edit("whole of a slice", node, f"{ast.unparse(value)}[{'' if not step else '::' + ast.unparse(step)}"
                       f"{':' if not step else ''}]")
        case ast.comprehension(_, _, [*_, last]):
            yield Edit("filter dropped", last, "True")
        case ast.AugAssign() | ast.Expr(ast.Call()) | ast.Delete():
            yield Edit("statement dropped", node, "pass")
        case ast.Break():
            yield Edit("break dropped", node, "pass")
        case ast.Continue():
            yield Edit("continue becomes break", node, "break")


def with_edit(source: str, edit: Edit) -> str:
    """The source in which the edit's text stands where its node stood."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    node, code = edit.node, source.encode()
    assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None and node.end_col_offset is not None
    begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    return (code[:begin] + edit.text.encode() + code[end:]).decode()


def room(path: str) -> str:
    """The folder of a file; a file at the top is a room of its own."""
    return path if Path(path).parent.name in ("graphq", "kernels") else str(Path(path).parent)


def draw(seed: int, count: int, only: list[str]) -> list[Bug]:
    """Bugs of a seed: files in proportion to their lines, then kinds alike, then places of the kind."""
    rng = random.Random(seed)
    files = {str(path.relative_to(ROOT)): path.read_text()
             for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))}
    files = {path: text for path, text in files.items() if not only or path.startswith(tuple(only))}
    found: dict[str, Bug] = {}
    for _ in range(50 * count):
        if len(found) == count:
            break
        path, = rng.choices(list(files), [text.count("\n") for text in files.values()])
        kinds: dict[str, list[Edit]] = defaultdict(list)
        for edit in edits(ast.parse(files[path])):
            kinds[edit.kind].append(edit)
        if not kinds:
            continue
        edit = rng.choice(kinds[rng.choice(sorted(kinds))])
        text = with_edit(files[path], edit)
        if ast.dump(ast.parse(text)) != ast.dump(ast.parse(files[path])):
            found.setdefault(text, Bug(path, edit.kind, text))
    return list(found.values())


def written(file: Path) -> list[Bug]:
    """The bugs of a file of patches."""
    blocks = re.findall(r"^(\S+\.py)\n<<<<\n(.*?)\n====\n(.*?)\n?>>>>$", file.read_text(), re.S | re.M)
    bugs = []
    for path, old, new in blocks:
        text = (ROOT / path).read_text()
        if text.count(old) != 1:
            print(f"{path} holds {text.count(old)} times: {old}", file=sys.stderr)
            continue
        bugs.append(Bug(path, "by hand", text.replace(old, new)))
    return bugs


def nearest(path: str, root: Path) -> list[str]:
    """The test files of a source file's room: its mirror, then the room's, those that name most of its names first."""
    inner = Path(*Path(path).parts[1:] if path.startswith("graphq/") else Path(path).parts)
    folder = root / "tests" / inner.parent
    while not folder.is_dir() or not list(folder.glob("test_*.py")):
        folder = folder.parent
    alone = folder == root / "tests"  # a room of one file
    if alone and (folder / f"test_{inner.stem}.py").exists():
        return [f"tests/test_{inner.stem}.py"]
    source = (root / path).read_text()
    names = {inner.stem, *re.findall(r"^(?:def|class) ([A-Za-z]\w+)", source, re.M)}
    registered = " ".join(re.findall(r"@(?:imports|exports)\(([^)]*)\)", source))
    names |= {*re.findall(r"\w+", registered)}

    def order(test: Path) -> tuple[bool, float, str]:
        words = Counter(re.findall(r"\w+", test.read_text()))
        return test.name != f"test_{inner.stem}.py", -sum(words[name] > 0 for name in names), test.name
    files = sorted(folder.glob("test_*.py") if alone else folder.rglob("test_*.py"), key=order)
    return [str(x.relative_to(root)) for x in files[:3 if alone else None]]


def copied(folder: Path) -> Path:
    """A copy of the tree."""
    for name in (*SOURCES, "tests", "benchmarks", "examples", "docs", "spec"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":
            shutil.copy(file, folder)
    return folder


def outcome(bug: Bug, folder: Path, seconds: int, tests: list[str]) -> str:
    """The test that catches a bug, 'survived', or 'out of time'."""
    original = (folder / bug.path).read_text()
    (folder / bug.path).write_text(bug.text)
    environment = os.environ | {
        "PYTHONPATH": str(folder), "GRAPHQ_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_XDIST_WORKER": "planted"}  # conftest.py then keeps the folder of the cache
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "--tb=line",
               *(tests or nearest(bug.path, folder))]

    def limited() -> None:  # seconds of the processor, so that a busy machine changes nothing
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    process = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, preexec_fn=limited, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=20 * seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "out of time"
    finally:
        (folder / bug.path).write_text(original)
    if process.returncode == 0:
        return "survived"
    if "ImportError while loading conftest" in output:
        return "conftest.py, which imports graphq"
    if process.returncode > 2:
        raise SystemExit(f"pytest does not run: {output[-500:]}")
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return "out of time"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)|Fatal Python error: (.*)", output, re.M)
    return "".join(failed[0]) if failed else (output.strip().splitlines() or ["no output"])[-1]


def main() -> None:
    """Plant the bugs that the command line asks for, and print what caught each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--only", nargs="*", default=[], help="folders or files")
    parser.add_argument("--tests", nargs="*", default=[], help="run these in place of the nearest")
    parser.add_argument("--patches", type=Path, help="bugs written by hand")
    parser.add_argument("--numbers", nargs="*", type=int, default=[], help="of the bugs to run, counted from 1")
    parser.add_argument("--seconds", type=int, default=300, help="of the processor, a bug at most")
    parser.add_argument("--list", action="store_true", help="show the bugs and run nothing")
    options = parser.parse_args()
    bugs = written(options.patches) if options.patches else draw(options.seed, options.count, options.only)
    tally: dict[str, Counter] = defaultdict(Counter)
    with tempfile.TemporaryDirectory(prefix="graphq-planted-") as name:
        folder = Path(name) if options.list else copied(Path(name))
        for number, bug in enumerate(bugs, 1):
            if options.numbers and number not in options.numbers:
                continue
            begin = time.perf_counter()
            result = "listed" if options.list else outcome(bug, folder, options.seconds, options.tests)
            kind = result if result in ("survived", "out of time", "listed") else "caught"
            tally[room(bug.path)][kind] += 1
            print(f"{number}. {bug.path} ({bug.kind}): {result}, {time.perf_counter() - begin:.0f} s", flush=True)
            if kind != "caught":
                lines = difflib.unified_diff((ROOT / bug.path).read_text().splitlines(), bug.text.splitlines(),
                                             lineterm="", n=1)
                print("\n".join(f"    {line}" for line in list(lines)[2:]), flush=True)
    for key, counts in sorted(tally.items()):
        print(f"{key}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    total = sum(tally.values(), Counter())
    print(", ".join(f"{count} {kind}" for kind, count in sorted(total.items())), f"of {total.total()}")


if __name__ == "__main__":
    main()
