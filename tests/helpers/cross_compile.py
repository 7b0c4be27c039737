"""Compile kernel modules for macOS and Windows on this machine, and print the functions of the system that they call.

    python tests/helpers/cross_compile.py darwin        # or win32

Modules are one of each kind that kernel_digests.py lists, with `--all` of each source, and with `--sample` those of
threads and a tile. Nothing runs: the names are in LLVM's assembly.
"""
import argparse
import itertools
import os
import re
import sys
from pathlib import Path

TRIPLES = {"darwin": ("arm64-apple-macos", "apple-m2"), "win32": ("x86_64-pc-windows-msvc-elf", "sapphirerapids")}
GIVEN = {
    "darwin": {"_memcpy", "_memmove", "_memset", "_bzero", "_sched_yield", "_pthread_self", "_clock_gettime",
               "_dispatch_semaphore_wait", "_dispatch_semaphore_signal"},
    "win32": {"__chkstk", "memcpy", "memmove", "memset", "SwitchToThread", "GetCurrentThreadId",
              "QueryPerformanceCounter", "WaitForSingleObject", "ReleaseSemaphore"}}
"""Functions that every process has, where LLVM's loader finds them: those of libSystem, kernel32.dll and ntdll.dll."""


def target(system):
    """LLVM's code generator for a system."""
    import llvmlite.binding as llvm
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu = TRIPLES[system]
    return llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3, reloc="pic", codemodel="small")


def undefined(text):
    """The symbols that assembly uses and does not define."""
    name = r'(?<![\w.$])"?([A-Za-z_][\w.$]*)"?'
    used = re.findall(rf"^\s+(?:callq?|jmpq?|bl?)\s+{name}|{name}@(?:GOT|PLT|PAGE)|^\s+\.globl\s+{name}", text, re.M)
    return set(filter(None, itertools.chain.from_iterable(used))).difference(re.findall(rf"^{name}:", text, re.M))


def calls(system, sources):
    """{the name of a module: the functions that its object code for a system calls}.

    Inline assembly is left out: llvmlite parses only its own machine's. It calls nothing.
    """
    from llvmlite import ir

    from graphq.kernels.jit import codegen
    machine, inline, found = target(system), ir.InlineAsm, {}
    codegen._machine = lambda without=(): machine
    ir.InlineAsm = lambda kind, text, constraints, side_effect=False: inline(kind, "", constraints, side_effect)
    for name, source in sources:
        found.setdefault(name, set()).update(undefined(codegen.assembly(source)))
    return found


def _threads_and_a_tile(system):
    from graphq.kernels.jit.modules import Source
    from graphq.kernels.matmul.kernel_table import KERNELS
    from graphq.kernels.threads import steps, strips, traced
    tile = next(x for x in KERNELS.values() if x.isa.name == {"darwin": "neon_i8mm", "win32": "avx512_vnni"}[system])
    return [("steps", Source(steps.serial_module, ())), ("team", Source(steps.team_module, ())),
            ("strips", Source(strips.strips_module, ())), ("traced", Source(traced.traced_module, ())),
            ("tile", Source(tile.build, (tile.isa, tile.dtypes, *tile.tile, tile.layouts[0]), tile.isa))]


def _of_graphs(system, each):
    from kernel_digests import sources
    chosen = {}
    for (name, _), source in sorted(sources(4).items()):
        level = source.level.name if source.level else ""
        if name != "peak" and (level in ("", "scalar") or level.startswith("neon") == (system == "darwin")):
            chosen[(name, source.text) if each else (source.factory, level == "scalar")] = name, source
    return [*chosen.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=TRIPLES)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--sample", action="store_true")
    args = parser.parse_args()
    own = str(Path(__file__).parent)
    if os.environ.get("GRAPHQ_SYSTEM") != args.system:  # Python reads these as it starts
        path = os.pathsep.join([f"{own}/other_systems", own, os.environ.get("PYTHONPATH", "")])
        os.execve(sys.executable, [sys.executable, "-W", "ignore:graphq is not tested", *sys.argv], {
            **os.environ, "GRAPHQ_SYSTEM": args.system, "PYTHONPATH": path, "NUMBA_OPT": "0",
            **({"GRAPHQ_TARGET": "aarch64"} if args.system == "darwin" else {"GRAPHQ_MACHINE": "AMD64"})})
    found = calls(args.system, _threads_and_a_tile(args.system) if args.sample else _of_graphs(args.system, args.all))
    for name, functions in found.items():
        print(name, *sorted(functions))
    return int(any(functions - GIVEN[args.system] for functions in found.values()))


if __name__ == "__main__":
    sys.exit(main())
