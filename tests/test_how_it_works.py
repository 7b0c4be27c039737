"""Pages show the pictures that their scripts draw; the functions of "How it works" run in the order that it gives."""
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import graphq as gq

DOCS = Path(__file__).parent.parent / "docs"


def drawing(page="how_it_works"):
    spec = importlib.util.spec_from_file_location(page, DOCS / f"{page}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dense():
    rng = np.random.default_rng(0)
    g = gq.Graph("dense")
    x = g.dequantize(g.input("x", shape=(16, 64), dtype="u8"), scales=[0.02], zps=[120])
    w = g.dequantize(g.constant(rng.integers(-127, 128, (64, 32), dtype=np.int8)), qtype="per_channel", axis=1,
                     scales=rng.uniform(1e-3, 4e-3, 32).tolist())
    y = g.relu(g.bias_add(g.matmul(x, w), rng.standard_normal(32).astype(np.float32)))
    g.output(g.quantize(y, dtype="u8", scales=[0.05], zps=[3]), name="y")
    return g


def test_the_picture_is_that_of_the_tree():
    assert (DOCS / "how_it_works.svg").read_text(encoding="utf-8") == drawing().draw() + "\n", \
        "run: python docs/how_it_works.py > docs/how_it_works.svg"


def test_the_front_page_shows_the_model_that_it_compiles():
    """But for where Graphviz put the boxes, which differs between its versions."""
    pytest.importorskip("pygraphviz")
    shown, drawn = (re.sub(r' (?:width|height|viewBox|data-[wh]|x|y|d|transform)="[^"]*"', "", svg) for svg in (
        (DOCS / "front_page.svg").read_text(encoding="utf-8"), drawing("front_page").draw() + "\n"))
    assert shown == drawn, "run: python docs/front_page.py > docs/front_page.svg"


def test_the_functions_run_in_this_order():
    way, graph, called = drawing().way(), dense(), []
    gq.compile(graph, threads=1)  # the first of a process also tries whether its ISA level works

    def watch(frame, event, _):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("graphq."):
            name = f"{frame.f_globals['__name__'].removeprefix('graphq.')}.{frame.f_code.co_qualname}"
            if name in way and name not in called:
                called.append(name)

    sys.setprofile(watch)
    try:
        gq.compile(graph, threads=1)(np.zeros((16, 64), np.uint8))
    finally:
        sys.setprofile(None)
    assert called == way and len(way) > 10
