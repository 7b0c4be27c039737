"""RangesByRow: dynamically quantized products get a range for each row, and are closer to f32."""
import numpy as np
import pytest

import graphq as gq
from graphq.cli import main
from graphq.ir.interpret import named_outputs
from graphq.passes import RangesByRow, ranges_by_row

RNG = np.random.default_rng(0)
W, SCALES = RNG.integers(-100, 100, (64, 24)).astype(np.int8), RNG.uniform(0.01, 0.1, 24).astype(np.float32)


def quantized(shape):
    """A graph, and DynamicQuantizeLinear of its input: integers, scale and zero point."""
    g = gq.Graph()
    x = g.input("x", shape=shape, dtype="f32")
    s, z = g.dynamic_range(x)
    return g, g.dynamic_quantize(x, s, z, dtype="u8"), s, z


def integers(shape=(2, 5, 64), zero_points=False):
    """DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul, as ONNX Runtime's tool writes it."""
    g, q, s, z = quantized(shape)
    zps = [g.constant(np.full(24, 3, np.int8))] if zero_points else []
    sums = g.matmul_integer(q, g.constant(W), z, *zps)
    g.output(g.multiply(g.cast(sums, dtype="f32"), g.multiply(s, g.constant(SCALES))), name="y")
    return g


def dequantized(shape=(2, 5, 64)):
    """DynamicQuantizeMatMul."""
    g, *x = quantized(shape)
    right = g.dequantize(g.constant(W), qtype="per_channel", axis=1, scales=SCALES.tolist())
    g.output(g.matmul(g.dynamic_dequantize(*x), right), name="y")
    return g


@pytest.mark.parametrize("make, zero_point", [
    (integers, 0), (lambda *a: integers(*a, zero_points=True), 3), (dequantized, 0)])
@pytest.mark.parametrize("open", [False, True])
def test_rows_are_quantized_alone(make, zero_point, open):
    model = gq.compile(make(*([(None, None, 64)] if open else [])), ranges="rows")
    assert "dynamic_range" not in {n.op.name for n in model.graph.nodes}
    assert str(model.coverage()).startswith("100%")
    anchors = sorted(n.attrs["anchor"] for n in model.graph.nodes_of(("partition",)))
    assert anchors == ["eltwise", "matmul", "row"], "the matmul multiplies the scales of rows and columns itself"
    x = RNG.standard_normal((2, 5, 64)).astype(np.float32) * np.float32([[1], [100], [1e-3], [0], [1]])
    y = model(x=x)
    scales = np.abs(x).max(axis=-1, keepdims=True) / 127
    with np.errstate(invalid="ignore"):
        q = np.nan_to_num(np.rint(x / scales))
    w = W.astype(float) - zero_point
    np.testing.assert_allclose(y, q @ w * scales * SCALES, rtol=1e-5, atol=1e-6)
    assert np.array_equal(y, model.formula(x=x))
    alone = gq.compile(make((1, 1, 64)), ranges="rows")
    assert all(np.array_equal(y[i, j], alone(x=x[i:i + 1, j:j + 1])[0, 0]) for i in range(2) for j in range(5))


IMAGE_WEIGHTS = RNG.integers(-100, 100, (6, 4, 3, 3)).astype(np.int8)
WINDOWS = dict(strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])


def integer_convolution(shape=(2, 4, 5, 5)):
    """DynamicQuantizeLinear -> ConvInteger -> Cast -> Mul, as ONNX Runtime's tool writes it."""
    g, q, s, z = quantized(shape)
    sums = g.conv_integer(q, g.constant(IMAGE_WEIGHTS), z, **WINDOWS)
    g.output(g.multiply(g.cast(sums, dtype="f32"), g.multiply(s, np.float32(0.02))), name="y")
    return g


def convolution(shape=(2, 4, 5, 5)):
    """DynamicQuantizeLinear -> DequantizeLinear -> Conv with a bias."""
    g, *x = quantized(shape)
    w, bias = g.dequantize(g.constant(IMAGE_WEIGHTS), scales=[0.02]), np.arange(6, dtype=np.float32)
    y = g.convolution(g.dynamic_dequantize(*x), w, bias, data_format="NCX", weights_format="OIX", **WINDOWS)
    g.output(y, name="y")
    return g


def three_products(shape=(2, 5, 64)):
    """Three matmuls with biases of one dequantized activation."""
    g, *x = quantized(shape)
    left = g.dynamic_dequantize(*x)
    for k in range(3):
        g.output(g.matmul(left, g.dequantize(g.constant(W), scales=[0.1 + k]), SCALES), name=f"y{k}")
    return g


@pytest.mark.parametrize("make", [integers, dequantized, integer_convolution, convolution, three_products])
def test_a_row_is_the_same_alone(make):
    """And this is what `rows_mix` says; without the option it says that rows mix."""
    sizes = make().inputs[0].type.dims[1:]
    whole = make((None, *sizes))
    model = gq.compile(whole, ranges="rows", threads=1)
    assert model.rows_mix is None and "dynamic_range" in gq.compile(whole, threads=1).rows_mix
    assert str(model.coverage()).startswith("100%") and "\nranges: by row\n" in model.explain()
    x = RNG.standard_normal((3, *sizes)).astype(np.float32)
    x *= np.float32([1, 100, 1e-3]).reshape(3, *[1] * (x.ndim - 1))
    reference = gq.reference(whole, x[2:])  # the range of one row is that of its tensor
    results = [list(named_outputs(["y"], y).values()) for y in (model(x), model.formula(x), model(x[1:2]), reference)]
    for together, formula, alone, by_tensor in zip(*results, strict=True):
        assert np.array_equal(together, formula) and np.array_equal(together[1:2], alone)
        assert np.abs(together[2:] - by_tensor).max() < 0.02 * np.abs(by_tensor).max()


@pytest.mark.parametrize("make", [integers, dequantized, integer_convolution, convolution, three_products])
def test_a_compilation_may_check_the_pass(make):
    """`verify="numeric"` compares results before and after each pass; this one may move them by roundings."""
    model = gq.compile(make(), ranges="rows", verify="numeric", threads=1)
    assert "dynamic_range" not in {n.op.name for n in model.graph.nodes}


def computed(scale, dtype="s8", weights=W):
    """A range that the file computes itself: `scale` makes it of the largest magnitude, the graph and the value."""
    g = gq.Graph()
    x = g.input("x", shape=(None, 5, 64), dtype="f32")
    largest = g.reduce_max(g.abs(x), axes=[0, 1, 2], keep_dims=False)
    s, z = scale(g, largest, x), g.constant(np.zeros((), np.int8))
    q = g.dynamic_quantize(x, s, z, dtype=dtype)
    g.output(g.matmul(g.dynamic_dequantize(q, s, z), g.dequantize(g.constant(weights), scales=[0.1])), name="y")
    return g


@pytest.mark.parametrize("scale", [
    lambda g, m, x: g.divide(m, np.float32(127)), lambda g, m, x: g.multiply(m, np.float32(1 / 128)),
    lambda g, m, x: g.divide(g.maximum(m, np.float32(1e-5)), np.float32(127.5))])
def test_computed_ranges(scale):
    model = gq.compile(computed(scale), ranges="rows", threads=1)
    assert model.rows_mix is None and "\nranges: by row\n" in model.explain()


@pytest.mark.parametrize("scale", [
    lambda g, m, x: g.divide(g.minimum(m, np.float32(6)), np.float32(127)),
    lambda g, m, x: g.divide(g.clamp(m, min=1e-3, max=6), np.float32(127)),
    lambda g, m, x: g.divide(m, np.float32(254)), lambda g, m, x: g.divide(m, np.float32(7)),
    lambda g, m, x: g.square(g.divide(m, np.float32(127))),
    lambda g, m, x: g.add(g.multiply(m, np.float32(0)), np.float32(0.05)),
    lambda g, m, x: g.divide(g.reduce_max(g.abs(g.relu(x)), axes=[0, 1, 2], keep_dims=False), np.float32(127)),
    lambda g, m, x: g.divide(g.abs(g.reduce_min(x, axes=[0, 1, 2], keep_dims=False)), np.float32(127))])
def test_ranges_of_something_else_are_kept_and_named(scale):
    """A limited, halved or fixed range, or the range of some elements, is not the range of the whole tensor."""
    model, file = (gq.compile(computed(scale), ranges=r, threads=1) for r in ("rows", "tensor"))
    x = 9 * RNG.standard_normal((2, 5, 64)).astype(np.float32)
    assert np.array_equal(model(x=x), file(x=x)) and "\nranges: by row, except for %" in model.explain()


def test_weights_without_columns_are_named():
    g = computed(lambda g, m, x: g.divide(m, np.float32(127)), weights=W[:, 0].copy())
    model = gq.compile(g, ranges="rows", threads=1)
    x = RNG.standard_normal((2, 5, 64)).astype(np.float32)
    assert np.array_equal(model(x=x), gq.compile(g, threads=1)(x=x)) and "except for %" in model.explain()


@pytest.mark.parametrize("ints", [False, True])
def test_a_product_of_two_activations_runs_in_floats(ints):
    """The second operand has no rows; with the range of a tensor, it would depend on padding."""
    def make(plain):
        g, q, s, z = quantized((None, 5, 64))
        y = g.input("y", shape=(None, 64, 7), dtype="f32")
        scale, zp = g.dynamic_range(y)
        w = g.dynamic_quantize(y, scale, zp, dtype="u8")
        if plain:
            g.output(g.matmul(g.inputs[0], y), name="z")
        elif ints:
            g.output(g.multiply(g.cast(g.matmul_integer(q, w, z, zp), dtype="f32"), g.multiply(s, scale)), name="z")
        else:
            g.output(g.matmul(g.dynamic_dequantize(q, s, z), g.dynamic_dequantize(w, scale, zp)), name="z")
        return g

    x, y = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 5, 64), (3, 64, 7)))
    model = gq.compile(make(False), ranges="rows", threads=1)
    assert np.array_equal(model(x, y), gq.compile(make(True), threads=1)(x, y)) and model.rows_mix is None
    assert "\nranges: by row\n" in model.explain()


@pytest.mark.parametrize("make, count", [(integers, 1), (dequantized, 0), (integer_convolution, 0), (convolution, 0)])
def test_ranks_that_are_not_known(make, count):
    """Rows of a matmul lie along the last axis, whatever the rank; those of images do not."""
    refused = [] if count else ["must lie along the last axis", "the rank of the images is not known"]
    found, refusals = RangesByRow.apply(make(None))
    assert found == count and all(any(x in r.reason for x in refused) for r in refusals) and len(refusals) == 1 - count


def test_explain_names_what_keeps_its_range():
    g = integers((None, 5, 64))
    s, z = g.dynamic_range(g.inputs[0])
    g.output(s, name="scale")
    model = gq.compile(g, ranges="rows", threads=1)
    assert "\nranges: by row, except for %scale\n" in model.explain()
    assert "dynamic_range" in model.rows_mix and "ranges:" not in gq.compile(g, threads=1).explain()


SYMMETRIC = "%m = reduce_max(%size, axes=[0, 1]) %s = multiply(%m, %step) %q = dynamic_quantize(x, %s, dtype=s8)"
AFFINE = """%hi = reduce_max(x, axes=[0, 1]) %lo = reduce_min(x, axes=[0, 1]) %all = subtract(%hi, %lo)
            %s = divide(%all, %levels) %at = divide(%lo, %s) %near = round(%at) %back = subtract(%zero, %near)
            %z = cast(%back, dtype=u8) %q = dynamic_quantize(x, %s, %z, dtype=u8)"""
DEQUANTIZED = "%f = dequantize(%w, scales=[0.01]) %d = dynamic_dequantize(%q, %s) %y = matmul(%d, %f)"
INTEGERS = "%i = matmul_integer(%q, %w) %f = cast(%i, dtype=f32) %o = multiply(%s, %ws) %y = multiply(%f, %o)"


@pytest.mark.parametrize("form", [
    f"{SYMMETRIC} {DEQUANTIZED}", f"{SYMMETRIC} {INTEGERS}", f"{AFFINE} {DEQUANTIZED.replace('%s)', '%s, %z)')}",
    f"{AFFINE} {INTEGERS.replace('%w)', '%w, %z)')}"])
def test_ranges_that_the_file_computes(form):
    """By the largest and smallest elements, instead of DynamicQuantizeLinear."""
    weights = ", ".join(map(str, W[:, 0]))
    head = f"""%size = abs(x) %step = constant(value=f32[]{{{1 / 127}}}) %levels = constant(value=f32[]{{255}})
               %w = constant(value=s8[64,1]{{{weights}}}) %ws = constant(value=f32[]{{0.01}})
               %zero = constant(value=f32[]{{0}}) %other = relu(x)"""
    graph = gq.parse(f"graph g(x: f32[?,64]) {{ {head} {form} return %y }}")
    model = gq.compile(graph, ranges="rows", threads=1)
    x = RNG.standard_normal((3, 64)).astype(np.float32) * np.float32([[1], [100], [1e-3]])
    want = x.astype(np.float64) @ W[:, :1] * 0.01
    errors = np.abs(model(x) - want).max(axis=1) / np.abs(x).max(axis=1)
    assert errors.max() < 0.5 / 127 * np.abs(W[:, 0]).sum() * 0.01
    assert np.array_equal(model(x)[1:2], model(x[1:2])) and model.rows_mix is None
    assert "\nranges: by row\n" in model.explain()
    other = gq.compile(gq.parse(f"graph g(x: f32[?,64]) {{ {head} {form.replace('(x, %s', '(%other, %s')} "
                                "return %y }"), ranges="rows", threads=1)
    assert "reduce_max" in other.rows_mix and "\nranges: by row, except for %q\n" in other.explain()


def test_ranges_of_something_else_stay():
    """The range is of x, what is quantized is its relu."""
    g = gq.Graph()
    x = g.input("x", shape=(5, 64), dtype="f32")
    s, z = g.dynamic_range(x)
    q = g.dynamic_quantize(g.relu(x), s, z, dtype="u8")
    sums = g.cast(g.matmul_integer(q, g.constant(W), z), dtype="f32")
    g.output(g.multiply(sums, g.multiply(s, g.constant(SCALES))))
    g.output(g.matmul(g.dynamic_dequantize(q, s, z), g.constant(W.astype(np.float32))))
    count, refusals = RangesByRow.apply(g)
    assert count == 0 and {r.reason for r in refusals} == {ranges_by_row.NOT_DYNAMIC}


@pytest.mark.parametrize("shape, transposed, scale, zero_point, reason", [
    ((64, 5), True, 0, 0, "must lie along the last axis"),
    (None, False, 0, 0, "must lie along the last axis"), ((5, 64), False, 1, 0, ranges_by_row.NOT_DYNAMIC),
    ((5, 64), False, 0, 1, ranges_by_row.NOT_DYNAMIC), ((5, 64), False, 2, 0, ranges_by_row.NOT_DYNAMIC)])
def test_rows_and_ranges_that_do_not_fit(shape, transposed, scale, zero_point, reason):
    """Scale 1 and zero point 1 are of another value's range, scale 2 is an input."""
    g = gq.Graph()
    x, w = g.input("x", shape=shape, dtype="f32"), g.constant(W.astype(np.float32))
    (s, z), (s1, z1) = g.dynamic_range(x), g.dynamic_range(g.relu(x))
    q = g.dynamic_quantize(x, s, z, dtype="u8")
    scales = s, s1, g.input("s", shape=(), dtype="f32")
    left = g.dynamic_dequantize(q, scales[scale], (z, z1)[zero_point])
    g.output(g.matmul(left, w, transpose_a=transposed))
    count, refusals = RangesByRow.apply(g)
    assert count == 0 and [reason in r.reason for r in refusals] == [True]


def test_signed_integers_stay():
    """dynamic_range is of u8."""
    g = gq.Graph()
    x = g.input("x", shape=(5, 64), dtype="f32")
    s, z = g.dynamic_range(x)
    q = g.dynamic_quantize(x, s, z, dtype="s8")
    g.output(g.matmul(g.dynamic_dequantize(q, s, z), g.constant(W.astype(np.float32))))
    assert RangesByRow(g) == 0


def test_products_share_the_range_of_their_source():
    """As query, key and value do: rows are quantized once."""
    g = gq.Graph()
    x = g.input("x", shape=(5, 64), dtype="f32")
    s, z = g.dynamic_range(x)
    q = g.dynamic_quantize(x, s, z, dtype="u8")
    for k in range(3):
        sums = g.cast(g.matmul_integer(q, g.constant(W + np.int8(k)), z), dtype="f32")
        g.output(g.multiply(sums, g.multiply(s, g.constant(SCALES))))
    nodes = gq.compile(g, ranges="rows").graph.nodes
    anchors = [n.attrs["anchor"] for n in nodes if n.op.name == "partition"]
    assert sorted(anchors) == ["eltwise", "eltwise", "matmul", "matmul", "matmul", "row"]


def test_the_pipeline_does_not_have_it():
    """Rows that are small beside others are then quantized with few steps."""
    x = RNG.standard_normal((2, 5, 64)).astype(np.float32) * np.float32([[1], [1], [0.01], [1], [1]])
    assert "dynamic_range" in {n.op.name for n in gq.compile(integers()).graph.nodes}
    wanted = x.astype(float) @ (W * SCALES.astype(float))
    by_row, by_tensor = (np.abs(gq.compile(integers(), ranges=r)(x=x) - wanted)[:, 2].max() for r in ("rows", "tensor"))
    assert by_row < by_tensor / 10


@pytest.mark.parametrize("open", [False, True])
def test_a_saved_model_has_it_at_other_sizes(open, tmp_path):
    model = gq.compile(integers((None, None, 64) if open else (2, 5, 64)), ranges="rows", threads=1)
    x = RNG.standard_normal((2, 5, 64)).astype(np.float32)
    wanted = model(x=x)
    model.save(tmp_path / "by_row.graphq")
    again = gq.load_compiled(tmp_path / "by_row.graphq")
    assert np.array_equal(again(x=x), wanted)
    if open:
        x = RNG.standard_normal((30, 5, 64)).astype(np.float32)
        assert np.array_equal(again(x=x), model(x=x))


def test_explain_says_that_scales_are_computed():
    """Not that the quantized value has a second user, which a quantize before the fork would mend."""
    g = gq.Graph()
    x = g.matmul(g.input("x", shape=(4, 8), dtype="f32"), g.constant(np.ones((8, 8), np.float32)), name="y")
    q, scales = ranges_by_row.quantized_rows(g, x)
    g.output(q, name="q")
    g.output(scales, name="s")
    assert "its scale, %s, is computed from %y\n    edit: quantize %y with a constant scale" in gq.compile(g).explain()


def test_explain_has_no_cause_for_what_the_pass_quantizes():
    assert "could be in an integer partition" not in gq.compile(integers(), ranges="rows").explain()


def test_the_command_line_has_it(tmp_path, capsys):
    path, saved = tmp_path / "rows.gq", tmp_path / "rows.graphq"
    path.write_text(gq.to_text(integers()) + "\n")
    assert main(["run", str(path), "--ranges=rows", "--compare"]) == 0
    assert main(["bench", str(path), "--ranges=rows", "--threads=1", "--seconds=0.01"]) == 0
    assert main(["compile", str(path), "--ranges=rows", "-o", str(saved)]) == 0
    capsys.readouterr()
    x = RNG.standard_normal((2, 5, 64)).astype(np.float32)
    wanted = gq.compile(integers(), ranges="rows")(x=x)
    assert np.array_equal(gq.load_compiled(saved)(x=x), wanted)
    assert not np.array_equal(gq.compile(integers())(x=x), wanted)
    assert main(["explain", str(path)]) == main(["explain", str(path), "--ranges=rows", "--precision=bf16"]) == 0
    texts = capsys.readouterr().out.split("graph graph:")[1:]
    assert ["reduce_max" in text for text in texts] == [False, True]
    assert main(["explain", str(saved), "--ranges=rows"]) == 2
    assert "--ranges rows: " in capsys.readouterr().err
