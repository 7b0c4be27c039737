"""What several commands share: the arguments of compile, saved models, files by their suffix, JSON."""
import argparse
import json
import math

import numpy as np
import pytest

import graphq as gq
from graphq.cli import main
from graphq.commands.shared import numbers, plain, save_graph
from graphq.passes import RangesByRow, leave_ties

TEXT = "graph net(x: f32[2,3]) {\n  %0 = relu(x) : f32[2,3]\n  return %0 as y\n}"


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("ties", ["settled", "formula"])
@pytest.mark.parametrize("ranges", ["tensor", "rows"])
def test_options_that_change_numbers_reach_compile(precision, ties, ranges):
    options = argparse.Namespace(precision=precision, ties=ties, ranges=ranges)
    assert numbers(options) == {"precision": precision, "ties": ties, "ranges": ranges}
    first, *_, last = gq.compile(gq.parse(TEXT), **numbers(options)).options.pipeline
    assert (first is RangesByRow) == (ranges == "rows") and (last is leave_ties) == (ties == "formula")


@pytest.mark.parametrize("given, said", [
    (["--ranges", "rows"], "--ranges rows"), (["--ties", "formula"], "--ties formula"),
    (["--precision", "bf16"], "--precision bf16")])
def test_a_saved_model_keeps_its_numbers(given, said, tmp_path, capsys):
    path = tmp_path / "net.graphq"
    gq.compile(gq.parse(TEXT), isa="scalar", threads=1).save(path)
    assert main(["explain", str(path), *given]) == 2
    assert f"{said}: {path} is already compiled; give the option to `graphq compile`" in capsys.readouterr().err
    assert main(["explain", str(path), "--ties=settled", "--precision=f32"]) == 0


@pytest.mark.parametrize("name", ["g.onnx", "g.json", "g.txt"])
def test_the_format_is_that_of_the_suffix(name, tmp_path):
    pytest.importorskip("onnx")
    save_graph(gq.parse(TEXT), tmp_path / name, opset=18)
    if name == "g.onnx":
        import onnx

        assert onnx.load(tmp_path / name).opset_import[0].version == 18
    elif name == "g.json":
        assert "graph" in json.loads((tmp_path / name).read_text())
    else:
        assert (tmp_path / name).read_text() == TEXT + "\n"


def test_numbers_of_json():
    data = {1: (np.float32(0.5), math.nan, -math.inf), "n": [np.int64(3), True, None, {"x": np.bool_(False)}]}
    assert json.loads(json.dumps(plain(data))) == {"1": [0.5, None, None], "n": [3, True, None, {"x": False}]}
