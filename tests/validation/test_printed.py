"""Printed tests: where the pass comes from, and that they run as they are printed, in a process of their own."""
import subprocess
import sys

from wrong_passes import DropZeroPoint, residual_network

import graphq as gq
from graphq.passes import PIPELINE, Fuse, Rewrite, canonicalize, find_pass
from graphq.validation.printed import as_test

GRAPH = "graph(x: f32[2]) {\n  %0 = relu(x) : f32[2]\n  return %0\n}"
SCRIPT = '''
from dataclasses import dataclass

import graphq as gq
from graphq.errors import PassError
from graphq.passes import Rewrite

NAMES, unused = {"negative": "abs"}, gq.compile


def made(g, x):
    return getattr(g, NAMES["negative"])(x)


class ReluAsAbs(Rewrite):
    """relu(x) -> abs(x) \\\\ "wrong" """

    def pattern(self, g, x):
        return g.relu(x)

    def replace(self, g, x):
        return made(g, x)


if __name__ == "__main__":
    try:
        gq.compile(gq.parse("""graph(x: f32[2]) {
          %0 = relu(x)
          return %0
        }"""), passes=[ReluAsAbs()], verify="numeric")
    except PassError as error:
        print(error.test)
'''


class Named(Rewrite):
    def __init__(self, op, times=1):
        self.op, self.times = op, times

    def pattern(self, g, x):
        return getattr(g, self.op)(x)

    def replace(self, g, x):
        return g.relu(x)


def test_a_pass_of_the_pipeline_is_found_by_name():
    text = as_test(find_pass(PIPELINE, "DropRepeatedRelu"), gq.parse(GRAPH))
    assert 'check_pass(find_pass(PIPELINE, "DropRepeatedRelu"), after=ANY' in text
    exec_test(text)
    text = as_test(find_pass(PIPELINE, "FuseFloatMatmul"), gq.parse(GRAPH))
    exec_test(text)


def test_a_pass_with_arguments_says_them():
    assert "Fuse(family=" not in as_test(find_pass(PIPELINE, "FuseMatmul"), gq.parse(GRAPH))
    exec_test(as_test(DropZeroPoint(), gq.parse(GRAPH)))

    assert "check_pass(Named(op='tanh'), after=ANY" in as_test(Named("tanh"), gq.parse(GRAPH))
    exec_test(as_test(Named("tanh", times=2), gq.parse(GRAPH)))


def test_a_pass_that_no_name_reaches_is_left_to_define():
    def swap(graph):
        return graph.prune()

    text = as_test(swap, gq.parse(GRAPH))
    assert "# swap is not at the top of a module: define it here\n" in text and "check_pass(swap, after=ANY" in text


def exec_test(text):
    scope = {}
    exec(text, scope)
    next(f for name, f in scope.items() if name.startswith("test_"))()


def test_a_pass_of_a_script_is_imported_from_its_file(tmp_path):
    """The test runs with pytest in a process of its own, and passes when the script is mended."""
    (tmp_path / "script.py").write_text(SCRIPT)
    made = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"ReluAsAbs = named_object({str(tmp_path / 'script.py:ReluAsAbs')!r})" in made.stdout
    (tmp_path / "test_it.py").write_text(made.stdout)
    pytest_of_it = [sys.executable, "-m", "pytest", "-q", "test_it.py"]
    done = subprocess.run(pytest_of_it, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "1 failed" in done.stdout and "AssertionError: output 'out0'" in done.stdout
    mended = SCRIPT.replace('"abs"', '"relu"').replace("return g.relu(x)", "return g.tanh(x)")
    (tmp_path / "script.py").write_text(mended)
    done = subprocess.run(pytest_of_it, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_partition_is_printed_with_its_body():
    g = residual_network(1)
    gq.passes.run_passes(g)
    text = as_test(canonicalize, g)
    assert "partition(" in text and "find_pass(PIPELINE, \"canonicalize\")" in text
    assert isinstance(find_pass(PIPELINE, "FuseMatmul"), Fuse)
    exec_test(text)
