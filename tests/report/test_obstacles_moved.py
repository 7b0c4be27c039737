"""Obstacles in graphs whose axes passes move: explain() speaks of the graph as given, and each edit lets it fuse."""
import re

import pytest
from moved_obstacles import ALL

import graphq as gq
from graphq.report.given import BORDER


def report(text):
    return gq.compile(gq.parse(text), threads=1).explanation()


def edited(text, edits):
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("obstacle", ALL)
def test_the_cause_is_told_in_names_and_axes_of_the_given_graph(obstacle):
    text, value, reasons, edit, _ = ALL[obstacle]
    found = report(text)
    cause = next(c for c in found.causes if c.value == value)
    for part in reasons:
        assert part in cause.reason
    assert edit in cause.edit
    made = {v.label: o.op for o in found.source for v in o.outputs}
    for c in found.causes:
        for said in (c.node, c.value, c.reason, c.edit, c.blocking_node or "", c.blocking_value or "", *c.also):
            assert set(re.findall(r"%\w+", said)) <= made.keys()
            assert all(made[label] == op for op, label in re.findall(r"(\w+) \((%\w+)\)", said))


@pytest.mark.parametrize("obstacle", ALL)
def test_the_edit_lets_it_fuse(obstacle):
    text, *_, edits = ALL[obstacle]
    assert [c for c in report(edited(text, edits)).causes if c.check != BORDER] == []
