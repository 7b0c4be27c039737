"""The command line: look at the kernel cache, and at graphs in text form.

    graphq cache info | clear
    graphq show FILE.txt        parse a graph's text form and print it, checked and in normal form
    graphq passes FILE          print the graph after the passes, and the near misses of their rewrites;
                                --passes A,B, --print-after all, --verify numeric
    graphq reduce FILE --check COMMAND    shrink a graph while the command exits with 0
    graphq explain FILE         what fused in a graph (text form, oneDNN's .json, .onnx) and what runs it;
                                --kernels: how fast
    graphq partitions FILE.json print the partitions of a oneDNN Graph file
    graphq run MODEL.onnx       run a model (or a text form) on random or given inputs, say how fast and what came out
    graphq run FILE.json [KNOB ...]           compile a oneDNN Graph file and compare it with the reference
    graphq run --batch=CASES.txt [--root=DIR] the same for each line of a file of knobs and --case=FILE.json

    graphq quantize MODEL.onnx --data DATA --out Q.onnx    quantize an f32 model by the best automatic setting
    graphq compare Q.onnx MODEL.onnx --data DATA           how far its tensors are from f32, and what costs most

DATA is a folder of .npz or .npy files, an .npz file, or module:function that gives dicts of arrays.
KNOBs are benchdnn's: --in-shapes= --op-attrs= --op-kind= --dt= --mb= --tensor-property= --expected-n-partitions=.
`run` exits with 1 when a case failed or was refused. A wrong graph or file gives one line on stderr and exit code 2.
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from graphq.errors import GraphqError, ParseError

if TYPE_CHECKING:
    from graphq.ir import Graph


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0, 1 when `run` found a difference, or 2 after one line about what is wrong."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    options.knobs = rest
    if options.knobs and options.run is not _run:
        parser.error(f"unrecognized arguments: {' '.join(options.knobs)}")
    code = 0
    try:
        code = options.run(options) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    except (GraphqError, UnicodeDecodeError) as error:
        return _fail(str(error))
    return code


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
    command = commands.add_parser("show", help="print a graph")
    command.add_argument("file", type=Path, help="a graph's text form")
    command.add_argument("--elide", type=int, metavar="N", help="cut lists and arrays after N elements")
    command.set_defaults(run=_show)
    for name, text in (("passes", "print a graph after passes, and check them"), ("reduce", "shrink a failing graph")):
        module = import_module(f"graphq.commands.{name}")
        command = commands.add_parser(name, help=text, description=module.__doc__, allow_abbrev=False,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    command = commands.add_parser("explain", help="say what fused, what did not and why, and which kernels run it")
    command.add_argument("file", type=Path, help="a graph's text form, a oneDNN Graph file (.json) or a model (.onnx)")
    command.add_argument("--kernels", action="store_true", help="also their instructions and speed on this machine")
    command.add_argument("--isa", metavar="LEVEL", help="the highest ISA level to use")
    command.add_argument("--threads", type=int, metavar="N", help="at most N threads")
    command.set_defaults(run=_explain)
    command = commands.add_parser("partitions", help="print the partitions of a oneDNN Graph file")
    command.add_argument("file", type=Path)
    command.set_defaults(run=_partitions)
    command = commands.add_parser("run", help="run a model; run oneDNN Graph files and compare with the reference",
                                  allow_abbrev=False)
    command.add_argument("file", type=Path, nargs="?", help="a model (.onnx), a text form, a oneDNN Graph file (.json)")
    command.set_defaults(run=_run)
    models = command.add_argument_group("models")
    for option, metavar, text in (("--input", "NAME=FILE.npy", "an input's array (others are random)"),
                                  ("--shape", "NAME=1x3x224x224", "a random input's shape (open dimensions are 1)"),
                                  ("--output", "NAME=FILE.npy", "write an output's array")):
        models.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    models.add_argument("--compare", action="store_true", help="also run the reference, and say how far it is away")
    models.add_argument("--isa", metavar="LEVEL", help="the highest ISA level to use")
    models.add_argument("--threads", type=int, metavar="N", help="at most N threads")
    cases = command.add_argument_group("oneDNN Graph files")
    cases.add_argument("--batch", type=Path, help="a file of such runs, a line each")
    cases.add_argument("--root", type=Path, help="where the batch's files are (default: beside it)")
    cases.add_argument("--failures", action="store_true", help="print the runs that did not pass, and the counts")
    command = commands.add_parser("quantize", help="quantize an f32 ONNX model to int8")
    command.add_argument("file", type=Path, metavar="MODEL.onnx")
    command.add_argument("--data", metavar="DATA", help="what to calibrate with")
    command.add_argument("--out", type=Path, required=True, metavar="Q.onnx", help="the file to write")
    command.add_argument("--method", choices=["min_max", "moving_average", "percentile", "entropy", "mse"],
                         help="how ranges are chosen (default: the best automatic setting)")
    command.add_argument("--activations", choices=["u8", "s8", "u16", "s16"], help="integers of activations")
    command.add_argument("--symmetric", action="store_true", help="zero points in the middle")
    command.add_argument("--mode", choices=["static", "dynamic", "weight_only"], help="static by default")
    command.add_argument("--weight-bits", type=int, choices=[4, 8], help="bits of weight-only weights")
    command.add_argument("--exclude", action="append", default=[], metavar="NAME", help="a product that stays in f32")
    command.set_defaults(run=_quantize)
    command = commands.add_parser("compare", help="how far a quantized model's tensors are from f32, and what costs")
    command.add_argument("file", type=Path, metavar="Q.onnx")
    command.add_argument("against", type=Path, metavar="MODEL.onnx", help="the f32 model")
    command.add_argument("--data", required=True, metavar="DATA", help="what to run both on")
    command.add_argument("--no-rank", action="store_true", help="leave out what each product costs at the outputs")
    command.add_argument("--json", action="store_true", help="print JSON, not a table")
    command.set_defaults(run=_compare)
    return parser


def _quantize(options: argparse.Namespace) -> None:
    from graphq.quantization.command import run_quantize

    run_quantize(options)


def _compare(options: argparse.Namespace) -> None:
    from graphq.quantization.command import run_compare

    run_compare(options)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("graphq")
    except PackageNotFoundError:
        return "from a source tree"


def _cache(options: argparse.Namespace) -> None:
    from graphq.kernels.jit import cache

    if options.action == "clear":
        print(f"{cache.clear()} kernel modules removed")
        return
    info = cache.info()
    print(f"folder:  {info.path}\nmodules: {info.modules}\nbytes:   {info.bytes}")


def _show(options: argparse.Namespace) -> None:
    from graphq.ir.text import parse, to_text
    from graphq.ir.verify import verify

    graph = parse(options.file.read_text(encoding="utf-8"))
    verify(graph)
    print(to_text(graph, elide=options.elide))


def _explain(options: argparse.Namespace) -> None:
    from graphq.compile import compile

    graph = _loaded(options.file)
    print(compile(graph, isa=options.isa, threads=options.threads).explain(kernels=options.kernels))


def _loaded(path: Path) -> Graph:
    """The graph of a file, of the kind that its name says."""
    from graphq.ir.text import parse
    from graphq.onednn.files import load_onednn_json
    from graphq.onnx import load_onnx

    if path.suffix == ".json":
        return load_onednn_json(path)
    return load_onnx(path) if path.suffix == ".onnx" else parse(path.read_text(encoding="utf-8"))


def _partitions(options: argparse.Namespace) -> None:
    from graphq.onednn.files import load_onednn_json

    for part in load_onednn_json(options.file).partitions():
        print(part)


def _run(options: argparse.Namespace) -> int:
    if options.file is not None and options.file.suffix != ".json":
        return _run_model(options)
    given = [k for k in ("input", "shape", "output", "compare", "isa", "threads") if getattr(options, k)]
    if given:
        raise ParseError(f"--{given[0]} is for models (.onnx, text), not for oneDNN Graph files")
    return _run_cases(options)


def _run_model(options: argparse.Namespace) -> int:
    from graphq.run_model import run_model

    if options.knobs or options.batch:
        raise ParseError(f"{' '.join(options.knobs) or '--batch'} is for oneDNN Graph files (.json)")
    shapes = {name: _shape(name, text) for name, text in _pairs("--shape", options.shape).items()}
    for line in run_model(_loaded(options.file), inputs=_pairs("--input", options.input), shapes=shapes,
                          outputs=_pairs("--output", options.output), isa=options.isa, threads=options.threads,
                          compare=options.compare):
        print(line, flush=True)
    return 0


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """NAME=TEXT by name; a name may have `=` in it, a text not."""
    pairs = [x.rpartition("=") for x in given]
    for name, _, text in pairs:
        if not name or not text:
            raise ParseError(f"{option} takes NAME=..., got {name or text}")
    return {name: text for name, _, text in pairs}


def _shape(name: str, text: str) -> tuple[int, ...]:
    dims = text.split("x")
    if not all(d.isascii() and d.isdecimal() and len(d) < 16 for d in dims):
        raise ParseError(f"--shape {name}: must be dimensions as 1x3x224x224, got {text}")
    return tuple(map(int, dims))


def _run_cases(options: argparse.Namespace) -> int:
    from graphq.onednn.benchdnn import run_batch, run_file
    from graphq.onednn.knob_text import parse_knobs

    if (options.file is None) == (options.batch is None) or options.batch and options.knobs:
        raise ParseError("run takes a file with knobs, or --batch=FILE without")
    if options.batch:
        runs = run_batch(options.batch, options.root or options.batch.parent)
    else:
        runs = (run_file(options.file, knobs) for knobs in parse_knobs(options.knobs))
    counts = dict.fromkeys(("passed", "failed", "refused"), 0)
    for outcome in runs:
        counts[outcome.status] += 1
        if outcome.status != "passed" or not options.failures:
            print(outcome, flush=True)
    print(", ".join(f"{n} {status}" for status, n in counts.items()))
    return 0 if counts["passed"] == sum(counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
