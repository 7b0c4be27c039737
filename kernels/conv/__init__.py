"""The family of convolutions, transposed and depthwise ones too."""
