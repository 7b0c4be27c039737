"""The backend "graphq" of `torch.compile`: Dynamo's graphs become programs, and these become compiled models."""
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphq.errors import GraphError
from graphq.torch.model import TorchModel
from graphq.torch.program import convert

log = logging.getLogger("graphq")


def backend(module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Compile a graph of Dynamo at its first call: `torch.compile(model, backend="graphq", options={...})`.

    Options are passed to `graphq.compile`. With the option `fallback`, a graph that graphq cannot compile runs in
    PyTorch, and a log message gives the reason; without it, the error is raised. Results have no gradients.

    Parameters and buffers are constants, which are read at the first call. The graph is compiled again if a tensor with
    other memory replaces one. After a change in place, such as a step of an optimizer, `torch.compiler.reset()` makes
    the next call read them again.
    """
    if torch.is_grad_enabled() and any(isinstance(x, torch.nn.Parameter) and x.requires_grad for x in inputs):
        log.warning("graphq computes no gradients: call the compiled module in torch.no_grad()")
    chosen = dict(options or {})
    return _Compiled(module, inputs, chosen.pop("fallback", False), chosen)


class _Compiled:
    """A compiled graph of Dynamo. A call has its arguments in the order of the graph's placeholders."""

    def __init__(self, module: Any, inputs: Sequence[Any], fallback: bool, options: Mapping[str, Any]) -> None:
        self.module, self.fallback, self.options = module, fallback, options
        places = [n for n in module.graph.nodes if n.op == "placeholder"]
        # Dynamo names the buffers of a module so; if it did not, they would be inputs
        self.names = {k: n.name for k, n in enumerate(places)
                      if isinstance(inputs[k], torch.nn.Parameter) or "_buffers_" in n.name}
        shapes = {k: n.meta["example_value"].shape for k, n in enumerate(places) if isinstance(inputs[k], torch.Tensor)
                  and k not in self.names}
        self.taken = [*shapes]
        axes = {str(d): (k, axis) for k, shape in shapes.items() for axis, d in enumerate(shape)}
        self.sizes = {k: axes.get(str(n.meta["example_value"])) for k, n in enumerate(places)
                      if not isinstance(inputs[k], torch.Tensor)}
        dynamic = torch.export.Dim.AUTO
        self.dynamic = tuple({axis: dynamic for axis, d in enumerate(shape) if isinstance(d, torch.SymInt)}
                             for shape in shapes.values())
        self.memory: list[int] | None = None

    def __call__(self, *args: Any) -> Any:
        if self.memory != (memory := [args[k].data_ptr() for k in self.names]):
            self.run, self.memory = self._compiled(args), memory
        return self.run(*args)

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        """A function of the arguments; PyTorch's execution if graphq cannot compile the graph and may fall back."""
        try:
            if None in self.sizes.values():
                raise GraphError("a number that is no size changes from call to call: pass a tensor instead")
            with torch.no_grad():
                program = torch.export.export(_Frozen(self, args), tuple(args[k] for k in self.taken),
                                              dynamic_shapes=(self.dynamic,))
            model = TorchModel(convert(program), **self.options)
        except Exception as e:  # torch.export raises errors of many classes
            if not self.fallback:
                raise
            log.warning("a graph of Dynamo runs in PyTorch, because of %s: %s", type(e).__name__, e)
            run: Callable[..., Any] = self.module
            return run
        return lambda *args: model(*[args[k] for k in self.taken])


class _Frozen(torch.nn.Module):
    """Dynamo's graph as a module: parameters and buffers are its own, and sizes come from the shapes of inputs."""

    def __init__(self, compiled: _Compiled, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.inner, self.compiled, self.count = compiled.module, compiled, len(inputs)
        for k, name in compiled.names.items():
            self.register_buffer(name, inputs[k].detach())

    def forward(self, *given: Any) -> Any:
        """Call the graph; `given` are the inputs that are not constants."""
        args = dict(zip(self.compiled.taken, given, strict=True))
        args |= {k: args[place[0]].shape[place[1]] for k, place in self.compiled.sizes.items() if place is not None}
        args |= {k: getattr(self, name) for k, name in self.compiled.names.items()}
        return self.inner(*(args[k] for k in range(self.count)))
