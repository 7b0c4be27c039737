"""What a helper does alone, one native function at a time."""
import numpy as np
import pytest
from kernel_factories import adding, falling_asleep

from graphq.kernels.jit import modules
from graphq.kernels.threads import steps, team


@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.parametrize("dismissed", [False, True])
def test_a_helper_that_finds_a_reason_to_stay_awake_does_not_count_as_asleep(dismissed, wanted, monkeypatch):
    """It runs what was offered before it could be seen asleep; where one more is wanted it wakes itself meanwhile."""
    monkeypatch.setattr(team, "team_threads", lambda: 2)
    source, target, opened = np.array([5, 7], np.int64), np.zeros(40, np.int64), np.zeros(1, np.int64)
    args = np.array([source.ctypes.data, target.ctypes.data, source.size], np.int64)
    row = modules.load("adding", adding).block, args.ctypes.data, target.size, 3
    table, helpers = team.StepTable([row]), team.Team()
    helpers._prepare()
    helpers._word(steps.CORES)[0] = 0  # no thread's cores are set
    helpers._word(steps.HELPERS)[0], helpers._word(steps.WANTED)[0] = 1, wanted
    native = modules.load("team", steps.team_module)
    fall_asleep = team._native(modules.load("fall_asleep", falling_asleep).fall_asleep, 2)
    record = steps.FIRST_RECORD
    for turn in (1, 2, 3):
        if dismissed:
            helpers._word(steps.STOP)[0] = 1
        else:
            team._native(native.open_table, 4)(*table.span, helpers.address, opened.ctypes.data)
        fall_asleep(helpers.address, helpers.address + record)
        assert helpers._word(steps.SLEEPERS)[0] == helpers._word(record + steps.ASLEEP)[0] == 0
        assert target.tolist() == (np.zeros(40) if dismissed else turn * (np.resize(source, 40) + 1)).tolist()
        if not dismissed:
            assert helpers._word(int(opened[0]) - helpers.address + steps.FINISHED)[0] == 1
            team._native(native.close_table, 1)(int(opened[0]))
