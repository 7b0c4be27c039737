"""A level with a new product of bytes is one row: this adds two to a copy of graphq, and all families multiply by them.

Their vectors have four lanes, as those of no other level, and their instructions take no other vectors. One multiplies
u8 by s8, the other s8 by s8. They have no masks: code that accesses memory by masks is an error.
"""
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROW = """
Value.load_where = Value.store_where = None
_TILES = TileSizes(((5, 16), (1, 16)))
def _newdot(b, acc, x, w, signed=False):
    assert acc.type.count == 4
    return dot4(b, acc, x, w, signed)
def _newsdot(b, acc, x, w):
    return _newdot(b, acc, x, w, signed=True)
_NEW = Level("new", 4, ByteProduct("", pairs, pairs, widens=True), Fma(4, _TILES, _TILES, _TILES, _TILES),
             ("new-dot",), registers=32, dot4=ByteProduct("newdot", _newdot, _newdot, _TILES, _TILES))
LEVELS += (_NEW, _NEW.extended("signed", "new-sdot",
                               dot4=ByteProduct("newsdot", _newsdot, _newsdot, _TILES, _TILES, signed=True)))
"""
RUN = """
import numpy as np
import graphq as gq
from graphq.kernels.target import isa, mnemonics, x86
from graphq.testing import random_inputs
from level_graphs import looked_up, of_products, rows
from kernel_digests import observed

def arrays(results):
    return [*results.values()] if isinstance(results, dict) else [np.asarray(results)]

graphs = [*of_products(), observed(), rows(), looked_up()]
new, signed = x86.LEVELS[-2:]
assert (new.name, signed.name) == ("new", "signed") and not new.sorts
assert mnemonics.count("\\tnewdot\\t%xmm0, %xmm1, %xmm2", x86) == {"newdot xmm": 1}
# The signed level differs in products alone: rows, transposed s8, an LSTM, and a depthwise convolution.
for level, g in [*((new, g) for g in graphs), *((signed, g) for g in [*of_products()[:4], of_products()[6]])]:
    with isa.emulate(level.name):
        inputs = random_inputs(g)
        model = gq.compile(g, isa=level.name, threads=1, ties="formula", cache=False)
        for got, want in zip(*map(arrays, (model(inputs), model.formula(inputs))), strict=True):
            assert got.tobytes() == want.tobytes(), g.name
        print(*(s.kernel for s in model.plans.fixed.plan.steps if hasattr(s, "kernel")))
"""


def test_a_row_gives_all_families_a_new_product(tmp_path):
    for folder in ("graphq", "kernels", "passes"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"),
                        ignore_dangling_symlinks=True, symlinks=True)
    with open(tmp_path / "kernels" / "target" / "x86.py", "a", encoding="utf-8") as file:
        file.write(ROW)
    paths = f"import sys; sys.path[:0] = {[str(tmp_path), str(ROOT / 'tests' / 'helpers')]}\n"
    done = subprocess.run([sys.executable, "-c", paths + RUN], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {*done.stdout.split()} >= {
        *(f"{kernel}_{level}" for kernel in ("matmul_u8s8_5x16", "matmul_s8s8_5x16", "depthwise_u8")
          for level in ("new", "signed")),
        "matmul_u8s4_5x16_new", "matmul_u8s8groups_5x16_new", "depthwise_s8_new",
        "recurring_4_new_1_0_0", "recurring_4_signed_1_0_0", "eltwise_new", "softmax_new", "histogram_block"}
