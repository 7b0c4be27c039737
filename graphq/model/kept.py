"""Compiled models of files, kept for the next process, which finds them by a digest of all that they depend on.

A kept model is a file as `CompiledGraph.save` writes it, in the folder of the kernel cache, whose rules on ownership,
size and removal apply. Its name is a digest of the bytes of the user's file, the options, the versions of graphq and of
the packages that it computes with, and the kind of processor. If the kept file is damaged or does not fit, the model is
compiled and kept again.
"""
from __future__ import annotations

import hashlib
import logging
import os
import stat
from functools import cache as once
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from graphq.errors import GraphqError
from graphq.ir.op import walk_ops
from graphq.kernels.jit import cache, isa
from graphq.model.compiled_graph import CompiledGraph
from graphq.model.loading import as_saved, options_of
from graphq.model.plans import Plans
from graphq.model.saved_models import Saved, save

log = logging.getLogger("graphq")

ELSEWHERE = b"\x0a\x08location"
"""The key by which an ONNX file names external files, which hold its data and may change when it does not."""
PACKAGES = ("numpy", "ml_dtypes", "onnx", "networkx")


class Kept:
    """The place of a compiled model in the cache: for a file with these contents and for these options."""

    def __init__(self, digest: str, path: Path, level: str | None, threads: int, options: tuple[object, ...]) -> None:
        self.digest, self.name = digest, cache.model_name(digest)
        self._path, self._level, self._threads, self._options = path, level, threads, options

    @staticmethod
    def of(path: Path, level: str | None, threads: int, *options: object) -> Kept | None:
        """The place for a file.

        None if its model is not kept, or if the file cannot be read, which its reader will report.
        """
        try:
            facts = path.stat()
            if not stat.S_ISREG(facts.st_mode):
                return None
            why = None
            if os.environ.get("GRAPHQ_DEBUG"):
                why = "GRAPHQ_DEBUG is set"
            elif 2 * facts.st_size > cache.MOST_OF_A_MODEL:
                why = "it is too large"
            elif foreign := [op.name for op in walk_ops() if not op.reference.__module__.startswith("graphq.")]:
                why = f"operations of this process are not graphq's: {', '.join(foreign[:5])}"
            else:
                data = path.read_bytes()
                if path.suffix == ".onnx" and ELSEWHERE in data:
                    why = "it has data in other files"
        except (OSError, ValueError):
            return None
        if why is not None:
            log.info("the model of %s is not kept: %s", path, why)
            return None
        chosen = level or os.environ.get("GRAPHQ_ISA")
        levels = [x.name for x in isa.available()]
        of = repr((path.suffix, chosen, levels, threads, options, isa.cpu(), _versions()))
        return Kept(hashlib.sha256(of.encode() + b"\0" + data).hexdigest(), path, level, threads, options)

    def find(self) -> CompiledGraph | None:
        """The model, ready to run; None if there is none that can be used."""
        try:
            folder = cache.lasting()
            if folder is None or not (folder / self.name).is_file():
                return None
            path = folder / self.name
            saved = Saved(path)
            options, misfit = options_of(saved, self._level, self._threads)
            if misfit is None and saved.file.index.get("key") != self.digest:
                misfit = "it is another's"
            model = as_saved(saved, options) if misfit is None else None
            if model is None:
                log.info("%s is not used: %s", path, misfit)
                return None
            cache.used(path)
        except (GraphqError, OSError) as e:
            log.warning("a kept model cannot be used, and is compiled anew: %s", e)
            return None
        model.origin = f"compiled before, and kept in {path}"
        self._follow(model, saved.rows_mix)
        return model

    def keep(self, model: CompiledGraph) -> None:
        """Keep a model that was just compiled, if its file has not changed since this place was found."""
        why, again = None, Kept.of(self._path, self._level, self._threads, *self._options)
        if again is None or again.digest != self.digest:
            why = "its file has changed since"
        elif not model.plans.all():
            why = "it is planned at calls: in stages, for constant inputs, or for each set of shapes"
        elif 2 * sum(n.attrs["value"].nbytes for n in model.source.nodes_of(["constant"])) > cache.MOST_OF_A_MODEL:
            why = "it is too large"
        if why is not None:
            return log.info("the model %s is not kept: %s", model.signature.name, why)
        rows_mix = model.rows_mix
        self._write(model.plans, rows_mix)
        self._follow(model, rows_mix)

    def _follow(self, model: CompiledGraph, rows_mix: str | None) -> None:
        """Keep the model again whenever a call adds a plan for open sizes."""
        model.plans.grown = lambda plans: self._write(plans, rows_mix)

    def _write(self, made: Plans, rows_mix: str | None) -> None:
        """Write the model; failures are ignored, since the model itself is in memory."""
        try:
            folder = cache.lasting()
            if folder is not None:
                save(folder / self.name, made.source, made.options, made.all(), rows_mix, key=self.digest)
                cache.tidy(folder)
        except Exception as e:  # full disk, folder gone, no memory, an option without JSON
            log.warning("a compiled model is not kept: %s: %s", type(e).__name__, e)


@once
def _versions() -> str:
    """All that a plan depends on besides the file, the options and the machine."""
    found = [cache.versions()]
    for package in PACKAGES:
        try:
            found.append(version(package))
        except PackageNotFoundError:
            found.append("")
    digest = hashlib.sha256()
    cache.add_sources(digest, Path(__file__).parents[1])
    return " ".join([*found, digest.hexdigest()])
