"""`explain(kernels=True)`: which instructions the steps run, and how fast they are."""
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from levels import LEVELS

import graphq as gq
from graphq.errors import KernelError
from graphq.kernels.jit.modules import Function, FunctionTable
from graphq.kernels.target import isa
from graphq.plan import runtime
from graphq.plan.plan import Ref, Step
from graphq.report import evidence

RNG = np.random.default_rng(0)
DECISIVE = {"avx2": ("vpmaddubsw ymm",), "avx_vnni": ("vpdpbusd ymm",),
            "avx512": ("vpmaddubsw zmm",), "avx512_vnni": ("vpdpbusd zmm",), "amx": ("tdpbusd tmm",)}


def network(rows=48, constant=True):
    """A product, a chain of elementwise operations, and a reduction."""
    g = gq.Graph("net")
    x = g.dequantize(g.input("x", shape=(rows, 64), dtype="u8"), scales=[0.02], zps=[120])
    w = RNG.integers(-127, 128, (64, 96), dtype=np.int8)
    w = g.dequantize(g.constant(w) if constant else g.input("w", shape=(64, 96), dtype="s8"), scales=[0.01])
    y = g.relu(g.matmul(x, w))
    g.output(g.quantize(y, dtype="u8", scales=[0.05], zps=[0]), name="y")
    f = g.input("f", shape=(rows, 40), dtype="f32")
    g.output(g.add(g.multiply(f, f), f), name="chain")
    g.output(g.reduce_l1(f, axes=[1]), name="sum")
    return g


def arrays(rows=48):
    return {"x": RNG.integers(0, 256, (rows, 64), dtype=np.uint8), "f": RNG.standard_normal((rows, 40), np.float32)}


def native(model):
    plan = model.plans.fixed.plan
    return [(k, s) for k, s in enumerate(plan.steps) if isinstance(s, Step)]


@pytest.mark.parametrize("level, threads", [(x, 1 + k % 2) for k, x in enumerate(LEVELS)], indirect=["level"])
def test_every_native_step_has_its_evidence(level, threads):
    model = gq.compile(network(), isa=level, threads=threads, ties="formula")
    text = model.explain(kernels=True)
    steps = native(model)
    assert len(steps) >= 2 and "native steps measured one by one, with warm caches" in text
    code = re.findall(r"^       ISA level (\w+)(?:, tile \d+x\d+)?: (.+)$", text, re.M)
    number, share = r"[\d.e+-]+", r"(: .+% of [\d.e+-]+ by .+)?"
    speed = re.findall(rf"^       {number} ms on \d threads?, {number} (GOPS|GB/s){share}$", text, re.M)
    assert len(code) == len(speed) == len(steps)
    assert [unit for unit, _ in speed].count("GOPS") == sum(s.macs > 0 for _, s in steps) == 1
    assert all(peak for unit, peak in speed if unit == "GB/s")
    lines = model.explain().splitlines()
    kept = [x for x in text.splitlines() if not x.startswith("       ")]
    assert [x.split(";")[0] for x in kept] == [x.split(";")[0] for x in lines]


@pytest.mark.parametrize("name", DECISIVE)
def test_the_decisive_instruction_of_a_level(name):
    if isa.here(name).emulated:
        pytest.skip(f"no {name} here")
    model = gq.compile(network(), isa=name, threads=1, ties="formula")
    ((k, step),) = [(k, s) for k, s in native(model) if s.macs]
    found = evidence.gather(model.plans.fixed, k)
    assert step.macs == found.macs == 48 * 64 * 96
    assert found.level == name and found.tile and found.threads == 1
    assert found.decisive in DECISIVE[name] and found.counts[found.decisive] > 0
    assert found.peak > 0 and found.seconds > 0 and found.rate == found.macs / found.seconds


@pytest.mark.parametrize("name", ["avx2", "avx512"])
@pytest.mark.parametrize("most, share", [(64, 1.0), (127, 0.5)])
def test_the_share_of_vpmaddubsw(name, most, share):
    """Of a product, and of a convolution with taps; 127 + 127 is beyond the bound, in half of the groups."""
    if isa.here(name).emulated:
        pytest.skip(f"no {name} here")
    g = gq.Graph()
    w = np.full((64, 96), most, np.int8)
    w[::8] = 0
    w[2::8] = 0
    x = g.dequantize(g.input("x", shape=(48, 64), dtype="u8"), scales=[0.02])
    y = g.matmul(x, g.dequantize(g.constant(w), scales=[0.01]))
    g.output(g.quantize(y, dtype="u8", scales=[9.0]), name="y")
    c = g.dequantize(g.input("c", shape=(1, 6, 6, 64), dtype="u8"), scales=[0.02])
    kernel = np.broadcast_to(w.T[:, :, None, None], (96, 64, 3, 3))
    y = g.convolution(c, g.dequantize(g.constant(kernel), scales=[0.01]), strides=[1, 1], pads_begin=[1, 1],
                      pads_end=[1, 1], dilations=[1, 1], data_format="NXC", weights_format="OIX")
    g.output(g.quantize(y, dtype="u8", scales=[9.0]), name="z")
    model = gq.compile(g, isa=name, threads=1, ties="formula")
    assert [s.exact for _, s in native(model) if s.macs] == [share, share]
    assert model.explain(kernels=True).count(f"; {share:.0%} of the products by vpmaddubsw") == 2
    assert all(s.exact is None for _, s in native(gq.compile(network(constant=False), isa=name)))


def test_all_functions_of_a_step_are_counted():
    model = gq.compile(network(), threads=1)
    ((_, step),) = [(k, s) for k, s in native(model) if s.macs]
    functions = [x for x in step.words.values() if isinstance(x, Function)]
    functions += [x for table in step.words.values() if isinstance(table, FunctionTable) for x in table.entries
                  if isinstance(x, Function)]
    found = evidence.modules(step)
    assert functions and {step.function.module, *(x.module for x in functions)} == set(found)
    assert len(found) == len(set(found)) > 1


def test_nothing_that_a_caller_sees_changes():
    model = gq.compile(network(constant=False), threads=1)
    x = {**arrays(), "w": RNG.integers(-127, 128, (64, 96), dtype=np.int8)}
    before = model(x)
    copies = {name: a.copy() for name, a in x.items()}
    model.explain(kernels=True)
    after = model(x)
    assert all(np.array_equal(before[n], after[n]) for n in before)
    assert all(np.array_equal(copies[n], x[n]) for n in x)


def test_open_shapes_have_evidence_after_the_first_call():
    model = gq.compile(network(rows=None))
    assert "plan: 3 steps" in model.explain(kernels=True) and "GOPS" not in model.explain(kernels=True)
    model(arrays(7))
    assert "GOPS" in model.explain(kernels=True)
    model(arrays(0))
    assert "GOPS" not in model.explain(kernels=True)  # no rows: no step


def test_a_step_that_checks_indices_is_measured_on_zeros(monkeypatch):
    """Whatever lies in new memory: here it is no index."""
    g = gq.Graph("pick")
    i = g.input("i", shape=(5,), dtype="s64")
    i = g.arithmetic(i, i, function="add")
    g.output(g.gather(g.input("x", shape=(4, 8), dtype="f32"), i, axis=0), name="y")
    model = gq.compile(g, threads=1)
    monkeypatch.setattr(runtime, "aligned_empty", lambda n: np.full(n + 64, 0x7F, np.uint8)[:n])
    assert "gather" in model.explain(kernels=True)


def test_no_native_step():
    g = gq.Graph()
    g.output(g.input("x", shape=(3,), dtype="f32"), name="y")
    text = gq.compile(g).explain(kernels=True)
    assert "copy to output 'y'" in text and "measured" not in text


def test_code_that_cannot_be_read_is_said_so(monkeypatch):
    def refuse(module):
        raise KernelError("a kernel cannot be compiled: MemoryError")

    monkeypatch.setattr(evidence, "instructions", refuse)
    text = gq.compile(network(), threads=1).explain(kernels=True)
    assert "instructions not counted: a kernel cannot be compiled: MemoryError" in text
    assert re.search(r"GOPS$", text, re.M)  # no peak then


def test_without_a_cache(tmp_path):
    """In a process of its own: kernels that others began here may end meanwhile, and be kept."""
    text = gq.to_text(network(rows=13))
    code = ("import sys, graphq as gq\n"
            "print(gq.compile(gq.parse(sys.argv[1]), ties='formula', cache=False).explain(kernels=True))")
    done = subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, check=True,
                          env={**os.environ, "GRAPHQ_CACHE_DIR": str(tmp_path)})
    assert "GOPS" in done.stdout and list(tmp_path.iterdir()) == []


def test_kernels_is_a_keyword():
    with pytest.raises(gq.GraphError, match="takes the name of a value, got True"):
        gq.compile(network()).explain(True)


@pytest.mark.parametrize("changed, lines", [
    ({}, ("ISA level avx2, tile 4x16: 3 vpmaddubsw ymm, 1 vpaddd; 50% of the products by vpmaddubsw",
          "1 ms on 2 threads, 4 GOPS: 50% of 8 by vpmaddubsw ymm")),
    ({"tile": None, "exact": None, "counts": {}, "threads": 1, "peak": None},
     ("ISA level avx2: none of the decisive instructions", "1 ms on 1 thread, 4 GOPS")),
    ({"macs": 0, "counts": "no assembly", "exact": None, "decisive": None, "seconds": 0.25, "peak": 4e6},
     ("ISA level avx2, tile 4x16: instructions not counted: no assembly",
      "250 ms on 2 threads, 0.002 GB/s: 50% of 0.004 by copying"))])
def test_the_lines_of_a_step(changed, lines):
    found = evidence.Evidence("k", "avx2", (4, 16), {"vpmaddubsw ymm": 3, "vpaddd": 1}, 0.001, 2, 2_000_000, 500_000,
                              "vpmaddubsw ymm", 4e9, 0.5)
    assert evidence.evidence_lines(replace(found, **changed)) == lines


def test_the_bound_of_a_step(monkeypatch):
    """A peak is a core's: threads have as many times as much. Buffers that a step touches twice count once."""
    plan = gq.compile(network(), isa="avx2", threads=2).plans.fixed.plan
    (product,) = (s for s in plan.steps if s.macs)
    other = next(s for s in plan.steps if not s.macs)
    monkeypatch.setattr(evidence.peaks, "peak", lambda instruction, level, cache: 100.0)
    monkeypatch.setattr(evidence.peaks, "bandwidth", lambda nbytes, threads, cache: (nbytes, threads))
    monkeypatch.setattr(evidence, "instructions", lambda module: {"vaddps ymm": 9, "vpmaddubsw ymm": 1})
    for pieces, cores in (0, 1), (3, 3):
        assert evidence.ceiling(plan, product._replace(pieces=pieces)) == ("vpmaddubsw ymm", 100.0 * cores)
        buffers = {w.buffer for w in other.block if isinstance(w, Ref)}
        nbytes = sum(plan.buffers[b].nbytes for b in buffers)
        assert evidence.ceiling(plan, other._replace(pieces=pieces)) == (None, (nbytes, cores))
    monkeypatch.setattr(evidence, "instructions", lambda module: {"vaddps ymm": 9})
    assert evidence.ceiling(plan, product) == (None, None)
