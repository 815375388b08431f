"""ONNX Runtime: the dense network as torch exports it, and its own dynamic and static int8."""

from pathlib import Path

import onnxruntime
import serve

FILE = "model.onnx"
DENSE, DYNAMIC, STATIC = "dense", "dynamic-int8", "static-int8"


def make(network: Path, texts: list[str], folder: Path) -> None:
    """Export, quantise with scales found at every call, and with scales found on texts."""
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    from tokenizers import Tokenizer

    paths = {form: folder / form / FILE for form in (DENSE, DYNAMIC, STATIC)}
    for path in paths.values():
        path.parent.mkdir(parents=True)
    export(network, paths[DENSE])
    quantize_dynamic(paths[DENSE], paths[DYNAMIC], per_channel=True)
    tokenizer = Tokenizer.from_file(str(network / "tokenizer.json"))
    # Unsigned inputs are as exact as the default's signed ones here, and faster; so are floats between the products.
    quantize_static(
        paths[DENSE], paths[STATIC], Calibration(tokenizer, texts), per_channel=True,
        op_types_to_quantize=["MatMul", "Gather"], activation_type=QuantType.QUInt8,
    )  # fmt: skip


def export(network: Path, path: Path) -> None:
    """Write the dense network, for any batch and length."""
    import torch
    from dense import INPUTS, OUTPUT, Dense, example

    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        Dense(network), kwargs=example(), f=path, dynamo=True, external_data=False, verbose=False,
        input_names=INPUTS, output_names=[OUTPUT], dynamic_shapes=dict.fromkeys(INPUTS, free),
    )  # fmt: skip


class Calibration:
    """A reader of calibration data, one text at a time."""

    def __init__(self, tokenizer: serve.Tokenizer, texts: list[str]) -> None:
        self._batches = (serve.tokenise(tokenizer, [text], 128) for text in texts)

    def get_next(self) -> dict[str, serve.Array] | None:
        """The next inputs; None after the last ones."""
        return next(self._batches, None)


def load(folder: Path, threads: int) -> serve.Encoder:
    """A session, of any file that takes some of the three inputs."""
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    (path,) = folder.rglob("*.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda inputs: session.run(None, {name: inputs[name] for name in names})[0]


if __name__ == "__main__":
    serve.main(make, load)
