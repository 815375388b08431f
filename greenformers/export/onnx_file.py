"""ONNX files: written from a program of torch, and read by ONNX Runtime."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from greenformers._torch import onnx_log, operators
from greenformers.checkpoint.files import line
from greenformers.export.cached import CachedCall
from greenformers.export.network import CACHED, IDS, MASK, Call, Outputs, Traceable, alone, check_inputs
from greenformers.export.static_int8 import static_int8_linear

OPSET = 20
"""Version of ONNX's operators, the first that has GELU."""

LARGE = 2**30
"""Bytes of weights from which on they have a file of their own: one file holds at most 2 GiB."""


def save_onnx(program: ExportedProgram, path: Path, network: Traceable) -> None:
    """Write a program as ONNX, with its free dimensions.

    Args:
        program: The program of a network.
        path: The file.
        network: The network, for the names of inputs, outputs and dimensions.

    Raises:
        ValueError: The exporter cannot write it.
        OSError: The file cannot be written.
    """
    translations: dict[Any, Callable[..., Any]] = {
        operators.int8_matmul.default: _integers,
        torch.ops.greenformers.static_int8_linear.default: _static,
    }
    assert static_int8_linear is not None  # importing it is what makes the operator
    try:
        with _silent():
            exported = torch.onnx.export(
                program, dynamo=True, verbose=False, opset_version=OPSET, input_names=list(network.inputs),
                output_names=list(network.outputs), custom_translation_table=translations,
            )  # fmt: skip
    except Exception as error:  # of one of the exporter's passes, with its reason behind it
        raise ValueError(f"the model cannot be written as ONNX: {line(_root(error))}") from error
    assert exported is not None
    given: Any = exported.model.graph.inputs
    exported.rename_axes(
        {
            value.shape[at].value: axis
            for value, axes in zip(given, network.axes, strict=True)
            for at, axis in axes.items()
        }
    )
    _keep_sums_apart(exported.model.graph)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)  # of an earlier file of this name
    exported.save(path, external_data=weights > LARGE)


def read_onnx(path: Path, inputs: Sequence[str], *, pieces: bool = False) -> Call:
    """An ONNX file as a function of tensors, run by ONNX Runtime with as many threads as torch.

    Args:
        path: The file.
        inputs: Names of its inputs, but for those of a cache.
        pieces: Whether a file with a cache is given its texts in pieces.

    Raises:
        ValueError: ONNX Runtime cannot read it, or it has other inputs.
    """
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised, and need not be printed too
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds, which have no name outside of it
        raise ValueError(f"onnxruntime cannot read {path.name}: {line(error)}") from error
    check_inputs(path, [value.name for value in session.get_inputs()], inputs, CACHED)
    if len(session.get_inputs()) > len(inputs):
        return CachedCall(OnnxDecoder(session), pieces=pieces)

    def run(*tensors: Tensor) -> Outputs:
        arrays = {name: tensor.numpy() for name, tensor in zip(inputs, tensors, strict=True)}
        return alone([torch.from_numpy(output) for output in session.run(None, arrays)])

    return run


class OnnxDecoder:
    """An ONNX file with a cache.

    Args:
        session: Its session in ONNX Runtime.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        cached = [value for value in session.get_inputs() if value.name.startswith(CACHED)]
        self.shapes = {value.name: (value.shape[1], value.shape[3]) for value in cached}
        self.reset(1)

    def reset(self, size: int) -> None:
        """Forget the texts."""
        self.cache = [np.zeros((size, heads, 0, width), np.float32) for heads, width in self.shapes.values()]

    def step(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The logits of new tokens."""
        given = dict(zip(self.shapes, self.cache, strict=True))
        logits, *self.cache = self.session.run(None, {IDS: ids.numpy(), MASK: mask.numpy(), **given})
        return torch.from_numpy(logits)


def _static(x: Any, weight: Any, scale: Any, bias: Any, step: Any, zero: Any) -> Any:
    """`static_int8_linear` in the form that ONNX Runtime and OpenVINO run in integers."""
    from onnxscript import opset20 as op

    rounded = op.DequantizeLinear(op.QuantizeLinear(x, step, zero), step, zero)
    product = op.MatMul(rounded, op.DequantizeLinear(op.Transpose(weight, perm=[1, 0]), scale, axis=1))
    return product if bias is None else op.Add(product, bias)


def _integers(a: Any, b: Any) -> Any:
    """The product of int8 matrices, which the exporter does not know."""
    from onnxscript import opset20

    return opset20.MatMulInteger(a, b)


def _keep_sums_apart(graph: Any) -> None:
    """Turn additions before layer norms into the operator Sum, which says the same.

    ONNX Runtime fuses an Add and the LayerNormalization behind it into one kernel, which is slower than the two apart:
    of (8, 128, 384) on two threads 0.98 ms in place of 0.21, of a BERT of four layers in int8 36.7 in place of 31.1.
    """
    for node in graph:
        if node.op_type == "LayerNormalization":
            added = node.inputs[0].producer()
            if added is not None and added.op_type == "Add":
                added.op_type = "Sum"


def _root(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _root(error.__cause__)


@contextmanager
def _silent() -> Iterator[None]:
    """A `with` block without the exporter's warnings, of deprecated parts of torch and a missing torchvision."""
    log = onnx_log()
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
            yield
    finally:
        log.setLevel(before)
