"""Run the code blocks of a page of the documentation: `python run_page.py PAGE`, in the current folder.

`python` blocks run one after another in one namespace, `bash` blocks between them. Each must print what the text
block after it says, where `...` stands for anything; without one, nothing. Without PAGE, lines of stdin name pages
(`serve`).
"""
import contextlib
import doctest
import gc
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
SET_UP = "python3 -m venv"
"""How a block begins that makes an environment: `.ci/run` runs the README's, which runs the tests."""


def blocks(text):
    """Language, code and the output that the page shows, or "", of each block that runs."""
    return [block for block in BLOCK.findall(text) if not block[1].startswith(SET_UP)]


def normal(text):
    """Without what depends on the machine: ISA level, kernel, threads, blocks and how they run, and times."""
    text = re.sub(r"\d+x\d+_(?=scalar|avx|amx)", "", text)
    text = re.sub(r"s8sorted_(?=scalar|avx|amx)", "s8_", text)  # the form of weights where there is no VNNI
    text = re.sub(r"scalar|amx|avx\w*", "LEVEL", text)
    text = re.sub(r"\d+\s+(thread|block)s?", r"N \1", text)
    text = re.sub(r"\S+ ms per run, f32 \S+ ms: .*", "times of a quantized model", text)
    text = re.sub(r"^(  \S.*?)(?: +\d\S* \(\d\S*\)){2} +\S+ +\S+$", r"\1 times of an engine", text, flags=re.M)
    return re.sub(r"serial|parallel", "somehow", text).strip() + "\n"


def same(said, printed):
    """Whether a page says what its code prints; lines may be wrapped elsewhere, since names of levels are longer."""
    how = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(normal(said), normal(printed), how)


def run_python(code, page, space):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec"), space)
    return printed.getvalue()


def run_shell(code):
    """What a block prints, with the commands of this environment in front of others."""
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, encoding="utf-8",
                          env={**os.environ, "PATH": path, "PYTHONIOENCODING": "utf-8"}, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{code}\nends with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def compile_anew():
    """Let `graphq.compile` find no model that an earlier run kept: pages show what is compiled."""
    from graphq.model import kept

    kept.FEWEST = sys.maxsize


def main(page):
    space = {"__name__": "__main__"}  # blocks for processes are guarded by it
    for language, code, said in blocks(Path(page).read_text(encoding="utf-8")):
        printed = run_python(code, page, space) if language == "python" else run_shell(code)
        if not same(said, printed):
            sys.exit(f"after\n{code}\nthe page says\n{said}\nand the code prints\n{printed}")


def serve():
    """Run a page in a fork of this process for each line of stdin, [page, folder, file for what it prints] in JSON.

    Prints how the fork ended. Forks need no compiling processes, because this process has Numba: to start these takes
    longer than most pages.
    """
    os.environ["NUMBA_OPT"] = "0"  # as for compiling processes
    import graphq as gq
    from graphq.kernels.jit import compiling

    compiling.pool.processes_work = False
    model = gq.compile(gq.parse("graph first(x: f32[2]) { %y = relu(x) return %y }"), threads=1, cache=False)
    model(np.ones(2, np.float32))
    gc.freeze()
    for line in sys.stdin:
        page, folder, file = json.loads(line)
        if (child := os.fork()) == 0:
            os.chdir(folder)
            for name, mode, descriptors in ((os.devnull, os.O_RDONLY, [0]), (file, os.O_WRONLY | os.O_CREAT, [1, 2])):
                opened = os.open(name, mode)
                for descriptor in descriptors:
                    os.dup2(opened, descriptor)
            return main(page)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    compile_anew()
    main(sys.argv[1]) if sys.argv[1:] else serve()
