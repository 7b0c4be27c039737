"""Run one file in the real oneDNN library; benchmarks/onednn_oracle.py starts this script in the oracle's environment.

    python onednn_oracle_child.py ORACLE.py GRAPH.json FOLDER fusion|debug [INPUTS.npz]

The script writes inputs.npz and POLICY.npz (the outputs) into FOLDER, by tensor id. Arrays are saved as unsigned
integers of the same width, because NumPy's files lack bf16 and similar types. "debug" asks oneDNN for one partition per
operation.
"""
import importlib
import json
import os
import sys
from typing import Any

import numpy as np

sys.path.insert(0, os.path.dirname(sys.argv[1]))
oracle = importlib.import_module(os.path.basename(sys.argv[1]).removesuffix(".py"))
folder, policy = sys.argv[3:5]
with open(sys.argv[2], encoding="utf-8") as file:
    graph = json.load(file)
tensors = {t["id"]: t for o in graph["graph"] for t in o["inputs"]}


class ByPolicy:
    """The library with the requested partitioning policy."""

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def dnnl_graph_graph_filter(self, graph, fusion):
        """Partition the graph; 2 is dnnl_graph_partition_policy_debug."""
        return self.real.dnnl_graph_graph_filter(graph, 2 if policy == "debug" else fusion)


def save(name, arrays):
    """Write arrays by tensor id."""
    plain: dict[str, Any] = {str(k): np.asarray(v).view(f"u{v.dtype.itemsize}") for k, v in arrays.items()}
    np.savez(f"{folder}/{name}.npz", **plain)


if sys.argv[5:]:
    inputs = {int(k): v.view(oracle.NP[tensors[int(k)]["dtype"]]) for k, v in np.load(sys.argv[5]).items()}
else:
    inputs = oracle.random_inputs(graph)
save("inputs", inputs)
for k, v in inputs.items():  # the oracle ignores strides when it packs 4-bit numbers
    if tensors[k]["dtype"] in ("s4", "u4") and v.ndim:
        order = np.argsort([-s for s in tensors[k]["stride"]], kind="stable")
        inputs[k] = np.ascontiguousarray(v.transpose(order)).reshape(v.shape)
library = oracle.OneDNN()
library.l = ByPolicy(library.l)
try:
    save(policy, library.run(graph, inputs)[0])
except RuntimeError as error:
    sys.exit(f"refused: {error}")
