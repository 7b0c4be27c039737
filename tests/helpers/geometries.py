"""Geometries of windows that kernels over pixels are tested with."""

GEOMETRIES = {  # sizes, kernel, strides, dilations, pads, outputs
    "3x3": ((5, 7), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), (5, 7)),
    "3x3/2, asymmetric": ((8, 6), (3, 3), (2, 2), (1, 1), ((0, 1), (1, 0)), (4, 3)),
    "dilated, pads larger than the kernel": ((4, 5), (2, 2), (1, 2), (3, 2), ((4, 4), (5, 3)), (9, 6)),
    "1-D, even taps": ((9,), (4,), (1,), (1,), ((2, 1),), (9,)),
    "3-D": ((3, 4, 3), (2, 3, 3), (1, 1, 1), (1, 1, 1), ((0, 0), (1, 1), (1, 1)), (2, 4, 3)),
    "one tap": ((3, 3), (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), (3, 3)),
    "many taps": ((9, 8), (7, 7), (1, 1), (1, 1), ((3, 3), (3, 3)), (9, 8)),
}
