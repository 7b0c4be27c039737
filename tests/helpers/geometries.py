"""Geometries of windows that kernels over pixels are tested with, and of convolutions as tests write them."""

GEOMETRIES = {  # sizes, kernel, strides, dilations, pads, outputs
    "3x3": ((5, 7), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), (5, 7)),
    "3x3/2, asymmetric": ((8, 6), (3, 3), (2, 2), (1, 1), ((0, 1), (1, 0)), (4, 3)),
    "dilated, pads larger than the kernel": ((4, 5), (2, 2), (1, 2), (3, 2), ((4, 4), (5, 3)), (9, 6)),
    "1-D, even taps": ((9,), (4,), (1,), (1,), ((2, 1),), (9,)),
    "3-D": ((3, 4, 3), (2, 3, 3), (1, 1, 1), (1, 1, 1), ((0, 0), (1, 1), (1, 1)), (2, 4, 3)),
    "one tap": ((3, 3), (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), (3, 3)),
    "many taps": ((9, 8), (7, 7), (1, 1), (1, 1), ((3, 3), (3, 3)), (9, 8)),
}


def convolution(op, spatial, channels, columns, groups, *, strides, pads, pads_end, dilations):
    """The first two dimensions of the weights of a channels-last convolution, and its attributes.

    Numbers stand for one value along each of the `spatial` axes.
    """
    lists = {"strides": strides, "pads_begin": pads, "pads_end": pads if pads_end is None else pads_end,
             "dilations": dilations}
    lists = {k: [v] * spatial if isinstance(v, int) else list(v) for k, v in lists.items()}
    transposed = op == "conv_transpose"
    dims = (channels, columns // groups) if transposed else (columns, channels // groups)
    return dims, {**lists, "groups": groups, "data_format": "NXC", "weights_format": "IOX" if transposed else "OIX"}
