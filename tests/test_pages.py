"""The code blocks of README and docs/ run as they stand, and print what the text block after them says.

The `python` blocks of a page run one after another in one namespace; the `bash` blocks between them see the files that they
wrote, as all of a page runs in one new folder, with links to the checkout's examples and benchmarks. `...` in a text block
stands for anything. Output, and what cannot run in a test, is `text`. A comment `<!-- needs: onnx, sklearn -->` names the
packages that a page imports beside graphq: without them it is skipped.
"""
import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))
LANGUAGES = {"python", "bash", "text"}
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
SET_UP = "python3 -m venv"
"""How a block begins that makes an environment and runs these tests: `.ci/run` runs it."""


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page):
    """Language, code and the output that the page shows, or "", of each block that runs."""
    return [block for block in BLOCK.findall(text_of(page)) if not block[1].startswith(SET_UP)]


def normal(text):
    """Without what depends on the machine: ISA level, kernel, threads, blocks and how they run."""
    text = re.sub(r"\d+x\d+_(?=scalar|avx|amx)", "", text)
    text = re.sub(r"scalar|avx512_vnni|avx512|avx_vnni|avx2|amx", "LEVEL", text)
    text = re.sub(r"\d+ (thread|block)s?", r"N \1", text)
    return re.sub(r"serial|parallel", "somehow", text).strip() + "\n"


def run_python(code, page, space):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec"), space)
    return printed.getvalue()


def run_shell(code):
    """What a block prints, with the commands of this environment in front of others."""
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, encoding="utf-8",
                          env={**os.environ, "PATH": path, "PYTHONIOENCODING": "utf-8"}, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_blocks_run_and_print_what_the_page_says(page, tmp_path, monkeypatch):
    for names in re.findall(r"<!-- needs: (.*?) -->", text_of(page)):
        for name in names.split(", "):
            pytest.importorskip(name)
    for folder in ("examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    space = {"__name__": Path(page).stem}
    for language, code, said in blocks(page):
        printed = run_python(code, page, space) if language == "python" else run_shell(code)
        same = doctest.OutputChecker().check_output(normal(said), normal(printed), doctest.ELLIPSIS)
        assert same, f"after\n{code}\nthe page says\n{said}\nand the code prints\n{printed}"


@pytest.mark.parametrize("page", PAGES)
def test_each_block_says_what_it_is(page):
    """A block with another language would not run, and nobody would notice."""
    fences = re.findall(r"^ *(?:```|~~~|:::)(.*)\n(?:.*\n)*?^ *(?:```|~~~|:::)$", text_of(page), re.M)
    assert {f for f in fences if not f.startswith("{")} <= LANGUAGES
    running = [block[0] for block in BLOCK.findall(text_of(page))]
    assert running == [f for f in fences if f in ("python", "bash")]  # indented ones would be passed over


def test_commands_name_files_and_extras_that_exist():
    for path in re.findall(r"(?:examples|benchmarks)/\w+\.py", "".join(map(text_of, PAGES))):
        assert (ROOT / path).is_file(), path
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'(?:"\.|graphq)\[([\w,]+)\]', "".join(map(text_of, PAGES)))
    for extra in {e for group in named for e in group.split(",")}:
        assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), extra
    assert len(re.findall(r"^<!-- tests -->\n```bash\npython3 -m venv .* && .*pytest\n```$", README, re.MULTILINE)) == 1
