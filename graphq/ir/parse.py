"""Parse the text form of graphs (`graphq.ir.text` describes it). Every error has a line and a column."""
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np

from graphq.dtypes import DTYPES, DType, u64
from graphq.errors import GraphError, ParseError
from graphq.ir.graph import Graph, Op, TensorType, Value
from graphq.ir.op import lookup
from graphq.ir.tensor_type import check_dims

T = TypeVar("T")

_TOKEN = re.compile(r"""
    (?P<space>\s+|\#[^\n]*) | (?P<more>\.\.\.(?:\s\d+\smore)?) | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<value>%(?:"(?:[^"\\\n]|\\.)*"|[\w.]+))
  | (?P<number>[-+]?(?:inf\b|nan\b|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![\w.])))
  | (?P<word>[\w.]+) | (?P<mark>[(){}\[\],:=?*])""", re.VERBOSE)

_INTEGER = re.compile(r"[-+]?[0-9]{1,1000}")


def parse(text: str) -> Graph:
    """Parse a graph. Raises ParseError with line and column."""
    if not isinstance(text, str):
        raise ParseError(f"a graph's text must be a string, got {text!r}")
    parser = _Parser(text)
    try:
        return parser.whole()
    except RecursionError:
        parser.fail("nested too deeply")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.statement = text, 0, 0
        self.tokens: list[tuple[str, str, int]] = []
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

    def built(self, pos: int, build: Callable[[], T]) -> T:
        """Call `build()`, and add the position in the text to its errors."""
        try:
            return build()
        except ParseError:
            raise
        except GraphError as e:
            self.fail(str(e), pos)

    # -- tokens -----------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    @property
    def pos(self) -> int:
        return self.tokens[self.at][2]

    def peek(self, text: str, ahead: int = 0) -> bool:
        kind, found, _ = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        return found == text and kind in ("word", "mark")

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
            self.fail("the text was cut short ('...'); print it whole with to_text(graph)")
        if kind not in kinds:
            self.fail(f"expected a {' or '.join(kinds)}, found '{text}'")
        self.at += 1
        return text

    def name(self) -> str:
        pos = self.pos
        return self.unquote(self.take("word", "string"), pos)

    def unquote(self, text: str, pos: int) -> str:
        if not text.startswith('"'):
            return text
        try:
            return str(json.loads(text))
        except json.JSONDecodeError:
            self.fail(f"bad string {text}", pos)

    def integer(self) -> int:
        pos, text = self.pos, self.take("number")
        if not _INTEGER.fullmatch(text):
            self.fail(f"expected an integer, found '{text[:40]}'", pos)
        return int(text)

    def listed(self, close: str, item: Callable[[], T]) -> list[T]:
        items = []
        while not self.accept(close):
            items.append(item())
            if not self.peek(close):
                self.expect(",")
        return items

    # -- the graph --------------------------------------------------------------------------------------------

    def whole(self) -> Graph:
        graph = self.graph()
        if self.kind != "end":
            self.fail(f"unexpected '{self.tokens[self.at][1]}' after the graph")
        return graph

    def graph(self) -> Graph:
        self.expect("graph")
        g = Graph("graph" if self.peek("(") else self.name())
        env: dict[str, Value] = {}
        self.expect("(")
        self.listed(")", lambda: self.parameter(g, env))
        self.expect("{")
        while not self.peek("return"):
            self.node(g, env)
        pos = self.pos
        self.expect("return")
        self.statement = pos
        outputs = self.listed("}", lambda: self.returned(env))
        names = [n or v.name or f"out{k}" for k, (v, n) in enumerate(outputs)]
        self.built(pos, lambda: g.set_outputs([v for v, _ in outputs], names))
        return g

    def parameter(self, g: Graph, env: dict[str, Value]) -> None:
        pos = self.pos
        name = self.name()
        self.expect(":")
        t = self.type()
        kind: Any = self.take("word") if self.kind == "word" else "undef"
        env[json.dumps(name)] = self.built(pos, lambda: g.input(name, dtype=t.dtype, shape=t.shape, property=kind))

    def type(self) -> TensorType:
        pos, word = self.pos, self.take("word")
        if word not in DTYPES:
            self.fail(f"unknown dtype '{word}'; graphq has {', '.join(DTYPES)}", pos)
        self.expect("[")
        if self.accept("*"):
            self.expect("]")
            return TensorType(DTYPES[word], None)
        dims = self.listed("]", lambda: None if self.accept("?") else self.integer())
        return TensorType(DTYPES[word], self.built(pos, lambda: check_dims(dims, word)))

    def returned(self, env: dict[str, Value]) -> tuple[Value, str | None]:
        pos, value = self.pos, self.operand(env)
        if value is None:
            self.fail("a graph cannot return none", pos)
        return value, self.name() if self.accept("as") else None

    # -- nodes ------------------------------------------------------------------------------------------------

    def node(self, g: Graph, env: dict[str, Value]) -> None:
        start = self.statement = self.pos
        results: list[tuple[str, int]] = []
        while self.kind == "value":
            results.append((self.tokens[self.at][1], self.pos))
            self.at += 1
            if not self.accept(","):
                break
        if results:
            self.expect("=")
        pos, word = self.pos, self.take("word")
        op = self.built(pos, lambda: lookup(word))
        self.expect("(")
        operands: list[Value | None] = []
        attrs: dict[str, Any] = {}
        self.listed(")", lambda: self.argument(operands, attrs, env))
        types = [self.type()] if self.accept(":") else None
        while types and self.accept(","):
            types.append(self.type())
        outs = self.built(start, lambda: g.add_node(op, operands, attrs))
        self.define(g, env, op, outs, results, types, start)

    def define(self, g: Graph, env: dict[str, Value], op: Op, outs: tuple[Value, ...], results: list[tuple[str, int]],
               types: list[TensorType] | None, start: int) -> None:
        if len(outs) != len(results):
            self.fail(f"{op.name} has {len(outs)} results, the text names {len(results)}", start)
        got = [o.type for o in outs]
        if types is not None and types != got:
            said = ", ".join(map(str, types))
            self.fail(f"{op.name} has type {', '.join(map(str, got))}, the text says {said}", start)
        for out, (text, pos) in zip(outs, results, strict=True):
            key = self.key(text, pos)
            if key in env:
                self.fail(f"{text} is defined twice", pos)
            env[key] = out
            if not key[1:].isdecimal():
                self.built(pos, partial(g.rename, out, json.loads(key[1:])))

    def key(self, text: str, pos: int) -> str:
        """The key in `env` for a name, quoted or not: `"x"` for an input, `%"w"` or `%3` for other values."""
        if not text.startswith("%"):
            return json.dumps(self.unquote(text, pos))
        return text if text[1:].isdecimal() else "%" + json.dumps(self.unquote(text[1:], pos))

    def argument(self, operands: list[Value | None], attrs: dict[str, Any], env: dict[str, Value]) -> None:
        if self.kind != "word" or not self.peek("=", ahead=1):
            operands.append(self.operand(env))
            return
        pos, key = self.pos, self.take("word")
        self.expect("=")
        if key in attrs:
            self.fail(f"attribute '{key}' is given twice", pos)
        attrs[key] = self.attribute()

    def operand(self, env: dict[str, Value]) -> Value | None:
        if self.accept("none"):
            return None
        pos, text = self.pos, self.take("value", "word", "string")
        key = self.key(text, pos)
        if key not in env:
            self.fail(self.undefined(text), pos)
        return env[key]

    def undefined(self, text: str) -> str:
        line = self.text.rfind("\n", 0, self.statement) + 1
        later = re.compile(rf"^\s*(?:%\S+, )*{re.escape(text)}(?:, %\S+)* =", re.MULTILINE).search(self.text, line)
        if later is None:
            return f"{text} is not defined"
        return f"{text} is used before its definition on line {self.text.count(chr(10), 0, later.end()) + 1}: " \
               "a cycle, or nodes out of order"

    # -- attributes -------------------------------------------------------------------------------------------

    def attribute(self) -> Any:
        kind, text, _ = self.tokens[self.at]
        if self.accept("["):
            return self.listed("]", self.attribute)
        if self.peek("graph"):
            statement, body = self.statement, self.graph()
            self.statement = statement
            return body
        if kind == "number":
            return self.integer() if text.lstrip("+-").isdecimal() else float(self.take("number"))
        if kind == "word" and text in ("none", "true", "false"):
            self.at += 1
            return {"none": None, "true": True, "false": False}[text]
        if kind == "word" and text in DTYPES:
            return self.array() if self.peek("[", ahead=1) else DTYPES[self.take("word")]
        pos = self.pos
        return self.unquote(self.take("string", "number"), pos)

    def array(self) -> np.ndarray:
        pos, t = self.pos, self.type()
        if not t.known:
            self.fail(f"a constant of unknown shape {t}", pos)
        self.expect("{")
        items = self.listed("}", lambda: self.element(t.dtype))
        if len(items) != t.size:
            self.fail(f"{t} has {t.size} elements, the text gives {len(items)}", pos)
        wide = np.float64 if t.dtype.kind == "float" else np.uint64 if t.dtype == u64 else np.int64
        out = np.array(items, wide).astype(t.dtype.numpy).reshape(t.dims)
        out.flags.writeable = False
        return out

    def element(self, dtype: DType) -> float:
        pos = self.pos
        if dtype.kind != "float":
            n = self.integer()
            if not dtype.min <= n <= dtype.max:
                self.fail(f"{n} is not in the range [{dtype.min}, {dtype.max}] of {dtype}", pos)
            return n
        text = self.take("number")
        x = float(text)
        with np.errstate(all="ignore"):
            y = np.float64(x).astype(dtype.numpy).astype(np.float64)
        if not (y == x or x != x and y != y) and not np.isfinite(y):
            self.fail(f"{text} does not fit into {dtype}", pos)
        return x
