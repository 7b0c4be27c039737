"""The pages that reports write, parsed."""
import base64
import hashlib
import json
from html.parser import HTMLParser


class Page(HTMLParser):
    """The elements of a page by their tags, with attributes and direct text."""

    def __init__(self, path):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.data = json.loads(next(text[0] for tag, a, text in self.elements if a.get("id") == "data"))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), [""]))
        self._open.append(self.elements[-1])

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self._open:
            self._open[-1][2][0] += data

    def of(self, tag):
        return [(a, text[0]) for t, a, text in self.elements if t == tag]

    def boxes(self, view):
        """The ids of the boxes of the view of that name, with their classes."""
        names = [text for a, text in self.of("button") if "data-view" in a]
        first = [k for k, (tag, a, _) in enumerate(self.elements) if tag == "section"] + [len(self.elements)]
        at = names.index(view)
        found = self.elements[first[at]:first[at + 1]]
        return {a["data-n"]: a["class"].split()[1:] for tag, a, _ in found
                if tag in ("g", "div") and "data-n" in a and "title" not in a["class"]}

    def check_self_contained(self):
        """No element loads anything, and the policy forbids it; the one script is the one whose hash the policy has."""
        (script,) = (text for a, text in self.of("script") if a.get("type") != "application/json")
        policy = next(a["content"] for a, _ in self.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
        assert policy.startswith("default-src 'none';")
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
        assert not [a for _, a, _ in self.elements if {"src", "href", "onclick", "onload", "onerror"} & set(a)]
        assert not {t for t, _, _ in self.elements} & {"link", "img", "iframe", "object", "embed", "base", "form"}
