"""The tuned numbers of quantization, each with its purpose. A loss is 1 - cosine of outputs with f32."""

# The loss that is wanted (search.py)
TARGET = 0.002  # above this loss, layers get 16 bits, and no number of batches makes an estimate sure
# Normally distributed outputs lose 5e-5 if they are rounded once to 8 bits: with 9 standard deviations in 255 steps the
# squared error is (9 / 255)**2 / 12 = 1e-4 of their variance, and 1 - cosine half of that.
GOOD = 5e-5  # the search ends at this loss, regardless of the loss of plain methods
PART = 0.5  # on batches that statistics cover, a setting may lose this share of the loss of plain methods

# Ranges
OF_TENSORS = 0.75  # new data are expected to exceed ranges by this quantile of all tensors' ratios ...
UNSEEN = 1.25  # ... and by this ratio if there is only one batch
MARGINS = 0.5, 1.0  # the margins of ranges that are tried for single tensors (`Candidate`)
MOST_HEADROOM = 2.0  # a margin widens a range by at most this ratio
WIDE_HEADROOM = 4.0  # 16-bit ranges are this many times the observed ranges: two of the 16 bits are for unseen data
CAUTION = 0.0005  # with a single batch, margins may lose this much more: a new batch may exceed ranges without margins

# Which layers get 16 bits or f32
TRIED = 12  # the number of layers' operands that are quantized one by one, to measure the loss that each causes
RECOVERS = 0.25  # 16 bits must reduce the loss by this share; margins may increase it by as much
PRICE = 3.0  # 16 bits that take as much time as 8 bits save must reduce the loss by RECOVERS another PRICE times
MOST_WIDE = 0.5  # at most this share of operands gets 16 bits: each repeats its layer's work, and all would exceed f32

# Which batches are compared (trials.py)
MOST_COMPARED = 8  # the largest number of held-out batches that a fold compares
FEW = 8  # fewer batches are held out one at a time
SIZES = 0.7, 1.3  # the numbers by which copies of the batches are multiplied

# How sure an estimate is (estimate.py)
SURE = 1.05  # ranges count as well known if new data are expected to exceed them by at most this ratio
LEAST_ASKED, MOST_ASKED = 4, 64  # the least number of batches advised; above MOST_ASKED a text says "more than"

# Division of channels (smooth.py)
ALPHAS = 0.25, 0.5, 0.75, 1.0  # with 1, channels of activations get equal ranges; with 0, channels of weights do
WORTH = 0.8  # channels are divided only if that reduces the estimated noise to less than this share
OF_CHANNELS = 0.98  # new data are expected to exceed each channel's range by this quantile of all channels' ratios
UNSEEN_CHANNEL = 4.0  # new data are expected to exceed a channel's range by this ratio if there is only one batch
MOST_FACTOR = 64.0  # factors are in [1 / MOST_FACTOR, MOST_FACTOR]: channels small in calibration may be larger later

# Other methods
MOMENTUM = 0.1  # the weight of one more batch in the moving average of extremes (method "moving_average")
DAMPING = 0.01  # GPTQ adds this share of the mean of a Hessian's diagonal to the diagonal, so that it can be inverted

# Reports (compare.py, comparison.py, speed.py)
RANKED = 2  # the cost of each layer is measured on this many batches, which have the largest losses
MUCH, ADVISED = 0.1, 8  # at most ADVISED layers get advice: those that cause more than the share MUCH of the loss
GAINED = 0.95  # advice is given only if it reduces the loss to at most this share
CLIPPED = 0.001  # tensors are mentioned if more than this share of their elements is out of range
PAYS = 1.05  # the least speedup at which a report says that int8 pays

# Time (price.py, which has the fitted times as well)
LEAST_SAVED = 0.5  # 8 bits save at least this share of the model's time: otherwise 16 bits would be allowed no time
LITTLE = 0.02  # layers of little work: if they are in f32, they add at most this share to the model's time ...
LITTLE_MACS = 0.1  # ... and they have at most this share of the multiply-accumulates
MOST_FLOATS = 0.5  # at most this share of multiply-accumulates may be in f32 instead of 16 bits
FULL = 64  # the largest number of channels that an 8-bit depthwise kernel computes at a time
MANY = 4e5  # with dot products of four bytes, an 8-bit depthwise convolution of this many multiply-accumulates pays
STATISTICS = 0.3  # the share of a search's time that statistics and their compilation take (for the progress bar)
TWINS = 3  # a run in which each layer also runs quantized takes this many times as long (only for the progress bar)
