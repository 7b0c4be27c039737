"""What models give where every output after an integer anchor is computed by the f32 sums of the graph as written."""
import numpy as np

from graphq.kernels.ties.error_bounds import Band, BodyBounds


def settle_everything(monkeypatch):
    """From here on, whatever is compiled takes all outputs to be near a tie."""
    band = BodyBounds.band

    def everywhere(self, node):
        made = band(self, node)
        return Band(np.ones_like(made.half), made.relative, True)

    monkeypatch.setattr(BodyBounds, "band", everywhere)
