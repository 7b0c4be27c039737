"""Turn texts into vectors that do not move: a text has the same bits in any batch, with any padding, on every CPU.

    python examples/embeddings.py texts.txt --out vectors.npy      a text a line
    python examples/embeddings.py --serve 8000                     POST {"texts": [...]} gives {"vectors": [...]}
    python examples/embeddings.py --write encoder.onnx             the encoder, for other engines

The encoder is a small one with random weights, unless `--model` names an ONNX file. It takes input_ids (words become
their checksums, or with `--tokenizer tokenizer.json` the numbers that the package tokenizers gives), may take
attention_mask, and other inputs are zeros. Texts are cut to 256 tokens. A model that gives a vector for each token is
pooled to the mean.

Texts are sorted by length and padded to few lengths, and the server computes texts of several requests together. Both
are safe, because `ranges="rows"` gives each token its own range, and `model.rows_mix` and `model.padding_mixes` are
None: the result of a text provably depends on nothing else.
"""
from __future__ import annotations

import argparse
import json
import queue
import re
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

import graphq as gq
from graphq.quantization import Scheme, quantize

WORDS, WIDTH, HEADS, LAYERS = 8192, 128, 4, 2
LONGEST = 256
MOST_TEXTS, MOST_BYTES = 256, 1 << 20

Tokenize = Callable[[str], Sequence[int]]
Request = tuple[list[str], Future[np.ndarray]]


def encoder() -> gq.Graph:
    """Build a transformer encoder with random weights, whose products are quantized at run time, per tensor."""
    rng, g = np.random.default_rng(0), gq.Graph("encoder")
    ids, mask = (g.input(name, shape=(None, None), dtype="s64") for name in ("input_ids", "attention_mask"))
    zeros = [0, 0]

    def weights(*shape: int) -> gq.ir.Value:
        return g.constant((rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32))

    def split(x: gq.ir.Value, order: Sequence[int]) -> gq.ir.Value:
        heads = g.static_reshape(x, shape=[*zeros, HEADS, WIDTH // HEADS], special_zero=True)
        return g.static_transpose(heads, order=order)

    def normed(x: gq.ir.Value) -> gq.ir.Value:
        return g.layer_norm(x, np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32), epsilon=1e-5,
                            keep_stats=False)

    real = g.cast(mask, dtype="f32")
    columns = g.static_reshape(real, shape=[0, 1, 1, -1], special_zero=True)
    hidden = g.multiply(g.subtract(columns, np.float32(1)), np.finfo(np.float32).max)
    places = g.gather(weights(LONGEST + 1, WIDTH), g.cum_sum(mask, axis=1))
    x = normed(g.add(g.gather(weights(WORDS, WIDTH), ids), places))
    for _ in range(LAYERS):
        q, k, v = (split(g.matmul(x, weights(WIDTH, WIDTH)), order)
                   for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = g.add(g.multiply(g.matmul(q, k), np.float32((WIDTH / HEADS) ** -0.5)), hidden)
        joined = g.static_transpose(g.matmul(g.softmax(scores, axis=-1), v), order=[0, 2, 1, 3])
        joined = g.static_reshape(joined, shape=[*zeros, WIDTH], special_zero=True)
        x = normed(g.add(x, g.matmul(joined, weights(WIDTH, WIDTH))))
        wide = g.gelu(g.matmul(x, weights(WIDTH, 4 * WIDTH)))
        x = normed(g.add(x, g.matmul(wide, weights(4 * WIDTH, WIDTH))))
    rows = g.static_reshape(real, shape=[*zeros, 1], special_zero=True)
    total = g.reduce_sum(g.multiply(x, rows), axes=[1], keep_dims=False)
    g.output(g.divide(total, g.reduce_sum(rows, axes=[1], keep_dims=False)), name="vectors")
    return quantize(g, scheme=Scheme(mode="dynamic"))


def tokenizer(path: str | None) -> Tokenize:
    """Read the tokenizer of a file. Without one, the number of a word is a checksum."""
    if path is None:
        return lambda text: [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in re.findall(r"\w+|[^\w\s]", text)]
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(path)
    made.no_padding()
    return lambda text: made.encode(text).ids


class Encoder:
    """A model and a tokenizer: `encoder(texts)` returns a vector for each text, f32 [texts, width]."""

    def __init__(self, model: gq.CompiledGraph, tokenize: Tokenize) -> None:
        self.tokenize, self.names = tokenize, list(model.inputs)
        fixed = [x.shape[0] for x in model.inputs.values() if x.shape and x.shape[0] is not None]
        self.predictor = gq.Predictor(model, batch=None if fixed else 32, pad="buckets", convert=True)
        for what, reason in (("batched", model.rows_mix), ("padded", model.padding_mixes)):
            if reason is not None:
                print(f"texts are not {what}: {reason}", file=sys.stderr)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Compute the vectors."""
        rows = [np.asarray(self.tokenize(text)[:LONGEST] or [0], np.int64) for text in texts]
        known = {"input_ids": rows, "attention_mask": [np.ones_like(row) for row in rows]}
        (vectors, *_) = self.predictor({
            name: known.get(name) or [np.zeros_like(row) for row in rows] for name in self.names}).values()
        pooled = [x.mean(axis=0, dtype=np.float64) if x.ndim == 2 else x for x in vectors]
        return np.stack(pooled).astype(np.float32)


class Together:
    """Run an encoder in one thread on the texts of all requests that wait."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.waiting = encoder, queue.SimpleQueue[Request]()
        threading.Thread(target=self.work, daemon=True).start()

    def __call__(self, texts: list[str]) -> np.ndarray:
        """Wait for the vectors of these texts. An error of the encoder is raised here."""
        result: Future[np.ndarray] = Future()
        self.waiting.put((texts, result))
        return result.result()

    def work(self) -> None:
        """Answer requests until the process ends."""
        while True:
            batch = [self.waiting.get()]
            while not self.waiting.empty() and sum(len(texts) for texts, _ in batch) < MOST_TEXTS:
                batch.append(self.waiting.get())
            self.answer(batch)

    def answer(self, batch: list[Request]) -> None:
        """Answer a batch of requests together. After an error, answer each alone, so that it gets its own error."""
        try:
            vectors = self.encoder([text for texts, _ in batch for text in texts])
        except Exception as error:  # of any class: a request without an answer would wait for ever
            if len(batch) == 1:
                return batch[0][1].set_exception(error)
            for request in batch:
                self.answer([request])
        else:
            for texts, result in batch:
                result.set_result(vectors[:len(texts)])
                vectors = vectors[len(texts):]


def server(encoder: Encoder, port: int) -> ThreadingHTTPServer:
    """Make an HTTP server on this machine's own address; its `serve_forever` answers requests."""
    together = Together(encoder)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, answer = self.answer()
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def answer(self) -> tuple[int, dict[str, object]]:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MOST_BYTES:
                return 413, {"error": f"a body has a Content-Length, of at most {MOST_BYTES} bytes"}
            try:
                given = json.loads(self.rfile.read(int(length)))
            except (ValueError, RecursionError):
                return 400, {"error": "the body is not JSON"}
            texts = given.get("texts") if isinstance(given, dict) else None
            if not isinstance(texts, list) or not 0 < len(texts) <= MOST_TEXTS \
                    or not all(isinstance(text, str) for text in texts):
                return 400, {"error": f"the body must be {{\"texts\": [1 to {MOST_TEXTS} strings]}}"}
            try:
                return 200, {"vectors": together(texts).tolist()}
            except (gq.GraphqError, ValueError) as error:  # a ValueError: text that cannot be encoded
                return 422, {"error": str(error)}

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Run one of the commands of the module's docstring."""
    parser = argparse.ArgumentParser(description="Turn texts into vectors that do not move.")
    parser.add_argument("texts", nargs="?", help="a file with a text in each line")
    parser.add_argument("--out", default="vectors.npy")
    parser.add_argument("--model", help="an ONNX file or a saved model")
    parser.add_argument("--tokenizer", help="the model's tokenizer.json")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--serve", type=int, metavar="PORT")
    parser.add_argument("--write", metavar="FILE.onnx")
    options = parser.parse_args()
    if options.write:
        gq.save_onnx(encoder(), options.write)
        return print(f"wrote {options.write}")
    if options.texts is None and options.serve is None:
        parser.error("give a file with texts, --serve PORT or --write FILE.onnx")
    try:
        model = gq.compile(options.model or encoder(), ranges="rows", threads=options.threads)
        run = Encoder(model, tokenizer(options.tokenizer))
    except gq.GraphqError as error:
        parser.error(str(error))
    if options.serve is not None:
        made = server(run, options.serve)
        print(f"http://127.0.0.1:{made.server_port}, fingerprint {model.fingerprint}", flush=True)
        return made.serve_forever()
    texts = Path(options.texts).read_text("utf-8").splitlines()
    if not texts:
        parser.error(f"{options.texts} has no lines")
    try:
        vectors = run(texts)
    except gq.GraphqError as error:
        parser.error(str(error))
    np.save(options.out, vectors)
    print(f"{options.out}: {len(vectors)} vectors of {vectors.shape[1]}, model {model.fingerprint}")


if __name__ == "__main__":
    main()
