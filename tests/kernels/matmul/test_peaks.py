"""Peak loops contain the instruction that they are named by; measurements are numbers above zero."""
import subprocess
import sys
from functools import partial

import pytest

from graphq.errors import KernelError
from graphq.kernels.jit import modules
from graphq.kernels.matmul import peaks
from graphq.kernels.target import arm, isa, mnemonics, x86
from graphq.report import evidence


def needs(name):
    """The level that has instruction `name`."""
    mnemonic, register = name.split()
    if register == "4s":
        of_i8mm = ("usmmla", "smmla", "usdot", "sudot")
        return "neon_i8mm" if mnemonic in of_i8mm else "neon_dot" if mnemonic == "sdot" else "neon"
    if register == "tmm":
        return "amx"
    if mnemonic in ("vpdpbusd", "vpdpwssd"):
        return "avx512_vnni"
    if mnemonic == "vdpbf16ps":
        return "avx512_bf16"
    assert mnemonic in ("vpmaddubsw", "vpmaddwd", "vpmulld", *FORMS, "vmulps"), f"which level has {mnemonic}?"
    return "avx512" if register == "zmm" else "avx2"


FORMS = "vfmadd132ps", "vfmadd213ps", "vfmadd231ps"
NAMES = [] if isa.HERE is None else [
    f"{m} {r}" for m in isa.HERE.MULTIPLYING for r in isa.HERE.REGISTERS if peaks.products(f"{m} {r}")]


@pytest.mark.parametrize("name", NAMES)
def test_loops_contain_their_instruction(name):
    if isa.here(needs(name)).emulated:
        pytest.skip(f"no {needs(name)} here")
    level = isa.level_named(needs(name))
    assert peaks.peak(name, level) > 0
    counts = evidence.instructions(modules.load("peak", peaks.peak_module, name, level=level))
    assert max(peaks.products(x) for x in counts) == peaks.products(name)
    least = peaks.TILE_CHAINS if "tmm" in name else peaks.CHAINS
    how, register = isa.HERE.MULTIPLYING[name.split()[0]], name.split()[1]
    same = [f"{m} {register}" for m, other in isa.HERE.MULTIPLYING.items() if other is how]  # LLVM chooses the form
    assert sum(counts.get(x, 0) for x in same) >= least, counts  # others too: vpmaddubsw needs vpmaddwd


@pytest.mark.parametrize("name", ["vpnone ymm", "vmulps xmm", "tdpbusd zmm", "vpdpbusd tmm"])
def test_an_instruction_without_a_loop_is_an_error(name):
    """It would be measured as another one, which a machine without it does not show."""
    with pytest.raises(KernelError, match=f"no loop measures {name}"):
        peaks.peak(name, isa.LEVELS[0], cache=False)


def test_tile_registers_are_asked_for_where_nothing_else_has_done_so():
    run = ("from graphq.kernels.target.x86 import AMX; from graphq.kernels.matmul import peaks; "
           "assert peaks.peak('tdpbusd tmm', AMX) > 0")
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
    missing = isa.here("amx").emulated
    assert done.returncode == int(missing), done.stderr
    reason = "tdpbusd tmm needs" if isa.HERE is x86 else "no loop measures tdpbusd tmm"
    assert (f"KernelError: {reason}" in done.stderr) == missing


def test_decisive_instructions():
    assert mnemonics.decisive(isa.SCALAR, x86) is mnemonics.decisive(isa.SCALAR, arm) is None
    assert mnemonics.decisive(x86.AVX2, None) is None
    assert {x.name: mnemonics.decisive(x, arm) for x in arm.LEVELS} == {
        "neon": "sadalp 4s", "neon_dot": "sdot 4s", "neon_i8mm": "usdot 4s"}
    assert {x.name: mnemonics.decisive(x, x86) for x in x86.LEVELS} == {
        "avx2": "vpmaddubsw ymm", "avx_vnni": "vpdpbusd ymm", "avx512": "vpmaddubsw zmm",
        "avx512_vnni": "vpdpbusd zmm", "avx512_bf16": "vpdpbusd zmm", "amx": "tdpbusd tmm"}


@pytest.mark.parametrize(("machine", "products"), [
    (x86, {"vpdpbusd zmm": 64, "vpmaddwd ymm": 16, "tdpbssd tmm": 16 * 16 * 64, "vfmadd213ps zmm": 16,
           "vfmadd132ps zmm": 16, "vaddps zmm": 0, "vmulps xmm": 0, "sdot 4s": 0}),
    (arm, {"usmmla 4s": 32, "smmla 4s": 32, "usdot 4s": 16, "sudot 4s": 16, "sdot 4s": 16, "sadalp 4s": 8,
           "fmla 4s": 4, "fmla 2s": 0, "fadd 4s": 0, "vpdpbusd zmm": 0})])
def test_products(machine, products, monkeypatch):
    monkeypatch.setattr(peaks, "multiplying", partial(mnemonics.multiplying, machine=machine))
    assert {name: peaks.products(name) for name in products} == products


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("nbytes", [0, 1, 1000, 1 << 20])
def test_bandwidth(nbytes, threads):
    assert peaks.bandwidth(nbytes, threads) > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_bandwidth_counts_bytes_read_and_bytes_written(threads, monkeypatch):
    monkeypatch.setattr(peaks, "samples", lambda prepare: [0.5, 0.25, 1])
    assert peaks.bandwidth(1 << 20, threads) == (1 << 20) / 0.25


def test_samples_are_for_one_time():
    calls = []

    def prepare(times):
        return lambda: calls.append(times)

    out = peaks.samples(prepare)
    assert calls[:2] == [1, 1] and calls[2:] == [peaks.MOST] * (peaks.ROUNDS + 1)
    assert len(out) == peaks.ROUNDS and min(out) >= 0


def test_an_error_of_a_step_is_passed_on():
    def prepare(times):
        raise KernelError("no")

    with pytest.raises(KernelError):
        peaks.samples(prepare)
