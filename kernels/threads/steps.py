"""The native code with which callers and helpers share the steps of plans. `team` has the overview.

A caller is a thread that runs a plan. A helper is a thread of the team that runs pieces of the plan's steps. A team is
an array of words. Several callers can offer tables of steps at the same time, each in a slot of its own:

    stop       whether helpers must return
    sleepers   the number of helpers that sleep
    helpers    the number of helpers
    wanted     the number of helpers that callers can use
    records    the largest possible number of helpers
    cores      the size in bytes of the mask of the process's cores, which follows; the size is 0 if helpers can run
               on any core
    record     one for each helper: whether it is asleep; a semaphore; the fields of HELPER (its pthread_t, the core
               that it must avoid, and the address of the team); a mask without that core
    slot   busy       whether a caller uses the slot
           ticket     pieces << 24 | pieces that helpers have taken << 12 | pieces that the caller has taken;
                      a thread takes a piece by adding one to one of the two counts
           ended      the number of pieces that are done
           work       the addresses of the step on offer, of the next step, of the table's end and of the team, and the
                      core of the caller (WORK)
           finished   whether the table is done

A caller takes pieces from the first on, helpers take pieces from the last on. The next step then finds data of the
previous step in the same core's cache (MobileNetV2 in f32 on two cores: 5 %). Before a helper has taken a piece, it
reads only the ticket. If another thread changes the ticket first, the helper takes no piece and looks again.
"""
from graphq.kernels.jit import Functions, njit
from graphq.kernels.jit.intrinsics import Record, call_block, load_s64, store_s64
from graphq.kernels.threads.system import (
    SEMAPHORE_BYTES,
    acquired,
    added,
    exchanged,
    fence,
    give_way,
    pause,
    release,
    semaphore_post,
    semaphore_wait,
    set_cores,
    this_core,
    this_thread,
)

LINE = 128
"""The bytes between words that different threads write: two cache lines, since the CPU fetches lines in pairs."""
STOP, SLEEPERS, HELPERS, WANTED, RECORDS = (k * LINE for k in range(5))
CORES, MASK = 5 * LINE, 6 * LINE
SLOTS = 7 * LINE
BUSY, TICKET, ENDED, WORK_AT, FINISHED = (k * LINE for k in range(5))
SLOT = 5 * LINE
STEP = Record("function", "args", "blocks", "pieces")
"""A row of a table: a block function, its argument block, the number of blocks, and the number of pieces.

A step with 0 pieces runs serially.
"""
WORK = Record("step", "next", "end", "team", "core")
HELPER = Record("thread", "kept_off", "team")
ROW = STEP.nbytes
MOST_TABLES = 16
"""The most callers that get help at the same time; other callers run all of their steps by themselves."""
MOST_PIECES = (1 << 12) - 1
FIRST_RECORD = SLOTS + MOST_TABLES * SLOT
ASLEEP, SEMAPHORE, OWN_MASK = (k * LINE for k in range(3))
HELPER_AT = SEMAPHORE + SEMAPHORE_BYTES
RECORD = 3 * LINE

SPIN = 20_000
"""How often a helper looks for work before it sleeps: 0.5 to 1 ms, longer than most models' serial steps."""
PATIENCE = 2_000
"""How often a caller checks whether helpers have ended their pieces, before it yields its core to other threads."""


@njit
def _run_blocks(step: int, first: int, end: int) -> None:
    x = STEP(step)
    function, args = x.function, x.args
    for i in range(first, end):
        call_block(function, args, i)


@njit
def run_piece(step: int, piece: int) -> None:
    """Run one piece of a step; `step` is the address of the step's row."""
    blocks, pieces = STEP(step).blocks, STEP(step).pieces
    _run_blocks(step, piece * blocks // pieces, (piece + 1) * blocks // pieces)


@njit
def _keep_off(team: int, record: int, core: int) -> None:
    """Let a helper run on all cores of the process except `core`, the core of its caller."""
    size, helper = load_s64(team + CORES), HELPER(record + HELPER_AT)
    if size and core >= 0 and core != helper.kept_off:
        for k in range(0, size, 8):
            store_s64(record + OWN_MASK + k, load_s64(team + MASK + k))
        word = record + OWN_MASK + core // 64 * 8
        store_s64(word, load_s64(word) & ~(1 << core % 64))
        set_cores(helper.thread, size, record + OWN_MASK)
        helper.kept_off = core


@njit
def _wake(team: int, count: int, core: int) -> None:
    """Wake at most `count` sleeping helpers, and keep them off the core `core`."""
    for k in range(load_s64(team + RECORDS)):
        record = team + FIRST_RECORD + k * RECORD
        if count > 0 and acquired(record + ASLEEP) and exchanged(record + ASLEEP, 1, 0):
            added(team + SLEEPERS, -1)
            _keep_off(team, record, core)
            semaphore_post(record + SEMAPHORE)
            count -= 1


@njit
def _go_on(team: int, slot: int) -> None:
    """Run serial steps, then offer the next parallel step; at the end, mark the table as finished."""
    work = WORK(slot + WORK_AT)
    step, end = work.next, work.end
    while step < end and STEP(step).pieces == 0:
        _run_blocks(step, 0, STEP(step).blocks)
        step += ROW
    if step < end:
        pieces = STEP(step).pieces
        work.step = step
        work.next = step + ROW
        store_s64(slot + ENDED, 0)
        release(slot + TICKET, pieces << 24)
        fence()  # if a helper is falling asleep, either it sees the ticket, or this thread sees that it sleeps
        sleepers = acquired(team + SLEEPERS)
        missing = acquired(team + WANTED) - load_s64(team + HELPERS) + sleepers
        if missing > 0 and sleepers > 0 and pieces > 1:
            _wake(team, min(missing, pieces - 1), work.core)
    else:
        release(slot + FINISHED, 1)


@njit
def _help(team: int, slot: int, helper: int) -> int:
    """Take and run a piece on offer, as a `helper` (1) or the caller (0); returns 0 if no piece was left."""
    ticket = acquired(slot + TICKET)
    first, last, pieces = ticket & MOST_PIECES, ticket >> 12 & MOST_PIECES, ticket >> 24
    if first + last >= pieces:
        return 0
    if exchanged(slot + TICKET, ticket, ticket + (1 << 12 if helper else 1)):
        run_piece(WORK(slot + WORK_AT).step, pieces - 1 - last if helper else first)
        if added(slot + ENDED, 1) + 1 == pieces:
            _go_on(team, slot)
    return 1


@njit
def _work(team: int, slot: int, helper: int) -> None:
    """Run pieces of the table in a slot until the table is finished."""
    waited = 0
    while acquired(slot + FINISHED) == 0:
        if _help(team, slot, helper):
            waited = 0
        elif waited < PATIENCE:
            waited += 1
            pause()
        else:
            give_way()


@njit
def _offer(table: int, end: int, team: int, slot: int) -> None:
    work = WORK(slot + WORK_AT)
    work.next = table
    work.end = end
    work.team = team
    work.core = this_core()
    store_s64(slot + FINISHED, 0)
    _go_on(team, slot)


@njit
def _open(table: int, end: int, team: int, helpers: int) -> int:
    """Offer a table in a free slot; returns the slot's address, or 0 if no slot is free."""
    for k in range(MOST_TABLES):
        slot = team + SLOTS + k * SLOT
        if load_s64(slot + BUSY) == 0 and exchanged(slot + BUSY, 0, 1):
            added(team + WANTED, helpers)
            _offer(table, end, team, slot)
            return slot
    return 0


@njit
def _run_steps(table: int, end: int) -> None:
    step = table
    while step < end:
        _run_blocks(step, 0, STEP(step).blocks)
        step += ROW


def run_serial(table: int, end: int) -> None:
    """Run the steps from row `table` up to row `end` (exclusive) on this thread."""
    _run_steps(table, end)


def run_shared(table: int, end: int, team: int, helpers: int) -> None:
    """Run the steps from row `table` up to row `end` (exclusive) as a caller, with at most `helpers` helpers."""
    slot = _open(table, end, team, helpers)
    if slot:
        _work(team, slot, 0)
        added(team + WANTED, -helpers)
        release(slot + BUSY, 0)
    else:
        _run_steps(table, end)


def open_table(table: int, end: int, team: int, opened: int) -> None:
    """If the first slot is free, offer a table in it, and store the slot's address at address `opened`."""
    slot = team + SLOTS
    if exchanged(slot + BUSY, 0, 1):
        store_s64(opened, slot)
        _offer(table, end, team, slot)


def take_part(slot: int, k: int) -> None:
    """Run pieces of an offered table until it is finished, as thread `k` of a region; thread 0 acts as the caller."""
    _work(WORK(slot + WORK_AT).team, slot, min(k, 1))


def close_table(slot: int) -> None:
    """Run the rest of a table, and free its slot. The table's memory may be freed afterwards."""
    _work(WORK(slot + WORK_AT).team, slot, 0)
    release(slot + BUSY, 0)


@njit
def _look(team: int) -> int:
    found = 0
    for k in range(MOST_TABLES):
        while _help(team, team + SLOTS + k * SLOT, 1):
            found = 1
    return found


@njit
def _sleep(team: int, record: int) -> None:
    """Sleep until another thread wakes this helper, unless there is work or helpers must return."""
    added(team + SLEEPERS, 1)
    release(record + ASLEEP, 1)
    fence()
    if (_look(team) or acquired(team + STOP)) and exchanged(record + ASLEEP, 1, 0):
        added(team + SLEEPERS, -1)
    else:
        while semaphore_wait(record + SEMAPHORE) != 0:  # wait again if a signal interrupts the wait
            pass


@njit
def _stay(team: int, record: int) -> None:
    size, helper = load_s64(team + CORES), HELPER(record + HELPER_AT)
    helper.thread = this_thread()
    helper.kept_off = -1
    if size:
        set_cores(helper.thread, size, team + MASK)  # a new thread inherits its creator's cores, perhaps too few
    added(team + HELPERS, 1)
    idle = 0
    while acquired(team + STOP) == 0:
        if _look(team):
            idle = 0
        elif idle < SPIN:
            idle += 1
            pause()
        else:
            _sleep(team, record)
            idle = 0


def help_others(team: int, k: int) -> None:
    """Run pieces that callers offer until the helpers are dismissed, as iteration `k` of a prange."""
    _stay(team, team + FIRST_RECORD + k * RECORD)


def help_from(record: int) -> None:
    """Run pieces that callers offer until the helpers are dismissed, as the native thread of `record`."""
    _stay(HELPER(record + HELPER_AT).team, record)


def dismiss(team: int) -> None:
    """Let all helpers return."""
    release(team + STOP, 1)
    fence()
    _wake(team, load_s64(team + RECORDS), -1)


def nothing(argument: int, k: int) -> None:
    """Do nothing: the function for a region that only starts threads."""


def serial_module() -> Functions:
    """Make the module that runs a table on one thread."""
    return Functions(run_serial=run_serial)


def team_module() -> Functions:
    """Make the module with the code of callers and helpers."""
    return Functions(run_shared=run_shared, help_others=help_others, help_from=help_from, open_table=open_table,
                     take_part=take_part, close_table=close_table, dismiss=dismiss, nothing=nothing)
