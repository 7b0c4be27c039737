"""Write onnx_operators.md: which ONNX operators graphq has operations for, from its code and the installed onnx.

Run `python docs/onnx_operators.py > docs/onnx_operators.md`.
"""
from __future__ import annotations

import textwrap
from importlib import import_module

import onnx
import onnx.defs

from graphq.onnx.importers import by_reference
from graphq.onnx.importers.importer import BY_REFERENCE, IMPORTERS, MICROSOFT, REFUSED, importer_of
from graphq.onnx.protos.fallback import title

import_module("graphq.onnx.loading")  # fills IMPORTERS

HEAD = """# ONNX operators

`python docs/onnx_operators.py` writes this page from graphq's table of importers and onnx {version} (operator set
{opset}). Every version of an operator since operator set 7 is covered. Some forms of an operator (an input known only
at run time, a dtype) run by ONNX's reference; `model.explain()` gives the reason.
"""

SECTIONS = {
    "Native": "Operations of graphq. They have kernels or NumPy references; `explain()` names the latter.",
    "By ONNX's function": "ONNX defines these as functions of simpler operators; graphq uses the functions.",
    "By ONNX's reference": "ONNX's reference evaluator runs these (slow; `explain()` says so). If all operands are\n"
                           "constants, the node is folded.",
    "Refused": "These are refused when a model is loaded.",
}


def listed(names: list[str]) -> str:
    """Return the names as lines of text."""
    return textwrap.fill(", ".join(names) + ".", 118) + "\n"


def section(schema: onnx.defs.OpSchema) -> str | None:
    """Return the section of an operator, or None if graphq has neither an operation nor a reason."""
    importer, name = importer_of(schema.domain, schema.name), title(schema.domain, schema.name)
    if importer is not None and importer.__module__ != by_reference.__name__:
        return "Native"
    if name in REFUSED:
        return "Refused"
    if schema.has_function or schema.has_context_dependent_function:
        return "By ONNX's function"
    return "By ONNX's reference" if name in BY_REFERENCE else None


def reasons(names: list[str]) -> str:
    """Return the names as lines of text, by the reason that graphq has no operation for them."""
    why = {name: {**REFUSED, **BY_REFERENCE}.get(name, "") for name in names}
    return "\n".join(textwrap.fill(f"- {reason}: {', '.join(n for n in names if why[n] == reason)}.", 118,
                                   subsequent_indent="  ") for reason in dict.fromkeys(why.values())) + "\n"


def lines() -> list[str]:
    """The document."""
    found: dict[str, list[str]] = {name: [] for name in SECTIONS}
    for schema in sorted(onnx.defs.get_all_schemas(), key=lambda s: (s.domain, s.name)):
        if not schema.deprecated and not schema.domain.startswith("ai.onnx.preview"):
            found[section(schema) or "Refused"].append(title(schema.domain, schema.name))
    out = [HEAD.format(version=onnx.__version__, opset=onnx.defs.onnx_opset_version())]
    for name, text in SECTIONS.items():
        list_ = listed if set(found[name]).isdisjoint({*REFUSED, *BY_REFERENCE}) else reasons
        out += [f"## {name} ({len(found[name])})\n", f"{text}\n", list_(found[name])]
    own = sorted(name for domain, name in IMPORTERS if domain == MICROSOFT)
    return [*out, f"## Of com.microsoft ({len(own)})\n",
            "As ONNX Runtime's documentation has them; any other one is refused. In files,\n"
            "SimplifiedLayerNormalization, and LayerNormalization before operator set 17, have ONNX's own domain.\n",
            listed(own)]


if __name__ == "__main__":
    print("\n".join(lines()), end="")
