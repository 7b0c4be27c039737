"""graphq: a oneDNN-Graph-style operator graph compiler in Python."""
from graphq import ops  # noqa: F401  (registers the operations)
from graphq.dtypes import DType
from graphq.interpret import reference
from graphq.ir import Graph
