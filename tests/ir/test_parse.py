"""Parsing: errors with line and column; no text crashes."""
import pytest

import graphq as gq
from graphq.dtypes import DTYPES, as_dtype
from graphq.errors import GraphError, GraphqError, ParseError
from graphq.ir.text import parse, to_text
from graphq.testing import check_round_trip


def returning(text):
    """A graph text around the statements and return of `text`."""
    return "graph(x: f32[2,3]) {\n" + text + "\n}"


@pytest.mark.parametrize("text,message", [
    ("", "line 1, column 1: expected 'graph', found 'end of text'"),
    ("grap(x: f32[2]) {", "line 1, column 1: expected 'graph', found 'grap'"),
    ("graph(x: f32[2]) {\n  %0 = relu(x)\n", "line 3, column 1: expected a word, found 'end of text'"),
    ("graph(x: f32[2]) {\n  %0 = relu(x", "line 2, column 14: expected ',', found 'end of text'"),
    ("graph(x: f32[2]) {\n  return x\n}}", "line 3, column 2: unexpected '}' after the graph"),
    ("graph(x: f32[2]) {\n  return x ;\n}", "line 2, column 12: unexpected character ';'"),
    ("graph(x: f32[2], x: u8[2]) {return x}", "line 1, column 18: input 'x': the name 'x' is taken"),
    ("graph(x: f96[2]) {return x}", "line 1, column 10: unknown dtype 'f96'; graphq has f32"),
    ("graph(x: f32[2.5]) {return x}", "line 1, column 14: expected an integer, found '2.5'"),
    ("graph(x: f32[-2]) {return x}", "line 1, column 10: f32: a dimension must be a non-negative int or None, got -2"),
    ("graph(x: f32[2] fixed) {return x}", "line 1, column 7: input 'x': property must be"),
    ("graph(x: f32[1" + "0" * 5000 + "]) {return x}", "line 1, column 14: expected an integer, found '1000"),
    ("graph(x: f32[1" + "0" * 500 + "]) {return x}", r"line 1, column 10: f32: shape .* more than 2\*\*48 elements"),
])
def test_parse_errors_of_the_frame(text, message):
    with pytest.raises(ParseError, match="^" + message):
        parse(text)


@pytest.mark.parametrize("text,message", [
    ("  %0 = rellu(x)", "line 2, column 8: unknown op 'rellu'; did you mean relu"),
    ("  %0 = relu(y)", "line 2, column 13: y is not defined"),
    ("  %0 = relu(%1)", "line 2, column 13: %1 is not defined"),
    ("  %0 = relu(%0)", "line 2, column 13: %0 is used before its definition on line 2: a cycle"),
    ("  %0 = relu(%1)\n  %1 = relu(%0)", "line 2, column 13: %1 is used before its definition on line 3: a cycle"),
    ("  %0 = relu(x)\n  %0 = relu(x)", "line 3, column 3: %0 is defined twice"),
    ("  %a = relu(x)\n  %\"a\" = relu(x)", "line 3, column 3: %\"a\" is defined twice"),
    ("  %x = relu(x)", "line 2, column 3: rename: the name 'x' is taken"),
    ("  %0 = relu(x) : f32[3]", r"line 2, column 3: relu has type f32\[2,3\], the text says f32\[3\]"),
    ("  %0 = relu(x) : f32[2,3], f32[2]", r"relu has type f32\[2,3\], the text says f32\[2,3\], f32\[2\]"),
    ("  %0 = relu(x) : f99[2]", "line 2, column 18: unknown dtype 'f99'"),
    ("  %0, %1 = relu(x)", "line 2, column 3: relu has 1 results, the text names 2"),
    ("  relu(x)", "line 2, column 3: relu has 1 results, the text names 0"),
    ("  %0 = relu(x, alpha=1)", r"line 2, column 3: relu\(x: f32\[2,3\]\): has no attribute 'alpha'"),
    ("  %0 = softmax(x, axis=1, axis=1)", "line 2, column 27: attribute 'axis' is given twice"),
    ("  %0 = softmax(x, axis=one)", "line 2, column 24: expected a string or number, found 'one'"),
    ("  %0 = softmax(x, axis=)", "line 2, column 24: expected a string or number, found '\\)'"),
    ("  %0 = softmax(x, axis=5)", r"line 2, column 3: softmax\(x: f32\[2,3\]\): axis must be in"),
    ("  %0 = softmax(x axis=5)", "line 2, column 18: expected ',', found 'axis'"),
    ("  %0 relu(x)", "line 2, column 6: expected '=', found 'relu'"),
    ("  %0 = constant(value=f32[2]{1})", r"line 2, column 23: f32\[2\] has 2 elements, the text gives 1"),
    ("  %0 = constant(value=f32[?]{1})", r"line 2, column 23: a constant of unknown shape f32\[\?\]"),
    ("  %0 = constant(value=f32[*]{1})", "a constant of unknown shape"),
    ("  %0 = constant(value=f32[-1,-1]{1})", "a dimension must be a non-negative int"),
    ("  %0 = constant(value=u8[1]{256})", r"line 2, column 29: 256 is not in the range \[0, 255\] of u8"),
    ("  %0 = constant(value=u8[1]{-1})", "-1 is not in the range"),
    ("  %0 = constant(value=s4[1]{8})", r"8 is not in the range \[-8, 7\] of s4"),
    ("  %0 = constant(value=u8[1]{1.5})", "expected an integer, found '1.5'"),
    ("  %0 = constant(value=u8[1]{nan})", "expected an integer, found 'nan'"),
    ("  %0 = constant(value=f32[1]{1e39})", "1e39 does not fit into f32"),
    ("  %0 = constant(value=f8_e4m3[1]{inf})", "inf does not fit into f8_e4m3"),
    ("  %0 = constant(value=f32[1]{one})", "expected a number, found 'one'"),
    ("  %0 = constant(value=f32[0,99999999999999999999]{})", "more than 2"),
    ("  %0 = constant(value=3)", "attribute 'value' must be of type ndarray, got 3"),
    ('  %0 = relu("\\q")', "line 2, column 13: bad string"),
    ('  %0 = relu("x)', "line 2, column 13: unexpected character '\"'"),
    ("  %0 = relu(x, )\n  return none", "line 3, column 10: a graph cannot return none"),
    ("  %0 = relu(x)\n  return %0, %0 as out0", "line 3, column 3: set_outputs: .* need as many different names"),
    ("  %0 = relu(x)\n  return %0 as", "expected a word or string, found '}'"),
    ("  %0 = partition(x, body=graph(a: f32[2,3]) {return x}, anchor=\"a\")", "line 2, column 53: x is not defined"),
    ("  %a = relu(x)\n  %0 = partition(x, body=graph(b: f32[2,3]) {return %a}, anchor=\"a\")", "%a is not defined"),
    ("  %0 = partition(x, body=graph(a: f32[2]) {return a}, anchor=\"a\")", "operands are .*, the body takes"),
    ("  %0 = partition(x, body=graph(a: f32[2,3]) {return}, anchor=\"a\")", "the body 'graph' has no outputs"),
    ("  %0 = static_reshape(x, shape=" + "[" * 20000, "nested too deeply"),
])
def test_parse_errors_of_statements(text, message):
    with pytest.raises(ParseError, match=message):
        parse(returning(text if "return" in text.splitlines()[-1][:9] else text + "\n  return x"))


def test_parse_takes_a_string():
    for bad in (None, b"graph() {return}", 3):
        with pytest.raises(ParseError, match="must be a string"):
            parse(bad)


def test_parse_is_public_and_parse_errors_are_graphq_errors():
    assert issubclass(ParseError, GraphqError) and not issubclass(ParseError, GraphError)
    assert gq.parse is parse and gq.to_text is to_text and as_dtype("u8") is DTYPES["u8"]


# -- any text at all ------------------------------------------------------------------------------------------

SAMPLE = '''graph net(x: u8[4,8], "b 1": f32[?] constant) {
  %w = constant(value=s8[2,2]{1, -2, 3, 127}) : s8[2,2]
  %0 = dequantize(x, qtype="per_channel", axis=-1, scales=[0.5, 1e-3], zps=none) : f32[4,8]
  %"3", %1 = softmax(%0, keep_stats=true, dtype=f16)
  %p = partition(x, body=graph body(i: u8[4,8]) { return i as o }, anchor="a") : u8[4,8]
  return %"3", x as y, %w  # done
}'''


def test_mutated_texts_raise_graphq_errors_alone():
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    pieces = st.sampled_from([*"(){}[],:=?*%\"#.-+ \n0", "graph", "return", "none", "nan", "inf", "%0", "%w", "x", "u8",
                              "f32[2]", "as", "...", "1e999", "relu", "axis=1", "99999999999999999999", "\\", "\ud800"])
    inserted = st.one_of(pieces, st.just(""), st.text(max_size=3))
    edit = st.tuples(st.integers(0, len(SAMPLE)), st.integers(0, 12), inserted)

    @hypothesis.settings(max_examples=300, derandomize=True, deadline=None, database=None)
    @hypothesis.given(st.lists(edit, min_size=1, max_size=4))
    def check(edits):
        text = SAMPLE
        for at, length, piece in edits:
            text = text[:at] + piece + text[at + length:]
        try:
            graph = parse(text)
        except GraphqError as e:
            assert "line " in str(e)
        else:
            check_round_trip(graph)

    check()


def test_texts_cut_short_anywhere_raise():
    valid = SAMPLE.replace("scales=[0.5, 1e-3]", "scales=[0.5, 1e-3, 1, 1, 1, 1, 1, 1]")
    parse(valid)
    for end in range(valid.rindex("}")):
        with pytest.raises(ParseError, match="^line "):
            parse(valid[:end])
