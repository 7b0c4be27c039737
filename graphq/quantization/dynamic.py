"""Quantize layers with ranges that are found at run time.

    per tensor (u8)  x -> dynamic_dequantize(dynamic_quantize(x, scale, zp), scale, zp)
    per token (s8)   x @ w -> (rint(x / s) @ w') * s, with s = max|x| / 127 for each row of x

w' are the dequantized weights. A range per tensor is as in ONNX's DynamicQuantizeLinear. The state of an LSTM gets a
new range in each step, and the LSTM's input gets a range per tensor, as in com.microsoft's DynamicQuantizeLSTM. ONNX
has no quantized LSTM with ranges known at compile time, and no quantized GRU or RNN.
"""
import numpy as np

from graphq.errors import GraphError
from graphq.ir import Graph, Node, Value
from graphq.ops.recurrent import quantizes_state
from graphq.passes.ranges_by_row import ROW_ZERO, quantized_rows
from graphq.quantization import insert
from graphq.quantization.bodies import replaced
from graphq.quantization.products import LinearLayer
from graphq.quantization.ranges import MOST, SMALLEST
from graphq.quantization.scheme import Scheme


def insert_dynamic(graph: Graph, scheme: Scheme) -> None:
    """Quantize layers and states of LSTMs of a `prepared` graph in place; layers with small weights stay in f32."""
    insert_layers(graph, scheme)
    pairs: dict[Value, Value] = {}
    weights = insert.QuantizedWeights()
    for product in insert.kept(graph, scheme):
        if _is_small(product, scheme):
            continue
        # f32 must hold sums of a layer's weights times integers
        if scheme.rows and product.node.op.name == "matmul" and product.weights is not None \
                and not product.node.attrs["transpose_a"] and product.largest * product.channels() < MOST / 2**8:
            _by_rows(product, scheme, weights)
        else:
            _by_tensor(product, scheme, pairs, weights)


def unheld(graph: Graph, scheme: Scheme) -> dict[str, str]:
    """A sentence about each layer with too small weights, or with channels that become zeros."""
    return insert.unheld(graph, [p.name for p in insert.kept(graph, scheme) if not _is_small(p, scheme)], scheme)


def _is_small(p: LinearLayer, scheme: Scheme) -> bool:
    """Whether scales of weights times scales of activations may be too small for f32."""
    return 0 < p.largest < SMALLEST * insert.LARGEST[scheme.weight_bits]


def insert_layers(graph: Graph, scheme: Scheme) -> None:
    """Quantize the states of a `prepared` graph's LSTMs in place, and the matmuls of their inputs."""
    pairs: dict[Value, Value] = {}
    weights = insert.QuantizedWeights()
    for product, layer in layers(graph, scheme):
        _quantize_states(layer, scheme)
        _by_tensor(product, scheme, pairs, weights)


def layers(graph: Graph, scheme: Scheme) -> list[tuple[LinearLayer, Node]]:
    """The LSTMs whose states can be quantized, each with the 8-bit matmul of its input.

    Raises GraphError if the scheme has states but the graph has no such LSTM.
    """
    made = ((p, _layer_of(p)) for p in insert.kept(graph, scheme) if p.name not in (*scheme.wide, *scheme.wide_weights))
    found = [(p, node) for p, node in made if node is not None]
    if scheme.states and not found:
        raise GraphError(f"scheme: states need an LSTM with constant weights whose input is multiplied in 8 bits; "
                         f"graph '{graph.name}' has none")
    return found


def _by_tensor(product: LinearLayer, scheme: Scheme, pairs: dict[Value, Value],
               weights: insert.QuantizedWeights) -> None:
    """Quantize a layer's activations per tensor; `pairs` caches the dequantized tensors."""
    node, own = product.node, product.node.graph
    for k in product.activations:
        x = product.factors[k]
        if x not in pairs:
            with own.before(node):
                scale, zp = own.dynamic_range(x)
                q = own.dynamic_quantize(x, scale, zp, dtype="u8")
                pairs[x] = own.dynamic_dequantize(q, scale, zp)
        insert.replace_operand(node, k, pairs[x])
    insert.insert_weights(product, scheme, None, weights)


def _by_rows(product: LinearLayer, scheme: Scheme, weights: insert.QuantizedWeights) -> None:
    node, (x, w), bias = product.node, product.factors, product.bias
    graph = node.graph
    with graph.before(node):
        q, scale = quantized_rows(graph, x)
        (sums,) = graph.add_node(node.op, [graph.dequantize(q, scales=[1.0], zps=[ROW_ZERO]), w], node.attrs)
        y = graph.multiply(sums, scale)
        if bias is not None:
            y = graph.add(y, bias)
    product.replace(y)
    insert.insert_weights(LinearLayer(sums.maker), scheme, None, weights)


def _layer_of(product: LinearLayer) -> Node | None:
    """The LSTM whose gates this matmul computes, if the LSTM's state can be quantized."""
    (use, *others) = product.node.output.uses or (None,)
    node = None if use is None or others or use.number else use.node
    if node is None or node.op.name != "lstm" or node.operand(1).data is None or product.weights is None \
            or product.bias is not None and product.bias.data is None:
        return None
    return node if not quantizes_state(node) and node.inputs[6:7] in ((), (None,)) else None  # operand 6: peepholes


def _quantize_states(node: Node, scheme: Scheme) -> None:
    """lstm(gates, r, ...) -> lstm(gates, rint(r / scales), ..., scales), one scale for each row of r"""
    graph = node.graph
    q, p = insert.integers(node.operand(1).array, 0 if scheme.per_channel else None, insert.LARGEST[scheme.weight_bits])
    h, c, _, *more = (*node.inputs[2:], None, None, None)[:max(3, len(node.inputs) - 2)]
    with graph.before(node):
        integer, scales = graph.constant(q.astype(np.float32)), graph.constant(np.array(p.scales, np.float32))
    replaced(node, [node.inputs[0], integer, h, c, scales, *more], node.attrs)
