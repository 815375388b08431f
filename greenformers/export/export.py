"""Write a trained network for other runtimes: as a program of torch.export, and as ONNX; both files are checked.

Both take `input_ids` and `attention_mask`, int64 (B, N) of any batch B and length N, and give one tensor: logits, or
for a network without a head the last hidden state.
"""

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers import PreTrainedModel

from greenformers._extras import missing
from greenformers._torch import onnx_log, operators
from greenformers.checkpoint.load import line
from greenformers.checkpoint.structure import changes_of

FORMATS = {"torch": "model.pt2", "onnx": "model.onnx"}
"""The file of each format."""

INPUTS = ("input_ids", "attention_mask")
TOLERANCE = 1e-4  # of the largest output: far above the rounding of float32, far below what a lost mask changes
# For int8: share of the largest output that one flipped rounding may change, and factor on the change that was seen
# in a few draws of such flips.
FLIPPED, NOISE, DRAWS = 2e-2, 2.0, 3

Call = Callable[[Tensor, Tensor], Tensor]


class Checked(NamedTuple):
    """The differences between exported files and their model, over all batches that were tried.

    Attributes:
        differences: Largest difference of each format, relative to the largest output of the model.
        allowed: Largest difference that is allowed.
    """

    differences: dict[str, float]
    allowed: float


def export(
    model: PreTrainedModel,
    folder: str | Path,
    formats: Sequence[str] = tuple(FORMATS),
    *,
    length: int = 128,
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> Checked:
    """Write `model.pt2`, which `torch.export.load` reads, and `model.onnx`.

    Each file is read again, and compared with the model on padded batches of other sizes than the one that was traced,
    as an ONNX file does not say for which sizes it holds. torch.export.load unpickles: load only files of your own.
    Causal language models are exported without a cache.

    Args:
        model: A dense or compressed model in float32 on the CPU; it is left as it is, in evaluation mode.
        folder: Folder for the files; it is created where it is missing.
        formats: Names of `FORMATS`.
        length: Longest length that is tried, in tokens; at least 4.
        progress: Function that is called with the name of a step and the share of it that is done.

    Returns:
        The differences between the files and the model.

    Raises:
        ValueError: A format is unknown; the model is of another kind, or cannot be traced or written; or a file gives
            other outputs than the model.
        MissingExtraError: The library onnx, onnxruntime or onnxscript is not installed.
        OSError: A file cannot be written.
    """
    check_formats(formats)
    network, folder = Tensors(model), Path(folder)
    examples = _examples(model, length)
    expected = [_run(network, "the model", example) for example in examples]
    allowed = _allowed(network, examples, expected)
    folder.mkdir(parents=True, exist_ok=True)
    progress("tracing", 0.0)
    program = trace(network, batch(model, 2, length // 2))
    progress("tracing", 1.0)
    differences = {}
    for name in formats:
        progress(name, 0.0)
        path = folder / FORMATS[name]
        if name == "torch":
            _save_program(program, path)
        else:
            _save_onnx(program, path)
        progress(name, 0.5)
        run = reader(name, path)
        pairs = zip(examples, expected, strict=True)
        differences[name] = max(_checked(run, FORMATS[name], example, right, allowed) for example, right in pairs)
        progress(name, 1.0)
    return Checked(differences, allowed)


def _allowed(network: "Tensors", examples: Sequence[tuple[Tensor, Tensor]], expected: Sequence[Tensor]) -> float:
    """The largest difference from a model that is allowed to its files.

    In int8 layers the last digit of a float decides to which side an input on the edge between two integers is rounded,
    and so for the layers behind: how far that changes outputs is measured on the model itself.
    """
    moved = None
    for change in changes_of(network.model):
        for seed in range(DRAWS):
            if (jittered := change.jittered(network, seed)) is not None:
                with jittered:
                    for example, right in zip(examples, expected, strict=True):
                        moved = max(moved or 0.0, _difference(network, "the model", example, right))
    return TOLERANCE if moved is None else max(FLIPPED, NOISE * moved)


def check_formats(formats: Sequence[str]) -> None:
    """Check that formats are known, and that the libraries they need are installed.

    Raises:
        ValueError: A format is unknown, or there is none.
        MissingExtraError: The library onnx, onnxruntime or onnxscript is not installed.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"formats must be of {', '.join(FORMATS)}; got {unknown[0] if unknown else ''!r}")
    if "onnx" in formats:
        try:
            for name in ("onnx", "onnxruntime", "onnxscript"):
                import_module(name)
        except ModuleNotFoundError as error:
            raise missing("ONNX", "export", "onnx", "onnxruntime", "onnxscript") from error


class Tensors(nn.Module):
    """A model of `transformers` as a function of tensors: ids and mask (B, N) to logits, or to the last hidden state.

    Raises:
        ValueError: The model takes other inputs, is not in float32, or not on the CPU.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        name, takes = type(model).__name__, inspect.signature(model.forward).parameters
        if getattr(model.config, "is_encoder_decoder", False) or not set(INPUTS) <= set(takes):
            raise ValueError(f"only networks that take {' and '.join(INPUTS)} alone can be exported; got a {name}")
        if model.dtype != torch.float32 or model.device.type != "cpu":
            raise ValueError(f"the model must be in float32 and on the CPU, got {model.dtype} on {model.device}")
        self.model = model.eval()
        self.options = {"use_cache": False} if "use_cache" in takes else {}

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The logits or the last hidden state."""
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **self.options)
        for name in ("logits", "last_hidden_state"):
            if isinstance(out.get(name), Tensor):
                return out[name]
        raise ValueError(f"{type(self.model).__name__} gives neither logits nor last_hidden_state")


def batch(model: PreTrainedModel, size: int, length: int, padded: str = "") -> tuple[Tensor, Tensor]:
    """Random tokens (size, length) and their mask; `padded` names the side, "left" or "right", or is empty."""
    config = model.config.get_text_config()
    pad = getattr(config, "pad_token_id", None) or 0
    ids = torch.randint(0, config.vocab_size - 1, (size, length), generator=torch.Generator().manual_seed(0))
    ids += (ids >= pad).long()  # padding stands for nothing else: some models find it by its id
    real = torch.linspace(length, (length + 1) // 2, size).long() if padded else torch.full((size,), length)
    mask = (torch.arange(length) < real[:, None]).long()
    mask = mask.flip(1) if padded == "left" else mask
    return ids.where(mask.bool(), pad), mask


def _examples(model: PreTrainedModel, length: int) -> list[tuple[Tensor, Tensor]]:
    if length < 4:
        raise ValueError(f"length must be at least 4, got {length}")
    lengths = [1, 2]
    while sum(lengths[-2:]) < length - 1:  # few lengths, of many divisors and of few
        lengths.append(sum(lengths[-2:]))
    return [
        batch(model, (1, 4, 3, 5)[at % 4], tokens, ("", "right", "left")[at % 3])
        for at, tokens in enumerate([*lengths, length - 1, length])
    ]


def trace(network: nn.Module, example: tuple[Tensor, Tensor]) -> ExportedProgram:
    """The program of a network, for every batch and length.

    Raises:
        ValueError: The network cannot be traced, or only for one batch or length.
    """
    free = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}  # with these torch refuses to specialise to one size
    try:
        with torch.no_grad():
            program = torch.export.export(network, example, dynamic_shapes=(free, free))
    except Exception as error:  # whatever networks raise that read their inputs' values
        raise ValueError(f"the model cannot be traced for every batch and length: {line(error)}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names the folders of this machine
    return program


def reader(name: str, path: Path) -> Call:
    """The file of a format, as a function of ids and mask.

    Raises:
        ValueError: The file cannot be read.
    """
    if name == "onnx":
        return _read_onnx(path)
    try:
        return torch.export.load(path).module()
    except OSError:
        raise
    except Exception as error:  # of its own checks of the graph, which are not those of writing
        raise ValueError(f"{path.name} cannot be read again: {line(error)}") from error


def _save_program(program: ExportedProgram, path: Path) -> None:
    try:
        torch.export.save(program, path)
    except OSError:
        raise
    except Exception as error:  # of its own checks of the graph
        raise ValueError(f"the model cannot be written as a program: {line(error)}") from error


def _save_onnx(program: ExportedProgram, path: Path) -> None:
    try:
        with _silent():
            exported = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=INPUTS, output_names=["output"],
                custom_translation_table={operators.int8_matmul.default: _integers},
            )  # fmt: skip
    except Exception as error:  # of one of the exporter's passes, with its reason behind it
        raise ValueError(f"the model cannot be written as ONNX: {line(_root(error))}") from error
    assert exported is not None
    inputs: Any = exported.model.graph.inputs
    exported.rename_axes(
        {given.shape[at].value: axis for at, axis in enumerate(("batch", "length")) for given in inputs}
    )
    exported.save(path)


def _integers(a: Any, b: Any) -> Any:
    """The product of int8 matrices, which the exporter does not know."""
    from onnxscript import opset18

    return opset18.MatMulInteger(a, b)


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


def _read_onnx(path: Path) -> Call:
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised, and need not be printed too
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds, which have no name outside of it
        raise ValueError(f"onnxruntime cannot read {path.name}: {line(error)}") from error

    def run(ids: Tensor, mask: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, dict(zip(INPUTS, (ids.numpy(), mask.numpy()), strict=True)))[0])

    return run


def _run(call: Call, name: str, example: tuple[Tensor, Tensor]) -> Tensor:
    size, length = example[0].shape
    try:
        with torch.inference_mode():
            return call(*example)
    except Exception as error:  # of a network, or of a runtime: whatever they raise
        raise ValueError(f"{name} cannot be run on a batch of {size} with {length} tokens: {line(error)}") from error


def _checked(run: Call, name: str, example: tuple[Tensor, Tensor], right: Tensor, allowed: float) -> float:
    difference = _difference(run, name, example, right)
    if not difference <= allowed:  # nor if it is not a number
        size, length = example[0].shape
        raise ValueError(
            f"{name} differs from the model by {difference:.2g} of the largest output, on a batch of {size} with "
            f"{length} tokens; {allowed:.2g} is allowed"
        )
    return difference


def _difference(run: Call, name: str, example: tuple[Tensor, Tensor], right: Tensor) -> float:
    size, length = example[0].shape
    got = _run(run, name, example)
    if got.shape != right.shape:
        raise ValueError(f"{name} gives {tuple(got.shape)} where the model gives {tuple(right.shape)}")
    if right.shape[:2] == (size, length):  # nobody reads what stands at the padding
        got, right = got[example[1].bool()], right[example[1].bool()]
    return ((got - right).abs().max() / right.abs().max()).item()
