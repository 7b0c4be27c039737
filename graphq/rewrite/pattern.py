"""Patterns for rewrites, built by calling operations on a PatternBuilder."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from graphq.errors import GraphError
from graphq.ir import Node
from graphq.ir.op import Op, lookup, normalise

ANY: Any = object()
"""In a pattern, any value of an attribute."""


@dataclass(frozen=True)
class Var:
    """Matches any value. If it occurs several times in a pattern, it must be the same value each time."""

    name: str


@dataclass(frozen=True, eq=False)
class OpPattern:
    """Matches the result of a node of one of `ops`, each with the attributes that it must have.

    If `operands` is None, any operands match. If one pattern object occurs twice in a pattern, both occurrences must be
    the same value.
    """

    ops: Mapping[str, Mapping[str, Any]]
    operands: tuple[PatternLike | None, ...] | None


@dataclass(frozen=True, eq=False)
class AnyOf:
    """Matches what one of its alternatives matches; earlier alternatives are tried first."""

    alternatives: tuple[PatternLike, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """Matches up to `max` nodes of `ops` that lead from `inner` to the value, including branches that meet again.

    Without `inner` it matches all nodes of `ops` above the value that nothing else uses. `where` may refuse a node.
    """

    ops: frozenset[str]
    inner: PatternLike | None
    max: int
    where: Callable[[Node], str | None] | None = None


PatternLike: TypeAlias = Var | OpPattern | AnyOf | Repeat


class PatternBuilder:
    """The `g` of a pattern: each method is an operation; `optional`, `any_of` and `repeat` combine patterns.

    A single `...` in place of the operands of an operation stands for any operands.
    """

    def __getattr__(self, name: str) -> Callable[..., OpPattern]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._op([name])

    def _op(self, names: Iterable[str]) -> Callable[..., OpPattern]:
        ops = [lookup(n) for n in names]

        def build(*operands: PatternLike | None, attrs: Any = None, **given: Any) -> OpPattern:
            if attrs not in (None, ANY):
                raise GraphError(f"pattern: attrs= takes ANY alone, got {attrs!r}; give attributes by keyword")
            if operands == (...,):
                return OpPattern({op.name: _wanted(op, given, attrs is ANY) for op in ops}, None)
            for x in operands:
                _expect_pattern(x)
            while operands and operands[-1] is None:
                operands = operands[:-1]
            return OpPattern({op.name: _wanted(op, given, attrs is ANY) for op in ops}, operands)

        return build

    def any_of(self, *choices: Any) -> Any:
        """For patterns, the first one that matches. For names of operations, a builder for a node of any of them."""
        if choices and all(isinstance(c, str) for c in choices):
            return self._op(choices)
        for c in choices:
            _expect_pattern(c)
        return AnyOf(choices)

    def optional(self, op: str, x: PatternLike, *others: PatternLike, **attrs: Any) -> AnyOf:
        """A pattern that matches `op(x, *others)`, or just `x`."""
        return AnyOf((self._op([op])(x, *others, **attrs), x))

    def repeat(self, ops: Iterable[str], x: PatternLike | None = None, *, max: int,
               where: Callable[[Node], str | None] | None = None) -> Repeat:
        """Up to `max` nodes of `ops` from `x` on, whatever their other operands and attributes are.

        Without `x`, the nodes may begin anywhere. `where(node)` may return a reason to leave a node out. An empty
        reason is not reported.
        """
        _expect_pattern(x)
        return Repeat(frozenset(lookup(o).name for o in ops), x, max, where)


def _expect_pattern(x: Any) -> None:
    if x is not None and not isinstance(x, PatternLike):
        raise GraphError(f"pattern: an operand must be a variable or a pattern, got {x!r}; "
                         "match a constant with a variable and test its `data` in check")


def _wanted(op: Op, given: Mapping[str, Any], any_attrs: bool) -> dict[str, Any]:
    """The attributes that a node must have, in normal form, without those that may have any value."""
    for name in given:
        if name not in op.attributes:
            raise GraphError(f"pattern: {op.name} has no attribute '{name}'")
    out = {}
    for name, a in op.attributes.items():
        value = given.get(name, ANY if any_attrs or a.required else a.default)
        if value is not ANY:
            out[name] = normalise(a.annotation, value, name)
    return out
