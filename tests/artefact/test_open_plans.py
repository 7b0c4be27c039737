"""Models with open shapes in files: all of their plans, each read when it is needed."""
import numpy as np
import pytest

import graphq as gq
from graphq.artefact import file as format


def rows(n):
    return np.random.default_rng(n).normal(size=(n, 16)).astype(np.float32)


def open_graph():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, 16))
    w = g.dequantize(g.constant(np.random.default_rng(0).integers(-99, 99, (16, 24)).astype(np.int8)), scales=[0.01])
    q = g.dequantize(g.quantize(x, dtype="u8", scales=[0.1], zps=[128]), scales=[0.1], zps=[128])
    g.output(g.softmax(g.matmul(q, w), axis=-1), name="y")
    return g


@pytest.mark.parametrize("threads", [1, 2])
def test_plans_with_open_sizes(threads, tmp_path):
    model = gq.compile(open_graph(), threads=2)
    model(rows(40))  # a second plan
    model.save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m", threads=threads)
    assert again.origin == f"loaded from {tmp_path / 'm'}"
    before = len(again._open.plans())
    assert before == len(model._open.plans()) > 1
    for n in (1, 40, 50):
        x = rows(n)
        assert np.array_equal(again(x), model(x)) and len(again._open.plans()) == before
        if threads == 2:
            assert again.explain() == f"{again.origin}\n{model.explain()}"
    x = rows(300)
    assert np.array_equal(again(x), model(x)) and len(again._open.plans()) > before
    packed = [b.data for plan, _ in again._open.plans() for b in plan.buffers if isinstance(b.data, np.ndarray)]
    large = [x for x in packed if x.nbytes >= 16 * 24]
    assert large and not any(x.flags.owndata for x in large)  # the new plan has the weights of the file, too


def test_a_load_reads_no_more_than_a_call_needs(tmp_path, monkeypatch):
    model = gq.compile(open_graph())
    for n in (1, 12, 40):
        model(rows(n))
    model.save(tmp_path / "m")
    index, read = format.File(tmp_path / "m").index, []
    section = format.File.section
    monkeypatch.setattr(format.File, "section", lambda file, number: read.append(number) or section(file, number))
    again = gq.load_compiled(tmp_path / "m")
    plans = [number for number, _ in index["plans"]]
    assert len(plans) == 3 and index["graph"] not in read and not set(plans) & set(read)
    assert again.rows_mix is None and gq.Predictor(tmp_path / "m", batch=8)
    for _ in range(2):
        x = rows(50)
        assert np.array_equal(again(x), model(x))
    assert index["graph"] not in read and len(set(plans) & set(read)) == 1


def test_what_is_asked_of_a_graph_with_open_shapes_before_its_first_call(tmp_path):
    model = gq.compile(open_graph())
    model.save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m")
    assert again.explain() == f"{again.origin}\n{model.explain()}"
    assert gq.to_text(again.graph) == gq.to_text(model.graph)


def test_products_of_open_depth_in_files(tmp_path):
    """Bounds, blocks and tiles that follow from the sizes do so in a model that was loaded."""
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, 16))
    q = g.dequantize(g.quantize(x, dtype="u8", scales=[0.1], zps=[99]), scales=[0.1], zps=[99])
    g.output(g.quantize(g.matmul(q, q, transpose_a=True), dtype="s8", scales=[0.5]), name="y")
    model = gq.compile(g, threads=2)
    model(rows(40))
    model.save(tmp_path / "m")
    again = gq.load_compiled(tmp_path / "m")
    before = len(again._open.plans())
    for n in (40, 17, 100):
        assert np.array_equal(again(rows(n)), model(rows(n))) and len(again._open.plans()) == before == 2
        plans = [m._open.at(((n, 16),)).plan for m in (again, model)]
        cut = [[(s.kernel, s.blocks, s.parallel) for s in p.steps] for p in plans]
        assert cut[0] == cut[1]
