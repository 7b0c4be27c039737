"""The backend "graphq" of `torch.compile`: Dynamo's graphs become programs, and these become compiled models."""
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.traceback import preserve_node_meta

from graphq.errors import GraphError
from graphq.torch.model import TorchModel
from graphq.torch.program import convert

log = logging.getLogger("graphq")

MOST_CHANGES = 2
"""A parameter or buffer that has changed so many times between calls is an input of the graph from then on."""


def backend(module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Compile a graph of Dynamo at its first call: `torch.compile(model, backend="graphq", options={...})`.

    Options are passed to `graphq.compile`. With the option `fallback`, a graph that graphq cannot compile runs in
    PyTorch, and a log message gives the reason; without it, the error is raised. Results have no gradients.

    Parameters and buffers are constants. If one of them is replaced or changes in place, the next call compiles the
    graph again. If the tensor changes a second time, it becomes an input of the graph: its elements are then converted
    and packed for kernels at each call.
    """
    if torch.is_grad_enabled() and any(isinstance(x, torch.nn.Parameter) and x.requires_grad for x in inputs):
        log.warning("graphq computes no gradients: call the compiled module in torch.no_grad()")
    chosen = dict(options or {})
    return _Compiled(module, inputs, chosen.pop("fallback", False), chosen)


class _Compiled:
    """A compiled graph of Dynamo. A call has its arguments in the order of the graph's placeholders."""

    def __init__(self, module: Any, inputs: Sequence[Any], fallback: bool, options: Mapping[str, Any]) -> None:
        self.module, self.fallback, self.options = module, fallback, options
        for n in module.graph.nodes:
            n.stack_trace = n.stack_trace or "a module without source"  # otherwise PyTorch takes this file's lines
        self.places = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.paths = {n.name: _path(n) for n in self.places}
        # with `dynamic=True`, Dynamo passes numbers of modules, such as an epsilon, as tensors, and reads their items
        self.numbers = {k for k, n in enumerate(self.places) if any(user.target == "item" for user in n.users)
                        and getattr(n.meta.get("grapharg"), "pass_arg_as_tensor", False)}
        # Dynamo names the buffers of a module so; if it did not, they would be inputs
        self.constants = [k for k, n in enumerate(self.places) if k in self.numbers
                          or isinstance(inputs[k], torch.nn.Parameter) or "_buffers_" in n.name]
        self.autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        self.changes, self.live = Counter[int](), set[int]()
        self.run: Callable[..., Any] | None = None
        self.same: dict[int, Callable[[Any], bool]] = {}

    def __call__(self, *args: Any) -> Any:
        changed = [k for k, same in self.same.items() if not same(args[k])]
        if changed or self.run is None:
            self.changes.update(changed)
            self.constants = [k for k in self.constants if self.changes[k] < MOST_CHANGES]
            self.run, self.same = None, {}  # as long as compiling fails
            self.run = self._compiled(args)
            self.same = {k: partial(torch.equal, args[k]) if k in self.numbers else
                         _comparison(args[k], k not in self.live) for k in self.constants}
        return self.run(*args)

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        """A function of the arguments; PyTorch's execution if graphq cannot compile the graph and may fall back."""
        examples = {k: n.meta["example_value"] for k, n in enumerate(self.places) if k not in self.constants}
        taken = [k for k in examples if isinstance(args[k], torch.Tensor)]
        axes = {str(d): (k, axis) for k in taken for axis, d in enumerate(examples[k].shape)}
        sizes = {k: axes.get(str(x)) for k, x in examples.items() if k not in taken}
        dynamic = torch.export.Dim.AUTO
        shapes = tuple({axis: dynamic for axis, d in enumerate(examples[k].shape) if isinstance(d, torch.SymInt)}
                       for k in taken)
        try:
            if None in sizes.values() or not self.numbers.issubset(self.constants):
                raise GraphError("a number that is no size changes from call to call: pass a tensor instead")
            frozen = _Frozen(self, args, taken, sizes)
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                program = torch.export.export(frozen, tuple(args[k].detach() for k in taken), dynamic_shapes=(shapes,))
            graph = convert(program)
            for value in graph.values:
                path = self.paths.get(str(value.name))
                if path and not graph.has_name(path):
                    graph.rename(value, path)
            model = TorchModel(graph, **self.options)
        except Exception as e:  # torch.export raises errors of many classes
            if not self.fallback:
                raise
            log.warning("a graph of Dynamo runs in PyTorch, because of %s: %s", type(e).__name__, e)
            run: Callable[..., Any] = self.module
            return run
        changed = {buffer.data_ptr() for buffer in model.calling.buffers}
        self.live = {k for k in self.constants if args[k].data_ptr() in changed}
        return lambda *args: model(*[args[k] for k in taken])


def _path(place: fx.Node) -> str:
    """The path of a parameter or buffer in the user's module: `blocks.0.fc.weight`; empty for other tensors."""
    source = getattr(place.meta.get("grapharg"), "source", None)
    return ".".join(re.findall(r"(?:_modules|_parameters|_buffers)\['([^']+)'\]", getattr(source, "name", "")))


class _Saved(torch.autograd.Function):
    """A function that saves a tensor for its gradient: PyTorch refuses to read it after a change in place."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The leaf, which requires a gradient, so that PyTorch saves."""
        ctx.save_for_backward(tensor)
        return leaf.clone()


def _comparison(tensor: torch.Tensor, elements: bool) -> Callable[[torch.Tensor], bool]:
    """A function: whether a tensor has this one's memory and, if `elements` count, no change in place since now."""
    memory, saved = tensor.data_ptr(), None
    if elements and not tensor.is_inference():  # PyTorch does not count changes of these
        with torch.inference_mode(False), torch.enable_grad():
            saved = _Saved.apply(torch.zeros(0, requires_grad=True), tensor.detach()).grad_fn

    def same(now: torch.Tensor) -> bool:
        try:
            return now.data_ptr() == memory and (saved is None or bool(saved.saved_tensors))
        except RuntimeError:
            return False
    return same


class _Frozen(torch.nn.Module):
    """Dynamo's graph as a module: parameters and buffers are its own, and sizes come from the shapes of inputs."""

    def __init__(self, compiled: _Compiled, inputs: Sequence[Any], taken: Sequence[int],
                 sizes: Mapping[int, Any]) -> None:
        super().__init__()
        self.graph, self.autocast, self.taken, self.sizes = compiled.module, compiled.autocast, taken, sizes
        self.names = {k: compiled.places[k].name for k in compiled.constants}
        for k, name in self.names.items():
            if k in compiled.numbers:
                setattr(self, name, inputs[k].numpy()[()])  # NumPy's numbers have the method `item`
            else:
                self.register_buffer(name, inputs[k].detach())

    def forward(self, *given: Any) -> Any:
        """Call the graph; `given` are the inputs that are not constants."""
        args = dict(zip(self.taken, given, strict=True))
        args |= {k: args[place].shape[axis] for k, (place, axis) in self.sizes.items()}
        args |= {k: getattr(self, name) for k, name in self.names.items()}
        # calls of the program have the paths and the source of the user's modules
        with nullcontext() if self.autocast is None else torch.autocast("cpu", self.autocast), preserve_node_meta():
            return fx.Interpreter(self.graph).run(*(args[k] for k in sorted(args)))
