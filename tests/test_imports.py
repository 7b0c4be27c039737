"""What `import graphq`, loading a saved model and the command line import: counts of modules, which decide the time."""
import json
import subprocess
import sys
import typing

import numpy as np
import pytest

import graphq as gq

MOST_TO_BUILD = 80
MOST_TO_RUN = 120
PACKAGES = {"numba", "llvmlite", "networkx", "onnx", "argparse", "asyncio"}


def imported(code: str, *arguments: str) -> set[str]:
    """The modules that a new process has after this code."""
    code += "\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    made = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(made.stdout.splitlines()[-1]))


def own(modules: set[str]) -> list[str]:
    return sorted(m for m in modules if m.split(".")[0] == "graphq")


def test_building_a_graph_imports_no_compiler():
    found = imported("import numpy, graphq as gq\ng = gq.Graph()\nx = g.input('x', dtype='f32', shape=(2,))\n"
                     "g.output(g.relu(x))\ngq.reference(g, {'x': numpy.ones(2, 'f4')})")
    assert len(own(found)) <= MOST_TO_BUILD
    assert not found & PACKAGES
    assert not [m for m in own(found) if m.startswith(("graphq.passes", "graphq.plan", "graphq.kernels.jit.modules"))]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    g = gq.Graph()
    x = g.input("x", dtype="u8", shape=(4, 8))
    w = g.constant([[1] * 16] * 8, dtype="s8")
    y = g.matmul(g.dequantize(x, scales=[0.5]), g.dequantize(w, scales=[0.25]))
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[0.5]))
    path = tmp_path_factory.mktemp("saved") / "model.graphq"
    gq.compile(g, threads=1).save(path)
    return path


def test_running_a_saved_model_imports_no_compiler(saved):
    found = imported("import sys, numpy, graphq as gq\nmodel = gq.load_compiled(sys.argv[1])\n"
                     "assert model(numpy.ones((4, 8), 'u1')).shape == (4, 16)", str(saved))
    assert len(own(found)) <= MOST_TO_RUN
    assert not found & (PACKAGES - {"llvmlite"})  # LLVM links the code
    assert not [m for m in own(found) if m.startswith(("graphq.passes", "graphq.kernels.matmul"))]


def test_reading_and_writing_onnx_files_imports_no_networkx():
    """It takes 0.2 s, and few models need it."""
    pytest.importorskip("onnx")
    assert "networkx" not in imported("import graphq.onnx.importers, graphq.onnx.saving, graphq.onednn")


def test_loading_an_onnx_file_imports_no_compiler():
    """It takes a tenth of the time to the first result, and a model that was compiled before needs none."""
    pytest.importorskip("onnx")
    found = imported("import graphq.onnx.loading")
    assert not [m for m in own(found) if m.startswith(("graphq.passes", "graphq.plan", "graphq.kernels.families"))]


def test_running_a_saved_model_of_an_onnx_file_imports_no_onnx(tmp_path):
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[n, 4] x) => (float[n, 4] y, int64[m] r) <int64[1] i = {0}, int64 zero = {0}, int64 one = {1}> {
        shape = Shape(x)  n1 = Gather(shape, i)  n0 = Squeeze(n1, i)  r = Range(zero, n0, one)  y = Relu(x) }"""
    model = gq.compile(gq.load_onnx(onnx.parser.parse_model(text)), threads=1)
    assert model(x=np.ones((3, 4), np.float32))["r"].tolist() == [0, 1, 2]
    model.save(tmp_path / "m.graphq")
    found = imported("import sys, numpy, graphq as gq\nmodel = gq.load_compiled(sys.argv[1])\n"
                     "assert model(numpy.ones((5, 4), 'f4'))['r'].tolist() == [0, 1, 2, 3, 4]",
                     str(tmp_path / "m.graphq"))
    assert not found & (PACKAGES - {"llvmlite"})


@pytest.mark.parametrize("arguments", ["--help", "--version", "nothing", ""])
def test_help_imports_no_compiler(arguments):
    found = imported("import contextlib, io, sys, graphq.cli\nwith contextlib.redirect_stdout(io.StringIO()), "
                     "contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):\n"
                     "    graphq.cli.main(sys.argv[1:])", *arguments.split())
    assert len(own(found)) <= MOST_TO_RUN
    assert not found & (PACKAGES - {"argparse"})


def test_all_operations_are_there_before_a_compiler_is():
    code = "import graphq, graphq.ir.op as op\nprint(len(list(op.walk_ops())))\ngraphq.passes, graphq.load_onnx\n"
    code += "import graphq.model.build_plan, graphq.onnx.loading, graphq.quantization\nprint(len(list(op.walk_ops())))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == said[1] and int(said[0]) > 100


AT_ONCE = """
import sys, threading
import graphq as gq
sys.setswitchinterval(1e-5)
failed = []

def run(code):
    try:
        exec(code)
    except BaseException as e:
        failed.append(repr(e))

codes = ["from graphq.passes import FoldPadIntoConvolution", "gq.compile(gq.parse(sys.argv[1]), threads=1)",
         "gq.testing"]
threads = [threading.Thread(target=run, args=(code,)) for code in codes]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(failed)
"""


def test_threads_may_import_at_once():
    text = "graph m(x: f32[2]) {\n  %y = relu(x)\n  return %y\n}"
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", AT_ONCE, text], capture_output=True, text=True)
        assert done.stdout == "[]\n", done.stdout + done.stderr


PARTS_COME = """
import sys
import numpy, graphq as gq
count = 0

def trace(frame, event, argument):
    global count
    if frame.f_globals.get("__name__", "").startswith("graphq"):
        setattr(numpy, f"part{count}", None)  # as another thread's import of a part of NumPy does, or of graphq
        setattr(gq, f"part{count}", None)
        count += 1
        return trace

sys.settrace(trace)
import graphq.model.saved_values
dir(gq)
print(count > 100)
"""


def test_parts_of_packages_may_come_while_they_are_listed():
    done = subprocess.run([sys.executable, "-c", PARTS_COME], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stdout + done.stderr


def test_the_types_of_compile_are_found():
    hints = typing.get_type_hints(gq.compile)
    assert hints["return"] is gq.CompiledGraph and "avx2" in typing.get_args(typing.get_args(hints["isa"])[0])


def test_public_names_are_found_late_and_listed():
    assert set(gq.__all__) <= set(dir(gq))
    for name in gq.__all__:
        assert getattr(gq, name) is not None
