"""Prepare plans for a file, and check and adapt plans that were read from a file."""
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphq.base.programs import TraceRecord
from graphq.base.sizes import Later, Size, assumed, smallest
from graphq.ir import Op, Signature, TensorType
from graphq.kernels.jit import Function, FunctionTable
from graphq.kernels.threads.steps import MOST_PIECES
from graphq.model.saved_values import want
from graphq.plan import plan as plans


def compact(plan: plans.Plan) -> plans.Plan:
    """Remove the buffers that no step uses, such as unused constants, before the plan is written."""
    used = {b for step in plan.steps for b in plans.touched(step)}
    kept = [k for k, b in enumerate(plan.buffers) if k in used or b.storage in ("input", "output", "report")]
    new = {old: k for k, old in enumerate(kept)}

    def renumbered(x: Any) -> Any:
        if isinstance(x, plans.Ref):
            return plans.Ref(new[x.buffer], x.offset)
        if isinstance(x, plans.PythonStep):
            return x._replace(inputs=tuple(None if b is None else new[b] for b in x.inputs),
                              outputs=tuple(new[b] for b in x.outputs))
        if isinstance(x, Mapping):
            return {name: renumbered(y) for name, y in x.items()}
        if isinstance(x, tuple):
            return type(x)(*map(renumbered, x)) if isinstance(x, plans.Step | plans.Part) else tuple(map(renumbered, x))
        return x

    return plan._replace(buffers=tuple(plan.buffers[k] for k in kept), steps=renumbered(plan.steps))


def on_threads(plan: plans.Plan, threads: int) -> plans.Plan:
    """Adapt a plan to `threads` threads, at most the number of threads that the plan was made for."""
    return plan if threads == plan.threads else plan._replace(threads=threads, steps=tuple([
        s.shared(smallest(s.pieces, threads)) if isinstance(s, plans.Step) else s for s in plan.steps]))


MOST_SLOTS = 1 << 22
"""The most values (slots) of a trace in a file. The trace of a large model has some 10,000."""


def check_record(record: TraceRecord, sizes: tuple[int, ...]) -> None:
    """Raise ParseError if a trace (the recorded computations with open sizes) is invalid, or not made for `sizes`.

    In a valid trace, each value is computed once, and only from earlier values.
    """
    want(type(record) is TraceRecord and isinstance(record.values, Mapping) and isinstance(record.guards, Mapping)
          and isinstance(record.assumed, Mapping) and type(record.calls) is tuple
          and type(record.functions) is tuple and all(map(callable, record.functions)), "no trace")
    want(tuple(record.assumed.values()) == sizes == tuple([record.values.get(k) for k in record.leaves]),
          "a trace for other sizes")
    made = {slot for slot, *_ in record.calls}
    known = {slot for slot in record.values if slot not in made}
    want(all(type(slot) is int and 0 <= slot < MOST_SLOTS for slot in (*known, *made)), "a trace without slots")
    want(known.issuperset(record.leaves) and len(set(record.leaves)) == len(sizes), "a trace without its sizes")
    for slot, k, *arguments in record.calls:
        want(type(k) is int and 0 <= k < len(record.functions) and slot not in known
              and known.issuperset(arguments), f"slot {slot} of a trace")
        known.add(slot)
    want(known.issuperset(record.guards), "a guard of no slot")


def check(plan: plans.Plan, signature: Signature) -> None:
    """Raise ParseError if a plan's buffers, steps and words are inconsistent, or do not fit the signature.

    The numbers in words are not checked further: a plan runs native code, so a file with plans is trusted like code.
    """
    want(type(plan) is plans.Plan and all(type(x) is tuple for x in (
        plan.buffers, plan.steps, plan.output_types, plan.errors, plan.nodes)), "no plan")
    outputs = tuple(signature.outputs.values())
    want(len(plan.output_types) == len(outputs) and all(map(_fits, plan.output_types, outputs)), "other outputs")
    want(all(type(x) is plans.ReportedError and x.kind in plans.REPORTS and type(x.where) is str
              and type(x.values) is tuple for x in plan.errors) and all(k is None or _is_number(k) for k in plan.nodes)
          and len(plan.nodes) in (0, len(plan.steps)), "no errors or nodes")
    want(type(plan.in_place) is tuple and all(
        type(x) is tuple and len(x) == 2 and _is_number(x[0]) and x[0] < len(signature.inputs) and _is_number(x[1])
        and x[1] < len(outputs) for x in plan.in_place), "no pairs of inputs and outputs")
    types = {"input": tuple(p.type for p in signature.inputs), "output": plan.output_types}
    for k, b in enumerate(plan.buffers):
        want(_is_buffer(b, types.get(getattr(b, "storage", ""), ()), len(plan.errors)), f"buffer {k}")
    want([b.index for b in plan.buffers if b.storage == "input"] == list(range(len(signature.inputs))), "other inputs")
    for step in plan.steps:
        want(_is_native(step, plan) if type(step) is plans.Step else _is_python(step, plan), f"step {step!r:.80}")


def _is_buffer(b: plans.Buffer, types: Sequence[TensorType], errors: int) -> bool:
    if type(b) is not plans.Buffer or not (_is_number(b.nbytes) and _is_number(b.index)):
        return False
    if not (b.type is None or type(b.type) is TensorType and assumed(b.nbytes) == _nbytes(b.type)):
        return False
    match b.storage:
        case "input":
            return b.data is None and b.index < len(types) and b.type is not None and _fits(b.type, types[b.index])
        case "output":  # types are not compared, because an output may be a view of a value of another type
            return b.data is None and b.index < len(types) and assumed(b.nbytes) == _nbytes(types[b.index])
        case "constant":
            data = b.data
            return type(data) is Later or isinstance(data, np.ndarray) and data.nbytes == b.nbytes
        case "report":
            return b.data is None and b.index < errors and b.nbytes == 8
        case "arena":
            return b.data is None
    return False


def _is_native(s: plans.Step, plan: plans.Plan) -> bool:
    return type(s.kernel) in (str, Later) and type(s.function) is Function and type(s.words) is dict \
        and all(type(name) is str for name in s.words) and type(s.slots) is tuple \
        and all(type(x) is tuple and len(x) == 3 for x in s.slots) and type(s.parts) is tuple \
        and all(type(p) is plans.Part and type(p.step) is plans.Step and type(p.moved) is tuple
                and _is_native(p.step, plan) for p in s.parts) \
        and all(type(w) is int and -(1 << 63) <= w < 1 << 63 or _is_word(w, plan) for w in s.block) \
        and _is_number(s.blocks) and _is_number(s.pieces) and assumed(s.pieces) <= MOST_PIECES \
        and _is_number(s.macs) and type(s.exact) in (type(None), float) and type(s.aligned) is bool \
        and (not s.aligned or "a" in s.words)


def _is_word(w: plans.Word, plan: plans.Plan) -> bool:
    if type(w) is Later:  # the address of a kernel that open sizes choose at run time
        return True
    if type(w) is plans.Ref:
        return type(w.buffer) is int and 0 <= w.buffer < len(plan.buffers) and _is_number(w.offset) \
            and assumed(w.offset) <= assumed(plan.buffers[w.buffer].nbytes)
    if type(w) is FunctionTable:
        return all(type(x) is Function or _is_number(x, -(1 << 63)) for x in w.entries)
    return type(w) is Function or _is_number(w, -(1 << 63))


def _is_python(s: Any, plan: plans.Plan) -> bool:
    return type(s) is plans.PythonStep and type(s.kernel) is str and type(s.reference) is bool \
        and (type(s.call) is plans.Copy or type(s.call) is plans.Reference and type(s.call.op) is Op
             and isinstance(s.call.attrs, Mapping) and type(s.call.shapes) is tuple) \
        and type(s.inputs) is tuple and type(s.outputs) is tuple \
        and all(b is None or _is_number(b) and b < len(plan.buffers) and plan.buffers[b].type is not None
                for b in s.inputs) \
        and all(_is_number(b) and b < len(plan.buffers) and plan.buffers[b].type is not None for b in s.outputs)


def _is_number(x: Any, least: int = 0) -> bool:
    """Whether `x` is an integer, or a Size with an integer example, from `least` to the largest s64."""
    x = assumed(x) if type(x) is Size else x
    return (type(x) is int or isinstance(x, int | np.integer)) and least <= int(x) < 1 << 63


def _fits(type: TensorType, wanted: TensorType) -> bool:
    """Whether a value's type in a plan fits the type in the signature, where open dimensions are None."""
    return isinstance(type, TensorType) and type.dtype is wanted.dtype and type.shape is not None and (
        wanted.shape is None or len(type.shape) == len(wanted.shape) and all(
            d is None or e == d for e, d in zip(map(assumed, type.shape), wanted.shape, strict=True)))


def _nbytes(type: TensorType) -> int:
    return TensorType(type.dtype, None if type.shape is None else tuple(map(assumed, type.shape))).nbytes
