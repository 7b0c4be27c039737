"""operations.pyi and the methods that it states: what type checkers, editors and `help` show of the operations."""
import ast
import inspect
import pydoc

import operations_stub as stub

import graphq as gq
from graphq.ir.op import OPS

STATED = {f.name: f for c in ast.parse(stub.PATH.read_text(encoding="utf-8")).body if isinstance(c, ast.ClassDef)
          for f in c.body if isinstance(f, ast.FunctionDef)}


def test_the_stub_is_current():
    assert stub.PATH.read_text(encoding="utf-8") == stub.stub(), "run: python tests/helpers/operations_stub.py"


def test_the_stub_states_each_operation_and_nothing_that_would_accept_others():
    """mypy and pyright take `__getattr__` and `**attrs` for anything: what they say is tried by typed_calls.py."""
    assert set(STATED) == set(OPS) - set(vars(gq.Graph))
    assert "__getattr__" not in vars(gq.Graph) and all(f.args.kwarg is None for f in STATED.values())


def test_the_stub_has_the_signatures_of_the_methods():
    for name, f in STATED.items():
        ours = inspect.signature(getattr(gq.Graph, name)).parameters.values()
        keywords = [p for p in ours if p.kind is p.KEYWORD_ONLY]
        assert [a.arg for a in f.args.kwonlyargs] == [p.name for p in keywords], name
        assert [d is None for d in f.args.kw_defaults] == [p.default is p.empty for p in keywords], name
        stated = [a.arg for a in (*f.args.posonlyargs, *f.args.args, *filter(None, [f.args.vararg]))]
        assert stated == [p.name for p in ours if p.kind is not p.KEYWORD_ONLY], name
        assert ast.get_docstring(f) == inspect.getdoc(getattr(gq.Graph, name)), name


def test_results_are_values_or_tuples_of_them():
    returns = {name: ast.unparse(f.returns) for name, f in STATED.items()}
    assert returns["matmul"] == "Value" and returns["top_k"] == "tuple[Value, Value]" and returns["softmax"] == "Any"
    assert set(returns.values()) == {"Value", "tuple[Value, Value]", "Any"}


def test_help_lists_the_operations():
    text = pydoc.plain(pydoc.render_doc(gq.Graph))
    for name in STATED:
        assert f" {name}(self, " in text, name
    assert " matmul(self, src, weights, bias=None, /, *, transpose_a: bool = False" in text
    assert "`src @ weights + bias`" in text
    assert set(OPS) <= set(dir(gq.Graph))
