"""The network of the house: one configuration, its slots, encoder, decoder and their heads.

Importing this package registers the models with transformers' AutoConfig and AutoModel classes.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from greenformers.model.config import GreenformerConfig
from greenformers.model.decoder import GreenformerDecoder
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.heads import (
    GreenformerForCausalLM,
    GreenformerForMaskedLM,
    GreenformerForSequenceClassification,
    GreenformerForTokenClassification,
)
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM

__all__ = [
    "GreenformerConfig",
    "GreenformerDecoder",
    "GreenformerForCausalLM",
    "GreenformerForMaskedLM",
    "GreenformerForSeq2SeqLM",
    "GreenformerForSequenceClassification",
    "GreenformerForTokenClassification",
    "GreenformerModel",
    "GreenformerPreTrainedModel",
]

AutoConfig.register(GreenformerConfig.model_type, GreenformerConfig)
AutoModel.register(GreenformerConfig, GreenformerModel)
AutoModelForCausalLM.register(GreenformerConfig, GreenformerForCausalLM)
AutoModelForMaskedLM.register(GreenformerConfig, GreenformerForMaskedLM)
AutoModelForSeq2SeqLM.register(GreenformerConfig, GreenformerForSeq2SeqLM)
AutoModelForSequenceClassification.register(GreenformerConfig, GreenformerForSequenceClassification)
AutoModelForTokenClassification.register(GreenformerConfig, GreenformerForTokenClassification)
