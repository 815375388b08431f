"""The network of the house: one configuration, its slots, the encoder and its heads.

Importing this package registers the models with transformers' AutoConfig and AutoModel classes.
"""

from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from greenformers.model.config import GreenformerConfig
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.heads import GreenformerForMaskedLM, GreenformerForSequenceClassification

__all__ = [
    "GreenformerConfig",
    "GreenformerForMaskedLM",
    "GreenformerForSequenceClassification",
    "GreenformerModel",
    "GreenformerPreTrainedModel",
]

AutoConfig.register(GreenformerConfig.model_type, GreenformerConfig)
AutoModel.register(GreenformerConfig, GreenformerModel)
AutoModelForMaskedLM.register(GreenformerConfig, GreenformerForMaskedLM)
AutoModelForSequenceClassification.register(GreenformerConfig, GreenformerForSequenceClassification)
