"""Declare operations: `register_op` turns a Python function into an Op.

The function's signature is the operation's schema. Positional parameters are tensors: a default of None makes a tensor
optional, and `*xs` accepts any number of tensors. Keyword-only parameters are attributes, with oneDNN's names and
defaults. The function's body is the NumPy reference, and `infer` is the type rule.
"""
from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphq.base.locks import lazy_property
from graphq.base.sizes import Later, Size
from graphq.dtypes import DType, as_dtype
from graphq.errors import GraphError
from graphq.ir.names import suggestion
from graphq.ir.operations import add_builder

if TYPE_CHECKING:
    from graphq.ir.graph import TensorType, Value

REQUIRED = inspect.Parameter.empty


class TensorParameter(NamedTuple):
    """A tensor parameter of an operation: required, optional, or `variadic` (any number of tensors)."""

    name: str
    optional: bool = False
    variadic: bool = False


class Attribute(NamedTuple):
    """An attribute of an operation. The default is `REQUIRED` if the user must give the attribute."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether the user must give the attribute."""
        return self.default is REQUIRED


class Curve(NamedTuple):
    """A bound on the error of a function f whose operand x has an error: |f(x') - f(x)| <= slope * |x' - x|.

    If the error of x is relative, |x' - x| <= r * |x|, a second bound holds:

        |f(x') - f(x)| <= r * (spread + own * |f(x)|)

    The kernel's own result is within `ulps` units in the last place (a unit is 2**-23 of the result's size) of the
    exact f(x). `largest(a)` is the largest |f(x)| for |x| <= a. It is given for functions whose slope is a poor bound
    of |f(x)|.

    Outside of the interval `flat`, f is constant, both in the kernel and in the reference. Outside of the interval
    `reach` (default: `flat`), f hardly changes. `reach` bounds the error of products x * f(x), and needs `own` = 0. If
    `end` is the larger magnitude of the two ends of `reach`, every x has

        |x| * |f(x') - f(x)| <= end * (slope * |x' - x| + r * spread)
    """

    slope: float
    spread: float = 0.0
    own: float = 1.0
    ulps: float = 0.0
    largest: Callable[[float], float] | None = None
    flat: tuple[float, float] = (-math.inf, math.inf)
    reach: tuple[float, float] | None = None


PairRule: TypeAlias = Literal["sum", "product", "quotient", "extreme"]
Bound: TypeAlias = Curve | Callable[..., Curve | None] | PairRule


@dataclass(frozen=True)
class Op:
    """An operation.

    `reference(*arrays, **attrs)` defines its meaning. `infer(*types, **attrs)` returns its output type or types.

    `resolve(graph, operands, attrs)` replaces a node by simpler operations as soon as types or constants allow that. It
    returns the values that replace the results, or None. `Graph.specialize` calls it.

    `kind` is oneDNN's name. `elementwise`: an output element depends only on the operands' elements at the same
    (broadcast) place. `commutative`: the first two operands may be swapped. Kernels, passes and reports use the other
    fields:

        lanes   for kernels and formulas: a function from the operands' expressions to the expression of the result
                (`kernels.lanes.expression`). Only elementwise operations have it. The function's keyword-only
                parameters are attributes; float attributes arrive as expressions
        bound   how an error of the operands changes the result (`kernels.ties.error_bounds`): a Curve for one operand,
                the name of a rule for two operands, or a function that returns a Curve or None. The function gets the
                magnitudes of all operands but the first, and attributes by keyword
        layout  how the operation computes on channels-last tensors: the name of a rule of `passes.layouts`
        rows    which axis of its results has the rows of a batch: the name of a rule of `model.row_wise`
        onnx    the ONNX operator with the same operands and the same names of attributes (`keep_dims` is `keepdims`).
                In a file an attribute may be absent (then ONNX's default applies) or a constant input
        exact   whether kernels equal the reference bit for bit, given the same operands. They differ if the lane rule
                calls a function of `kernels.lanes.elementary` that approximates the reference
        portable  whether results have the same bits on every machine. They may differ if no kernel replaces a reference
                that calls BLAS, or functions of NumPy that are approximations
    """

    name: str
    kind: str
    operands: tuple[TensorParameter, ...]
    attributes: Mapping[str, Attribute]
    reference: Callable[..., Any]
    infer: Callable[..., TensorType | tuple[TensorType, ...]]
    commutative: bool = False
    elementwise: bool = False
    resolve: Callable[..., tuple[Value, ...] | None] | None = None
    lanes: Callable[..., Any] | None = None
    bound: Bound | None = None
    exact: bool = True
    layout: str | None = None
    rows: str | None = None
    onnx: str | None = None
    portable: bool = True

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return lookup, (self.name,)

    def title(self, attrs: Mapping[str, Any]) -> str:
        """The operation's name in reports; for `onnx_node`, with the name of the ONNX operator."""
        return f"{self.name} {attrs['op_type']}" if "op_type" in self.attributes else self.name

    @property
    def variadic(self) -> bool:
        """Whether the last operand may be repeated any number of times."""
        return bool(self.operands) and self.operands[-1].variadic

    @lazy_property
    def doc(self) -> str:
        """The description of the operation: the docstring of its reference."""
        return inspect.getdoc(self.reference) or ""

    @lazy_property
    def per_axis(self) -> Mapping[str, int | None]:
        """The defaults of attributes that accept one number for all spatial axes, by name (None: required)."""
        return {name: x for name, x in _PER_AXIS.items() if name in self.attributes and "strides" in self.attributes}

    @lazy_property
    def counts(self) -> tuple[int, float]:
        """The least and the greatest number of operands."""
        most = math.inf if self.variadic else len(self.operands)
        return sum(not (p.optional or p.variadic) for p in self.operands), most

    @lazy_property
    def signature(self) -> inspect.Signature:
        """The signature of the builder method: operands by position, attributes and `name` by keyword."""
        P = inspect.Parameter
        operands = [P(p.name, P.VAR_POSITIONAL if p.variadic else P.POSITIONAL_ONLY,
                      default=None if p.optional else P.empty) for p in self.operands]
        attributes = [P(a.name, P.KEYWORD_ONLY, default=self._left_out(a),
                        annotation=int | a.annotation if a.name in self.per_axis else
                        _FOR_ALL[a.name] | a.annotation if a.name in _FOR_ALL else a.annotation)
                      for a in self.attributes.values()]
        return inspect.Signature([P("self", P.POSITIONAL_ONLY), *operands, *attributes,
                                  P("name", P.KEYWORD_ONLY, default=None, annotation=str | None)])

    def check_keywords(self, attrs: Mapping[str, Any]) -> None:
        """Raise GraphError if an operand is given by keyword."""
        for p in () if attrs.keys() <= self.attributes.keys() else self.operands:
            if p.name in attrs and p.name not in self.attributes:
                order = ", ".join("*" * q.variadic + q.name for q in self.operands)
                raise GraphError(f"operand '{p.name}' was given by keyword, but operands are positional: "
                                 f"{self.name}({order})")

    def check_operands(self, operands: Sequence[object]) -> None:
        """Raise GraphError if the signature does not allow these operands. An absent operand is None."""
        least, most = self.counts
        if not least <= len(operands) <= most:
            names = ", ".join(p.name for p in self.operands)
            raise GraphError(f"takes operands ({names}), got {len(operands)} of them")
        for k, x in enumerate(operands):
            if x is None and not (p := self.operands[min(k, len(self.operands) - 1)]).optional:
                raise GraphError(f"operand '{p.name}' is required, got None")

    def types(self, operands: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """Infer the types of all results. Raises GraphError if operands or attributes do not fit."""
        found = self.infer(*operands, **attrs)
        return found if isinstance(found, tuple) else (found,)

    def _left_out(self, a: Attribute) -> Any:
        number = self.per_axis.get(a.name) if a.required else None
        return a.default if number is None else number

    def complete(self, attrs: Mapping[str, Any], operands: Sequence[TensorType | None] = ()) -> dict[str, Any]:
        """Check attributes against their annotations and add defaults. Returns all attributes in normal form.

        If an attribute is a list with one element per spatial axis, a single number is repeated. The number of axes
        follows from the rank of the first operand, or else of the second.
        """
        if not attrs.keys() <= self.attributes.keys():
            name = next(name for name in attrs if name not in self.attributes)
            raise GraphError(f"has no attribute '{name}'; it has {', '.join(self.attributes) or 'no attributes'}")
        out = {}
        for name, a in self.attributes.items():
            value = attrs[name] if name in attrs else self._left_out(a)
            if value is REQUIRED:
                raise GraphError(f"attribute '{name}' is required")
            if name in self.per_axis and isinstance(value, int | np.integer) and not isinstance(value, bool):
                value = (int(value),) * _spatial_axes(operands, name)
            elif name in _FOR_ALL and isinstance(value, int | float | np.integer | np.floating | np.bool_):
                value = (value,)
            given = name in attrs and type(value) is not a.annotation
            out[name] = normalize(a.annotation, value, name) if given else value
        return out

    def formats_that_fit(self, operands: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> str:
        """A phrase for errors: the values of `data_format` and `weights_format` that would fit these operands."""
        names = [name for name in self.attributes if name.endswith("_format")]
        fitting = []
        for values in product(*(typing.get_args(self.attributes[name].annotation) for name in names)):
            other = {k: v for k, v in zip(names, values, strict=True) if v != attrs[k]}
            with suppress(GraphError):
                if other and self.infer(*operands, **{**attrs, **other}):
                    fitting.append(", ".join(f"{k}={v!r}" for k, v in other.items()))
        return f"; it fits {' or '.join(sorted(fitting, key=len)[:2])}" if fitting else ""


def _spatial_axes(operands: Sequence[TensorType | None], name: str) -> int:
    for t in operands[:2]:
        if t is not None and t.shape is not None:
            return max(len(t.shape) - 2, 0)
    raise GraphError(f"attribute '{name}' must be a list, because no operand's rank is known")


_PER_AXIS: dict[str, int | None] = {"strides": 1, "dilations": 1, "pads_begin": 0, "pads_end": 0, "kernel": None}
"""Attributes that are lists with a number for each spatial axis, and the default of each number (None: required)."""

_FOR_ALL: dict[str, type] = {"scales": float, "zps": int}
"""Attributes of a list type that accept a single number instead of a list of one, with the number's type."""

OPS: dict[str, Op] = {}
_PLAIN = (int, float, str)

# Operations whose name in oneDNN is not graphq's name in camel case.
_KINDS = {"relu": "ReLU", "gelu": "GELU", "matmul": "MatMul", "prelu": "PReLU", "leaky_relu": "LeakyReLU",
          "rms_norm": "RMSNorm", "softplus": "SoftPlus", "log_softmax": "LogSoftmax", "softmax": "SoftMax"}


def register_op(
    *, infer: Callable[..., Any], commutative: bool = False, elementwise: bool = False,
    resolve: Callable[..., tuple[Value, ...] | None] | None = None, lanes: Callable[..., Any] | None = None,
    bound: Bound | None = None, exact: bool = True, layout: str | None = None, rows: str | None = None,
    onnx: str | None = None, portable: bool = True, computes: bool = True,
) -> Callable[[Callable[..., Any]], Op]:
    """Declare the decorated function as an op (see `Op`). Raises GraphError if an op of its name exists.

    A reference that `computes` runs without NumPy's floating-point warnings, because infinities and NaN are valid.
    """

    def declare(f: Callable[..., Any]) -> Op:
        name = f.__name__.rstrip("_")
        if name in OPS:
            raise GraphError(f"op '{name}' is registered already, by {OPS[name].reference.__module__}")
        operands, attributes = [], {}
        parameters = inspect.signature(f).parameters.values()
        _check_parameters(name, parameters)
        hints = _hints(f, [p for p in parameters if p.kind is p.KEYWORD_ONLY])
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY:
                default = p.default if p.default is REQUIRED else normalize(hints[p.name], p.default, p.name)
                attributes[p.name] = Attribute(p.name, hints[p.name], default)
            else:
                operands.append(TensorParameter(p.name, p.default is None, p.kind is p.VAR_POSITIONAL))
        kind = _KINDS.get(name) or "".join(part.capitalize() for part in name.split("_"))  # bias_add -> BiasAdd
        reference = np.errstate(all="ignore")(f) if computes else f
        op = Op(name, kind, tuple(operands), attributes, reference, infer, commutative, elementwise, resolve,
                lanes, bound, exact, layout, rows, onnx, portable)
        _check_rules(op)
        OPS[name] = op
        add_builder(op)
        return op

    return declare


@cache
def keywords(f: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the keyword-only parameters of `f`. For a rule of an op: the attributes that it uses."""
    return tuple(p.name for p in inspect.signature(f).parameters.values() if p.kind is p.KEYWORD_ONLY)


def _hints(f: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    # `typing.get_type_hints` takes four times as long, so it is called only if an annotation contains strings.
    names = inspect.unwrap(f).__globals__
    hints = {p.name: eval(p.annotation, names) if isinstance(p.annotation, str) else p.annotation for p in parameters}
    if any(map(_has_strings, hints.values())):
        return typing.get_type_hints(types.SimpleNamespace(__annotations__=hints), names)
    return hints


def _has_strings(hint: Any) -> bool:
    return isinstance(hint, str | typing.ForwardRef) or (
        typing.get_origin(hint) is not Literal and any(map(_has_strings, typing.get_args(hint))))


def _check_parameters(op: str, parameters: Iterable[inspect.Parameter]) -> None:
    for p in parameters:
        if p.kind is p.VAR_KEYWORD or p.kind is p.KEYWORD_ONLY and p.name in ("name", "attrs"):
            raise GraphError(f"op '{op}': an attribute cannot be called '{p.name}', nor be **variable")
        if p.kind is not p.KEYWORD_ONLY and p.default not in (None, REQUIRED):
            raise GraphError(f"op '{op}': '{p.name}' is a tensor, so its default can only be None; "
                             "attributes are keyword-only")


def _check_rules(op: Op) -> None:
    if isinstance(op.bound, str) and op.bound not in typing.get_args(PairRule):
        raise GraphError(f"op '{op.name}': a bound must be a Curve, a function, or one of "
                         f"{', '.join(typing.get_args(PairRule))}, got {op.bound!r}")
    if callable(op.bound):
        _check_keywords(op, "bound", op.bound)
    if op.lanes is None:
        return
    if not op.elementwise:
        raise GraphError(f"op '{op.name}': an operation with lanes must be elementwise: use elementwise=True")
    P = inspect.Parameter
    parameters = inspect.signature(op.lanes).parameters.values()
    taken = [p for p in parameters if p.kind in (P.POSITIONAL_ONLY, P.POSITIONAL_OR_KEYWORD) and p.default is P.empty]
    if len(taken) != len(op.operands) and all(p.kind is not p.VAR_POSITIONAL for p in parameters):
        raise GraphError(f"op '{op.name}': its lane rule takes ({', '.join(p.name for p in taken)}), but its operands "
                         f"are ({', '.join(p.name for p in op.operands)})")
    _check_keywords(op, "lane rule", op.lanes)


def _check_keywords(op: Op, what: str, rule: Callable[..., Any]) -> None:
    for name in keywords(rule):
        if name not in op.attributes:
            raise GraphError(f"op '{op.name}': its {what} takes {name!r}, which is not an attribute of the operation; "
                             f"it has {', '.join(op.attributes) or 'no attributes'}")


def lookup(name: str) -> Op:
    """The op of this name. Raises GraphError, with similar names, for an unknown op."""
    if name in OPS:
        return OPS[name]
    raise GraphError(unknown(name))


def unknown(name: str) -> str:
    """The error message for an unknown op; it proposes the name for a oneDNN kind such as MatMul, or similar names."""
    from graphq.ir.names import OTHER_NAMES  # late, because only this error needs the names

    plain = name.lower().replace("_", "")
    ours = OTHER_NAMES.get(name.lower()) or next((op.name for op in OPS.values() if op.kind.lower() == plain), None)
    return f"unknown op '{name}'" + (f"; did you mean {ours}?" if ours else suggestion(name, OPS, cutoff=0.7))


def normalize(annotation: Any, value: Any, name: str) -> Any:
    """Convert `value` to the normal form of `annotation`: lists become tuples. Raises GraphError if it does not fit."""
    if type(annotation) is type:
        return _scalar(annotation, value, name)
    origin = getattr(annotation, "__origin__", type(annotation))
    args: tuple[Any, ...] = getattr(annotation, "__args__", ())
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return normalize(next(a for a in args if a is not type(None)), value, name)
    if origin is Literal:
        value = spelled(value, args)
        if not isinstance(value, str | int) or value not in args:
            raise GraphError(f"attribute '{name}' must be one of {', '.join(map(repr, args))}, got {value!r}")
        return value
    if origin in (list, tuple):
        values: tuple[Any, ...] | None = None
        with suppress(TypeError):
            values = None if isinstance(value, str | bytes | Mapping | Set) else tuple(value)
        if values is None:
            raise GraphError(f"attribute '{name}' must be a list, got {value!r}")
        if args[0] in _PLAIN and set(map(type, values)) <= {args[0]}:  # fast path for thousands of scales
            return values
        return tuple(normalize(args[0], v, name) for v in values)
    return _scalar(annotation, value, name)


def spelled(value: Any, choices: Sequence[Any]) -> Any:
    """The choice that equals `value` in lower case (oneDNN writes SAME_UPPER for same_upper), or else `value`."""
    if not isinstance(value, str) or value in choices:
        return value
    return next((x for x in choices if isinstance(x, str) and x.lower() == value.lower()), value)


def _scalar(annotation: Any, value: Any, name: str) -> Any:
    if annotation is bool and isinstance(value, bool | np.bool_):
        return bool(value)
    if annotation is int and isinstance(value, int | np.integer | Size) and not isinstance(value, bool):
        return value if isinstance(value, Size) else int(value)
    if annotation is float and isinstance(value, int | float | np.integer | np.floating) \
            and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise GraphError(f"attribute '{name}' must be of type float, got {value!r}") from None
    if annotation is DType:
        try:
            return as_dtype(value)
        except GraphError as e:
            raise GraphError(f"attribute '{name}': {e}") from None
    if annotation is np.ndarray and isinstance(value, np.ndarray | Later):
        return value
    if isinstance(annotation, type) and annotation not in (bool, int, float) and isinstance(value, annotation):
        return value
    wanted = getattr(annotation, "__name__", str(annotation))
    raise GraphError(f"attribute '{name}' must be of type {wanted}, got {value!r}")


def walk_ops() -> Iterator[Op]:
    """All registered ops in the order of their registration."""
    yield from OPS.values()
