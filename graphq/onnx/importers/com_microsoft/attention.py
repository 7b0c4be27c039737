"""Importers of com.microsoft's operators that are ONNX's Attention or RotaryEmbedding with another operand order."""
from __future__ import annotations

from graphq.errors import GraphError
from graphq.ir import Value
from graphq.onnx.importers.com_microsoft.transformer import masked
from graphq.onnx.importers.composed import NEWER, standard
from graphq.onnx.importers.importer import MICROSOFT, Call, Outputs, imports


@imports("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(c: Call) -> Outputs:
    """Import MultiHeadAttention: query, key, value [batch, length, width], one bias, masks, past keys and values."""
    q, k, v = (_wide(c.input(i)) for i in range(3))
    if c.has(8) or c.has(9) or c.outputs > 3:
        raise GraphError("past sequence lengths, cache indirection and the products as an output are not supported")
    if c.has(3):
        q, k, v = _biased(c, (q, k, v))
    masks = [masked(c, c.input(4))] if c.has(4) else []
    masks += [c.input(5)] if c.has(5) else []
    mask = c.graph.add(*masks) if len(masks) == 2 else masks[0] if masks else None
    heads = c.attr("num_heads")
    attrs = {"scale": c.attr("scale")} if c.attr("scale", 0.0) else {}
    return standard(c, "Attention", [q, k, v, mask, c.optional(6), c.optional(7)], max(1, c.outputs), opset=NEWER,
                    q_num_heads=heads, kv_num_heads=heads, is_causal=int(bool(c.attr("unidirectional", 0))), **attrs)


def _wide(x: Value) -> Value:
    if x.shape is None or len(x.shape) != 3:
        raise GraphError(f"query, key and value must be [batch, length, width], got {x.type}")
    return x


def _biased(c: Call, values: tuple[Value, ...]) -> list[Value]:
    """Add to query, key and value their slices of the bias, which are thirds of it if widths are unknown."""
    out, start = [], 0
    for x in values:
        size = x.shape[-1] if x.shape else None
        size = c.input(3).type.dims[0] // 3 if size is None else size
        part = c.graph.slice(c.input(3), axes=[0], starts=[start], ends=[start + size], steps=[1])
        out.append(c.graph.add(x, part))
        start += size
    return out


@imports("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(c: Call) -> Outputs:
    """Import RotaryEmbedding, whose second operand is the positions of all tokens; a scale is not supported."""
    positions = c.input(1)
    if positions.shape is None or len(positions.shape) != 2 or c.attr("is_packed_batching", 0) or \
            c.attr("scale", 1.0) != 1:
        raise GraphError(f"positions must be [batch, length], without packing and scale, got {positions.type}")
    attrs = {name: c.attr(name) for name in ("interleaved", "num_heads", "rotary_embedding_dim") if c.attr(name)}
    return standard(c, "RotaryEmbedding", [c.input(0), c.input(2), c.input(3), positions], opset=NEWER, **attrs)
