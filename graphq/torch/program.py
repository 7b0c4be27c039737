"""Convert exported programs: inputs, constants, calls in order, names of values, outputs."""
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import count
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from graphq.dtypes import as_dtype
from graphq.errors import CompileError, GraphError
from graphq.ir import ONNX_NAME, Graph, TensorType, Value, lookup
from graphq.ir.interpret import CHECK_SHAPES
from graphq.ir.node import SOURCE_LINE
from graphq.onnx.importers.importer import MALFORMED
from graphq.onnx.module_names import NOWHERE, names_of_calls
from graphq.onnx.protos.labels import source_line
from graphq.torch.calling import CALLING, Calling
from graphq.torch.operators.complex import in_pairs, is_complex
from graphq.torch.operators.decompositions import call_key, decomposed, table
from graphq.torch.operators.importer import OPERATORS, AtenCall, Importer, array_of, dtype_of, operator_name

CHANGES = tuple(kind for kind in OutputKind if kind.name.endswith("_MUTATION"))
"""Kinds of outputs that are new values of tensors."""

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
    if any(_is_hidden(n) for n in calls):
        program = program.run_decompositions(table())
    return _Conversion(program).graph


def _importer(node: Any) -> "Importer | None":
    """The importer of a call on real numbers; the functional form's for an operator that changes its argument."""
    name = operator_name(node.target)
    if any(map(is_complex, (node, *node.all_input_nodes))):
        return None
    return OPERATORS.get(str(node.target)) or OPERATORS.get(name.removesuffix("_") if _changes(node) else name)


def _changes(node: Any) -> bool:
    """Whether a call of an operator changes its first argument in place: PyTorch ends such names with "_"."""
    name = operator_name(node.target)
    return name.endswith("_") and not name.endswith("__")


def _is_hidden(node: Any) -> bool:
    """Whether a call has effects that the program does not state, so that PyTorch has to trace the program again.

    It changes a tensor that others share, such as a view's base, reads a part of a tensor's class, or converts operands
    to the element type of an autocast.
    """
    if operator_name(node.target) == "wrap_with_autocast":
        return bool(node.args[2])
    if operator_name(node.target) == "export.access_subclass_inner_tensor":
        return True
    if not _changes(node) or "dropout" in str(node.target):
        return False
    given = node.args[0]
    views = any(getattr(n.target, "is_view", False) for n in (given, *given.users))
    return views or given.op != "call_function" or _importer(node) is None


class _Conversion:
    """The conversion of one program."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program, self.graph = program, Graph("torch")
        self.values: dict[Any, Any] = {}
        self.constants: dict[Any, Value] = {}
        self.names: dict[Any, str] = {}
        self.arguments: dict[str, Any] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        self.traced: dict[str, fx.GraphModule | None] = {}
        signature = program.graph_signature
        self.changed = {spec.target for spec in signature.output_specs if spec.kind in CHANGES}
        self.given = frozenset(signature.user_inputs)
        places = [n for n in program.graph.nodes if n.op == "placeholder"]
        self.mode = next((v.fake_mode for n in places if hasattr(v := n.meta.get("val"), "fake_mode")), nullcontext())
        given = [self._given(node, spec) for node, spec in zip(places, signature.input_specs, strict=True)]
        self._return(self._run(program.graph_module, given))

    def _given(self, node: Any, spec: Any) -> Any:
        """The value of a placeholder: an input, a constant, or a number that the program was exported for.

        A tensor of the module that the program changes is an input.
        """
        val, is_input = node.meta.get("val"), spec.kind == InputKind.USER_INPUT
        if is_input:
            self.arguments[node.name] = torch.Tensor if isinstance(val, torch.Tensor) else val
        stored = None if is_input else self.program.state_dict.get(spec.target, self.program.constants.get(spec.target))
        if stored is not None:
            if spec.target not in self.changed:
                return self._constant(stored, spec.target)
            self.buffers[spec.target] = stored
        if is_input and isinstance(val, int | float | bool | str | None):
            return val
        if not isinstance(val, torch.Tensor):
            raise GraphError(f"input '{node.name}' is {type(val).__name__} ({spec.kind.name}): inputs must be tensors")
        if is_complex(node):
            raise GraphError(f"input '{node.name}' is complex: pass torch.view_as_real(x), and compute with "
                             "torch.view_as_complex in the module")
        dims = [int(d) if is_concrete_int(d) else None for d in val.shape]
        name = node.name if is_input else spec.target if spec.target not in self.given else f"{spec.target}.buffer"
        return self.graph.input(name, dtype=dtype_of(val.dtype), shape=dims)

    def _constant(self, tensor: torch.Tensor, name: str) -> Value:
        """A constant that shares the tensor's memory; the same one for equal views of the same memory."""
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if tensor.numel() else name
        if key not in self.constants:
            array = array_of(in_pairs(tensor))
            value, = self.graph.add_checked(lookup("constant"), (), {"value": array},
                                            [TensorType(as_dtype(array.dtype), array.shape)])
            self.constants[key] = value
            if not self.graph.has_name(name) and name not in self.given:
                self.graph.rename(value, name)
        return self.constants[key]

    def _run(self, module: Any, given: Sequence[Any]) -> Any:
        """Convert the nodes of a part of the program; its placeholders have the values `given`. Returns its results."""
        self.names.update(_names(module))
        self.values.update(zip((n for n in module.graph.nodes if n.op == "placeholder"), given, strict=True))
        for node in module.graph.nodes:
            if node.op == "output":
                return self._values(node.args[0])
            if node.op == "get_attr":
                found = attrgetter(str(node.target))(module)
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
        name, target, args = operator_name(node.target), node.target, self._values(node.args)
        if name in SKIPPED:
            return None
        if name in INLINED:
            at = next(k for k, x in enumerate(args) if isinstance(x, fx.GraphModule))
            return self._run(args[at], args[at + 1:])
        if name == "cond":  # branches have no effects, so both are computed
            found = [self._run(branch, args[3]) for branch in args[1:3]]
            return [self.graph.select(args[0], yes, no) for yes, no in zip(*found, strict=True)]
        for n in node.all_input_nodes:
            if self.values[n] is None and isinstance(n.meta.get("val"), torch.Tensor):
                raise GraphError(f"graphq does not compute '{n.name}', a result of {n.args[0].target}")
        function = not hasattr(target, "namespace")
        if function and not any(isinstance(self.values[n], Value) for n in node.all_input_nodes):
            return target(*args)
        nodes = dict(zip(("input", "other"), node.args, strict=False)) if function else \
            node.normalized_arguments(self.program.graph_module, normalize_to_only_use_kwargs=True).kwargs
        first = len(self.graph.nodes)
        call = AtenCall(self.graph, node, nodes, self._values(nodes), _role(name), self.names.get(node, node.name))
        importer = _importer(node)
        result = None if importer is None else call.imported(importer)
        result = self._decomposed(node) if result is None else result
        if isinstance(node.meta.get("val"), tuple | list) and isinstance(result, Value):
            result = [result, *[None] * (len(node.meta["val"]) - 1)]
        self._label(call.name, result, first, _line(node))
        if _changes(node):
            self.values[node.args[0]] = result
        return result

    def _decomposed(self, node: Any) -> Any:
        """The results of a call by simpler operators."""
        seeded = torch.Tag.nondeterministic_seeded in node.target.tags
        if not node.all_input_nodes and not seeded:
            return self._constant(node.target(*node.args, **node.kwargs), node.name)
        key = call_key(node)
        if key not in self.traced:
            self.traced[key] = decomposed(node, self.mode)
        module = self.traced[key]
        if module is None:
            raise GraphError("it is random: export module.eval()" if seeded else "graphq lacks this operator, and "
                             "PyTorch cannot decompose it: change the module, or open an issue that names the operator")
        return self._run(module, [self.values[n] for n in node.all_input_nodes])

    def _label(self, name: str, result: Any, first: int, line: str) -> None:
        """Name the result, and let new nodes know the module that they are from."""
        value = result[0] if isinstance(result, tuple | list) and result else result
        made = self.graph.nodes[first:]
        if isinstance(value, Value) and value.node in made and not self.graph.has_name(name):
            self.graph.rename(value, name)
        for n in made:
            n.meta = {**n.meta, ONNX_NAME: name, SOURCE_LINE: line}

    def _values(self, x: Any) -> Any:
        """The arguments of a node, with values in place of nodes."""
        if isinstance(x, fx.Node):
            return self.values[x]
        if isinstance(x, dict):
            return {k: self._values(v) for k, v in x.items()}
        return [self._values(v) for v in x] if isinstance(x, tuple | list) else x

    def _return(self, results: Sequence[Any]) -> None:
        """Set the graph's outputs, and note how the program is called."""
        outputs: dict[str, Value] = {}
        kinds: list[Any] = []
        changed: list[torch.Tensor | int] = []
        nodes = self.program.graph_module.graph.output_node().args[0]
        for node, result, spec in zip(nodes, results, self.program.graph_signature.output_specs, strict=True):
            if spec.kind not in (OutputKind.USER_OUTPUT, *CHANGES):
                raise GraphError(f"the program has the result '{spec.target}' ({spec.kind.name}), which graphq lacks: "
                                 "export a module in eval mode")
            if result is None and isinstance(spec.arg, TensorArgument):
                raise GraphError(f"graphq does not compute the program's result '{spec.arg.name}'")
            if is_complex(node):
                raise GraphError(f"the result '{spec.arg.name}' is complex: return torch.view_as_real(x)")
            if spec.kind in CHANGES:
                changed.append(self.buffers[spec.target] if spec.target in self.buffers else
                               [*self.arguments].index(spec.target))
            else:
                kinds.append(None if result is None else "tensor" if isinstance(spec.arg, TensorArgument) else "number")
            name = f"{spec.target}.new" if spec.kind in CHANGES else spec.arg.name or f"out{len(outputs)}"
            if result is not None:
                name = next(n for k in count() if (n := f"{name}_{k}" if k else name) not in outputs)
                outputs[name] = self.graph.add_constant(torch.tensor(result).numpy()) if not isinstance(
                    result, Value) else result
        self.graph.set_outputs([*outputs.values()], [*outputs])
        self.graph.prune()
        specs = self.program.call_spec
        guards = _guards(self.program) if self.program.range_constraints else ()
        calling = Calling(specs.in_spec, specs.out_spec, tuple(self.arguments.values()), tuple(self.buffers.values()),
                          tuple(changed), tuple(kinds), guards)
        self.graph.meta = {**self.graph.meta, CALLING: calling} | (
            {CHECK_SHAPES: calling.check_shapes} if guards else {})


def _guards(program: torch.export.ExportedProgram) -> tuple[Any, ...]:
    """The functions that PyTorch calls with a program's arguments to check their sizes."""
    module = program.module()
    return tuple(module.get_submodule(str(n.target)) for n in module.graph.nodes if n.op == "call_module")


def _names(module: Any) -> dict[Any, str]:
    """A name for each call: the module's path, with the operator if the module has several calls."""
    operators = {n: operator_name(n.target) for n in module.graph.nodes if n.op == "call_function"}
    called = names_of_calls({n: (_path(n), _role(name), name.startswith(("quantized_decomposed.", "torchao.")))
                             for n, name in operators.items() if name != "getitem"})
    seen = Counter[str]()
    for n, name in called.items():
        seen[name] += 1
        called[n] = name if seen[name] == 1 else f"{name}_{seen[name]}"
    return called


def _role(name: str) -> str:
    """An operator's name without its namespace and the signs of its variants."""
    return name.rpartition(".")[2].strip("_")


def _path(node: Any) -> str:
    """The path of the module that a node is from: `blocks.0.attn`."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return re.sub(rf"^L\['\w+'\]\.?|@\d+$|^{NOWHERE}$", "", stack[-1][0]) if stack else ""


def _place(node: Any) -> str:
    """The operator, the module and the line of source of a node, for errors."""
    name = str(node.target) if hasattr(node.target, "namespace") else operator_name(node.target)
    return name + (f" in module '{_path(node)}'" if _path(node) else "") + (f" ({_line(node)})" if _line(node) else "")


def _line(node: Any) -> str:
    """The line of source that a node is from."""
    return source_line(node.meta.get("stack_trace") or "")
