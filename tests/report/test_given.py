"""What reports take for the counterpart, in the user's graph, of a node after the passes."""
from graphq.ir.text import parse
from graphq.report.given import equal


def test_copies_of_a_dequantize_have_its_operands_and_its_parameters():
    graph = parse("""graph(x: u8[4], y: u8[4]) {
        %0 = dequantize(x, scales=[0.5], zps=[3])
        %1 = dequantize(x, scales=[0.25], zps=[3])
        %2 = dequantize(x, scales=[0.5], zps=[4])
        %3 = dequantize(x, scales=[0.5], zps=[3])
        %4 = dequantize(y, scales=[0.5], zps=[3])
        return %0, %1, %2, %3, %4
    }""")
    first, *others = graph.nodes
    assert equal(first) == [first, others[2]]
    assert all(equal(n) == [n] for n in (others[0], others[1], others[3]))
