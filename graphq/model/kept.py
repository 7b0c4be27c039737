"""Load compiled models from files (`load_compiled`), and keep models on disk for the next process (`Kept`).

A kept model is a file in the format of `CompiledGraph.save`, in the folder of the kernel cache. The cache's rules on
ownership, size and removal apply. The file's name is a digest of the user's file or graph, the options, the versions of
graphq and of the packages that it computes with, and the kind of processor. If the file is damaged or cannot be used,
the model is compiled and kept again.

If a later call needs a new plan for open sizes, the plan gets a file of its own. That file contains only the data that
the model's file lacks. A separate thread writes all files, so no call waits for them. The process waits for this thread
before it ends.
"""
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache as once
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from graphq.base.locks import late_imports
from graphq.base.paths import regular_file
from graphq.base.platform import remove, resolve_threads
from graphq.base.tasks import Tasks
from graphq.errors import GraphqError
from graphq.ir import Graph, walk_ops
from graphq.ir.interpret import constant_bytes
from graphq.kernels.jit import cache, cpu
from graphq.kernels.target import LevelName
from graphq.kernels.target import isa as levels_of
from graphq.kernels.target.level import Level
from graphq.model.compiled_graph import CompiledGraph
from graphq.model.files import ELSEWHERE
from graphq.model.plans import Options, Plans
from graphq.model.saved_models import Added, Saved, Settings, Written, save, save_plan
from graphq.model.saved_values import Unsaved, Writer
from graphq.plan.runtime import NativePlan

log = logging.getLogger("graphq")

PACKAGES = ("numpy", "ml_dtypes", "onnx", "networkx")
FEWEST = 24
"""The fewest nodes of a graph whose model is kept. Without this limit, many small graphs would fill the folder."""
MOST_PLANS = 64
"""The most files with added plans per model; the oldest files are removed."""


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
    saved = Saved(path, isa or os.environ.get("GRAPHQ_ISA"))
    if saved.misfit is None:
        saved.provide()
    options, misfit = options_of(saved, isa, threads)
    made = CompiledGraph(saved, options) if misfit is None and saved.plans(options.threads) else None
    model = made or CompiledGraph(saved.source, options)
    model.origin = f"loaded from {saved.file.path}"
    if misfit is not None:
        model.origin += f"; compiled anew, because {misfit}"
        log.warning("%s: compiled anew, because %s", saved.file.path, misfit)
    elif made is None:
        model.origin += "; planned anew"
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


def _level(own: Settings, isa: str | None) -> Level:
    """The ISA level: the user's choice, else the saved model's level if this machine has it, else the best level."""
    known = {level.name: level for level in levels_of.available()}.get(own.level)
    if known is not None and (isa or os.environ.get("GRAPHQ_ISA") or own.level) == own.level:
        return known
    with late_imports():
        from graphq.kernels import levels  # late, because this imports the kernels of the self-test
    return levels.resolve(isa, own.cache)


writers: dict[str, Tasks] = {}
"""The tasks that write files, by the model's digest."""


class Kept:
    """The cache entry of a compiled model, for one file or graph and one set of options."""

    def __init__(self, given: Path | Graph, digest: str, level: str | None, threads: int,
                 options: tuple[object, ...]) -> None:
        self.digest, self.name = digest, cache.kept_name(digest)
        self._given, self._level, self._threads, self._options = given, level, threads, options
        self._written: Written | None = None

    @staticmethod
    def of(given: Path | Graph, level: str | None, threads: int, *options: object) -> "Kept | None":
        """The cache entry for the model of a file or graph.

        Returns None if such a model is not kept, or if the file cannot be read (loading then reports the error).
        """
        if isinstance(given, Graph) and len(given.nodes) < FEWEST:
            return None
        chosen = os.environ.get("GRAPHQ_ISA") if level is None else level
        levels = [x.name for x in levels_of.available()]
        of = repr((chosen, levels, threads, options, cpu.describe(), versions()))
        digest = hashlib.sha256(of.encode() + b"\0")
        try:
            if os.environ.get("GRAPHQ_DEBUG"):
                raise _NotKept("GRAPHQ_DEBUG is set")
            foreign = [op.name for op in walk_ops() if not op.reference.__module__.startswith("graphq.")]
            if foreign:
                raise _NotKept(f"operations of this process are not graphq's: {', '.join(foreign[:5])}")
            for data in _of_graph(given) if isinstance(given, Graph) else _of_file(given):
                digest.update(data)
        except (OSError, ValueError):
            return None
        except _NotKept as e:
            log.info("the model of %s is not kept: %s", given.name if isinstance(given, Graph) else given, e)
            return None
        return Kept(given, digest.hexdigest(), level, threads, options)

    def find(self) -> CompiledGraph | None:
        """The kept model, ready to run; None if there is no usable file. Waits if this process is writing the file."""
        if self.digest in writers:
            writers[self.digest].join()
        try:
            folder = cache.lasting(writing=False)
            if folder is None or not (folder / self.name).is_file():
                return None
            path = folder / self.name
            saved = Saved(path)
            options, misfit = options_of(saved, self._level, self._threads)
            if misfit is None and saved.index.get("key") != self.digest:
                misfit = "it belongs to another model"
            if misfit is None:
                saved.added = self._added(saved, folder)
            if misfit is not None or not saved.plans(options.threads):
                log.info("%s is not used: %s", path, misfit)
                return None
            model = CompiledGraph(saved, options)
            cache.used(path)
        except (GraphqError, OSError) as e:
            log.warning("a kept model cannot be used, and is compiled anew: %s", e)
            return None
        self._written = Written(saved.file.digest, [saved.array(k) for k in range(len(saved.arrays))],
                                [x.recipe for x in saved.modules])
        model.origin = f"compiled before, and kept in {path}"
        self._follow(model, [sizes for sizes, _ in saved.plans(options.threads)])
        return model

    def _added(self, saved: Saved, folder: Path) -> list[Added]:
        found = []
        for path in cache.plan_files(folder, self.digest)[:MOST_PLANS]:
            try:
                found.append(Added(path, saved))
                cache.used(path)
            except (GraphqError, OSError) as e:
                log.info("a kept plan cannot be used: %s", e)
        return found

    def keep(self, model: CompiledGraph) -> None:
        """Keep a model that was just compiled, unless its file or graph has changed since `Kept.of` was called."""
        why, again = None, Kept.of(self._given, self._level, self._threads, *self._options)
        if again is None or again.digest != self.digest:
            why = "its file or graph has changed since"
        elif isinstance(self._given, Path) and ELSEWHERE in model.source.meta:
            why = "data in other files may change while its own file does not"
        elif not model.plans.all():
            why = "it is planned at calls: in stages, for constant inputs, or for each set of shapes"
        elif 2 * constant_bytes(model.source) > cache.MOST_OF_A_MODEL:
            why = "it is too large"
        if why is not None:
            return log.info("the model %s is not kept: %s", model.signature.name, why)
        self.start_writing(partial(self._write, plans=model.plans))
        self._follow(model, [plan.sizes for plan in model.plans.all()])

    def _follow(self, model: CompiledGraph, known: Iterable[Iterable[int]]) -> None:
        """From now on, write a file for each plan that a call adds, except for plans at the sizes `known`."""
        kept = set(map(tuple, known))

        def grown(plans: Plans) -> None:
            for plan in plans.all(read=False):
                if plan.sizes not in kept:
                    kept.add(plan.sizes)
                    self.start_writing(partial(self._write, plans=plans, plan=plan))

        model.plans.grown = grown

    def start_writing(self, write: Callable[[Path], None]) -> None:
        """Call `write` with the model's path, in the background and after all earlier calls have ended."""
        def run() -> None:
            if (folder := cache.lasting()) is not None:
                write(folder / self.name)
                cache.tidy(folder)

        writers.setdefault(self.digest, Tasks("graphq-keeping")).start(run, "a compiled model is not kept")

    def _write(self, path: Path, plans: Plans, plan: NativePlan | None = None) -> None:
        if plan is None or self._written is None or not path.is_file():
            self._written = save(path, plans, key=self.digest, mode=0o600)
            return
        save_plan(path.with_name(cache.kept_name(self.digest, plan.sizes)), plan, self._written)
        for oldest in cache.plan_files(path.parent, self.digest)[MOST_PLANS:]:
            remove(oldest)


class _NotKept(Exception):
    """Raised if a model is not kept. The text is the reason."""


def _of_file(path: Path) -> Iterator[bytes]:
    with regular_file(path) as (file, nbytes):
        if 2 * nbytes > cache.MOST_OF_A_MODEL:
            raise _NotKept("it is too large")
        data = file.read(nbytes)
    yield path.suffix.encode() + b"\0"
    yield data


def _of_graph(graph: Graph) -> Iterator[bytes | memoryview]:
    if 2 * constant_bytes(graph) > cache.MOST_OF_A_MODEL:
        raise _NotKept("it is too large")
    writer = Writer()
    try:
        facts = writer.of(graph)
    except Unsaved as e:
        raise _NotKept(f"there is no form for a {e}") from None
    yield json.dumps(["graph", facts, [(str(x.dtype), x.shape) for x in writer.arrays]]).encode()
    for x in writer.arrays:
        yield np.ascontiguousarray(x).reshape(-1).view(np.uint8).data


@once
def versions() -> str:
    """The versions of all that a kept model depends on."""
    found = [cache.versions(), *map(cache.version_of, PACKAGES)]
    digest, top = hashlib.sha256(), Path(__file__).parents[1]
    cache.add_sources(digest, top, skip="kernels")  # cache.versions() covers the kernels
    passes = find_spec("graphq.passes")
    for folder in map(Path, passes and passes.submodule_search_locations or ()):
        if top not in folder.parents:  # in an archive, the passes lie next to graphq/
            cache.add_sources(digest, folder)
    return " ".join([*found, digest.hexdigest()])
