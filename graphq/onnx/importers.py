"""All importers: importing this module fills the table."""
from graphq.onnx import (  # noqa: F401
    import_control,
    import_conv,
    import_einsum,
    import_eltwise,
    import_matmul,
    import_microsoft,
    import_move,
    import_norm,
    import_pick,
    import_pool,
    import_quant,
    import_recurrent,
    import_reduce,
    import_shape,
    import_signal,
    import_transformer,
)
