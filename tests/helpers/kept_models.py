"""What tests of kept models share."""
import threading
import time

import numpy as np

import graphq as gq
from graphq.model.open_plans import background

FOUND = "compiled before, and kept in "


def feeds(model, n=4, seed=1):
    rng = np.random.default_rng(seed)
    shapes = {name: [n if d is None else d for d in t.shape] for name, t in model.inputs.items()}
    return {name: rng.integers(0, 50, shapes[name]).astype(t.dtype.numpy) for name, t in model.inputs.items()}


def same(x, y):
    x, y = (z if isinstance(z, dict) else {"": z} for z in (x, y))
    return x.keys() == y.keys() and all(x[k].tobytes() == y[k].tobytes() for k in x)


def written():
    """Wait until this process has made plans in the background, and has written the models that it keeps."""
    background.join()
    for thread in threading.enumerate():
        while thread.name == "graphq-keeping":
            try:
                thread.join()
                break
            except RuntimeError:  # another thread is about to start it
                time.sleep(1e-3)


def compiled(graph, **options):
    """The compiled model, once it is kept."""
    model = gq.compile(graph, **options)
    written()
    return model


def files(folder):
    return sorted(p for p in folder.iterdir() if p.suffix == ".graphq")
