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
    assert "<title>net.txt</title>" in page.read_text() and "the timeline shows one run, of" in other.read_text()


def test_causes_come_with_their_edit_alike_ones_together_and_with_their_time(tmp_path):
    products = "".join(f" %y{k} = matmul(%y{k - 1}, w)\n" for k in range(1, 5))
    (tmp_path / "net.txt").write_text(f"graph(x: f32[8,8], w: f32[8,8]) {{\n %y0 = relu(x)\n{products} return %y4\n}}")
    assert main(["report", str(tmp_path / "net.txt"), "--profile"]) == 0
    text = (tmp_path / "net.html").read_text().split("<aside>")[1]
    assert "Outside of integer partitions: 1 cause<" in text and "and 3 more like it, " in text
    assert "% of the time</dt>" in text and '<p class="edit">quantize and dequantize %y0' in text
