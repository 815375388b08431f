"""ONNX files: written from a program of torch, and read by ONNX Runtime."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from greenformers._torch import onnx_log, operators
from greenformers.checkpoint.load import line
from greenformers.export.network import Call
from greenformers.export.static_int8 import static_int8_linear

OPSET = 20
"""Version of ONNX's operators, the first that has GELU."""

LARGE = 2**30
"""Bytes of weights from which on they have a file of their own: one file holds at most 2 GiB."""


def save_onnx(program: ExportedProgram, path: Path, inputs: Sequence[str], output: str) -> None:
    """Write a program as ONNX, with a free batch and length.

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
                program, dynamo=True, verbose=False, opset_version=OPSET, input_names=list(inputs),
                output_names=[output], custom_translation_table=translations,
            )  # fmt: skip
    except Exception as error:  # of one of the exporter's passes, with its reason behind it
        raise ValueError(f"the model cannot be written as ONNX: {line(_root(error))}") from error
    assert exported is not None
    given: Any = exported.model.graph.inputs
    exported.rename_axes(
        {value.shape[at].value: axis for at, axis in enumerate(("batch", "length")) for value in given}
    )
    weights = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    exported.save(path, external_data=weights > LARGE)


def read_onnx(path: Path, inputs: Sequence[str]) -> Call:
    """An ONNX file as a function of tensors, run by ONNX Runtime with as many threads as torch.

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
    names = [value.name for value in session.get_inputs()]
    if sorted(names) != sorted(inputs):
        raise ValueError(f"{path.name} takes {', '.join(names)}, and not {', '.join(inputs)}")

    def run(*tensors: Tensor) -> Tensor:
        arrays = {name: tensor.numpy() for name, tensor in zip(inputs, tensors, strict=True)}
        return torch.from_numpy(session.run(None, arrays)[0])

    return run


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
