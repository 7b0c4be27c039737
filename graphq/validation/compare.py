"""Compare the results of two graphs' NumPy references on adversarial inputs, bit for bit or within tolerances."""
from collections.abc import Iterable, Mapping

import numpy as np

from graphq.dtypes import bf16, f16, f32
from graphq.errors import GraphError, GraphqError
from graphq.ir import Graph, Use, named_outputs, reference
from graphq.validation.inputs import Inputs, adversarial_inputs, small_integers
from graphq.validation.subgraphs import all_nodes

FEW = 0.01
"""If a graph quantizes, this share of an output's elements may exceed the tolerances, because of rounding ties."""
AMPLIFYING = frozenset({"cached_attention", "exp", "pow", "softmax"})
"""Operations whose results change much if a large operand changes in its last bits."""
ROUNDINGS = 16
"""A pass may change the operands of AMPLIFYING operations by this many roundings, all in one direction."""
EPSILON = {f32: 2.0**-23, f16: 2.0**-10, bf16: 2.0**-7}


class Baseline:
    """A graph's results on sets of inputs, to compare with the results of the graph after a pass."""

    def __init__(self, graph: Graph, inputs: Iterable[Inputs]) -> None:
        """Run the reference on all inputs that the graph accepts. Raises GraphError if the graph accepts no inputs."""
        self.graph = graph
        self.amplifies = any(n.op.name in AMPLIFYING for n in all_nodes(graph))
        self.inputs = {str(v.name): v.type for v in graph.inputs}
        self.outputs = dict(zip(graph.output_names, [v.type for v in graph.outputs], strict=True))
        self.quantizes = bool(graph.nodes_of(("quantize", "dynamic_quantize", "partition", "type_cast", "cast")))
        self.results: list[tuple[Inputs, list[np.ndarray]]] = []
        error: Exception | None = None
        for given in inputs:
            try:
                self.results.append(_run(graph, given))
            except Exception as e:  # references may raise any error of NumPy
                error = e
        if error is not None and not self.results:
            raise GraphError(f"graph '{graph.name}' runs on none of the inputs that were tried: {error}") from error

    def difference(self, graph: Graph, rtol: float = 0.0, atol: float = 0.0) -> str | None:
        """How the results of `graph` differ from the baseline, and on which inputs; None if they do not.

        Without tolerances, results must be equal bit for bit, except that all NaN count as equal. With tolerances, the
        inputs of kind "extremes" are left out, and effects of ROUNDINGS are also tolerated. `rtol` is relative to the
        largest element.
        """
        if (text := self._interface(graph)) is not None:
            return text
        for given, wanted in self.results:
            if rtol + atol > 0 and given.kind == "extremes":  # the order of a sum of extremes decides if it overflows
                continue
            try:
                _, got = _run(graph, given)
            except Exception as e:
                return f"on {given} it raises {type(e).__name__}: {e}"
            for k, (name, x, y) in enumerate(zip(self.outputs, wanted, got, strict=True)):
                found = _difference(x, y, rtol, atol, self.quantizes)
                if found is not None and self.amplifies and rtol + atol > 0:
                    found = _difference(x, y, rtol, atol + self._amplified(given)[k], self.quantizes)
                if found is not None:
                    return f"output '{name}' on {given}: {found}"
        return None

    def _amplified(self, given: Inputs) -> list[float]:
        """The change of each output if the operands of AMPLIFYING operations change by ROUNDINGS."""
        graph = self.graph.copy()
        for node in graph.nodes_of(AMPLIFYING):
            for k, value in enumerate(node.inputs):
                if value is not None and value.dtype in EPSILON:
                    with graph.before(node):
                        changed = graph.multiply(value, 1 + ROUNDINGS * EPSILON[value.dtype])
                    graph.replace_uses(value, changed, [Use(node, k)])
        try:
            pairs = zip(_run(self.graph, given)[1], _run(graph, given)[1], strict=True)
        except Exception:  # references may raise any error of NumPy
            return [0.0] * len(self.outputs)
        with np.errstate(all="ignore"):
            changes = [np.abs(x.astype(np.float64) - y.astype(np.float64)) for x, y in pairs]
        return [float(x[np.isfinite(x)].max(initial=0.0)) for x in changes]

    def _interface(self, graph: Graph) -> str | None:
        outputs = dict(zip(graph.output_names, [v.type for v in graph.outputs], strict=True))
        for word, old, new in (("inputs", self.inputs, {str(v.name): v.type for v in graph.inputs}),
                               ("outputs", self.outputs, outputs)):
            if list(old.items()) != list(new.items()):
                shown = [", ".join(f"{name}: {t}" for name, t in types.items()) for types in (old, new)]
                return f"the {word} were {shown[0]}, and are {shown[1]}"
        return None


def find_difference(before: Graph, after: Graph, *, seed: int = 0, rtol: float = 0.0, atol: float = 0.0,
                    sizes: Mapping[str, tuple[int, ...]] | None = None) -> str | None:
    """How the references of two graphs differ on adversarial inputs, as text; None if their results are equal."""
    return Baseline(before, adversarial_inputs(before, seed, sizes)).difference(after, rtol, atol)


def _run(graph: Graph, given: Inputs) -> tuple[Inputs, list[np.ndarray]]:
    """Run a graph, on small integers if it refuses large integers. Returns the inputs that it ran on, and outputs."""
    with np.errstate(all="ignore"):
        try:
            out = reference(graph, given.arrays)
        except (GraphqError, ArithmeticError, LookupError, ValueError):
            given = given._replace(arrays=small_integers(given.arrays))
            out = reference(graph, given.arrays)
    return given, list(named_outputs(graph.output_names, out).values())


def _difference(x: np.ndarray, y: np.ndarray, rtol: float, atol: float, quantizes: bool) -> str | None:
    """How two arrays differ, as text; None if they agree within the tolerances and FEW."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return f"{x.dtype}{list(x.shape)} before, {y.dtype}{list(y.shape)} after"
    if x.tobytes() == y.tobytes():
        return None
    exact = rtol == atol == 0
    wrong = _wrong(x, y, rtol, atol)
    few = 1 + FEW * x.size if quantizes and not exact else 0
    return None if np.count_nonzero(wrong) <= few else _shown(x, y, wrong, exact)


def _wrong(x: np.ndarray, y: np.ndarray, rtol: float, atol: float) -> np.ndarray:
    """A mask of the elements that differ in bits, or with tolerances by more than 1 or (floats) the tolerances."""
    if rtol == atol == 0 and x.dtype.kind in "iub":
        return np.asarray(x != y)
    a, b = x.astype(np.float64), y.astype(np.float64)
    if rtol == atol == 0:
        same = (a == b) & (np.signbit(a) == np.signbit(b))
    else:
        bound = 1.0 if x.dtype.kind in "iu" else atol + rtol * np.abs(a[np.isfinite(a)]).max(initial=0.0)
        with np.errstate(all="ignore"):
            same = (a == b) | (np.abs(a - b) <= bound)
    return ~(same | np.isnan(a) & np.isnan(b))  # all NaN count as equal


def _shown(x: np.ndarray, y: np.ndarray, wrong: np.ndarray, exact: bool) -> str:
    at = tuple(int(k) for k in np.argwhere(wrong)[0])
    first, second = (str(z.item() if z.dtype.kind in "iub" else np.float32(z)) for z in (x[at], y[at]))
    return (f"{np.count_nonzero(wrong)} of {x.size} elements differ, the first at {list(at)}"
            + (f": {first} before, {second} after" if exact else f" beyond the tolerance: {first} and {second}"))
