"""The task of a model, and the kind of input that it reads."""

import inspect
from typing import Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

Task = Literal["causal_lm", "masked_lm", "classifier", "tagger", "answerer", "encoder", "seq2seq", "ctc"]
Kind = Literal["text", "image", "sound"]

OF_PAIRS: tuple[Task, ...] = ("classifier", "answerer")
"""Tasks in which the two texts of a pair are one input."""

KINDS: dict[str, Kind] = {
    "input_ids": "text",
    "pixel_values": "image",
    "input_features": "sound",
    "input_values": "sound",
}
"""Kind of input, by the name of a model's main input."""


def kind_of_input(model: PreTrainedModel) -> Kind:
    """Whether a model reads texts, images or sound.

    Raises:
        ValueError: The model reads something else.
    """
    kind = KINDS.get(model.main_input_name)
    if kind is None:
        raise ValueError(f"a {type(model).__name__} reads {model.main_input_name}, of which there are no examples here")
    return kind


def task_of(model: PreTrainedModel) -> Task:
    """The task of a model, by the name of its class.

    Raises:
        ValueError: The task is none of the tasks that examples can calibrate, heal and judge.
    """
    name = type(model).__name__
    pairs = bool(getattr(model.config, "is_encoder_decoder", False))
    if name.endswith(("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")):
        return "classifier"
    if name.endswith("ForTokenClassification"):
        return "tagger"
    if name.endswith("ForQuestionAnswering"):
        return "answerer"
    if name.endswith("ForCTC"):
        return "ctc"
    if name.endswith("ForMaskedLM"):
        return "masked_lm"
    if pairs and model.can_generate():
        return "seq2seq"
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal_lm"
    if name.endswith("Model") and not pairs:
        return "encoder"
    raise ValueError(
        "encoders, classifiers, taggers of words, models of question answering, masked and causal language models, "
        "encoder-decoders with a language model's head and CTC models can be calibrated, healed and judged by "
        f"examples; a {name} is none of them"
    )


def classes_of(model: PreTrainedModel) -> dict[str, int]:
    """The number of each class of a model, by its name.

    Of the two lists of names in its configuration the model answers by this one; the other may be of another model, or
    of texts.
    """
    given: Any = model.config
    return {str(name): int(number) for number, name in (getattr(given, "id2label", None) or {}).items()}


def tells_types(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> bool:
    """Whether a model tells the two texts of a pair apart by `token_type_ids`; a tokenizer may know none of these."""
    takes = "token_type_ids" in inspect.signature(model.forward).parameters
    several = (getattr(model.config, "type_vocab_size", None) or 0) > 1
    return takes and several and (tokenizer is None or "token_type_ids" in tokenizer.model_input_names)
