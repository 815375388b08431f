"""Longer inputs for pretrained models with position embeddings, which are extended by copies.

Position N + p gets the vector of position p, as in the initialisation of Longformer (Beltagy 2020, arXiv:2004.05150,
section 5): near positions stay near except where copies meet, which training repairs. Rotary positions need no
embedding.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

POSITION_EMBEDDINGS = ("position_embeddings", "wpe", "embed_positions")
"""Names of the position embeddings in models of `transformers`."""


def reach(model: PreTrainedModel) -> int | None:
    """Length of the longest input that a model has positions for; None where its configuration does not say."""
    config: Any = model.config.get_text_config()
    stated = getattr(config, "max_position_embeddings", None)
    if stated is None or stated < 1:  # XLNet says -1
        return None
    embeddings = _embeddings(model)
    return min((embedding.num_embeddings - _offset(embedding) for _, embedding in embeddings), default=int(stated))


def first_position(model: PreTrainedModel) -> int:
    """The number of the first position, as a model takes them: RoBERTa, say, counts from behind its padding."""
    embeddings = [module for _, module in _embeddings(model) if not hasattr(module, "offset")]  # which adds it itself
    return max((_offset(embedding) for embedding in embeddings), default=0)


def check_extendable(model: PreTrainedModel) -> None:
    """Check that the positions of a model can be extended.

    Raises:
        ValueError: The model has neither position embeddings nor rotary positions, or the embedding was replaced.
    """
    if not _embeddings(model) and getattr(model.config.get_text_config(), "rope_parameters", None) is None:
        raise ValueError(
            f"{type(model).__name__} has no embedding of positions that could be continued, and no rotary ones: at "
            f"most {reach(model)} tokens. Where a change replaced that embedding, lengthen the network first"
        )


def extend(model: PreTrainedModel, length: int) -> None:
    """Extend a model to inputs of `length` tokens. It is unchanged if this raises.

    Raises:
        ValueError: The model has neither position embeddings nor rotary positions, or the embedding was replaced.
    """
    check_extendable(model)
    config: Any = model.config.get_text_config()
    embeddings = _embeddings(model)
    before = reach(model)
    assert before is not None
    for _, embedding in embeddings:
        offset = _offset(embedding)
        weight = embedding.weight.detach()
        places = offset + torch.arange(length, device=weight.device) % (embedding.num_embeddings - offset)
        longer = torch.cat([weight[:offset], weight[places]])
        embedding.weight = nn.Parameter(longer, embedding.weight.requires_grad)
        embedding.num_embeddings = len(longer)
    stated = config.max_position_embeddings
    config.max_position_embeddings = stated + length - before
    for module in model.modules():
        _buffers(module, stated, config.max_position_embeddings)


def _buffers(module: nn.Module, stated: int, longer: int) -> None:
    """Lengthen the buffers of position ids and of token types, which are 0, where models have them."""
    for name in ("position_ids", "token_type_ids"):
        buffer = dict(module.named_buffers(recurse=False)).get(name)
        if buffer is not None and buffer.shape == (1, stated):
            ids = torch.arange(longer, device=buffer.device) if name == "position_ids" else buffer.new_zeros(longer)
            module.register_buffer(name, ids[None], persistent=name in module.state_dict())


def _embeddings(model: nn.Module) -> list[tuple[str, nn.Embedding]]:
    return [
        (path, module)
        for path, module in model.named_modules()
        if path.rpartition(".")[2] in POSITION_EMBEDDINGS and isinstance(module, nn.Embedding)
    ]


def _offset(embedding: nn.Embedding) -> int:
    """Number of rows before that of the first position, for models that count from behind the padding."""
    offset = getattr(embedding, "offset", None)
    if offset is not None:
        return int(offset)
    return 0 if embedding.padding_idx is None else embedding.padding_idx + 1
