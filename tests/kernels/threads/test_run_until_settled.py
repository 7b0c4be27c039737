"""What is measured runs until helpers take part, if it asks for any."""
from types import SimpleNamespace

import pytest

from graphq.kernels.threads import team


class Waiting(team.Team):
    """A team of another model, which is not settled."""

    def __init__(self):
        self.helpers, self.layer, self.region, self.loader = SimpleNamespace(most=1), None, None, None


@pytest.mark.parametrize("loads", [False, True], ids=["Numba is not imported", "the region may be loaded"])
def test_nobody_waits_for_helpers_of_runs_that_ask_for_none(loads, monkeypatch):
    """Runs on one thread do not settle a team that began for another model, however many there are."""
    waiting, runs = Waiting(), []

    def run():
        runs.append(None)
        if len(runs) == 3:
            monkeypatch.setattr(waiting, "region", object())  # Numba is imported: from now on a run could ask

    monkeypatch.setattr(Waiting, "can_load", lambda self: loads)
    monkeypatch.setattr(Waiting, "settled", False)
    monkeypatch.setattr(team, "current", waiting)
    team.run_until_settled(run, seconds=600)
    assert len(runs) == (2 if loads else 4)
