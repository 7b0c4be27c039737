"""Write from_torch_operators.md: which operators of PyTorch `from_torch` converts.

Run `python docs/from_torch.py > docs/from_torch_operators.md`; this needs the packages torch and onnx.
"""
import textwrap

from graphq.torch.operators.complex import COMPLEX
from graphq.torch.operators.decompositions import DECOMPOSED
from graphq.torch.operators.importer import OPERATORS

HEAD = """# Operators of `from_torch`

`python docs/from_torch.py` writes this page from graphq's tables of operators. The form that changes its first
argument (`relu_`) is also converted. PyTorch decomposes other operators, if it can.
"""

TITLES = {"aten": "ATen", "quantized_decomposed": "PT2E (`quantized_decomposed`)", "torchao": "torchao"}


def page() -> str:
    """The text of the page."""
    lines = [HEAD]
    for namespace, title in TITLES.items():
        known = [*OPERATORS, *DECOMPOSED, *(f"aten.{name}" for name in COMPLEX)]
        names = sorted({name.split(".")[1] for name in known if name.startswith(f"{namespace}.")})
        listing = textwrap.fill(", ".join(names), 120, break_long_words=False, break_on_hyphens=False)
        lines.append(f"## {title}: {len(names)}\n\n```text\n{listing}\n```\n")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
