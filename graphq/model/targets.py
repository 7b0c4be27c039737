"""Save a model for CPUs that this machine need not have: a build for each target, in one file.

A target is an ISA level. Its build runs on every CPU that has the level's features. A process of its own makes it: the
process takes the target for its CPU (`base.platform.TARGET`), so it plans the model and compiles the kernels as such a
CPU would, and runs none of them. The machine that loads the build tests the level first (`kernels.levels.works`).
"""
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from graphq.base.paths import path_of
from graphq.base.platform import HOST, MACHINE
from graphq.base.progress import progress
from graphq.errors import CompileError, GraphError
from graphq.kernels.target import isa
from graphq.model.compiled_graph import CompiledGraph
from graphq.model.open_plans import background
from graphq.model.open_shapes import Places
from graphq.model.plans import Options, Plans
from graphq.model.saved_file import File
from graphq.model.saved_models import Saved, merge, save

ALL = tuple(level.name for level in isa.LEVELS if level is not isa.SCALAR)
"""The targets that `all` stands for."""
CHILD = """
import sys
sys.path[:] = {path!r}
from graphq.model.targets import build
build(*sys.argv[1:])
"""


def save_for(path: str | os.PathLike[str], of: Plans, targets: Sequence[str]) -> None:
    """Write a model with a build for each target: the name of an ISA level, or "all".

    Raises KernelError for an unknown name, GraphError if the file cannot be written, CompileError if a build fails.
    """
    if isinstance(targets, str | bytes) or not all(isinstance(t, str) for t in targets):
        raise CompileError(f'targets must be a list of names, such as ["avx2"], got {targets!r}')
    levels = [isa.level_named(x) for x in dict.fromkeys(x for t in targets for x in (ALL if t == "all" else (t,)))]
    if not levels:
        raise CompileError("no targets: name ISA levels, or all")
    final = path_of(path).absolute()
    if final.is_dir() or not final.parent.is_dir():  # said before minutes of compilation
        raise GraphError(f"{os.fspath(path)!r} cannot be written: "
                         f"{'it is a folder' if final.is_dir() else 'there is no such folder'}")
    background.join()
    sizes = json.dumps([plan.sizes for plan in of.all()])
    code = CHILD.format(path=[x or os.getcwd() for x in sys.path])
    with TemporaryDirectory() as folder:
        given, made = os.path.join(folder, "given"), [os.path.join(folder, level.name) for level in levels]
        save(given, of, plans=(), mode=0o600)  # the options of other users' files do not count
        for level, out in zip(progress(levels, "targets"), made, strict=True):
            machine = next((name for name, of in isa.ARCHITECTURES.items() if level in of.LEVELS), MACHINE)
            if (HOST, machine) == ("aarch64", "x86_64"):
                raise CompileError(f"{level.name}: an Arm machine cannot compile for x86; save the model on x86")
            target = " ".join((machine, *level.features))
            done = subprocess.run([sys.executable, "-P", "-c", code, given, out, level.name, sizes],
                                  env={**os.environ, "GRAPHQ_TARGET": target}, capture_output=True, text=True)
            if done.returncode:
                why = done.stderr.strip().rpartition("\n")[2] or f"its process ended with {done.returncode}"
                raise CompileError(f"there is no build for {level.name}: {why}")
        merge(path, map(File, made))


def build(given: str, out: str, level: str, sizes: str) -> None:
    """Compile the model in the file `given` for a level, plan it for each of the `sizes` (JSON), and save it."""
    saved = Saved(given)
    if not saved.file.private:
        raise CompileError(f"{given} cannot be private, so it cannot pass on the model's options")
    own = saved.settings
    model = CompiledGraph(saved.source, Options(
        isa.level_named(level), own.threads, own.strict, own.passes, own.cache, own.memory))
    places = Places(model.signature)
    for at in json.loads(sizes):
        model.plans.at(places.shapes(tuple(at)))
    save(Path(out), model.plans)
