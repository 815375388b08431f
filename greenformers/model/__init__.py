"""The network of the house: one configuration, its slots, encoder, decoder and their heads.

Importing this package registers the models with transformers' AutoConfig and AutoModel classes.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForAudioClassification,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoModelForTokenClassification,
)

from greenformers.model._transformers import shift_labels_of
from greenformers.model.config import GreenformerConfig
from greenformers.model.decoder import GreenformerDecoder
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.heads import (
    GreenformerForAudioClassification,
    GreenformerForCausalLM,
    GreenformerForImageClassification,
    GreenformerForMaskedLM,
    GreenformerForMultipleChoice,
    GreenformerForPreTraining,
    GreenformerForQuestionAnswering,
    GreenformerForSentenceEmbedding,
    GreenformerForSequenceClassification,
    GreenformerForTokenClassification,
)
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM

__all__ = [
    "GreenformerConfig",
    "GreenformerDecoder",
    "GreenformerForAudioClassification",
    "GreenformerForCausalLM",
    "GreenformerForImageClassification",
    "GreenformerForMaskedLM",
    "GreenformerForMultipleChoice",
    "GreenformerForPreTraining",
    "GreenformerForQuestionAnswering",
    "GreenformerForSentenceEmbedding",
    "GreenformerForSeq2SeqLM",
    "GreenformerForSequenceClassification",
    "GreenformerForTokenClassification",
    "GreenformerModel",
    "GreenformerPreTrainedModel",
]

AutoConfig.register(GreenformerConfig.model_type, GreenformerConfig)
AutoModel.register(GreenformerConfig, GreenformerModel)
AutoModelForAudioClassification.register(GreenformerConfig, GreenformerForAudioClassification)
AutoModelForCausalLM.register(GreenformerConfig, GreenformerForCausalLM)
AutoModelForImageClassification.register(GreenformerConfig, GreenformerForImageClassification)
AutoModelForMaskedLM.register(GreenformerConfig, GreenformerForMaskedLM)
AutoModelForMultipleChoice.register(GreenformerConfig, GreenformerForMultipleChoice)
AutoModelForPreTraining.register(GreenformerConfig, GreenformerForPreTraining)
AutoModelForQuestionAnswering.register(GreenformerConfig, GreenformerForQuestionAnswering)
AutoModelForSeq2SeqLM.register(GreenformerConfig, GreenformerForSeq2SeqLM)
AutoModelForSequenceClassification.register(GreenformerConfig, GreenformerForSequenceClassification)
AutoModelForTextEncoding.register(GreenformerConfig, GreenformerForSentenceEmbedding)
AutoModelForTokenClassification.register(GreenformerConfig, GreenformerForTokenClassification)
shift_labels_of(GreenformerConfig.model_type, GreenformerForCausalLM)
