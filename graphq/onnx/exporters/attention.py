"""The exporter of cached_attention, as ONNX Runtime's operator: ONNX's operator set 21 has no attention."""
from __future__ import annotations

from graphq.ir import Node
from graphq.onnx.exporters.writer import MICROSOFT, Writer, exports


@exports("cached_attention")
def cached_attention(w: Writer, node: Node) -> None:
    """Write com.microsoft's GroupQueryAttention."""
    names = [w.name(v) for v in node.inputs] + [""] * (14 - len(node.inputs))
    query, lengths, total, key, value, past_key, past_value, *others, key_scale, value_scale = names
    a, scales = node.attrs, []
    more: dict[str, int | str] = {} if a["causal"] else {"causal": 0}
    if key_scale:
        scales = [w.add("Unsqueeze", [x, w.integers(0, 2)]) for x in (key_scale, value_scale)]
        more |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": a["bits"]}
    w.add("GroupQueryAttention", [query, key, value, past_key, past_value, lengths, total, *others, *scales],
          [w.name(v) for v in node.outputs], domain=MICROSOFT, num_heads=a["heads"], kv_num_heads=a["groups"],
          scale=a["scale"], softcap=a["softcap"], local_window_size=a["window"] if a["window"] > 0 else -1,
          do_rotary=int(bool(others[0])), rotary_interleaved=int(a["interleaved"]),
          **more)
