"""The command line: `graphq COMMAND ...`; each command has a file in `graphq.commands`."""
import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from graphq import __version__
from graphq.base.progress import bars
from graphq.errors import GraphqError
from graphq.ir import suggestion

COMMANDS = {
    "compile": ("compile a model, and save it: a file that runs without compilation", "model.onnx -o model.graphq"),
    "run": ("run a model on random or given inputs: speed, outputs, distance from the reference",
            "model.onnx --shape x=1x3x224x224 --threads 2"),
    "bench": ("time a model at several thread counts and ISA levels and in other engines, in turns",
              "model.onnx --threads 1,2 --peer ort,openvino"),
    "explain": ("explain what fused, what did not and why, and which kernels run",
                "model.onnx --profile --shape x=1x3x224x224"),
    "report": ("write an HTML page: the graph before and after the passes, reasons, times, memory",
               "model.onnx -o model.html --profile"),
    "profile": ("time each step of a run, and show which thread ran which piece",
                "model.onnx --peaks --trace run.json"),
    "show": ("print a graph in text form, checked", "model.onnx --elide 8"),
    "passes": ("run passes, print the graph, and check that the passes are right",
               "model.onnx --print-after changed --verify numeric"),
    "reduce": ("shrink a failing graph", "model.onnx --pass FuseMatmulBias --out least.txt"),
    "partitions": ("print the partitions that oneDNN Graph would make", "model.json --json"),
    "quantize": ("quantize an f32 model to int8", "model.onnx --data calibration/ --out int8.onnx"),
    "compare": ("compare a quantized model's tensors with f32, and show which layers cost most",
                "int8.onnx model.onnx --data calibration/"),
    "fingerprint": ("print a digest of all that decides a model's outputs, equal on every machine",
                    "model.onnx --ranges rows"),
    "diff": ("show how two models differ: nodes, attributes, weights", "model.onnx other.onnx --json"),
    "verify": ("write digests of a model's results, or compare them with another machine's",
               "model.onnx --digests digests.json --values"),
    "cache": ("show the cache of kernels and models, empty it, or ship its kernels", "export kernels.graphq"),
}
"""The commands, each a module of `graphq.commands`: a short description, and an example of its arguments."""

DESCRIPTION = "An operator graph compiler for int8 inference: run models, time them, see what fused and why."
EPILOG = """A MODEL is an ONNX file (.onnx), a oneDNN Graph file (.json), a model that `graphq compile` saved
(.graphq), or a graph's text form (any other name).
Exit codes: 0 success; 1 results differ, or a case failed; 2 wrong option, file or graph (one line on stderr says why).
`graphq COMMAND --help` lists a command's options; docs/command_line.md has examples and the fields of --json."""


class CommandParser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    options: Sequence[str] = ()
    """The command's options. For an unknown option, the error message suggests similar ones."""

    def error(self, message: str) -> NoReturn:
        """Print the message and a hint, and exit with code 2."""
        _, unknown, rest = message.partition("unrecognized arguments: --")
        if unknown:
            message += suggestion("--" + re.split("[= ]", rest)[0], self.options)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 after an error. An error is one line on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser_of(given[0] if given else None).parse_args(given)
    code = 0
    try:
        with bars(sys.stderr.isatty(), given[0]):
            code = options.run(options) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("graphq: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (GraphqError, UnicodeDecodeError) as error:
        return _fail(str(error))
    return code


def _fail(message: str) -> int:
    print("graphq:", " ".join(message.split()), file=sys.stderr)
    return 2


def parser_of(named: str | None) -> argparse.ArgumentParser:
    """A parser that knows all commands, but only the arguments of the command `named`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = CommandParser(prog="graphq", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
                           formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"graphq {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (text, example) in COMMANDS.items():
        command = commands.add_parser(name, help=text, allow_abbrev=False, formatter_class=raw)
        if name == named:
            module = import_module(f"graphq.commands.{name}")
            command.description, command.epilog = module.__doc__, f"example:\n  graphq {name} {example}"
            for add in module.ARGUMENTS:
                add(command)
            command.set_defaults(run=module.run)
            parser.options = re.findall(r"--[a-z][\w-]*", command.format_help())
    return parser
