"""Write a trained network in the forms of several runtimes; every file is read again and compared with the model."""

import copy
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers._extras import missing
from greenformers.changes._bits_layers import rounding_inputs
from greenformers.changes._int8_linear import Int8Linear
from greenformers.checkpoint.pack_quantized import METHOD as PACKED
from greenformers.checkpoint.pack_quantized import check_layout, save_pack_quantized
from greenformers.checkpoint.pretrained import pretrained
from greenformers.checkpoint.save import carry_modules, save, width_of
from greenformers.checkpoint.sentence import MODULES, set_width
from greenformers.checkpoint.structure import changes_of
from greenformers.export.cached import cached_network
from greenformers.export.compare import Comparison
from greenformers.export.genai import add_tokenizer
from greenformers.export.network import Call, Network, Traceable, examples, plain_attention, trace
from greenformers.export.onnx_file import read_onnx, save_onnx
from greenformers.export.openvino_file import read_openvino, save_openvino
from greenformers.export.packed_linear import check_packed, has_packed, packed, unpacked
from greenformers.export.program import read_program, save_program
from greenformers.export.static_int8 import input_ranges, static

FORMATS = {
    "openvino": "openvino/openvino_model.xml", "onnx": "onnx/model.onnx", "torch": "model.safetensors",
    "program": "model.pt2", PACKED: "compressed-tensors/model.safetensors",
}  # fmt: skip
"""The file of each format: of OpenVINO, of ONNX Runtime, the checkpoint itself, of torch.export, and a checkpoint that
other libraries read."""

CHECKPOINTS = ("torch", PACKED)
"""Formats that are run in torch as the model is, and so as fast and as good."""

LIBRARIES = {"onnx": ("onnx", "onnxruntime", "onnxscript"), "openvino": ("onnx", "onnxscript", "openvino")}
"""The libraries that a format needs, all of the extra `export`."""


class Checked(NamedTuple):
    """The differences between exported files and their model, over all batches that were tried.

    Attributes:
        differences: Largest difference of each format, relative to the largest output of the model.
        allowed: Largest difference that is allowed, by format.
        cached: Whether the files of OpenVINO and ONNX Runtime keep the keys and values of earlier tokens.
        whole: The reason why those of a language model do not, and take whole texts only; else empty.
        unread: The reason why OpenVINO GenAI cannot read the folder of a language model's file of OpenVINO; else empty.
    """

    differences: dict[str, float]
    allowed: dict[str, float]
    cached: bool = False
    whole: str = ""
    unread: str = ""


def write(
    model: PreTrainedModel,
    folder: str | Path,
    formats: Sequence[str] = ("openvino", "onnx", "torch"),
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    calibration: Iterable[Mapping[str, Tensor]] | None = None,
    length: int = 128,
    few: bool = False,
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> Checked:
    """Write the files of formats into a folder, see `FORMATS`, with configuration, tokenizer and pooling beside them.

    Each file is read again by its runtime, and compared with the model on padded batches of other sizes than the one
    that was traced, as an ONNX file does not say for which sizes it holds. Int8 linear layers go to OpenVINO and ONNX
    Runtime with static ranges of their inputs; these files are compared with the same layers in torch.

    Args:
        model: A dense or compressed model on the CPU; it is left as it is, in evaluation mode. Of one in half precision
            the checkpoint is the model as it is, and all other files hold its weights in float32.
        folder: Folder for the files; it is created where it is missing.
        formats: Names of `FORMATS`.
        tokenizer: Tokenizer, saved beside the files.
        calibration: Batches of texts like those that the model is for, without padding, from which int8 layers get
            their ranges.
        length: Longest length that is tried, in tokens; at least 4.
        few: Compare on two batches alone, where what is written is judged on texts.
        progress: Function that is called with the name of a step and the share of it that is done.

    Returns:
        The differences between the files and the model.

    Raises:
        ValueError: A format is unknown; the model is of another kind, or cannot be traced or written; int8 layers have
            nothing to be calibrated with; or a file gives other outputs than the model.
        MissingExtraError: A library of the extra `export` is not installed.
        OSError: A file cannot be written.
    """
    check_formats(formats)
    check_calibration(model, formats, calibration is not None)
    check_few_bits(model, formats)
    # ONNX Runtime has few operations of half precision for the CPU.
    checkpoint, model = model, model if model.dtype == torch.float32 else copy.deepcopy(model).float()
    network, folder = Network(model, tokenizer), Path(folder)
    tried = examples(network, length)
    tried = tried[-2:] if few else tried
    differs = (calibration is not None and has_int8(model)) or has_packed(model)
    # Of what the files of graphs are not compared with no outputs are needed.
    as_it_is = None if differs and all(name in LIBRARIES for name in formats) else Comparison(network, tried)
    folder.mkdir(parents=True, exist_ok=True)
    _write_model(checkpoint, folder, tokenizer, weights="torch" in formats)
    comparisons: dict[str, Comparison] = {}
    if checkpoint is not model and "torch" in formats:
        comparisons["torch"] = Comparison(Network(checkpoint, tokenizer), tried)
    if "program" in formats:
        save_program(trace(network, network.batch(2, length // 2)), folder / FORMATS["program"])
        if has_packed(model) and not rounding_inputs(model):
            comparisons["program"] = Comparison(Network(unpacked(model), tokenizer), tried)
    if PACKED in formats:
        beside = (folder / FORMATS[PACKED]).parent
        save_pack_quantized(model, beside)
        _write_rest(model, beside, tokenizer)
    graphs, cached, whole = [name for name in formats if name in LIBRARIES], False, ""
    if graphs:
        twin = network
        if calibration is not None and has_int8(model):
            progress("calibrating", 0.0)
            twin = Network(static(model, input_ranges(model, calibration)), tokenizer)
            progress("calibrating", 1.0)
        if has_packed(model):
            twin = Network(packed(twin.model), tokenizer)
        comparisons |= dict.fromkeys(graphs, as_it_is if as_it_is and twin is network else Comparison(twin, tried))
        progress("writing", 0.0)
        traced, program, whole = _traced(twin, comparisons[graphs[0]], length)
        cached = traced is not twin
        _write_graphs(program, traced, folder, graphs)
        progress("writing", 1.0)
    if as_it_is is not None:
        comparisons = dict.fromkeys(formats, as_it_is) | comparisons
    differences = {}
    for number, (name, comparison) in enumerate(comparisons.items()):
        progress("checking", number / len(formats))
        differences[name] = comparison(FORMATS[name], reader(name, folder, network.inputs, exact=True))
    progress("checking", 1.0)
    allowed = {name: comparison.allowed for name, comparison in comparisons.items()}
    unread = ""
    if "openvino" in formats and cached:
        unread = add_tokenizer(folder, (folder / FORMATS["openvino"]).parent, tokenizer)
    return Checked(differences, allowed, cached, whole, unread)


def check_formats(formats: Sequence[str]) -> None:
    """Check that formats are known, and that the libraries they need are installed.

    Raises:
        ValueError: A format is unknown or named twice, or there is none.
        MissingExtraError: A library of the extra `export` is not installed.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats or len(set(formats)) < len(formats):
        raise ValueError(f"formats must be of {', '.join(FORMATS)}, each once; got {','.join(formats)!r}")
    errors = {
        "onnx": missing("the format onnx", "export", "onnx", "onnxruntime", "onnxscript"),
        "openvino": missing("the format openvino", "export", "onnx", "onnxscript", "openvino"),
    }
    for name in formats:
        try:
            for library in LIBRARIES.get(name, ()):
                import_module(library)
        except ModuleNotFoundError as error:
            raise errors[name] from error


def has_int8(model: PreTrainedModel) -> bool:
    """Whether a model has int8 linear layers."""
    return any(isinstance(module, Int8Linear) for module in model.modules())


def calibrates(model: PreTrainedModel, formats: Sequence[str]) -> bool:
    """Whether a model has int8 layers, and a format needs the ranges of their inputs."""
    return has_int8(model) and any(name in LIBRARIES for name in formats)


def check_calibration(model: PreTrainedModel, formats: Sequence[str], calibrated: bool) -> None:
    """Check that int8 layers can be calibrated where a format needs it.

    Raises:
        ValueError: They cannot.
    """
    if calibrates(model, formats) and not calibrated:
        graphs = [name for name in formats if name in LIBRARIES]
        raise ValueError(
            f"{' and '.join(graphs)} run int8 layers in integers by ranges of their inputs, which come from texts like "
            "those the model is for: give some (--texts)"
        )


def check_few_bits(model: PreTrainedModel, formats: Sequence[str]) -> None:
    """Check that the formats can hold the layers of few bits that a model has, or has not.

    Raises:
        ValueError: They cannot.
    """
    if PACKED in formats:
        check_layout(model)
    if any(name in LIBRARIES for name in formats):
        check_packed(model)


def reader(name: str, folder: Path, inputs: Sequence[str], *, exact: bool = False) -> Call:
    """The file of a format, as a function of tensors.

    Args:
        name: Name of the format.
        folder: The folder of the export.
        inputs: Names of the inputs.
        exact: Whether the file is to be compared with the model: floats are float32 also where OpenVINO would choose
            another type, and a file with a cache is given its texts in pieces.

    Raises:
        ValueError: The file cannot be read.
        OSError: The file cannot be opened.
    """
    path = folder / FORMATS[name]
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    if name == "onnx":
        return read_onnx(path, inputs, pieces=exact)
    if name == "openvino":
        return read_openvino(path, inputs, exact=exact, pieces=exact)
    return read_program(path) if name == "program" else Network(*pretrained(str(path.parent)))


def _write_model(
    model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None, *, weights: bool
) -> None:
    """Write configuration, tokenizer and the modules behind a sentence encoder, and where asked for the checkpoint."""
    if weights and changes_of(model):
        save(model, folder, tokenizer=tokenizer)
        return
    if weights:
        model.save_pretrained(folder)
    else:
        model.config.save_pretrained(folder)
        path = folder / "config.json"
        settings = json.loads(path.read_text())
        path.write_text(json.dumps(settings | {"architectures": [type(model).__name__]}, indent=2) + "\n")
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
    _write_rest(model, folder, tokenizer)


def _write_rest(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    carry_modules(model, folder, tokenizer is not None)
    if (folder / MODULES).is_file():
        set_width(folder, width_of(model))


def _traced(network: Network, comparison: Comparison, length: int) -> tuple[Traceable, ExportedProgram, str]:
    """A network and its program, with a cache where it can keep one, and the reason why a language model cannot.

    Raises:
        ValueError: The network cannot be traced.
    """
    reason = cached_network(network, comparison)
    with plain_attention(network.model):
        if not isinstance(reason, str):
            try:
                return reason, trace(reason, reason.batch(2, length // 2)), ""
            except ValueError as error:
                reason = f"with a cache {error}"
        return network, trace(network, network.batch(2, length // 2)), reason


def _write_graphs(program: ExportedProgram, network: Traceable, folder: Path, graphs: Sequence[str]) -> None:
    """Write the files of ONNX Runtime and OpenVINO; the latter is made from the former.

    Raises:
        ValueError: The program cannot be written.
        OSError: A file cannot be written.
    """
    for name in graphs:
        (folder / FORMATS[name]).parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".onnx-", dir=folder) as beside:
        path = folder / FORMATS["onnx"] if "onnx" in graphs else Path(beside) / "model.onnx"
        save_onnx(program, path, network)
        if "openvino" in graphs:
            save_openvino(path, folder / FORMATS["openvino"], network)
