"""Digests of a model's outputs and inner values, by which `graphq verify` compares machines (docs/numbers.md)."""
import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np

from graphq.base.paths import read_file
from graphq.base.platform import MACHINE
from graphq.errors import InputError, ParseError
from graphq.ir import array_type, named_outputs
from graphq.model.compiled_graph import CompiledGraph
from graphq.ops import NUMBERS

FORMAT, GROWTH = "graphq.digests/1", 40
"""The format of the files, and the most bytes of memory that parsing takes for one byte."""
STAGE = 1 << 28
"""About how many bytes of inner values `verify` holds at a time."""


def verify(model: CompiledGraph, arrays: Mapping[str, np.ndarray], path: Path, *, values: bool = False,
           seed: int | None = None) -> dict[str, Any]:
    """Compare digests of the model's results for `arrays` with a file. If there is no such file, write it.

    With `values`, also compare inner values: those that the passes leave, which a second model returns (`fetch`). A
    check compares the values that the file names. `seed` tells how the arrays were made.

    Returns whether the file was `written`, the numbers of `outputs` and `values`, the names of those `differing` in the
    order of execution, the `node` that makes the first, and values of the file that are `missing` in the model. Raises
    InputError or ParseError for a file that is for another model or other arrays, or has no values.
    """
    wanted = read_digests(path) if path.exists() else {}
    found: dict[str, Any] = {
        "format": FORMAT, "numbers": NUMBERS, "fingerprint": model.fingerprint, "seed": seed,
        "inputs": _texts(arrays), "values": {} if values else None}
    for key in ("numbers", "fingerprint", "inputs") if wanted else ():
        if wanted[key] != found[key]:
            raise InputError(f"{path}: is for other {key}: {wanted[key]}, not {found[key]}: take the same graphq, "
                             "model, --precision, --ties, --ranges, --input, --shape and --seed, or write a new file")
    if values and wanted and wanted["values"] is None:
        raise InputError(f"{path}: has no inner values: write the file again with --values")
    found["outputs"] = _texts(named_outputs(model.outputs, model(arrays)))
    if wanted and not wanted["outputs"].keys() <= found["outputs"].keys():
        raise InputError(f"{path}: is for other outputs: {', '.join(wanted['outputs'])}: write a new file")
    graph = model.source
    made = {v.name: v for v in graph.values} | dict(zip(graph.output_names, graph.outputs, strict=True))
    names = list(wanted["values"]) if values and wanted else []
    if values and not wanted:
        left = {v.name for n in model.graph.nodes if n.op.name != "constant" for v in n.outputs}
        names = [v.name for n in graph.nodes for v in n.outputs if v.name and v.name in left and not v.is_output]
    if known := [name for name in names if name in made]:
        found["values"] = _in_stages(model, arrays, known)
    result = {"written": not wanted, "outputs": len(found["outputs"]), "values": len(known), "differing": [],
              "node": None, "missing": [name for name in names if name not in made]}
    if not wanted:
        found["about"] = {"machine": MACHINE, "isa": model.level.name, "threads": model.threads}
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return result
    order = {v: k for k, v in enumerate(graph.values)}
    wrong = [name for kind in ("outputs", "values") for name, text in (found[kind] or {}).items()
             if text != wanted[kind].get(name)]
    wrong.sort(key=lambda name: order[made[name]])
    node = made[wrong[0]].node if wrong else None
    return {**result, "differing": wrong, "node": None if node is None else graph.describe(node)}


def _in_stages(model: CompiledGraph, arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, str]:
    """The texts of inner values. Each run returns as many of them as STAGE allows."""
    graph = model.source.specialize({name: array_type(x) for name, x in arrays.items()})
    sizes = {v.name: v.type.nbytes for v in graph.values if v.type.known}
    ends = accumulate(sizes.get(name, 0) for name in names)
    found: dict[str, str] = {}
    for _, stage in groupby(zip(names, ends, strict=True), key=lambda x: x[1] // STAGE):
        found |= _texts(model(arrays, fetch=[name for name, _ in stage]))
    return found


def add_array(found: Any, x: np.ndarray) -> None:
    """Add an array to a digest of hashlib: dtype, shape, and bytes in C order. All NaN count as one NaN."""
    if array_type(x).dtype.kind == "float" and (nan := np.isnan(x)).any():
        x = np.where(nan, np.array(np.nan, x.dtype), x)
    found.update(f"{x.dtype} {x.shape}".encode())
    found.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)


def _texts(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The type and the digest of each array by name, such as `f32[2,3] 90ab...`."""
    digests = {name: hashlib.sha256() for name in arrays}
    for name, x in arrays.items():
        add_array(digests[name], x)
    return {name: f"{array_type(x)} {digests[name].hexdigest()}" for name, x in arrays.items()}


def read_digests(path: Path) -> dict[str, Any]:
    """The content of a file that `verify` wrote. Raises ParseError for any other file."""
    try:
        data = dict(json.loads(read_file(path, GROWTH)))
        texts = [*data["inputs"].values(), *data["outputs"].values(), *(data["values"] or {}).values()]
        kinds = isinstance(data["seed"], int | None) and isinstance(data["numbers"], int)
        if data["format"] == FORMAT and kinds and all(isinstance(x, str) for x in (data["fingerprint"], *texts)):
            return data
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise ParseError(f"{path}: not a file of `graphq verify`; name a new file to write one")
