"""Real quantised models give what their files literally mean, and the same decision, on stored inputs."""
import os
from pathlib import Path

import numpy as np
import pytest
from model_files import DECISIONS, agreement, cosine, decision_of, inputs_of, listed

import graphq as gq

MODELS = Path(os.environ.get("GRAPHQ_SHARED", Path(__file__).parents[3] / "shared")) / "models"

CHOSEN = {"ppocr2_cls_u8": "argmax", "ppocr4_rec_u8": "ctc"}
"""Two that compile soon, of all kinds of partitions; `benchmarks/models.py` prints the same for all of them."""


@pytest.mark.skipif(not MODELS.exists(), reason="no folder of models (GRAPHQ_SHARED)")
@pytest.mark.parametrize("name", CHOSEN)
def test_literal_outputs_and_decisions(name):
    path = MODELS / f"{name}.onnx"
    feeds, want = inputs_of(path, {})
    model = gq.compile(gq.load_onnx(path), threads=2)
    got = [listed(model(f)) for f in feeds]
    pairs = [(a, b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True)]
    assert min(cosine(a, b) for a, b in pairs) > 0.999999
    assert decision_of(want[0][0]) == CHOSEN[name] and np.isfinite(got[0][0]).all()
    assert agreement(DECISIONS[CHOSEN[name]], got, want) == (len(feeds), 1)
