"""The plan steps of the operation cached_attention: write both caches, then attend to them."""
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
    bias_strides = dict[str, int]()
    if bias is not None:  # a batch or head dimension of size 1 is repeated
        of_batch, of_heads, of_tokens, of_keys = bias.type.dims
        row = 4 * of_keys
        bias_strides = {"bias_batch": 0 if of_batch == 1 else row * of_tokens * of_heads,
                        "bias_head": 0 if of_heads == 1 else row * of_tokens, "bias_row": row}
    step = plan_attention(
        {**numbers, "batch": batch, "shared": a["heads"] // groups, "stride": 4 * query.type.dims[2],
         "window": max(a["window"], 0), "causal": int(a["causal"]), "scale": _bits(a["scale"]),
         "softcap": _bits(a["softcap"]), **bias_strides},
        size, kept, cos is not None, a["interleaved"], bool(a["softcap"]), bias is not None, sinks is not None,
        b.target)
    keys, values = (Ref(b.of[v]) for v in caches)
    b.run(step, {"query": Ref(b.of[query]), "keys": keys, "values": values, "target": Ref(b.result(y)), **of_lengths,
                 **angles, "bias": _operand(b, bias), "sinks": _operand(b, sinks), "key_scale": _operand(b, scales[0]),
                 "value_scale": _operand(b, scales[1])})


def _operand(b: PlanBuilder, value: Value | None) -> Word:
    return 0 if value is None else Ref(b.of[value])


def _bits(x: float) -> int:
    return int(np.float32(x).view(np.int32))
