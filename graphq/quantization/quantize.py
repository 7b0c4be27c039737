"""quantize: the public function, from an f32 graph to one with quantize and dequantize nodes."""
from __future__ import annotations

from graphq.errors import GraphError
from graphq.ir import Graph
from graphq.quantization.automatic import automatic
from graphq.quantization.blocks import insert_blocks
from graphq.quantization.calibrate import Batches, calibrate
from graphq.quantization.dynamic import insert_dynamic
from graphq.quantization.insert import insert_static
from graphq.quantization.products import name_values, prepared
from graphq.quantization.scheme import Scheme
from graphq.quantization.selection import resolved
from graphq.quantization.statistics import Statistics


def quantize(graph: Graph, data: Statistics | Batches | None = None, scheme: Scheme | None = None) -> Graph:
    """A quantized copy of an f32 graph, ready for `compile`, `save_onnx` and the text form; the graph is not changed.

    `data` are batches, or the statistics that `calibrate` made of them. Batches are an iterable of dicts from names of
    inputs to arrays, or an object with `get_next`. Dynamic and weight-only schemes need none, except for rounding by
    "gptq", which needs batches.

    For batches without a `scheme`, or with one of method "automatic", the best setting that agrees with the scheme is
    searched for; `automatic` also tells which setting that is. The search reads the batches several times, and keeps
    all of them in memory unless they are a sequence; a sequence that loads each batch when asked for it takes the least
    memory.

    A graph without products in f32 has nothing to quantize and stays as it is. Raises GraphError if `graph` is no graph
    or a name does not exist, InputError if data do not fit.
    """
    if scheme is not None and not isinstance(scheme, Scheme):
        raise GraphError(f"scheme must be a Scheme, got {scheme!r}")
    if data is not None and not isinstance(data, Statistics) and (scheme is None or scheme.method == "automatic"):
        return automatic(graph, data, scheme).graph
    if scheme is not None and scheme.method == "automatic":
        raise GraphError("method 'automatic' needs batches")
    out = prepared(graph)
    scheme = resolved(out, scheme or Scheme())
    if scheme.mode == "dynamic":
        insert_dynamic(out, scheme)
    elif scheme.mode == "weight_only":
        if scheme.rounding == "gptq" and (data is None or isinstance(data, Statistics)):
            raise GraphError("rounding by 'gptq' needs batches")
        insert_blocks(out, scheme, None if isinstance(data, Statistics) else data)
    elif data is None:
        raise GraphError("quantize needs batches or statistics for activations; dynamic and weight-only schemes do not")
    else:
        insert_static(out, data if isinstance(data, Statistics) else calibrate(out, data), scheme)
    name_values(out)
    return out
