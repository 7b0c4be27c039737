"""Show the cache of kernels and models (`info`), empty it (`clear`), or ship its kernels (`export`, `import`).

`export FILE` writes the kernels in the cache to FILE. `import FILE` adds them to this machine's cache, so that models
with these kernels need no compiler. Both machines must have the same kind of processor, and the same versions of
graphq, Numba, llvmlite and Python.
"""
import argparse
from pathlib import Path
from typing import Any

from graphq.commands.shared import JSON, Arguments, option, write
from graphq.errors import GraphError, GraphqError, ParseError
from graphq.ir.names import counted
from graphq.kernels.jit import cache, cpu
from graphq.model import saved_file

ARGUMENTS: Arguments = (
    option("action", choices=["info", "clear", "export", "import"]),
    option("file", nargs="?", type=Path, metavar="FILE", help="the file with kernels, to write or to read"),
    JSON)


def run(options: argparse.Namespace) -> None:
    """Print the contents of the cache, or change them and print the change."""
    action, file = options.action, options.file
    if (file is None) == (action in ("export", "import")):
        raise ParseError(f"cache {action} {'needs a FILE' if file is None else f'takes no FILE, got {file}'}")
    if action in ("export", "import"):
        names, done = export_kernels(file) if action == "export" else import_kernels(file), f"{action}ed"
        write(options, f"{counted(len(names), 'kernel module')} {done}", {"file": str(file), done: len(names)})
    elif action == "clear":
        removed = cache.clear()
        write(options, f"{counted(removed.modules, 'kernel module')} and {counted(removed.models, 'model')} removed",
              {"removed": removed.modules, "models": removed.models})
    else:
        info = cache.info()
        write(options, f"folder:  {info.path}\nmodules: {info.modules}\nmodels:  {info.models}\nbytes:   {info.bytes}",
              {"folder": str(info.path), "modules": info.modules, "models": info.models, "bytes": info.bytes})


def export_kernels(path: Path) -> list[str]:
    """Write the kernels to a file, and return their names.

    Raises GraphError if the cache has none for this processor and these versions, or if the file cannot be written;
    OSError from the cache.
    """
    found = cache.usable_modules()
    if not found:
        raise GraphError(f"no kernels to export: {cache.folder(writing=False)} has none for this processor and these "
                         f"versions; run your models first")
    index = {"kernels": list(found), "versions": cache.versions(), "cpu": cpu.describe()}
    saved_file.write(path, index, [memoryview(x) for x in found.values()])
    return list(found)


def import_kernels(path: Path) -> list[str]:
    """Check all kernels of the file, add them to the cache, and return their names.

    Raises ParseError if `export` did not write the file, if it is damaged, if its kernels do not fit this processor or
    these versions, or if other users can write to it; GraphError if the cache is a temporary folder; OSError if it
    cannot be written.
    """
    file = saved_file.File(path)
    if not file.private:
        file.fail("others than this user can write to it, so its code is not used")
    file.check()
    if "cpu" not in file.index:
        file.fail("it has no kernels alone: `graphq cache import` reads what `graphq cache export` wrote")
    for what, own in ("versions", cache.versions()), ("cpu", cpu.describe()):
        if (theirs := file.index.get(what)) != own:
            file.fail(f"its kernels are for other machines: {what} {theirs!r:.2000}, but here {own!r}")
    names: Any = file.index.get("kernels")
    try:
        for k, name in enumerate(names):
            cache.checked(name, bytes(file.section(k)))
    except (GraphqError, TypeError, ValueError) as e:
        file.fail(f"its kernels are not as `graphq cache export` writes them: {e!s:.200}")
    folder = cache.folder()
    if cache.lasting() is None:
        raise GraphError("the kernels would be lost: the cache is a temporary folder, for a reason in the log")
    for k, name in enumerate(names):
        cache.put(folder, name, bytes(file.section(k)))
    return list(names)
