"""What encoder and decoder give to their heads: as transformers', and the loss of mechanisms that have one."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    CausalLMOutputWithPast,
)
from transformers.utils import ModelOutput

from greenformers.model.memory import SegmentMemory


@dataclass
class EncoderOutput(BaseModelOutputWithPooling):
    """An encoder's.

    Attributes:
        auxiliary_loss: sum over the layers, already weighted; None outside training, and where no mechanism has one.
    """

    auxiliary_loss: Tensor | None = None


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """A decoder's.

    Attributes:
        auxiliary_loss: as `EncoderOutput`.
        memory: for the next segment, where a memory was given.
    """

    auxiliary_loss: Tensor | None = None
    memory: SegmentMemory | None = None


@dataclass
class CausalLMOutput(CausalLMOutputWithPast):
    """A causal language model's.

    Attributes:
        memory: as `DecoderOutput`.
    """

    memory: SegmentMemory | None = None


@dataclass
class PreTrainingOutput(ModelOutput):
    """That of masked tokens and pairs of texts, by the names that BERT's has.

    Attributes:
        loss: sum of both tasks.
        prediction_logits: scores of tokens (B, N, vocabulary).
        seq_relationship_logits: scores (B, 2) of "the second text follows the first" and "it does not".
        hidden_states: input of every layer.
        attentions: weights of every layer, where they were asked for.
    """

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """That of sentence embeddings.

    Attributes:
        loss: contrastive, where pairs were given.
        embeddings: vectors of length 1 (B, d), or (B, 2, d) of pairs.
        hidden_states: input of every layer.
        attentions: weights of every layer, where they were asked for.
    """

    loss: Tensor | None = None
    embeddings: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
