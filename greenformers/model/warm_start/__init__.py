"""Trained models of `transformers` converted to ours, and ours to these, with the same outputs.

An encoder alone can also start an encoder-decoder, whose decoder has yet to learn.
"""

from copy import deepcopy
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.model.decoder import GreenformerDecoder
from greenformers.model.encoder import GreenformerModel
from greenformers.model.heads import GreenformerForCausalLM, GreenformerForMaskedLM
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM
from greenformers.model.warm_start import bert, decoders
from greenformers.model.warm_start._pairs import copy
from greenformers.model.warm_start.back import to_transformers

__all__ = ["MODELS", "extended", "to_transformers", "warm_start", "warm_start_pair"]

MODELS = (*bert.BERT, *decoders.GPT2, *decoders.LLAMA)
"""Classes of `transformers` that `warm_start` takes."""

Ours = GreenformerModel | GreenformerForMaskedLM | GreenformerDecoder | GreenformerForCausalLM


def extended(positions: Float[Tensor, "n d"], length: int) -> Float[Tensor, "length d"]:
    """Learned positions for another length: repeated, or cut where it is shorter.

    Beltagy 2020, arXiv:2004.05150, section 5: copies keep what heads have learned about nearby positions, except where
    two copies meet.
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
    """Our network with the weights of a trained model of `transformers`, in its mode and dtype and on its device.

    With the defaults it computes the same, for inputs with padding too. Exceptions are the pooler of BERT, which has no
    counterpart and is left out, and the random blocks of BigBird: ours are drawn from `seed` and always used, while
    `transformers` draws others in training, none in evaluation (where block 0 counts once more for each of them),
    and switches to full attention for good at the first short batch.

    Parameters of a mechanism beyond the projections of queries, keys and values are newly initialised (E and F of
    `linformer`), except the global projections of `longformer`, which are copied from the others where the model has
    none.

    >>> model = AutoModelForMaskedLM.from_pretrained("roberta-base")
    >>> long = warm_start(model, length=4096, attention="longformer", attention_options={"window": 256})

    Args:
        model: A model of a class in `MODELS`.
        length: Length of the longest sequence; learned positions are repeated up to it, see `extended`. By default that
            of the model.
        attention: Slot; a name, or one per layer. By default the mechanism of the model: "full"; "longformer" with its
            windows, where only `global_attention_mask` makes positions global; "bigbird" with its blocks.
        attention_options: Options of the mechanism, or one dictionary per layer, on top of the model's own and of
            its dropout of attention weights.

    Raises:
        ValueError: The model or its head is of another class, or computes something that ours cannot.
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


@torch.no_grad()
def warm_start_pair(
    model: PreTrainedModel,
    *,
    start_token_id: int,
    end_token_id: int,
    decoder_layers: int | None = None,
    length: int | None = None,
    attention: str | list[str] | None = None,
    attention_options: dict[str, Any] | list[dict[str, Any] | None] | None = None,
) -> GreenformerForSeq2SeqLM:
    """An encoder-decoder both sides of which start from a trained encoder: BERT2BERT. Rothe 2019, arXiv:1907.12461, 3.

    The encoder computes what the model does, where it keeps its attention. Of the decoder, embedding, self-attention,
    feed-forward blocks and norms are copied from the encoder's layers, evenly spaced where it has fewer; its
    cross-attention, with its norm, is new. Embeddings and the scores of tokens share one matrix. The decoder attends in
    full, to itself and to the encoder output, whatever the encoder's attention is (Zaheer 2020, arXiv:2007.14062, 4:
    sparse attention is for the source, which is long, and the target is short).

    There are no token types: the vector of type 0, which all tokens of a single text have, is part of the positions.

    >>> pair = warm_start_pair(encoder, start_token_id=101, end_token_id=102, length=4096, attention="bigbird")

    Args:
        model: The trained encoder, of a class of BERT or its kin; a head for masked tokens is left out.
        start_token_id: Token that the decoder begins with.
        end_token_id: Token that ends a target.
        decoder_layers: Number of layers of the decoder, 1 to those of the encoder; by default as many.
        length: Length of the longest source and target; learned positions are repeated up to it, see `extended`. By
            default that of the model.
        attention: Slot of the encoder, as in `warm_start`.
        attention_options: Options of the encoder's mechanism, as in `warm_start`.

    Raises:
        ValueError: The model is of another class, or computes something that ours cannot; or a number is out of range.
    """
    kind, base = type(model).__name__, cast(Any, model).base_model
    if kind not in bert.BERT:
        raise ValueError(f"model must be one of {', '.join(bert.BERT)}; got {kind}")
    layers = base.config.num_hidden_layers
    count = layers if decoder_layers is None else decoder_layers
    if not 1 <= count <= layers:
        raise ValueError(f"decoder_layers must be in 1..{layers}, the layers of the encoder, got {count}")
    vectors = bert.positions(base)
    if base.config.type_vocab_size:
        vectors = vectors + base.embeddings.token_type_embeddings.weight[0]
    slots = {"decoder_layers": count, "type_vocab_size": 0, "tie_word_embeddings": True}
    tokens = {"decoder_start_token_id": start_token_id, "bos_token_id": start_token_id, "eos_token_id": end_token_id}
    config = bert.ours_of(
        base.config, attention=attention, attention_options=attention_options,
        max_position_embeddings=len(vectors) if length is None else length, **slots, **tokens,
    )  # fmt: skip
    dropout = {"dropout": base.config.attention_probs_dropout_prob}
    config.decoder_attention_options = config.cross_attention_options = dropout
    ours = cast(Any, GreenformerForSeq2SeqLM(config))
    ours.to(model.device, model.dtype)
    copy(bert.bert_pairs(base, ours.encoder))
    copy(bert.decoder_pairs(base, ours.decoder))
    for stack in (ours.encoder, ours.decoder):
        stack.embedding.position.weight.copy_(extended(vectors, config.max_position_embeddings))
    return cast(GreenformerForSeq2SeqLM, ours.train(model.training))
