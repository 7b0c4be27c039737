"""Find the tensors of a document whose first dimension is the minibatch, for the knob `--mb`."""
from __future__ import annotations

from graphq.onednn.document import FileOp, GraphFile, LogicalTensor

_ALL_OPERANDS = ("Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum", "SquaredDifference", "GreaterEqual",
                 "Select", "Concat", "DynamicDequantize")


def batch_tensors(file: GraphFile) -> dict[int, int]:
    """The minibatch of each tensor whose first dimension is the minibatch, by id.

    The minibatch is the first dimension of the graph's results. The search goes back from the results to the inputs
    through the first operand of each op (both operands of a batched MatMul, all operands of a binary op with that
    dimension), until an op moves or reduces the axis.
    """
    used = {t.id for op in file.ops for t in op.inputs}
    batch: dict[int, int] = {}
    for op in reversed(file.in_order("--mb")):
        for t in op.outputs:
            if t.id not in used and t.shape and t.shape[0] is not None:
                batch.setdefault(t.id, t.shape[0])
        if op.outputs and op.outputs[0].id in batch:
            for t in _carriers(op, batch[op.outputs[0].id]):
                batch.setdefault(t.id, batch[op.outputs[0].id])
    return batch


def _carriers(op: FileOp, size: int) -> list[LogicalTensor]:
    """The operands that share their first dimension with the result."""
    out, attrs = op.outputs[0], {k: a.value for k, a in (op.attrs or {}).items()}
    operands = op.inputs[:1]
    # the first dimension, counted from the front or from the end
    first = {0, -len(operands[0].shape or ()) if operands else 0}
    if op.kind == "StaticTranspose" and first.isdisjoint(attrs.get("order", ())[:1]):
        return []
    if op.kind.startswith("Reduce") and not first.isdisjoint(attrs.get("axes", ())):
        return []
    if op.kind == "Concat" and attrs.get("axis") in first:
        return []
    if op.kind == "MatMul":
        batched = out.shape is not None and len(out.shape) > 2
        if not batched and attrs.get("transpose_a"):
            return []
        operands = op.inputs[:2] if batched else operands
    elif op.kind in _ALL_OPERANDS:
        operands = op.inputs
    same_rank = op.kind in ("StaticReshape", "MatMul", *_ALL_OPERANDS)
    return [t for t in operands if t.shape and t.shape[0] == size
            and not (t.property_type == "constant" and size == 1)
            and (not same_rank or op.kind == "StaticReshape" or out.shape is None or len(t.shape) == len(out.shape))]
