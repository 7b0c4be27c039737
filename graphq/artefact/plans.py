"""Plans as they are saved: without what no step uses, and run by fewer threads than they were made for."""
from __future__ import annotations

from dataclasses import replace

from graphq.errors import ParseError
from graphq.plan.plan import NativeStep, Plan, PythonStep, Ref, Step, rooms_of, touched
from graphq.sizes import assumed, number


def compact(plan: Plan) -> Plan:
    """The plan without the modules that reports ask for, and without constants that its steps do not use."""
    used = {b for step in plan.steps for b in touched(step)}
    kept = [k for k, b in enumerate(plan.buffers) if k in used or b.storage in ("input", "output", "report")]
    new = {old: k for k, old in enumerate(kept)}

    def renumbered(step: Step) -> Step:
        if isinstance(step, PythonStep):
            return step._replace(inputs=tuple(None if b is None else new[b] for b in step.inputs),
                                 outputs=tuple(new[b] for b in step.outputs))
        words = tuple(Ref(new[w.buffer], w.offset) if isinstance(w, Ref) else w for w in step.words)
        return replace(step, words=words, keep=None)

    return plan._replace(buffers=tuple(plan.buffers[k] for k in kept), steps=tuple(map(renumbered, plan.steps)))


def on_threads(plan: Plan, threads: int) -> Plan:
    """The plan on at most so many threads, not more than it was made for."""
    def shared(step: Step) -> Step:
        if not isinstance(step, NativeStep) or step.rooms is None:
            return step
        words = list(step.words)
        words[step.rooms] = number(rooms_of, step.parallel, step.blocks, threads)
        return replace(step, words=tuple(words))

    return plan if threads == plan.threads else plan._replace(threads=threads, steps=tuple(map(shared, plan.steps)))


def check(plan: Plan) -> None:
    """Raise ParseError where steps and words point to what is not in the plan."""
    for step in plan.steps:
        if not all(0 <= b < len(plan.buffers) for b in touched(step)):
            raise ParseError(f"step {step.kernel}: a buffer that the plan does not have")
        for w in step.words if isinstance(step, NativeStep) else ():
            if isinstance(w, Ref) and not 0 <= assumed(w.offset) <= assumed(plan.buffers[w.buffer].nbytes):
                raise ParseError(f"step {step.kernel}: an address outside of buffer {w.buffer}")
