"""Convert exported programs: inputs, constants, calls in order, names of values, outputs."""
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from graphq.errors import CompileError, GraphError
from graphq.ir import Graph, Value
from graphq.ir.node import ONNX_NAME
from graphq.onnx.importers.importer import MALFORMED
from graphq.torch.calling import CALLING, Calling
from graphq.torch.operators.importer import OPERATORS, AtenCall, constant_of, dtype_of

SKIPPED = frozenset({"aten._assert_async", "aten._assert_scalar", "aten._assert_tensor_metadata",
                     "aten.sym_constrain_range", "aten.sym_constrain_range_for_size"})
"""Operators without results that only check what the program assumes."""

INLINED = frozenset({"wrap_with_set_grad_enabled", "wrap_with_autocast"})
"""Higher-order operators that call a part of the program, their last argument before its operands."""


def convert(program: torch.export.ExportedProgram) -> Graph:
    """Convert a program to a graph (see `graphq.from_torch`)."""
    if not isinstance(program, torch.export.ExportedProgram):
        raise GraphError(f"from_torch takes an ExportedProgram, got {type(program).__name__}: write "
                         "graphq.from_torch(torch.export.export(module.eval(), example_inputs))")
    calls = [n for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)
             for n in m.graph.nodes if n.op == "call_function"]
    if any(_is_hidden_change(n) or isinstance(n.target, torch._ops.OpOverload) and _importer(n) is None for n in calls):
        program = _simplified(program)
    graph = _Conversion(program).graph
    graph.meta = {**graph.meta, CALLING: Calling.of(program)}
    return graph


def _simplified(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without hidden changes; PyTorch's decompositions replace operators that have no importer."""
    table = torch.export.default_decompositions()
    for op in list(table):
        if operator_name(op) in OPERATORS:
            del table[op]
    return program.run_decompositions(table)


def _importer(node: Any) -> Any:
    """The importer of a call; for an operator that changes its first argument, the functional form's."""
    name = operator_name(node.target)
    if name in SKIPPED or name in INLINED:
        return name
    found = OPERATORS.get(name)
    return found or OPERATORS.get(name.removesuffix("_")) if _changed(node) else found


def _changed(node: Any) -> bool:
    """Whether an operator changes its first argument in place."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_hidden_change(node: Any) -> bool:
    """Whether a call changes a tensor that others share, such as a view's base, or reads a part of a tensor's class."""
    if operator_name(node.target) == "export.access_subclass_inner_tensor":
        return True
    if not _changed(node) or "dropout" in str(node.target):
        return False
    given = node.args[0]
    if any(_is_view(user) for user in given.users):
        return True
    while given.op == "call_function" and _is_view(given):
        base = given.args[0]
        if len(base.users) > 1:
            return True
        given = base
    return given.op != "call_function"


def _is_view(node: Any) -> bool:
    """Whether a result of an operator shares memory with an operand."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and any(
        r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns)


class _Conversion:
    """The conversion of one program."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program, self.graph = program, Graph("torch")
        self.values: dict[Any, Any] = {}
        self.constants: dict[Any, Value] = {}
        self.names = _names(program.graph_module)
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            self.values[node] = self._given(node, spec)
        results = self._run(program.graph_module)
        self._return(results)

    def _given(self, node: Any, spec: Any) -> Any:
        """The value of a placeholder: an input, a constant, or a number that the program was exported for."""
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            tensors = self.program.state_dict
            name = spec.target
            return self._constant(tensors[name] if name in tensors else self.program.constants[name], name)
        if spec.kind == InputKind.CONSTANT_TENSOR:
            return self._constant(self.program.constants[spec.target], spec.target)
        val = node.meta.get("val")
        if spec.kind != InputKind.USER_INPUT or not isinstance(val, torch.Tensor):
            if spec.kind == InputKind.USER_INPUT and isinstance(val, int | float | bool | str | None):
                return val
            raise GraphError(f"input '{node.name}' is {type(val).__name__} ({spec.kind.name}): inputs must be tensors")
        dims = [d if isinstance(d, int) else None for d in val.shape]
        return self.graph.input(node.name, dtype=dtype_of(val.dtype), shape=dims)

    def _constant(self, tensor: torch.Tensor, name: str) -> Value:
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if tensor.numel() else name
        if key not in self.constants:
            value = self.constants[key] = constant_of(self.graph, tensor)
            if not self.graph.has_name(name):
                self.graph.rename(value, name)
        return self.constants[key]

    def _run(self, module: Any) -> Any:
        """Convert the nodes of a part of the program; its placeholders have values. Returns its results."""
        for node in module.graph.nodes:
            if node.op == "output":
                return self._values(node.args[0])
            if node.op == "get_attr":
                found = _attribute(module, str(node.target))
                tensor = isinstance(found, torch.Tensor)
                self.values[node] = self._constant(found, str(node.target)) if tensor else found
            elif node.op == "call_function":
                try:
                    self.values[node] = self._call(node)
                except (GraphError, CompileError) as e:
                    raise type(e)(f"{_place(node)}: {e}") from None
                except MALFORMED as e:
                    raise GraphError(f"{_place(node)}: these arguments are not supported: {node.args}: {e}") from e
        raise AssertionError("a program has an output node")

    def _call(self, node: Any) -> Any:
        args, kwargs = self._values(node.args), self._values(node.kwargs)
        name = operator_name(node.target)
        if name in INLINED:
            at = next(k for k, x in enumerate(args) if isinstance(x, fx.GraphModule))
            return self._inline(args[at], args[at + 1:])
        if name in SKIPPED:
            return None
        importer = _importer(node)
        if importer is None:
            raise GraphError("graphq lacks this operator, and PyTorch cannot decompose it: change the module, or "
                             "open an issue that names the operator")
        first = len(self.graph.nodes)
        op, named = name.rpartition(".")[2].strip("_"), self.names.get(node, node.name)
        result = importer(AtenCall(self.graph, node, args, kwargs, op, named))
        self._label(node, result, first)
        if _changed(node):
            self.values[node.args[0]] = result
        return result

    def _label(self, node: Any, result: Any, first: int) -> None:
        """Name the result, and let new nodes know the module that they are from."""
        name = self.names.get(node, node.name)
        value = result[0] if isinstance(result, tuple | list) and result else result
        made = self.graph.nodes[first:]
        if isinstance(value, Value) and value.node in made and not self.graph.has_name(name):
            self.graph.rename(value, name)
        for n in made:
            n.meta = {**n.meta, ONNX_NAME: name}

    def _inline(self, module: Any, args: Sequence[Any]) -> Any:
        self.names.update(_names(module))
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.values.update(zip(placeholders, args, strict=True))
        return self._run(module)

    def _values(self, x: Any) -> Any:
        """The arguments of a node, with values in place of nodes."""
        if isinstance(x, fx.Node):
            return self.values[x]
        if isinstance(x, dict):
            return {k: self._values(v) for k, v in x.items()}
        return [self._values(v) for v in x] if isinstance(x, tuple | list) else x

    def _return(self, results: Sequence[Any]) -> None:
        specs = self.program.graph_signature.output_specs
        values: list[Value] = []
        names: list[str] = []
        for result, spec in zip(results, specs, strict=True):
            if spec.kind != OutputKind.USER_OUTPUT:
                raise GraphError(f"the program changes '{spec.target}' ({spec.kind.name}): pass the tensor as an input "
                                 "and return the new one; export a module in eval mode")
            if result is None:
                continue
            value = result if isinstance(result, Value) else self.graph.add_constant(torch.tensor(result).numpy())
            values.append(value)
            names.append(_free(spec.arg.name or f"out{len(names)}", names))
        self.graph.set_outputs(values, names)
        self.graph.prune()


def _free(name: str, taken: Sequence[str]) -> str:
    return next(n for n in (name, *(f"{name}_{k}" for k in range(1, len(taken) + 1))) if n not in taken)


def operator_name(target: Any) -> str:
    """The name of an operator without its overload: "aten.add"; a function of Python has its own name."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket)
    name = getattr(target, "__name__", str(target))
    return name if isinstance(target, torch._ops.HigherOrderOperator) else f".{name}"


def _names(module: Any) -> dict[Any, str]:
    """A name for each call: the module's path, with the operator if the module has several calls.

    Calls that a quantizer added to the module have their operator in their names, and do not count.
    """
    calls = [n for n in module.graph.nodes if n.op == "call_function" and operator_name(n.target) != ".getitem"]
    paths = {n: _path(n) for n in calls}
    added = {n for n in calls if operator_name(n.target).startswith(("quantized_decomposed.", "torchao."))}
    count, seen = Counter(path for n, path in paths.items() if n not in added), Counter[str]()
    names = {}
    for n, path in paths.items():
        role = operator_name(n.target).rpartition(".")[2].strip("_")
        name = role if not path else path if count[path] == 1 and n not in added else f"{path}.{role}"
        seen[name] += 1
        names[n] = name if seen[name] == 1 else f"{name}_{seen[name]}"
    return names


def _path(node: Any) -> str:
    """The path of the module that a node is from: `blocks.0.attn`."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return re.sub(r"@\d+$", "", stack[-1][0]) if stack else ""


def _place(node: Any) -> str:
    """The operator, the module and the line of source of a node, for errors."""
    where = f"{node.target} in module '{_path(node)}'" if _path(node) else str(node.target)
    lines = [x.strip() for x in (node.meta.get("stack_trace") or "").splitlines() if x.strip().startswith("File ")]
    return where + (f" ({lines[-1]})" if lines else "")


def _attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found
