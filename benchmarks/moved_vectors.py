"""Count the vectors of an encoder that move if the same text is padded, batched or computed by more threads.

    python examples/embeddings.py --write encoder.onnx
    python benchmarks/moved_vectors.py encoder.onnx [--lengths 3 7 19 20 41 60] [--engines graphq ort openvino]

Random texts of these lengths are computed one by one, padded to 64 and to 128 tokens, in a batch, and in a batch in
another order, all by one thread and by two. For each engine the table has the number of results that differ in any bit
from the unpadded text on one thread, and the lowest cosine of the two. graphq runs the file as it is ("graphq") and
with a range for each row ("graphq rows"). The model takes input_ids, and may take attention_mask. Other inputs are
zeros.
"""
from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

import graphq as gq
from graphq.commands.peers import PEERS, cosine, model_file

Vectors = list[np.ndarray]
Texts = Sequence[np.ndarray]
LONGEST = 64


def arrays(texts: Texts, width: int, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The inputs for texts padded to `width` tokens."""
    ids, mask = np.zeros((2, len(texts), width), np.int64)
    for k, text in enumerate(texts):
        ids[k, :len(text)], mask[k, :len(text)] = text, 1
    given = {"input_ids": ids, "attention_mask": mask}
    return {name: given.get(name, np.zeros_like(ids)) for name in names}


def situations(texts: Texts, run: Callable[[Texts, int], np.ndarray]) -> dict[str, Vectors]:
    """The vector of each text in each situation; a model may give a vector for each token of the text."""
    def of(rows: Texts, width: int) -> Vectors:
        y = run(rows, width)
        return [y[k, :len(row)] if y.ndim == 3 else y[k] for k, row in enumerate(rows)]

    return {"alone": [of([text], len(text))[0] for text in texts],
            **{f"padded to {w}": [of([text], w)[0] for text in texts] for w in (LONGEST, 2 * LONGEST)},
            "in a batch": of(texts, LONGEST), "in another order": of(texts[::-1], LONGEST + 8)[::-1]}


def engine(name: str, path: str, threads: int, names: Sequence[str]) -> Callable[[Texts, int], np.ndarray]:
    """A function that computes texts padded to a width."""
    if name.startswith("graphq"):
        model = gq.compile(path, threads=threads, ranges="rows" if name == "graphq rows" else "tensor")
        return lambda rows, width: next(iter(gq.ir.interpret.named_outputs(
            model.outputs, model(arrays(rows, width, names))).values()))
    run = model_file(PEERS[name], path, arrays([np.ones(3, np.int64)], 3, names), threads)
    return lambda rows, width: run(arrays(rows, width, names))[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count the vectors of an encoder that move.")
    parser.add_argument("model")
    parser.add_argument("--lengths", type=int, nargs="+", default=[3, 7, 19, 20, 41, 60])
    parser.add_argument("--engines", nargs="+", choices=["graphq", *PEERS], default=["graphq", "ort", "openvino"])
    options = parser.parse_args()
    graph = gq.load_onnx(options.model)
    names = [str(v.name) for v in graph.inputs]
    rng = np.random.default_rng(7)
    texts = [rng.integers(1, 1000, min(n, LONGEST)) for n in options.lengths]
    print("engine         moved        lowest cosine   first situation in which one moved")
    for name in ["graphq rows", *options.engines]:
        found = {f"{situation}, {threads} thread{'s' * (threads > 1)}": vectors for threads in (1, 2)
                 for situation, vectors in situations(texts, engine(name, options.model, threads, names)).items()}
        want = found.pop("alone, 1 thread")
        pairs = [(situation, y, x) for situation, vectors in found.items() for y, x in zip(vectors, want, strict=True)]
        moved = [(situation, cosine(y, x)) for situation, y, x in pairs if not np.array_equal(y, x)]
        least = min([c for _, c in moved], default=1.0)
        print(f"{name:12s} {len(moved):4d} of {len(pairs):3d}   {least:.6f}        {moved[0][0] if moved else ''}",
              flush=True)


if __name__ == "__main__":
    main()
