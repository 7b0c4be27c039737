"""Compiled graphs beside their formula and their reference."""
import graphq as gq
from graphq.passes.float_products import WidenProducts
from graphq.passes.pipeline import PIPELINE

AS_WRITTEN = tuple(p for p in PIPELINE if not isinstance(p, WidenProducts))
"""The passes with which products of f16 stay such, and run in their own kernels."""


def compiled_beside_reference(g, level, threads=2):
    """The compiled result on random inputs, checked against its formula; the reference's; the report."""
    model = gq.compile(g, isa=level, threads=threads, strict=True)
    inputs = gq.testing.random_inputs(g)
    got, want = model(**inputs), gq.reference(g, inputs)
    assert got.dtype == want.dtype and got.shape == want.shape
    assert got.tobytes() == model.formula(**inputs).tobytes()
    return got, want, model.explain()
