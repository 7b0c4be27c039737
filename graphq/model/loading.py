"""load_compiled: a compiled model from a file."""
from __future__ import annotations

import logging
import os

from graphq.base.locks import importing
from graphq.kernels.jit import isa as levels_of
from graphq.kernels.jit.isa import Level, LevelName
from graphq.kernels.threads.count import resolve_threads
from graphq.model.compiled_graph import CompiledGraph
from graphq.model.planned import Options
from graphq.model.saved_models import Saved, Settings

log = logging.getLogger("graphq")


def load_compiled(path: str | os.PathLike[str], *, isa: LevelName | None = None,
                  threads: int | None = None) -> CompiledGraph:
    """The model that `CompiledGraph.save` wrote to `path`, ready to run; the same results, bit for bit.

    Weights stay in the file, which is mapped into memory: all processes that load it share them. `isa` and `threads`
    are as `compile` takes them; by default the model's own, as far as this machine has the level and the process the
    cores. On the same kind of processor, with the same versions, the plan and the kernels' code are used as they are.
    Otherwise they are made anew from the graph, which a log message and `model.origin` say.

    As with the kernel cache, code is used only from a file that belongs to this user or to root and that nobody else
    can write to. Of any other file the graph alone counts, compiled with the defaults of `compile`: it can do what an
    ONNX file can. It is read into memory, as others could change what is mapped.

    Raises ParseError where there is no such file, for one that `save` did not write, and for one that is damaged;
    CompileError where it would take too much memory.
    """
    saved = Saved(path)
    if saved.misfit is None:
        saved.provide()
    options, misfit = options_of(saved, isa, threads)
    made = as_saved(saved, options) if misfit is None else None
    model = made or CompiledGraph(saved.source, options)
    model.origin = f"loaded from {saved.file.path}"
    if misfit is not None:
        model.origin += f"; compiled anew, as {misfit}"
        log.warning("%s: compiled anew, as %s", saved.file.path, misfit)
    elif made is None:
        model.origin += "; planned anew with the file's kernels"
    return model


def options_of(saved: Saved, isa: str | None, threads: int | None) -> tuple[Options, str | None]:
    """How a file's model runs here, and why its plans and code cannot be used for that, if they cannot."""
    own, misfit = saved.settings, saved.misfit
    most = resolve_threads(threads)
    most = min(most, own.threads) if threads is None else most
    level = _level(own, isa)
    if misfit is None and (level.name, level.emulated) != (own.level, own.emulated):
        misfit = f"it was saved for ISA level {own.level}, not {level.name}"
    if misfit is None and most > own.threads:
        misfit = f"it was saved for {own.threads} threads, not {most}"
    return Options(level, most, own.strict, own.passes, own.cache, own.memory), misfit


def as_saved(saved: Saved, options: Options) -> CompiledGraph | None:
    """The model by the plans of its file, which fit these options; None where it has none."""
    return CompiledGraph(saved, options) if saved.plans(options.threads) else None


def _level(own: Settings, isa: str | None) -> Level:
    """The level asked for; else the model's own where this machine has it; else the best that it has."""
    known = {level.name: level for level in levels_of.available()}.get(own.level)
    if known is not None and (isa or os.environ.get("GRAPHQ_ISA") or own.level) == own.level:
        return known
    with importing.hold:
        from graphq.kernels import levels  # which has the kernels of its self-test
    return levels.resolve(isa, own.cache)
