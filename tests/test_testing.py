"""check_pass and friends fail when they should."""
import numpy as np
import pytest

from graphq.dtypes import DTYPES
from graphq.errors import GraphError, VerifyError
from graphq.ir import Graph, TensorType
from graphq.ir.text import parse
from graphq.rewrite.fixpoint import rounds
from graphq.rewrite.rule import ANY, Rewrite
from graphq.testing import check_pass, check_round_trip, check_same_numbers, random_array, random_inputs

RELU2 = """graph(x: f32[2,8]) {
  %0 = relu(x)
  %1 = relu(%0)
  return %1
}"""
RELU1 = RELU2.replace("  %1 = relu(%0)\n", "").replace("%1", "%0")


class Once(Rewrite):
    """relu(relu(x)) -> relu(x)"""

    def pattern(self, g, x):
        return g.relu(g.relu(x))

    def replace(self, g, x):
        return g.relu(x)


def fails(message, *args, **kwargs):
    with pytest.raises(AssertionError, match=message):
        check_pass(*args, **kwargs)


def test_a_good_pass():
    g = check_pass(Once(), before=RELU2, after=RELU1, count=1)
    assert isinstance(g, Graph) and len(g.nodes) == 1
    check_pass(Once(), before=RELU2, after=RELU1)
    check_pass(Once(), before=RELU1)
    check_pass(Once(), before=RELU1, after=RELU1, count=0)


def test_another_text():
    fails("(?s)the pass gives\n.*relu.x.*\nnot\n.*", Once(), before=RELU2, after=RELU2)
    fails("the pass gives", Once(), before=RELU2)
    fails("the pass gives", Once(), before=RELU1, after=RELU1.replace("relu", "tanh"))


def test_another_count():
    fails("the pass reports 1 rewrites, not 2", Once(), before=RELU2, after=RELU1, count=2)
    fails("the pass reports 0 rewrites, not 1", Once(), before=RELU1, after=RELU1, count=1)


def test_a_pass_that_reports_nothing():
    fails("the pass reports 0 rewrites, the text changed: True", lambda g: Once()(g) * 0, before=RELU2, after=RELU1)
    fails("the pass reports 3 rewrites, the text changed: False", lambda g: 3, before=RELU1)
    fails("the pass reports None", lambda g: None if Once()(g) else 0, before=RELU2, after=RELU1)


def test_an_inconsistent_graph():
    def breaks(g):
        g.nodes[0].output.uses.clear()
        return 0

    with pytest.raises(VerifyError, match="recorded uses differ"):
        check_pass(breaks, before=RELU1)


def swap(old, new):
    """A pass that puts one op in another's place, whatever the numbers."""

    class Swap(Rewrite):
        def pattern(self, g, x):
            return getattr(g, old)(x)

        def replace(self, g, x):
            return getattr(g, new)(x)

    return Swap()


def test_other_numbers():
    fails("output 'out0'", swap("relu", "abs"), before=RELU1, after=RELU1.replace("relu", "abs"))
    tanh = RELU1.replace("relu", "tanh")
    fails("output 'out0' on inputs of the kind 'random': 16 of 16 elements differ", swap("tanh", "sigmoid"),
          before=tanh, after=tanh.replace("tanh", "sigmoid"))
    check_pass(swap("tanh", "sigmoid"), before=tanh, after=tanh.replace("tanh", "sigmoid"), atol=2.0)


def test_numbers_that_differ_for_special_values_alone():
    class DropAddZero(Rewrite):
        """x + 0 -> x: right for all numbers but -0"""

        def pattern(self, g, x, zero):
            return g.add(x, zero)

        def replace(self, g, x):
            return x

    def drop(g):
        return DropAddZero()(g) + g.prune()

    before = "graph(x: f32[64]) {\n %0 = constant(value=f32[]{0.0})\n %1 = add(x, %0)\n return %1 as y\n}"
    fails("output 'y' on inputs of the kind 'ties': .*: 0.0 before, -0.0 after", drop, before=before,
          after="graph(x: f32[64]) {return x as y}")
    check_pass(drop, before=before, after="graph(x: f32[64]) {return x as y}", atol=1e-30, vary=False)


def _text(inputs, *statements):
    lines = "".join(f"  %{k} = {x}\n" for k, x in enumerate(statements))
    return f"graph({inputs}) {{\n{lines}  return %{len(statements) - 1} as y\n}}"


def _limited_once(g, x, match):
    low = max(n.attrs["min"] for n in match.nodes)
    return g.clamp(x, min=low, max=max(low, min(n.attrs["max"] for n in match.nodes)))


WEAK = {  # rewrites that do not look at something, and texts for which they are right all the same
    "a constant": (lambda g, x, c: g.add(x, c), lambda g, x, match: x,
                   _text("x: s32[6]", "constant(value=s32[]{0})", "add(x, %0)")),
    "a zero point": (lambda g, x, c: g.quantize(g.dequantize(x, attrs=ANY), attrs=ANY), lambda g, x, match: x,
                     _text("x: u8[6]", "dequantize(x, scales=[0.5])", "quantize(%0, dtype=u8, scales=[0.5])")),
    "an order": (lambda g, x, c: g.static_transpose(g.static_transpose(x)), lambda g, x, match: x,
                 _text("x: f32[3,3,3]", "static_transpose(x, order=[1,0,2])", "static_transpose(%0, order=[1,0,2])")),
    "a limit": (lambda g, x, c: g.relu(g.clamp(x, attrs=ANY)),
                lambda g, x, match: g.clamp(x, **match.node("clamp").attrs),
                _text("x: f32[6]", "clamp(x, min=0.0, max=2.0)", "relu(%0)")),
    "a range": (lambda g, x, c: g.clamp(g.clamp(x)), _limited_once,
                _text("x: f32[6]", "clamp(x, min=-1.0, max=4.0)", "clamp(%0, min=0.0, max=6.0)")),
    "a size": (lambda g, x, c: g.static_transpose(x),
               lambda g, x, match: g.static_reshape(x, shape=match.root.output.shape),
               _text("x: f32[1,6]", "static_transpose(x, order=[1,0])")),
    "an axis": (lambda g, x, c: g.softmax(g.static_transpose(x), attrs=ANY),
                lambda g, x, match: g.static_transpose(g.softmax(x, axis=1), order=[1, 0]),
                _text("x: f32[4,4]", "static_transpose(x, order=[1,0])", "softmax(%0, axis=0)")),
}


@pytest.mark.parametrize("blind", WEAK)
def test_a_check_that_is_too_weak_is_found_by_other_constants_sizes_and_attributes(blind):
    pattern, replace, text = WEAK[blind]

    class Weak(Rewrite):
        def pattern(self, g, x, c):
            return pattern(g, x, c)

        def replace(self, g, x, match):
            return replace(g, x, match)

    check_pass(Weak(), before=text, after=ANY, atol=1e-6, vary=False)
    fails("the pass is wrong for the same text with", Weak(), before=text, after=ANY, atol=1e-6)


def test_a_pass_that_raises_for_other_attributes():
    """clamp refuses a `min` above its `max`."""
    class Merge(Rewrite):
        def pattern(self, g, x):
            return g.clamp(g.clamp(x))

        def replace(self, g, x, match):
            outer, inner = (n.attrs for n in match.nodes)
            return g.clamp(x, min=max(outer["min"], inner["min"]), max=min(outer["max"], inner["max"]))

    text = _text("x: f32[6]", "clamp(x, min=-1.0, max=4.0)", "clamp(%0, min=0.0, max=6.0)")
    check_pass(Merge(), before=text, after=ANY, vary=False)
    fails("wrong for the same text with min=99.0, max=104.0 in .* it raises GraphError: .* min must not exceed max",
          Merge(), before=text, after=ANY)


def test_outputs_have_the_same_names_and_types():
    a, b = parse(RELU1), parse(RELU1.replace("return %0", "return %0 as z"))
    with pytest.raises(AssertionError, match=r"the outputs are \['out0'\] and \['z'\]"):
        check_same_numbers(a, b)
    c = parse("graph(x: f32[2,8]) {\n %0 = type_cast(x, dtype=bf16)\n return %0\n}")
    with pytest.raises(AssertionError, match="the outputs were out0: f32.*are out0: bf16"):
        check_same_numbers(a, c)


def test_where_no_tolerance_is_asked_for_one_bit_counts():
    one, next_ = (f"graph(x: f32[64]) {{\n  %0 = constant(value=f32[]{{{c}}})\n  %1 = multiply(x, %0)\n  return %1\n}}"
                  for c in ("1.0", "1.0000001"))

    def step(g):
        with g.before(g.nodes[0]):
            g.replace_uses(g.nodes[0].output, g.add_constant(np.nextafter(np.float32(1), np.float32(2))))
        return 1 + g.prune()

    a, b = parse(one), parse(next_)
    with pytest.raises(AssertionError, match="elements differ"):
        check_same_numbers(a, b)
    check_same_numbers(a, b, rtol=2.0**-22)
    with pytest.raises(AssertionError, match="elements differ"):
        check_same_numbers(a, b, rtol=2.0**-25)
    fails("elements differ", step, before=one, after=ANY, vary=False)
    check_pass(rounds(2.0**-22)(step), before=one, after=ANY, vary=False)
    fails("elements differ", step, before=one, after=ANY, vary=False, rtol=0.0, atol=0.0)  # the caller's count


class SplitFactor(Rewrite):
    """multiply(x, 1.1) -> add(x, multiply(x, 0.1))"""

    tolerance = 1e-6

    def pattern(self, g, x, c):
        return g.multiply(x, c)

    def check(self, c):
        return None if c.data is not None and c.data == np.float32(1.1) else "another factor"

    def replace(self, g, x):
        return g.add(x, g.multiply(x, 0.1 + self.wrong))

    wrong = 0.0


def test_roundings_before_exp_are_no_fault_of_a_pass():
    """exp turns the last bit of 36 into 4e-6 of its result."""
    inputs, body = "x: f32[64]", """%c = constant(value=f32[]{1.1})
        %l = clamp(x, min=-32.8, max=32.8)
        %m = multiply(%l, %c)
        %y = exp(%m)
        return %y"""
    check_pass(SplitFactor(), before=body, after=ANY, inputs=inputs, vary=False)
    wrong = SplitFactor()
    wrong.wrong = 1e-3
    fails(r"output 'y' on .*: \d+ of 64 elements differ, the first at \[\d+\] beyond the tolerance: \S+ and \S+", wrong,
          before=body, after=ANY, inputs=inputs, vary=False)


class NoClamp(Rewrite):
    """clamp(x) -> x, wrong for numbers beyond the limits alone"""

    tolerance = 1e-5

    def pattern(self, g, x):
        return g.clamp(x, attrs=ANY)

    def replace(self, g, x):
        return x


@pytest.mark.parametrize("op", ["softmax(%l, axis=-1)", "exp(%l)", "pow(%l, beta=2.0)"])
def test_a_pass_that_is_wrong_for_large_numbers_before_exp_is_found(op):
    """Roundings before exp explain a difference only up to the size that they have."""
    fails("beyond the tolerance", NoClamp(), before=f"%l = clamp(x, min=-9.0, max=9.0)\n %y = {op}\n return %y",
          after=ANY, inputs="x: f32[4,8]", vary=False)


def test_nan_equals_nan():
    g = parse("graph(x: f32[64]) {\n %0 = sqrt(x)\n return %0\n}")
    check_same_numbers(g, g.copy())


def test_open_shapes_are_drawn_or_given():
    text = RELU2.replace("[2,8]", "[?,8]")
    check_pass(Once(), before=text, after=RELU1.replace("[2,8]", "[?,8]"))
    check_pass(Once(), before=text, after=RELU1.replace("[2,8]", "[?,8]"), sizes={"x": (5, 8)})
    with pytest.raises(GraphError, match="is not known yet"):
        random_inputs(parse(text))


def test_round_trip_of_a_broken_graph():
    g = parse(RELU1)
    g.nodes[0].attrs = {"alpha": 1}
    check_round_trip(g)  # what the op does not have is not printed
    g.nodes[0].output.type = TensorType(DTYPES["f32"], (3,))
    with pytest.raises(Exception, match="the text says"):
        check_round_trip(g)


@pytest.mark.parametrize("name", DTYPES)
def test_random_arrays(name):
    t = TensorType(DTYPES[name], (500,))
    a, b = (random_array(t, np.random.default_rng(s)) for s in (0, 0))
    assert a.dtype == t.dtype.numpy and a.shape == (500,) and np.array_equal(a, b)
    if t.dtype.kind == "int" and t.dtype.bits < 16:
        assert (a.astype(int).min(), a.astype(int).max()) == (t.dtype.min, t.dtype.max) or t.dtype.bits == 8
    assert len(np.unique(a.astype(np.float64))) > 1


def test_random_inputs_are_the_same_for_the_same_seed():
    g = parse("graph(x: f32[4], y: u8[?]) {return x}")
    a, b, c = (random_inputs(g, seed, {"y": (3,)}) for seed in (0, 0, 1))
    assert all(np.array_equal(a[k], b[k]) for k in "xy") and not np.array_equal(a["x"], c["x"])
    assert a["y"].shape == (3,)
