"""FAMILIES: records that agree with the operations there are, and the fusions made from them."""
import pickle

import pytest

from graphq.errors import CompileError
from graphq.ir.op import OPS
from graphq.kernels.families import FAMILIES, family_named
from graphq.passes import PIPELINE, Fuse


def test_records_name_operations_that_there_are():
    assert len({f.name for f in FAMILIES}) == len(FAMILIES)
    for f in FAMILIES:
        assert {*f.operations, *f.channels_last, *f.macs} <= set(OPS) and set(f.channels_last) <= set(f.operations)
        assert family_named(f.name) is f and (f.quantized or f.floats)


def test_the_pipeline_has_every_fusion_and_those_of_integers_first():
    fusions = [p for p in PIPELINE if isinstance(p, Fuse)]
    assert {(p.family, p.floats) for p in fusions} == {
        (f, floats) for f in FAMILIES for floats in (False, True) if (f.floats if floats else f.quantized)}
    assert fusions == sorted(fusions, key=lambda p: p.floats)


@pytest.mark.parametrize("fusion", [p for p in PIPELINE if isinstance(p, Fuse)], ids=lambda p: p.name)
def test_fusions_are_pickled(fusion):
    again = pickle.loads(pickle.dumps(fusion))
    assert again.name == fusion.name and again.family.lower is fusion.family.lower


@pytest.mark.parametrize("family,floats,message", [
    ("dense", False,
     "must be one of convolution, matmul, matmul_compressed, pool, interpolate, concat, row, eltwise, got"),
    ("row", False, "the family 'row' has no fusion with floats=False"),
    ("concat", True, "the family 'concat' has no fusion with floats=True")])
def test_a_fusion_of_what_is_not_there_is_refused(family, floats, message):
    with pytest.raises(CompileError, match=message):
        Fuse(family, floats=floats)
