"""Labels: names, and numbers that are counted anew or kept; what errors call a value."""
import numpy as np
import pytest

import graphq as gq
from graphq.ir.names import choice, listing, quote


def test_names_and_numbers(g, x):
    a, b = g.relu(x), g.abs(x, name="a b")
    c = g.add(a, b)
    odd = g.input("nan", dtype="f32", shape=())
    assert [g.labels.of(v) for v in (x, a, b, c, odd)] == ["x", "%0", '%"a b"', "%1", '"nan"']
    other = gq.Graph()
    stranger = other.relu(other.input("x", dtype="f32", shape=(1,)))
    assert g.labels.of(stranger) == "%?"


def test_numbers_follow_changes_unless_they_are_kept(g, x):
    g.relu(x)
    b = g.abs(x)
    g.output(g.add(b, b), name="y")
    assert g.labels.of(b) == "%1"
    with g.labels.stable():
        g.prune()
        c, d = g.square(x), g.exp(x)
        assert [g.labels.of(v) for v in (b, d, c)] == ["%1", "%2", "%3"]
    assert not g.labels.kept and [g.labels.of(v) for v in (b, c, d)] == ["%0", "%1", "%2"]
    g.labels.keep()
    with g.labels.stable():
        pass
    assert g.labels.kept


def test_what_replaces_a_value_takes_its_number_where_numbers_are_kept(g, x):
    a, b = g.relu(x), g.abs(x)
    g.labels.keep()
    new = g.square(x)
    g.labels.replaced(b, new)
    assert [g.labels.of(v) for v in (new, b, g.exp(x))] == ["%1", "%1", "%3"]
    g.labels.replaced(new, a)  # which has a number
    assert g.labels.of(a) == "%0"


def test_no_number_is_taken_over_where_numbers_are_counted_anew(g, x):
    a, b = g.relu(x), g.abs(x)
    assert (g.labels.of(a), g.labels.of(b)) == ("%0", "%1")
    other = gq.Graph()
    stranger = other.relu(other.input("x", dtype="f32", shape=(1,)))
    g.labels.replaced(b, stranger)
    assert g.labels.of(stranger) == "%?"


def test_origins_are_those_of_the_first_that_is_noted(g, x):
    a = g.relu(x)
    g.labels.stands(a, x)
    assert g.labels.origins is None
    g.labels.keep(trace=True)
    assert g.labels.origins == {x: (x, None), a: (a, None)} and g.labels.kept
    new = g.static_transpose(a, order=[1, 0])
    g.labels.stands(new, a, [1, 0])
    g.labels.stands(new, x)
    assert g.labels.origins[new] == (a, [1, 0])


def test_numbers_of_another_graph_are_taken(g, x):
    g.abs(x)
    b, named = g.relu(x), g.exp(x, name="12")
    copy = gq.Graph()
    cx = copy.input("x", dtype="f32", shape=(2, 3))
    cb, cn, new = copy.relu(cx), copy.exp(cx, name="12"), copy.abs(cx)
    copy.labels.take(g.labels, {cb: b, cx: x, cn: named})
    assert copy.labels.kept and copy.labels.origins == {}
    assert [copy.labels.of(v) for v in (cb, cn)] == ["%1", '%"12"'] and copy.labels._numbers == {cb: 1}
    copy.labels.stands(new, cb)
    assert copy.labels.origins == {new: (cb, None)}


def test_mentions(g, x):
    w = g.constant(np.ones((3, 4), np.float32))
    number = g.constant(np.float32(2.5))
    named = g.relu(x, name="r")
    product = g.matmul(x, w)
    mention = g.labels.mention
    assert mention(x) == "x" and mention(named) == "%r" and mention(w) == "a constant"
    assert mention(number) == "the number 2.5"
    assert mention(product) == "the matmul of 'x' and a constant"
    assert mention(g.add(product, number)) == "the add of a matmul and the number 2.5"
    assert mention(g.square(g.add(x, x))) == "the square of an add"
    many = g.concat(x, x, x, x, axis=0)
    assert mention(many) == "the concat of 'x', 'x', 'x' and 'x'"
    more = g.concat(x, x, x, x, x, named, axis=0)
    assert mention(more) == "the concat of 'x', 'x', 'x' and 3 more"
    scale, zero = g.dynamic_range(x)
    assert [mention(v) for v in (scale, zero)] == [
        f"output {k} of the dynamic_range of 'x'" for k in (0, 1)]
    assert mention(g.conv_integer(*(g.input(n, dtype="u8", shape=(1, 1, 1)) for n in "ab"), None,
                                  g.input("z", dtype="u8", shape=()), strides=[1], pads_begin=[0], pads_end=[0],
                                  dilations=[1])) == "the conv_integer of 'a', 'b', nothing and 'z'"


@pytest.mark.parametrize("number", ["%0", "%1"])
def test_stable_numbers_end_with_an_error(g, x, number):
    a, b = g.relu(x), g.abs(x)
    with pytest.raises(ZeroDivisionError), g.labels.stable():
        raise ZeroDivisionError
    assert not g.labels.kept and g.labels.of(a if number == "%0" else b) == number


@pytest.mark.parametrize("name, text", [
    ("a.b_1", "a.b_1"), ("inf", '"inf"'), ("return", '"return"'), ("as", '"as"'), ("assume", "assume"), ("1a", '"1a"'),
    ("a b", '"a b"'), ("größe", "größe"), ("größe 1", '"größe 1"'), ("a\n", '"a\\n"'), ("ö\u200b", '"\\u00f6\\u200b"')])
def test_names_in_texts(name, text):
    assert quote(name) == text
    g = gq.Graph()
    g.output(g.relu(g.input(name, dtype="f32", shape=(2,))), name="y")
    assert gq.parse(gq.to_text(g)).inputs[0].name == name


def test_words_of_errors():
    assert listing("a") == "a" and listing("ab") == "a or b" and listing("abc", "and") == "a, b and c"
    assert choice("x", ["a", "b"] * 2) == "; there are a, b"
    assert choice("zzz", "abcdefgh") == "; there are a, b, c, d, e, f, g, h"
    assert choice("zzz", "abcdefghi") == "; there are a, b, c, d, e, f, g, h and 1 more"
    assert choice("hiden", ["other", "hidden"]) == "; did you mean hidden?"
