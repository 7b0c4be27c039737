"""What a compiled graph tells and writes: explanations in both formats, pages, profiles, formulas, options."""
import gc
import pickle
import re
import weakref

import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError, InputError
from graphq.report.profile import Profile, StepTime

TEXT = """graph net(x: u8[4,6], r: f32[4,3]) {
  %w = constant(value=s8[6,3]{1, -2, 3, 4, 5, -6, 7, 8, 9, 1, -2, 3, 4, 5, -6, 7, 8, 9})
  %dx = dequantize(x, scales=[0.1])
  %dw = dequantize(%w, scales=[0.1])
  %y = matmul(%dx, %dw)
  %z = add(%y, r)
  %q = quantize(%z, dtype=u8, scales=[0.2])
  return %q, %z as sums
}"""
X = np.random.default_rng(0).integers(0, 256, (4, 6)).astype(np.uint8)
R = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    return gq.compile(gq.parse(TEXT), threads=1)


def test_explanations(model):
    text, data = model.explain(), model.explain(format="json")
    assert text.startswith("graph net: ") and data["graph"] == "net"
    assert len(data["steps"]) == len(model.explanation().steps)
    assert model.explain("q").startswith("%q = quantize(%z)") and model.explain("q", format="json")["value"] == "%q"
    assert len(model.explain(full=True)) > len(text)
    for arguments, message in (({"format": "html"}, "format must be 'text' or 'json', got 'html'"),
                               ({"name": 3}, "explain takes the name of a value, got 3"),
                               ({"name": "v"}, "no value 'v'")):
        with pytest.raises(GraphError, match=message):
            model.explain(**arguments)
    steps = len(model.explanation().steps)
    profile = Profile(tuple(StepTime(k, "k", 0.5, 0) for k in range(steps)))
    assert "% of the time: " in model.explain(profile=profile) and "% of the time: " not in text
    with pytest.raises(InputError, match="it is not of this model"):
        model.explain(profile=Profile(profile.steps[1:]))


def test_pages(model, tmp_path):
    model.report(tmp_path / "page.html")
    model.report(tmp_path / "timed.html", X, R, title="<My> net")
    plain, timed = ((tmp_path / name).read_text("utf-8") for name in ("page.html", "timed.html"))
    assert re.search(r"<title>[^<]*net", plain) and "&lt;My&gt; net" in timed
    assert "median ms" in timed and "median ms" not in plain
    given = model.profile(X, R, runs=2)
    model.report(tmp_path / "given.html", profile=given)
    assert f"{1e3 * given.seconds:.4g} ms in " in (tmp_path / "given.html").read_text("utf-8")
    with pytest.raises(InputError, match="x"):
        model.report(tmp_path / "bad.html", X[:2], R)
    with pytest.raises(OSError):
        model.report(tmp_path / "none" / "page.html")
    assert not (tmp_path / "bad.html").exists()


def test_profiles(model):
    profile = model.profile(X, R, runs=3)
    assert [s.number for s in profile.steps] == list(range(len(model.explanation().steps))) and profile.seconds > 0
    assert all(s.peak is None for s in profile.steps) and profile.steps[0].pieces


def test_formulas_and_options(model):
    out, formula = model(X, R), model.formula(X, R)
    assert list(out) == list(formula) == ["q", "sums"]
    assert all(np.array_equal(out[name], formula[name]) for name in out)
    assert model.level is model.options.level and model.threads == 1 and 0 < model.coverage().share <= 1
    assert {n: str(t) for n, t in model.inputs.items()} == {"x": "u8[4,6]", "r": "f32[4,3]"}
    assert {n: str(t) for n, t in model.outputs.items()} == {"q": "u8[4,3]", "sums": "f32[4,3]"}
    assert repr(model) == f"<compiled graph net: x: u8[4,6], r: f32[4,3] -> q: u8[4,3], sums: f32[4,3]; ISA level " \
        f"{model.level.name}, 1 thread>"
    again = pickle.loads(pickle.dumps(model))
    assert again.options == model.options and all(np.array_equal(again(X, R)[n], out[n]) for n in out)
    assert model.rows_mix is None and "compiled graph net" in model._repr_html_()


def test_rows_that_mix():
    assert gq.compile(gq.parse("graph(x: f32[4,6]) {\n %0 = softmax(x, axis=0)\n return %0\n}"), threads=1).rows_mix


def test_constants_are_pickled_out_of_band(model):
    buffers = []
    data = pickle.dumps(model, protocol=5, buffer_callback=buffers.append)
    constants = [n.attrs["value"] for n in model.source.nodes_of(["constant"])]
    assert sum(b.raw().nbytes for b in buffers) == sum(x.nbytes for x in constants)
    again, before = pickle.loads(data, buffers=buffers)(X, R), model(X, R)
    assert all(np.array_equal(again[name], before[name]) for name in ("q", "sums"))


@pytest.mark.parametrize("rows", [4, None])
def test_a_model_is_freed_when_nothing_refers_to_it(rows):
    """Its weights and buffers do not wait for Python's cyclic garbage collector."""
    g = gq.Graph("net")
    g.output(g.matmul(g.input("x", shape=(rows, 8), dtype="f32"), np.ones((8, 3), np.float32)), name="y")
    gc.disable()
    try:
        model = gq.compile(g)
        model(np.ones((4, 8), np.float32))
        left = weakref.ref(model)
        del model
        assert left() is None
    finally:
        gc.enable()
