"""Check that a model's results have the bits that a file of digests states; without the file, write it."""
import argparse
from pathlib import Path

from graphq.commands.arrays import INPUTS, input_arrays
from graphq.commands.shared import MODEL, TARGET, Arguments, compiled, option, write
from graphq.ir.names import counted
from graphq.model.digests import read_digests, verify
from graphq.model.files import load_graph

ARGUMENTS: Arguments = (
    *MODEL,
    option("--digests", required=True, type=Path, metavar="FILE.json", help="the file to write, or to compare with"),
    option("--values", action="store_true", help="also compare the inner values that the model stores"),
    option("--seed", type=int, metavar="N", help="the seed of random inputs (default 0)"), *INPUTS, *TARGET)


def run(options: argparse.Namespace) -> int:
    """Write or check the file; returns 1 if results differ."""
    graph, path = load_graph(options.file), options.digests
    known = read_digests(path) if path.exists() else {}
    sizes = {name: text.partition("[")[2].partition("]")[0] for name, text in known.get("inputs", {}).items()}
    options.shape = [*(f"{v.name}={sizes[v.name].replace(',', 'x')}" for v in graph.inputs if sizes.get(v.name)),
                     *options.shape]
    seed = known.get("seed") or 0 if options.seed is None else options.seed
    arrays = input_arrays(graph, options, seed)
    found = verify(compiled(graph, options), arrays, path, values=options.values, seed=seed)
    text = f"{path}: {counted(found['outputs'], 'output')}, {counted(found['values'], 'inner value')}: "
    wrong = found["differing"]
    text += "written" if found["written"] else "equal" if not wrong else (
        f"{len(wrong)} differ, first '{wrong[0]}', which is made by {found['node'] or 'no node'}")
    if found["missing"]:
        text += f"; not compared, because the model does not name them: {', '.join(found['missing'])}"
    write(options, text, found)
    return int(bool(wrong))
