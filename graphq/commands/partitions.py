"""Print the partitions that oneDNN Graph would make of a graph, one per line.

With --json, the output is a list. For each partition it has the id, the anchor (the main operation), whether the
partition is supported, the operations with their ids, and the names of inputs and outputs.
"""
import argparse

from graphq.commands.shared import MODEL, RANGES, Arguments, with_ranges, write

ARGUMENTS: Arguments = (*MODEL, RANGES)


def run(options: argparse.Namespace) -> None:
    """Print the partitions of the graph, one per line."""
    from graphq.onednn.partitions import partitions

    found = partitions(with_ranges(options))
    write(options, "\n".join(map(str, found)), [
        {"id": p.id, "anchor": p.anchor, "supported": p.supported,
         "operations": [{"id": i, "name": n.op.name} for i, n in zip(p.op_ids, p.ops, strict=True)],
         "inputs": [v.graph.label(v) for v in p.inputs], "outputs": [v.graph.label(v) for v in p.outputs]}
        for p in found])
