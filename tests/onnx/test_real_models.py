"""Real quantized models give what their files literally mean, bit for bit."""
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_files import inputs_of, listed

import graphq as gq

MODELS = Path(os.environ.get("GRAPHQ_SHARED", Path(__file__).parents[3] / "shared")) / "models"
FILES = sorted(p for p in MODELS.glob("*.onnx") if p.with_suffix(".npz").exists())
SAMPLE = {"ppocr2_cls_u8", "ppocr4_rec_u8"}
"""Two that compile soon, of all kinds of partitions; GRAPHQ_MODELS=all takes the others too."""


@pytest.mark.parametrize("name", ["digits", "squeezenet"])
def test_models_of_installed_packages(name, tmp_path):
    """ONNX Runtime without optimizations executes each quantize, dequantize and f32 operation by itself."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra `test`)")
    import real_models

    path, x = real_models.PACKAGED[name](tmp_path)
    want, = real_models.as_written(path, x)
    model = gq.compile(gq.load_onnx(path), threads=2, strict=True)
    assert model.coverage().share == 1 and np.unique(want).size > 100
    np.testing.assert_array_equal(model({onnx.load(path).graph.input[0].name: x}), want)


@pytest.mark.skipif(not FILES, reason="no folder of models is there (GRAPHQ_SHARED names it)")
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_stored_literal_outputs(path):
    """Those of models that are quantized; of f32 ones sums are in graphq's order."""
    if path.stem not in SAMPLE and os.environ.get("GRAPHQ_MODELS") != "all":
        pytest.skip("only two of the models in GRAPHQ_SHARED run without GRAPHQ_MODELS=all")
    feeds, want = inputs_of(path, {})
    model = gq.compile(gq.load_onnx(path), threads=2)
    if not model.coverage().share:
        pytest.skip("models without integer partitions have f32 sums in graphq's order")
    for feed, outputs in zip(feeds, want or (), strict=True):
        for got, literal in zip(listed(model(feed)), outputs, strict=True):
            assert np.isfinite(got).all()
            np.testing.assert_array_equal(got, literal)
