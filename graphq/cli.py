"""The command line: look at the kernel cache, and at graphs in text form.

    graphq cache info | clear
    graphq show FILE.txt        parse a graph's text form and print it, checked and in normal form
    graphq passes FILE.txt      print the graph after the passes, and the near misses of their rewrites

A wrong graph or file gives one line on stderr and exit code 2.
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from graphq.errors import GraphqError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0, or 2 after one line about a wrong argument, file or graph."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    except (GraphqError, UnicodeDecodeError) as error:
        return _fail(str(error))
    return 0


def _fail(message: str) -> int:
    print("graphq:", " ".join(message.split()), file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="graphq", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"graphq {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    cache = commands.add_parser("cache", help="where the kernel cache is and what it holds; empty it")
    cache.add_argument("action", choices=["info", "clear"])
    cache.set_defaults(run=_cache)
    for name, run, text in (("show", _show, "print a graph"), ("passes", _passes, "print a graph after the passes")):
        command = commands.add_parser(name, help=text)
        command.add_argument("file", type=Path, help="a graph's text form")
        command.add_argument("--elide", type=int, metavar="N", help="cut lists and arrays after N elements")
        command.set_defaults(run=run)
    return parser


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("graphq")
    except PackageNotFoundError:
        return "from a source tree"


def _cache(options: argparse.Namespace) -> None:
    from graphq.kernels import cache

    if options.action == "clear":
        print(f"{cache.clear()} kernel modules removed")
        return
    info = cache.info()
    print(f"folder:  {info.path}\nmodules: {info.modules}\nbytes:   {info.bytes}")


def _show(options: argparse.Namespace) -> None:
    from graphq.text import parse, to_text
    from graphq.verify import verify

    graph = parse(options.file.read_text(encoding="utf-8"))
    verify(graph)
    print(to_text(graph, elide=options.elide))


def _passes(options: argparse.Namespace) -> None:
    from graphq.passes import run_passes
    from graphq.text import parse, to_text

    graph = parse(options.file.read_text(encoding="utf-8"))
    refusals = run_passes(graph)
    print(to_text(graph, elide=options.elide))
    for refusal in refusals:
        print(f"# {refusal.rewrite}: {refusal.node}: {refusal.reason}")


if __name__ == "__main__":
    sys.exit(main())
