"""ISA levels: detection, resolution, emulation, self-test."""
import warnings

import numpy as np
import pytest

from graphq.errors import KernelError
from graphq.kernels import isa, matmul


@pytest.fixture
def fresh(monkeypatch):
    """No memory of self-tests, no level asked for by the environment."""
    monkeypatch.setattr(isa, "_checked", {})
    monkeypatch.delenv("GRAPHQ_ISA", raising=False)


@pytest.fixture
def machine(monkeypatch, fresh):
    """Set the levels of the machine."""
    return lambda *names: monkeypatch.setattr(isa, "_native", lambda: tuple(isa.level_named(n) for n in names))


def test_levels_are_ordered():
    names = [level.name for level in isa.LEVELS]
    assert names == ["scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx"]
    including = {level.name: [name for name in names if level.includes(name)] for level in isa.LEVELS}
    assert including == {
        "scalar": ["scalar"], "avx2": ["scalar", "avx2"], "avx_vnni": ["scalar", "avx2", "avx_vnni"],
        "avx512": ["scalar", "avx2", "avx512"], "avx512_vnni": ["scalar", "avx2", "avx512", "avx512_vnni"],
        "amx": ["scalar", "avx2", "avx512", "avx512_vnni", "amx"]}


def test_native_levels_have_all_that_they_include():
    native = [level.name for level in isa.available()]
    assert native[0] == "scalar"
    for level in isa.available():
        assert {x.name for x in isa.LEVELS if level.includes(x.name)} <= set(native)


def test_feature_bits_decide(monkeypatch):
    bits = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "amxtile", "amxint8"}
    monkeypatch.setattr(isa, "_features", lambda: bits)
    names = [level.name for level in isa._native.__wrapped__()]
    assert names == ["scalar", "avx2", "avx512"]  # no VNNI, so no AMX either
    bits.add("avx512vnni")
    for granted in (False, True):
        monkeypatch.setattr(isa, "_request_amx", lambda granted=granted: granted)
        assert ("amx" in [level.name for level in isa._native.__wrapped__()]) == granted
    bits.remove("f16c")
    assert [level.name for level in isa._native.__wrapped__()] == ["scalar"]


@pytest.mark.parametrize(("features", "names", "best"), [
    ((), ["scalar", "avx2", "avx_vnni"], "avx_vnni"),  # Alder Lake
    (("avx512f", "avx512bw", "avx512dq", "avx512vl"), ["scalar", "avx2", "avx_vnni", "avx512"], "avx512"),
])
def test_avx_vnni_needs_no_avx512(fresh, monkeypatch, features, names, best):
    monkeypatch.setattr(isa, "_features", lambda: {"avx2", "fma", "f16c", "avxvnni", *features})
    monkeypatch.setattr(isa, "_native", isa._native.__wrapped__)
    monkeypatch.setattr(matmul, "self_test", lambda level, cache: None)
    assert [level.name for level in isa.available()] == names and isa.resolve().name == best


def test_resolve_takes_argument_then_environment_then_best(machine, monkeypatch):
    machine("scalar", "avx2")
    monkeypatch.setattr(matmul, "self_test", lambda level, cache: None)
    assert isa.resolve().name == "avx2"
    monkeypatch.setenv("GRAPHQ_ISA", "scalar")
    assert isa.resolve().name == "scalar"
    assert isa.resolve("avx2").name == "avx2"
    monkeypatch.setenv("GRAPHQ_ISA", "")
    assert isa.resolve().name == "avx2"


def test_resolve_names_what_there_is(machine, monkeypatch):
    machine("scalar", "avx2")
    with pytest.raises(KernelError, match="unknown ISA level 'sse'; the levels are scalar, avx2"):
        isa.resolve("sse")
    with pytest.raises(KernelError, match="no ISA level 'amx'; it has scalar, avx2"):
        isa.resolve("amx")
    monkeypatch.setenv("GRAPHQ_ISA", "avx9000")
    with pytest.raises(KernelError, match="avx9000"):
        isa.resolve()


@pytest.mark.parametrize("problem", ["wrong", RuntimeError("operand types moved")])
def test_failed_self_test_drops_the_level(machine, monkeypatch, problem):
    machine("scalar", "avx2")

    def self_test(level, cache):
        if level.name == "avx2" and isinstance(problem, Exception):
            raise problem
        return problem if level.name == "avx2" else None

    monkeypatch.setattr(matmul, "self_test", self_test)
    with pytest.warns(RuntimeWarning, match="avx2 is not used"):
        assert isa.resolve().name == "scalar"
    with warnings.catch_warnings(), pytest.raises(KernelError, match="fails its self-test"):
        warnings.simplefilter("error")  # warned once per process
        isa.resolve("avx2")


def test_self_test_finds_wrong_kernels(fresh, monkeypatch):
    level = isa.level_named("scalar")
    assert matmul.self_test(level) is None
    right = matmul.pack
    monkeypatch.setattr(matmul, "pack", lambda w: right(np.roll(w, 1, 0)))
    assert "wrong product" in (matmul.self_test(level) or "")


def test_all_levels_of_this_machine_work(fresh):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(isa.works(level) for level in isa.available())


def test_emulation_is_for_a_while_and_has_sources_of_its_own(machine):
    machine("scalar")
    native_vnni = matmul.KERNELS["matmul_u8s8_6x64_avx512_vnni"]
    with isa.emulate("amx") as level:
        assert level.emulated and isa.resolve("amx") == level
        assert [x.name for x in isa.available()] == ["scalar", "amx"]
        assert isa.is_emulated("amx") and isa.is_emulated("avx512_vnni") and not isa.is_emulated("scalar")
    with pytest.raises(KernelError, match="no ISA level 'amx'"):
        isa.resolve("amx")
    assert native_vnni.build(native_vnni, 4, True, "rows") != native_vnni.build(native_vnni, 4, False, "rows")
