"""graphq compile, and the commands that take what it writes."""
import json

import numpy as np
import pytest
from dense import dense

import graphq as gq
from graphq.cli import main


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    (folder / "net.txt").write_text(gq.to_text(dense(residual=False)))
    assert main(["compile", str(folder / "net.txt"), "-o", str(folder / "net.graphq"), "--threads=1"]) == 0
    return folder / "net.graphq"


def test_the_file_is_a_saved_model(saved):
    g = dense(residual=False)
    x = np.random.default_rng(0).integers(0, 256, g.inputs[0].shape, dtype=np.uint8)
    model = gq.load_compiled(saved)
    assert np.array_equal(model(x), gq.compile(g)(x)) and model.threads == 1


def test_what_it_says(saved, capsys):
    assert main(["compile", str(saved.with_suffix(".txt")), "--json", "--isa=scalar", "--threads=1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(saved) and found["bytes"] == saved.stat().st_size and found["isa"] == "scalar"
    assert main(["compile", str(saved), "--threads=1"]) == 0
    assert f"\n{saved}: " in capsys.readouterr().out


@pytest.mark.parametrize("command", [
    ["run", "--compare"], ["explain"], ["profile", "--runs=1"], ["bench", "--threads=1", "--seconds=0"], ["show"]])
def test_commands_take_it(saved, capsys, command):
    name, *options = command
    assert main([name, str(saved), *options]) == 0
    assert ("loaded from" in capsys.readouterr().out) == (name == "explain")


def test_reports_take_it(saved, tmp_path):
    assert main(["report", str(saved), "-o", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_other_names_are_refused(saved, capsys):
    assert main(["compile", str(saved), "-o", "net.bin"]) == 2
    assert "-o takes a name that ends in .graphq" in capsys.readouterr().err
