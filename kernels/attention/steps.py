"""The plan steps of the operation cached_attention: write both caches, then attend to them."""
from __future__ import annotations

import numpy as np

from graphq.base.sizes import smallest
from graphq.ir import Node, Value
from graphq.kernels.attention.attend import plan_attention
from graphq.kernels.attention.cache import MOST, plan_cache
from graphq.plan.builder import PlanBuilder, reference_steps
from graphq.plan.plan import Ref, Word


def attention_steps(b: PlanBuilder, node: Node) -> None:
    """Add the three plan steps. The reference runs if heads have over `MOST` numbers, or tables of angles are empty."""
    query, lengths = node.operand(0), node.operand(1)
    key, value, past_key, past_value, cos, sin, positions, bias, sinks, *scales = [*node.inputs[3:], *[None] * 11][:11]
    a, (y, *caches) = node.attrs, node.outputs
    (batch, tokens, width), kept = y.type.dims, a["kept"]
    groups, capacity, size = a["groups"], caches[0].type.dims[2], width // a["heads"]
    if size > MOST or y.type.size == 0 or cos is not None and cos.type.dims[0] == 0:
        return reference_steps(b, node)
    rows = 0 if past_key is None else past_key.type.dims[2]
    most = capacity if bias is None else smallest(capacity, bias.type.dims[3])
    half, places = (0, 0) if cos is None else (cos.type.dims[1], cos.type.dims[0])
    numbers = {"tokens": tokens, "groups": groups, "rows": rows, "capacity": capacity, "most": most, "half": half,
               "places": places}
    wrong = {"wrong_length": Ref(b.report("cache length", node, rows, most, tokens)),
             "wrong_position": Ref(b.report("cache position", node, places))}
    angles: dict[str, Word] = {"cos": _operand(b, cos), "sin": _operand(b, sin), "positions": _operand(b, positions)}
    of_lengths: dict[str, Word] = {"lengths": Ref(b.of[lengths])}
    each = zip((key, value), (past_key, past_value), caches, scales, strict=True)
    for k, (x, past, cache, scale) in enumerate(each):
        start, stride = (4 * size * (a["heads"] + groups * k), 4 * query.type.dims[2]) if x is None else \
            (0, 4 * size * groups)
        rotary = cos is not None and k == 0
        step = plan_cache({**numbers, "size": size, "stride": stride, "heads": batch * groups}, rotary,
                          a["interleaved"], kept, b.target)
        target = b.result(cache)
        if past is not None:
            b.may_share(b.of[past], target)
        b.run(step, {"new": Ref(b.of[query if x is None else x], start), "past": _operand(b, past),
                     "cache": Ref(target), "scale": _operand(b, scale), **of_lengths, **wrong,
                     **(angles if rotary else {})})
    biased = bias is not None
    rank = (0, 0, 0) if bias is None else _strides(bias)
    step = plan_attention(
        {**numbers, "batch": batch, "shared": a["heads"] // groups, "stride": 4 * query.type.dims[2],
         "window": max(a["window"], 0), "causal": int(a["causal"]), "scale": _bits(a["scale"]),
         "softcap": _bits(a["softcap"]), **dict(zip(("bias_batch", "bias_head", "bias_row"), rank, strict=True))},
        size, kept, cos is not None, a["interleaved"], bool(a["softcap"]), biased, sinks is not None, b.target)
    keys, values = (Ref(b.of[v]) for v in caches)
    b.run(step, {"query": Ref(b.of[query]), "keys": keys, "values": values, "target": Ref(b.result(y)), **of_lengths,
                 **angles, "bias": _operand(b, bias), "sinks": _operand(b, sinks), "key_scale": _operand(b, scales[0]),
                 "value_scale": _operand(b, scales[1])})


def _operand(b: PlanBuilder, value: Value | None) -> Word:
    return 0 if value is None else Ref(b.of[value])


def _bits(x: float) -> int:
    return int(np.float32(x).view(np.int32))


def _strides(bias: Value) -> tuple[int, int, int]:
    """The bias's strides in bytes along batch, heads and tokens. A batch or head dimension of size 1 has stride 0."""
    batch, heads, tokens, keys = bias.type.dims
    row = 4 * keys
    return 0 if batch == 1 else row * tokens * heads, 0 if heads == 1 else row * tokens, row
