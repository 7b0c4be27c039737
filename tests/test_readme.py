"""Python blocks of the README and of the pages in PAGES run, and print what the text block after them says."""
import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/graphs.md", "docs/explain.md")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def normal(text):
    """Without what depends on the machine: ISA level, kernel, threads, blocks and how they run."""
    text = re.sub(r"\d+x\d+_(?=scalar|avx|amx)", "", text)
    text = re.sub(r"scalar|avx512_vnni|avx512|avx_vnni|avx2|amx", "LEVEL", text)
    text = re.sub(r"\d+ (thread|block)s?", r"N \1", text)
    return re.sub(r"serial|parallel", "somehow", text).strip()


def outputs(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    space = {"__name__": "readme"}
    for code, said in re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.M | re.S):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), space)
        yield said, printed.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_and_print_what_the_page_says(page):
    ran = list(outputs(page))
    assert len(ran) >= 4
    for said, printed in ran:
        assert normal(printed) == normal(said)


def test_commands_name_files_and_extras_that_exist():
    for path in re.findall(r"(?:examples|benchmarks)/\w+\.py", README):
        assert (ROOT / path).is_file(), path
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in {e for group in re.findall(r'"\.\[([\w,]+)\]"', README) for e in group.split(",")}:
        assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), extra
    assert len(re.findall(r"^<!-- tests -->\n```bash\npython3 -m venv .* && .*pytest\n```$", README, re.MULTILINE)) == 1
