"""The base class of graphs: it gets methods from other modules, such as a builder method for each operation.

Type checkers read `operations.pyi` instead.
"""
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphq.errors import GraphError

if TYPE_CHECKING:
    from graphq.ir.op import Op


class Operations:
    """The builder methods of graphs, one for each operation.

    A builder method takes operands by position, and attributes and the result's `name` by keyword. It adds a node and
    returns the node's result, or a tuple of several results. Raises GraphError with the operation, the rule and the
    values.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        from graphq.ir.op import unknown

        raise _UnknownOp(unknown(name))


class _UnknownOp(GraphError, AttributeError):
    """The error for an unknown builder method; an AttributeError, because `hasattr` must return False."""


def add_method(name: str, method: Callable[..., Any]) -> None:
    """Add a method to all graphs. For type checkers, declare it in a stub or a TYPE_CHECKING block."""
    method.__name__, method.__qualname__ = name, f"Graph.{name}"
    setattr(Operations, name, method)


def add_builder(op: "Op") -> None:
    """Add the builder method of `op` to graphs."""
    def build(self: Any, /, *operands: Any, name: str | None = None, **attrs: Any) -> Any:
        outs = self.add_node(op, operands, attrs, name=name)
        return outs[0] if len(outs) == 1 else outs

    build.__doc__, build.__module__ = op.doc, op.reference.__module__
    vars(build)["__signature__"] = op.signature
    add_method(op.name, build)
