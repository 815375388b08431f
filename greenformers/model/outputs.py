"""Outputs of encoders, decoders and heads: those of transformers, with the loss of mechanisms that have one."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    CausalLMOutputWithPast,
)
from transformers.utils import ModelOutput

from greenformers.depth import Exits
from greenformers.model.memory import SegmentMemory


@dataclass
class EncoderOutput(BaseModelOutputWithPooling):
    """Output of an encoder.

    Attributes:
        auxiliary_loss: Weighted loss of mechanisms and feed-forward blocks, summed over layers, and of a kind of depth;
            None outside training and without such a loss.
        steps: Number of layers that each position went through (B, N), 0 at padding; None where that is all of them.
    """

    auxiliary_loss: Tensor | None = None
    steps: Tensor | None = None


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Output of a decoder.

    Attributes:
        auxiliary_loss: Weighted loss of mechanisms, as in `EncoderOutput`.
        steps: Number of layers that each position went through, as in `EncoderOutput`.
        exits: In training, the states that the head learns to score, of kinds of depth with exits.
        memory: Segment memory for the next segment, where one was given.
    """

    auxiliary_loss: Tensor | None = None
    steps: Tensor | None = None
    exits: Exits | None = None
    memory: SegmentMemory | None = None


@dataclass
class CausalLMOutput(CausalLMOutputWithPast):
    """Output of a causal language model.

    Attributes:
        memory: Segment memory for the next segment, where one was given.
    """

    memory: SegmentMemory | None = None


@dataclass
class PreTrainingOutput(ModelOutput):
    """Output of pre-training on masked tokens and pairs of texts, with the names of BERT's.

    Attributes:
        loss: Sum of the losses of both tasks.
        prediction_logits: Scores of tokens (B, N, vocabulary).
        seq_relationship_logits: Scores (B, 2) of "the second text follows the first" and "it does not".
        hidden_states: Input of every layer (B, N, d).
        attentions: Attention weights of every layer, where `output_attentions` is set.
    """

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """Output of sentence embeddings.

    Attributes:
        loss: Contrastive loss, where pairs were given.
        embeddings: Vectors of norm 1, (B, d), or (B, 2, d) for pairs.
        hidden_states: Input of every layer (B, N, d).
        attentions: Attention weights of every layer, where `output_attentions` is set.
    """

    loss: Tensor | None = None
    embeddings: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
