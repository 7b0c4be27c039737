"""The values that importers take for attributes which a node leaves out, against the defaults of schemas.

The schemas of com.microsoft are ONNX Runtime's, where it is installed.
"""
import math
from functools import cache

import onnx

from graphq.onnx.importers.importer import MICROSOFT, Call, attribute_default

OTHERWISE = {("GridSample", "mode"): "linear", ("GRU", "direction"): "forward", ("RNN", "activations"): ()}
"""What importers take in place of a default: another name of the mode, what version 1 misspells, and as none what
stands for one in each direction."""


@cache
def _of_microsoft():
    """The attributes of com.microsoft's operators."""
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
    except ImportError:
        return {}
    return {s.name: {name: onnx.AttributeProto.FromString(a._default_value) for name, a in s.attributes.items()}
            for s in get_all_operator_schema() if s.domain == MICROSOFT}


@cache
def _default(domain, op, version, name):
    """The default of an attribute; None if the schema has none, or is not known."""
    if domain == MICROSOFT:
        proto = _of_microsoft().get(op, {}).get(name)
    else:
        try:
            attributes = onnx.defs.get_schema(op, version, domain).attributes
        except onnx.defs.SchemaError:
            return None
        proto = attributes[name].default_value if name in attributes else None
    return attribute_default(proto) if proto is not None and proto.name else None


def check_defaults(patch):
    """From now on a load fails where an importer takes another value than the schema's for an absent attribute."""
    attr = Call.attr

    def checked(c, name, default=None):
        op = c.node.op_type
        if default is not None and default != OTHERWISE.get((op, name), ...):
            want = _default(c.node.domain, op, c.version, name)
            near = isinstance(want, float) and math.isclose(default, want, rel_tol=1e-6)
            assert want is None or default == want or near, \
                f"{op} {c.version}: without '{name}' it is {want!r}, the importer takes {default!r}"
        return attr(c, name, default)

    patch.setattr(Call, "attr", checked)
