"""Minimum cuts: by hand, and against networkx."""
from math import inf

import networkx as nx
import numpy as np
import pytest

from graphq.minimum_cut import least_side


def test_the_narrowest_place_is_cut():
    arcs = [("s", "a", 5), ("a", "b", 2), ("b", "t", 4)]
    assert least_side(arcs, "s", "t") == {"s", "a"}
    assert least_side([*arcs, ("a", "b", 9)], "s", "t") == {"s", "a", "b"}  # arcs of one place add up


def test_of_equal_cuts_the_one_nearest_to_the_start():
    assert least_side([("s", "a", 3), ("a", "b", 3), ("b", "t", 3)], "s", "t") == {"s"}


def test_flow_is_sent_back():
    # The shortest path, s-a-d-t, takes what both s-a-b-t and s-c-d-t would need.
    arcs = [("s", "a", 1), ("s", "c", 1), ("a", "d", 1), ("d", "t", 1), ("c", "e", 1), ("e", "d", 1),
            ("a", "b", 1), ("b", "f", 1), ("f", "g", 1), ("g", "t", 1)]
    assert least_side(arcs, "s", "t") == {"s"}


def test_start_and_end_without_a_path():
    assert least_side([], "s", "t") == {"s"}
    assert least_side([("s", "a", inf), ("t", "b", 1), ("b", "a", 1)], "s", "t") == {"s", "a"}


@pytest.mark.parametrize("seed", range(40))
def test_as_networkx(seed):
    rng = np.random.default_rng(seed)
    nodes, count = int(rng.integers(2, 40)), int(rng.integers(1, 160))
    pairs = {(int(a), int(b)) for a, b in rng.integers(0, nodes, (count, 2)) if a != b} - {(0, 1)}
    arcs = [(a, b, inf if rng.random() < 0.2 and (a, b) != (0, 1) and 1 not in (a, b) else int(rng.integers(1, 9)))
            for a, b in sorted(pairs)]
    # networkx has the least side of the end: that of the start, with all arcs turned round.
    flow = nx.DiGraph()
    flow.add_nodes_from((0, 1))
    for a, b, capacity in arcs:
        flow.add_edge(b, a, **({} if capacity == inf else {"capacity": capacity}))
    assert least_side(arcs, 0, 1) == nx.minimum_cut(flow, 1, 0)[1][1]
