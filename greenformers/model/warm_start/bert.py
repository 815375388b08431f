"""BERT (Devlin 2018, arXiv:1810.04805) and its kin as encoders of ours: options and weights.

RoBERTa (arXiv:1907.11692), Longformer (arXiv:2004.05150) and BigBird (arXiv:2007.14062) have its layers. The first two
count positions from behind the padding token.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from greenformers.model.config import GreenformerConfig
from greenformers.model.warm_start._pairs import dropping, of_modules, only

BERT = (
    "BertModel", "BertForMaskedLM", "RobertaModel", "RobertaForMaskedLM",
    "LongformerModel", "LongformerForMaskedLM", "BigBirdModel", "BigBirdForMaskedLM",
)  # fmt: skip

_SAME = (
    "vocab_size", "hidden_size", "type_vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "hidden_dropout_prob", "initializer_range", "layer_norm_eps", "pad_token_id", "bos_token_id",
    "eos_token_id", "tie_word_embeddings",
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
_PROJECTIONS = {"q": "query", "k": "key", "v": "value"}


def ours_of(theirs: Any, *, attention: Any = None, attention_options: Any = None, **slots: Any) -> GreenformerConfig:
    """Our configuration for a model of `BERT`, with given slots in place of its own.

    Raises:
        ValueError: The model computes something that ours cannot.
    """
    only(theirs, **_ONLY)
    own, own_options = _own_attention(theirs)
    config = GreenformerConfig(
        **{name: getattr(theirs, name) for name in _SAME} | slots,
        attention=own if attention is None else attention,
        attention_options=attention_options,
    )
    dropping(config, theirs.attention_probs_dropout_prob, lambda layer, name: own_options[layer] if name == own else {})
    return config


def _own_attention(theirs: Any) -> tuple[str, list[dict[str, Any]]]:
    """The mechanism of a model of `transformers`, and its options in every layer."""
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


def positions(theirs: Any) -> Tensor:
    """The position embeddings of a BertModel, from that of the first token on."""
    embedding = theirs.embeddings.position_embeddings
    first = 0 if embedding.padding_idx is None else embedding.padding_idx + 1
    vectors: Tensor = embedding.weight[first:]
    return vectors


def bert_pairs(theirs: Any, ours: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of parameters of a BertModel, or a similar model, and an encoder, without positions."""
    yield theirs.embeddings.word_embeddings.weight, ours.embedding.word.weight
    if ours.config.type_vocab_size:
        yield theirs.embeddings.token_type_embeddings.weight, ours.embedding.token_type.weight
    yield from of_modules(theirs.embeddings.LayerNorm, ours.embedding.norm)
    for source, layer in zip(theirs.encoder.layer, ours.layers, strict=True):
        yield from _layer_pairs(source, layer)


def decoder_pairs(theirs: Any, ours: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of parameters of a BertModel and a decoder, without words, positions and cross-attention.

    Of L layers and n of the decoder, layer i is paired with the first of the L / n from i L / n on.
    """
    yield from of_modules(theirs.embeddings.LayerNorm, ours.embedding.norm)
    sources, count = theirs.encoder.layer, len(ours.layers)
    for index, layer in enumerate(ours.layers):
        yield from _layer_pairs(sources[index * len(sources) // count], layer)


def _layer_pairs(source: Any, layer: Any) -> Iterator[tuple[Tensor, Tensor]]:
    for name, own in _LAYER.items():
        yield from of_modules(source.get_submodule(name), layer.get_submodule(own))
    projections: dict[str, Any] = dict(source.get_submodule("attention.self").named_children())
    for name, target in layer.attention.projections.named_children():
        role, *kind = name.split("_")  # q_global is query_global there, or query
        if role in _PROJECTIONS:
            yield from of_modules(
                projections.get("_".join([_PROJECTIONS[role], *kind]), projections[_PROJECTIONS[role]]), target
            )


def head_pairs(theirs: Any, ours: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of parameters of the heads of masked language models."""
    head = theirs.lm_head if hasattr(theirs, "lm_head") else theirs.cls.predictions.transform
    yield from of_modules(head.dense, ours.transform)
    yield from of_modules(head.layer_norm if hasattr(head, "layer_norm") else head.LayerNorm, ours.norm)
    yield from of_modules(theirs.get_output_embeddings(), ours.decoder)
