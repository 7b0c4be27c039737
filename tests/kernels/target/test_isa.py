"""ISA levels: detection, resolution, emulation, self-test."""
import ast
import pickle
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import graphq as gq
from graphq.base.platform import ARM_FEATURES
from graphq.errors import KernelError
from graphq.kernels import levels
from graphq.kernels.jit import cpu
from graphq.kernels.target import isa

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def known():
    """The processor is described once a process: before tests that give it other features."""
    cpu.describe()


@pytest.fixture
def fresh(monkeypatch):
    """No memory of self-tests, no level asked for by the environment."""
    monkeypatch.setattr(levels, "_checked", {})
    monkeypatch.delenv("GRAPHQ_ISA", raising=False)


@pytest.fixture
def machine(monkeypatch, fresh):
    """Set the levels of the machine."""
    def having(*names):
        for module in (isa, levels):
            monkeypatch.setattr(module, "native", lambda: tuple(isa.level_named(n) for n in names))

    return having


def test_levels_are_ordered():
    names = [level.name for level in isa.LEVELS]
    assert names == ["scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx", "neon", "neon_dot",
                     "neon_i8mm"]
    including = {level.name: [name for name in names if level.includes(isa.level_named(name))] for level in isa.LEVELS}
    assert including == {
        "scalar": ["scalar"], "avx2": ["scalar", "avx2"], "avx_vnni": ["scalar", "avx2", "avx_vnni"],
        "avx512": ["scalar", "avx2", "avx512"], "avx512_vnni": ["scalar", "avx2", "avx512", "avx512_vnni"],
        "avx512_bf16": ["scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16"],
        "amx": ["scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"],
        "neon": ["scalar", "neon"], "neon_dot": ["scalar", "neon", "neon_dot"],
        "neon_i8mm": ["scalar", "neon", "neon_dot", "neon_i8mm"]}


def test_levels_have_the_capabilities_of_the_levels_below():
    having = {name: [x.name for x in isa.LEVELS if getattr(x, name) is not None]
              for name in ("dot4", "saturating", "paired", "matrix", "bf16", "packing")}
    assert having == {
        "dot4": ["avx_vnni", "avx512_vnni", "avx512_bf16", "amx", "neon_dot", "neon_i8mm"],
        "paired": ["neon_i8mm"], "matrix": ["amx"], "bf16": ["avx512_bf16", "amx"],
        "packing": ["avx512", "avx512_vnni", "avx512_bf16", "amx", "neon", "neon_dot", "neon_i8mm"],
        "saturating": [x.name for x in isa.x86.LEVELS]}
    assert [x.name for x in isa.LEVELS if x.sorts] == ["avx2", "avx512"]
    assert [x.name for x in isa.LEVELS if x.f16] == [x.name for x in isa.LEVELS[1:]]
    assert {x.name: (x.base.name, x.of_products.name) for x in isa.LEVELS} == {
        "scalar": ("scalar", "scalar"), "avx2": ("avx2", "avx2"), "avx_vnni": ("avx2", "avx_vnni"),
        "avx512": ("avx512", "avx512"),
        **dict.fromkeys(("avx512_vnni", "avx512_bf16", "amx"), ("avx512", "avx512_vnni")),
        **{x.name: ("neon", x.name) for x in isa.arm.LEVELS}}


def test_levels_are_named_in_their_table_alone():
    """Everything else asks a level what it has, so that a new one is a row of these tables."""
    names = {x.name for x in isa.LEVELS} - {"scalar", "neon"}  # `neon` is also a feature's name

    def has_one(text):
        return any(name in text for name in names) and any(
            isinstance(x, ast.Constant) and x.value in names for x in ast.walk(ast.parse(text)))

    files = {path.relative_to(ROOT).as_posix() for folder in ("graphq", "kernels", "passes")
             for path in (ROOT / folder).rglob("*.py") if has_one(path.read_text())}
    assert files == {"kernels/target/__init__.py", "kernels/target/arm.py", "kernels/target/x86.py"}


@pytest.mark.parametrize("text", [gq.compile.__doc__, (ROOT / "docs/deploy.md").read_text(encoding="utf-8")],
                         ids=["compile", "deploy.md"])
def test_texts_for_users_name_all_levels_from_the_lowest_to_the_highest(text):
    names, shown = " , ".join(x.name for x in isa.LEVELS), re.sub(r'[`"\s]+', " ", text)
    assert names in shown, "the text lists other levels, or others first"


def test_native_levels_have_all_that_they_include():
    native = [level.name for level in isa.available()]
    assert native[0] == "scalar"
    for level in isa.available():
        assert {x.name for x in isa.LEVELS if level.includes(x)} <= set(native)


def test_feature_bits_decide(monkeypatch):
    bits = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "amxtile", "amxint8"}
    monkeypatch.setattr(cpu, "features", lambda: bits)
    names = [level.name for level in isa.native.__wrapped__()]
    assert names == ["scalar", "avx2", "avx512"]  # no VNNI, so no AMX either
    bits |= {"avx512vnni", "avx512bf16"}
    for granted in (False, True):
        *others, amx = (isa.SCALAR, *isa.x86.LEVELS)
        amx = replace(amx, matrix=amx.matrix._replace(granted=lambda granted=granted: granted))
        monkeypatch.setattr(isa, "LEVELS", (*others, amx))
        assert ("amx" in [level.name for level in isa.native.__wrapped__()]) == granted
    bits.remove("f16c")
    assert [level.name for level in isa.native.__wrapped__()] == ["scalar"]


def test_code_goes_without_features_of_other_levels(monkeypatch):
    bits = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16"}
    monkeypatch.setattr(cpu, "features", lambda: bits)
    withheld = {level.name: set(replace(level).withheld) for level in isa.LEVELS}  # copies, which know nothing yet
    assert withheld["scalar"] == bits and withheld["avx2"] == bits - {"avx2", "fma", "f16c"} == withheld["avx_vnni"]
    assert withheld["avx512"] == {"avx512vnni", "avx512bf16"} and withheld["avx512_vnni"] == {"avx512bf16"}
    assert not withheld["avx512_bf16"] and not withheld["amx"]
    bits = {"neon", "dotprod", "i8mm"}  # LLVM cannot make code for Arm without neon
    withheld = {level.name: set(replace(level).withheld) for level in (isa.SCALAR, *isa.arm.LEVELS)}
    assert withheld == {"scalar": {"dotprod", "i8mm"}, "neon": {"dotprod", "i8mm"}, "neon_dot": {"i8mm"},
                        "neon_i8mm": set()}


def test_on_arm_code_uses_what_the_system_lists_and_nothing_else(monkeypatch):
    """LLVM reads the CPU's name and a file, which an emulator may show of another CPU."""
    monkeypatch.setattr(cpu, "features", lambda: {"neon", "dotprod"})
    monkeypatch.setattr(cpu, "MACHINE", "x86_64")
    plain = cpu.target_features()
    monkeypatch.setattr(cpu, "MACHINE", "aarch64")
    given = cpu.target_features().removeprefix(plain).split(",")
    assert {"+neon", "+dotprod", "-i8mm", "-lse", "-sve"} <= {*given} and len(given) == 2 + len(ARM_FEATURES)


@pytest.mark.parametrize(("features", "names", "best"), [
    ((), ["scalar", "avx2", "avx_vnni"], "avx_vnni"),  # Alder Lake
    (("avx512f", "avx512bw", "avx512dq", "avx512vl"), ["scalar", "avx2", "avx_vnni", "avx512"], "avx512"),
])
def test_avx_vnni_needs_no_avx512(fresh, monkeypatch, features, names, best):
    monkeypatch.setattr(cpu, "features", lambda: {"avx2", "fma", "f16c", "avxvnni", *features})
    monkeypatch.setattr(isa, "native", isa.native.__wrapped__)
    monkeypatch.setattr(levels, "native", isa.native)
    monkeypatch.setattr(levels, "self_test", lambda level, cache: None)
    monkeypatch.setattr(levels, "plan_self_test", lambda level, cache: [])  # no code for a machine that is not this one
    assert [level.name for level in isa.available()] == names and levels.resolve().name == best


def test_resolve_takes_argument_then_environment_then_best(machine, monkeypatch):
    machine("scalar", "avx2")
    monkeypatch.setattr(levels, "self_test", lambda level, cache: None)
    assert levels.resolve().name == "avx2"
    monkeypatch.setenv("GRAPHQ_ISA", "scalar")
    assert levels.resolve().name == "scalar"
    assert levels.resolve("avx2").name == "avx2"
    monkeypatch.setenv("GRAPHQ_ISA", "")
    assert levels.resolve().name == "avx2"


def test_resolve_names_what_there_is(machine, monkeypatch):
    machine("scalar", "avx2")
    with pytest.raises(KernelError, match="unknown ISA level 'sse'; the levels are scalar, avx2"):
        levels.resolve("sse")
    with pytest.raises(KernelError, match="no ISA level 'amx'; it has scalar, avx2"):
        levels.resolve("amx")
    monkeypatch.setenv("GRAPHQ_ISA", "avx9000")
    with pytest.raises(KernelError, match="avx9000"):
        levels.resolve()


@pytest.mark.parametrize("problem", ["wrong", RuntimeError("operand types moved")])
def test_failed_self_test_drops_the_level(machine, monkeypatch, problem):
    machine("scalar", "avx2")

    def self_test(level, cache):
        if level.name == "avx2" and isinstance(problem, Exception):
            raise problem
        return problem if level.name == "avx2" else None

    monkeypatch.setattr(levels, "self_test", self_test)
    with pytest.warns(RuntimeWarning, match="avx2 is not used"):
        assert levels.resolve().name == "scalar"
    with warnings.catch_warnings(), pytest.raises(KernelError, match="fails its self-test"):
        warnings.simplefilter("error")  # warned once per process
        levels.resolve("avx2")


def test_self_test_finds_wrong_kernels(fresh, monkeypatch):
    level = isa.level_named("scalar")
    assert levels.self_test(level) is None
    right = levels.pack_sorted
    monkeypatch.setattr(levels, "pack_sorted", lambda w, k: right(np.roll(w, 1, 1), k))
    assert "wrong product" in (levels.self_test(level) or "")


def test_all_levels_of_this_machine_work(fresh):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(levels.works(level) for level in isa.available())


def test_emulation_is_for_a_while(machine):
    machine("scalar")
    with isa.emulate("amx") as level:
        assert level.emulated and levels.resolve("amx") is level is pickle.loads(pickle.dumps(level))
        assert [x.name for x in isa.available()] == ["scalar", "amx"]
        assert isa.here("amx").emulated and isa.here("avx512_vnni").emulated and not isa.here("scalar").emulated
    with pytest.raises(KernelError, match="no ISA level 'amx'"):
        levels.resolve("amx")
