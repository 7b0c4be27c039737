"""All exporters: importing this module fills the table."""
from graphq.onnx import (  # noqa: F401
    export_compute,
    export_move,
    export_pick,
    export_quant,
    export_recurrent,
)
