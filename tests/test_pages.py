"""The code blocks of README and docs/ run as they stand, and print what the text block after them says.

All of a page runs in one new process and in one new folder, with links to the checkout's examples and benchmarks
(`helpers/run_page.py`). Output, and what cannot run in a test, is `text`. A comment `<!-- needs: onnx, sklearn -->`
names packages that a page imports beside graphq: without them it is skipped.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_page import BLOCK, blocks

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")))
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}


@pytest.fixture(scope="module")
def server():
    """A process whose forks run pages."""
    with subprocess.Popen([sys.executable, ROOT / "tests" / "helpers" / "run_page.py"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, encoding="utf-8") as process:
        yield process


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(TEXT[page])])
def test_blocks_run_and_print_what_the_page_says(page, server, tmp_path):
    for names in re.findall(r"<!-- needs: (.*?) -->", TEXT[page]):
        for name in names.split(", "):
            pytest.importorskip(name)
    folder, printed = tmp_path / "page", tmp_path / "printed"
    folder.mkdir()
    for name in ("examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    print(json.dumps([str(ROOT / page), str(folder), str(printed)]), file=server.stdin, flush=True)
    assert server.stdout.readline() == "0\n", printed.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_each_block_says_what_it_is(page):
    """A block with another language, or an indented one, would not run, and nobody would notice."""
    fences = re.findall(r"^ *(?:```|~~~|:::)(.*)\n(?:.*\n)*?^ *(?:```|~~~|:::)$", TEXT[page], re.M)
    assert {f for f in fences if not f.startswith("{")} <= {"python", "bash", "text"}
    assert [language for language, _, _ in BLOCK.findall(TEXT[page])] == [f for f in fences if f in ("python", "bash")]


@pytest.mark.parametrize("page", [page for page in PAGES if "```text\n# " in TEXT[page]])
def test_quoted_code_is_that_of_the_file(page):
    """A text block that begins with a file's name in a comment is a part of it."""
    quoted = re.findall(r"^```text\n# ((?:kernels|passes|graphq)/\S+\.py)\n(.*?)^```$", TEXT[page], re.M | re.S)
    assert quoted
    for path, code in quoted:
        assert code in (ROOT / path).read_text(encoding="utf-8"), code


STRANGER = re.compile(r"""pip install\s+(?:(?!in )[^\s`;&|]+ +)*["']?graphq(?![-\w.])|graphq\[[a-z{]""")
"""`graphq` as a package of an index, where it is another project."""


@pytest.mark.parametrize("text", ["pip install graphq", 'pip install -U "graphq[onnx]"', "pip install\n    graphq",
                                  "pip install pillow graphq`", "with `graphq[report]`", "f'graphq[{extra}]'"])
def test_the_stranger_is_seen(text):
    assert STRANGER.search(text) and not STRANGER.search('pip install -e ".[onnx]" in a checkout of graphq')


def test_nobody_is_told_to_install_a_strangers_package():
    """Pages, examples, docstrings and messages install a checkout."""
    folders = (ROOT / name for name in ("docs", "examples", "benchmarks", "graphq", "kernels", "passes"))
    files = [*ROOT.glob("*.md"),
             *(p for folder in folders for p in folder.rglob("*.*")
               if "__pycache__" not in p.parts and p.suffix != ".png")]
    assert len(files) > 300
    assert [p for p in files if STRANGER.search(p.read_text(encoding="utf-8"))] == []


def test_commands_name_files_and_extras_that_exist():
    everything = "".join(TEXT.values())
    for path in re.findall(r"(?:examples|benchmarks|tests|kernels|passes|graphq)/[\w/]+\.pyi?", everything):
        assert (ROOT / path).is_file(), path
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"\.\[([\w,]+)\]', everything)
    for extra in {e for group in named for e in group.split(",")}:
        assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), extra
    for mark, end in (("tests", "pytest"), ("wheel", "digits_int8.py")):
        command = rf"^<!-- {mark} -->\n```bash\npython3 -m venv .* && .*{end}\n```$"
        assert len(re.findall(command, TEXT["README.md"], re.MULTILINE)) == 1
