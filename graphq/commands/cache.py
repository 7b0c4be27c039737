"""Show the cache of kernels and models (`info`), empty it (`clear`), or ship its kernels (`export`, `import`).

`export FILE` writes all kernels in the cache to FILE. `export FILE MODEL...` compiles the models and writes only their
kernels. `import FILE` adds the kernels to this machine's cache: then these models need no compiler here. Both machines
must have the same kind of processor, and the same versions of graphq, Numba, llvmlite and Python.
"""
import argparse
from pathlib import Path
from typing import Any

from graphq.commands.shared import JSON, TARGET, Arguments, numbers, option, write
from graphq.compile import compile
from graphq.errors import ParseError
from graphq.ir.names import counted
from graphq.kernels.jit import cache, cpu, modules
from graphq.kernels.threads.team import modules_of_team
from graphq.model import saved_file

ARGUMENTS: Arguments = (
    option("action", choices=["info", "clear", "export", "import"]),
    option("file", nargs="?", type=Path, metavar="FILE", help="the file with kernels, to write or to read"),
    option("models", nargs="*", type=Path, metavar="MODEL", help="export only the kernels of these models"),
    JSON, *TARGET)


def run(options: argparse.Namespace) -> None:
    """Print the contents of the cache, or change them and print the change."""
    action, file = options.action, options.file
    if (file is None) == (action in ("export", "import")):
        raise ParseError(f"cache {action} {'needs a FILE' if file is None else f'takes no FILE, got {file}'}")
    if action in ("export", "import"):
        names, done = export_kernels(options) if action == "export" else import_kernels(file), f"{action}ed"
        write(options, f"{counted(len(names), 'kernel module')} {done}", {"file": str(file), done: len(names)})
    elif action == "clear":
        removed = cache.clear()
        write(options, f"{counted(removed.modules, 'kernel module')} and {counted(removed.models, 'model')} removed",
              {"removed": removed.modules, "models": removed.models})
    else:
        info = cache.info()
        write(options, f"folder:  {info.path}\nmodules: {info.modules}\nmodels:  {info.models}\nbytes:   {info.bytes}",
              {"folder": str(info.path), "modules": info.modules, "models": info.models, "bytes": info.bytes})


def export_kernels(options: argparse.Namespace) -> list[str]:
    """Write the kernels to the file, and return their names. Raises GraphqError, or OSError from the cache."""
    models = [compile(x, isa=options.isa, threads=options.threads, cache="kernels", **numbers(options))
              for x in options.models]
    if models:
        modules_of_team()
        found = dict(x.file for x in list(modules.modules_by_key.values()))
    else:
        found = cache.usable_modules()
    index = {"kernels": list(found), "versions": cache.versions(), "cpu": cpu.describe()}
    saved_file.write(options.file, index, [memoryview(x) for x in found.values()])
    return list(found)


def import_kernels(path: Path) -> list[str]:
    """Check all kernels of the file, add them to the cache, and return their names.

    Raises ParseError if `export` did not write the file, if it is damaged, if its kernels do not fit this processor or
    these versions, or if other users can write to it; OSError if the cache cannot be written.
    """
    file = saved_file.File(path)
    if not file.private:
        file.fail("others than this user can write to it, so its code is not used")
    file.check()
    for what, own in ("versions", cache.versions()), ("cpu", cpu.describe()):
        if (theirs := file.index.get(what)) != own:
            file.fail(f"its kernels are for other machines: {what} {theirs!r:.2000}, but here {own!r}")
    names: Any = file.index.get("kernels")
    try:
        for k, name in enumerate(names):
            cache.checked(name, bytes(file.section(k)))
    except Exception as e:
        file.fail(f"its kernels are not as `graphq cache export` writes them: {e!s:.200}")
    folder = cache.folder()
    for k, name in enumerate(names):
        cache.put(folder, name, bytes(file.section(k)))
    return list(names)
