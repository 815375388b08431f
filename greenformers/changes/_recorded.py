"""Queries, keys and values of a model of transformers, noted as it attends; what it computes stays the same.

Our function in the attention interface of transformers attends as `scaled_dot_product_attention` does, and notes what
it was given.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from greenformers.model._transformers import (
    attention_of,
    can_choose_attention,
    plain_attention,
    put_attention_back,
    whole_mask,
)

NAME = "greenformers_recorded"


class Attended(NamedTuple):
    """What one layer attended with.

    Attributes:
        q: Queries (B, H, N, D).
        k, v: Keys and values (B, H', M, D).
        mask: True where a query sees a key (B, 1, N, M); None for everywhere.
        scaling: Factor of the scores.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    scaling: float


_NOTED: ContextVar[list[Attended] | None] = ContextVar("noted", default=None)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """The attention of a module, noted."""
    if (noted := _NOTED.get()) is not None:
        factor = query.shape[-1] ** -0.5 if scaling is None else scaling
        noted.append(Attended(query, key, value, attention_mask, factor))
    return plain_attention(module, query, key, value, attention_mask, scaling=scaling, **further)


@contextmanager
def noted() -> Iterator[list[Attended]]:
    """A `with` block with a list of what the layers of models attend with that are called in it, in their order."""
    attended: list[Attended] = []
    token = _NOTED.set(attended)
    try:
        yield attended
    finally:
        _NOTED.reset(token)


@contextmanager
def recordable(*models: PreTrainedModel) -> Iterator[None]:
    """A `with` block in which models note what they attend with, where that is asked for.

    Raises:
        ValueError: The attention of a model cannot be chosen by name, or has been replaced.
    """
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, whole_mask)
    configs = [
        part.config
        for model in models
        for part in {id(part.config): part for part in model.modules() if isinstance(part, PreTrainedModel)}.values()
    ]
    before = [(config, attention_of(config)) for config in configs]
    try:
        for model in models:
            if not can_choose_attention(model) or attention_of(model.config) not in ("sdpa", "eager", NAME):
                raise ValueError(
                    f"{type(model).__name__} has an attention of its own, whose queries, keys and values cannot be "
                    "learned from"
                )
            model.set_attn_implementation(NAME)
        yield
    finally:
        for config, name in before:
            put_attention_back(config, name)
