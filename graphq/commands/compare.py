"""Compare a quantized model's tensors with the f32 model, and show which layers cost most."""
import argparse
import shlex
import sys
from pathlib import Path

from graphq.commands.quantize import NAMING
from graphq.commands.shared import MODEL, RANGES, Arguments, option, with_ranges
from graphq.model.files import load_graph

ARGUMENTS: Arguments = (
    *MODEL,
    option("against", type=Path, metavar="F32_MODEL", help="the f32 model"),
    option("--data", required=True, metavar="DATA",
           help="inputs for both models: a folder of .npz or .npy files, such a file, or a function that gives dicts "
                "of arrays: FILE.py:NAME or module:NAME"),
    option("--no-rank", action="store_true", help="do not measure what each layer costs at the outputs"),
    RANGES)


def run(options: argparse.Namespace) -> None:
    """Compare, and print the tensors that cost most."""
    from graphq.quantization.compare import compare
    from graphq.quantization.data import load_data
    from graphq.quantization.tuned import TARGET

    if not options.no_rank and sys.stderr.isatty():
        print("measuring the cost of each layer takes some runs per layer; --no-rank leaves it out", file=sys.stderr)
    left, right = with_ranges(options), load_graph(options.against)
    found = compare(left, right, load_data(options.data, right), rank=not options.no_rank)
    print(found.json() if options.json else found)
    if found.loss > TARGET and found.better and not options.json:
        chosen = (f"{NAMING[part]}={name}" for part, names in found.advised.items() for name in names)
        print(shlex.join(["graphq", "quantize", str(options.against), "--data", options.data, "--out",
                          str(options.file.with_stem(f"{options.file.stem}_better")), *chosen]))
