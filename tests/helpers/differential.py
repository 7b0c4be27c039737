"""Compare what the passes and kernels make of a graph with its reference, op by op.

A fault is a text; none means that all agree. Three things are compared: the formulas of the graph after the passes with
the reference, within what f32 sums in another order may differ; the compiled model with the formulas, bit for bit.
"""
import numpy as np

import graphq as gq
from graphq.passes.pipeline import run_passes
from graphq.plan import evaluate_formulas

SHARE = 0.01
"""Elements that may differ by a step, or by more than rounding errors after a quantize that fell the other way."""


def difference(got, want, rtol=2e-4):
    """How two arrays differ beyond what is allowed, or None. `rtol` is relative to the largest element."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if got.size == 0:
        return None
    few = 1 + SHARE * got.size
    a, b = got.astype(np.float64), want.astype(np.float64)
    if want.dtype.kind in "iub":
        apart = np.abs(a - b)
        if apart.max() > 1 or np.count_nonzero(apart) > few:
            return f"{np.count_nonzero(apart)} of {got.size} integers differ, by up to {apart.max():g}"
        return None
    same = (a == b) | np.isnan(a) & np.isnan(b)
    finite = np.abs(b[np.isfinite(b)]).max(initial=1e-6)
    with np.errstate(invalid="ignore"):
        wrong = ~same & ~(np.abs(a - b) <= rtol * finite)
    if np.count_nonzero(wrong) > (few if got.size > 100 else 0):
        at = np.argmax(wrong)
        return f"{np.count_nonzero(wrong)} of {got.size} floats differ, {a.flat[at]:g} from {b.flat[at]:g} at {at}"
    return None


def as_dict(graph, out):
    """Results by name."""
    return out if isinstance(out, dict) else {graph.output_names[0]: out}


def faults(graph, feeds, wanted=None, *, compiled=True, isa=None, threads=None):
    """What is wrong with `graph` on these inputs: with its reference (or `wanted`), its formulas, its kernels."""
    found = []
    reference = as_dict(graph, gq.reference(graph, feeds))
    for name, want in (wanted or {}).items():
        if (text := difference(reference[name], want)) is not None:
            found.append(f"the graph's reference, output {name}: {text}")
    if found:
        return found
    after = graph.copy()
    if all(v.type.known for n in after.nodes for v in n.outputs):
        run_passes(after)
        formulas = dict(zip(graph.output_names, evaluate_formulas(after, feeds), strict=True))
        for name, want in reference.items():
            if (text := difference(formulas[name], want)) is not None:
                found.append(f"the formulas, output {name}: {text}")
    if compiled:
        model = gq.compile(graph, isa=isa, threads=threads)
        got, formulas = as_dict(graph, model(feeds)), as_dict(graph, model.formula(feeds))
        for name, x in got.items():
            if x.tobytes() != formulas[name].tobytes() and not _only_nans_differ(x, formulas[name]):
                places = np.flatnonzero(x.reshape(-1) != formulas[name].reshape(-1))
                found.append(f"kernels at {model.level.name}, output {name}: {places.size} of {x.size} elements differ "
                             f"from the formula")
    return found


def _only_nans_differ(x, y):
    return x.dtype == y.dtype and x.shape == y.shape and x.dtype.kind == "f" and np.array_equal(x, y, equal_nan=True)
