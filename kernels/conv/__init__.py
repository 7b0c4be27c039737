"""The family of convolutions, including transposed and depthwise convolutions."""
