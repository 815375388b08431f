"""What encoder and decoder give to their heads: as transformers', and the loss of mechanisms that have one."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions, BaseModelOutputWithPooling


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
    """

    auxiliary_loss: Tensor | None = None
