"""A trained model of `transformers` as one of ours, for long documents. Beltagy 2020, arXiv:2004.05150, section 5."""

from inspect import signature
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.attention import attention_class
from greenformers.model.config import GreenformerConfig
from greenformers.model.encoder import GreenformerModel
from greenformers.model.heads import GreenformerForMaskedLM

MODELS = (
    "BertModel", "BertForMaskedLM", "RobertaModel", "RobertaForMaskedLM",
    "LongformerModel", "LongformerForMaskedLM", "BigBirdModel", "BigBirdForMaskedLM",
)  # fmt: skip
"""Classes of `transformers` that `warm_start` takes."""

_SAME = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "hidden_dropout_prob", "initializer_range", "layer_norm_eps", "pad_token_id", "bos_token_id", "eos_token_id",
    "tie_word_embeddings",
)  # fmt: skip
_ONLY = {
    "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute", "use_bias": True,
    "rescale_embeddings": False,
}  # fmt: skip
_LAYER = {
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "feed_forward.up",
    "output.dense": "feed_forward.down",
    "output.LayerNorm": "feed_forward_norm",
}
_MAPS = {"q": "query", "k": "key", "v": "value"}


def extended(positions: Float[Tensor, "n d"], length: int) -> Float[Tensor, "length d"]:
    """Learned positions for another length: the same ones over and over, cut where it is shorter.

    Section 5: copies keep what heads have learned of nearby positions, everywhere but where two copies meet.
    """
    return positions[torch.arange(length, device=positions.device) % positions.shape[0]]


@torch.no_grad()
def warm_start(
    model: PreTrainedModel,
    *,
    length: int | None = None,
    attention: str | list[str] | None = None,
    attention_options: dict[str, Any] | list[dict[str, Any] | None] | None = None,
) -> GreenformerModel | GreenformerForMaskedLM:
    """Our network with the weights of a trained BERT, RoBERTa, Longformer or BigBird, in its mode, type and device.

    With the defaults it computes the same, for inputs of one segment that are padded behind: the vector of token
    type 0 is in the positions, and those of RoBERTa and Longformer begin at the first token. Not so the pooler, which
    has no counterpart and is left out, nor BigBird's random blocks: ours are drawn from `seed` and always used, while
    `transformers` draws others in training, none in evaluation (where block 0 counts once more for each of them),
    and turns to full attention for good at the first short batch.

    Whatever a mechanism has beyond the maps of queries, keys and values starts as drawn (E and F of `linformer`), but
    the global maps of `longformer`, which are copies of the others where the model has none.

    >>> model = AutoModelForMaskedLM.from_pretrained("roberta-base")
    >>> long = warm_start(model, length=4096, attention="longformer", attention_options={"window": 256})

    Args:
        model: one of `MODELS`.
        length: longest sequence, by `extended`; by default the model's.
        attention: slot; a name, or one per layer. By default the model's own: "full"; "longformer" with its windows,
            where only `global_attention_mask` makes positions global; "bigbird" with its blocks.
        attention_options: options of the mechanism, or one dictionary per layer, on top of the model's own and of
            its dropout of attention weights.

    Raises:
        ValueError: another model or head, or one that computes what ours cannot.
    """
    theirs = cast(Any, model)
    _check(theirs)
    base, vectors = theirs.base_model, _positions(theirs.base_model)
    config = _config(base.config, len(vectors) if length is None else length, attention, attention_options)
    masked_lm = type(model).__name__.endswith("ForMaskedLM")
    ours = (GreenformerForMaskedLM if masked_lm else GreenformerModel)(config)
    cast(nn.Module, ours).to(model.device, model.dtype)
    encoder = cast(GreenformerModel, ours.base_model)
    _copy(base.embeddings.word_embeddings, encoder.embedding.word)
    _copy(base.embeddings.LayerNorm, encoder.embedding.norm)
    encoder.embedding.position.weight.copy_(extended(vectors, config.max_position_embeddings))
    for source, layer in zip(base.encoder.layer, encoder.layers, strict=True):
        _copy_layer(source, layer)
    if isinstance(ours, GreenformerForMaskedLM):
        _copy_head(theirs, ours)
    return ours.train(model.training)


def _check(model: Any) -> None:
    kind, config = type(model).__name__, model.config
    if kind not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}; got {kind}")
    for name, wanted in _ONLY.items():
        if (value := getattr(config, name, wanted)) != wanted:
            raise ValueError(f"{name} must be {wanted!r}, the only one a warm start can take over; got {value!r}")
    if hasattr(model, "lm_head") and config.hidden_act != "gelu":
        raise ValueError(f"hidden_act must be 'gelu', as the head of {kind} always has it; got {config.hidden_act!r}")


def _positions(base: Any) -> Tensor:
    """The vectors of positions from the first token's on, that of token type 0 added."""
    table = base.embeddings.position_embeddings
    first = 0 if table.padding_idx is None else table.padding_idx + 1  # RoBERTa's way, and Longformer's
    return table.weight[first:] + base.embeddings.token_type_embeddings.weight[0]


def _config(
    theirs: Any,
    length: int,
    attention: str | list[str] | None,
    options: dict[str, Any] | list[dict[str, Any] | None] | None,
) -> GreenformerConfig:
    own, own_options = _own_attention(theirs)
    config = GreenformerConfig(
        **{name: getattr(theirs, name) for name in _SAME},
        max_position_embeddings=length,
        attention=own if attention is None else attention,
        attention_options=options,
    )
    drop = {"dropout": theirs.attention_probs_dropout_prob}
    merged: list[dict[str, Any] | None] = []
    for layer, name in enumerate(config.per_layer("attention")):
        known = drop if "dropout" in signature(attention_class(name)).parameters else {}
        known = known | (own_options[layer] if name == own else {})
        merged.append(known | (config.per_layer("attention_options")[layer] or {}))
    config.attention_options = merged[0] if all(entry == merged[0] for entry in merged) else merged
    return config


def _own_attention(theirs: Any) -> tuple[str, list[dict[str, Any]]]:
    """The mechanism a model of `transformers` has, and its options in every layer."""
    layers = theirs.num_hidden_layers
    if theirs.model_type == "longformer":
        width = theirs.attention_window
        widths = [width] * layers if isinstance(width, int) else width
        return "longformer", [{"window": width // 2, "globals": 0} for width in widths]
    if getattr(theirs, "attention_type", None) == "block_sparse":
        # It never drops attention weights in this form, whatever its configuration says.
        sizes = {"block": theirs.block_size, "random": theirs.num_random_blocks}
        return "bigbird", [{**sizes, "padding": "batch", "dropout": 0.0}] * layers
    return "full", [{}] * layers


def _copy(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def _copy_layer(source: nn.Module, target: nn.Module) -> None:
    for theirs, ours in _LAYER.items():
        _copy(source.get_submodule(theirs), target.get_submodule(ours))
    maps = dict(source.get_submodule("attention.self").named_children())
    for name, target_map in target.get_submodule("attention.maps").named_children():
        role, *kind = name.split("_")  # q_global is query_global there, or else query
        if role in _MAPS:
            _copy(maps.get("_".join([_MAPS[role], *kind]), maps[_MAPS[role]]), target_map)


def _copy_head(source: Any, target: GreenformerForMaskedLM) -> None:
    head = source.lm_head if hasattr(source, "lm_head") else source.cls.predictions.transform
    _copy(head.dense, target.transform)
    _copy(head.layer_norm if hasattr(head, "layer_norm") else head.LayerNorm, target.norm)
    _copy(source.get_output_embeddings(), target.decoder)
