"""Fuzz load_onnx, compile and running with mutations of model files: only graphq errors may come out.

    python tests/onnx/fuzz_files.py FILE.onnx ... [--minutes 10] [--memory-gb 6] [--seed 0]

Everything happens in one process with a limit on its memory, so a crash, a hang or a blow-up is seen as such. Each
round changes nodes, attributes, tensors, types and names of a model, or its bytes, loads it, and compiles and runs
every fourth one that loads. Prints how many rounds ended how, the longest ones, and every other exception; the exit
code says whether there was one.
"""
from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parent))
from test_fuzz import change  # noqa: E402

import graphq as gq  # noqa: E402
from graphq.errors import GraphqError  # noqa: E402

OPEN = 3
"""What open dimensions become."""


def feeds_of(graph: gq.Graph) -> dict[str, np.ndarray]:
    """Ones for all inputs; raises GraphqError where they would be large."""
    shapes = {str(v.name): [OPEN if d is None else d for d in v.shape or ()] for v in graph.inputs}
    if any(np.prod(s, dtype=float) > 1e7 for s in shapes.values()):
        raise GraphqError("inputs are large")
    return {str(v.name): np.ones(shapes[str(v.name)], v.dtype.numpy) for v in graph.inputs}


def mutated(rng: random.Random, whole: onnx.ModelProto, data: bytes) -> onnx.ModelProto | bytes:
    """A model with some changes, or the bytes with some, or some of them."""
    if rng.random() < 0.2:
        some = bytearray(data[:rng.randrange(len(data))] if rng.random() < 0.5 else data)
        for _ in range(rng.randint(1, 50)):
            # Half of the changes near the start, where names and nodes are rather than weights.
            some[rng.randrange(min(len(some), 4096) if rng.random() < 0.5 else len(some))] = rng.randrange(256)
        return bytes(some)
    model = onnx.ModelProto()
    model.CopyFrom(whole)
    for _ in range(rng.randint(1, 4)):
        change(rng, model)
    return model


def main() -> int:
    """Fuzz until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--memory-gb", type=float, default=6)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    limit = int(given.memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    warnings.simplefilter("ignore")
    rng, counts, longest = random.Random(given.seed), Counter[str](), list[tuple[float, str]]()
    sources = [(p.name, onnx.load(p), p.read_bytes()) for p in given.files]
    end, rounds = time.monotonic() + 60 * given.minutes, 0
    while time.monotonic() < end:
        name, whole, data = rng.choice(sources)
        start, stage = time.process_time(), "load"
        try:
            graph = gq.load_onnx(mutated(rng, whole, data))
            if rng.random() < 0.25:
                stage = "compile and run"
                feeds = feeds_of(graph)
                gq.compile(graph, threads=1)(feeds)
            ended = f"{stage}: done"
        except GraphqError:
            ended = f"{stage}: refused"
        except Exception as e:  # what is looked for
            ended = f"{stage}: {type(e).__name__}"
            print(f"round {rounds} of {name}: {stage}\n{traceback.format_exc(limit=-6)}", flush=True)
        counts[ended] += 1
        rounds += 1
        longest = sorted([*longest, (time.process_time() - start, f"round {rounds} of {name}: {ended}")])[-5:]
    print(f"{rounds} rounds in {given.minutes:g} minutes, at most "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB resident")
    print(*(f"  {n:6d} {ended}" for ended, n in counts.most_common()), sep="\n")
    print("longest:", *(f"  {seconds:.1f} s of CPU, {text}" for seconds, text in reversed(longest)), sep="\n")
    return int(any(e.split(": ")[1] not in ("done", "refused") for e in counts))


if __name__ == "__main__":
    sys.exit(main())
