"""Check the links of README.md, and of a wheel's file METADATA.

    python links.py TREE METADATA [URL COMMIT]

Each relative link of TREE/README.md must name a file of the tree. With the public address URL and a COMMIT, each of
these links must be absolute in the metadata, nothing else of the README may change, and the metadata must have the
project's URLs. Without them, the metadata must have the README as it is.
"""
from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from packaging.metadata import Metadata


class Links(HTMLParser):
    """The links of a Markdown text in order, each with its attribute: href, src or srcset."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.feed(MarkdownIt("commonmark").render(text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the links of a tag."""
        self.found += [(name, value) for name, value in attrs if value and name in ("href", "src", "srcset")]


def faults(tree: Path, metadata: Metadata, url: str = "", commit: str = "") -> list[str]:
    """A line for each link of the README that names no file, and for each fault of the metadata."""
    readme, shown = (tree / "README.md").read_text(encoding="utf-8"), metadata.description or ""
    links, root = Links(readme).found, tree.resolve()
    relative = [x for _, x in links if not urlsplit(x).scheme and not x.startswith("#")]
    files = [(root / urlsplit(x).path).resolve() for x in relative]
    found = [f"README.md: the repository has no file {x}" for x, path in zip(relative, files, strict=True)
             if not (path.is_file() and path.is_relative_to(root))]
    folders = {name: f"{url}/{kind}/{commit}/" * bool(url)
               for name, kind in (("href", "blob"), ("src", "raw"), ("srcset", "raw"))}
    wanted = dict.fromkeys(folders[name] * (x in relative) + x for name, x in links)
    there = {x for _, x in Links(shown).found}
    found += [f"metadata: the description has no link {x}" for x in wanted if x not in there]
    plain = shown
    for folder in filter(None, folders.values()):
        plain = plain.replace(folder, "")
    if plain.strip() != readme.strip() or url and shown.count(url) != len(relative):
        found.append("metadata: the description differs from README.md in more than its links")
    if url and url not in (metadata.project_urls or {}).values():
        found.append(f"metadata: no project URL is {url}")
    return found


if __name__ == "__main__":
    lines = faults(Path(sys.argv[1]), Metadata.from_email(Path(sys.argv[2]).read_bytes()), *sys.argv[3:])
    print("\n".join(lines), end="\n" * bool(lines), file=sys.stderr)
    sys.exit(bool(lines))
