"""The machine code of Arm's integer tiles, which LLVM makes on any machine; cycles are llvm-mca's estimates."""
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from llvmlite import binding as llvm
from llvmlite import ir

from graphq.kernels.jit.values import LEVEL, Builder, Value
from graphq.kernels.matmul.kernel_table import DTYPES, KERNELS, PAIRED_DTYPES
from graphq.kernels.target import arm

ACCUMULATING = re.compile(r"\t(sdot|usdot|sudot|usmmla|smmla|sadalp|fmla)\t")
PIPES = {"cortex-a72": 0.5, "neoverse-n1": 2, "neoverse-n2": 2, "neoverse-v1": 4, "neoverse-v2": 4}
"""The instructions of ACCUMULATING that a CPU can start in a cycle. A sadalp needs a mul, which takes two cycles."""
CPUS = {"neon": ("cortex-a72",), "neon_dot": ("neoverse-n1", "neoverse-n2", "neoverse-v1", "neoverse-v2"),
         "neon_i8mm": ("neoverse-n2", "neoverse-v1", "neoverse-v2")}
"""CPUs of each level that LLVM has models of."""
TILES = [x for x in KERNELS.values() if x.isa in arm.LEVELS and x.dtypes in (*DTYPES, *PAIRED_DTYPES)]
LOADS = {"neoverse-n2": 3, "neoverse-v1": 3, "neoverse-v2": 3}
"""The loads of 16 bytes that a CPU can start in a cycle."""
STARTS = {"neoverse-n2": 5, "neoverse-v1": 8, "neoverse-v2": 6}
"""The operations of all kinds that a CPU can start in a cycle, in LLVM 22's models."""
SHARES = {
    "matmul_u8s8_4x16_neon": (0.99,), "matmul_u8s8_3x16_neon": (0.99,), "matmul_u8s8_2x16_neon": (0.98,),
    "matmul_u8s8_1x32_neon": (0.85,), "matmul_s8s8_4x16_neon": (0.99,), "matmul_s8s8_3x16_neon": (0.99,),
    "matmul_s8s8_2x16_neon": (0.97,), "matmul_s8s8_1x32_neon": (0.85,),
    "matmul_u8s8_6x16_neon_i8mm": (0.99, 0.99, 0.99), "matmul_u8s8_5x16_neon_i8mm": (0.99, 0.99, 0.99),
    "matmul_u8s8_4x16_neon_i8mm": (0.99, 0.99, 0.99), "matmul_u8s8_2x32_neon_i8mm": (0.99, 0.99, 0.9),
    "matmul_u8s8_1x64_neon_i8mm": (0.99, 0.73, 0.68), "matmul_s8s8_6x16_neon_i8mm": (0.92, 0.91, 0.91),
    "matmul_u8s8paired_6x16_neon_i8mm": (0.88, 0.87, 0.87), "matmul_s8s8paired_6x16_neon_i8mm": (0.88, 0.87, 0.87),
    "matmul_u8s8paired_4x16_neon_i8mm": (0.88, 0.87, 0.77), "matmul_s8s8paired_4x16_neon_i8mm": (0.88, 0.87, 0.77),
    "matmul_u8s8paired_2x32_neon_i8mm": (0.93, 0.69, 0.64), "matmul_s8s8paired_2x32_neon_i8mm": (0.93, 0.69, 0.64),
    "matmul_u8s8_5x16_neon_dot": (0.88, 0.93, 0.93, 0.93), "matmul_s8s8_5x16_neon_dot": (0.88, 0.99, 0.99, 0.99),
    "matmul_u8s8_4x16_neon_dot": (0.86, 0.93, 0.93, 0.93), "matmul_s8s8_4x16_neon_dot": (0.86, 0.99, 0.99, 0.99),
    "matmul_u8s8_2x32_neon_dot": (0.63, 0.96, 0.96, 0.89), "matmul_s8s8_2x32_neon_dot": (0.65, 0.99, 0.99, 0.9),
    "matmul_u8s8_1x64_neon_dot": (0.47, 0.98, 0.73, 0.68), "matmul_s8s8_1x64_neon_dot": (0.48, 0.99, 0.73, 0.69)}
"""The least share of the peak that the inner loop of a tile reaches, for each CPU of its level."""


@cache
def target():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        return llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM cannot make code for Arm")


@cache
def inner_loop(kernel, cpu, layout="rows"):
    """The instructions of the loop with most products, as LLVM schedules them for a CPU."""
    features = ",".join(f"{'+' if x in kernel.isa.features else '-'}{x}" for x in arm.LEVELS[-1].features)
    features += ",+ldp-aligned-only" * (cpu in CPUS["neon_i8mm"])  # as `jit.cpu.target_features`
    machine = target().create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small")
    emitter = kernel.build(kernel.isa, kernel.dtypes, *kernel.tile, layout).named["tile"]
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2), "tile")
    token = LEVEL.set(kernel.isa)
    b = Builder(ir.IRBuilder(function.append_basic_block()))
    LEVEL.reset(token)
    emitter.body(b, *(Value(b, x) for x in function.args))
    b.ret_void()
    parsed = llvm.parse_assembly(str(module))
    parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    pieces = re.split(r"\n(\.L\w+):.*", machine.emit_assembly(parsed))
    blocks = zip(pieces[1::2], pieces[2::2], strict=True)
    loops = [body[:end.end()] for label, body in blocks if (end := re.search(rf"\t{label}$", body, re.M))]
    best = max(loops, key=lambda body: len(ACCUMULATING.findall(body)))
    return [line for line in best.splitlines() if re.match(r"\t[a-z]", line)]


@pytest.fixture(scope="module")
def analyzer():
    """The newest llvm-mca, if it has models of these CPUs."""
    found = [*map(str, Path("/usr/lib").glob("llvm-*/bin/llvm-mca")), *filter(None, [shutil.which("llvm-mca")])]
    versions = [(int(re.search(r"version (\d+)", subprocess.run(
        [x, "--version"], capture_output=True, text=True, check=True).stdout)[1]), x) for x in found]
    if not versions or max(versions)[0] < 19:
        pytest.skip("no llvm-mca of LLVM 19 or newer (Debian: llvm-19)")
    return max(versions)[1]


def cycles(analyzer, code, cpu, turns=100):
    command = [analyzer, "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+dotprod,+i8mm", f"-iterations={turns}"]
    text = subprocess.run(command, input="\n".join(code), capture_output=True, text=True, check=True).stdout
    return int(re.search(r"Total Cycles:\s+(\d+)", text)[1]) / turns


@pytest.mark.parametrize("kernel", TILES, ids=lambda x: x.name)
def test_inner_loops(kernel):
    """Four groups a turn, each operand a lane of a register; sums stay in registers, and bytes are flipped before.

    Of paired weights, a product has two rows, columns and groups; two rows take two operations for 16 bytes of each.
    """
    rows, columns = kernel.tile
    code = inner_loop(kernel, CPUS[kernel.level][-1])
    text = "\n".join(code)
    if kernel.isa.dot4 is None:
        assert len(re.findall(r"\tmul\t|\tsadalp\t", text)) == 4 * rows * columns
        assert text.count("\tdup\t") <= 8 * rows
        assert text.count("[sp") < len(code) / 10  # 4 rows of widened factors are too many, but cost no cycle
        return
    if kernel.dtypes in PAIRED_DTYPES:
        mnemonic = "smmla" if kernel.dtypes[0] == "s8" else "usmmla"
        assert text.count(f"\t{mnemonic}\t") == len(ACCUMULATING.findall(text)) == rows * columns // 2
        assert len(re.findall(r"\tzip[12]\t|\tmov\tv\d+\.d\[1\]", text)) == rows
        assert "[sp" not in text and "\tmov\tv" not in re.sub(r"\tmov\tv\d+\.d\[1\]", "", text)
        return
    assert len(re.findall(r"\t(?:sdot|sudot)\t.*\.4b\[\d\]", text)) == len(ACCUMULATING.findall(text)) == rows * columns
    assert "[sp" not in text and "\tdup\t" not in text and "\tmov\tv" not in text
    flips = kernel.dtypes[0] == ("u8" if kernel.isa.dot4.signed else "s8")
    assert text.count("\teor\t") == rows * flips


@pytest.mark.parametrize("weights", ["s8", "s8paired"])
def test_windows_have_the_loop_of_rows(weights):
    kernel = KERNELS[f"matmul_u8{weights}_6x16_neon_i8mm"]
    rows, windows = (inner_loop(kernel, "neoverse-n2", layout) for layout in ("rows", "windows"))
    assert sorted(x.split("\t")[1] for x in rows) == sorted(x.split("\t")[1] for x in windows)


@pytest.mark.parametrize("cpu", ["neoverse-n1", "neoverse-n2", "neoverse-v2"])
@pytest.mark.parametrize("tile", ["4x16", "2x16", "1x16"])
def test_f16_is_widened_where_it_is_used(tile, cpu):
    """Sums and factors stay in registers. Of 16 bytes of weights, 4 operations make two vectors of f32."""
    rows, columns = map(int, tile.split("x"))
    text = "\n".join(inner_loop(KERNELS[f"matmul_f16f16_{tile}_neon"], cpu))
    assert text.count("\tfmla\t") == 2 * rows * columns
    assert len(re.findall(r"\t(?:xtn|shrn|fcvtl)\t", text)) == 4 * (rows + columns)
    assert "[sp" not in text and "\tld2\t" not in text


@pytest.mark.parametrize("tile", ["2x16", "1x16"])
@pytest.mark.parametrize("weights", ["s4", "s8groups", "s4f16", "s4bf16"])
def test_unpacked_weights_stay_in_registers(weights, tile):
    """A group's scales and zero points as well: 8 vectors in each loop over lines of weights."""
    rows, columns = map(int, tile.split("x"))
    text = "\n".join(inner_loop(KERNELS[f"matmul_f32{weights}_{tile}_neon"], "neoverse-v2"))
    assert text.count("\tfmla\t") == rows * columns * (1 if weights == "s8groups" else 2)
    assert "[sp" not in text


def least_cycles(kernel, cpu):
    """The cycles of an inner loop by the operations that it cannot do without: products, loads, or all of them.

    A turn loads 16 bytes of each row and column. The pipes of products also flip the bytes of a row, or pair two rows.
    """
    rows, columns = kernel.tile
    paired = kernel.dtypes in PAIRED_DTYPES
    flips = not paired and kernel.dtypes[0] == ("u8" if kernel.isa.dot4.signed else "s8")
    products, loads = rows * columns // (1 + paired) + rows * (paired or flips), rows + columns
    return max(products / PIPES[cpu], loads / LOADS[cpu], (products + loads) / STARTS[cpu])


@pytest.mark.parametrize("kernel", TILES, ids=lambda x: x.name)
def test_share_of_the_peak(kernel, analyzer):
    """Tiles reach their shares and, on CPUs with LOADS, 90 % of what the CPU can do for a loop of this kind."""
    for cpu, least in zip(CPUS[kernel.level], SHARES[kernel.name], strict=True):
        code = inner_loop(kernel, cpu)
        found = cycles(analyzer, code, cpu)
        share = len(ACCUMULATING.findall("\n".join(code))) / PIPES[cpu] / found
        assert share >= least, (cpu, share)
        if cpu in LOADS:
            assert found <= least_cycles(kernel, cpu) / 0.9, (cpu, found, least_cycles(kernel, cpu))
