"""Names of operations in other libraries, for error messages about unknown operations."""

OTHER_NAMES: dict[str, str] = {
    **dict.fromkeys(("bmm", "dense", "fc", "fully_connected", "gemm", "inner_product", "linear", "mm"), "matmul"),
    **dict.fromkeys(("conv", "conv1d", "conv2d", "conv3d"), "convolution"),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "deconvolution"), "conv_transpose"),
    **dict.fromkeys(("expand_dims", "flatten", "reshape", "squeeze", "unsqueeze", "view"), "static_reshape"),
    **dict.fromkeys(("permute", "transpose"), "static_transpose"),
    **dict.fromkeys(("clip", "hardtanh", "relu6"), "clamp"),
    **dict.fromkeys(("resize", "upsample"), "interpolate"),
    **dict.fromkeys(("average", "global_average_pool", "mean"), "reduce_mean"),
    **dict.fromkeys(("silu", "swish"), "x * g.sigmoid(x)"),
    "astype": "type_cast", "batch_norm": "batch_norm_inference", "cat": "concat", "div": "divide",
    "embedding": "gather", "max": "reduce_max, maximum", "min": "reduce_min, minimum", "mul": "multiply", "neg": "-x",
    "negative": "-x", "prod": "reduce_prod", "split": "slice", "sub": "subtract", "sum": "reduce_sum",
    "where": "select",
}
"""Maps names of NumPy, PyTorch, TensorFlow and ONNX to graphq's operation, or an expression of operations."""
