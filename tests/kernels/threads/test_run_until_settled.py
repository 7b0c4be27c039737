"""What is measured runs until helpers take part, if it asks for any."""
from graphq.kernels.threads import team


def test_nobody_waits_for_helpers_of_runs_that_ask_for_none(monkeypatch):
    """A team that began for another model is not settled by runs on one thread, however many there are."""

    class Waiting:
        settled, layer, region = False, None, None

    runs = []

    def run():
        runs.append(None)
        if len(runs) == 3:
            Waiting.region = object()  # Numba is imported: from now on a run could ask

    monkeypatch.setattr(team, "current", Waiting)
    team.run_until_settled(run, seconds=600)
    assert len(runs) == 4
