"""The site of the documentation: Sphinx reads the Markdown pages of this folder, and docstrings of an installed graphq.

`pip install -e ".[docs]" && python -m sphinx -W docs build/site` makes it.
"""
from __future__ import annotations

import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

import graphq
from graphq.ir.op import walk_ops

project = "graphq"
release = version = graphq.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["site"]
html_theme = "furo"
html_title = f"graphq {release}"
html_copy_source = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

AT_THE_TOP = ("changelog", "code_of_conduct", "contributing", "security")
"""Pages whose text is in a file next to this folder, named in capitals."""

# Docstrings mark code by single backticks, as Markdown does.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"special-members": "__call__"}
autodoc_typehints_format = "short"
add_module_names = False


def operations() -> str:
    """A section for each family of operations, with what their declarations say: signature and docstring."""
    families = defaultdict(list)
    for op in walk_ops():
        if op.name not in vars(graphq.Graph):
            families[op.reference.__module__].append(op.name)
    sections = []
    for module, names in sorted(families.items()):
        title, _, text = str(import_module(module).__doc__).partition("\n")
        entries = "\n".join(f".. automethod:: graphq.Graph.{name}" for name in sorted(names))
        sections.append(f"## {module.rpartition('.')[2]}\n\n{title}{text.rstrip()}\n")
        sections.append(f"```{{eval-rst}}\n{entries}\n```\n")
    return "\n".join(sections)


def notebook(path: Path) -> str:
    """A notebook as Markdown, with the outputs that it has in this environment; `path` is its file."""
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:  # the notebook writes files
        NotebookClient(made, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    blocks = []
    for cell in made.cells:
        blocks.append(f"```python\n{cell.source}\n```" if cell.cell_type == "code" else cell.source)
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            html = data.get("text/html")
            blocks.append(f"```text\n{data['text/plain'].rstrip()}\n```" if html is None
                          else f'```{{raw}} html\n<div class="output">\n{html}\n</div>\n```')
    return "\n\n".join(blocks)


def read_page(app: Sphinx, docname: str, content: list[str]) -> None:
    """Some pages are more than their files: the operations, the tour, and pages of files next to this folder."""
    if docname == "operations":
        content[0] += "\n" + operations()
    elif docname == "tour":
        content[0] = notebook(Path(app.srcdir, "..", "examples", "tour.ipynb"))
    elif docname in AT_THE_TOP:
        text = Path(app.srcdir, "..", f"{docname.upper()}.md").read_text(encoding="utf-8")
        content[0] = re.sub(r"\]\((?!https:|#)([^)#]*)", lambda link: f"]({link_from_docs(link[1])}", text)


def link_from_docs(path: str) -> str:
    """A path as seen from this folder, for links in pages that lie next to it."""
    name = path.lower().removesuffix(".md")
    if name in AT_THE_TOP:
        return f"{name}.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"


def check_external(app: Sphinx, doctree: nodes.document) -> None:
    """Warn of external links that are no addresses. Whether they answer is not asked: builds need no network."""
    for link in doctree.findall(nodes.reference):
        address = link.get("refuri", "")
        if re.match(r"[a-z]+:", address) and not (
                (parts := urlsplit(address)).scheme == "https" and re.fullmatch(r"([\w-]+\.)+[a-z]+", parts.netloc)):
            logging.getLogger(__name__).warning("not a well-formed https address: %s", address, location=link)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the two functions above."""
    app.connect("source-read", read_page)
    app.connect("doctree-read", check_external)
    return {"parallel_read_safe": True}
