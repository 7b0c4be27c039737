"""The kernel of linear attention: the state of each head takes one token after the other, and is read after each."""
from __future__ import annotations

from graphq.ir import Node
from graphq.kernels.jit import Loop, block_module
from graphq.kernels.jit.intrinsics import Record
from graphq.kernels.jit.values import F32, Builder, Value, constant, smaller, vector
from graphq.kernels.lanes.vector import Columns, over_columns
from graphq.kernels.rows.loops import block_sums
from graphq.plan.builder import PlanBuilder, reference_steps
from graphq.plan.plan import Ref, plan_rows

LANES = 32
LINEAR = Record("query", "key", "value", "past", "decay", "beta", "target", "state", "rows", "steps", "groups", "heads",
                "keys", "values", "each")
"""The argument block: `rows` states (batch * `groups`) of `keys` x `values` f32, `steps` tokens each.

`heads` queries of a token read a state, and a block has `each` states. The caller fills in the addresses.
"""


def _advance(b: Builder, at: dict[str, Value], row: Value, c: Columns, decays: bool, delta: bool) -> None:
    """Emit all steps of some columns of the state number `row`."""
    width, zeros = at["values"] * 4, constant(vector(F32, LANES), 0)
    past, state = (at[name] + row * at["keys"] * width for name in ("past", "state"))

    def factor(name: str, place: Value) -> Value:
        return (at[name] + place * 4).load(F32).splat(LANES)

    with Loop(b, at["steps"]) as step:
        token = (row.udiv(at["groups"]) * at["steps"] + step.k) * at["groups"] + row.urem(at["groups"])
        first, before = token * at["keys"], step.k.eq(0).select(past, state)

        def decayed(k: Value, sums: list[Value]) -> list[Value]:
            x = c.load(before + k * width, F32, 4)
            x = x * factor("decay", first + k) if decays else x
            c.store(x, state + k * width, F32, 4)
            return [factor("key", first + k).math("fma", x, sums[0])]

        (own,) = block_sums(b, at["keys"], [zeros], decayed)
        new = c.load(at["value"] + token * width, F32, 4)
        new = (new - own) * factor("beta", token) if delta else new
        with Loop(b, at["keys"]) as loop:
            line = state + loop.k * width
            c.store(c.load(line, F32, 4) + factor("key", first + loop.k) * new, line, F32, 4)
        with Loop(b, at["heads"]) as readers:
            reader = token * at["heads"] + readers.k
            (y,) = block_sums(b, at["keys"], [zeros], lambda k, sums: [
                factor("query", reader * at["keys"] + k).math("fma", c.load(state + k * width, F32, 4), sums[0])])
            c.store(y, at["target"] + reader * width, F32, 4)


@block_module
def linear_attention(b: Builder, args: Value, index: Value, *, decays: int, delta: int) -> None:
    """Take all steps of some states, LANES columns at a time. With `decays` there is a decay, with `delta` a beta."""
    at = {name: LINEAR.load(args, name) for name in LINEAR.fields}
    first = index * at["each"]
    with Loop(b, smaller(at["each"], at["rows"] - first)) as rows:
        def strip(vectors: list[Columns], carried: list[Value]) -> list[Value]:
            _advance(b, at, first + rows.k, vectors[0], bool(decays), bool(delta))
            return carried

        over_columns(b, at["values"], LANES, [], strip)


def linear_attention_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step of linear_attention. The reference runs for empty tensors."""
    given = dict(zip(("query", "key", "value", "past", "decay", "beta"), node.inputs, strict=False))
    (batch, tokens, groups, heads, keys), values = node.operand(0).type.dims, node.operand(2).type.dims[3]
    if node.outputs[0].type.size == 0:
        return reference_steps(b, node)
    words = {"rows": batch * groups, "steps": tokens, "groups": groups, "heads": heads, "keys": keys, "values": values}
    step = plan_rows(linear_attention, LINEAR, words, b.target, rows=batch * groups, cycles=tokens * keys * values / 4,
                     of=tuple(int(given.get(x) is not None) for x in ("decay", "beta")))
    target, state = map(b.result, node.outputs)
    b.may_share(b.of[node.operand(3)], state)
    b.run(step, {"target": Ref(target), "state": Ref(state),
                 **{name: 0 if x is None else Ref(b.of[x]) for name, x in given.items()}})
