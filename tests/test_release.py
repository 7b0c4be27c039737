"""The metadata of a release with a public address: absolute links for the README's relative ones, and project URLs."""
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
URL, COMMIT = "https://example.org/owner/graphq", "0123abc"


@pytest.fixture(scope="module")
def links():
    """The module `.ci/links.py`."""
    pytest.importorskip("markdown_it")
    pytest.importorskip("packaging.metadata")
    spec = importlib.util.spec_from_file_location("links", ROOT / ".ci" / "links.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(readme: str) -> str:
    """The README as the hook in `.ci/published.toml` changes it."""
    text = (ROOT / ".ci" / "published.toml").read_text(encoding="utf-8")
    for name, value in (("FILES", f"{URL}/blob/{COMMIT}"), ("RAW", f"{URL}/raw/{COMMIT}"), ("URL", URL)):
        text = text.replace(f"@{name}@", value)
    for rule in tomllib.loads(text)["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        readme = re.sub(rule["pattern"], rule["replacement"], readme)
    return readme


def metadata(links, description: str, *urls: str):
    head = ["Metadata-Version: 2.4", "Name: graphq-compiler", "Version: 1", "Description-Content-Type: text/markdown",
            *(f"Project-URL: Source, {url}" for url in urls)]
    return links.Metadata.from_email("\n".join([*head, "", description]).encode())


README = """
![badge](docs/badge.svg) [![b](docs/badge.svg)](docs/a.md) [guide](docs/a.md#one) [here](#below) [out](https://a.b/c)
<img src="docs/badge.svg" srcset="docs/badge.svg">
"""


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("docs/badge.svg", "docs/a.md"):
        (tmp_path / name).write_text("")
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def test_relative_links_become_absolute(links, tree):
    raw, files = f"{URL}/raw/{COMMIT}/docs/badge.svg", f"{URL}/blob/{COMMIT}/docs/a.md"
    assert described(README) == f"""
![badge]({raw}) [![b]({raw})]({files}) [guide]({files}#one) [here](#below) [out](https://a.b/c)
<img src="{raw}" srcset="{raw}">
"""
    assert links.faults(tree, metadata(links, described(README), URL), URL, COMMIT) == []
    assert links.faults(tree, metadata(links, README)) == []


def test_the_readme_of_the_project(links):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert links.faults(ROOT, metadata(links, described(readme), URL), URL, COMMIT) == []


@pytest.mark.parametrize("description, urls, fault", [
    (README, [URL], f"metadata: the description has no link {URL}/blob/{COMMIT}/docs/a.md#one"),
    (described(README), [], f"metadata: no project URL is {URL}"),
    (described(README) + "more", [URL], "metadata: the description differs from README.md in more than its links"),
    (described(README).replace("/raw/", "/blob/"), [URL],
     f"metadata: the description has no link {URL}/raw/{COMMIT}/docs/badge.svg")])
def test_faults_of_metadata(links, tree, description, urls, fault):
    assert fault in links.faults(tree, metadata(links, description, *urls), URL, COMMIT)


@pytest.mark.parametrize("target", ["docs/none.md", "docs", "../secret.md"])
def test_a_link_must_name_a_file_of_the_tree(links, tree, target):
    (tree.parent / "secret.md").write_text("")
    (tree / "README.md").write_text(readme := f"[a]({target})")
    assert links.faults(tree, metadata(links, readme)) == [f"README.md: the repository has no file {target}"]


def test_a_call_in_code_is_not_taken_for_a_link(links, tree):
    """The hook changes texts that only look like links; then the description differs from the README."""
    (tree / "README.md").write_text(readme := "```python\nkernels[0](x)\n```")
    assert links.faults(tree, metadata(links, described(readme), URL), URL, COMMIT) == [
        "metadata: the description differs from README.md in more than its links"]
