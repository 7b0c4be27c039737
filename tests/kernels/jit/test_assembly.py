"""Decisive instructions are counted in texts of LLVM's assembler, in kernels' own assembly, and once a module."""
import os
import re
import subprocess
import sys

import pytest
from kernel_factories import divided_by_zero, empty, multiples

from graphq.errors import KernelError
from graphq.kernels.eltwise import family as eltwise
from graphq.kernels.jit import modules
from graphq.kernels.jit.modules import Source
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import acc, load
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.kernel_table import KERNELS, PAIRED, SORTED
from graphq.kernels.matmul_compressed.floats import FORMS
from graphq.kernels.matmul_compressed.tiles import NARROW
from graphq.kernels.operands.space import Space
from graphq.kernels.target import arm, isa, mnemonics, x86
from graphq.plan.plan import Target
from graphq.report import evidence
from graphq.report.evidence import modules as modules_of

# Lines as LLVM 22 prints them, each with the register class that names its instruction.
COUNTED = """
zmm	vpdpbusd	%zmm1, %zmm2, %zmm3
zmm	vpdpbusd	64(%rax), %zmm2, %zmm3
zmm	vpdpbusd	65(%rax,%r9,4), %zmm20, %zmm31 {%k1}
zmm	vpdpbusd	(%rax){1to16}, %zmm20, %zmm31 {%k1} {z}
ymm	{vex}	vpdpbusd	%ymm1, %ymm2, %ymm3
ymm	{evex} vpdpbusd	%ymm1, %ymm2, %ymm13
xmm	vpdpbusd	1000(%r13), %xmm2, %xmm3
ymm	{vex}	vpdpbusds	%ymm1, %ymm2, %ymm3
zmm	vpdpwssd	%zmm1, %zmm2, %zmm3
zmm	vpdpwssds	.LCPI0_0(%rip), %zmm2, %zmm3 # 64-byte Folded Reload
ymm	vpdpbssd	%ymm1, %ymm2, %ymm3
ymm	vpdpbsud	%ymm1, %ymm2, %ymm3
xmm	vpdpbuud	%xmm1, %xmm2, %xmm3
ymm	vpmaddwd	%ymm1, %ymm2, %ymm3
zmm	vpmaddwd	32(%r8), %zmm22, %zmm3
ymm	vpmaddubsw	(%rsp), %ymm2, %ymm3
zmm	vpmulld	%zmm1, %zmm2, %zmm3
zmm	vdpbf16ps	%zmm1, %zmm2, %zmm3
xmm	vfmadd132ps	%xmm1, %xmm2, %xmm3     # xmm3 = (xmm3 * xmm1) + xmm2
ymm	vfmadd213ps	4(%rbp), %ymm2, %ymm3   # ymm3 = (ymm2 * ymm3) + mem
zmm	vfmadd231ps	{rn-sae}, %zmm1, %zmm2, %zmm3
ymm	vmulps	%ymm1, %ymm2, %ymm3
ymm	vaddps	%ymm11, %ymm12, %ymm13
xmm	vdivps	%xmm1, %xmm2, %xmm3             # not %zmm4
zmm	vsqrtps	%zmm1, %zmm2
ymm	vcvtdq2ps	%ymm1, %ymm2
zmm	vcvtps2dq	%zmm1, %zmm2
zmm	vcvtph2ps	%ymm1, %zmm2
zmm	vcvtps2ph	$4, %zmm1, %ymm2
zmm	vpmovusdb	%zmm1, (%rdi)
zmm	vpmovsdb	%zmm1, %xmm2
zmm	vpmovdb	%zmm1, (%rdi) {%k1}
tmm	tdpbusd	%tmm1, %tmm2, %tmm3
tmm	tdpbssd	%tmm7, %tmm2, %tmm3
tmm	tdpbsud	%tmm1, %tmm2, %tmm3
tmm	tdpbuud	%tmm1, %tmm2, %tmm3
tmm	tdpbf16ps	%tmm1, %tmm2, %tmm3
tmm	tdpfp16ps	%tmm1, %tmm2, %tmm3
tmm	tileloadd	(%rax,%rbx), %tmm1
tmm	tilestored	%tmm1, 64(%rax,%rbx)
"""
# The same for Arm, with the arrangement that names the instruction.
COUNTED_ON_ARM = """
4s	sdot	v3.4s, v0.16b, v1.16b
4s	sdot	v3.4s, v0.16b, v1.4b[3]
4s	usdot	v31.4s, v10.16b, v1.16b
4s	sudot	v3.4s, v0.16b, v1.4b[0]
4s	udot	v3.4s, v0.16b, v1.16b
4s	usmmla	v3.4s, v0.16b, v1.16b
4s	smmla	v3.4s, v0.16b, v1.16b
4s	ummla	v3.4s, v0.16b, v1.16b
4s	sadalp	v3.4s, v0.8h
8h	mul	v3.8h, v0.8h, v1.h[7]
4s	mul	v3.4s, v0.4s, v1.4s
4s	mla	v3.4s, v0.4s, v1.4s
8h	smull	v3.8h, v0.8b, v1.8b
4s	smlal	v3.4s, v0.4h, v1.4h
8h	umull	v3.8h, v0.8b, v1.8b
4s	umlal	v3.4s, v0.4h, v1.4h
4s	fmla	v3.4s, v0.4s, v1.s[2]
2s	fmla	v3.2s, v0.2s, v1.2s             // not v0.4s
4s	fmls	v3.4s, v0.4s, v1.4s
4s	fmul	v3.4s, v0.4s, v1.4s
4s	fadd	v3.4s, v0.4s, v1.4s
4s	fdiv	v3.4s, v0.4s, v1.4s
4s	fsqrt	v3.4s, v0.4s
4s	frintx	v3.4s, v0.4s
4s	scvtf	v3.4s, v0.4s
4s	fcvtns	v3.4s, v0.4s
4s	fcvtzs	v3.4s, v0.4s
4s	fcvtl	v3.4s, v0.4h
4s	fcvtl2	v3.4s, v0.8h
4s	fcvtn	v3.4h, v0.4s
4s	fcvtn2	v3.8h, v0.4s
8h	xtn	v3.8b, v0.8h
4s	sqxtn	v3.4h, v0.4s
8h	sqxtun	v3.8b, v0.8h
16b	tbl	v3.16b, { v0.16b, v1.16b }, v2.16b
"""
OTHERS = """
	.text
	.file	"vmulps %ymm1, %ymm2, %ymm3"
	.globl	vmulps
	.type	vmulps,@function
vmulps:                                 # @vmulps
	.cfi_startproc
# %bb.0:
	# vmulps	%ymm1, %ymm2, %ymm3
	#APP
	vpxor	%ymm1, %ymm2, %ymm3

	#NO_APP
.LBB0_1:                                # =>This Inner Loop Header: Depth=1
	vmulpd	%ymm1, %ymm2, %ymm3
	vmulss	%xmm1, %xmm2, %xmm3
	vfmadd231pd	%zmm1, %zmm2, %zmm3
	pmaddwd	%mm1, %mm2
	vcvttps2dq	%zmm1, %zmm2
	vpaddd	512(%rax), %zmm2, %zmm3
	mulps	%xmm1, %xmm2
	tilezero	%tmm3
	ldtilecfg	(%rax)
	callq	vmulps@PLT
	jne	.LBB0_1
	lock		xaddl	%eax, (%rdi)
	rep;stosb
	vzeroupper
	retq
.LCPI0_0:
	.long	0x3f800000                      # float 1
"""
OF_ANOTHER_MACHINE = """
f:
	ldp	q0, q1, [x0]
	fmla	v2.4s, v0.4s, v1.4s             // vmulps
	sdot	v3.4s, v0.16b, v1.16b
	ret
"""
OTHERS_ON_ARM = """
	.text
	.file	"fmla	v2.4s, v0.4s, v1.4s"
	.type	fmla,@function
fmla:                                   // @fmla
	// fmla	v2.4s, v0.4s, v1.4s
	//APP
	eor	v0.16b, v0.16b, v1.16b
	//NO_APP
.LBB0_1:                                // =>This Inner Loop Header: Depth=1
	mul	x0, x1, x2
	fmul	s0, s1, v2.s[1]
	fmla	v2.2d, v0.2d, v1.2d
	scvtf	s0, w1
	ld1r	{ v0.4s }, [x0]
	ldp	q0, q1, [x0, #32]
	shl	v0.4s, v0.4s, #24
	bl	fmla
	b.ne	.LBB0_1
	ret
"""
LINES = [(machine, *line.split("\t", 1)) for machine, lines in ((x86, COUNTED), (arm, COUNTED_ON_ARM))
         for line in lines.strip("\n").split("\n")]


def mnemonic(text):
    """The first word that is not in braces."""
    return next(word for word in text.split() if not word.startswith("{"))


@pytest.mark.parametrize(("machine", "register", "text"), LINES)
def test_a_line_has_the_name_of_its_widest_register(machine, register, text):
    assert mnemonics.count(f"\t{text}\n", machine) == {f"{mnemonic(text)} {register}": 1}


@pytest.mark.parametrize("machine", [x86, arm])
def test_every_mnemonic_is_in_a_line(machine):
    assert {mnemonic(text) for m, _, text in LINES if m is machine} == mnemonics.counted(machine)


@pytest.mark.parametrize(("machine", "text"), [(x86, ""), (x86, OTHERS), (x86, OF_ANOTHER_MACHINE), (arm, OTHERS),
                                               (arm, COUNTED), (arm, OTHERS_ON_ARM), (None, COUNTED)])
def test_what_else_is_in_a_text_is_not_counted(machine, text):
    assert mnemonics.count(text, machine) == {}


def test_instructions_add_up_in_the_order_of_their_names():
    body = "\tvmulps\t%ymm1, %ymm2, %ymm3\n\tvaddps\t%xmm1, %xmm2, %xmm3\n\tvmulps\t(%rax), %ymm2, %ymm3\n"
    found = mnemonics.count(f"{OTHERS}f:\n{body}g:\n{body}", x86)
    assert list(found.items()) == [("vaddps xmm", 2), ("vmulps ymm", 4)]


def kernels_of(level):
    return [k for k in KERNELS.values() if k.level == level]


def tile_modules(kernel, level):
    """The modules of a kernel's tiles, in a step that stores its accumulators as they are."""
    dtype = "s32" if kernel.dtypes[1] in ("s8", SORTED, PAIRED) else "f32"
    product = matmul.Product(kernel.dtypes[0], 64, 70, 72, w_dtype=kernel.dtypes[1])
    step = matmul.plan_matmul(Epilogue(acc(dtype), dtype), product, Target(level), kernel)
    return [x for x in modules_of(step) if x.name.startswith(kernel.name)]


INTEGERS = "u8", "s8"
FMA = {*(f"vfmadd{order}ps" for order in (132, 213, 231)), "fmla"}
INSTRUCTION = {"avx2": {"vpmaddwd ymm"}, "avx_vnni": {"vpdpbusd ymm"},
               "avx512": {"vpmaddwd zmm"}, "avx512_vnni": {"vpdpbusd zmm"},
               "avx512_bf16": {"vdpbf16ps zmm"}, "amx": {"tdpbusd tmm", "tdpbssd tmm"},
               "neon": {"sadalp 4s"}, "neon_dot": {"sdot 4s"},
               "neon_i8mm": {"usdot 4s", "sudot 4s", "usmmla 4s", "smmla 4s"}}


@pytest.mark.parametrize("name", [x.name for x in isa.LEVELS[1:]])
def test_native_kernels_have_the_instruction_of_their_level(name):
    """And no other: where it may, LLVM makes vpdpwssd of vpmaddwd and vpaddd.

    Of each type of weights it is one kernel for integers and one for floats, with its smallest tile. Compressed weights
    of other codes than s4 and s8 are multiplied in the same way after a rounding.
    """
    assert name in INSTRUCTION, "which instruction do the products of this level take?"
    if isa.here(name).emulated:
        pytest.skip(f"no {name} here")
    alike = {w for w, (code, rounding) in FORMS.items() if code not in ("s4", "s8") and rounding != "f32"}
    kernels = {(k.dtypes[0] in INTEGERS, k.dtypes[1]): k
               for k in reversed(kernels_of(name)) if k.dtypes[1] not in alike}.values()
    tiles = {kernel: tile_modules(kernel, isa.level_named(name))[-1:] for kernel in kernels}
    evidence.prepare_counts(x for made in tiles.values() for x in made)
    register = {4: "4s", 8: "ymm", 16: "zmm"}[isa.level_named(name).lanes]
    for kernel, made in tiles.items():
        integers = kernel.dtypes[0] in INTEGERS
        exact = kernel.dtypes[1] == SORTED or kernel.dtypes in NARROW and isa.level_named(name).sorts
        wanted = INSTRUCTION[name] if integers or name == "avx512_bf16" else {f"{x} {register}" for x in FMA}
        assert made
        for module in made:
            counts = evidence.instructions(module)
            assert sum(counts.get(x, 0) for x in wanted) >= 2, (kernel.name, counts)
            assert (f"vpmaddubsw {register}" in counts) == exact == ("vpmaddubsw" in " ".join(counts))


ASKED = """
import graphq as gq
from graphq.kernels.jit.compiling import Job
from graphq.report.evidence import modules
model = gq.compile(ties="formula", graph=gq.parse('''graph net(x: u8[64,70], w: s8[70,70]) {
    %0 = dequantize(x, scales=[0.1])  %1 = dequantize(w, scales=[0.1])  %2 = matmul(%0, %1)
    %y = quantize(%2, dtype=u8, scales=[0.1])  return %y }'''))
for module in {x for s in model.plans.fixed.plan.steps for x in modules(s)}:
    print(Job("assembly", module.source).result())
"""


@pytest.mark.skipif(isa.here("avx2").emulated, reason="needs AVX2")
def test_a_process_at_avx2_has_no_code_of_higher_levels():
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True,
                          env={**os.environ, "GRAPHQ_ISA": "avx2"})
    assert done.returncode == 0, done.stderr
    assert "vpmaddwd" in done.stdout
    assert not re.search(r"vpdp|%zmm|%ymm(1[6-9]|[23]\d)|%k[0-7]", done.stdout)


@pytest.mark.parametrize("name", ["avx_vnni", "avx512_vnni", "amx"])
def test_emulated_kernels_have_none(name):
    with isa.emulate(name) as emulated:
        first, *others = kernels_of(name)
        least = min((first, *(k for k in others if k.dtypes == first.dtypes)), key=lambda k: k.tile)
        module = tile_modules(least, emulated)[-1]
    assert not any(x.startswith(("vpdpbusd", "tdp", "tile")) for x in evidence.instructions(module))


@pytest.mark.skipif(isa.here("avx2").emulated, reason="needs AVX2")
def test_an_elementwise_kernel_multiplies_vectors():
    product = load(0, "f32", "vector") * load(1, "f32", "vector")
    step = eltwise.plan_eltwise(Epilogue(product, "f32"), Space(1, 9, 33), Target(isa.level_named("avx2")))
    counts = [evidence.instructions(x) for x in modules_of(step)]
    assert any("vmulps ymm" in x for x in counts), counts


def test_modules_are_compiled_side_by_side_and_once(monkeypatch):
    events, text = [], "\tvmulps\t%ymm1, %ymm2, %ymm3\n\tfmul\tv3.4s, v0.4s, v1.4s\n"  # a line of x86, a line of Arm
    counts = mnemonics.count(text)

    class Job:
        def __init__(self, function, source):
            (self.name,) = source.arguments
            events.append((function, self.name))

        def result(self):
            events.append(("result", self.name))
            if self.name == "bad":
                raise KernelError("no")
            return text

    monkeypatch.setattr(evidence, "Job", Job)
    monkeypatch.setattr(evidence, "_instruction_counts", {})
    first, bad, last = (modules.Module("test", Source(multiples, (name,)), False) for name in ("first", "bad", "last"))
    evidence.prepare_counts([first, bad, first, last])
    assert events == [(what, name) for what in ("assembly", "result") for name in ("first", "bad", "last")]
    assert evidence.instructions(first) == evidence.instructions(last) == counts and [*counts.values()] == [1]
    evidence.prepare_counts([first, last])
    assert len(events) == 6
    with pytest.raises(KernelError, match="no"):
        evidence.instructions(bad)


def test_a_module_that_cannot_be_compiled_is_refused():
    bad = modules.Module("test", Source(divided_by_zero, ()), False)
    evidence.prepare_counts([bad])
    with pytest.raises(KernelError, match="cannot be compiled: ZeroDivisionError: division by zero"):
        evidence.instructions(bad)
    assert evidence.instructions(modules.Module("test", Source(empty, ()), False)) == {}
