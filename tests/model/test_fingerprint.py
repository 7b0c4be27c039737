"""Fingerprints of models: equal if the outputs are equal for all inputs, whatever the machine, level and threads."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from dense import dense

import graphq as gq
from graphq.cli import main
from graphq.errors import GraphError
from graphq.model import fingerprint, saved_models
from graphq.passes import PIPELINE, RangesByRow

TEXT = """graph net(x: f32[2,3]) {
  %0 = clamp(x, min=-1.0, max=2.0)
  %1 = constant(value=f32[3]{1.0, 2.0, 3.0})
  %2 = multiply(%0, %1)
  return %2 as y
}"""


def of(text=TEXT, **options):
    return gq.compile(gq.parse(text), isa="scalar", threads=1, **options).fingerprint


def test_what_does_not_change_outputs_does_not_count(tmp_path):
    model = gq.compile(dense(5), threads=1)
    assert len(model.fingerprint) == 32
    assert gq.compile(dense(5), isa="scalar", threads=2).fingerprint == model.fingerprint
    assert gq.compile(gq.parse(gq.to_text(dense(5))), passes=PIPELINE).fingerprint == model.fingerprint
    model.save(tmp_path / "net.graphq")
    assert gq.load_compiled(tmp_path / "net.graphq").fingerprint == model.fingerprint
    assert of(TEXT.replace("%0", "%inner")) == of()


@pytest.mark.parametrize(("old", "new"), [
    ("max=2.0", "max=3.0"), ("min=-1.0", "min=-0.0"), ("2.0, 3.0}", "2.0, 4.0}"), ("2.0, 3.0}", "-0.0, 3.0}"),
    ("(x", "(in"), ("as y", "as z"), ("multiply(%0, %1)", "multiply(%1, %0)"), ("multiply", "add"),
    ("f32[2,3]", "f32[?,3]"), ("f32[2,3]", "f32[4,3]")])
def test_what_changes_outputs_counts(old, new):
    assert of(TEXT.replace(old, new)) != of()


def test_bodies_count():
    """A constant of a loop's body, and of a partition that the user states."""
    text = gq.to_text(gq.compile(dense(5), threads=1).graph)
    assert "scales=[0.11]" in text
    other = text.replace("scales=[0.11]", "scales=[0.12]")
    assert len({gq.compile(gq.parse(x)).fingerprint for x in (text, other)}) == 2


def test_options_that_change_numbers_count():
    found = {of(), of(precision="bf16"), of(ties="formula"), of(ranges="rows"), of(passes=PIPELINE[1:]),
             of(passes=(*PIPELINE, RangesByRow))}
    assert len(found) == 6 and of(passes=(RangesByRow, *PIPELINE)) == of(ranges="rows")


def test_the_version_of_the_numbers_counts(monkeypatch):
    before = of()
    monkeypatch.setattr(fingerprint, "NUMBERS", fingerprint.NUMBERS + 1)
    assert of() != before


def test_passes_of_the_user_have_no_known_effect():
    with pytest.raises(GraphError, match="not doubled"):
        assert of(passes=(doubled, *PIPELINE))


def doubled(graph):
    return 0


def test_operations_of_the_user_have_no_known_effect(monkeypatch):
    model = gq.compile(gq.parse(TEXT), threads=1)
    monkeypatch.setattr(model.source.nodes[0].op.reference, "__module__", "mine")
    with pytest.raises(GraphError, match=r"clamp\(.*not an operation of graphq"):
        assert model.fingerprint


def test_the_command(tmp_path, capsys):
    path, saved = tmp_path / "net.txt", tmp_path / "net.graphq"
    path.write_text(TEXT)
    gq.compile(path, ties="formula", threads=1).save(saved)
    for arguments in [path], [path, "--ties=formula"], [saved], [path, "--json"]:
        assert main(["fingerprint", *map(str, arguments)]) == 0
    plain, formula, of_saved, *rest = capsys.readouterr().out.split("\n")
    assert plain == of() != formula == of_saved == of(ties="formula")
    assert json.loads("".join(rest)) == {"fingerprint": plain, "numbers": fingerprint.NUMBERS, "not_covered": []}
    assert main(["fingerprint", str(saved), "--ranges=rows"]) == 2
    assert "--ranges rows: " in capsys.readouterr().err


def test_what_it_does_not_cover_is_named(tmp_path, capsys):
    """Operations of NumPy's own, also in bodies; the sine is graphq's own."""
    body = "graph b(i: f32[2,3]) { %0 = lrn(i, size=3) return %0 }"
    path = tmp_path / "net.txt"
    path.write_text(f"graph net(c: boolean[], x: f32[2,3]) {{ %p = pow(x, beta=0.3) %s = sin(%p) "
                    f"%y = if_else(c, %s, then_body={body}, else_body={body}) return %y }}")
    assert main(["fingerprint", str(path)]) == 0
    out, err = capsys.readouterr()
    assert len(out.split()) == 1 and [line.split(": ")[1][:10] for line in err.splitlines()] == [
        "%p = pow(x", "%0 = lrn(i", "%0 = lrn(i"]
    explained = gq.compile(path, isa="scalar", threads=1).explain()
    assert explained.count("its bits may differ between machines") >= 1


def test_it_covers_nodes_that_become_operations(tmp_path, capsys):
    """A Reshape that waits for its sizes does; a matmul of f64 runs in NumPy."""
    onnx = pytest.importorskip("onnx")
    onnx.save(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,M] x, double[N,3] z) => (float[K,1,1] y, double[N,N] p) {
            shape = Constant<value_ints = [0, 1, -1]>() y = Reshape(x, shape)
            turned = Transpose<perm = [1, 0]>(z) p = MatMul(z, turned) }"""), tmp_path / "net.onnx")
    assert main(["fingerprint", str(tmp_path / "net.onnx"), "--json"]) == 0
    (named,) = json.loads(capsys.readouterr().out)["not_covered"]
    assert named.startswith("%p = onnx_node MatMul(")
    model = gq.compile(tmp_path / "net.onnx", isa="scalar", threads=1)
    assert "may differ" not in model.explain("y")
    model(np.ones((2, 3), np.float32), np.ones((2, 3)))
    assert model.explain().count("its bits may differ between machines") == 1


def test_it_is_the_same_on_every_machine():
    """If it changes without need, users take equal outputs for different ones."""
    assert of() == "9052aa5b57a0f4eb4cb177e7922cc3c0"


def test_it_names_products_of_f64_that_sizes_decide(tmp_path, capsys):
    """A call computes them when it knows the length, and then they are a constant."""
    onnx = pytest.importorskip("onnx")
    onnx.save(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[1,L,2] x) => (float[1,L,2] y) <double[1,2] w = {0.1, 0.3}> {
            shape = Shape<start = 1, end = 2>(x) zero = Constant<value_int = 0>() one = Constant<value_int = 1>()
            none = Constant<value_ints = [0]>() last = Constant<value_ints = [-1]>()
            length = Squeeze(shape, none) places = Range(zero, length, one)
            real = Cast<to = 11>(places) column = Unsqueeze(real, last)
            table = MatMul(column, w) narrow = Cast<to = 1>(table) y = Add(x, narrow) }"""), tmp_path / "net.onnx")
    assert main(["fingerprint", str(tmp_path / "net.onnx"), "--json"]) == 0
    assert any("onnx_node MatMul(" in x for x in json.loads(capsys.readouterr().out)["not_covered"])


def test_a_file_of_other_numbers_is_compiled_anew(tmp_path, monkeypatch):
    """The plans in it may give other bits than the fingerprint, computed by this version, promises."""
    folder = Path(saved_models.__file__).parents[1]
    for name in ("base", "ops", "plan"):
        shutil.copytree(folder / name, tmp_path / name)
    assert saved_models.sources() == saved_models.sources.__wrapped__()
    monkeypatch.setattr(saved_models, "__file__", str(tmp_path / "model" / "saved_models.py"))
    assert saved_models.sources.__wrapped__() == saved_models.sources()
    init = tmp_path / "ops" / "__init__.py"
    changed = init.read_text().replace(f"NUMBERS = {fingerprint.NUMBERS}\n", f"NUMBERS = {fingerprint.NUMBERS + 1}\n")
    assert changed != init.read_text()
    init.write_text(changed)
    assert saved_models.sources.__wrapped__() != saved_models.sources()
