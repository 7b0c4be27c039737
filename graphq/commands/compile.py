"""Compile a model and save it as a .graphq file that runs without compilation.

`graphq.load_compiled` and other commands load the file. The model's results are the same on every machine, but its
machine code is not: a machine of another kind compiles the code again when it loads the file, unless the file has a
target that fits.
"""
import argparse
import time
from pathlib import Path

from graphq.base.budget import size_text
from graphq.commands.shared import MODEL, TARGET, Arguments, comma_separated, numbers, option, write
from graphq.compile import compile
from graphq.errors import ParseError

ARGUMENTS: Arguments = (
    *MODEL, option("-o", "--out", type=Path, metavar="FILE.graphq", help="the file to write (default: MODEL.graphq)"),
    option("--targets", metavar="LEVEL,...", type=comma_separated,
           help="compile for all processors with these ISA levels, instead of this machine's processor; or: all"),
    *TARGET)


def run(options: argparse.Namespace) -> None:
    """Compile the model, and write the .graphq file."""
    out = options.out or options.file.with_suffix(".graphq")
    if out.suffix != ".graphq":
        raise ParseError(f"-o takes a name that ends in .graphq: commands recognize a saved model by it; got {out}")
    begin = time.perf_counter()
    model = compile(options.file, isa=options.isa, threads=options.threads, **numbers(options))
    model.save(out, options.targets)
    seconds, nbytes = time.perf_counter() - begin, out.stat().st_size
    write(options, f"{model!r}\n{out}: {size_text(nbytes)}, after {seconds:.2f} s", {
        "file": str(out), "bytes": nbytes, "seconds": seconds, "graph": model.source.name, "isa": model.level.name,
        "threads": model.threads, "inputs": {name: str(type) for name, type in model.inputs.items()},
        "outputs": {name: str(type) for name, type in model.outputs.items()}})
