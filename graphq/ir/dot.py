"""Graphs as text for drawing tools: Graphviz's dot language, and Mermaid's flowcharts, which Markdown pages show."""
from __future__ import annotations

import re
from collections.abc import Iterator

from graphq.ir.graph import Graph
from graphq.ir.outline import Box, outline

_DOT = {"input": "shape=box, style=rounded", "output": "shape=box, style=rounded", "operation": "shape=box",
        "partition": 'style=filled, color="#5b8bd0", fillcolor="#e8f0fb"', "group": "style=dashed"}
_MERMAID = {"input": ("([", "])"), "output": ("([", "])"), "operation": ("[", "]"), "partition": ("[[", "]]"),
            "group": ("[", "]")}
_UNSAFE = re.compile(r"[^\w .,:()\[\]%+-]", re.ASCII)


def to_dot(graph: Graph) -> str:
    """The graph in Graphviz's language; partitions, and bodies of loops and branches, are clusters."""
    made = outline(graph)
    lines = [f"digraph {_quoted(graph.name)} {{",
             "  graph [fontname=monospace, fontsize=10]", "  node [fontname=monospace, fontsize=10]"]
    for box in made.boxes:
        lines += _dot(box, "  ")
    lines += [f"  {source} -> {target}" for source, target in made.edges]
    return "\n".join([*lines, "}", ""])


def _dot(box: Box, indent: str) -> Iterator[str]:
    label = _quoted("\n".join(box.lines))
    if not box.inside:
        yield f"{indent}{box.id} [{_DOT[box.kind]}, label={label}]"
        return
    yield f"{indent}subgraph cluster_{box.id} {{"
    yield f"{indent}  graph [{_DOT[box.kind]}, label={label}]"
    for inner in box.inside:
        yield from _dot(inner, indent + "  ")
    yield indent + "}"


def _quoted(text: str) -> str:
    """A quoted string of the dot language; control characters other than newlines become `?`."""
    shown = "".join(c if c.isprintable() else "\n" if c == "\n" else "?" for c in text)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def to_mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart (see `Graph.to_mermaid`); partitions and bodies are subgraphs."""
    made = outline(graph)
    lines = ["flowchart TD"]
    for box in made.boxes:
        lines += _mermaid(box, "  ")
    lines += [f"  {source} --> {target}" for source, target in made.edges]
    return "\n".join([*lines, ""])


def _mermaid(box: Box, indent: str) -> Iterator[str]:
    label = '"' + "<br/>".join(_UNSAFE.sub(lambda c: f"#{ord(c[0])};", line) for line in box.lines) + '"'
    if not box.inside:
        begin, end = _MERMAID[box.kind]
        yield f"{indent}{box.id}{begin}{label}{end}"
        return
    yield f"{indent}subgraph {box.id}[{label}]"
    for inner in box.inside:
        yield from _mermaid(inner, indent + "  ")
    yield f"{indent}end"
