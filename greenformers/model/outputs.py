"""What encoder and decoder give to their heads: as transformers', and the loss of mechanisms that have one."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    CausalLMOutputWithPast,
)

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
