"""A process that has no free file descriptors: CompileError, and everything works once there are some."""
import os
import subprocess
import sys

import pytest

CODE = """
import os, resource, sys
import numpy as np
import graphq as gq
g = gq.Graph()
g.output(g.relu(g.input("x", dtype="f32", shape=(2, 3))), name="y")
with open("model.txt", "w") as file:
    file.write(gq.to_text(g))
given = g if sys.argv[1] == "graph" else "model.txt"
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    gq.compile(given, threads=1)
except gq.CompileError as error:
    assert "Too many open files" in str(error)
    print("refused")
for number in held:
    os.close(number)
print(gq.compile(given, threads=1)(np.float32([[-1, 0, 1], [2, 3, 4]])).sum())
"""


@pytest.mark.parametrize("given", ["graph", "file"])
def test_compiling_without_free_descriptors(given, tmp_path):
    ran = subprocess.run([sys.executable, "-c", CODE, given], capture_output=True, text=True, cwd=tmp_path,
                         env=os.environ)
    assert ran.stdout.split() == ["refused", "10.0"], ran.stderr
