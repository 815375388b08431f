"""Compress a model layer by layer from disk to disk, for models of which memory does not hold two, or even one.

Memory holds one weight with its factors, and what is not yet written: `BUFFER` bytes.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from greenformers.changes._report import CompressionReport, LayerReport
from greenformers.checkpoint.load import check_local, check_weights, model_class, read_json
from greenformers.checkpoint.plugin import Structure
from greenformers.checkpoint.save import building, check_target, describe
from greenformers.checkpoint.structure import place, structure
from greenformers.lowrank.factorize import CALIBRATED, SOLVERS, SPECTRAL
from greenformers.lowrank.rank import MULTIPLE, largest
from greenformers.solve.budget import Budget, Layer, ranks
from greenformers.solve.solve import Solved, solve
from greenformers.solve.walk import Select, Site, sites

BUFFER = 2**30
INDEX = "model.safetensors.index.json"
OTHER = ("generation_config.json", "tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "*.model")
"""What is copied beside the weights."""


def compress_shards(
    folder: str | Path,
    out: str | Path,
    budget: Budget,
    *,
    solver: str = "randomized",
    select: Select = None,
    multiple: int | None = None,
    seed: int = 0,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> CompressionReport:
    """Compress the checkpoint in a folder into another, without ever building the model.

    Args:
        folder: of a `transformers` model with weights in safetensors.
        out: for the compressed one; `greenformers.load` and `from_pretrained` read it.
        budget: of parameters; "hull", "energy" and "stable" go through the weights twice.
        solver: one that needs no calibration.
        select: as for `compress`.
        multiple: ranks are multiples of this.
        seed: of solvers that draw.
        progress: called as work goes on.

    Raises:
        ValueError: files that are damaged, foreign or do not fit the configuration; a value out of range.
        OSError: a file that cannot be read or written.
    """
    folder, out = Path(folder), Path(out)
    if solver not in SOLVERS or solver in CALIBRATED:
        raise ValueError(f"from disk, solver must be one of {', '.join(_data_free())}; got {solver!r}")
    if budget.of != "parameters" or (budget.needs_spectrum and solver not in SPECTRAL):
        raise ValueError(f"from disk, solver {solver!r} cannot spend a budget {budget.how!r} of {budget.of}")
    if multiple is not None and multiple < 1:
        raise ValueError(f"multiple must be at least 1, got {multiple}")
    multiple = multiple or (1 if budget.how == "rank" else MULTIPLE["cpu"])
    check_target(out)
    model, stored = _skeleton(folder)
    found = sites(model, select)
    keys = {site.path: _key(site, stored) for site in found}
    before = sum(size for _, size in stored.values())
    layers = []
    for number, site in enumerate(found):
        energies = None
        if budget.needs_spectrum and largest(site.m, site.n):
            solved = _solved(site, stored[keys[site.path]][0], keys[site.path], largest(site.m, site.n), solver, seed)
            energies = solved.energies
        layers.append(Layer(site, torch.zeros(1) if energies is None else energies))
        progress("looking", (number + 1) / len(found))
    chosen = ranks(layers, budget, lambda site, rank: site.parameters(rank), multiple)
    by_key = {keys[site.path]: (site, rank) for site, rank in zip(found, chosen, strict=True)}
    with building(out) as made:
        reports: list[LayerReport] = []
        sizes = _write(made, _tensors(stored, by_key, solver, seed, reports, progress))
        ranks_by_path = {path: rank for site, rank in by_key.values() if rank for path in site.paths}
        place(model, Structure(ranks_by_path, _ties(by_key)))
        model.config.quantization_config = structure(model)
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(made)
        for pattern in OTHER:
            for path in folder.glob(pattern):
                shutil.copy(path, made)
        report = CompressionReport(solver, vars(budget), reports, before, sizes)
        describe(made, model, report)
    return report


def _data_free() -> list[str]:
    return [solver for solver in SOLVERS if solver not in CALIBRATED]


def _skeleton(folder: Path) -> tuple[PreTrainedModel, dict[str, tuple[Path, int]]]:
    """The model on the meta device, and of each stored tensor the file and the number of entries."""
    described = read_json(folder / "config.json")
    check_local(described, folder)
    check_weights(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{folder} is compressed already")
    with torch.device("meta"):
        model = model_class(described, folder)._from_config(config)
    index = folder / INDEX
    names = sorted(set(read_json(index)["weight_map"].values())) if index.exists() else ["model.safetensors"]
    stored = {}
    for name in names:
        with safe_open(folder / name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118
                stored[key] = (folder / name, _entries(file.get_slice(key).get_shape()))
    return model.eval(), stored


def _entries(shape: list[int]) -> int:
    return torch.Size(shape).numel()


def _key(site: Site, stored: Mapping[str, Any]) -> str:
    for path in site.paths:
        if f"{path}.weight" in stored:
            return f"{path}.weight"
    raise ValueError(f"the checkpoint has no {site.path}.weight: it was written by another version; load and save it")


def _solved(site: Site, file: Path, key: str, rank: int, solver: str, seed: int) -> Solved:
    module: Any = site.module
    empty = module.weight
    with safe_open(file, framework="pt") as opened:
        weight = opened.get_tensor(key)
    if weight.shape != empty.shape:
        raise ValueError(f"{key} is {tuple(weight.shape)} in the checkpoint, {tuple(empty.shape)} by its configuration")
    module.weight = nn.Parameter(weight, requires_grad=False)
    try:
        return solve(site, rank, solver, seed=seed)
    finally:
        module.weight = empty


def _tensors(
    stored: Mapping[str, tuple[Path, int]],
    by_key: Mapping[str, tuple[Site, int | None]],
    solver: str,
    seed: int,
    reports: list[LayerReport],
    progress: Callable[[str, float], None],
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the compressed checkpoint, one after the other."""
    for number, (key, (path, _)) in enumerate(stored.items()):
        site, rank = by_key.get(key, (None, None))
        if site is None or rank is None:
            with safe_open(path, framework="pt") as file:
                yield key, file.get_tensor(key)
        else:
            part = _solved(site, path, key, rank, solver, seed)
            stem = key.removesuffix(".weight")
            yield f"{stem}.decoder", part.decoder[..., :rank].flatten(0, 1).contiguous()
            encoder = part.encoder[:, :rank].flatten(0, 1)
            if site.kind == "conv":
                kernel: Any = site.module
                encoder = encoder.unflatten(1, kernel.weight.shape[1:])
            yield f"{stem}.encoder", encoder.contiguous()
        if site is not None:
            predicted, achieved = (0.0, 0.0) if rank is None else (part.predicted(rank), part.achieved(rank))
            shape = (site.groups, site.m, site.n)
            reports.append(
                LayerReport(
                    site.path, site.paths[1:], shape, rank, site.dense, site.parameters(rank), predicted, achieved
                )
            )
        progress("factorising", (number + 1) / len(stored))


def _ties(by_key: Mapping[str, tuple[Site, int | None]]) -> list[list[str]]:
    return [list(site.paths) for site, rank in by_key.values() if rank and len(site.paths) > 1]


def _write(folder: Path, tensors: Iterator[tuple[str, Tensor]]) -> int:
    """Write tensors in files of about `BUFFER` bytes with an index. How many entries they had."""
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
        return entries
    weight_map: dict[str, str] = {}
    for number, keys in enumerate(files):
        name = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / name)
        weight_map |= dict.fromkeys(keys, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}, indent=1))
    return entries
