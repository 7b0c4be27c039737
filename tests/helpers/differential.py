"""Compare what the passes and kernels make of a graph with its reference, op by op.

A fault is a text; none means that all agree. Compared are the formulas of the graph after the passes: with the
reference, within what f32 sums in another order may differ; with formulas where everything is settled by literal sums,
and with the compiled model, bit for bit. Where a difference is larger, it may be four times what the reference itself
differs by if its inputs, and what it quantizes or sums, change by NUDGE: cancellation and ties make more of roundings.
"""
from functools import cache

import numpy as np
import pytest
from ties import settle_everything

import graphq as gq
from graphq.ir.interpret import named_outputs
from graphq.kernels.families import lower_partition
from graphq.model.build_plan import evaluate_formulas
from graphq.passes.pipeline import run_passes

SHARE = 0.01
"""Elements that may differ by a step, or by more than rounding errors after a quantize that fell the other way."""


STEP = 0.05
"""Of the largest element: what a step of a factor may change a product by."""


NUDGE = 2.0**-19
"""The relative error of 16 roundings to f32."""


def _in_few_rows(wrong):
    """Whether few rows have all that is wrong: those of products whose one factor a quantize rounded the other way."""
    return wrong.ndim > 0 and np.count_nonzero(wrong.any(axis=-1)) <= 1 + SHARE * wrong[..., 0].size


SUMS = {"reduce_sum", "reduce_mean", "cum_sum", "avg_pool", "matmul", "convolution"}
"""Operations that sum, whose terms `nudged` changes each by itself."""


def nudged(graph, feeds):
    """The reference's outputs, by name, if inputs and values that are quantized or summed are NUDGE larger or smaller.

    What is quantized changes as a whole, so that all that is near a tie falls the same way; terms of sums change each
    by itself, so that the changes of terms that cancel do not cancel.
    """
    rng, outputs = np.random.default_rng(0), []
    for by in (NUDGE, -NUDGE, NUDGE, -NUDGE):
        other = graph.copy()
        for node in list(other.nodes_of({"quantize"} | SUMS)):
            if (v := node.inputs[0]).dtype == "f32":
                factor = np.float32(1 + by)
                if node.op.name in SUMS and v.type.known:
                    factor = (1 + by * rng.choice([-1, 1], v.type.dims)).astype(np.float32)
                with other.before(node):
                    near = other.multiply(v, other.constant(factor))
                other.replace_uses(v, near, [use for use in v.uses if use.node is node])
        near = {k: np.asarray(x * (1 + by * rng.choice([-1, 1], x.shape)), x.dtype) if x.dtype == np.float32 else x
                for k, x in feeds.items()}
        outputs.append(named_outputs(graph.output_names, gq.reference(other, near)))
    return outputs


def difference(got, want, steps, rtol=2e-4, near=lambda: ()):
    """How two arrays differ beyond what is allowed, or None.

    A few integers may be `steps` apart, and a few floats after a quantize (`steps` is not None). `rtol` is relative to
    the largest element. `near` gives what `want` is for inputs within rounding errors; it is called if they differ.
    """
    found = _difference(got, want, steps, rtol, 0.0)
    if found is None or np.shape(got) != np.shape(want):
        return found
    wide = np.asarray(want, np.float64)
    with np.errstate(invalid="ignore"):
        more = [np.nan_to_num(np.abs(np.asarray(x, np.float64) - wide), nan=np.inf) for x in near()]
    return _difference(got, want, steps, rtol, 4 * np.max(more, axis=0)) if more else found


def _difference(got, want, steps, rtol, more):
    """As `difference`; elements may also differ by `more`."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if got.size == 0:
        return None
    few = 1 + SHARE * got.size
    a, b = got.astype(np.float64), want.astype(np.float64)
    if want.dtype.kind in "iub":
        apart = np.where(np.abs(a - b) <= more, 0, np.abs(a - b))
        if apart.max() > (steps or 1) or np.count_nonzero(apart) > few:
            return f"{np.count_nonzero(apart)} of {got.size} integers differ, by up to {apart.max():g}"
        return None
    same = (a == b) | np.isnan(a) & np.isnan(b)
    finite = np.abs(b[np.isfinite(b)]).max(initial=1e-6)
    with np.errstate(invalid="ignore"):
        wrong = ~same & ~(np.abs(a - b) <= np.maximum(rtol * finite, more))
    if np.count_nonzero(wrong) > (few if steps is not None or got.size > 100 else 0) and not (
            steps is not None and _in_few_rows(wrong) and np.abs(a - b)[wrong].max() <= STEP * finite):
        at = np.argmax(wrong)
        return f"{np.count_nonzero(wrong)} of {got.size} floats differ, {a.flat[at]:g} from {b.flat[at]:g} at {at}"
    return None


def steps_of_one(graph):
    """How many steps of the finest quantize one of the coarsest is, as a tie may fall either way; None without any."""
    scales = [abs(s) for n in graph.nodes_of({"quantize"}) for s in n.attrs["scales"]]
    return np.ceil(max(scales) / min(scales)) if scales else None


def formulas_of(graph, feeds):
    """The formulas of a graph after all passes, by name; and whether any of its partitions settles outputs."""
    after = graph.copy()
    run_passes(after)
    settles = any(lower_partition(n).ties for n in after.nodes_of({"partition"}))
    return dict(zip(graph.output_names, evaluate_formulas(after, feeds), strict=True)), settles


def faults(graph, feeds, wanted=None, *, compiled=True, isa=None, threads=None):
    """What is wrong with `graph` on these inputs: with its reference (or `wanted`), its formulas, its kernels."""
    found, near = [], cache(lambda: nudged(graph, feeds))
    reference, steps = named_outputs(graph.output_names, gq.reference(graph, feeds)), steps_of_one(graph)

    def of(name):
        return lambda: [outputs[name] for outputs in near()]

    for name, want in (wanted or {}).items():
        if (text := difference(reference[name], want, steps, near=of(name))) is not None:
            found.append(f"the graph's reference, output {name}: {text}")
    if found:
        return found
    if all(v.type.known for n in graph.nodes for v in n.outputs):
        formulas, settles = formulas_of(graph, feeds)
        for name, want in reference.items():
            if (text := difference(formulas[name], want, steps, near=of(name))) is not None:
                found.append(f"the formulas, output {name}: {text}")
        if settles:
            with pytest.MonkeyPatch.context() as patched:
                settle_everything(patched)
                settled, _ = formulas_of(graph, feeds)
            found += [f"the formulas, output {name}: {np.count_nonzero(formulas[name] != y)} of {y.size} elements are "
                      "others than with everything settled"
                      for name, y in settled.items() if not same(formulas[name], y)]
    if compiled:
        model = gq.compile(graph, isa=isa, threads=threads)
        got, formulas = (named_outputs(graph.output_names, x) for x in (model(feeds), model.formula(feeds)))
        for name, x in got.items():
            if not same(x, formulas[name]):
                places = np.flatnonzero(x.reshape(-1) != formulas[name].reshape(-1))
                found.append(f"kernels at {model.level.name}, output {name}: {places.size} of {x.size} elements differ "
                             f"from the formula")
    return found


def same(x, y):
    """Whether two arrays are equal bit for bit, but for NaNs."""
    return x.tobytes() == y.tobytes() or (x.dtype == y.dtype and x.shape == y.shape and x.dtype.kind == "f"
                                          and np.array_equal(x, y, equal_nan=True))
