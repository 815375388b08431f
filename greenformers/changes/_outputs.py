"""What the outputs of a network hold, for a student to be compared with its teacher."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from greenformers.data._rows import IGNORED

STATES = (("hidden_states", "encoder"), ("encoder_hidden_states", "encoder"), ("decoder_hidden_states", "decoder"))
"""Outputs that hold the states after every layer, and the stack that each belongs to."""


def logits_of(out: Any) -> Tensor | None:
    """The logits of an output; those of the start and of the end of an answer beside each other (B, N, 2)."""
    spans = [getattr(out, f"{end}_logits", None) for end in ("start", "end")]
    if all(isinstance(x, Tensor) for x in spans):
        return torch.stack(cast(list[Tensor], spans), -1)
    return cast("Tensor | None", getattr(out, "logits", None))


def states(out: Any) -> list[tuple[Sequence[Tensor], str]]:
    """The states after every layer of each stack, and the name of the stack, "encoder" or "decoder"."""
    held = [(getattr(out, name, None), stack) for name, stack in STATES]
    return [(layers, stack) for layers, stack in held if layers]


def token_mask(x: Tensor, batch: Mapping[str, Tensor], stack: str) -> Tensor | None:
    """The positions of states (B, N, d) that are no padding, (B, N); None where no mask has this shape.

    Images have no mask, and recordings of a batch are of one length.
    """
    if stack == "decoder":
        labels = batch.get("labels")
        mask = batch.get("decoder_attention_mask") if labels is None else labels != IGNORED
        if mask is None and "decoder_input_ids" not in batch:  # the decoder of a classifier reads the same text
            mask = batch.get("attention_mask")
    else:
        mask = batch.get("attention_mask")
    return mask.bool() if mask is not None and mask.shape == x.shape[:2] else None


def sequence(x: Tensor) -> Tensor:
    """States as a sequence (B, N, d); those of an image are (B, d, H, W)."""
    return x.flatten(2).mT if x.dim() == 4 else x
