"""What a helper does alone, one native function at a time."""
import numpy as np
import pytest
from kernel_factories import adding, falling_asleep

from graphq.kernels.jit import modules
from graphq.kernels.threads import steps, team
from graphq.kernels.threads.helpers import Helpers, native


@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.parametrize("dismissed", [False, True])
def test_a_helper_that_finds_a_reason_to_stay_awake_does_not_count_as_asleep(dismissed, wanted):
    """It runs what was offered before it could be seen asleep; where one more is wanted it wakes itself meanwhile."""
    source, target, opened = np.array([5, 7], np.int64), np.zeros(40, np.int64), np.zeros(1, np.int64)
    args = np.array([source.ctypes.data, target.ctypes.data, source.size], np.int64)
    row = modules.load("adding", adding).block, args.ctypes.data, target.size, 3
    table, helpers = team.StepTable([row]), Helpers(1)
    helpers.word(steps.CORES)[0] = 0  # no thread's cores are set
    helpers.word(steps.HELPERS)[0], helpers.word(steps.WANTED)[0] = 1, wanted
    code = modules.load("team", steps.team_module)
    fall_asleep = native(modules.load("fall_asleep", falling_asleep).fall_asleep, 2)
    record = steps.FIRST_RECORD
    for turn in (1, 2, 3):
        if dismissed:
            helpers.word(steps.STOP)[0] = 1
        else:
            native(code.open_table, 4)(*table.span, helpers.address, opened.ctypes.data)
        fall_asleep(helpers.address, helpers.address + record)
        assert helpers.word(steps.SLEEPERS)[0] == helpers.word(record + steps.ASLEEP)[0] == 0
        assert target.tolist() == (np.zeros(40) if dismissed else turn * (np.resize(source, 40) + 1)).tolist()
        if not dismissed:
            assert helpers.word(int(opened[0]) - helpers.address + steps.FINISHED)[0] == 1
            native(code.close_table, 1)(int(opened[0]))
