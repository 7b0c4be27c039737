"""Graphs with open shapes: one plan for many shapes, equal bit for bit to the plans of fixed ones."""
import gc
import threading
import weakref

import numpy as np
import pytest
from levels import LEVELS

import graphq as gq
from graphq.errors import CompileError, GraphError
from graphq.ir import TensorType
from graphq.ir.interpret import Signature
from graphq.kernels.matmul import plan as matmul_plan
from graphq.kernels.target import isa as machine
from graphq.model import build_plan
from graphq.model.open_plans import MAX_SHAPES, background
from graphq.model.open_shapes import Places, examples, range_of, size_class
from graphq.plan.open_plans import OpenPlan
from graphq.plan.plan import Ref, Step


def arrays(graph, rng, *shapes):
    """Random inputs of these shapes."""
    out = {}
    for v, shape in zip(graph.inputs, shapes, strict=True):
        high = 1 if v.dtype.kind == "float" else 200
        x = rng.normal(size=shape) if v.dtype.kind == "float" else rng.integers(0, high, shape)
        out[v.name] = x.astype(v.dtype.numpy)
    return out


def fixed(graph, feeds, **options):
    """What the graph of these very shapes gives."""
    types = {v.name: TensorType(v.dtype, feeds[v.name].shape) for v in graph.inputs}
    return gq.compile(graph.specialize(types), **options)(feeds)


def check(graph, *cases, threads=(None,), **options):
    """Compile the graph once for each number of threads, run it on each case's shapes, and compare with plans of fixed
    shapes; the last model.
    """
    rng = np.random.default_rng(0)
    models = [gq.compile(graph, threads=n, **options) for n in threads]
    for shapes in cases:
        feeds = arrays(graph, rng, *shapes)
        want = fixed(graph, feeds, threads=threads[-1], **options)
        for model in (*models, *models):
            np.testing.assert_array_equal(model(feeds), want, err_msg=f"{shapes} {model.threads}")
            background.join()
    assert not any(model.plans.for_each_shape for model in models)
    return models[-1]


def called(model, rng, shape):
    """Call a model with one input, and wait for the plan that it makes in the background."""
    out = model(arrays(model.source, rng, shape))
    background.join()
    return out


def variants(model):
    return sum(map(len, model.plans.by_class.values()))


def quantized(g, v, scale=0.05):
    return g.dequantize(g.quantize(v, scales=[scale], zps=[7], dtype="u8"), scales=[scale], zps=[7])


def weights(g, rng, *shape):
    return g.dequantize(g.constant(rng.integers(-127, 128, shape, dtype=np.int8)), scales=[0.01])


def mlp(width=32):
    rng = np.random.default_rng(1)
    g = gq.Graph("mlp")
    x = g.input("x", dtype="f32", shape=(None, width))
    y = g.relu(g.matmul(quantized(g, x), weights(g, rng, width, 70)))
    g.output(g.matmul(quantized(g, y), weights(g, rng, 70, 20)), name="y")
    return g


def attention(heads=2, size=16):
    """Softmax over an open length, of batched products whose columns and depth are open, too."""
    rng = np.random.default_rng(2)
    g = gq.Graph("attention")
    x = g.input("x", dtype="f32", shape=(None, None, heads * size))

    def projected():
        y = g.matmul(quantized(g, x), weights(g, rng, heads * size, heads * size))
        y = g.static_reshape(y, shape=[0, 0, heads, size], special_zero=True)
        return g.static_transpose(y, order=[0, 2, 1, 3])

    p = g.softmax(g.matmul(projected(), projected(), transpose_b=True), axis=-1)
    y = g.static_transpose(g.matmul(p, projected()), order=[0, 2, 1, 3])
    y = g.static_reshape(y, shape=[0, 0, heads * size], special_zero=True)
    y = g.layer_norm(y, np.ones(heads * size, np.float32), np.zeros(heads * size, np.float32), keep_stats=False)
    g.output(g.add(x, y), name="y")
    return g


def network():
    """Convolutions, dense, depthwise and of single pixels, pools, a resize and a concat over open images."""
    rng = np.random.default_rng(3)
    g = gq.Graph("network")
    x = g.input("x", dtype="f32", shape=(None, 3, None, None))
    fmt = dict(data_format="NCX", weights_format="OIX")

    def conv(v, channels, k=3, groups=1, **attrs):
        into = v.shape[1]
        pads = dict(pads_begin=[k // 2] * 2, pads_end=[k // 2] * 2)
        w = weights(g, rng, channels, into // groups, k, k)
        return g.relu(g.convolution(quantized(g, v), w, **(dict(strides=[1, 1], groups=groups) | pads | attrs | fmt)))

    v = conv(x, 16, strides=[2, 2])
    v = conv(conv(v, 16, groups=16), 24, k=1)
    small = g.max_pool(v, kernel=[2, 2], strides=[2, 2], pads_begin=[0, 0], pads_end=[0, 0], data_format="NCX")
    wide = g.interpolate(conv(small, 24), mode="bilinear", scales=[2.0, 2.0], data_format="NCX")
    both = g.concat(v, wide, axis=1)
    mean = g.reduce_mean(both, axes=[2, 3], keep_dims=True)
    g.output(g.multiply(conv(both, 8), g.sigmoid(conv(mean, 8, k=1))), name="y")
    return g


LENGTHS = [((2, 20, 32),), ((1, 33, 32),), ((3, 1, 32),), ((1, 100, 32),), ((4, 17, 32),), ((1, 64, 32),),
           ((1, 130, 32),), ((2, 5, 32),)]


@pytest.mark.parametrize(("make", "cases"), [
    (mlp, [((n, 32),) for n in (1, 2, 15, 16, 33, 64, 200, 0)]),
    (attention, LENGTHS),
    (network, [((1, 3, h, w),) for h, w in ((64, 96), (96, 64), (32, 32), (160, 64))] + [((3, 3, 32, 64),)]),
])
def test_open_plans_are_those_of_fixed_shapes(make, cases):
    check(make(), *cases, threads=(1, 2))


@pytest.mark.parametrize("isa", LEVELS[:2])
def test_at_lower_levels(isa):
    check(attention(), LENGTHS[0], LENGTHS[1], LENGTHS[3], isa=isa)


def test_one_variant_serves_a_class_of_sizes():
    rng = np.random.default_rng(0)
    model = gq.compile(mlp())
    for n in (16, 17, 33, 64, 100, 127):
        called(model, rng, (n, 32))
    assert variants(model) == 2  # that of one row, made at compile, and this
    for n in (2, 3, 9, 15, 1):
        called(model, rng, (n, 32))
    assert variants(model) == 3


def test_variants_share_weights():
    g = mlp(64)
    rng = np.random.default_rng(0)
    model = gq.compile(g)
    for n in (1, 5, 50, 500):
        called(model, rng, (n, 64))
    plans = [v.plan for vs in model.plans.by_class.values() for v in vs]
    assert len(plans) == 4
    held = [{id(b.data) for b in p.buffers if isinstance(b.data, np.ndarray) and b.nbytes > 1000} for p in plans]
    assert held[0] and all(x == held[0] for x in held)


def test_shapes_leave_by_their_last_use():
    rng = np.random.default_rng(0)
    model = gq.compile(mlp())
    often = arrays(model.source, rng, (3, 32))
    for n in range(2, MAX_SHAPES + 20):
        model(often)
        called(model, rng, (n, 32))
    kept = model.plans.by_shapes
    assert len(kept) == MAX_SHAPES and ((3, 32),) in kept and ((2, 32),) not in kept


def test_variants_leave_by_their_last_use(monkeypatch):
    monkeypatch.setattr("graphq.model.open_plans.MAX_CLASSES", 3)
    rng = np.random.default_rng(0)
    model = gq.compile(mlp())
    for n in (1, 5, 50, 6, 500, 7, 2000):
        called(model, rng, (n, 32))
    assert list(model.plans.by_class) == [(2,), (4,), (5,)]  # the plan of class 4 served the last call
    check(two((None, None), (None,)), *(((n, m), (m,)) for n in (1, 3, 20) for m in (1, 4, 30)))


def test_what_was_run_at_shapes_is_freed_with_them():
    rng = np.random.default_rng(0)
    model = gq.compile(mlp())
    for _ in range(2):  # the second call runs the plan that the first call began
        called(model, rng, (2, 32))
    gone = weakref.ref(model.plans.by_shapes[((2, 32),)])
    for n in range(3, MAX_SHAPES + 4):
        called(model, rng, (n, 32))
    gc.collect()
    assert gone() is None


def two(shape_a, shape_b, op="add"):
    g = gq.Graph("two")
    a, b = g.input("a", dtype="f32", shape=shape_a), g.input("b", dtype="f32", shape=shape_b)
    g.output(getattr(g, op)(a, b), name="y")
    return g


def test_broadcasts_by_1_and_dimensions_of_0():
    check(two((None, 4), (None, 4)), ((3, 4), (3, 4)), ((3, 4), (1, 4)), ((1, 4), (5, 4)), ((1, 4), (1, 4)),
          ((0, 4), (0, 4)), ((0, 4), (1, 4)), ((7, 4), (7, 4)), ((40, 4), (1, 4)), ((40, 4), (40, 4)))
    check(two((None, None), (None,)), ((2, 3), (3,)), ((2, 1), (3,)), ((2, 3), (1,)), ((1, 1), (1,)), ((4, 0), (1,)))


def test_sizes_that_must_be_equal_and_are_not():
    model = gq.compile(two((None, 4), (None, 4)))
    model(np.ones((3, 4), np.float32), np.ones((3, 4), np.float32))
    with pytest.raises(GraphError, match=r"3 against 5 at axis -2 \(a\.0 = 3, b\.0 = 5\)"):
        model(np.ones((3, 4), np.float32), np.ones((5, 4), np.float32))
    model(np.ones((5, 4), np.float32), np.ones((5, 4), np.float32))
    with pytest.raises(GraphError, match=r"a\.1 = 6, b\.0 = 7"):
        gq.compile(two((4, None), (None, 3), "matmul"))(np.ones((4, 6), np.float32), np.ones((7, 3), np.float32))


def test_reports_before_the_first_call():
    model = gq.compile(mlp())
    assert model.coverage().share == 1.0 and model.coverage().total == 32 * 70 + 70 * 20
    text = model.explain()
    assert "(2 integer)" in text and "numbers are for x.0 = 1" in text and "u8[x.0,70]" in text
    assert "matmul_u8s8" in text
    model(np.ones((9, 32), np.float32))
    assert model.coverage().total == 9 * (32 * 70 + 70 * 20)
    assert "x.0 = 9" in model.explain() and "u8[x.0,70]" in model.explain()
    assert len(model.profile(np.ones((9, 32), np.float32), runs=1).steps) == len(model.plans.latest.plan.steps)


def test_a_size_that_is_alone_in_its_class_is_a_number_of_the_plan():
    model, x = gq.compile(mlp()), np.ones((3, 32), np.float32)
    for rows, calls in ((1, False), (0, False), (3, True)):
        model(x[:rows])
        trace = model.plans.latest.made.trace
        assert len(trace.leaves) == 1 and bool(trace.calls) == calls
    assert len(model.plans.all()) == 3


def test_strict_refuses_when_it_compiles():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, 8))
    g.output(g.cum_sum(x, axis=1), name="y")
    with pytest.raises(CompileError, match="strict: 1 operation would run by NumPy references"):
        gq.compile(g, strict=True)


def test_references_follow_the_sizes():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, None))
    y = g.cum_sum(x, axis=1)
    g.output(g.static_reshape(y, shape=[-1]), name="y")
    check(g, ((2, 3),), ((5, 20),), ((1, 1),), ((30, 2),))


def test_references_of_empty_rows_have_the_rows_of_the_call():
    """The bytes between the steps are 0 whatever the number of rows: the shape follows from it all the same."""
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, 0))
    g.output(g.reduce_sum(g.cum_sum(g.cum_sum(x, axis=1), axis=1), axes=[1]), name="y")
    check(g, ((3, 0),), ((20, 0),), ((1, 0),))


def test_callers_at_a_time():
    """Eight threads, each with shapes of its own, of three classes."""
    g = attention()
    rng = np.random.default_rng(0)
    model = gq.compile(g)
    feeds = [arrays(g, rng, (1 + k % 2, length, 32)) for k, length in enumerate((3, 9, 20, 21, 22, 40, 130, 131))]
    want = [fixed(g, x) for x in feeds]
    wrong = []

    def run(k):
        for _ in range(3):
            if not np.array_equal(model(feeds[k]), want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(feeds))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_variant_that_is_made_while_another_caller_looks_is_kept(monkeypatch):
    model, at, made = gq.compile(mlp()), OpenPlan.at, []

    def late(self, sizes, arenas, cache):
        if not made:
            made.append(model.plans._made((14,)))
            model.plans._keep(made[0])
        return at(self, sizes, arenas, cache)

    model(np.ones((5, 32), np.float32))
    background.join()
    before = variants(model)
    monkeypatch.setattr(OpenPlan, "at", late)
    model(np.ones((6, 32), np.float32))
    assert variants(model) == before + 1 and made[0] in model.plans.by_class[(2,)]


def test_sizes_of_a_class_have_one_example():
    assert [size_class(n) for n in (0, 1, 2, 15, 16, 127, 128, 1023, 1024)] == [0, 1, 2, 2, 3, 3, 4, 4, 5]
    assert list(map(range_of, range(5))) == ["0", "1", "2 to 15", "16 to 127", "128 to 1023"]
    for sizes in ((1, 20, 1, 20), (5, 6, 7), (100, 200, 3000, 1), (0, 40), tuple(range(20, 40))):
        found = examples(sizes)
        assert list(map(size_class, found)) == list(map(size_class, sizes))
        assert all((found[i] == found[j]) == (sizes[i] == sizes[j])
                   for i in range(len(sizes)) for j in range(len(sizes))) or len(set(sizes)) > 5


def test_open_dimensions_have_names():
    g = two((None, 4), (3, None))
    assert Places(Signature.of(g)).names(g) == ["a.0", "b.1"]
    g.meta = {"dimensions": {("a", 0): "batch"}}
    assert Places(Signature.of(g)).names(g) == ["batch", "b.1"]


def static_attention(dtype="u8", zp=7, heads=2, size=16):
    """Attention of integers alone: both operands of its products are activations, over an open length."""
    rng = np.random.default_rng(2)
    g = gq.Graph("static attention")
    x = g.input("x", dtype="f32", shape=(None, None, heads * size))

    def small(v, scale, zp=0, dtype="s8"):
        return g.dequantize(g.quantize(v, scales=[scale], zps=[zp], dtype=dtype), scales=[scale], zps=[zp])

    def projected():
        y = small(g.matmul(small(x, 0.05), weights(g, rng, heads * size, heads * size)), 0.2, zp, dtype)
        y = g.static_reshape(y, shape=[0, 0, heads, size], special_zero=True)
        return g.static_transpose(y, order=[0, 2, 1, 3])

    p = g.softmax(small(g.matmul(projected(), projected(), transpose_b=True), 0.3), axis=-1)
    y = small(g.matmul(small(p, 1 / 255, dtype="u8"), projected()), 0.01)
    g.output(small(g.multiply(y, np.linspace(-1, 1, size, dtype=np.float32)), 0.01), name="y")
    return g


@pytest.mark.parametrize(("dtype", "zp"), [("u8", 7), ("u8", 128), ("s8", 0), ("s8", -9)])
def test_products_of_activations_are_those_of_fixed_shapes(dtype, zp):
    check(static_attention(dtype, zp), *LENGTHS, threads=(1, 2))


@pytest.mark.parametrize("isa", LEVELS[:2])
def test_products_of_activations_at_lower_levels(isa):
    check(static_attention(), LENGTHS[0], LENGTHS[1], LENGTHS[3], isa=isa)


def at_sizes(model, feeds, **options):
    """The steps of the model's plan with open sizes at these, and of the plan that is made for them."""
    types = {v.name: TensorType(v.dtype, feeds[v.name].shape) for v in model.source.inputs}
    model(feeds)
    fixed_ = gq.compile(model.source.specialize(types), **options)
    return model.plans.latest.runner.plan, fixed_.plans.fixed.plan


def tables(plan):
    """The constants that each step reads."""
    return [[plan.buffers[w.buffer].data.tobytes() for w in s.block if isinstance(w, Ref)
             and plan.buffers[w.buffer].storage == "constant"] for s in plan.steps if isinstance(s, Step)]


@pytest.mark.parametrize("length", [17, 24, 60, 127, 128, 300])
def test_bands_around_ties_are_those_of_the_size(length, monkeypatch):
    """Bounds of sums over an open k: all numbers that a step reads are those of the plan for this k.

    But which steps run strip by strip depends on the sizes that a plan assumes: here none do.
    """
    monkeypatch.setattr(build_plan, "LEAST_BYTES", 1 << 60)
    graph = static_attention()
    feeds = arrays(graph, np.random.default_rng(0), (2, length, 32))
    plans = at_sizes(gq.compile(graph, threads=1), feeds, threads=1)
    of_open, of_fixed = map(tables, plans)
    assert of_open == of_fixed and sum(map(len, of_open)) > 20


def test_products_of_activations_need_no_plan_for_each_length():
    graph, rng = static_attention(), np.random.default_rng(0)
    model = gq.compile(graph)
    for length in (60, 24, 25, 26, 100, 17, 127, 16, 33):
        called(model, rng, (2, length, 32))
    assert [len(v) for v in model.plans.by_class.values()] == [1, 1]  # the first is that of compile


@pytest.mark.parametrize(("make", "shapes"), [
    (mlp, [(2, 32), (5, 32), (16, 32), (40, 32), (127, 32), (500, 32), (1000, 32)]),
    (lambda: mlp(256), [(3, 256), (16, 256), (33, 256), (120, 256), (200, 256)]),
    (static_attention, [(1, 16, 32), (1, 64, 32), (4, 120, 32), (1, 300, 32)]),
    (attention, [(1, 16, 32), (4, 120, 32), (1, 300, 32), (8, 130, 32)]),
    (network, [(1, 3, 32, 32), (1, 3, 64, 96), (2, 3, 96, 96), (1, 3, 160, 128)]),
])
@pytest.mark.parametrize("isa", [*LEVELS[1:2], None])
def test_blocks_and_threads_follow_the_size(make, shapes, isa, monkeypatch):
    """Steps are cut, shared or not, and integers multiplied by the kernels, as in the plan of the fixed shape.

    But a tile that writes outputs itself is that of the sizes which a plan assumes, whatever a call has. With AMX and
    with Arm's i8mm other tiles can be better for the other sizes here, so that no tile writes outputs then.
    """
    best = machine.available()[-1]
    if isa is None and (best.matrix is not None or best.paired is not None):
        monkeypatch.setattr(matmul_plan, "MANY", 1 << 60)
    graph, rng, parallel = make(), np.random.default_rng(0), set()
    model = gq.compile(graph, threads=2, isa=isa)
    for shape in shapes:
        plans = at_sizes(model, arrays(graph, rng, shape), threads=2, isa=isa)
        cut = [[(s.blocks, s.pieces, s.function.name) for s in p.steps if isinstance(s, Step)]
               for p in plans]
        assert cut[0] == cut[1], shape
        kernels = [[s.kernel for s in p.steps if s.kernel.startswith("matmul_u8")] for p in plans]
        assert kernels[0] == kernels[1], shape
        parallel.update(p > 0 for _, p, _ in cut[0])
    assert parallel == {False, True}


def test_reports_say_what_made_a_plan():
    g = gq.Graph("cut")
    x = g.input("x", dtype="f32", shape=(None, 4))
    g.output(g.slice(x, starts=[0], ends=[60], axes=[0], steps=[1]), name="y")
    model = gq.compile(g)
    for n in (70, 20, 100, 30):
        assert model(np.ones((n, 4), np.float32)).shape == (min(n, 60), 4)
    text = model.explain()
    assert "  x.0 = 16 to 127: 2 plans\n    one for x.0 = 70: x.0 < 60 is not True" in text, text
    assert model.explanation().classes[0] == "open sizes: 3 plans for 2 ranges"


def test_the_classes_of_sizes_grow_by_factors_of_8():
    for of, (low, high) in {2: (2, 15), 3: (16, 127), 4: (128, 1023), 5: (1024, 8191), 6: (8192, 65535)}.items():
        assert size_class(low) == size_class(high) == of == size_class(high + 1) - 1
    assert examples((5, 6, 7, 5)) == (12, 10, 14, 12) and examples((0, 1, 20)) == (0, 1, 52)
    assert examples((200, 2000, 20000)) == (352, 2816, 22528)
    assert examples(tuple(range(2, 8))) == (12, 10, 14, 6, 9, 7)  # more than there are: the size itself
