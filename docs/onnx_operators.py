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

from graphq.onnx.importers import by_reference
from graphq.onnx.importers.importer import IMPORTERS, MICROSOFT, RANDOM, importer_of

import_module("graphq.onnx.loading")  # fills IMPORTERS

HEAD = """# ONNX operators

`python docs/onnx_operators.py` writes this page from graphq's table of importers and onnx {version} (operator set
{opset}). Every version of an operator since operator set 7 is covered. Some forms of an operator (an input known only
at run time, a dtype) run by ONNX's reference; `model.explain()` gives the reason.
"""

SECTIONS = {
    "native": "Operations of graphq. They have kernels or NumPy references; `explain()` names the latter.",
    "function": "ONNX defines these as functions of simpler operators; graphq uses the functions.",
    "reference": "ONNX's reference evaluator runs these (slow; `explain()` says so). If all operands are constants,\n"
                 "the node is folded.",
    "random": "Refused: ONNX does not define random numbers. Pass them as an input.",
    "types": "Refused: these work on sequences, optionals, maps or strings. graphq has tensors of numbers.",
    "missing": "Refused at run time: onnx has no reference implementation.",
}


TITLES = {"native": "Native", "function": "By ONNX's function", "reference": "By ONNX's reference",
          "random": "Random numbers", "types": "Sequences, optionals, maps, strings", "missing": "Without a reference"}


def listed(names: list[str]) -> str:
    """Return the names as lines of text."""
    return textwrap.fill(", ".join(names) + ".", 118) + "\n"


def numbers(parameters: Iterable[onnx.defs.OpSchema.FormalParameter]) -> bool:
    """Return whether each parameter may be a tensor of numbers."""
    return all(any(t.startswith("tensor(") and t not in ("tensor(string)", "tensor(complex64)", "tensor(complex128)")
                   for t in p.types) for p in parameters)


def section(schema: onnx.defs.OpSchema) -> str:
    """Return the section of an operator."""
    key = schema.domain, schema.name
    importer = importer_of(*key)
    if importer is not None and importer.__module__ != by_reference.__name__:
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
