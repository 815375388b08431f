"""A change weight by weight from disk to disk, for models of which memory does not hold two, or even one."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from greenformers.changes import Change, Given
from greenformers.changes._report import CompressionReport, Step
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.guard import guards_of
from greenformers.checkpoint.load import check_local, check_weights, model_class, read_json
from greenformers.checkpoint.place import place
from greenformers.checkpoint.pooling import read_pooling
from greenformers.checkpoint.save import building, check_place, describe
from greenformers.checkpoint.sentence import POOLED, sentence_folder
from greenformers.checkpoint.structure import structure
from greenformers.model._transformers import model_from_config
from greenformers.solve.stream import Stored

BUFFER = 2**30
"""Bytes of a file, and of what is held before it is written."""
INDEX = "model.safetensors.index.json"
OTHER = ("generation_config.json", "tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "*.model")
"""What is copied beside the weights."""


def compress_from_disk(
    folder: str | Path,
    out: str | Path,
    changes: Sequence[Change],
    *,
    seed: int = 0,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> CompressionReport:
    """Change the checkpoint in a folder into another, without ever building the model.

    Args:
        folder: Of a model of transformers with weights in safetensors.
        out: For the changed one; `greenformers.load` and `from_pretrained` read it.
        changes: One change that has a form from disk.
        seed: Seed of what is drawn.
        progress: Called as work goes on.

    Raises:
        ValueError: Files that are damaged, foreign or do not fit the configuration; a recipe that has no such form.
        OSError: A file that cannot be read or written.
    """
    folder, out = Path(folder), Path(out)
    if len(changes) != 1 or not changes[0].from_disk:
        names = ", ".join(change.name() for change in changes)
        raise ValueError(f"from disk, a recipe is one change that can be made weight by weight; got {names}")
    (change,) = changes
    check_place(out)
    modules = sentence_folder(folder)
    if modules is not None:
        folder = modules.transformer
        if modules.task == POOLED:
            read_pooling(modules)  # which refuses what is not understood, before any work
    began = perf_counter()
    model, stored = _skeleton(folder)
    stream = change.stream(model, Given(seed=seed, progress=progress))
    with building(out) as unfinished:
        guards = [name for name in guards_of(model) if name in stored]
        written = ((key, tensor[None] if key in guards else tensor) for key, tensor in stream.tensors(stored))
        entries, size = _write(unfinished, written)
        place(model, Description({change.name(): stream.description()}))
        described = structure(model)
        described.guards = guards
        model.config.quantization_config = described
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(unfinished)
        for pattern in OTHER:
            for path in folder.glob(pattern):
                shutil.copy(path, unfinished)
        if modules is not None:
            modules.carry(unfinished)
        step = Step(change.streamed(stream), entries, size, perf_counter() - began)
        before = sum(tensor.entries for tensor in stored.values()), sum(tensor.bytes for tensor in stored.values())
        report = CompressionReport([step], *before)
        describe(unfinished, model, report)
    return report


def _skeleton(folder: Path) -> tuple[PreTrainedModel, dict[str, Stored]]:
    """The model on the meta device, and where its tensors are."""
    described = read_json(folder / "config.json")
    check_local(described, folder)
    check_weights(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{folder} is compressed already")
    with torch.device("meta"):
        model = model_from_config(model_class(described, folder), config)
    index = folder / INDEX
    names = sorted(set(read_json(index)["weight_map"].values())) if index.exists() else ["model.safetensors"]
    stored = {}
    for name in names:
        with safe_open(folder / name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118
                entries = torch.Size(file.get_slice(key).get_shape()).numel()
                stored[key] = Stored(folder / name, entries, entries * _itemsize(file.get_slice(key).get_dtype()))
    return model.eval(), stored


def _itemsize(name: str) -> int:
    """Bytes of an entry, by the name of the type in safetensors: F32, BF16, I8, F8_E4M3, BOOL."""
    return max(1, int("".join(letter for letter in name.split("_")[0] if letter.isdecimal()) or 8) // 8)


def _write(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> tuple[int, int]:
    """Write tensors in files of about `BUFFER` bytes with an index. How many entries and bytes they had."""
    files: list[list[str]] = []
    held: dict[str, Tensor] = {}
    entries = size = 0

    def flush() -> None:
        if held:
            save_file(held, folder / f"part-{len(files)}", metadata={"format": "pt"})
            files.append(list(held))
            held.clear()

    for key, tensor in tensors:
        held[key] = tensor
        entries += tensor.numel()
        size += tensor.numel() * tensor.element_size()
        if sum(part.numel() * part.element_size() for part in held.values()) >= BUFFER:
            flush()
    flush()
    if len(files) == 1:
        (folder / "part-0").rename(folder / "model.safetensors")
        return entries, size
    weight_map: dict[str, str] = {}
    for number, keys in enumerate(files):
        name = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / name)
        weight_map |= dict.fromkeys(keys, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}, indent=1))
    return entries, size
