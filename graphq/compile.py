"""Compile a Graph or a file into a CompiledGraph: the function `compile`."""
import os
import sys
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from graphq.base.budget import budget, check_limit, collector_paused
from graphq.base.locks import files_needed, late_imports
from graphq.base.paths import path_of
from graphq.base.platform import resolve_threads
from graphq.errors import CompileError, GraphError
from graphq.ir import Graph, check_names, returning
from graphq.ir.interpret import check_order, require_outputs
from graphq.kernels.target import LevelName
from graphq.model.files import graph_of, load_graph

if TYPE_CHECKING:
    import graphq
else:
    graphq = sys.modules["graphq"]  # a name that tools need to evaluate annotations


Precision: TypeAlias = Literal["f32", "bf16"]
"""The type of operands of f32 matmuls and convolutions: "bf16" rounds operands, "f32" leaves them unchanged."""
Ties: TypeAlias = Literal["settled", "formula"]
"""Whether outputs near rounding ties are computed as the graph states, or follow from the exact sums of kernels."""
Ranges: TypeAlias = Literal["tensor", "rows"]
"""Whether an activation that is quantized at run time has one range, or a range for each row."""


@collector_paused()
@files_needed("the graph cannot be compiled")
def compile(graph: Graph | str | os.PathLike[str], *, outputs: Sequence[str] | None = None,
            isa: LevelName | None = None, threads: int | None = None, strict: bool = False,
            passes: "Sequence[graphq.passes.Pass] | None" = None, cache: bool | Literal["kernels"] = True,
            memory: int | None = None, verify: Literal["numeric"] | None = None,
            precision: Precision = "f32", ties: Ties = "settled", ranges: Ranges = "tensor") -> "graphq.CompiledGraph":
    """Compile a graph, a program of PyTorch, or a file (.onnx, .pt2, .json or text form). `graph` is not changed.

    - `outputs`: the names of the values to return, instead of the graph's outputs. A returned value is computed and
      stored as the graph states, so no fusion goes across it (`explain()` shows the fusions).
    - `isa`: the highest instruction set level to use, one of "scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni",
      "avx512_bf16", "amx", "neon", "neon_dot", "neon_i8mm". The default is $GRAPHQ_ISA, or else the best level of
      this machine.
    - `threads`: the most threads to use. The default is all cores that the process may use.
    - `strict`: refuse operations that would run as NumPy references.
    - `passes`: the passes to run instead of `passes.PIPELINE`.
    - `cache`: keep compiled kernels and models on disk. A later process that compiles the same file or graph with the
      same options loads the kept model; the model's `origin` says so. "kernels" keeps only kernels.
    - `memory`: the most bytes for constants, packed weights, tables and values between steps. The default is half of
      the machine's memory.
    - `precision="bf16"`: round both operands of f32 matmuls and convolutions to bf16, and add their exact products in
      f32 (`passes.RoundProducts`; see docs/numbers.md). This saves time on CPUs with AVX512-BF16.
    - `ties="formula"`: leave out the second computation of outputs near rounding ties (`passes.leave_ties`; see
      docs/numbers.md). This saves 2 to 22 % of the time of a quantized model; few integers differ, each by one.
      A partition that the graph already states with `ties="formula"` keeps it.
    - `ranges="rows"`: per-token dynamic quantization. Each row of an activation that the graph quantizes at run time by
      the range of the whole tensor gets its own range (`passes.RangesByRow`). Results of a row then do not depend on
      other rows of a batch or on padding. `explain()` names what keeps the range of a whole tensor.
    - `verify="numeric"`: first test the passes. The op-by-op reference runs before and after each pass that changes the
      graph, on inputs at rounding ties, edges of ranges, NaN and infinities. This takes seconds to minutes for a model.

    Results do not depend on `isa`, `threads`, `cache`, `memory` or the CPU.

    Raises GraphError if the graph has no outputs, or lacks one of `outputs`. Raises KernelError for a level that this
    machine lacks. Raises CompileError for other wrong options, if `strict` refuses, and for a graph that would take
    more than `memory`. With `verify`, raises PassError for a pass that changes numbers; the error has the pass's name
    and a test with the smallest failing graph. For a file, raises OSError and the errors of `load_onnx` and other
    readers.
    """
    if not isinstance(graph, Graph | str | os.PathLike):
        graph = graph_of(graph)
    _check(strict, cache, verify, precision, ties, ranges, passes)
    check_limit(memory)
    names = None if outputs is None else check_names(outputs, "outputs")
    with late_imports():
        from graphq.model.kept import Kept
    most = resolve_threads(threads)
    if isinstance(graph, Graph):
        check_order(graph)
    given = graph if isinstance(graph, Graph) else path_of(graph)
    numbers = precision if passes is None else _names(passes)
    keeps, cache = cache is True and numbers is not None and verify is None, bool(cache)
    kept = Kept.of(given, isa, most, names, strict, memory, numbers, ties, ranges) if keeps else None
    found = None if kept is None else kept.find()
    if found is not None:
        return found
    with late_imports():
        from graphq.kernels import levels
    candidates = levels.choices(isa, cache)
    # Choosing the best level starts its self-test, whose kernels compile in the background while the graph is loaded.
    best = next(candidates)
    graph = given if isinstance(given, Graph) else load_graph(given)
    with late_imports():
        from graphq.model.compiled_graph import CompiledGraph
        from graphq.model.plans import Options
        from graphq.passes.pipeline import PIPELINE, passes_of
    chosen = passes_of(passes, precision, ranges, ties)
    if names is not None:
        graph = returning(graph, names)
    require_outputs(graph)
    if verify is not None:
        from graphq.validation.validator import validate

        with budget(memory):
            validate(graph, PIPELINE if chosen is None else chosen)
    for level in chain((best,), candidates):
        model = CompiledGraph(graph, Options(level, most, strict, chosen, cache, memory))
        # The self-test comes after the plan, because its kernels compile in the background while the plan is made.
        if levels.works(level, cache):
            break
    if kept is not None:
        kept.keep(model)
    return model


def _check(strict: object, cache: object, verify: object, precision: object, ties: object, ranges: object,
           passes: object) -> None:
    """Check arguments of `compile`; raises its errors."""
    if not isinstance(strict, bool):
        raise CompileError(f"strict must be True or False, got {strict!r}")
    if not (isinstance(cache, bool) or isinstance(cache, str) and cache == "kernels"):
        raise CompileError(f'cache must be True, False or "kernels", got {cache!r}')
    if verify not in (None, "numeric"):
        raise CompileError(f'verify must be None or "numeric", got {verify!r}')
    for name, value, kind in (("precision", precision, Precision), ("ties", ties, Ties), ("ranges", ranges, Ranges)):
        if value not in get_args(kind):
            raise CompileError(f"{name} must be {' or '.join(get_args(kind))}, got {value!r}")
    if precision != "f32" and passes is not None:
        raise CompileError(f"precision {precision!r} is a pass: give only `passes`, such as "
                           f"passes.PRECISIONS[{precision!r}]")


def _names(passes: "Sequence[graphq.passes.Pass]") -> tuple[str, ...] | None:
    """The names of the passes, for the key of a model on disk; None if a pass is not one of graphq's own."""
    with late_imports():
        from graphq.passes.pipeline import check_passes, names_of
    passes = check_passes(passes)
    try:
        return tuple(names_of(passes))
    except GraphError:
        return None
