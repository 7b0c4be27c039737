"""Operations whose attributes are graphs (bodies): ONNX's if_else, loop and scan, and partition (fused operations).

The references run a body node by node. The inputs of the bodies of if_else and partition are the operands, in order;
the docstrings of loop and scan describe the inputs of their bodies. `Graph.specialize` does not change the
bodies of loops, so a loop's results keep the shapes that its body was built with.
"""
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol, runtime_checkable

import numpy as np

from graphq.base.budget import expect
from graphq.dtypes import boolean, s64
from graphq.errors import GraphError
from graphq.ir import Graph, TensorType, Value, lookup, register_op
from graphq.ir.interpret import evaluate
from graphq.ops.rules import ONE, Array, normal_axis, with_axis

ASKED = 1 << 24
"""A loop does not check the memory limit before its states and values exceed twice this number of bytes."""


@runtime_checkable
class Runnable(Protocol):
    """A body that can run itself, such as a compiled body. A Graph is run by the references of its operations."""

    inputs: list[Value]
    outputs: list[Value]

    def run(self, feeds: dict[str, Array]) -> list[Array]:
        """Compute the outputs for `feeds`, arrays by the names of inputs."""


def call(body: Graph | Runnable, arrays: Sequence[Array]) -> list[Array]:
    """Run a body on arrays, one for each of its inputs. Returns its outputs."""
    feeds = {str(v.name): np.asarray(x, v.dtype.numpy) for v, x in zip(body.inputs, arrays, strict=True)}
    return body.run(feeds) if isinstance(body, Runnable) else [np.array(x) for x in evaluate(body, feeds)]


def common_type(a: TensorType, b: TensorType) -> TensorType:
    """The type that covers both types: different dimensions become unknown. Raises GraphError if dtypes differ."""
    if a.dtype != b.dtype:
        raise GraphError(f"results must have the same dtype in all bodies and iterations, got {a} and {b}")
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype, None)
    return TensorType(a.dtype, tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)))


def check_body(body: Graph, types: Sequence[TensorType], results: int | None = None) -> None:
    """Raise GraphError if operands do not fit the body's inputs, or the body has fewer than `results` outputs."""
    if len(types) != len(body.inputs):
        raise GraphError(f"the body takes {len(body.inputs)} values, got {len(types)}")
    for v, t in zip(body.inputs, types, strict=True):
        if common_type(v.type, t) != v.type:
            raise GraphError(f"the body takes {v.type} for '{v.name}', got {t}")
    if results is not None and len(body.outputs) < results:
        raise GraphError(f"the body must return at least {results} results, got {len(body.outputs)}")


def infer_if_else(cond: TensorType, *srcs: TensorType, then_body: Graph, else_body: Graph) -> tuple[TensorType, ...]:
    """The condition is one boolean. A result's type covers the types of both bodies (see `common_type`)."""
    if cond.dtype != boolean or cond.shape not in ONE:
        raise GraphError(f"'cond' must be one boolean, got {cond}")
    for body in (then_body, else_body):
        check_body(body, srcs, len(then_body.outputs))
    if len(then_body.outputs) != len(else_body.outputs):
        raise GraphError(f"both bodies must return the same number of results, got {len(then_body.outputs)} and "
                         f"{len(else_body.outputs)}")
    return tuple(common_type(a.type, b.type) for a, b in zip(then_body.outputs, else_body.outputs, strict=True))


def resolve_if_else(graph: Graph, operands: Sequence[Value | None],
                    attrs: Mapping[str, Any]) -> tuple[Value, ...] | None:
    """Replace an if_else with a constant condition by the chosen branch; otherwise specialize its bodies.

    In specialized bodies, inputs have the operands' types, and constant operands are constants. Returns the results, or
    None if nothing changes or if a body does not fit the operands.
    """
    cond, *srcs = (v for v in operands if v is not None)
    bodies = attrs["then_body"], attrs["else_body"]
    if cond.data is not None:
        body = bodies[0 if cond.data.any() else 1]
        return tuple(inlined(graph, body, srcs))
    if [v.type for v in bodies[0].inputs] == [v.type for v in srcs] and all(v.data is None for v in srcs):
        return None
    try:
        new = [_known(body, srcs) for body in bodies]
    except GraphError:  # the operands need not fit a branch that never runs
        return None
    return graph.add_node(lookup("if_else"), [cond, *(v for v in srcs if v.data is None)],
                          {"then_body": new[0], "else_body": new[1]})


def _known(body: Graph, srcs: Sequence[Value]) -> Graph:
    pairs = [(str(v.name), x) for v, x in zip(body.inputs, srcs, strict=True)]
    return body.specialize({n: x.type for n, x in pairs if x.data is None},
                           {n: x.data for n, x in pairs if x.data is not None})


def inlined(graph: Graph, body: Graph, srcs: Sequence[Value]) -> list[Value]:
    """Add the nodes of a body to `graph`. Returns the body's results."""
    part = _known(body, srcs)
    new = dict(zip(part.inputs, (x for x in srcs if x.data is None), strict=True))
    for node in part.nodes:
        outs = graph.add_again(node, [None if v is None else new[v] for v in node.inputs])
        graph.nodes[-1].meta = node.meta
        for old, value in zip(node.outputs, outs, strict=True):
            new[old] = value
            if old.name is not None and not graph.has_name(old.name):
                graph.rename(value, old.name)
    return [new[v] for v in part.outputs]


@register_op(infer=infer_if_else, resolve=resolve_if_else)
def if_else(cond: Array, *srcs: Array, then_body: Graph, else_body: Graph) -> tuple[Array, ...]:
    """The results of `then_body` if `cond` is true, else of `else_body`, on the operands `srcs` (ONNX If)."""
    return tuple(call(then_body if bool(cond.reshape(())) else else_body, srcs))


def infer_loop(trips: TensorType, cond: TensorType, *srcs: TensorType, body: Graph,
               states: int) -> tuple[TensorType, ...]:
    """Results are the last states, with types that cover all iterations, and the stacked values (see `loop`)."""
    for name, t, dtype in (("trips", trips, s64), ("cond", cond, boolean)):
        if t.dtype != dtype or t.shape not in ONE:
            raise GraphError(f"'{name}' must be one {dtype}, got {t}")
    if not 0 <= states <= len(srcs):
        raise GraphError(f"states must be in [0, {len(srcs)}], got {states}")
    check_body(body, [TensorType(s64, ()), TensorType(boolean, ()), *srcs], states + 1)
    results = [v.type for v in body.outputs]
    for t, out in zip(srcs[:states], results[1:], strict=False):
        if t.dtype != out.dtype:
            raise GraphError(f"a state must keep its dtype, got {t.dtype} and then {out.dtype}")
    carried = [common_type(t, out) for t, out in zip(srcs[:states], results[1:], strict=False)]
    stacked = (TensorType(t.dtype, None if t.shape is None else (None, *t.shape)) for t in results[1 + states:])
    return (*carried, *stacked)


@register_op(infer=infer_loop)
def loop(trips: Array, cond: Array, *srcs: Array, body: Graph, states: int) -> tuple[Array, ...]:
    """Run `body` while `cond` holds, at most `trips` times (ONNX Loop).

    `srcs` are the initial states (`states` of them), and other operands. The body takes (iteration, cond, states, other
    operands) and returns (cond, states, values). The results are the last states, then the values of all iterations,
    stacked along a new first axis. States and values may grow with each iteration; raises CompileError if they exceed
    the memory limit (`graphq.base.budget`).
    """
    carried, rest = list(srcs[:states]), srcs[states:]
    going, most = bool(cond.reshape(())), int(trips.reshape(()))
    kept: list[list[Array]] = [[] for _ in body.outputs[1 + states:]]
    held, asked = 0, ASKED
    for k in count():
        if not going or k >= most:
            break
        more, *outs = call(body, [np.asarray(k, np.int64), np.asarray(going), *carried, *rest])
        going, carried = bool(more.reshape(())), outs[:states]
        for values, x in zip(kept, outs[states:], strict=True):
            values.append(x)
            held += x.nbytes
        nbytes = held + sum(x.nbytes for x in carried)
        if nbytes > 2 * asked:  # checked only when the bytes have doubled, because a check takes time
            asked = nbytes
            expect(2 * nbytes, f"the states and values of a loop after {k + 1} iterations and the next")
    return (*carried, *_stack(kept, body, [(), (), *(x.shape for x in srcs)], 1 + states))


def _stack(kept: Sequence[list[Array]], body: Graph | Runnable, shapes: Sequence[tuple[int, ...]],
           first: int) -> list[Array]:
    """Stack each list of values along a new first axis.

    If there were no iterations, the stacks are empty. Their types are then the types of the body's outputs, from number
    `first` on, for operands of these `shapes`; unknown dimensions become 0.
    """
    for k, values in enumerate(kept):
        if len(different := sorted({x.shape for x in values})) > 1:
            raise GraphError(f"result {first + k} of the body must have one shape in all iterations to be stacked, got "
                             f"{list(different[0])} and {list(different[1])}")
    if any(kept):
        return [np.stack(values) for values in kept]
    if isinstance(body, Graph):
        with suppress(GraphError):  # the operands need not fit a body that never runs
            body = body.specialize({str(v.name): TensorType(v.dtype, shape)
                                    for v, shape in zip(body.inputs, shapes, strict=True)})
    types = [v.type for v in body.outputs[first:]]
    return [np.empty((0, *(d or 0 for d in t.shape or ())), t.dtype.numpy) for t in types]


def infer_scan(*srcs: TensorType, body: Graph, states: int, scanned: int, input_axes: tuple[int, ...],
               reverse_inputs: tuple[bool, ...], output_axes: tuple[int, ...],
               reverse_outputs: tuple[bool, ...]) -> tuple[TensorType, ...]:
    """Results are the last states and the stacked values (see `scan`). Scanned operands have equal lengths."""
    if states < 0 or scanned < 1 or states + scanned > len(srcs):
        raise GraphError(f"states and scanned operands must be among {len(srcs)}, got {states} and {scanned}")
    results = [v.type for v in body.outputs]
    for name, given, want in (("input_axes", input_axes, scanned), ("reverse_inputs", reverse_inputs, scanned),
                              ("output_axes", output_axes, len(results) - states),
                              ("reverse_outputs", reverse_outputs, len(results) - states)):
        if len(given) != want:
            raise GraphError(f"{name} must be {want} values, got {len(given)}")
    parts = [with_axis(t, axis) for t, axis in zip(srcs[states:states + scanned], input_axes, strict=True)]
    check_body(body, [*srcs[:states], *parts, *srcs[states + scanned:]], states)
    lengths = {t.shape[normal_axis(a, t.shape)] for t, a in zip(srcs[states:], input_axes, strict=False)
               if t.shape is not None} - {None}
    if len(lengths) > 1:
        raise GraphError(f"scanned operands must have one length, got {sorted(lengths, key=str)}")
    length = lengths.pop() if lengths else None
    carried = [common_type(t, out) for t, out in zip(srcs[:states], results, strict=False)]
    return (*carried, *(_whole(t, axis, length) for t, axis in zip(results[states:], output_axes, strict=True)))


def _whole(t: TensorType, axis: int, length: int | None) -> TensorType:
    if t.shape is None:
        return t
    k = normal_axis(axis, (*t.shape, None))
    return TensorType(t.dtype, (*t.shape[:k], length, *t.shape[k:]))


@register_op(infer=infer_scan)
def scan(*srcs: Array, body: Graph, states: int, scanned: int, input_axes: list[int], reverse_inputs: list[bool],
         output_axes: list[int], reverse_outputs: list[bool]) -> tuple[Array, ...]:
    """Run `body` for each slice of the scanned operands along their axes (ONNX Scan, version 9).

    `srcs` are the initial states (`states` of them), the scanned operands (`scanned` of them), and others. The body
    takes (states, slices, others) and returns (states, values). The results are the last states, and the values stacked
    along `output_axes`. `reverse_inputs` and `reverse_outputs` say which operands and results run backwards.
    """
    carried, rest = list(srcs[:states]), srcs[states + scanned:]
    parts = [np.moveaxis(x, axis, 0)[::-1 if back else 1] for x, axis, back
             in zip(srcs[states:states + scanned], input_axes, reverse_inputs, strict=True)]
    kept: list[list[Array]] = [[] for _ in body.outputs[states:]]
    for slices in zip(*parts, strict=True):
        outs = call(body, [*carried, *slices, *rest])
        carried = outs[:states]
        for values, x in zip(kept, outs[states:], strict=True):
            values.append(x)
    shapes = [x.shape for x in (*carried, *srcs[states:])]
    for k, x in enumerate(parts, states):
        shapes[k] = x.shape[1:]
    whole = [x[::-1] if back else x for x, back
             in zip(_stack(kept, body, shapes, states), reverse_outputs, strict=True)]
    return (*carried, *(np.moveaxis(x, 0, axis) for x, axis in zip(whole, output_axes, strict=True)))


def infer_partition(*types: TensorType, body: Graph, anchor: str, ties: str) -> tuple[TensorType, ...]:
    """The types of the body's outputs. The operands must have the types of the body's inputs."""
    if ties not in ("settled", "formula"):
        raise GraphError(f'ties must be "settled" or "formula", got {ties!r}')
    wanted = [v.type for v in body.inputs]
    if list(types) != wanted:
        raise GraphError(f"operands are ({', '.join(map(str, types))}), the body takes ({', '.join(map(str, wanted))})")
    if not body.outputs:
        raise GraphError(f"the body '{body.name}' has no outputs")
    return tuple(v.type for v in body.outputs)


@register_op(infer=infer_partition)
def partition(*operands: np.ndarray, body: Graph, anchor: str, ties: str = "settled") -> tuple[np.ndarray, ...]:
    """Fused operations: one kernel computes the graph `body`. `anchor` names the kernel's family.

    With `ties="formula"`, outputs near a rounding tie follow from the kernel's exact sum (docs/numbers.md).
    """
    inputs = {str(v.name): x for v, x in zip(body.inputs, operands, strict=True)}
    return tuple(evaluate(body, inputs))
