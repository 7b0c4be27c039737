"""Charts to the pixel: a timeline, the arena and tables of numbers by hand."""
import re

from graphq.plan.plan import Allocation
from graphq.report.charts import memory, table, timeline
from graphq.report.profile import Piece, Profile, StepTime

RECTANGLE = (r'<g class="b (\w+)" data-n="(\w*)">'
             r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"/></g>')
TEXT = r'<text x="(-?\d+)" y="(\d+)">([^<]*)</text>'


def rectangles(svg):
    return [(kind, id, *map(float, numbers)) for kind, id, *numbers in re.findall(RECTANGLE, svg)]


def texts(svg):
    return [(int(x), int(y), text) for x, y, text in re.findall(TEXT, svg)]


def lines(svg):
    return [tuple(map(float, x)) for x in re.findall(r'<line x1="(.*?)" y1="(.*?)" x2="(.*?)" y2="(.*?)"/>', svg)]


def size(svg):
    return tuple(map(int, re.search(r'width="(\d+)" height="(\d+)">', svg).groups()))


def test_a_timeline():
    pieces = (Piece(7, 0.0, 0.25), Piece(9, 0.25, 0.5)), (Piece(7, 0.75, 0.25),)
    profile = Profile(tuple(StepTime(k + 3, "matmul", 0.1, 0, pieces=p) for k, p in enumerate(pieces)), 7, 3)
    svg = timeline(profile, lambda step: (f"n{step}", "kind"))
    assert rectangles(svg) == [("kind", "n3", 74, 4, 215, 26), ("kind", "n3", 289, 38, 430, 26),
                               ("kind", "n4", 719, 4, 215, 26)]
    assert texts(svg)[:6] == [(0, 15, "caller"), (0, 27, "50% busy"), (0, 49, "helper 1"), (0, 61, "50% busy"),
                              (0, 83, "helper 2"), (0, 95, "idle")]
    assert texts(svg)[6:] == [(60 + 86 * k, 118, f"{100 * k} ms" if k < 10 else "1e+03 ms") for k in range(11)]
    assert lines(svg) == [(74 + 86 * k, 0, 74 + 86 * k, 106) for k in range(11)] and size(svg) == (974, 126)


def test_a_timeline_of_many_steps_is_wider_up_to_a_limit():
    def width(count):
        steps = tuple(StepTime(k, "x", 0.1, 0, pieces=(Piece(1, 0.0, 1.0),)) for k in range(count))
        return size(timeline(Profile(steps, 1), lambda step: ("", "plain")))[0] - 114

    assert [width(n) for n in (1, 143, 144, 1000, 1001)] == [860, 860, 864, 6000, 6000]


def test_a_chart_of_the_arena():
    svg = memory([Allocation(5, 0, 512, 0, 1), Allocation(2, 512, 512, 1, 3)], 1024, 4,
                 lambda buffer: (f"s{buffer}", "float"))
    assert rectangles(svg) == [("float", "s5", 74, 238, 80, 230), ("float", "s2", 114, 8, 120, 230)]
    assert texts(svg)[:9] == [(0, y, text) for y, text in zip(
        (472, 414, 357, 300, 242, 184, 127, 70, 12),
        ("0 B", "128 B", "256 B", "384 B", "512 B", "640 B", "768 B", "896 B", "1 KiB"), strict=True)]
    assert texts(svg)[9:] == [(74 + 40 * k, 482, str(k)) for k in range(4)] and size(svg) == (254, 490)
    assert lines(svg) == [(74, 468 - 57.5 * k, 234, 468 - 57.5 * k) for k in range(9)]


def test_columns_of_the_arena_are_narrower_for_more_steps():
    def of(steps):
        svg = memory([Allocation(0, 0, 1, 0, 0)], 1, steps, lambda buffer: ("s", "x"))
        return rectangles(svg)[0][4], [int(t) for _, y, t in texts(svg) if y == 482]

    assert of(10) == (40, [*range(10)]) and of(43) == (20, [*range(0, 43, 2)])
    assert of(300) == (4, [*range(0, 300, 15)]) and of(0)[0] == 40
    assert '<rect x="74.00" y="8.00" width="4.00" height="460.00"/>' in memory(
        [Allocation(0, 0, 1, 0, 0)], 1, 500, lambda b: ("", ""))


def test_what_is_small_can_be_seen():
    steps = (StepTime(0, "x", 1e-9, 0, pieces=(Piece(1, 0.0, 1e-9), Piece(1, 0.5, 0.5))),)
    assert [r[4] for r in rectangles(timeline(Profile(steps, 1), lambda s: ("", "plain")))] == [0.6, 430]
    assert rectangles(memory([Allocation(1, 0, 1, 0, 0)], 1 << 20, 1, lambda b: ("s1", "x")))[0][5] == 1


def test_tables():
    made = table(["ms", "kernel"], [("n3", ("1.5", "<x>")), ("", ("2", "y"))], 1)
    assert made == ('<table><tr><th class="n">ms</th><th>kernel</th></tr><tr data-n=n3><td class="n">1.5</td>'
                    '<td>&lt;x&gt;</td></tr><tr><td class="n">2</td><td>y</td></tr></table>')
