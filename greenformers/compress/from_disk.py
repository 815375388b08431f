"""A change applied weight by weight from disk to disk, for models too large to be held in RAM twice, or even once."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from greenformers._tensors import save_file
from greenformers.changes import Change, Given
from greenformers.changes._report import CompressionReport, Step
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.files import check_local, check_weights, line, model_class, read_json
from greenformers.checkpoint.guard import guards_of
from greenformers.checkpoint.place import MISSING, place
from greenformers.checkpoint.pooling import read_pooling
from greenformers.checkpoint.save import building, check_place, describe
from greenformers.checkpoint.sentence import POOLED, SentenceFolder, sentence_folder
from greenformers.checkpoint.structure import structure
from greenformers.measure.parameters import packed_numbers
from greenformers.model._transformers import all_ties, is_left_over, model_from_config
from greenformers.solve.stream import Stored

BUFFER = 2**30
"""Bytes of a file, and of the tensors that are held before they are written."""
INDEX = "model.safetensors.index.json"
OTHER = (
    "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt",
    "*.model", "*.spm", "target_vocab.json", "entity_vocab.json", "bpe.codes", "normalizer.json", "chat_template*",
    "additional_chat_templates", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
"""Patterns of the files that are copied beside the weights."""


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
        folder: Folder of a model of transformers with weights in safetensors.
        out: Folder for the changed model; `greenformers.load` and `from_pretrained` read it.
        changes: A single change that can be applied from disk.
        seed: Seed of random numbers.
        progress: Function that is called as work goes on.

    Returns:
        The report of the change.

    Raises:
        ValueError: Files are damaged, foreign or do not fit the configuration, or the recipe cannot be applied from
            disk.
        OSError: A file cannot be read or written.
    """
    folder, out = Path(folder), Path(out)
    if len(changes) != 1 or not changes[0].from_disk:
        names = ", ".join(change.name() for change in changes)
        raise ValueError(
            f"from disk, a recipe must be one change that can be applied weight by weight, as low_rank; got {names}"
        )
    (change,) = changes
    check_place(out)
    folder, modules = transformer_of(folder)
    began = perf_counter()
    model, stored = skeleton(folder)
    stream = change.stream(model, Given(seed=seed, progress=progress))
    with building(out) as unfinished:
        guards = [name for name in guards_of(model) if name in stored]
        written = ((key, tensor[None] if key in guards else tensor) for key, tensor in stream.tensors(stored))
        entries, size = _write(unfinished, written)
        place(model, Description({change.name(): stream.description()}))
        entries += packed_numbers(model)
        described = structure(model)
        described.guards = guards
        model.config.quantization_config = described
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(unfinished)
        check_written(unfinished, type(model))
        carry(folder, modules, unfinished)
        step = Step(change.streamed(stream), entries, size, perf_counter() - began)
        before = sum(tensor.entries for tensor in stored.values()), sum(tensor.bytes for tensor in stored.values())
        report = CompressionReport([step], *before)
        describe(unfinished, model, report)
    return report


def transformer_of(folder: Path) -> tuple[Path, SentenceFolder | None]:
    """The folder of the transformer, and the modules of sentence-transformers around it, if there are any.

    Raises:
        ValueError: There are modules that are not known.
    """
    modules = sentence_folder(folder)
    if modules is None:
        return folder, None
    if modules.task == POOLED:
        read_pooling(modules)
    return modules.transformer, modules


def carry(folder: Path, modules: SentenceFolder | None, out: Path) -> None:
    """Copy what stands beside the weights: tokenizer, settings of generation, modules of sentence-transformers."""
    for pattern in OTHER:
        for path in folder.glob(pattern):
            if path.is_dir():  # templates of other names
                shutil.copytree(path, out / path.name, dirs_exist_ok=True)
            else:
                shutil.copy(path, out)
    if modules is not None:
        modules.carry(out)


def skeleton(folder: Path, *, buffers: bool = False) -> tuple[PreTrainedModel, dict[str, Stored]]:
    """The model on the meta device, its buffers too unless they are asked for, and where its tensors are."""
    described = read_json(folder / "config.json")
    check_local(described, folder)
    check_weights(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{folder} is compressed already")
    if config.dtype is None:  # as `from_pretrained` takes it
        config.dtype = _float_type(folder)
    with init_empty_weights(include_buffers=False) if buffers else torch.device("meta"):
        model = model_from_config(model_class(described, folder), config)
    stored, ties, names = {}, all_ties(model), {key for key, *_ in slices_of(folder)}
    for key, path, part in slices_of(folder):
        if is_left_over(model, key) or ties.get(key) in names:  # a tied weight that is stored under both names
            continue
        entries = torch.Size(part.get_shape()).numel()
        stored[key] = Stored(path, entries, entries * _itemsize(part.get_dtype()))
    return model.eval(), stored


def _float_type(folder: Path) -> torch.dtype | None:
    """The type of the first tensor of floating-point numbers; None where there is none."""
    types = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    return next((types[kind] for _, _, part in slices_of(folder) if (kind := part.get_dtype()) in types), None)


def slices_of(folder: Path) -> Iterator[tuple[str, Path, Any]]:
    """The name, file and slice of every tensor of a checkpoint; a slice has a shape before it is read."""
    index = folder / INDEX
    names = sorted(set(read_json(index)["weight_map"].values())) if index.exists() else ["model.safetensors"]
    for name in names:
        with safe_open(folder / name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118
                yield key, folder / name, file.get_slice(key)


def check_written(folder: Path, cls: type[PreTrainedModel]) -> None:
    """Check that the names and shapes written are those of the network that the configuration describes.

    No content is read: transformers loads tensors on the meta device, and renames and joins them as it does weights.

    Raises:
        ValueError: They are not.
    """
    empty = {key: torch.empty(part.get_shape(), device="meta") for key, _, part in slices_of(folder)}
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    given: dict[str, Any] = {"config": config, "state_dict": empty, "device_map": "meta", "output_loading_info": True}
    try:
        loaded: Any = cls.from_pretrained(None, **given)
    except Exception as error:  # whatever transformers makes of tensors that do not fit
        raise ValueError(f"the network was not saved: the written tensors do not fit it: {line(error)}") from error
    model, info = loaded
    faults = {"paths that it does not have": vars(model).get(MISSING, []), **info}
    for fault, names in faults.items():
        if names:
            words = f"{len(names)} {fault.replace('_', ' ')}, {min(map(str, names))} among them"
            raise ValueError(f"the network was not saved: the written tensors have {words}")


def _itemsize(name: str) -> int:
    """Bytes of an entry, by the name of its type in safetensors: F32, BF16, I8, F8_E4M3, BOOL."""
    return max(1, int("".join(letter for letter in name.split("_")[0] if letter.isdecimal()) or 8) // 8)


def _write(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> tuple[int, int]:
    """Write tensors in files of about `BUFFER` bytes with an index. The number of their entries and bytes."""
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
