"""Names for values: the paths of PyTorch's modules in files of other formats. This package does not import torch."""
