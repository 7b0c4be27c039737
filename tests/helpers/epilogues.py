"""Bodies of partitions with an epilogue, of which the check of a kernel family says whether kernels compute them."""
import pytest

from graphq.kernels.family.unsupported import Unsupported


def check_epilogue(check, body, after, reason):
    """Add `after(body, its result)`: `check` refuses it by a text that begins with `reason`, or takes it if None."""
    body.set_outputs([after(body, body.outputs[0])], ["z"])
    constants = [None] * len(body.inputs)
    if reason is None:
        check(body, constants)
        return
    with pytest.raises(Unsupported) as error:
        check(body, constants)
    assert str(error.value).startswith(reason)
