"""`graphq verify`: files of digests, what a check compares, which value it names, and what it refuses."""
import hashlib
import json

import ml_dtypes
import numpy as np
import pytest

import graphq as gq
from graphq.cli import main
from graphq.commands.arrays import SameDraws
from graphq.errors import InputError
from graphq.kernels.target import isa
from graphq.model import digests
from graphq.model.digests import add_array, verify

TEXT = """graph net(x: f32[?,3], k: u8[2]) {
  %a = softmax(x) : f32[?,3]
  %b = softmax(%a) : f32[?,3]
  %c = softmax(%b, axis=0) : f32[?,3]
  %d = softmax(%c) : f32[?,3]
  %e = dequantize(k, scales=[0.5]) : f32[2]
  return %d as y, %e as z
}"""


def digest(x):
    add_array(found := hashlib.sha256(), x)
    return found.hexdigest()


@pytest.fixture
def file(tmp_path):
    (tmp_path / "net.txt").write_text(TEXT)
    return str(tmp_path / "net.txt")


@pytest.fixture
def checked(file, tmp_path, capsys):
    """Run the command on the model and the file of digests; returns the exit code, and its output or error."""
    def run(*arguments, model=file):
        code = main(["verify", str(model), f"--digests={tmp_path}/d.json", "--threads=1", "--isa=scalar", *arguments])
        return code, "".join(capsys.readouterr()).replace(f"{tmp_path}/", "").strip()
    return run


def changed(tmp_path, change):
    data = json.loads((tmp_path / "d.json").read_text())
    change(data)
    (tmp_path / "d.json").write_text(json.dumps(data))


def test_random_inputs_are_the_same_everywhere():
    """PCG64's integers are part of NumPy's promise; the rest is exact."""
    draws = SameDraws(np.random.PCG64(7))
    assert draws.integers(-5, 5, (6,)).tolist() == [-2, 0, 1, -1, -4, -3]
    assert (draws.uniform(-1.0, 1.0, (2, 2)) * 2**23).tolist() == [[2206832.0, 7472861.0], [2496862.0, -247519.0]]
    assert draws.integers(0, 2, ()).shape == () and draws.uniform(0.0, 1.0, (0, 3)).shape == (0, 3)


def test_digests_of_arrays():
    x = np.array([[1, np.nan], [0, 3]], np.float32)
    other = x.copy()
    other.view(np.uint32)[0, 1] ^= 0x80000001
    assert digest(x) == digest(other) == digest(np.asfortranarray(x)) and not np.signbit(x[0, 1])
    assert digest(x) not in (digest(x.ravel()), digest(x * 2), digest(x.astype(np.float64)))
    assert digest(np.zeros(2, np.float32)) != digest(-np.zeros(2, np.float32))
    assert digest(np.array(-np.nan, ml_dtypes.bfloat16)) == digest(np.array(np.nan, ml_dtypes.bfloat16))


def test_write_and_check(checked, tmp_path):
    """On two levels; a check takes seed and shapes from the file."""
    assert checked("--values", "--shape=x=5x3", "--seed=3") == (
        0, "d.json: 2 outputs, 3 inner values: written")
    data = json.loads((tmp_path / "d.json").read_text())
    assert (data["format"], data["numbers"], data["seed"]) == (digests.FORMAT, digests.NUMBERS, 3)
    assert data["about"]["isa"] == "scalar" and len(data["fingerprint"]) == 32
    assert list(data["outputs"]) == ["y", "z"] and list(data["values"]) == ["a", "b", "c"]
    assert data["inputs"]["x"].startswith("f32[5,3] ") and data["values"]["a"].startswith("f32[5,3] ")
    assert checked("--values", f"--isa={isa.available()[-1].name}") == (0, "d.json: 2 outputs, 3 inner values: equal")
    assert checked() == (0, "d.json: 2 outputs, 0 inner values: equal")


def test_values_are_digested_in_stages(file, tmp_path, monkeypatch):
    """A limit below the size of one value returns the values one by one, with the same digests."""
    model, arrays = gq.compile(gq.parse(TEXT), isa="scalar", threads=1), {
        "x": np.float32([[1, 2, 3]] * 5), "k": np.uint8([1, 2])}
    verify(model, arrays, tmp_path / "d.json", values=True)
    monkeypatch.setattr(digests, "STAGE", 59)
    fetched = []
    call = type(model).__call__
    monkeypatch.setattr(type(model), "__call__", lambda self, *x, **options: (
        fetched.append(options.get("fetch")), call(self, *x, **options))[1])
    found = verify(model, arrays, tmp_path / "d.json", values=True)
    assert (found["values"], found["differing"]) == (3, [])
    assert [names for names in fetched if names] == [["a"], ["b"], ["c"]]


def test_the_first_difference_in_the_order_of_execution(checked, tmp_path):
    checked("--values")
    changed(tmp_path, lambda d: (d["outputs"].update(y=""), d["values"].update(c="", b="")))
    node = "%b = softmax(%a) : f32[?,3]"
    assert checked("--values") == (
        1, f"d.json: 2 outputs, 3 inner values: 3 differ, first 'b', which is made by {node}")
    code, out = checked("--values", "--json")
    assert code == 1 and json.loads(out) == {"written": False, "outputs": 2, "values": 3, "missing": [],
                                             "differing": ["b", "c", "y"], "node": node}
    assert checked()[1].endswith("1 differ, first 'y', which is made by %d = softmax(%c) : f32[?,3]")


PARTITIONS = """graph net(x: u8[9]) {
  %a = dequantize(x, scales=[0.5]) : f32[9]
  %b = softmax(%a, axis=0) : f32[9]
  %q = quantize(%b, dtype=u8, scales=[0.01]) : u8[9]
  %c = dequantize(%q, scales=[0.01]) : f32[9]
  %d = softmax(%c, axis=0) : f32[9]
  return %d as y
}"""


def test_values_are_those_that_the_passes_leave(tmp_path):
    """Values inside of an integer partition are not among them, unless the file names them."""
    arrays, path = {"x": np.arange(9, dtype=np.uint8)}, tmp_path / "d.json"
    model = gq.compile(gq.parse(PARTITIONS), isa="scalar", threads=1)
    assert verify(model, arrays, path, values=True)["written"]
    assert list(json.loads(path.read_text())["values"]) == ["b"]
    assert verify(model, arrays, path, values=True)["differing"] == []
    changed(tmp_path, lambda d: d["values"].update(x="", c=""))
    found = verify(model, arrays, path, values=True)
    assert (found["values"], found["differing"], found["node"]) == (3, ["x", "c"], None)


def test_renamed_values_are_not_compared(checked, tmp_path, file):
    checked("--values")
    (tmp_path / "net.txt").write_text(TEXT.replace("%b", "%other"))
    assert checked("--values") == (0, "d.json: 2 outputs, 2 inner values: equal; not compared, because the model does "
                                      "not name them: b")


def test_given_inputs_and_saved_models(checked, tmp_path):
    np.save(tmp_path / "x.npy", np.full((2, 3), 0.5, np.float32))
    given = f"--input=x={tmp_path}/x.npy"
    assert checked(given)[0] == checked(given)[0] == 0
    assert "is for other inputs: " in checked()[1]
    saved = tmp_path / "net.graphq"
    gq.compile(gq.parse(TEXT), threads=1).save(saved)
    assert checked(given, "--values", model=saved)[0] == 2
    (tmp_path / "d.json").unlink()
    assert checked(given, "--values", model=saved)[0] == checked(given, "--values")[0] == 0


@pytest.mark.parametrize(("change", "arguments", "said"), [
    ({}, ["--seed=1"], "is for other inputs: "), ({}, ["--shape=x=2x3"], "is for other inputs: "),
    ({}, ["--ranges=rows"], "is for other fingerprint: "), ({}, ["--values"], "write the file again with --values"),
    ({"numbers": 0}, [], "is for other numbers: 0, not "), ({"format": "x"}, [], "not a file of `graphq verify`"),
    ({"outputs": []}, [], "not a file of "), ({"inputs": 5}, [], "not a file of "),
    ({"outputs": {"y": 1}}, [], "not a file of "), ({"seed": "x"}, [], "not a file of "),
    ({}, ["--seed=-1"], "is for other inputs: "), ({"numbers": "3"}, [], "not a file of "),
    ({"fingerprint": 3}, [], "not a file of "), ({"outputs": {"other": ""}}, [], "is for other outputs: other: "),
    ({"inputs": {"x": "f32[1,b] "}}, [], "--shape x: "), ({"outputs": {}}, [], None)])
def test_what_a_check_refuses(checked, tmp_path, change, arguments, said):
    checked()
    changed(tmp_path, lambda d: d.update(change))
    code, text = checked(*arguments)
    assert (code, "\n" in text) == (2 if said else 1, False) and (said or "2 differ") in text


@pytest.mark.parametrize("key", ["numbers", "fingerprint", "seed", "values"])
def test_a_file_that_lacks_an_entry(checked, tmp_path, key):
    checked()
    changed(tmp_path, lambda d: d.pop(key))
    assert checked() == (2, "graphq: d.json: not a file of `graphq verify`; name a new file to write one")


@pytest.mark.parametrize("content", ["", "[]", "{}", "3", "[" * 100_000, '{"format": "graphq.digests/1"}', "\xff"])
def test_files_that_are_not_digests(checked, tmp_path, content):
    (tmp_path / "d.json").write_bytes(content.encode("latin-1"))
    assert checked() == (2, "graphq: d.json: not a file of `graphq verify`; name a new file to write one")


def test_another_model(checked, tmp_path):
    checked()
    other = tmp_path / "other.txt"
    other.write_text(TEXT.replace("axis=0", "axis=1"))
    assert "is for other fingerprint: " in checked(model=other)[1]
    with pytest.raises(InputError, match="other fingerprint"):
        verify(gq.compile(other, threads=1), {"x": np.zeros((1, 3), np.float32), "k": np.zeros(2, np.uint8)},
               tmp_path / "d.json")
