"""OpenVINO's files: a graph, `.xml`, and its weights, `.bin`; made from an ONNX file, without OpenVINO's converter.

The converter, `openvino.convert_model`, reports each use to its makers where it can; `Core.read_model` does not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from greenformers.checkpoint.load import line
from greenformers.export.network import Call


def save_openvino(onnx_file: Path, path: Path) -> None:
    """Write an ONNX file in OpenVINO's form.

    Raises:
        ValueError: OpenVINO cannot read the ONNX file.
        OSError: A file cannot be written.
    """
    import openvino

    try:
        model = openvino.Core().read_model(onnx_file)
    except RuntimeError as error:
        raise ValueError(f"OpenVINO cannot read {onnx_file.name}: {line(error)}") from error
    try:
        openvino.save_model(model, path, compress_to_fp16=False)
    except RuntimeError as error:
        raise OSError(f"{path.name} cannot be written: {line(error)}") from error


def read_openvino(path: Path, inputs: Sequence[str], precision: str | None = None) -> Call:
    """A file of OpenVINO as a function of tensors, with as many threads as torch.

    Args:
        path: The `.xml` file.
        inputs: Names of its inputs.
        precision: Type of floats, such as "f32"; by default OpenVINO's choice, bfloat16 where the processor has it.

    Raises:
        ValueError: OpenVINO cannot read it, or it has other inputs.
    """
    import openvino

    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    if precision is not None:
        options["INFERENCE_PRECISION_HINT"] = precision
    try:
        compiled = openvino.Core().compile_model(path, "CPU", options)
    except RuntimeError as error:
        raise ValueError(f"OpenVINO cannot read {path.name}: {line(error)}") from error
    names = [value.get_any_name() for value in compiled.inputs]
    if sorted(names) != sorted(inputs):
        raise ValueError(f"{path.name} takes {', '.join(names)}, and not {', '.join(inputs)}")
    request = compiled.create_infer_request()

    def run(*tensors: Tensor) -> Tensor:
        arrays = {name: tensor.numpy() for name, tensor in zip(inputs, tensors, strict=True)}
        return torch.from_numpy(request.infer(arrays)[0].copy())  # the request writes to the same place at each run

    return run
