"""Values between products that are stored in integers: which they are, and that the model then runs in integers."""
import numpy as np
import pytest

import graphq as gq
from graphq.quantization import Scheme, automatic, calibrate, quantize
from graphq.quantization.between import stored_between
from graphq.quantization.calibrate import observed
from graphq.quantization.products import prepared, values_by_name
from graphq.quantization.scheme import with_scheme
from graphq.quantization.search import RANGES, Search, falling
from graphq.quantization.selection import resolved


class Network:
    """A graph of convolutions on [1, 8, 12, 12]."""

    def __init__(self):
        self.g, self.rng = gq.Graph("net"), np.random.default_rng(0)
        self.x = self.g.input("x", shape=(1, 8, 12, 12), dtype="f32")

    def conv(self, x, name=None, out=8, size=1):
        weights = self.rng.normal(0, (x.shape[1] * size**2)**-0.5, (out, x.shape[1], size, size)).astype(np.float32)
        return self.g.convolution(x, weights, strides=[1, 1], pads_begin=[size // 2] * 2, pads_end=[size // 2] * 2,
                                  dilations=[1, 1], data_format="NCX", weights_format="OIX", name=name)

    def pool(self, x, kind="max_pool", name=None):
        more = {"exclude_pad": True} if kind == "avg_pool" else {}
        return getattr(self.g, kind)(x, kernel=[2, 2], strides=[2, 2], pads_begin=[0, 0], pads_end=[0, 0],
                                     data_format="NCX", name=name, **more)

    def batches(self, count=3):
        return [{"x": self.rng.normal(0, 1, (1, 8, 12, 12)).astype(np.float32)} for _ in range(count)]


def residual():
    n = Network()
    stem = n.g.relu(n.conv(n.x), name="stem")
    total = n.g.relu(n.g.add(n.conv(n.g.relu(n.conv(stem, size=3))), stem), name="total")
    short, main = n.conv(total, name="short"), n.conv(n.g.relu(n.conv(total, size=3)), name="main")
    last = n.g.relu(n.g.add(main, short), name="last")
    n.g.output(n.conv(n.g.reduce_mean(last, axes=[2, 3], keep_dims=True), out=5), name="y")
    return n


def test_sums_and_what_pools_read_are_stored():
    assert stored_between(prepared(residual().g)) == ["stem", "short", "last"]


def test_of_two_products_that_are_added_the_first_is_stored():
    """`total` is read by products alone, which share its integers in any case."""
    n = Network()
    first, second = n.conv(n.x, name="first"), n.g.relu(n.conv(n.x), name="second")
    n.g.output(n.conv(n.g.add(second, first)), name="y")
    assert stored_between(prepared(n.g)) == ["first"]


def squeeze_and_excitation(n):
    x = n.conv(n.x, name="scaled")
    gate = n.g.sigmoid(n.conv(n.g.reduce_mean(x, axes=[2, 3], keep_dims=True)))
    return n.g.multiply(x, gate), ["scaled"]


def hard_swish(n):
    x = n.conv(n.x)
    return n.g.multiply(x, n.g.clamp(n.g.add(x, np.float32(3)), min=0, max=6)), []


def normalized(n):
    x = n.conv(n.x)
    return n.g.add(x, n.g.softmax(x, axis=1)), []


def after_a_normalization(n):
    x = n.g.multiply(n.g.softmax(n.conv(n.x), axis=1), np.float32(2))
    return n.g.add(x, n.conv(x)), []


def also_an_output(n):
    x = n.g.relu(n.conv(n.x))
    n.g.output(x, name="features")
    return n.g.add(x, n.conv(x)), []


def skipped(n):
    x = n.conv(n.x, name="skip")
    small = n.g.interpolate(n.pool(x), scales=[2.0, 2.0], mode="nearest", data_format="NCX")
    return n.g.concat(small, x, axis=1), ["skip"]


def before_an_average(n):
    return n.pool(n.conv(n.x, name="averaged"), "avg_pool"), ["averaged"]


def before_a_maximum(n):
    return n.pool(n.conv(n.x)), []


def of_the_input(n):
    return n.g.add(n.g.abs(n.x), n.g.concat(n.x, axis=1)), []


def added_to_one_pixel(n):
    """The sum is of two sizes: no kernel of a product adds the other to its own."""
    return n.g.add(n.conv(n.x), n.conv(n.g.reduce_mean(n.g.abs(n.x), axes=[2, 3], keep_dims=True))), []


def read_on_the_way(n):
    """The sum's first term follows from a value that others read, too."""
    x = n.g.relu(n.conv(n.x))
    return n.g.concat(n.g.add(n.g.tanh(x), n.conv(n.x)), n.g.abs(x), axis=1), []


@pytest.mark.parametrize("part", [added_to_one_pixel, read_on_the_way, squeeze_and_excitation, hard_swish,
                                  normalized, after_a_normalization, also_an_output, skipped, before_an_average,
                                  before_a_maximum, of_the_input], ids=lambda p: p.__name__)
def test_which_values_are_stored(part):
    n = Network()
    y, names = part(n)
    n.g.output(n.conv(y), name="y")
    assert stored_between(prepared(n.g)) == names


def test_nothing_after_the_last_product_is_stored():
    n = Network()
    n.g.output(n.g.reduce_mean(n.conv(n.x), axes=[2, 3]), name="y")
    assert stored_between(prepared(n.g)) == []


def quantized(n, **more):
    return quantize(n.g, n.batches(), Scheme(method="min_max", **more))


def test_a_residual_network_runs_in_integers_from_end_to_end():
    """The quantize of the input alone is in floats."""
    n = residual()
    before, after = (gq.compile(quantized(n, between=names)) for names in ((), ["*"]))
    assert "2 eltwise (2 in floats), 1 pool (1 in floats)" in str(before.explain())
    assert "partitions: 7 convolution (7 in integers), 1 eltwise (1 in floats), 1 pool (1 on quantized numbers)" \
        in str(after.explain())
    assert "in f32" not in str(after.explain()).split("border")[0]
    x = n.batches(1)[0]
    want, got = gq.compile(n.g)(x), after(x)
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_all_readers_of_a_value_share_its_integers():
    g = quantized(residual(), between=["*"])
    stem = values_by_name(g)["stem"]
    (q,) = stem.users
    assert q.op.name == "quantize"
    (dequantize,) = q.output.users
    assert [u.op.name for u in dequantize.output.users] == ["convolution", "add"]


@pytest.mark.parametrize("more", [{"exclude": ["short"]}, {"wide": ["short"]}])
def test_what_exact_products_read_stays_in_f32(more):
    n = Network()
    x = n.g.relu(n.conv(n.x), name="read")
    n.g.output(n.conv(n.g.add(n.conv(x, name="short"), x)), name="y")
    for given, ops in (({}, {"quantize"}), (more, {"quantize", "add", "convolution", "subtract"})):
        g = quantized(n, between=["read"], **given)
        found = {u.op.name for u in values_by_name(g)["read"].users}
        assert found <= ops and ("add" in found) == bool(given)


def concatenated(n):
    return n.g.concat(n.g.relu(n.conv(n.x), name="shared"), n.conv(n.x), axis=1)


def enlarged(n):
    return n.g.interpolate(n.conv(n.x, name="shared"), scales=[2.0, 2.0], mode="nearest", data_format="NCX")


def pooled(n):
    return n.pool(n.conv(n.x, name="shared"))


@pytest.mark.parametrize("part", [concatenated, enlarged, pooled], ids=lambda p: p.__name__)
def test_what_chooses_elements_moves_integers_by_the_scale_after_it(part):
    n = Network()
    y = part(n)
    n.g.output(n.conv(y), name="y")
    batches = n.batches()
    g = quantize(n.g, batches, Scheme(method="min_max"))
    (q,) = values_by_name(g)["shared"].users
    (after,) = next(m for m in g.nodes if m.op is y.node.op).output.users
    assert q.op.name == "quantize" and q.attrs == after.attrs
    # The same graph with one quantize, after the operation, has the same numbers.
    once = next(m for m in g.nodes if m.op is y.node.op)
    for v in once.operands:
        g.replace_uses(v, v.node.inputs[0].node.inputs[0], [u for u in v.uses if u.node is once])
    g.prune()
    assert np.array_equal(gq.reference(g, batches[0]), gq.reference(quantize(n.g, batches, Scheme(method="min_max")),
                                                                    batches[0]))


def test_an_average_has_a_scale_of_its_own():
    n = Network()
    n.g.output(n.conv(n.pool(n.conv(n.x, name="averaged"), "avg_pool")), name="y")
    assert [u.op.name for u in values_by_name(quantized(n))["averaged"].users] == ["avg_pool"]
    assert [u.op.name for u in values_by_name(quantized(n, between=["*"]))["averaged"].users] == ["quantize"]


def test_values_between_products_are_observed_and_chosen_by_name():
    n = residual()
    g = prepared(n.g)
    assert {"stem", "short", "last"} <= set(observed(g))
    assert resolved(g, Scheme(between=["s*", "last", "stem"])).between == ("stem", "short", "last")
    plain = Network()
    plain.g.output(plain.conv(plain.x), name="y")
    assert resolved(prepared(plain.g), Scheme(between=["*"])).between == ()
    for name in ("total", "t*"):
        with pytest.raises(gq.GraphError, match="no value stored between layers is named .*; there are stem, "
                                                "short, last"):
            resolved(g, Scheme(between=[name]))
    with pytest.raises(gq.GraphError, match="mode 'static'"):
        Scheme(mode="dynamic", between=["*"])
    statistics = calibrate(n.g, n.batches(), tensors=["x"])
    with pytest.raises(gq.GraphError, match="no statistics of 'stem', a value between layers"):
        quantize(n.g, statistics, Scheme(between=["stem"]))


def test_the_search_sees_what_the_graph_loses():
    n = residual()
    work = Search(n.g, n.batches())
    setting = work.uniform(RANGES[0])
    for names in ((), work.outputs.between):
        tried = with_scheme(setting, between=names)
        outputs = next(iter(work.outputs.runs([work.data[0]], work.chosen(tried, (0, 1, 2)), tried.scheme,
                                              work.between(tried, (0, 1, 2)))))["y"]
        made = gq.compile(work.made(tried))(work.data[0])
        assert np.abs(outputs - made).max() < 1e-3 * np.abs(made).max()


def test_the_automatic_setting_stores_integers_where_that_saves_time():
    """A layer reads `stem`. The others would be quantized only to be stored."""
    n = residual()
    choice = automatic(n.g, n.batches())
    assert choice.graph.meta["quantization"]["between_layers"] == ["stem"]
    assert "1 value between layers" in str(choice.setting)
    assert {p.setting.scheme.between for p in choice.curve} <= {(), ("stem",)}


def test_values_that_lose_much_stay_in_f32():
    """A sum whose channels differ by 10**4 in size: in integers the small ones are nothing."""
    n = Network()
    sizes = np.array([1e4] + [1.0] * 7, np.float32).reshape(1, 8, 1, 1)
    x = n.g.multiply(n.conv(n.x), sizes, name="uneven")
    mixed = n.g.multiply(n.g.add(x, n.g.multiply(n.conv(x), np.float32(1e-4))), 1 / sizes)
    n.g.output(n.conv(mixed), name="y")
    assert "uneven" in stored_between(prepared(n.g))
    assert automatic(n.g, n.batches()).setting.scheme.between == ()


def test_values_between_products_are_points_of_the_curve():
    """Each is faster than the same setting without them, and loses less than all points that are as fast."""
    n = residual()
    work = Search(n.g, n.batches())
    work.run(narrow=False)
    assert any(p.setting.scheme.between for p in work.curve) and work.curve == falling(work.curve)
    for p in work.curve:
        plain = with_scheme(p.setting, between=())
        assert work.price.time(plain) > p.time or not p.setting.scheme.between


@pytest.mark.parametrize("given", [{}, {"wide": ["short"]}])
def test_a_setting_names_each_value_in_integers_once(given):
    """Also if the user names values that the search finds as well, or that a layer with 16 bits reads."""
    n = residual()
    every = stored_between(prepared(n.g))
    for point in automatic(n.g, n.batches(), Scheme(method="automatic", between=["*"], **given)).curve:
        found = point.setting.scheme
        exact = {*found.exclude, *found.wide}
        assert len({*found.between}) == len(found.between) <= len(every)
        assert "total" not in found.between or "short" not in exact
