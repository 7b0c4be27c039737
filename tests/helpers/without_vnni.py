"""Runs pytest on an emulated CPU that has AVX2 and nothing newer: what other libraries compute there, on any machine.

    python tests/helpers/without_vnni.py tests/onnx/test_partitions.py

takes pytest's arguments. It needs QEMU's user mode (Debian's package qemu-user), whose CPUs end at AVX2, so that ONNX
Runtime takes its kernels without VNNI, whose products of u8 and s8 saturate, and its sums of f32 for AVX2. Python runs
5 to 20 times as slowly there. Processes that tests start by `sys.executable` are emulated, too.
"""
import os
import shutil
import sys
import tempfile
from pathlib import Path

NEWER = ("avx512", "avx_", "amx", "gfni", "vaes", "vpclmul")
"""How features begin, as Linux names them, that the emulated CPU has not."""


def features(line: str) -> str:
    """A line of /proc/cpuinfo, without what the emulated CPU lacks."""
    if not line.startswith("flags"):
        return line
    name, flags = line.split(":")
    return f"{name}: {' '.join(flag for flag in flags.split() if not flag.startswith(NEWER))}\n"


def environment(folder: Path, emulator: str) -> Path:
    """Make a virtual environment with the packages of this one, whose interpreter is emulated; give the interpreter."""
    real = os.path.realpath(sys.executable)
    (folder / "bin").mkdir()
    (folder / "proc").mkdir()  # which the emulator reads instead of /proc
    (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
    (folder / "pyvenv.cfg").write_text(f"home = {Path(real).parent}\ninclude-system-site-packages = false\n")
    with open("/proc/cpuinfo") as lines:
        (folder / "proc/cpuinfo").write_text("".join(map(features, lines)))
    python = folder / "bin/python"
    python.write_text(f'#!/bin/sh\nexec {emulator} -cpu max -L {folder} -0 "$0" {real} "$@"\n')
    python.chmod(0o755)
    return python


def main() -> int:
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        print("qemu-x86_64 is not installed (Debian: apt-get install qemu-user)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="graphq-without-vnni-") as folder:
        python = environment(Path(folder), emulator)
        return os.spawnv(os.P_WAIT, python, [str(python), "-m", "pytest", "-n0", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
