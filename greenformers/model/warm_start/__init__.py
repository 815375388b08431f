"""Trained models of `transformers` as ours, and ours as these: the same outputs, both ways."""

from copy import deepcopy
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.model.decoder import GreenformerDecoder
from greenformers.model.encoder import GreenformerModel
from greenformers.model.heads import GreenformerForCausalLM, GreenformerForMaskedLM
from greenformers.model.warm_start import bert, decoders
from greenformers.model.warm_start._pairs import copy
from greenformers.model.warm_start.back import to_transformers

__all__ = ["MODELS", "extended", "to_transformers", "warm_start"]

MODELS = (*bert.BERT, *decoders.GPT2, *decoders.LLAMA)
"""Classes of `transformers` that `warm_start` takes."""

Ours = GreenformerModel | GreenformerForMaskedLM | GreenformerDecoder | GreenformerForCausalLM


def extended(positions: Float[Tensor, "n d"], length: int) -> Float[Tensor, "length d"]:
    """Learned positions for another length: the same ones over and over, cut where it is shorter.

    Beltagy 2020, arXiv:2004.05150, section 5: copies keep what heads have learned of nearby positions, everywhere but
    where two copies meet.
    """
    return positions[torch.arange(length, device=positions.device) % positions.shape[0]]


@torch.no_grad()
def warm_start(
    model: PreTrainedModel,
    *,
    length: int | None = None,
    attention: str | list[str] | None = None,
    attention_options: dict[str, Any] | list[dict[str, Any] | None] | None = None,
) -> Ours:
    """Our network with the weights of a trained model of `transformers`, in its mode, type and device.

    With the defaults it computes the same, for inputs with padding too. Not so the pooler of BERT, which has no
    counterpart and is left out, nor BigBird's random blocks: ours are drawn from `seed` and always used, while
    `transformers` draws others in training, none in evaluation (where block 0 counts once more for each of them),
    and turns to full attention for good at the first short batch.

    Whatever a mechanism has beyond the linear layers of queries, keys and values starts as drawn (E and F of
    `linformer`), but the global ones of `longformer`, which are copies of the others where the model has none.

    >>> model = AutoModelForMaskedLM.from_pretrained("roberta-base")
    >>> long = warm_start(model, length=4096, attention="longformer", attention_options={"window": 256})

    Args:
        model: one of `MODELS`.
        length: longest sequence; learned positions are repeated up to it, see `extended`. By default the model's.
        attention: slot; a name, or one per layer. By default the model's own: "full"; "longformer" with its windows,
            where only `global_attention_mask` makes positions global; "bigbird" with its blocks.
        attention_options: options of the mechanism, or one dictionary per layer, on top of the model's own and of
            its dropout of attention weights.

    Raises:
        ValueError: another model or head, or one that computes what ours cannot.
    """
    kind, theirs = type(model).__name__, cast(Any, model)
    if kind not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}; got {kind}")
    if hasattr(model, "lm_head") and kind in bert.BERT and model.config.hidden_act != "gelu":
        raise ValueError(
            f"hidden_act must be 'gelu', as the head of {kind} always has it; got {model.config.hidden_act!r}"
        )
    base, family = theirs.base_model, bert if kind in bert.BERT else decoders
    vectors = bert.positions(base) if family is bert else base.wpe.weight if kind in decoders.GPT2 else None
    longest = len(vectors) if vectors is not None else theirs.config.max_position_embeddings
    slots = {"attention": attention, "attention_options": attention_options}
    if family is decoders:
        slots = {name: value for name, value in slots.items() if value is not None}
    config = family.ours_of(theirs.config, max_position_embeddings=longest if length is None else length, **slots)
    has_head = base is not theirs
    classes = (
        (GreenformerModel, GreenformerForMaskedLM) if family is bert else (GreenformerDecoder, GreenformerForCausalLM)
    )
    ours = cast(Any, classes[has_head](config))
    ours.to(model.device, model.dtype)
    stack = ours.base_model
    if family is bert:
        copy(bert.bert_pairs(base, stack))
        if has_head:
            copy(bert.head_pairs(theirs, ours))
    else:
        copy((decoders.gpt2_pairs if kind in decoders.GPT2 else decoders.llama_pairs)(base, stack))
        if has_head:
            copy([(theirs.lm_head.weight, ours.score.weight)])
            ours.generation_config = deepcopy(theirs.generation_config)
    if vectors is not None:
        stack.embedding.position.weight.copy_(extended(vectors, config.max_position_embeddings))
    return cast(Ours, cast(nn.Module, ours).train(model.training))
