"""Numba as the front end of kernels: it types Python functions and lowers them to LLVM's IR, and no more.

Beside that, Numba optimises each function alone and again with its callees, puts machine code in memory at once, makes
entry points for Python, and types every operator by NumPy's rules too: that took half of the time to compile a model's
kernels. Here a module is optimised once, when it is whole (`codegen`), its functions know the operators of integers and
floats only, and call each other and intrinsics by a type of our own.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from numba.core import codegen, compiler, cpu, types, utils
from numba.core import compiler_machinery as machinery
from numba.core import typed_passes as typed
from numba.core import untyped_passes as untyped
from numba.core.base import _wrap_impl
from numba.core.datamodel import models
from numba.core.imputils import builtin_registry, user_function
from numba.core.typing import templates
from numba.core.typing.context import BaseContext


class Called(types.Callable, types.Dummy):
    """The type of a function that kernels call; `code` emits calls of it, by the types of their arguments."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.body = body
        self.code: dict[tuple[Any, ...], Callable[..., Any]] = {}
        super().__init__(f"{body.__module__}.{body.__qualname__} at {id(body):#x}")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """The signature of a call, or None."""
        raise NotImplementedError

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        """None known beforehand, by Numba's protocol."""
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        """What the target's context would look the code up by, by Numba's protocol."""
        return self, sig.args


class Intrinsic(Called):
    """An intrinsic: `body(typing context, *types)` gives the signature and the code; `literals`: of literal types."""

    def __init__(self, body: Callable[..., Any], literals: bool) -> None:
        super().__init__(body)
        self.literals = literals
        _typing, *others = utils.pysignature(body).parameters.values()
        self.count = len(others)
        open_ended = any(x.kind == x.VAR_POSITIONAL for x in others)  # Numba would make a tuple of them
        self.parameters = None if open_ended else utils.pysignature(body).replace(parameters=others)

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """The signature of a call, or None."""
        given = args if self.literals else [types.unliteral(x) for x in args]
        found = self.body(context, *given, **kws)
        if found is None:
            return None
        signature, code = found
        self.code.setdefault(signature.args, code)
        return signature.replace(pysig=self.parameters)


class Helper(Called):
    """A Python function, lowered for the types of each call."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__(body)
        self.parameters = utils.pysignature(body)
        self.signatures: dict[tuple[Any, ...], Any] = {}

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """The signature of a call."""
        folded = templates.fold_arguments(
            self.parameters, args, kws, lambda index, parameter, given: types.unliteral(given),
            lambda index, parameter, default: types.Omitted(default),
            lambda index, parameter, given: types.StarArgTuple([types.unliteral(x) for x in given]))
        if folded not in self.signatures:
            made = lowered(self.body, folded)
            self.code[folded] = user_function(made.fndesc, [made.library])
            self.signatures[folded] = made.signature.replace(pysig=self.parameters)
        return self.signatures[folded]


for _kind in (Intrinsic, Helper):
    models.register_default(_kind)(models.OpaqueModel)


def _choice(sign: str) -> Intrinsic:
    def choose(_typing: Any, x: Any, y: Any) -> Any:
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return b.select(b.icmp_signed(sign, *args), *args)

        return types.intp(types.intp, types.intp), code

    return Intrinsic(choose, False)


class _Typing(BaseContext):
    """The types of integers, floats and what is `Called`."""

    def init(self) -> None:
        self.choices = ((min, _choice("<")), (max, _choice(">")))
        self.resolved: dict[Any, Any] = {}
        found = templates.Registry()
        found.functions = [x for x in templates.builtin_registry.functions
                           if not issubclass(x, templates._OverloadFunctionTemplate)]  # code of Numba's own target
        found.attributes = [x for x in templates.builtin_registry.attributes
                            if not issubclass(x, templates._OverloadAttributeTemplate)]
        found.globals = templates.builtin_registry.globals
        self.install_registry(found)

    def refresh(self) -> None:
        """Nothing is declared later."""

    def resolve_value_type(self, value: Any) -> Any:
        """The type of a global."""
        return next((kind for x, kind in self.choices if x is value), None) or super().resolve_value_type(value)

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """The signature of a call or an operator, looked for once."""
        if isinstance(func, Called):
            return func.get_call_type(self, args, kws)
        if kws or isinstance(func, str):  # an index, which need not be hashable, is not looked for again and again
            return super().resolve_function_type(func, args, kws)
        if (func, args) not in self.resolved:
            self.resolved[func, args] = super().resolve_function_type(func, args, kws)
        return self.resolved[func, args]


class _Library(codegen.AOTCodeLibrary):
    """The LLVM module of a function and of those that it calls, as they were lowered."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass


class _Codegen(codegen.AOTCPUCodegen):
    _library_class = _Library

    def _customize_tm_features(self) -> Any:
        return self._get_host_cpu_features()


class _Target(cpu.CPUContext):
    """Lowering without reference counts and Python objects."""

    _internal_codegen: Any

    def init(self) -> None:
        for module in "builtins", "numbers", "rangeobj", "tupleobj":
            import_module(f"numba.cpython.{module}")  # each fills the registry
        self.is32bit = utils.MACHINE_BITS == 32
        self._internal_codegen = _Codegen("graphq", "host")
        self.install_registry(builtin_registry)

    def refresh(self) -> None:
        """Nothing is declared later."""

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """The code of a call."""
        if isinstance(fn, Called):
            return _wrap_impl(fn.code[sig.args], self, sig)
        return super().get_function(fn, sig, _firstcall)

    def get_executable(self, library: Any, fndesc: Any, env: Any) -> Any:
        """No machine code yet; what stands for it."""
        library.finalize()
        return fndesc

    def post_lowering(self, mod: Any, library: Any) -> None:
        """Nothing is linked to every function."""


class _Pipeline(compiler.CompilerBase):
    """Numba's passes, without those of closures, array expressions and parallel loops."""

    def define_pipelines(self) -> list[Any]:
        """The passes in order."""
        passes = machinery.PassManager("kernel")
        for each in (untyped.TranslateByteCode, untyped.FixupArgs, untyped.IRProcessing,
                     untyped.RewriteSemanticConstants, untyped.DeadBranchPrune, untyped.GenericRewrites,
                     untyped.ReconstructSSA, typed.NopythonTypeInference, typed.PreLowerStripPhis,
                     typed.IRLegalization, typed.NativeLowering, typed.NoPythonBackend):
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


@cache
def contexts() -> tuple[Any, Any]:
    """Numba's two contexts, of types and of the target."""
    typing = _Typing()
    return typing, _Target(typing, "cpu")


def lowered(body: Callable[..., Any], parameters: Sequence[Any], result: Any = None) -> Any:
    """Lower a function for parameters of these types: Numba's result, whose library has LLVM's module."""
    flags: Any = compiler.Flags()  # its fields come from a metaclass
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    return compiler.compile_extra(*contexts(), body, tuple(parameters), result, flags, {}, pipeline_class=_Pipeline)
