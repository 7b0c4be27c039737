"""Models that `compile` made of files, kept for the next process: found again by a digest of all that decides them.

A kept model is a file as `CompiledGraph.save` writes it, in the folder of the kernel cache, which says who may write
there, how much there may be, and what goes first. Its name is a digest of the bytes of the user's file, the options,
the versions of graphq and of the packages that it computes with, and the kind of processor. In place of a file
that is damaged, or does not fit, the model is compiled and kept anew.
"""
from __future__ import annotations

import hashlib
import logging
import os
from functools import cache as once
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from graphq.artefact.models import Saved, save
from graphq.compiled_graph import CompiledGraph
from graphq.errors import GraphqError
from graphq.kernels.jit import cache, isa
from graphq.loading import as_saved, options_of
from graphq.open_shapes import OpenPlans

log = logging.getLogger("graphq")

ELSEWHERE = b"location"
"""The key by which an ONNX file names other files, which have its data and may change without it."""
PACKAGES = ("numpy", "ml_dtypes", "onnx", "networkx")


class Kept:
    """The place of the model that `compile` makes of a file with these options."""

    def __init__(self, digest: str, level: str | None, threads: int) -> None:
        self.name, self._level, self._threads = cache.model_name(digest), level, threads

    @staticmethod
    def of(path: Path, level: str | None, threads: int, *options: object) -> Kept | None:
        """None for a model that is not kept: too large a file, or data in other files; for one that cannot be read."""
        try:
            if os.environ.get("GRAPHQ_DEBUG") or path.stat().st_size > cache.MOST_OF_A_MODEL:
                return None
            data = path.read_bytes()
        except (OSError, ValueError):  # which the reader of such files says better
            return None
        if path.suffix == ".onnx" and ELSEWHERE in data:
            return None
        chosen = level or os.environ.get("GRAPHQ_ISA")
        levels = [x.name for x in isa.available()]
        facts = repr((path.suffix, chosen, levels, threads, options, isa.cpu(), _versions()))
        return Kept(hashlib.sha256(facts.encode() + b"\0" + data).hexdigest(), level, threads)

    def find(self) -> CompiledGraph | None:
        """The model, ready to run; None where there is none that can be used."""
        try:
            path = cache.folder() / self.name
            if not path.is_file():
                return None
            saved = Saved(path)
            options, misfit = options_of(saved, self._level, self._threads)
            model = None if misfit else as_saved(saved, options)
            if model is None:
                return None
            cache.used(path)
        except (GraphqError, OSError) as e:
            log.warning("a kept model cannot be used, and is compiled anew: %s", e)
            return None
        model.origin = f"compiled before, and kept in {path}"
        self._follow(model, saved.rows_mix)
        return model

    def keep(self, model: CompiledGraph) -> None:
        """Keep a model that was just compiled."""
        plans, rows_mix = model.plans(), model.rows_mix
        if not plans:  # of constant inputs, or in stages: planned at each process's first call
            return
        if 2 * sum(n.attrs["value"].nbytes for n in model.source.nodes_of(["constant"])) > cache.MOST_OF_A_MODEL:
            return
        self._write(model, rows_mix)
        self._follow(model, rows_mix)

    def _follow(self, model: CompiledGraph, rows_mix: str | None) -> None:
        """Keep the model again with each plan that a call adds for open sizes."""
        if model.open_plans is not None:
            model.open_plans.grown = lambda plans: self._write(plans, rows_mix)

    def _write(self, made: CompiledGraph | OpenPlans, rows_mix: str | None) -> None:
        try:
            path = cache.folder() / self.name
            save(path, made.source, made.options, made.plans(), rows_mix, team=False)
        except (GraphqError, OSError) as e:  # full disk, folder gone
            log.warning("a compiled model is not kept: %s", e)
        else:
            cache.wrote(path)


@once
def _versions() -> str:
    """Everything beside file, options and machine that a plan comes from; our own sources by size and time."""
    found = [cache.versions()]
    for package in PACKAGES:
        try:
            found.append(version(package))
        except PackageNotFoundError:
            found.append("")
    top = Path(__file__).parent
    for folder in (top, top / "passes"):  # a link in a checkout, which `rglob` does not enter
        for path in sorted(folder.rglob("*.py")):
            facts = path.stat()
            found.append(f"{path.relative_to(top)} {facts.st_size} {facts.st_mtime_ns}")
    return "\n".join(found)
