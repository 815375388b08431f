"""OpenVINO's files: a graph, `.xml`, and its weights, `.bin`; made from an ONNX file, without OpenVINO's converter.

The converter, `openvino.convert_model`, reports each use to its makers where it can; `Core.read_model` does not.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from greenformers.checkpoint.files import line
from greenformers.export.cached import CachedCall
from greenformers.export.network import CACHED, IDS, MASK, Call, Outputs, Traceable, alone, check_inputs

ROWS = "beam_idx"
"""Name of the input that says of which row of the last run each row continues the text, as beam search needs it."""


@cache
def core() -> Any:
    """OpenVINO itself, one for all files of this process.

    For the processor each `Core` has signals handled on a stack of its own, and puts back that of before when it goes.
    Of two that go in the order in which they came, the last puts back what is freed: the next signal ends the process.
    """
    import openvino

    return openvino.Core()


def save_openvino(onnx_file: Path, path: Path, network: Traceable) -> None:
    """Write an ONNX file in OpenVINO's form; a cache becomes the state of the file, which runs hand on themselves.

    Args:
        onnx_file: The ONNX file.
        path: The `.xml` file.
        network: The network, for the names of the cache.

    Raises:
        ValueError: OpenVINO cannot read the ONNX file.
        OSError: A file cannot be written.
    """
    import openvino

    try:
        model = core().read_model(onnx_file)
    except RuntimeError as error:
        raise ValueError(f"OpenVINO cannot read {onnx_file.name}: {line(error)}") from error
    cached = [name for name in network.inputs if name.startswith(CACHED)]
    if cached:
        _keep_state(model, dict(zip(cached, network.outputs[1:], strict=True)))
    try:
        openvino.save_model(model, path, compress_to_fp16=False)
    except RuntimeError as error:
        raise OSError(f"{path.name} cannot be written: {line(error)}") from error


def _keep_state(model: Any, names: dict[str, str]) -> None:
    """Turn inputs, and the outputs that hold their next values, into the state of a model."""
    from openvino import opset13
    from openvino._offline_transformations import apply_make_stateful_transformation

    rows = opset13.parameter([-1], np.int32, name=ROWS)
    rows.output(0).tensor.set_names({ROWS})
    for name in names:
        given = model.input(name)
        takers = list(given.get_target_inputs())
        chosen = opset13.gather(given, rows, opset13.constant(0))
        for taker in takers:
            taker.replace_source_output(chosen.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(model, names)


def read_openvino(path: Path, inputs: Sequence[str], *, exact: bool = False, pieces: bool = False) -> Call:
    """A file of OpenVINO as a function of tensors, with as many threads as torch.

    Args:
        path: The `.xml` file.
        inputs: Names of its inputs.
        exact: Whether all is computed in float32. By default OpenVINO chooses: bfloat16 where the processor has it, and
            8 bits for what is multiplied by weights of few bits.
        pieces: Whether a file with a cache is given its texts in pieces.

    Raises:
        ValueError: OpenVINO cannot read it, or it has other inputs.
    """
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    if exact:
        options |= {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    try:
        compiled = core().compile_model(path, "CPU", options)
    except RuntimeError as error:
        raise ValueError(f"OpenVINO cannot read {path.name}: {line(error)}") from error
    names = [value.get_any_name() for value in compiled.inputs]
    check_inputs(path, names, inputs, ROWS)
    request = compiled.create_infer_request()
    if ROWS in names:
        return CachedCall(OpenVinoDecoder(request), pieces=pieces)

    def run(*tensors: Tensor) -> Outputs:
        arrays = {name: tensor.numpy() for name, tensor in zip(inputs, tensors, strict=True)}
        # The request writes to the same places at each run.
        return alone([torch.from_numpy(output.copy()) for output in request.infer(arrays).to_tuple()])

    return run


class OpenVinoDecoder:
    """A file of OpenVINO that keeps a cache.

    Args:
        request: A request of the compiled file.
    """

    def __init__(self, request: Any) -> None:
        self.request = request

    def reset(self, size: int) -> None:
        """Forget the texts."""
        self.request.reset_state()

    def step(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The logits of new tokens."""
        # OpenVINO takes arrays whose rows lie one behind the other.
        given = {IDS: ids.contiguous().numpy(), MASK: mask.contiguous().numpy()}
        output = self.request.infer({**given, ROWS: np.arange(len(ids), dtype=np.int32)})
        return torch.from_numpy(output[0].copy())
