"""`graphq report`: where the page goes, and what is printed."""
import json

import pytest

from graphq.cli import main

pytest.importorskip("pygraphviz")
TEXT = "graph(x: f32[2,3]) {\n %0 = relu(x)\n %1 = cum_sum(%0, axis=0)\n return %1 as y\n}"


def test_the_page_lies_beside_the_model_or_where_it_is_asked_for(tmp_path, capsys):
    (tmp_path / "net.txt").write_text(TEXT)
    assert main(["report", str(tmp_path / "net.txt")]) == 0
    page = tmp_path / "net.html"
    assert capsys.readouterr().out == f"{page}: {page.stat().st_size} bytes\n"
    other = tmp_path / "other.html"
    assert main(["report", str(tmp_path / "net.txt"), "--out", str(other), "--profile", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(other), "bytes": other.stat().st_size}
    assert ">Timeline<" in other.read_text() and ">Timeline<" not in page.read_text()
