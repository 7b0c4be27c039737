"""The README's Python blocks run, in order, and print what the text block after them says."""
import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", README, re.MULTILINE | re.DOTALL)


def normal(text):
    """Without what depends on the machine: ISA level, kernel, threads, blocks and how they run."""
    text = re.sub(r"\d+x\d+_(?=scalar|avx|amx)", "", text)
    text = re.sub(r"scalar|avx512_vnni|avx512|avx_vnni|avx2|amx", "LEVEL", text)
    text = re.sub(r"\d+ (thread|block)s?", r"N \1", text)
    return re.sub(r"serial|parallel", "somehow", text).strip()


def outputs():
    space = {"__name__": "readme"}
    for code, said in BLOCKS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), space)
        yield said, printed.getvalue()


def test_blocks_run_and_print_what_the_readme_says():
    assert len(BLOCKS) >= 4
    for said, printed in outputs():
        assert normal(printed) == normal(said)


def test_commands_name_files_and_extras_that_exist():
    root = Path(__file__).parent.parent
    for path in re.findall(r"(?:examples|benchmarks)/\w+\.py", README):
        assert (root / path).is_file(), path
    extras = (root / "pyproject.toml").read_text(encoding="utf-8")
    for extra in {e for group in re.findall(r'"\.\[([\w,]+)\]"', README) for e in group.split(",")}:
        assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), extra
    assert len(re.findall(r"^<!-- tests -->\n```bash\npython3 -m venv .* && .*pytest\n```$", README, re.MULTILINE)) == 1
