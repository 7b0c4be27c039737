"""Draw front_page.svg: the model that the first lines of index.md compile, as `model.report` and notebooks draw it.

Run `python docs/front_page.py > docs/front_page.svg` with the extra `report`.
"""
from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from graphq.ir.outline import outline
from graphq.report.page import picture

PAGE = Path(__file__).parent / "index.md"


def draw() -> str:
    """The graph after the passes, with each partition's operations in its box."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    with redirect_stdout(StringIO()):
        exec(code, names)
    return picture(outline(names["model"].graph))


if __name__ == "__main__":
    print(draw())
