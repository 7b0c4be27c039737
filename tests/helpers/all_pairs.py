"""Cases of several parameters that cover each pair of values, where a cross product would take many times as many."""
from collections.abc import Iterable
from itertools import combinations
from typing import Any


def all_pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Tuples of one value of each axis; any two values of different axes are together in one of them.

    A fault that shows with one value, or where two values meet, shows in these cases as in the cross product.
    """
    values = [list(axis) for axis in axes]
    pairs = [((i, x), (j, y)) for i, j in combinations(range(len(values)), 2)
             for x in range(len(values[i])) for y in range(len(values[j]))]
    missing, cases = set(pairs), []
    for pair in pairs:
        if pair not in missing:
            continue
        case = dict(pair)
        for k in set(range(len(values))) - case.keys():
            new = [sum(tuple(sorted((chosen, (k, z)))) in missing for chosen in case.items())
                   for z in range(len(values[k]))]
            turn = len(cases)  # where several values are as good, each has its turn
            case[k] = max(range(len(new)), key=lambda z: (new[z], -((z - turn) % len(new))))
        missing -= set(combinations(sorted(case.items()), 2))
        cases.append(tuple(values[k][case[k]] for k in range(len(values))))
    return cases
