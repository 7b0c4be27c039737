"""The tuned numbers of quantization, each with its purpose and with what is known about it.

A loss is 1 - cosine of outputs with f32. The figures are in docs/quantization.md and docs/theory/quantization.md.
"""

# Which point of the frontier is balanced (search.py)
TARGET = 0.002  # a loss that is small enough; errors above it can grow with other data, and an estimate is never sure
PART = 0.5  # a loss is small enough only if it is at most this share of the loss of plain methods
EXCHANGE = 2.0  # a point that takes 1 % longer must lose 2 % less: half the loss may take 1.41 times as long

# Which operands become exact (search.py)
TRIED = 12  # the loss of this many operands is measured; the others are sorted by the noise in their layers' results

# Ranges (search.py, trials.py, statistics.py)
NEAR = 0.75  # a range counts as good as the best if the best noise is at least this share of its noise
OF_TENSORS = 0.75  # new data are expected to exceed ranges by this quantile of all tensors' ratios ...
UNSEEN = 1.25  # ... and by this ratio if there is only one batch
MOST_HEADROOM = 2.0  # a margin widens a range by at most this ratio: as much for all tensors of a transformer lost 0.62
WIDE_HEADROOM = 4.0  # 16-bit ranges are this many times the observed ranges: two of the 16 bits are for unseen data

# Time (price.py, which has the fitted times as well)
MANY = 4e5  # with dot products of four bytes, an 8-bit depthwise convolution of this many multiply-accumulates pays
