"""Write onnx_operators.md: which ONNX operators graphq has operations for, from its code and the installed onnx.

Run `python docs/onnx_operators.py > docs/onnx_operators.md`.
"""
from __future__ import annotations

import textwrap
from collections.abc import Iterable
from importlib import import_module

import onnx
import onnx.defs
from onnx.reference.ops import aionnxml, load_op

from graphq.onnx.importers.importer import IMPORTERS, MICROSOFT, RANDOM, importer_of

import_module("graphq.onnx.loading")  # fills IMPORTERS

HEAD = """# ONNX operators

From graphq's table of importers and onnx {version} (operator set {opset}), written by `python docs/onnx_operators.py`.
Every version of an operator since operator set 7 is meant, unless a reason stands beside it in `model.explain()`: some
forms of an operator (an input that is known only when it runs, a dtype) go to ONNX's reference.
"""

SECTIONS = {
    "native": "Operations of graphq: with kernels, or as NumPy references, which `explain()` names.",
    "function": "Functions of simpler operators, as ONNX gives them; the node becomes those.",
    "reference": "Run by ONNX's own reference evaluator, node by node (slow; `explain()` says so); folded where all\n"
                 "operands are constants.",
    "random": "Refused: random numbers are not defined by ONNX; give them as an input.",
    "types": "Refused: they work on sequences, optionals, maps or strings; graphq has tensors of numbers.",
    "missing": "Refused when they run: onnx has no reference implementation of them.",
}


TITLES = {"native": "Native", "function": "By ONNX's function", "reference": "By ONNX's reference",
          "random": "Random numbers", "types": "Sequences, optionals, maps, strings", "missing": "Without a reference"}


def listed(names: list[str]) -> str:
    """The names as lines of text."""
    return textwrap.fill(", ".join(names) + ".", 118) + "\n"


def numbers(parameters: Iterable[onnx.defs.OpSchema.FormalParameter]) -> bool:
    """Whether each of them may be a tensor of numbers."""
    return all(any(t.startswith("tensor(") and t not in ("tensor(string)", "tensor(complex64)", "tensor(complex128)")
                   for t in p.types) for p in parameters)


def section(schema: onnx.defs.OpSchema) -> str:
    """Where an operator belongs."""
    key = schema.domain, schema.name
    if importer_of(*key) is not None:
        return "native"
    if schema.domain == "" and schema.name in RANDOM:
        return "random"
    if not (numbers(schema.inputs) and numbers(schema.outputs)):
        return "types"
    if schema.has_function or schema.has_context_dependent_function:
        return "function"
    load = aionnxml.load_op if schema.domain == "ai.onnx.ml" else load_op
    try:
        load(schema.domain, schema.name, schema.since_version)
    except Exception:  # of several kinds
        return "missing"
    return "reference"


def lines() -> list[str]:
    """The document."""
    found: dict[str, list[str]] = {name: [] for name in SECTIONS}
    for schema in sorted(onnx.defs.get_all_schemas(), key=lambda s: (s.domain, s.name)):
        if schema.deprecated or schema.domain.startswith("ai.onnx.preview"):
            continue
        where = section(schema)
        name = schema.name if not schema.domain else f"{schema.domain}.{schema.name}"
        found[where].append(name)
    out = [HEAD.format(version=onnx.__version__, opset=onnx.defs.onnx_opset_version())]
    for name, text in SECTIONS.items():
        out += [f"## {TITLES[name]} ({len(found[name])})\n", f"{text}\n", listed(found[name])]
    own = sorted(name for domain, name in IMPORTERS if domain == MICROSOFT)
    return [*out, f"## Of com.microsoft ({len(own)})\n",
            "As ONNX Runtime's documentation has them; any other one is refused. In files,\n"
            "SimplifiedLayerNormalization, and LayerNormalization before operator set 17, have ONNX's own domain.\n",
            listed(own)]


if __name__ == "__main__":
    print("\n".join(lines()), end="")
