"""What a page shows beside a picture: of records by hand, each sentence and number."""
import re
from dataclasses import replace

from graphq.plan.arena import Allocation
from graphq.report.overview import HELP, SHOWN, overview
from graphq.report.parts import Memory, Part
from graphq.report.profile import Piece, Profile, StepTime
from graphq.report.records import Cause, CoverageRecord, GraphNode, Operation, Partition, Report

OPERATION = Operation("add", "add", "%y = add(x, x)", ("x", "x"), (), {})
REPORT = Report("net", "avx2", 2, True, nodes=(
    GraphNode(0, "constant", OPERATION), GraphNode(1, "reference", OPERATION), GraphNode(2, "reference", OPERATION),
    GraphNode(3, "partition", OPERATION, Partition("matmul", "integer", (), {}, ()))))


def text(report, memory=None, profile=None, name=""):
    made = overview([Part(name, None, None, report, memory)], profile)
    assert made.startswith(HELP)
    return made[len(HELP):]


def cause(number, id=None, edit="quantize", share=None, check="one user"):
    return Cause(id, "node", f"%v{number}", "add<", "FuseMatmul", check, None, None, f"reason {'x' * number} & more",
                 edit, share=share)


def test_boxes_are_counted_by_their_kinds():
    assert text(REPORT) == (
        '<div class="key"><span><i class="integer"></i>partition in integers: 1</span><span><i class="reference"></i>'
        'NumPy reference: 2</span></div><p class="note">ISA level avx2, 2 threads</p>')
    named = text(replace(REPORT, level="", sizes={"x.0": 4, "n<m": 8}), name="head <1>")
    assert named.startswith("<h2>head &lt;1&gt;</h2>")
    assert named.endswith("</div><p>open sizes: x.0 = 4, n&lt;m = 8</p>")


def test_coverage():
    covered = CoverageRecord(3 * 10**6, 4 * 10**6, 0.75, {"matmul": 3 * 10**6}, {"matmul": 3 * 10**6, "conv<": 10**6},
                             ("lstm", "<gru>"), "text")
    made = text(replace(REPORT, coverage=covered))
    assert "<h2>Multiply-accumulates in integers</h2><p>75.0% of 4.0 million</p><table>" in made
    assert re.findall(r"<tr>(.*?)</tr>", made) == [
        '<td>matmul</td><td class="n">3.0 million</td><td class="n">100%</td><td><span class="bar" style="width:90px">'
        '</span></td>',
        '<td>conv&lt;</td><td class="n">1.0 million</td><td class="n">0%</td><td><span class="bar" style="width:0px">'
        '</span></td>']
    assert made.endswith("</table><p>not counted: lstm, &lt;gru&gt;</p>")
    assert text(replace(REPORT, coverage=replace(covered, total=0))) == text(REPORT)


def test_memory():
    memory = Memory(2048, 4096, 1, 2, (Allocation(0, 0, 1024, 0, 1), Allocation(1, 0, 2048, 2, 3)))
    assert text(REPORT, memory).endswith(
        "<h2>Memory</h2><p>arena 2 KiB (without sharing 3 KiB), constants 4 KiB</p>")


def test_causes():
    made = text(replace(REPORT, causes=(cause(1, 3, share=0.25), cause(2, edit=""), cause(1, share=0.5))))
    assert "<h2>Outside of integer partitions: 2 causes</h2><dl>" in made and made.endswith("</dl>")
    assert re.findall(r"<dt>(.*?)</dd>", made) == [
        'add&lt; <a class="go" data-records="after0" data-to="n3">%v1</a> and 1 more like it, 75.0% of the time</dt>'
        '<dd>reason x &amp; more<p class="edit">quantize</p>', "add&lt; %v2</dt><dd>reason xx &amp; more"]
    with_cause = replace(REPORT, causes=(cause(1, 3),))
    assert 'data-records="after1"' in overview([Part("", None, None, x) for x in (REPORT, with_cause)], None)


def test_many_causes():
    made = text(replace(REPORT, causes=tuple(cause(k) for k in range(SHOWN + 2))))
    assert f"{SHOWN + 2} causes</h2>" in made and made.count("<dt>") == SHOWN
    assert made.endswith("</dl><p>and 2 more: see the text</p>")
    assert text(replace(REPORT, causes=tuple(cause(k) for k in range(SHOWN)))).endswith("</dl>")


def test_times():
    steps = (StepTime(0, "matmul", 0.003, 0, pieces=(Piece(1, 0.0, 0.006),)), StepTime(1, "add", 0.001, 0))
    made = text(REPORT, profile=Profile(steps))
    assert made.startswith(
        "<h2>Time</h2><p>4 ms in 2 steps, by their medians over all runs; the timeline shows one run, of 6 ms from its "
        'first step to its last</p><table><tr><th class="n"></th><th class="n">share</th><th>kernel</th></tr>'
        '<tr><td class="n">3 ms</td><td class="n">75.0%</td><td>matmul</td></tr>'
        '<tr><td class="n">1 ms</td><td class="n">25.0%</td><td>add</td></tr></table><div')
    many = Profile(tuple(StepTime(k, f"k{k}", 0.01 * (k + 1), 0) for k in range(12)))
    made = text(REPORT, profile=many)
    assert re.findall(r"<td>(k\d+)</td>", made) == [f"k{k}" for k in range(11, 3, -1)] and "timeline" not in made
