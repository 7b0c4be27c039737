"""Causes that are alike, and the share of the time that each has."""
import pytest

from graphq.errors import InputError
from graphq.report.groups import alike, shared, timed
from graphq.report.profile import Profile, StepTime
from graphq.report.records import Cause, GraphNode, Operation, Partition, Report, StepRecord


def cause(value, reason="why", edit="do", share=None, id=None, also=(), check="c"):
    return Cause(id, "node", value, "add", "Fuse", check, None, None, reason, edit, also, share)


def test_names_and_types_do_not_tell_causes_apart():
    a = cause("%a", 'reads %x : f32[2,?] of %"y z"')
    b = cause("%b", 'reads %u.1 : u8[3] of %3')
    c = cause("%c", "reads %x : f32[2,?] with %y")
    assert alike([a, c, b]) == [[a, b], [c]]
    others = [cause("%d", a.reason, edit="other"), cause("%e", a.reason, check="other")]
    assert alike([a, *others]) == [[a], [others[0]], [others[1]]]
    assert alike([cause("%a", edit="quantize %x"), cause("%b", edit="quantize %y")]) == [
        [cause("%a", edit="quantize %x"), cause("%b", edit="quantize %y")]]


def test_the_largest_share_comes_first():
    small, large, two = cause("%a", "A", share=0.2), cause("%b", "B", share=0.5), cause("%c", "A", share=0.4)
    assert alike([small, large]) == [[large], [small]] and alike([small, large, two]) == [[small, two], [large]]
    assert shared([small, two]) == pytest.approx(0.6) and shared([cause("%a")]) is None
    assert shared([small, cause("%d")]) == 0.2 and shared([large, cause("%x", share=0.75)]) == 1.0


def report(*causes, became):
    def node(id, steps, kind=None):
        operation = Operation("add", "add", "t", (), (), {})
        partition = None if kind is None else Partition("eltwise", kind, (), {}, ())
        return GraphNode(id, "partition" if kind else "reference", operation, partition, steps)

    return Report("net", "avx2", 1, True, causes=causes, became=became, nodes=(
        node(0, (0,)), node(1, (1, 2), "float"), node(2, (3,), "integer")),
        steps=tuple(StepRecord(k, None, "k", "native") for k in range(4)))


PROFILE = Profile(tuple(StepTime(k, "k", s, 0) for k, s in enumerate((0.1, 0.2, 0.3, 0.4))))


def shares(*causes, became, profile=PROFILE):
    return [c.share for c in timed(report(*causes, became=became), profile).causes]


def test_a_cause_has_the_time_of_what_its_operations_became():
    became = {"%a": 0, "%b": 1, "%c": 2, "%d": None}
    assert shares(cause("%b", id=0), cause("%b"), became=became) == pytest.approx([0.6, 0])
    assert shares(cause("%x", also=("%b", "%d")), cause("%a", id=0), became=became) == pytest.approx([0.5, 0.1])
    assert shares(cause("%c", id=2), became=became) == [0]  # in integers
    assert shares(cause("%d"), became=became) == [0]
    nothing = Profile(tuple(StepTime(k, "k", 0.0, 0) for k in range(4)))
    assert shares(cause("%a", id=0), became=became, profile=nothing) == [0.0]


def test_a_profile_of_another_model():
    with pytest.raises(InputError, match="the profile has 3 steps, the plan of graph 'net' 4: it is not of this model"):
        timed(report(became={}), Profile(PROFILE.steps[:3]))
