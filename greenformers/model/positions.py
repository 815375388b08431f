"""Longer inputs for pretrained models whose positions are a table: it goes on by copies of itself.

Positions N + p get what p has, as Longformer's were begun (Beltagy 2020, arXiv:2004.05150, section 5): what is near
stays near but at the seams, and training mends these. Rotary positions need no table.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

TABLES = ("position_embeddings", "wpe", "embed_positions")
"""How models of `transformers` name the table."""


def reach(model: PreTrainedModel) -> int | None:
    """The longest input that a model says it has positions for; None if it does not say."""
    config: Any = model.config.get_text_config()
    stated = getattr(config, "max_position_embeddings", None)
    if stated is None:
        return None
    tables = _tables(model)
    return min((table.num_embeddings - _offset(table) for _, table in tables), default=int(stated))


def check_extendable(model: PreTrainedModel) -> None:
    """See that a model's positions can be continued.

    Raises:
        ValueError: it has neither an embedding of positions nor rotary ones, or the embedding is something else by now.
    """
    if not _tables(model) and getattr(model.config.get_text_config(), "rope_parameters", None) is None:
        raise ValueError(
            f"{type(model).__name__} has no embedding of positions that could be continued, and no rotary ones: at "
            f"most {reach(model)} tokens. Where a change replaced that embedding, lengthen the network first"
        )


def extend(model: PreTrainedModel, length: int) -> None:
    """Make a model take inputs of `length` tokens. Nothing is changed if this raises.

    Raises:
        ValueError: it has neither a table of positions nor rotary ones, or the table is no longer one.
    """
    check_extendable(model)
    config: Any = model.config.get_text_config()
    tables = _tables(model)
    before = reach(model)
    assert before is not None
    for _, table in tables:
        offset = _offset(table)
        weight = table.weight.detach()
        places = offset + torch.arange(length, device=weight.device) % (table.num_embeddings - offset)
        longer = torch.cat([weight[:offset], weight[places]])
        table.weight = nn.Parameter(longer, table.weight.requires_grad)
        table.num_embeddings = len(longer)
    stated = config.max_position_embeddings
    config.max_position_embeddings = stated + length - before
    for module in model.modules():
        _buffers(module, stated, config.max_position_embeddings)


def _buffers(module: nn.Module, stated: int, longer: int) -> None:
    """What models keep beside the table, one entry a position: the positions, and a kind of 0 for each."""
    for name in ("position_ids", "token_type_ids"):
        found = dict(module.named_buffers(recurse=False)).get(name)
        if found is not None and found.shape == (1, stated):
            ids = torch.arange(longer, device=found.device) if name == "position_ids" else found.new_zeros(longer)
            module.register_buffer(name, ids[None], persistent=name in module.state_dict())


def _tables(model: nn.Module) -> list[tuple[str, nn.Embedding]]:
    return [
        (path, module)
        for path, module in model.named_modules()
        if path.rpartition(".")[2] in TABLES and isinstance(module, nn.Embedding)
    ]


def _offset(table: nn.Embedding) -> int:
    """Rows before the one of the first position: of padding, where a model counts from behind it."""
    offset = getattr(table, "offset", None)
    if offset is not None:
        return int(offset)
    return 0 if table.padding_idx is None else table.padding_idx + 1
