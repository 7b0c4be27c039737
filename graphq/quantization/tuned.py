"""The tuned numbers of quantization, each with its purpose and with what is known about it.

A loss is 1 - cosine of outputs with f32. The figures are in docs/quantization.md and docs/theory/quantization.md.

"At A:" and "at B:" say what another number does on six of the forty random networks: the losses of 24 unseen inputs and
of copies 1.3 times as large (geometric means, in 1e-5), and the estimated time as a share of f32's. With PART 0.5 and
the other numbers below these are 55, 75 and 0.98 (AVX2).
"""

# Which point of the frontier is balanced (search.py)
TARGET = 0.002  # a loss that is small enough; errors above it can grow with other data, and an estimate is never sure
# at 0.001: 53, 74, 0.98; at 0.004: 78, 82, 0.95
PART = 0.15  # a loss is small enough if it is at most this share of the loss of min-max, and of TARGET
# forty networks with VNNI, now 10, 12, 0.63: at 0.125: 9, 10, 0.65; at 0.25: 17, 18, 0.58
EXCHANGE = 2.0  # a point that takes 1 % longer must lose 2 % less: half the loss may take 1.41 times as long
# the same networks at 1.5: 9, 10, 0.65; at 2.5: 13, 15, 0.60
EQUAL = 1.05  # times count as equal up to this ratio: "fast" may take so much longer than min-max, int8 pays above it
# loss and time of "fast" over min-max's, forty networks, now 0.39, 0.91: at 1.025: 0.41, 0.91; at 1.1: 0.35, 0.92

# Which operands become exact (search.py, price.py)
TRIED = 12  # the loss of this many operands is measured; the others are sorted by the noise in their layers' results
# at 6: 67, 103, 0.98, and one input loses more than with ONNX Runtime; at 24: 59, 53, 1.01, in 1.1 times the search
GROWTH = 1.5  # each setting of the frontier has this many times as many exact operands as the one before
# at 1 (one more operand each time): 48, 57, 1.03, in 1.3 times the search; at 2: 57, 90, 0.98
LONGEST = 1.5  # the frontier ends at this many times the time of 8 bits, if that is more than the time of f32
# at 1: 78, 82, 0.95; at 3: 38, 54, 1.07
MOST_FLOATS = 0.5  # the largest share of multiply-accumulates that f32 takes instead of 16 bits
# ten networks, now 55, 71, 0.99: at 0.25: 66, 78, 1.05; at 1: 9, 10, 0.96, but then almost nothing is in integers

# Ranges (search.py, trials.py, statistics.py)
NEAR = 0.75  # a range counts as good as the best if the best noise is at least this share of its noise
# at 0.375: 52, 63, 1.00; at 1: 50, 123, 0.98
OF_TENSORS = 0.75  # new data are expected to exceed ranges by this quantile of all tensors' ratios
# at 0.375: 49, 91, 1.02; at 1: 48, 64, 1.01
MOST_HEADROOM = 2.0  # a margin widens a range by at most this ratio: as much for all tensors of a transformer lost 0.62
# at 1: 46, 102, 1.02; at 4: the same settings
WIDE_HEADROOM = 4.0  # 16-bit ranges are this many times the observed ranges: two of the 16 bits are for unseen data
# forty networks, now 46, 60, 0.999: at 2: 47, 60, 0.994; at 8: 48, 64, 0.992, one loss more is above the expected one

# Batches and words (estimate.py, comparison.py)
FOLDS = 4  # so many parts of at least twice as many batches are held out in turn; fewer batches are never enough
# ten networks of eight batches, now 31, 41, 1.01: at 2: 42, 62, 0.99; at 8: 30, 44, 1.01
MUCH = 0.1  # `compare` advises 16 bits for layers that cause more than this share of the loss
# two of the forty networks, loss with the advice, now 145, 186: at 0.05: 145, 184; at 0.2: 145, 99
SURE = 1.05  # ranges count as well known if new data are expected to exceed them by at most this ratio
# forty networks are told to take 17 batches (median), one is sure: at 1.025: 34, none; at 1.1: 9, three, all rightly
