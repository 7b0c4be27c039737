"""Load a compiled model from a file: the function `load_compiled`."""
from __future__ import annotations

import logging
import os

from graphq.base.locks import late_imports
from graphq.kernels.target import LevelName
from graphq.kernels.target import isa as levels_of
from graphq.kernels.target.level import Level
from graphq.kernels.threads.count import resolve_threads
from graphq.model.compiled_graph import CompiledGraph
from graphq.model.planned import Options
from graphq.model.saved_models import Saved, Settings

log = logging.getLogger("graphq")


def load_compiled(path: str | os.PathLike[str], *, isa: LevelName | None = None,
                  threads: int | None = None) -> CompiledGraph:
    """Load a model that `CompiledGraph.save` wrote to `path`. Results are the same as before, bit for bit.

    The file is mapped into memory: all processes that load it share the weights. `isa` and `threads` are as for
    `compile`; by default they are as in the saved model, but at most the machine's best level and the process's cores.
    The saved plans and machine code run only on the same kind of processor, with the same versions. Otherwise the graph
    is compiled again; a log message and `model.origin` give the reason.

    Code is used only from a file that belongs to this user or to root, and that nobody else can write to. From any
    other file only the graph is used, so the file can do no more harm than an ONNX file. The graph is then compiled
    with the defaults of `compile`, and the file is not mapped, because others could change it.

    Raises ParseError if there is no such file, or if it is damaged or was not written by `save`; CompileError if it
    would take too much memory.
    """
    saved = Saved(path)
    if saved.misfit is None:
        saved.provide()
    options, misfit = options_of(saved, isa, threads)
    made = as_saved(saved, options) if misfit is None else None
    model = made or CompiledGraph(saved.source, options)
    model.origin = f"loaded from {saved.file.path}"
    if misfit is not None:
        model.origin += f"; compiled anew, because {misfit}"
        log.warning("%s: compiled anew, because %s", saved.file.path, misfit)
    elif made is None:
        model.origin += "; planned anew with the file's kernels"
    return model


def options_of(saved: Saved, isa: str | None, threads: int | None) -> tuple[Options, str | None]:
    """The options for a saved model on this machine, and why its plans and code cannot be used (None if they can)."""
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
    """The model with its saved plans; None if the file has no plans. The plans must fit the options."""
    return CompiledGraph(saved, options) if saved.plans(options.threads) else None


def _level(own: Settings, isa: str | None) -> Level:
    """The ISA level: the user's choice, else the saved model's level if this machine has it, else the best level."""
    known = {level.name: level for level in levels_of.available()}.get(own.level)
    if known is not None and (isa or os.environ.get("GRAPHQ_ISA") or own.level) == own.level:
        return known
    with late_imports():
        from graphq.kernels import levels  # late, because this imports the kernels of the self-test
    return levels.resolve(isa, own.cache)
