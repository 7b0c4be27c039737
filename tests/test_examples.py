"""The examples run as a user runs them, and what they print is right."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*arguments, cwd):
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, encoding="utf-8", cwd=cwd,
                          env=environment, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("options", [[], ["--isa", "scalar", "--threads", "1"]])
def test_digits_int8(tmp_path, options):
    pytest.importorskip("sklearn")
    out = run(ROOT / "examples" / "digits_int8.py", "--seconds", "0.01", *options, cwd=tmp_path)

    measured = {name.strip(): (float(accuracy), int(speed.replace(",", ""))) for name, accuracy, speed in
                re.findall(r"^(.+?) accuracy +([\d.]+) % +([\d,]+) images/s", out, re.MULTILINE)}
    assert set(measured) == {"scikit-learn f32", "graphq int8", "graphq.reference"}
    f32, int8, reference = (measured[k][0] for k in ("scikit-learn f32", "graphq int8", "graphq.reference"))
    assert f32 > 95
    assert abs(f32 - int8) <= 1
    assert abs(int8 - reference) <= 0.5
    assert all(speed > 0 for _, speed in measured.values())

    assert "4 partitions (3 integer), 0 operations outside" in out
    assert "NumPy reference of" not in out
    first = re.findall(r"first result, \w+ kernel cache: [\d.]+ s \((\d+) functions compiled\)", out)
    cold, warm = map(int, first)
    assert cold > 0 and warm == 0

    rows = out.rstrip().splitlines()[-11:]
    assert [row.split()[0] for row in rows[-3:]] == ["label", "f32", "int8"]
    assert all(len(re.findall(r"\d", row.replace("f32", "").replace("int8", ""))) == 6 for row in rows[-3:])
    assert all(set(row) <= set(" ░▒▓█") for row in rows[:8]) and "█" in "".join(rows[:8])


def test_write_a_pass(tmp_path):
    out = run(ROOT / "examples" / "write_a_pass.py", cwd=tmp_path)
    assert "The pass alone applied 1 time:" in out
    assert "the factor must be a power of two, got 0.3" in out
    plain, mine = out.split("The pipeline as it is:")[1].split("The pipeline with the pass in front:")
    assert "(0 integer)" in plain and "expected dequantize or dynamic_dequantize, found multiply" in plain
    assert re.search(r"1 partitions? \(1 integer\), 0 operations outside", mine)
    assert float(re.search(r"largest difference to the reference: (\S+)", mine)[1]) < 1e-5


def test_write_a_pass_has_passing_tests(tmp_path):
    out = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", os.devnull,
              ROOT / "examples" / "write_a_pass.py", cwd=tmp_path)
    assert re.search(r"^7 passed", out, re.MULTILINE), out
