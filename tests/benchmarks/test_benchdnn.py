"""The runner of oneDNN files: what passes, fails or is refused, batches, and its command line."""
import os
from pathlib import Path

import benchdnn
import numpy as np
import pytest
from benchdnn import main, run_batch, run_file
from benchdnn_text import parse_knobs

import graphq as gq
from graphq.errors import ParseError
from graphq.onednn.files import save_onednn_json

SHARED = Path(os.environ.get("GRAPHQ_SHARED", Path(__file__).parents[3] / "shared")) / "onednn_graphs"


def int8_matmul(scale=0.01):
    g = gq.Graph("int8_matmul")
    x, w = g.input("t0", dtype="u8", shape=(16, 64)), g.input("t1", dtype="s8", shape=(64, 8), property="constant")
    y = g.matmul(g.dequantize(x, scales=[0.1]), g.dequantize(w, scales=[0.1]))
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[scale]), name="t9")
    return g


def two_softmaxes():
    g = gq.Graph("two")
    g.output(g.softmax(g.softmax(g.input("t0", dtype="f32", shape=(2, 4)))), name="t9")
    return g


@pytest.fixture
def file(tmp_path):
    def save(graph, name="g.json"):
        save_onednn_json(graph, tmp_path / name)
        return tmp_path / name

    return save


def run(path, *knobs):
    (one,) = parse_knobs(knobs)
    return run_file(path, one)


# -- outcomes -------------------------------------------------------------------------------------------------


def test_passed(file):
    outcome = run(file(int8_matmul()), "--mb=3")
    assert (outcome.status, outcome.partitions, outcome.reason) == ("passed", 1, "")
    assert [d.output for d in outcome.differences] == ["t9"] and outcome.seconds > 0
    assert str(outcome).startswith("passed  1 partitions") and "--mb=3 --case=g.json  (t9: " in str(outcome)


def test_a_difference_fails(file, monkeypatch):
    true = benchdnn.reference
    monkeypatch.setattr(benchdnn, "reference", lambda g, x: true(g, x) + np.float32(0.5))
    outcome = run(file(two_softmaxes()), "--expected-n-partitions=2")
    assert outcome.status == "failed" and "of the largest" in outcome.reason and not outcome.differences[0].passed
    assert outcome.reason in str(outcome)


def test_another_number_of_partitions_fails(file):
    path = file(two_softmaxes())
    outcome = run(path)
    assert (outcome.status, outcome.partitions) == ("failed", 2)
    assert outcome.reason == "2 partitions, expected 1: softmax, softmax"
    assert [run(path, f"--expected-n-partitions={n}").status for n in (0, 2, 3)] == ["passed", "passed", "failed"]


@pytest.mark.parametrize("knob, part", [
    ("--in-shapes=1:3x3", "64"),
    ("--in-shapes=7:3", "no tensor 7"),
    ("--op-kind=0:MaxPool", "MaxPool has no attribute 'scales'"),
    ("--in-shapes=0:4611686018427387904x64", "tensor 0"),
    ("--in-shapes=0:33554432x64", "GiB, more than 8 GiB"),
])
def test_what_graphq_refuses(file, knob, part):
    outcome = run(file(int8_matmul()), knob)
    assert outcome.status == "refused" and part in outcome.reason and "\n" not in outcome.reason


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    for name in ("bad.json", "none.json", "."):
        assert run(tmp_path / name).status == "refused"


def test_open_shapes_are_refused_until_given(file):
    g = gq.Graph("open")
    g.output(g.relu(g.input("t0", dtype="f32", shape=(None, 2))), name="t1")
    path = file(g)
    assert "set it with --in-shapes" in run(path).reason
    assert run(path, "--in-shapes=0:3x2").status == "passed"


def test_wildcards_are_refused_and_ends_run(file):
    g = gq.Graph("marked")
    y = g.relu(g.input("t0", dtype="f32", shape=(2,)))
    g.end(y)
    g.output(y, name="t1")
    assert run(file(g), "--expected-n-partitions=2").status == "passed"
    g = gq.Graph("wild")
    g.output(g.wildcard(g.input("t0", dtype="f32", shape=(2,)), dtypes=["f32"], shapes=[[2]]), name="t1")
    assert "not known, and cannot run" in run(file(g)).reason


def test_a_defect_fails_and_says_so(file, monkeypatch):
    monkeypatch.setattr(benchdnn, "compile", lambda g: (lambda x: 1 / 0))
    outcome = run(file(int8_matmul()))
    assert (outcome.status, outcome.reason) == ("failed", "ZeroDivisionError: division by zero")


def test_batch_goes_on(file, tmp_path):
    file(two_softmaxes(), "two.json")
    batch = tmp_path / "cases.txt"
    batch.write_text("""# a comment
--reset --case=none.json
--reset --frobnicate=1 --case=two.json

--reset --expected-n-partitions=2,3 --case=two.json
--reset
--case=two.json --expected-n-partitions=0 --mb=5
""")
    outcomes = list(run_batch(batch, tmp_path))
    assert [o.status for o in outcomes] == ["refused", "refused", "passed", "failed", "refused", "passed"]
    assert "cases.txt: line 3: unknown knob" in outcomes[1].reason and "line 6" in outcomes[4].reason


def test_a_batch_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ParseError, match="not a regular file"):
        list(run_batch(tmp_path, tmp_path))


@pytest.mark.parametrize("scale", [1.0, 0.01, 0.001])
def test_outputs_are_not_saturated(scale):
    graph = int8_matmul(scale)
    inputs, outputs = benchdnn._compiled(graph)
    y = outputs["t9"]
    assert np.mean(y == 255) < 0.4 and np.mean(y == 0) < 0.9 and len(np.unique(y)) > 10
    assert np.array_equal(y, gq.compile(graph)(inputs))  # constant inputs are those returned


# -- a sample of oneDNN's graphs, shrunk ----------------------------------------------------------------------


SAMPLE = """
--case=complex_fusion/bmb/binary-matmul-binary-f32.json
--in-shapes=3:2x3x8x8+4:2x1x8x8+0:2x1x8x8+1:2x1x1x8 --case=complex_fusion/mha/MHA-bert_large-inf-fp32-bs1.json
--in-shapes=5:2x3x8x16+4:2x3x16x8+0:2x3x8x16+1:2x1x1x8 --case=complex_fusion/mha/MHA-distill_bert-inf-int8-bs1.json
--in-shapes=0:1x2x8x16+1:1x2x16x8+5:1x2x8x8+9:1x2x8x16 --case=complex_fusion/mha/codegemma-bf16-f32.json
--in-shapes=0:2x8+1:8x12+4:8x12+15:12x8 --case=complex_fusion/mlp/gated-mlp-f16-f32.json
--case=op/f16/dynamicdq_s4.json
--case=op/f32/lnorm_ks.json --in-shapes=0:2x3x4x5
--case=op/f32/softmax_w_stats.json --in-shapes=1:2x3x8
--case=pattern/f32/binary_2d_post_ops_relu_fusion.json
--case=pattern/f32/reduction_post_ops_l2_fusion.json
--case=pattern/f32/maxpool_sum_relu_fusion.json
--case=pattern/f32/convtranspose_post_ops_fusion.json
--case=pattern/f32/interpolate_post_ops_chain_fusion.json
--case=pattern/f8/f8_matmul_sum_add_mul_relu.json
--case=pattern/int8/int8_bf16_matmul_mul_w_smooth_quant_fusion.json
--case=pattern/int8/int8_bnorm_relu_fusion.json
--case=pattern/int8/int8_lnorm_gelu_quantize.json
--case=pattern/int8/int8_matmul_bias_sum_fusion.json
--case=pattern/int8/int8_convtranspose_post_ops_chain_fusion.json --mb=1
--case=pattern/int8/int8_softmax_add.json
"""


@pytest.mark.skipif(not SHARED.exists(), reason="no folder of oneDNN's graphs (GRAPHQ_SHARED)")
def test_onednn_graphs(tmp_path):
    (tmp_path / "cases.txt").write_text(SAMPLE)
    outcomes = list(run_batch(tmp_path / "cases.txt", SHARED))
    assert len(outcomes) == 20 and not [str(o) for o in outcomes if o.status != "passed"]


# -- the command line -----------------------------------------------------------------------------------------


def test_main_passes(onednn_file, capsys):
    assert main([str(onednn_file), "--expected-n-partitions=2", "--in-shapes=0:2x4,0:5x4"]) == 0
    first, second, counts = capsys.readouterr().out.splitlines()
    assert first.startswith("passed  2 partitions") and "--in-shapes=0:5x4" in second
    assert counts == "2 passed, 0 failed, 0 refused"


def test_main_fails_for_the_number_of_partitions(onednn_file, capsys):
    assert main([str(onednn_file), "--mb=0"]) == 1
    line, counts = capsys.readouterr().out.splitlines()
    assert line.startswith("failed  2 partitions") and "2 partitions, expected 1: matmul, softmax" in line
    assert counts == "0 passed, 1 failed, 0 refused"


def test_main_fails_for_a_difference(onednn_file, capsys, monkeypatch):
    true = benchdnn.reference
    monkeypatch.setattr(benchdnn, "reference", lambda g, x: true(g, x) * np.float32(1.01))
    assert main([str(onednn_file), "--expected-n-partitions=0"]) == 1
    assert "of the largest" in capsys.readouterr().out


def test_main_refuses(onednn_file, capsys):
    assert main([str(onednn_file), "--in-shapes=0:2x5"]) == 1
    line, counts = capsys.readouterr().out.splitlines()
    assert line.startswith("refused 0 partitions") and "matmul" in line and counts == "0 passed, 0 failed, 1 refused"


@pytest.mark.parametrize("arguments, part", [
    (["FILE", "--mb=x"], "--mb"),
    ([], "give a file"),
    (["FILE", "--batch=cases.txt"], "give a file"),
    (["--batch=cases.txt", "--mb=2"], "give a file"),
    (["--batch=no-cases.txt"], "no-cases.txt"),
])
def test_main_with_wrong_arguments(onednn_file, capsys, arguments, part):
    with pytest.raises(SystemExit) as exit:
        main([str(onednn_file) if a == "FILE" else a for a in arguments])
    assert exit.value.code == 2 and part in capsys.readouterr().err.splitlines()[-1]


def test_main_batch(onednn_file, capsys):
    batch = onednn_file.with_name("cases.txt")
    batch.write_text("--reset --expected-n-partitions=2 --case=two.json\n--case=none.json\n--mb=oops --case=two.json\n")
    assert main([f"--batch={batch}"]) == 1
    *lines, counts = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["passed", "refused", "refused"]
    assert counts == "1 passed, 0 failed, 2 refused"
    (batch.parent / "elsewhere").mkdir()
    moved = batch.rename(batch.parent / "elsewhere" / batch.name)
    assert main([f"--batch={moved}", "--failures", "--root", str(onednn_file.parent)]) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["refused", "refused", "1"]
    batch.write_text("--expected-n-partitions=0 --case=two.json --mb=3\n")
    assert main([f"--batch={batch}"]) == 0
    assert capsys.readouterr().out.endswith("1 passed, 0 failed, 0 refused\n")
