"""A level with a new product of bytes is one row: this adds it to a copy of graphq, and all families multiply by it.

Its vectors have four lanes, as those of no other level, and its instruction takes no other vectors.
"""
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROW = """
_TILES = TileSizes(((5, 16), (1, 16)))
def _newdot(b, acc, x, w):
    assert acc.type.count == 4
    return dot4(b, acc, x, w)
LEVELS += (Level("new", 4, ByteProduct("", pairs, pairs, widens=True), Fma(4, _TILES, _TILES, _TILES, _TILES),
                 ("new-dot",), registers=32, dot4=ByteProduct("newdot", _newdot, _newdot, _TILES, _TILES)),)
"""
RUN = """
import numpy as np
import graphq as gq
from graphq.kernels.target import isa, mnemonics
from graphq.testing import random_inputs
from dense import dense
from kernel_digests import LISTS, recurrent

def convolution(channels, groups):
    return gq.parse("graph net(x: u8[1,5,5,64], w: s8[3,3,%d,64]) { %%0 = dequantize(x, scales=[0.1])\\n"
                    " %%1 = dequantize(w, scales=[0.1])\\n %%y = convolution(%%0, %%1, groups=%d, dilations=[1, 1], %s)"
                    " return %%y }" % (channels, groups, LISTS))

def four_bits():
    g, w = gq.Graph("four_bits"), np.arange(64 * 48).reshape(64, 48) % 16
    w = g.dynamic_dequantize(g.constant(w.astype(gq.dtypes.as_dtype("u4").numpy)), np.ones((2, 48), np.float32),
                             qtype="per_group", group_shape=[32, 1])
    g.output(g.matmul(g.dequantize(g.input("x", shape=(3, 64), dtype="u8"), scales=[0.1]), w), name="y")
    return g

plain = dict(out="f32", residual=False)
graphs = [dense(5, **plain), dense(3, x="s8", transpose_a=True, **plain), four_bits(), recurrent("lstm", True),
          convolution(1, 64), convolution(64, 1), gq.parse(
              "graph net(x: u8[3,21]) { %0 = dequantize(x, scales=[0.1])\\n %1 = tanh(%0)\\n"
              " %y = quantize(%1, dtype=s8, scales=[0.01]) return %y }")]
assert isa.LEVELS[-1].name == "new" and not isa.LEVELS[-1].sorts
assert mnemonics.count("\\tnewdot\\t%xmm0, %xmm1, %xmm2") == {"newdot xmm": 1}
with isa.emulate("new"):
    for g in graphs:
        model, inputs = gq.compile(g, isa="new", threads=1, cache=False), random_inputs(g)
        got, want = model(inputs), model.formula(inputs)
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes(), g.name
        print(*(s.kernel for s in model._fixed.plan.steps if hasattr(s, "kernel")))
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
    assert {*done.stdout.split()} >= {"matmul_u8s8_5x16_new", "matmul_s8s8_5x16_new", "matmul_u8s4_5x16_new",
                                      "recurring_4_new_1_0", "depthwise_u8_new", "eltwise_new"}
