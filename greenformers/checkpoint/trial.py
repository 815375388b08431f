"""The written files are read again, as a user will, and run once beside the network that was saved."""

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.checkpoint.files import line
from greenformers.checkpoint.structure import changes_of
from greenformers.measure.quality import evaluating
from greenformers.model.example import example_of

TOLERANCE, ROUNDED = 1e-4, 1e-2
"""Differences allowed, as shares of the largest output: sums may be in another order, by which values on the edge
are rounded the other way."""


def try_again(folder: Path, model: nn.Module, example: Any = None) -> None:
    """Check that a folder holds the network that was written to it.

    A model of transformers is loaded by its class: its weights must be equal to the bit, and its outputs on one batch
    close, if the model can be run on that batch. For any other network the weights are read into a copy.

    Args:
        folder: Folder with the files.
        model: Network that was written to it.
        example: A batch as keyword arguments; by default made from the configuration, where that is possible.

    Raises:
        ValueError: It is another network, or not finite.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.isfinite().all()):
            raise ValueError(f"the network was not saved: {name} holds values that are not finite")
    if not isinstance(model, PreTrainedModel):
        again = copy.deepcopy(model)
        try:
            load_model(again, folder / "model.safetensors")
        except (RuntimeError, SafetensorError) as error:
            raise _lost(line(error)) from error
        _compare_weights(model, again)
        return
    again = _loaded(folder, type(model))
    _compare_weights(model, again)
    _compare_outputs(model, again, example)


def _lost(why: str) -> ValueError:
    return ValueError(f"the network was not saved: read again it is not what it was: {why}")


def _loaded(folder: Path, cls: type[PreTrainedModel]) -> PreTrainedModel:
    try:
        loaded: Any = cls.from_pretrained(
            folder, output_loading_info=True, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except Exception as error:  # whatever networks raise that cannot be built again
        raise _lost(line(error)) from error
    model, info = loaded
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[fault]:
            raise _lost(f"{len(info[fault])} {fault.replace('_', ' ')}, {sorted(map(str, info[fault]))[0]} among them")
    return model


def _compare_weights(model: nn.Module, again: nn.Module) -> None:
    ours, theirs = model.state_dict(), again.state_dict()
    if ours.keys() != theirs.keys():
        raise _lost(f"{min(ours.keys() ^ theirs.keys())} is in one of the two alone")
    for name, x in ours.items():
        y = theirs[name]
        # A class may hold some weights in a type of their own: the values must be the same.
        if x.shape != y.shape or not torch.equal(x.cpu(), y.cpu().to(x.dtype)):
            raise _lost(f"{name} has other values")


def _compare_outputs(model: PreTrainedModel, again: PreTrainedModel, example: Any) -> None:
    try:
        batch = example_of(model) if example is None else example
        expected = _outputs(model, batch)
    except Exception:  # no example can be made, or it needs more inputs: its weights have been compared
        return
    try:
        moved: Any = again
        actual = _outputs(moved.to(model.device), batch)
    except Exception as error:
        raise _lost(line(error)) from error
    if [x.shape for x in expected] != [x.shape for x in actual]:
        raise _lost("its outputs have another shape")
    coarse = model.dtype not in (torch.float32, torch.float64) or any(change.freezes for change in changes_of(model))
    tolerance = ROUNDED if coarse else TOLERANCE
    for x, y in zip(expected, actual, strict=True):
        scale = x.abs().nan_to_num(posinf=0.0).max() if x.numel() else torch.zeros(())
        distance = (x - y).abs()[x.isfinite()]
        if distance.numel() and not bool(distance.max() <= tolerance * scale):
            raise _lost(f"its outputs differ by {distance.max():.2g}, the largest being {scale:.2g}")


@torch.no_grad()
def _outputs(model: PreTrainedModel, batch: Any) -> list[Tensor]:
    """Every floating-point tensor that a model returns, always from the same random numbers."""
    with evaluating(model), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = model(**batch)
    return [x.float() for x in out.to_tuple() if isinstance(x, Tensor) and x.is_floating_point()]
