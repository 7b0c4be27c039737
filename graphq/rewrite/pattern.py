"""Patterns for rewrites, built by calling operations on a PatternBuilder."""
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from graphq.errors import GraphError
from graphq.ir import Node, Op, lookup, normalize

ANY: Any = object()
"""Stands for any value of an attribute in a pattern."""


@dataclass(frozen=True)
class Var:
    """A variable: matches any value, but the same value at each place in the pattern."""

    name: str


@dataclass(frozen=True, eq=False)
class OpPattern:
    """Matches the result of one of the operations `ops`, with the given attributes.

    If `operands` is None, any operands match. If one OpPattern object occurs twice in a pattern, both places must match
    the same value.
    """

    ops: Mapping[str, Mapping[str, Any]]
    operands: "tuple[PatternLike | None, ...] | None"


@dataclass(frozen=True, eq=False)
class AnyOf:
    """Matches if one of its alternatives matches. Earlier alternatives are tried first."""

    alternatives: "tuple[PatternLike, ...]"


@dataclass(frozen=True, eq=False)
class Repeat:
    """Matches up to `max` nodes of `ops` between `inner` and the matched value, including branches that join again.

    If `inner` is None, the nodes may begin anywhere; then only the matched nodes may use their results. The
    function `where` may refuse a node.
    """

    ops: frozenset[str]
    inner: "PatternLike | None"
    max: int
    where: Callable[[Node], str | None] | None = None


PatternLike: TypeAlias = Var | OpPattern | AnyOf | Repeat


class PatternBuilder:
    """The argument `g` of `Rewrite.pattern`. Each method makes a pattern of an operation, or combines patterns.

    `optional`, `any_of` and `repeat` combine patterns. An operation with `...` as its only operand matches any
    operands.
    """

    def __getattr__(self, name: str) -> Callable[..., OpPattern]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._op([name])

    def _op(self, names: Iterable[str]) -> Callable[..., OpPattern]:
        ops = [lookup(n) for n in names]

        def build(*operands: PatternLike | None, attrs: Any = None, **given: Any) -> OpPattern:
            if attrs not in (None, ANY):
                raise GraphError(f"pattern: attrs= takes only ANY, got {attrs!r}; give attributes by keyword")
            wanted = {op.name: _wanted(op, given, attrs is ANY) for op in ops}
            if operands == (...,):
                return OpPattern(wanted, None)
            for x in operands:
                _expect_pattern(x)
            while operands and operands[-1] is None:
                operands = operands[:-1]
            return OpPattern(wanted, operands)

        return build

    def any_of(self, *choices: Any) -> Any:
        """Return an AnyOf of patterns. For names of operations, return a method that makes patterns for any of them."""
        if choices and all(isinstance(c, str) for c in choices):
            return self._op(choices)
        for c in choices:
            _expect_pattern(c)
        return AnyOf(choices)

    def optional(self, op: str, x: PatternLike, *others: PatternLike, **attrs: Any) -> AnyOf:
        """A pattern that matches `op(x, *others)` or `x`."""
        return AnyOf((self._op([op])(x, *others, **attrs), x))

    def repeat(self, ops: Iterable[str], x: PatternLike | None = None, *, max: int,
               where: Callable[[Node], str | None] | None = None) -> Repeat:
        """A pattern that matches up to `max` nodes of `ops` after `x`, with any other operands and attributes.

        Without `x`, the nodes may begin anywhere. `where(node)` may return a reason to leave a node out. The empty
        reason "" is not reported.
        """
        _expect_pattern(x)
        return Repeat(frozenset(lookup(o).name for o in ops), x, max, where)


def _expect_pattern(x: Any) -> None:
    if x is not None and not isinstance(x, PatternLike):
        raise GraphError(f"pattern: an operand must be a variable or a pattern, got {x!r}; "
                         "match a constant with a variable and test its `data` in check")


def _wanted(op: Op, given: Mapping[str, Any], any_attrs: bool) -> dict[str, Any]:
    """The attributes that a node must have, in normal form. Attributes that may have any value are left out."""
    for name in given:
        if name not in op.attributes:
            raise GraphError(f"pattern: {op.name} has no attribute '{name}'")
    out = {}
    for name, a in op.attributes.items():
        value = given.get(name, ANY if any_attrs or a.required else a.default)
        if value is not ANY:
            out[name] = normalize(a.annotation, value, name)
    return out
