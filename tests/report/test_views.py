"""Views of a page: the table of times, what partitions compute beside their anchors, and boxes of steps."""
import re

from graphq.report.profile import Piece, Profile, StepTime
from graphq.report.records import GraphNode, Operation, PartitionRecord, Report, StepRecord
from graphq.report.views import Views, _body, _box_of, _nodes


def operation(op="add", text="%y = add(x, x)"):
    return Operation(op, op, text, (), (), {})


def node(id, role="reference", kind=None, body=(), kernels=()):
    partition = None if kind is None else PartitionRecord("matmul", kind, tuple(map(operation, body)), {}, ())
    return GraphNode(id, role, operation(), partition, (), kernels)


REPORT = Report("net", "avx2", 1, True, nodes=(node(0, "constant"), node(1), node(2, "partition", "integer", kernels=(
    "k1", "k2"))), steps=(StepRecord(0, 2, "k1", "native"), StepRecord(1, None, "copy", "python")))


def test_views_have_their_names_and_records():
    views = Views()
    views.add("First", "<p>1</p>", "after0", "picture")
    views.add("Second", "<p>2</p>")
    assert views.names == ["First", "Second"] and views.html == [
        '<section class="view picture" id="v0" data-records="after0"><p>1</p></section>',
        '<section class="view text" id="v1" data-records=""><p>2</p></section>']


def test_steps_in_a_table_the_longest_first():
    steps = (StepTime(0, "k1", 0.001, 10**6, nbytes=3 * 10**6, peak=4 * 10**9, operation="%y = matmul"),
             StepTime(1, "copy <x>", 0.003, 0))
    views = Views()
    views.add_times(Profile(steps), "part: ", REPORT, "after0")
    assert views.names == ["part: Timeline"] and "<svg" not in views.html[0]
    assert 'data-records="after0"' in views.html[0]
    head, first, second = re.findall(r"<tr.*?</tr>", views.html[0])
    assert re.findall(r"<th.*?>(.*?)</th>", head) == [
        "median ms", "share", "GOPS", "GB/s", "of peak", "step", "operation", "kernel"]
    assert re.findall(r"<td.*?>(.*?)</td>", first) == ["3", "75.0%", "", "", "", "1", "", "copy &lt;x&gt;"]
    assert re.findall(r"<td.*?>(.*?)</td>", second) == ["1", "25.0%", "2", "3", "25%", "0", "%y = matmul", "k1"]
    assert second.startswith("<tr data-n=n2>") and first.startswith("<tr><td") and first.count('class="n"') == 6
    alone = Views()
    alone.add_times(Profile((StepTime(0, "k1", 0.001, 0, pieces=(Piece(1, 0.0, 0.001),)),), 1))
    assert "of peak" not in alone.html[0]  # it was not measured
    assert alone.names == ["Timeline"] and "<svg" in alone.html[0] and '<g class="b plain" data-n="">' in alone.html[0]


def test_boxes_of_steps():
    assert [_box_of(REPORT, k) for k in (0, 1, 2)] == [("n2", "integer"), ("", "plain"), ("", "plain")]


def test_what_a_partition_computes_beside_its_anchor():
    body = ("dequantize", "dequantize", "matmul", "add", "relu", "add", "quantize")
    assert list(_body(node(0, "partition", "integer", body))) == ["+ 2 add, relu"]
    assert list(_body(node(0, "partition", "integer", ("dequantize", "matmul", "quantize")))) == []


def test_nodes_in_a_table():
    assert re.findall(r"<td.*?>(.*?)</td>", _nodes(REPORT)) == [
        "1", "reference", "", "%y = add(x, x)", "2", "integer", "k1, k2", "%y = add(x, x)"]
