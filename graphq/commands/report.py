"""Write an HTML page that shows a model before and after the passes: partitions, reasons, kernels, times, memory."""
import argparse
from pathlib import Path

from graphq.commands.arrays import INPUTS, input_arrays
from graphq.commands.shared import MODEL, TARGET, Arguments, compiled, option, write
from graphq.model.files import load_graph

ARGUMENTS: Arguments = (
    *MODEL, option("-o", "--out", type=Path, metavar="PAGE.html", help="the file to write (default: MODEL.html)"),
    option("--profile", action="store_true", help="run the model, and show times and the timeline"), *INPUTS, *TARGET)


def run(options: argparse.Namespace) -> None:
    """Compile the model, profile it with --profile, and write the page."""
    graph = load_graph(options.file)
    out = options.out or options.file.with_suffix(".html")
    model = compiled(graph, options)
    arrays = [input_arrays(graph, options)] if options.profile else []
    model.report(out, *arrays, title=options.file.name)
    nbytes = out.stat().st_size
    write(options, f"{out}: {nbytes} bytes", {"page": str(out), "bytes": nbytes})
