"""Quantization: turn an f32 graph into a graph that runs in integers.

quantized = quantize(graph, batches)            # the best automatic setting
statistics = calibrate(graph, batches)          # or step by step: ranges and histograms of tensors, streamed
quantized = quantize(graph, statistics, Scheme(method="percentile"))
"""
from graphq.quantization.calibrate import calibrate
from graphq.quantization.compare import compare
from graphq.quantization.comparison import Comparison, TensorDifference
from graphq.quantization.control import Controlled, quantize_with_accuracy_control
from graphq.quantization.quantize import Choice, automatic, quantize
from graphq.quantization.scheme import Scheme
from graphq.quantization.statistics import Statistics, TensorStatistics

__all__ = ["Choice", "Comparison", "Controlled", "Scheme", "Statistics", "TensorDifference", "TensorStatistics",
           "automatic", "calibrate", "compare", "quantize", "quantize_with_accuracy_control"]
