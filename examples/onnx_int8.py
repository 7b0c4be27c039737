"""Quantize an ONNX model to int8 and run it: it reads text from pictures, so anyone can check the result.

    python examples/onnx_int8.py [TEXT ...] [--threads N] [--save FILE.onnx]
    python examples/onnx_int8.py --model FILE.onnx [--inputs FILE.npz] [--threads N] [--save FILE.onnx]

The first form takes PP-OCRv4's text recognizer from the package rapidocr-onnxruntime (Apache-2.0), calibrates it with a
few pictures, quantizes it, and reads lines of text that Pillow draws, in f32 and in int8. It needs

    pip install -e ".[onnx]" pillow && pip install --no-deps rapidocr-onnxruntime==1.4.4

The second form takes any ONNX file. A model that is already quantized runs unchanged. Any other model is quantized,
calibrated with the arrays in FILE.npz (named like the inputs) or with random arrays.
"""
from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import graphq as gq
from graphq.errors import how_to_install
from graphq.quantization import quantize

LINES = ["Operator graphs in 8 bits", "The quick brown fox jumps", "over 13 lazy dogs, twice!", "and exact numbers"]
SEEN = ["Sphinx of black quartz,", "judge my vow: 0123456789", "PACK MY BOX WITH FIVE", "(dozen) liquor jugs? 50%"]
WIDTH = 480
INT8 = ("quantize", "dequantize", "dynamic_quantize", "dynamic_dequantize", "quantize_linear", "dequantize_linear",
        "matmul_integer", "conv_integer")


def has_quantization(graph: gq.Graph) -> bool:
    """Whether a graph is already quantized."""
    return any(n.op.name in INT8 for n in graph.nodes)


def need(module: str, command: str) -> None:
    """Exit with a message if a module is missing."""
    if find_spec(module) is None:
        sys.exit(f"this example needs {module}: {command}")


def recognizer() -> tuple[Path, list[str]]:
    """The model's file, and the characters of its classes; class 0 is CTC's blank, the last class a space."""
    need("onnx", how_to_install("onnx"))
    need("PIL", "pip install pillow")
    need("rapidocr_onnxruntime", "pip install --no-deps rapidocr-onnxruntime==1.4.4")
    import onnx

    spec = find_spec("rapidocr_onnxruntime")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "models" / "ch_PP-OCRv4_rec_infer.onnx"
    if not path.exists():
        sys.exit(f"{path} is missing: pip install --no-deps rapidocr-onnxruntime==1.4.4")
    (characters,) = (p.value for p in onnx.load(path).metadata_props if p.key == "character")
    return path, ["", *characters.splitlines(), " "]


def picture(text: str) -> np.ndarray:
    """Draw the text for the model, black on white: [1, 3, 48, WIDTH], numbers from -1 to 1, gray to the right."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(34)
    box = font.getbbox(text)
    page = Image.new("L", (int(box[2]) + 16, 48), 255)
    ImageDraw.Draw(page).text((8, 4), text, fill=0, font=font)
    pixels = np.asarray(page.resize((min(page.width, WIDTH), 48)), np.float32) / 127.5 - 1
    out = np.zeros((1, 3, 48, WIDTH), np.float32)
    out[..., :pixels.shape[1]] = pixels
    return out


def read(probabilities: np.ndarray, characters: Sequence[str]) -> str:
    """The text of a CTC output [1, steps, classes], with repeats joined and blanks removed."""
    best = probabilities[0].argmax(-1)
    return "".join(characters[c] for k, c in enumerate(best) if c and (k == 0 or best[k - 1] != c))


def milliseconds(models: Sequence[gq.CompiledGraph], feeds: dict[str, np.ndarray], rounds: int = 15) -> list[float]:
    """Median milliseconds of each model; the models take turns."""
    times: list[list[float]] = [[] for _ in models]
    for _ in range(rounds):
        for model, out in zip(models, times, strict=True):
            start = time.perf_counter()
            model(feeds)
            out.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(t) for t in times]


def made(path: Path, samples: Sequence[dict[str, np.ndarray]], threads: int | None,
         save: Path | None) -> tuple[gq.CompiledGraph, gq.CompiledGraph]:
    """Compile a file unchanged and in int8, for the shapes of the samples."""
    graph = gq.load_onnx(path)
    graph = graph.specialize({n: gq.TensorType(gq.dtypes.as_dtype(x.dtype), x.shape) for n, x in samples[0].items()})
    narrow = graph
    if not has_quantization(graph):
        narrow = quantize(graph, samples)
    if save is not None:
        gq.save_onnx(narrow, save)
    wide_model, model = gq.compile(graph, threads=threads), gq.compile(narrow, threads=threads)
    print(f"{path.name}: {model.coverage()}")
    return wide_model, model


def any_file(path: Path, inputs: Path | None, threads: int | None, save: Path | None) -> None:
    """Compare int8 with f32 for any model: results and speed."""
    need("onnx", how_to_install("onnx"))
    rng = np.random.default_rng(0)
    graph = gq.load_onnx(path)
    feeds: dict[str, np.ndarray] = {}
    for v in graph.inputs:
        shape = tuple(1 if d is None else d for d in v.shape or ())
        x = rng.standard_normal(shape) if v.dtype.kind == "float" else rng.integers(0, 2, shape)
        feeds[str(v.name)] = x.astype(v.dtype.numpy)
    if inputs is not None:
        with np.load(inputs) as z:
            feeds |= {n: z[n] for n in feeds if n in z.files}
    wide, model = made(path, [feeds], threads, save)
    if has_quantization(wide.source):
        print(f"the file is quantized already; it takes {milliseconds([model], feeds)[0]:.2f} ms")
        return
    a, b = (m(feeds) for m in (wide, model))
    for name in wide.source.output_names:
        x, y = (np.asarray(o[name] if isinstance(o, dict) else o, np.float64).ravel() for o in (a, b))
        size = float(np.linalg.norm(x) * np.linalg.norm(y))
        print(f"{name}: cosine of both results {float(x @ y) / max(size, 1e-30):.5f}")
    before, after = milliseconds([wide, model], feeds)
    print(f"the file as it is {before:.2f} ms, in int8 {after:.2f} ms: {before / after:.1f} times as fast")


def read_lines(lines: Sequence[str], threads: int | None, save: Path | None) -> int:
    """Draw the lines and read them; returns the number of lines that int8 and f32 read differently."""
    path, characters = recognizer()
    wide, model = made(path, [{"x": picture(t)} for t in SEEN], threads, save)
    different = 0
    for text in lines:
        x = picture(text)
        f32, int8 = (read(m(x=x), characters).strip() for m in (wide, model))
        different += f32 != int8
        print(f"drawn {text!r}\n  f32 {f32!r}\n  int8 {int8!r}{'' if f32 == int8 else '  (differs)'}")
    before, after = milliseconds([wide, model], {"x": picture(lines[0])})
    print(f"a line takes {before:.1f} ms in f32, {after:.1f} ms in int8: {before / after:.1f} times as fast")
    return different


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", help="lines to draw and read")
    parser.add_argument("--model", type=Path, metavar="FILE.onnx")
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--save", type=Path, metavar="FILE.onnx", help="write the quantized model there")
    given = parser.parse_args()
    if given.model is not None:
        any_file(given.model, given.inputs, given.threads, given.save)
        return 0
    return read_lines(given.text or LINES, given.threads, given.save)


if __name__ == "__main__":
    sys.exit(main())
