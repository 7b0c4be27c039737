"""Quantize an f32 model to int8: with the best automatic setting, or with the scheme that the options state.

With --json, the output has the file's path and the sizes of the file and of the model in bytes. It lists the loss (1 -
cosine with f32) of each setting that was tried, the curve of loss over time, and the layers with 16 bits or in f32. It
says how reliable the estimated loss is, and how long a run takes in int8 and in f32.
"""
import argparse
from dataclasses import fields
from pathlib import Path

from graphq.base.budget import size_text
from graphq.commands.shared import MODEL, Arguments, option, save_graph, write
from graphq.errors import GraphError, ParseError
from graphq.model.files import load_graph
from graphq.onnx import to_model
from graphq.onnx.loading import model_bytes

NAMING = {"exclude": "--exclude", "wide": "--int16", "wide_weights": "--int16-weights"}
"""The options that name layers, by the field of `Scheme` that each option sets."""


def _limits(text: str) -> tuple[str, tuple[float, float]]:
    name, _, numbers = text.rpartition("=")
    low, _, high = numbers.partition(":")
    try:
        return name, (float(low), float(high))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be NAME=LOW:HIGH with numbers, got {text!r}") from None


ARGUMENTS: Arguments = (
    *MODEL,
    option("--data", metavar="DATA",
           help="calibration data: a folder of .npz or .npy files, such a file, or a function that gives dicts of "
                "arrays: FILE.py:NAME or module:NAME; modes without calibration only time runs with it"),
    option("-o", "--out", type=Path, required=True, metavar="FILE", help="the file to write, of any kind"),
    option("--opset", type=int, metavar="N", help="the operator set of the ONNX file, 13 or later (default 21)"),
    option("--method", choices=["min_max", "percentile", "mse"],
           help="how ranges are chosen (default: search for the best setting)"),
    option("--preset", choices=["fast", "balanced", "accurate"],
           help="the point of the curve of loss over time that the automatic search chooses (default balanced)"),
    option("--max-loss", type=float, metavar="LOSS", help="choose the fastest point that loses at most this"),
    option("--max-time", type=float, metavar="SHARE",
           help="choose the point that loses least in at most this share of the time of f32, as estimated"),
    option("--activations", choices=["u8", "s8", "u16", "s16"],
           help="type of activations; this option, --method and --mode turn off the automatic search"),
    option("--symmetric", action="store_true", help="put zero points in the middle of the range"),
    option("--mode", choices=["static", "dynamic", "weight_only"], help="default: static"),
    option("--weight-bits", type=int, choices=[4, 7, 8],
           help="7: less exact, faster on x86 CPUs without VNNI (the automatic search uses 7 there if little is lost); "
                "4: only with --mode weight_only"),
    *(option(NAMING[field], action="append", default=[], metavar="NAME", dest=field,
             help=f"{text}: the name of a result, module or ONNX node (*: any letters), op:Conv for an operation, or "
                  "FIRST..LAST for everything between two values")
      for field, text in (("exclude", "layers that stay in f32"), ("wide", "layers with 16-bit activations"),
                          ("wide_weights", "layers with 16-bit weights"))),
    option("--between", action="append", default=[], metavar="NAME",
           help="quantize values between layers that sums, concats and pools read; * for all"),
    option("--states", action="store_true", help="quantize the states of LSTMs as well, with the range of each step"),
    option("--limits", action="append", default=[], metavar="NAME=LOW:HIGH", type=_limits,
           help="the range of a tensor, instead of the observed range"))


def run(options: argparse.Namespace) -> None:
    """Quantize a file, and print the chosen setting."""
    from graphq.quantization.between import stored_between
    from graphq.quantization.bodies import with_bodies
    from graphq.quantization.data import load_data
    from graphq.quantization.products import prepared, refuse_integers
    from graphq.quantization.quantize import automatic, left_text, quantize
    from graphq.quantization.scheme import GOALS, Scheme
    from graphq.quantization.speed import speed

    graph = load_graph(options.file)
    refuse_integers(graph)
    if not options.out.parent.is_dir():
        raise ParseError(f"{options.out}: there is no folder {options.out.parent}: create it first")
    opset = 21 if options.opset is None else options.opset
    if options.out.suffix == ".onnx":
        to_model(graph, opset=opset)  # checks before the long search that the operator set can express the graph
    elif options.opset is not None:
        raise ParseError(f"--opset applies only to ONNX files; {options.out} is not one")
    if "*" in options.between and not stored_between(prepared(graph)):
        raise ParseError(f"--between: no value between layers of {options.file} is stored that could be an integer")
    names = {f.name for f in fields(Scheme)}
    given = {n: x for n, x in vars(options).items() if n in names and (x or isinstance(x, float))}  # 0.0 is an error
    searched = not any(name in given for name in ("method", "activations", "mode")) and options.weight_bits != 4
    goals = [f"--{name.replace('_', '-')}" for name in GOALS if name in given]
    if goals and not searched:
        raise ParseError(f"{goals[0]} needs the automatic search: leave out --method, --activations and --mode")
    if len(goals) > 1:
        raise ParseError(f"give only one of {', '.join(goals)}: each chooses a point of the curve")
    scheme = Scheme(**{"method": "automatic"} | given if searched else given)
    if scheme.mode == "static" and options.data is None:
        raise ParseError("quantize needs --data unless --mode is dynamic or weight_only")
    batches = load_data(options.data, graph) if options.data else None
    losses: dict[str, float] = {}
    if searched:
        assert batches is not None
        choice = automatic(graph, batches, scheme)
        made, losses = choice.graph, {str(setting): loss for setting, loss in choice.losses.items()}
    else:
        made = quantize(graph, batches, scheme)
    before, after = (sum(n.op.name.endswith("quantize") for part in with_bodies(g) for n in part.nodes)
                     for g in (graph, made))
    if after == before:
        if scheme.exclude:
            raise GraphError(f"--exclude leaves no matmul or convolution of {options.file} to quantize")
        if made.meta["quantization"]["layers_f32"]:
            raise GraphError(f"every layer of {options.file} is faster in f32 on this machine: keep the file, or "
                             "name layers to quantize with --int16")
        said = "; ".join(["", *left_text(made.meta["quantization"])])
        raise GraphError(f"{options.file} has no matmul or convolution in f32 to quantize{said}")
    save_graph(made, options.out, opset)
    written, read_from = (model_bytes(path) for path in (options.out, options.file))
    lines = [f"{options.out}: {size_text(written)}, {options.file} has {size_text(read_from)}"]
    report = {"file": str(options.out), "bytes": written, "model_bytes": read_from, "losses": losses,
              **made.meta.get("quantization", {})}
    if losses:
        lines[:0] = ["time (share of f32's, estimated) and loss (1 - cosine with f32) of settings (*: chosen):",
                     str(choice)]
    elif batches is not None:
        measured = speed(made, graph, batches)
        lines[:0], report["speed"] = [*left_text(report), str(measured)], measured.json()
    write(options, "\n".join(lines), report)
