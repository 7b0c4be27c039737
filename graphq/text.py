"""Print a graph as text and parse it back.

    graph dense(x: u8[64,768], b: f32[3072]) {
      %w = constant(value=s8[2,2]{1, 2, 3, 4}) : s8[2,2]
      %0 = dequantize(x, scales=[0.02], zps=[120]) : f32[64,768]
      %1 = relu(%0) : f32[64,768]
      return %1
    }

Attributes at their default are left out. `parse(to_text(g))` gives the same graph; a long text for people
(`str(g)`, `elide=`) cuts arrays and lists short with `...`, and is refused by `parse`.
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from graphq.dtypes import DTYPES, DType, as_dtype
from graphq.errors import GraphError, ParseError
from graphq.ir import Graph, Node, TensorType, Value
from graphq.op import lookup

SHORT = 6
"""Elements of lists and arrays that texts for people show."""

_PLAIN = re.compile(r"(?!(?:inf|nan|none|return|graph|as)\b)[A-Za-z_][\w.]*")


# -- printing -------------------------------------------------------------------------------------------------


def to_text(graph: Graph, *, elide: int | None = None, indent: str = "") -> str:
    """The graph as text; lists and arrays of more than `elide` elements are cut short (never when None)."""
    names = _value_names(graph)
    params = ", ".join(f"{names[v]}: {v.type}" + (f" {v.property}" if v.property != "undef" else "")
                       for v in graph.inputs)
    title = "graph" if graph.name == "graph" else f"graph {_quote(graph.name)}"
    lines = [f"{title}({params}) {{"]
    lines += [f"{indent}  {_node(n, names, elide, indent + '  ')}" for n in graph.nodes]
    returns = []
    for v, name in zip(graph.outputs, graph.output_names, strict=True):
        own = v.name if v.name is not None else None
        returns.append(names[v] if own == name else f"{names[v]} as {_quote(name)}")
    # "out0", "out1" ... are the names of unnamed outputs and go without saying.
    returns = [re.sub(rf" as out{k}$", "", r) if graph.outputs[k].name is None else r for k, r in enumerate(returns)]
    lines.append(f"{indent}  return {', '.join(returns)}".rstrip())
    return "\n".join([*lines, indent + "}"])


def _value_names(graph: Graph) -> dict[Value, str]:
    names, k = {v: _quote(str(v.name)) for v in graph.inputs}, 0
    for node in graph.nodes:
        for out in node.outputs:
            names[out] = f"%{k}" if out.name is None else f"%{_quote(out.name)}"
            k += out.name is None
    return names


def _node(node: Node, names: dict[Value, str], elide: int | None, indent: str) -> str:
    args = ["none" if v is None else names[v] for v in node.inputs]
    for key, a in node.op.attributes.items():
        value = node.attrs[key]
        if a.required or not _same(value, a.default):
            args.append(f"{key}={_attribute(value, elide, indent)}")
    types = ", ".join(str(o.type) for o in node.outputs)
    lhs = ", ".join(names[o] for o in node.outputs)
    return f"{lhs} = {node.op.name}({', '.join(args)}) : {types}" if lhs else f"{node.op.name}({', '.join(args)})"


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and not isinstance(a, np.ndarray) and bool(a == b)


def _quote(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def _attribute(value: Any, elide: int | None, indent: str) -> str:
    if isinstance(value, Graph):
        return to_text(value, elide=elide, indent=indent)
    if isinstance(value, np.ndarray):
        dtype = as_dtype(value.dtype)
        return f"{TensorType(dtype, value.shape)}{{{_cut(_elements(value, elide), value.size, elide)}}}"
    if isinstance(value, tuple):
        items = value if elide is None else value[:elide]
        return f"[{_cut([_attribute(v, elide, indent) for v in items], len(value), elide)}]"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, DType):
        return value.name
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return repr(value)


def _elements(array: np.ndarray, elide: int | None) -> list[str]:
    flat = array.ravel()[:elide]
    if array.dtype.kind in "iub" or array.dtype.name in ("int4", "uint4"):
        return [str(int(x)) for x in flat]
    # The shortest text that gives the same f32: every narrower float is exact in it.
    return [str(x) for x in flat.astype(np.float32)]


def _cut(items: list[str], size: int, elide: int | None) -> str:
    return ", ".join(items) if elide is None or size <= elide else ", ".join(items) + f", ... {size - elide} more"


# -- parsing --------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"""
    (?P<space>\s+|\#[^\n]*) | (?P<more>\.\.\.\s\d+\smore) | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<value>%(?:"(?:[^"\\]|\\.)*"|[\w.]+)) | (?P<number>[-+]?(?:inf\b|nan\b|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])))
  | (?P<word>[\w.]+) | (?P<mark>[(){}\[\],:=?*])""", re.VERBOSE)


def parse(text: str) -> Graph:
    """The graph that `text` states; raises ParseError that names line and column, GraphError as the builder does."""
    return _Parser(text).whole()


class _Parser:
    """Recursive descent over a list of (kind, text, offset) tokens."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.at = text, [], 0
        pos = 0
        while pos < len(text):
            m = _TOKEN.match(text, pos)
            if m is None:
                self.fail(f"unexpected character {text[pos]!r}", pos)
            if m.lastgroup != "space":
                self.tokens.append((str(m.lastgroup), m.group(), pos))
            pos = m.end()
        self.tokens.append(("end", "end of text", len(text)))

    def fail(self, message: str, pos: int | None = None) -> NoReturn:
        pos = self.tokens[self.at][2] if pos is None else pos
        line = self.text.count("\n", 0, pos) + 1
        column = pos - (self.text.rfind("\n", 0, pos) + 1) + 1
        raise ParseError(f"line {line}, column {column}: {message}")

    def peek(self, text: str) -> bool:
        return self.tokens[self.at][1] == text and self.tokens[self.at][0] != "string"

    def accept(self, text: str) -> bool:
        if self.peek(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected '{text}', found '{self.tokens[self.at][1]}'")

    def take(self, *kinds: str) -> str:
        kind, text, _ = self.tokens[self.at]
        if kind == "more":
            self.fail("the text was cut short ('... more'); print it whole with to_text(graph)")
        if kind not in kinds:
            self.fail(f"expected a {' or '.join(kinds)}, found '{text}'")
        self.at += 1
        return text

    def name(self) -> str:
        return self.unquote(self.take("word", "string"))

    def unquote(self, text: str) -> str:
        if not text.startswith('"'):
            return text
        try:
            return str(json.loads(text))
        except json.JSONDecodeError:
            self.fail(f"bad string {text}")

    def listed(self, close: str, item: Callable[[], Any]) -> list[Any]:
        items = []
        while not self.accept(close):
            items.append(item())
            if not self.peek(close):
                self.expect(",")
        return items

    def whole(self) -> Graph:
        graph = self.graph()
        if self.tokens[self.at][0] != "end":
            self.fail(f"unexpected '{self.tokens[self.at][1]}' after the graph")
        return graph

    def graph(self) -> Graph:
        self.expect("graph")
        g = Graph("graph" if self.peek("(") else self.name())
        env: dict[str, Value] = {}
        self.expect("(")
        self.listed(")", lambda: self.parameter(g, env))
        self.expect("{")
        while not self.accept("return"):
            self.node(g, env)
        outputs = self.listed("}", lambda: self.returned(g, env))
        g.set_outputs([v for v, _ in outputs],
                      [n or v.name or f"out{k}" for k, (v, n) in enumerate(outputs)])
        return g

    def parameter(self, g: Graph, env: dict[str, Value]) -> None:
        name = self.name()
        self.expect(":")
        t = self.type()
        kind: Any = self.take("word") if self.tokens[self.at][0] == "word" else "undef"
        env[name] = g.input(name, dtype=t.dtype, shape=t.shape, property=kind)

    def type(self) -> TensorType:
        word = self.take("word")
        if word not in DTYPES:
            self.fail(f"unknown dtype '{word}'; graphq has {', '.join(DTYPES)}")
        self.expect("[")
        if self.accept("*"):
            self.expect("]")
            return TensorType(DTYPES[word], None)
        dims = self.listed("]", lambda: None if self.accept("?") else self.integer())
        return TensorType(DTYPES[word], tuple(dims))

    def integer(self) -> int:
        text = self.take("number")
        if not text.lstrip("+-").isdecimal():
            self.fail(f"expected an integer, found '{text}'")
        return int(text)

    def returned(self, g: Graph, env: dict[str, Value]) -> tuple[Value, str | None]:
        value = self.operand(env)
        if value is None:
            self.fail("a graph cannot return none")
        return value, self.name() if self.accept("as") else None

    def node(self, g: Graph, env: dict[str, Value]) -> None:
        start, results = self.at, []
        while self.tokens[self.at][0] == "value":
            results.append(self.take("value")[1:])
            if not self.accept(","):
                break
        if results:
            self.expect("=")
        try:
            op = lookup(self.take("word"))
        except GraphError as e:
            self.fail(str(e), self.tokens[self.at - 1][2])
        self.expect("(")
        operands: list[Value | None] = []
        attrs: dict[str, Any] = {}
        self.listed(")", lambda: self.argument(operands, attrs, env))
        types = [self.type()] if self.accept(":") else []
        while types and self.accept(","):
            types.append(self.type())
        self.define(g, env, op, operands, attrs, results, types, self.tokens[start][2])

    def define(self, g: Graph, env: dict[str, Value], op: Any, operands: list[Value | None], attrs: dict[str, Any],
               results: list[str], types: list[TensorType], pos: int) -> None:
        try:
            outs = g.add_node(op, operands, attrs)
        except GraphError as e:
            self.fail(str(e), pos)
        if len(outs) != len(results):
            self.fail(f"{op.name} has {len(outs)} results, the text names {len(results)}", pos)
        for out, name in zip(outs, results, strict=True):
            name = self.unquote(name)
            if f"%{name}" in env:
                self.fail(f"%{name} is defined twice", pos)
            env[f"%{name}"] = out
            if not name.isdecimal():
                out.name = g._claim(name, op.name)
        got = [o.type for o in outs]
        if types and types != got:
            self.fail(f"{op.name} has type {', '.join(map(str, got))}, the text says {', '.join(map(str, types))}", pos)

    def argument(self, operands: list[Value | None], attrs: dict[str, Any], env: dict[str, Value]) -> None:
        if self.tokens[self.at][0] == "word" and self.tokens[self.at + 1][1] == "=":
            key = self.take("word")
            self.expect("=")
            if key in attrs:
                self.fail(f"attribute '{key}' is given twice")
            attrs[key] = self.attribute()
        else:
            operands.append(self.operand(env))

    def operand(self, env: dict[str, Value]) -> Value | None:
        if self.accept("none"):
            return None
        text = self.take("value", "word", "string")
        key = "%" + self.unquote(text[1:]) if text.startswith("%") else self.unquote(text)
        if key not in env:
            self.at -= 1
            self.fail(self.undefined(text))
        return env[key]

    def undefined(self, text: str) -> str:
        later = re.search(rf"^\s*(?:%\S+, )*{re.escape(text)}(?:, %\S+)* =", self.text, re.MULTILINE)
        if later is None:
            return f"{text} is not defined"
        return f"{text} is used before its definition on line {self.text.count(chr(10), 0, later.end()) + 1}: " \
               "a cycle, or nodes out of order"

    def attribute(self) -> Any:
        kind, text, _ = self.tokens[self.at]
        if self.accept("["):
            return self.listed("]", self.attribute)
        if self.peek("graph"):
            return self.graph()
        if kind == "string":
            return self.unquote(self.take("string"))
        if kind == "number":
            self.at += 1
            return int(text) if text.lstrip("+-").isdecimal() else float(text)
        if text in ("none", "true", "false"):
            self.at += 1
            return {"none": None, "true": True, "false": False}[text]
        if text in DTYPES:
            return self.array() if self.tokens[self.at + 1][1] == "[" else DTYPES[self.take("word")]
        self.take("string", "number")
        return None

    def array(self) -> np.ndarray:
        t = self.type()
        self.expect("{")
        items = self.listed("}", lambda: float(self.take("number", "word")))
        if len(items) != t.size:
            self.fail(f"{t} has {t.size} elements, the text gives {len(items)}")
        out = np.array(items, np.float64).astype(t.dtype.numpy).reshape(t.dims)
        out.flags.writeable = False
        return out
