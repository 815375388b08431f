"""Heads, one a file: what stands behind an encoder or a decoder, and its loss."""

from greenformers.model.heads.audio_classification import GreenformerForAudioClassification
from greenformers.model.heads.causal_lm import GreenformerForCausalLM
from greenformers.model.heads.image_classification import GreenformerForImageClassification
from greenformers.model.heads.masked_lm import GreenformerForMaskedLM
from greenformers.model.heads.multiple_choice import GreenformerForMultipleChoice
from greenformers.model.heads.pretraining import GreenformerForPreTraining
from greenformers.model.heads.question_answering import GreenformerForQuestionAnswering
from greenformers.model.heads.sentence_embedding import GreenformerForSentenceEmbedding
from greenformers.model.heads.sequence_classification import GreenformerForSequenceClassification
from greenformers.model.heads.token_classification import GreenformerForTokenClassification

__all__ = [
    "GreenformerForAudioClassification",
    "GreenformerForCausalLM",
    "GreenformerForImageClassification",
    "GreenformerForMaskedLM",
    "GreenformerForMultipleChoice",
    "GreenformerForPreTraining",
    "GreenformerForQuestionAnswering",
    "GreenformerForSentenceEmbedding",
    "GreenformerForSequenceClassification",
    "GreenformerForTokenClassification",
]
