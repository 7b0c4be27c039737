"""oneDNN Graph JSON: what is loaded, that nothing is lost, and files damaged at random."""
import copy
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onednn_document import UNKNOWN, dense, document, load, op, tensor, write

import graphq as gq
from graphq.errors import GraphError, GraphqError
from graphq.ir.op import OPS
from graphq.ir.verify import verify
from graphq.onednn.files import from_graph, load_onednn_json, save_onednn_json
from graphq.onednn.kinds import KINDS
from graphq.passes import channels_last
from graphq.rewrite.rule import Rewrite

SHARED = Path(os.environ.get("GRAPHQ_SHARED", Path(__file__).parents[3] / "shared"))
FILES = sorted(SHARED.glob("onednn_graphs/**/*.json"))


def attention():
    """Scores, a scalar scale, a mask, statistics of the softmax; two listed outputs; casts by output types."""
    scores, hidden = [2, 3, 5, 5], {"stride": [UNKNOWN], "layout": "undef"}
    return document(
        op(0, "MatMul", [tensor(0, [2, 3, 5, 4], "bf16", stride=[60, 4, 12, 1]), tensor(1, [2, 3, 5, 4], "bf16")],
           [tensor(8, scores, **hidden)], transpose_b=("bool", 1), accumulation_mode=("string", "strict")),
        op(1, "Multiply", [tensor(8, scores, **hidden), tensor(2, [], property="host_scalar")],
           [tensor(9, scores, **hidden)], auto_broadcast=("string", "numpy")),
        op(3, "Select", [tensor(4, [1, 1, 5, 5], "boolean"), tensor(9, scores), tensor(5, [])], [tensor(6, scores)]),
        op(2, "SoftMax", [tensor(6, scores)], [tensor(10, scores, "bf16"), tensor(7, [2, 3, 5, 1])],
           axis=("s64", -1), mode=("string", "inf_as_zero")),
        input_ports=[0, 1, 0, 4, 2], output_ports=[7, 99], fpmath_mode_apply_to_int="false")


def odd():
    """Not in order, an op without attributes, a listed intermediate, a use that declares 1, a spelling of "None"."""
    late = op(3, "GELU", [tensor(2, [2, 1])], [tensor(3, [2, 3])], mode=("string", "GELU_ERF"))
    late["name"] = "größer/…"
    first = op(1, "Abs", [tensor(1, [2, 3], stride=[1, 0])], [tensor(2, [2, 3])])
    del first["attrs"]
    cast = op(18446744073709551615, "TypeCast", [tensor(3, [2, 3])], [tensor(5, [2, 3], "f16")])
    return document(late, first, cast, output_ports=[5, 2], version="0.6.0")


def open_ends():
    """A Wildcard whose outputs only the file tells, and an End, which makes an output of a tensor that has a user."""
    wild = op(0, "Wildcard", [tensor(0, [2])], [tensor(1, [3, UNKNOWN]), tensor(2, [4], "s8")])
    wild["outputs"][0]["stride"] = [UNKNOWN, 1]
    return document(wild, op(1, "Abs", [wild["outputs"][0]], [tensor(3, [3, UNKNOWN], stride=[UNKNOWN, 1])]),
                    op(2, "End", [tensor(3, [3, UNKNOWN], stride=[UNKNOWN, 1])], []),
                    op(4, "Exp", [tensor(3, [3, UNKNOWN], stride=[UNKNOWN, 1])], [tensor(5, [UNKNOWN], layout="any")]))


def test_a_port_of_another_shape_keeps_its_property(tmp_path):
    """Open dimensions become known and are filled in: whether the tensor is constant stays."""
    shape, known = [UNKNOWN, 3], {"property": "constant", "stride": [3, 1]}
    chain = document(op(0, "Abs", [tensor(0, shape, property="variable", stride=[3, 1])], [tensor(1, shape, **known)]),
                     op(1, "Exp", [tensor(1, shape, **known)], [tensor(2, shape, property="variable", stride=[3, 1])]))
    g = load(tmp_path, chain).specialize({"t0": gq.ir.TensorType(gq.dtypes.f32, (5, 3))})
    ports = {t.id: t for o in from_graph(g, fill=True).ops for t in (*o.inputs, *o.outputs)}
    assert [ports[k].property_type for k in range(3)] == ["variable", "constant", "variable"]
    assert {t.shape for t in ports.values()} == {(5, 3)}


SAMPLES = {f.__name__: f for f in (dense, attention, odd, open_ends)}


# -- what is loaded -------------------------------------------------------------------------------------------


def test_values_have_the_files_ids_and_nodes_its_ids_and_names(tmp_path):
    g = load(tmp_path, dense())
    verify(g)
    assert g.name == "graph"
    assert [(v.name, str(v.type), v.property) for v in g.inputs] == [
        ("t0", "u8[4,8]", "undef"), ("t1", "s8[8,2]", "constant"), ("t2", "f32[2]", "undef")]
    assert [v.name for v in g.outputs] == g.output_names == ["t14"]
    assert [(n.meta["id"], n.meta["name"], n.op.name, n.output.name) for n in g.nodes][:2] == [
        (139695268706816, "Dequantize_139695268706816", "dequantize", "t10"), (7, "Dequantize_7", "dequantize", "t11")]


def test_unknown_shapes_are_inferred(tmp_path):
    assert str(load(tmp_path, dense()).nodes[3].output.type) == "f32[4,2]"


def test_attributes_have_our_types_and_spelling(tmp_path):
    g = load(tmp_path, dense())
    assert g.nodes[0].attrs["scales"] == (1.0,) and g.nodes[2].attrs["transpose_b"] is False
    assert load(tmp_path, odd()).nodes[1].attrs["mode"] == "gelu_erf"


def test_output_types_stand_for_the_dtype_attribute(tmp_path):
    matmul, *_, softmax = load(tmp_path, attention()).nodes
    assert matmul.attrs["dtype"] == "f32" and softmax.attrs["dtype"] == "bf16" and softmax.attrs["keep_stats"]
    assert load(tmp_path, dense()).nodes[2].attrs["dtype"] is None  # the default gives f32 already


def test_inputs_and_outputs_come_in_the_order_of_the_ports(tmp_path):
    g = load(tmp_path, attention())
    assert [v.name for v in g.inputs] == ["t0", "t1", "t4", "t2", "t5"]
    assert g.output_names == ["t7", "t10"]  # 99 does not exist; 10 is not listed, but nothing uses it
    assert load(tmp_path, odd()).output_names == ["t5", "t2"]


def test_producers_come_first_and_are_believed(tmp_path):
    g = load(tmp_path, odd())
    assert [n.meta["id"] for n in g.nodes] == [1, 3, 2**64 - 1]
    assert g.nodes[0].output.shape == (2, 3)


def test_wildcards_have_the_types_that_the_file_declares(tmp_path):
    g = load(tmp_path, open_ends())
    assert [str(v.type) for v in g.nodes[0].outputs] == ["f32[3,?]", "s8[4]"]
    assert g.output_names == ["t2", "t3", "t5"]


def test_loaded_graphs_compute(tmp_path):
    g = load(tmp_path, dense())
    x, w = np.full((4, 8), 5, np.uint8), np.ones((8, 2), np.int8)
    y = gq.reference(g, t0=x, t1=w, t2=np.array([0, -40], np.float32))
    np.testing.assert_array_equal(y, np.tile(np.array([3, 0], np.int8), (4, 1)))  # 16 * 0.1 / 0.5 and relu(32 - 40)


def transposed(scales, *, groups=2, dims=(4, 3, 2, 2), axis=1, format="IOX"):
    """A ConvTranspose of s8 weights with these scales."""
    outputs = groups * dims[axis]
    return document(
        op(0, "Dequantize", [tensor(0, list(dims), "s8", property="constant")], [tensor(1, list(dims))],
           qtype=("string", "per_channel"), axis=("s64", axis), scales=("f32[]", scales)),
        op(1, "Dequantize", [tensor(2, [1, 4, 3, 3], "u8")], [tensor(3, [1, 4, 3, 3])], scales=("f32[]", [1])),
        op(2, "ConvTranspose", [tensor(3, [1, 4, 3, 3]), tensor(1, list(dims))], [tensor(4, [1, outputs, 4, 4])],
           strides=("s64[]", [1, 1]), pads_begin=("s64[]", [0, 0]), pads_end=("s64[]", [0, 0]),
           dilations=("s64[]", [1, 1]), groups=("s64", groups), data_format=("string", "NCX"),
           weights_format=("string", format)))


@pytest.mark.parametrize("scales,factors,options", [  # as oneDNN 3.13 computes them
    ([1, 2, 4], [1, 2, 4, 1, 2, 4], {}),
    ([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32], {}),
    ([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32], dict(dims=(2, 2, 3, 4), axis=2, format="XOI")),
    ([1, 2, 4], [1, 2, 4, 1, 2, 4], dict(dims=(2, 2, 3, 4), axis=-2, format="XOI")),
    ([1, 2, 4, 8], [1, 2, 4, 8], dict(groups=4, dims=(4, 1, 2, 2))),
    ([1, 2], [1, 2], dict(groups=2, dims=(4, 1, 2, 2))),
    ([2], [2, 2], dict(groups=2, dims=(4, 1, 2, 2))),
])
def test_weights_of_convtranspose_have_scales_of_one_group_or_of_all(scales, factors, options, tmp_path):
    g = load(tmp_path, transposed(scales, **options))
    n = options.get("dims", (4, 3, 2, 2))[options.get("axis", 1)]
    unscaled = load(tmp_path, transposed([1] * n, **options))
    inputs = gq.testing.random_inputs(g)
    want = gq.reference(unscaled, inputs) * np.reshape(factors, (-1, 1, 1)).astype(np.float32)
    np.testing.assert_array_equal(gq.reference(g, inputs), want)
    np.testing.assert_array_equal(gq.compile(g)(inputs), want)
    (tmp_path / "again").mkdir()
    check_round_trip(write(tmp_path, transposed(scales, **options)), tmp_path / "again")


@pytest.mark.parametrize("count", [1, 2, 4, 5, 7, 12])
def test_weights_of_convtranspose_with_scales_of_neither_are_refused(count, tmp_path):
    with pytest.raises(GraphError, match=f"qtype per_channel takes 3 scales at axis 1.*got {count}"):
        load(tmp_path, transposed([1.0] * count))


@pytest.mark.parametrize("kind", ["Add", "Subtract"])
def test_sums_of_s32_are_f32_where_the_file_says_so(kind, tmp_path):
    (tmp_path / "again").mkdir()
    doc = document(op(0, kind, [tensor(0, [2], "s32"), tensor(1, [2], "s32")], [tensor(2, [2])]))
    g = load(tmp_path, doc)
    assert g.nodes[0].output.dtype == "f32"
    x = np.array([2**24 + 1, -7], np.int32)
    y = np.array([0, 2], np.int32)
    assert gq.compile(g)(t0=x, t1=y).tolist() == [2**24, {"Add": -5, "Subtract": -9}[kind]]  # as oneDNN 3.13
    check_round_trip(write(tmp_path, doc), tmp_path / "again")


@pytest.mark.parametrize("declared", [[2, 3], [UNKNOWN]])
def test_results_of_unknown_rank_may_be_declared(declared, tmp_path):
    doc = document(op(0, "Abs", [tensor(0, [UNKNOWN], stride=[UNKNOWN])], [tensor(1, declared, stride=[UNKNOWN] if
                                                                                  declared == [UNKNOWN] else None)]))
    assert load(tmp_path, doc).nodes[0].output.shape is None


def test_documentations_spelling_of_softmax(tmp_path):
    doc = document(op(0, "Softmax", [tensor(0, [2, 3])], [tensor(1, [2, 3])]))
    g = load(tmp_path, doc)
    save_onednn_json(g, tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == doc


def test_every_kind_of_the_format_is_one_op():
    kinds = [o.kind for o in OPS.values() if o.kind in KINDS]
    assert sorted(kinds) == sorted(KINDS) and len(KINDS) == 62


# -- nothing is lost ------------------------------------------------------------------------------------------


def content(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def check_round_trip(path, folder):
    g, again = load_onednn_json(path), folder / Path(path).name
    save_onednn_json(g, again)
    assert content(again) == content(path)
    h = load_onednn_json(again)
    assert gq.to_text(h) == gq.to_text(g) and h.meta == g.meta
    assert [n.meta for n in h.nodes] == [n.meta for n in g.nodes]
    save_onednn_json(g.copy(), again)
    assert content(again) == content(path)
    assert gq.to_text(gq.parse(gq.to_text(g))) == gq.to_text(g)


@pytest.mark.parametrize("sample", SAMPLES)
def test_round_trip(sample, tmp_path):
    (tmp_path / "out").mkdir()
    check_round_trip(write(tmp_path, SAMPLES[sample]()), tmp_path / "out")


@pytest.mark.skipif(not FILES, reason="oneDNN's graphs are not here; GRAPHQ_SHARED names their folder")
@pytest.mark.parametrize("path", FILES, ids=[f.stem for f in FILES])
def test_round_trip_of_onednns_graphs(path, tmp_path):
    try:
        load_onednn_json(path)
    except GraphqError as e:
        if "yet" in str(e):
            pytest.skip(str(e))
        raise
    check_round_trip(path, tmp_path)


def test_the_text_is_onednns(tmp_path):
    save_onednn_json(load(tmp_path, dense()), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == json.dumps(dense(), indent=2) + "\n"


def build():
    g = gq.Graph("built")
    x = g.input("x", shape=(4, 8), dtype="u8")
    s = g.input("scale", shape=(), dtype="f32", property="host_scalar")
    w = g.constant(np.ones((8, 3), np.int8), name="w")
    y = g.matmul(g.dequantize(x, scales=[0.5], zps=[3]), g.dequantize(w, qtype="per_channel", scales=[1, 2, 3]),
                 transpose_b=False)
    y = g.multiply(y, s)
    g.output(g.softmax(y, keep_stats=True, dtype="bf16")[1], name="stats")
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[0.1]), name="y")
    return g


def test_a_built_graph_is_saved_and_loaded(tmp_path):
    g = build()
    save_onednn_json(g, tmp_path / "built.json")
    doc = json.loads((tmp_path / "built.json").read_text())
    by_kind = {o["kind"]: o for o in doc["graph"]}
    assert by_kind["MatMul"]["attrs"] == {}  # everything at its default
    assert by_kind["Quantize"]["attrs"] == {"scales": {"type": "f32[]", "value": [0.1]}}
    assert by_kind["Multiply"]["inputs"][1]["property_type"] == "host_scalar"
    weights = next(o for o in doc["graph"] if o["inputs"][0]["property_type"] == "constant")
    assert weights["inputs"][0]["shape"] == [8, 3] and weights["inputs"][0]["stride"] == [3, 1]
    h = load_onednn_json(tmp_path / "built.json")
    verify(h)
    assert [n.op.name for n in h.nodes] == [n.op.name for n in g.nodes if n.op.name != "constant"]
    assert [o.type for o in h.outputs][:2] == [o.type for o in g.outputs]
    save_onednn_json(h, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "built.json").read_text()


class ReluIsAbs(Rewrite):
    """relu(x) -> abs(x)"""

    def pattern(self, g, x):
        return g.relu(x)

    def replace(self, g, x):
        return g.abs(x)


def test_what_a_pass_changes_is_written_anew_and_the_rest_as_it_was(tmp_path):
    doc = dense()
    g = load(tmp_path, doc)
    assert ReluIsAbs()(g) == 1
    save_onednn_json(g, tmp_path / "after.json")
    after = json.loads((tmp_path / "after.json").read_text())["graph"]
    assert [o["kind"] for o in after] == ["Dequantize", "Dequantize", "MatMul", "Abs", "Quantize"]
    assert after[:3] == doc["graph"][:3] and after[3]["id"] == 139695268706817
    assert after[3]["outputs"][0]["id"] == 13 and after[3]["outputs"][0]["shape"] == [4, 2]


def test_attributes_that_a_pass_changes_are_written_anew(tmp_path):
    """The node stays the file's, with its id and name, and so do its other attributes."""
    attrs = dict(strides=("s64[]", [1, 2]), pads_begin=("s64[]", [0, 1]), pads_end=("s64[]", [1, 0]),
                 kernel=("s64[]", [2, 3]), dilations=("s64[]", [1, 1]))
    pool = op(5, "MaxPool", [tensor(1, [2, 3, 4, 6])], [tensor(2, [2, 3, 4, 3])],
              data_format=("string", "NCX"), **attrs)
    g = load(tmp_path, document(pool))
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)
    want = gq.reference(g, t1=x)
    assert channels_last(g) > 0
    save_onednn_json(g, tmp_path / "after.json")
    assert np.array_equal(gq.reference(load_onednn_json(tmp_path / "after.json"), t1=x), want)
    (after,) = (o for o in json.loads((tmp_path / "after.json").read_text())["graph"] if o["kind"] == "MaxPool")
    assert (after["id"], after["name"]) == (5, pool["name"])
    assert after["attrs"].pop("data_format", {"value": "NXC"})["value"] == "NXC"  # which is oneDNN's default
    assert after["attrs"] == {name: x for name, x in pool["attrs"].items() if name != "data_format"}


def test_nodes_that_a_pass_makes_of_one_op_have_ids_of_their_own(tmp_path):
    """Only the first is that op; the others are new, even with its facts."""
    g = load(tmp_path, document(op(5, "ReLU", [tensor(0, [2])], [tensor(1, [2])]),
                                op(7, "Exp", [tensor(1, [2])], [tensor(2, [2])])))
    for _ in range(2):
        (y,) = g.add_again(g.nodes[0], [g.outputs[-1]])
        g.nodes[-1].meta = g.nodes[0].meta
        g.output(y)
    save_onednn_json(g, tmp_path / "new.json")
    again = load_onednn_json(tmp_path / "new.json")
    assert [(n.op.name, n.meta["id"]) for n in again.nodes] == [("relu", 5), ("exp", 7), ("relu", 8), ("relu", 9)]


def test_other_shapes_are_written_with_dense_strides(tmp_path):
    g = load(tmp_path, odd())
    wide = g.specialize({"t1": gq.TensorType(g.inputs[0].dtype, (5, 3))})
    save_onednn_json(wide, tmp_path / "wide.json")
    doc = json.loads((tmp_path / "wide.json").read_text())
    assert doc["graph"][1]["inputs"] == [tensor(1, [5, 3])] and doc["output_ports"] == [5, 2]


def unused():
    g = gq.Graph()
    g.input("x", shape=(2,), dtype="f32")
    g.output(g.relu(g.input("y", shape=(2,), dtype="f32")))
    return g


def returned():
    g = gq.Graph()
    x = g.input("x", shape=(2,), dtype="f32")
    g.output(g.relu(x))
    g.output(x)
    return g


@pytest.mark.parametrize(("make", "message"), [
    (unused, "no op uses input 'x'"),
    (returned, "no op computes output x"),
])
def test_what_the_format_cannot_state_is_refused(make, message, tmp_path):
    with pytest.raises(GraphError, match=message):
        save_onednn_json(make(), tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()


def test_attributes_that_onednn_requires_are_written_at_their_default_too(tmp_path):
    g = gq.Graph()
    g.output(g.static_reshape(g.input("x", dtype="f32", shape=(2, 3)), shape=[6]))
    gq.save_onednn_json(g, tmp_path / "g.json")
    (saved,) = json.loads((tmp_path / "g.json").read_text())["graph"]
    assert saved["attrs"]["special_zero"] == {"type": "bool", "value": 0}


def test_partitions_are_refused(tmp_path):
    g = build()
    gq.passes.run_passes(g)
    with pytest.raises(GraphError, match="before its passes"):
        save_onednn_json(g, tmp_path / "x.json")


# -- files damaged at random ----------------------------------------------------------------------------------

STRANGE = st.one_of(
    st.sampled_from([None, True, -1, 0, 1, 2**31, 2**62, 2**63, -(2**63), 2**64, 10**30, 1e308, 0.5, -0.0, "", "f32",
                     "s8", "MatMul", "Softmax", "strided", "\0", [], [0], [[]], [1, 2], [-1], [2**40, 2**40], {},
                     {"a": {}}]),
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5))


def places(x, path=()):
    """The paths of all places in a document."""
    if path:
        yield path
    items = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
    for k, v in items:
        yield from places(v, (*path, k))


@st.composite
def damaged(draw):
    """A sample with a few places replaced, removed, doubled or taken from elsewhere in it."""
    doc = SAMPLES[draw(st.sampled_from(sorted(SAMPLES)))]()
    for _ in range(draw(st.integers(1, 3))):
        *steps, last = draw(st.sampled_from(list(places(doc))))
        place = doc
        for s in steps:
            place = place[s]
        how = draw(st.sampled_from(["replace", "remove", "double", "move"]))
        if how == "remove":
            del place[last]
        elif how == "double" and isinstance(place, list):
            place.insert(last, copy.deepcopy(place[last]))
        elif how == "move":
            source = doc
            for s in draw(st.sampled_from(list(places(doc)))):
                source = source[s]
            place[last] = copy.deepcopy(source)
        else:
            place[last] = draw(STRANGE)
    return doc


FUZZ = settings(derandomize=True, database=None, deadline=None, max_examples=300,
                suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def check_any(text, folder):
    path = folder / "fuzz.json"
    path.write_bytes(text)
    try:
        g = load_onednn_json(path)
    except GraphqError as e:
        assert str(path) in str(e) and len(str(e)) < 3000
        return
    verify(g)
    save_onednn_json(g, folder / "again.json")
    assert gq.to_text(load_onednn_json(folder / "again.json")) == re.sub("fuzz", "again", gq.to_text(g))


@FUZZ
@given(doc=damaged())
def test_damaged_documents_raise_only_graphq_errors(doc, tmp_path):
    check_any(json.dumps(doc).encode(), tmp_path)


@FUZZ
@given(data=st.data())
def test_damaged_bytes_raise_only_graphq_errors(data, tmp_path):
    text = bytearray(json.dumps(SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))]()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at:at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    check_any(bytes(text), tmp_path)
