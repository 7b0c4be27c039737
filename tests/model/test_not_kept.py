"""What `compile` does not keep, and that nothing comes of that but time."""
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from dense import dense
from kept_models import FOUND, compiled, feeds, files, same

import graphq as gq
from graphq.kernels.jit import cache
from graphq.model import kept

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def path(tmp_path):
    """A model's file."""
    gq.save_onnx(dense(5, 16, 8), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_what_is_not_kept(path, folder, tmp_path, monkeypatch):
    for options in ({"cache": False}, {"cache": "kernels"}, {"passes": [lambda graph: 0]}, {"verify": "numeric"}):
        for _ in range(2):
            assert compiled(path, **options).origin == ""
    monkeypatch.setenv("GRAPHQ_DEBUG", "verify")
    assert compiled(path).origin == ""
    monkeypatch.delenv("GRAPHQ_DEBUG")
    monkeypatch.setattr(cache, "MOST_OF_A_MODEL", 200)
    assert compiled(path).origin == ""
    assert not folder.exists() or files(folder) == []
    monkeypatch.undo()


@pytest.mark.parametrize("umask", [0, 0o22, 0o77])
def test_models_are_this_user_s_alone(umask, path, folder):
    before = os.umask(umask)
    try:
        compiled(path)
    finally:
        os.umask(before)
    (file,) = files(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert compiled(path).origin.startswith(FOUND)


def test_an_option_without_json_and_no_memory_are_warnings(path, monkeypatch, caplog):
    assert compiled(path, outputs=[np.str_("y")]).origin == ""

    def full(*_, **__):
        raise MemoryError("none left")

    monkeypatch.setattr(kept, "save", full)
    model = compiled(path)
    assert "a compiled model is not kept: MemoryError: none left" in caplog.text
    assert same(model(feeds(model)), model.formula(feeds(model)))


def test_no_model_is_kept_in_a_folder_that_goes_with_the_process(path, folder, tmp_path, monkeypatch):
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    cache.temporary_folder.cache_clear()
    compiled(path, threads=1)
    assert not list(tmp_path.rglob("*.graphq"))
    cache.temporary_folder.cache_clear()


OWN = """
import sys
import numpy as np
import graphq as gq
from graphq.ir.op import register_op

@register_op(infer=lambda x: x)
def times(x):
    return np.asarray(x * float(sys.argv[2]), np.float32)

model = gq.compile(sys.argv[1], threads=1)
print(model(np.ones(2, np.float32)).tolist(), model.origin)
"""


def test_models_of_processes_with_own_operations_are_not_kept(tmp_path):
    (tmp_path / "m.txt").write_text(
        "graph m(x: f32[2]) {\n  %c = constant(value=f32[2]{1.0, 1.0})\n  %t = times(%c)\n  %y = add(x, %t)\n"
        "  return %y\n}\n")
    for factor, wanted in (("2", "[3.0, 3.0] \n"), ("3", "[4.0, 4.0] \n")):
        done = subprocess.run([sys.executable, "-c", OWN, str(tmp_path / "m.txt"), factor], capture_output=True,
                              text=True)
        assert done.stdout == wanted, done.stderr


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "f.onnx")
    (tmp_path / "z.onnx").symlink_to("/dev/zero")
    for name in ("f.onnx", "z.onnx"):
        with pytest.raises(gq.ParseError):
            compiled(tmp_path / name)
    (tmp_path / "g.txt").write_text("graph(x: f32[4]) { %0 = relu(x) return %0 }")
    code = "import graphq as gq; print(gq.compile('/dev/stdin').inputs)"
    with open(tmp_path / "g.txt") as file:  # standard input that is a file
        done = subprocess.run([sys.executable, "-c", code], stdin=file, capture_output=True, text=True)
    assert done.returncode == 0 and "x" in done.stdout, done.stderr
    done = subprocess.run([sys.executable, "-c", code], input="graph", capture_output=True, text=True)  # a pipe
    assert done.returncode == 1 and "not a regular file" in done.stderr


def test_the_bound_holds_within_a_process(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 150_000)
    for seed in range(8):
        gq.save_onnx(dense(5, 16, 8, seed=seed), tmp_path / "m.onnx")
        compiled(tmp_path / "m.onnx")
        assert cache.info().bytes <= 150_000
    assert compiled(tmp_path / "m.onnx").origin.startswith(FOUND)


def test_a_model_with_data_in_other_files_is_not_kept(path, tmp_path):
    import onnx

    compiled(path)
    onnx.save_model(onnx.load(path), tmp_path / "split.onnx", save_as_external_data=True, size_threshold=0,
                    location="weights.bin")
    for _ in range(2):
        assert compiled(tmp_path / "split.onnx").origin == ""


@pytest.mark.parametrize("where", ["initializer", "constant", "body"])
def test_data_in_another_file_are_found_in_the_parsed_model(where, tmp_path, monkeypatch):
    """Wherever a tensor is, and however the file writes the length of the word location: here in two bytes."""
    from onnx import TensorProto, helper, numpy_helper, save

    monkeypatch.chdir(tmp_path)  # ONNX's checker looks there for the files of constants and bodies
    t = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value="weights.bin")
    info = helper.make_tensor_value_info
    initializers, nodes = [numpy_helper.from_array(np.array(True), "true")], []
    if where == "initializer":
        initializers.append(t)
    elif where == "constant":
        nodes = [helper.make_node("Constant", [], ["c"], value=t)]
    else:
        t.name = "inner"
        body = helper.make_graph([helper.make_node("Identity", ["inner"], ["d"])], "b", [],
                                 [info("d", TensorProto.FLOAT, [4])], [t])
        nodes = [helper.make_node("If", ["true"], ["c"], then_branch=body, else_branch=body)]
    nodes.append(helper.make_node("Mul", ["x", "c"], ["y"]))
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, [4])], [info("y", TensorProto.FLOAT, [4])],
                              initializers)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    short, long = b"\x0a\x08location\x12\x0bweights.bin", b"\x0a\x88\x00location\x12\x0aweights.bi"
    assert short in data
    (tmp_path / "m.onnx").write_bytes(data.replace(short, long))
    for k in (2, 3):
        (tmp_path / "weights.bi").write_bytes(np.full(4, k, np.float32).tobytes())
        model = compiled(tmp_path / "m.onnx")
        assert model.origin == "" and model(np.ones(4, np.float32)).tolist() == [k] * 4


def test_what_does_not_compile_is_not_kept(path, folder, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    for name, error in (("bad.onnx", gq.ParseError), ("none.onnx", gq.ParseError), ("none.txt", OSError)):
        for _ in range(2):
            with pytest.raises(error):
                compiled(tmp_path / name)
    assert not folder.exists() or files(folder) == []
