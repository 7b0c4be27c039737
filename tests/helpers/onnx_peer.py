"""What another implementation of ONNX computes."""
from importlib.util import find_spec


def peer(model, feeds):
    """The outputs of ONNX Runtime, or where that is not installed of ONNX's own reference."""
    if find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, feeds)
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model).run(None, feeds)
