"""Digests of the LLVM modules of all kernels: a refactoring of kernel code leaves them as they are.

    python tests/helpers/kernel_digests.py > before.txt                     # then change kernel code, and
    python tests/helpers/kernel_digests.py --against before.txt --only matmul

Kernels are those of the table (at every level, as the CPU has them and emulated) and those that plans of random graphs,
and of a few written ones, ask for at every level. Nothing is compiled: a module is digested before LLVM optimizes it,
its values, globals and metadata numbered as they come, and arithmetic in any order. `--machine` digests what LLVM makes
of it instead. `--texts FOLDER` keeps what was digested, to compare.
"""
import argparse
import hashlib
import itertools
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import random_graphs
from networks import transformer

import graphq as gq
from graphq.kernels import levels
from graphq.kernels.jit import codegen, modules
from graphq.kernels.matmul import peaks
from graphq.kernels.matmul.kernel_table import KERNELS
from graphq.kernels.moves.integers import TO_BOOLEAN, TO_F32, TO_INTEGER, converting
from graphq.kernels.moves.transpose import copying
from graphq.kernels.target import isa
from graphq.kernels.threads import team

ENVIRONMENT = {
    "NUMBA_OPT": "0",  # as in processes that compile kernels
    "NUMBA_CPU_NAME": "sapphirerapids", "NUMBA_CPU_FEATURES": "+avxvnni",  # instructions of all levels; nothing runs
    "PYTHONHASHSEED": "0"}  # which orders what Numba allots on the stack
LISTS = "strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1]"
TEXTS = [
    *(f"x: {t}[1,9,9,33], w: s8[3,3,1,33]) {{ %0 = dequantize(x, scales=[0.1])\n %1 = dequantize(w, scales=[0.1])\n"
      " %2 = convolution(%0, %1, groups=33, dilations=[1, 1], LISTS)\n"
      " %y = quantize(%2, dtype=u8, scales=[0.1]) return %y }" for t in ("u8", "s8")),
    "x: f32[1,9,9,33], w: f32[3,3,1,33]) { %y = convolution(x, w, groups=33, dilations=[1, 1], LISTS) return %y }",
    "x: f32[1,5,6,21]) { %y = avg_pool(x, kernel=[3, 3], exclude_pad=true, LISTS) return %y }",
    "x: f32[1,5,6,21]) { %y = max_pool(x, kernel=[5, 5], LISTS) return %y }",
    "x: f32[1,5,6,21]) { %y = interpolate(x, mode=\"linear\", sizes=[7, 9]) return %y }",
    *(f"x: {t}[2,40,50,3]) {{ %y = static_transpose(x, order={order}) return %y }}"
      for t in ("u8", "f16", "f32", "s64") for order in ("[0, 3, 1, 2]", "[0, 2, 1, 3]", "[3, 2, 0, 1]")),
    *(f"x: f32[40,70], g: f32[70]) {{ %y = {op} return %y }}" for op in (
        "softmax(x, axis=-1)", "log_softmax(x, axis=-1)", "softmax(x, axis=-1, mode=\"inf_as_zero\")",
        *(f"reduce_{how}(x, axes=[1])" for how in ("sum", "mean", "max", "min", "l1", "l2")),
        "rms_norm(x, g, epsilon=0.001)", "layer_norm(x, g, g, keep_stats=false)")),
]
CASTS = (32, 1, TO_F32, 32), (64, 1, TO_INTEGER, 8), (8, 0, TO_BOOLEAN, 8)


def recurrent(op, quantized):
    gates, units = {"lstm": 4, "gru": 3, "rnn": 1}[op], 17
    g = gq.Graph(op)
    x = g.input("x", shape=(3, 7, gates * units), dtype="f32")
    first = [g.input(n, shape=(7, units), dtype="f32") for n in "hc"[:2 if op == "lstm" else 1]]
    weights = np.ones((gates * units, units), np.float32)
    extra = {"lstm": np.ones(gates * units, np.float32) if quantized else None, "gru": np.ones(units, np.float32)}
    more = [extra[op]] if op in extra else []
    g.output(getattr(g, op)(x, g.constant(weights), *first, *more, None)[0], name="y")
    return g


def attention(tokens, kept):
    g = gq.Graph("attention")
    q, n = g.input("q", dtype="f32", shape=(2, tokens, 8 * 20)), g.input("n", dtype="s32", shape=(2,))
    past = [g.input(x, dtype="u8" if kept == "s4" else kept, shape=(2, 2, 9, 10 if kept == "s4" else 20)) for x in "kv"]
    angles = [np.ones((9, 8), np.float32)] * 2
    scales = [] if kept in ("f32", "bf16") else [None, None, None, *[np.ones((2, 20), np.float32)] * 2]
    g.output(g.cached_attention(q, n, np.array([9], np.int32), None, None, *past, *angles, *scales, heads=4, groups=2,
                                scale=1.0, kept=kept, capacity=9)[0], name="y")
    return g


def observed():
    g = gq.Graph("observed")
    x = g.input("x", dtype="f32", shape=(3000,))
    for k, y in enumerate(g.histogram(x)):
        g.output(y, name=f"y{k}")
    for k, y in enumerate(g.dynamic_range(x)):
        g.output(y, name=f"r{k}")
    return g


def four_bits(group):
    g = gq.Graph("four_bits")
    w = g.dynamic_dequantize(g.input("w", shape=(128, 70), dtype="u4"), np.ones((128 // group, 70), np.float32),
                             qtype="per_group", group_shape=[group, 1])
    g.output(g.matmul(g.dequantize(g.input("x", shape=(9, 128), dtype="u8"), scales=[0.1]), w), name="y")
    return g


def graphs(seeds):
    """Makers of graphs, each under a name."""
    from dense import dense

    for k in range(seeds):
        yield f"random {k}", lambda k=k: random_graphs.random_graph(k)[0]
    for text in TEXTS:
        yield text, lambda text=text: gq.parse("graph net(" + text.replace("LISTS", LISTS))
    yield "transformer", lambda: transformer(1)[0]
    for x, w, zw, ta in (("u8", "s8", None, False), ("s8", "s8", None, True), ("u8", "u8", (0, 256), False)):
        for m in (1, 5, 300):
            yield f"dense {m} {x} {w} {ta}", lambda x=x, w=w, zw=zw, ta=ta, m=m: dense(
                m, x=x, w=w, zw=zw, transpose_a=ta)
    for op, quantized in (("lstm", False), ("lstm", True), ("gru", False), ("rnn", False)):
        yield op, lambda op=op, quantized=quantized: recurrent(op, quantized)
    for tokens, kept in ((1, "f32"), (3, "f32"), (1, "bf16"), (1, "s8"), (1, "s4")):
        yield f"attention {tokens} {kept}", lambda tokens=tokens, kept=kept: attention(tokens, kept)
    yield "observed", observed
    for group in (32, 16):
        yield f"4 bits {group}", lambda group=group: four_bits(group)


def sources(seeds):
    """The sources of kernel modules, each once: {(name, what tells it apart): Source}."""
    found = {}

    def begin(module, wanted, first):
        found[module.name, module.source.text] = module.source

    modules.Module.begin, modules.Module.address = begin, lambda module, name: 0  # nothing is compiled or called
    levels.works = lambda level, cache=True: True
    for kernel in KERNELS.values():
        for layout in kernel.layouts:
            for emulated in (False, True):
                modules.load(f"{kernel.name}_{layout}", kernel.build, isa.level_named(kernel.level, emulated),
                             kernel.dtypes, *kernel.tile, layout, level=kernel.isa, cache=False)
    for name in map(" ".join, itertools.product(isa.HERE.MULTIPLYING, isa.HERE.REGISTERS)):
        if peaks.products(name):
            modules.load("peak", peaks.peak_module, name, cache=False)
    for of in CASTS:
        modules.load("cast", converting, *of, cache=False)
    team.modules_of_team()
    modules.load("copying", copying, cache=False)
    for level in isa.LEVELS:
        with ExitStack() as stack:
            if level.name not in [x.name for x in isa.available()]:
                stack.enter_context(isa.emulate(level.name))
            for name, make in graphs(seeds):
                try:
                    gq.compile(make(), isa=level.name, threads=2, cache=False)
                except Exception as error:
                    print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def normalized(text):
    """The text of an LLVM module without names of its file, and with all else numbered as it comes."""
    numbers = {"%": {}, "@": {}, "!": {}}

    def number(match):
        name = match[0]
        if re.match(r'@"?(llvm\.|[a-z_0-9]+$)', name):  # LLVM's, the C library's, the functions of the module
            return name
        of_kind = numbers[name[0]]  # values, globals, metadata
        return of_kind.setdefault(name, f"{name[0]}{len(of_kind)}")

    text = re.sub(r'(; ModuleID|source_filename).*\n', "", text)
    text = re.sub(r"inttoptr \(i64 \d+ to ptr\)", "an address of this process", text)
    out = []
    for part in re.split(r"(?m)^(?=define )", text):  # numbers of values begin anew in each function
        numbers["%"].clear()
        part = re.sub(r"(?m)^(?!define|declare|@|!|\s)([\w.$-]+|\"[^\"]+\"):", r"%\1:", part)
        out.append(re.sub(r'[%@](?:"[^"]+"|[\w.$-]+)|!\d+', number, part))
    return "".join(out)


PURE = re.compile(r"(add|sub|mul|[us]div|[us]rem|f[a-z]+|shl|[al]shr|and|or|xor|icmp|select|[sz]ext|trunc|bitcast|"
                  r"inttoptr|ptrtoint|sitofp|fptosi|uitofp|insertelement|extractelement|shufflevector)\b")
SWAPPED = re.compile(r"icmp ([su])g([te]) (<.*?>|\S+) (?:(%\S+), (.*)|(.*), (%\S+))$")


def in_any_order(text):
    """A normalized module with arithmetic written where it is used: its order, and what nobody uses, do not count."""
    out = []
    for part in re.split(r"(?m)^(?=define )", text):
        tokens, lines, count = {}, [], itertools.count()

        def number(name, tokens=tokens, count=count):
            if name not in tokens:
                tokens[name] = f"%{next(count)}"
            return tokens[name]

        def token(match, number=number):
            return number(match[0])

        for line in part.splitlines():
            name, _, code = line.strip().partition(" = ")
            if name[:1] == "%" and PURE.match(code):
                code = SWAPPED.sub(lambda m: f"icmp {m[1]}l{m[2]} {m[3]} {m[5] or m[7]}, {m[4] or m[6]}", code)
                tokens[name] = "%" + hashlib.sha256(re.sub(r"%\d+", token, code).encode()).hexdigest()[:16]
            else:
                if name[:1] == "%" and code:
                    number(name)
                lines.append(line if code.startswith("phi ") else re.sub(r"%\d+", token, line))
        out += [re.sub(r"%\d+", token, x) if " = phi " in x else x for x in lines]
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that names of modules match")
    parser.add_argument("--seeds", type=int, default=40, help="random graphs")
    parser.add_argument("--against", type=Path, help="what was printed before: print the differences alone")
    parser.add_argument("--machine", action="store_true", help="digests of what LLVM makes of modules")
    parser.add_argument("--texts", type=Path, help="a folder for the texts that are digested")
    args = parser.parse_args()
    if not ENVIRONMENT.items() <= os.environ.items():  # Python and Numba read these as they start
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    lines = []
    for (name, _), source in sorted(sources(args.seeds).items()):
        if re.search(args.only, name):
            of = hashlib.sha256(repr(source.arguments).encode()).hexdigest()[:12]
            code = (codegen.assembly(source) if args.machine else
                    in_any_order(normalized(str(codegen.whole_module(source)[0]))))
            lines.append(f"{name} {of} {hashlib.sha256(code.encode()).hexdigest()[:16]}")
            if args.texts:
                args.texts.mkdir(parents=True, exist_ok=True)
                (args.texts / f"{name}_{of}.ll").write_text(code)
    if args.against is None:
        print("\n".join(dict.fromkeys(lines)))  # levels may differ in what LLVM may use alone
        return 0
    before = {x for x in args.against.read_text().splitlines() if re.search(args.only, x.split()[0])}
    for line in sorted(before ^ set(lines)):
        print("-+"[line not in before], line)
    print(f"{len(before & set(lines))} equal, {len(before - set(lines))} gone, {len(set(lines) - before)} new",
          file=sys.stderr)
    return int(before != set(lines))


if __name__ == "__main__":
    sys.exit(main())
