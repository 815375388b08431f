"""The pipelines of transformers around a network of the zoo, with what makes its inputs."""

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Wav2Vec2FeatureExtractor, pipeline
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from greenformers.data._tasks import kind_of_input, task_of

TASKS = {
    ("text", "encoder"): "feature-extraction", ("text", "classifier"): "text-classification",
    ("text", "causal_lm"): "text-generation", ("text", "masked_lm"): "fill-mask",
    ("image", "encoder"): "image-feature-extraction", ("image", "classifier"): "image-classification",
    ("sound", "classifier"): "audio-classification", ("sound", "ctc"): "automatic-speech-recognition",
}  # fmt: skip
"""By what a network reads and what it is for; encoder-decoders of texts have none in transformers 5."""


def words() -> PreTrainedTokenizerFast:
    """One id a letter, from 4 on; [MASK] is the last."""
    letters = {f"{chr(97 + n)}": 4 + n for n in range(26)} | {"[PAD]": 0, "[UNK]": 3, "[MASK]": 98}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", model_max_length=32
    )


def piped(model: PreTrainedModel) -> list[torch.Tensor] | None:
    """What a pipeline says, as numbers; None where there is none for such a network."""
    kind = kind_of_input(model)
    try:
        task = TASKS.get((kind, task_of(model)))
    except ValueError:
        return None
    if task is None:
        return None
    given: Any
    if kind == "text":
        parts: dict[str, Any] = {"tokenizer": words()}
        given = "a b [MASK] d" if task == "fill-mask" else "a b c d"
    elif kind == "image":
        size = next(getattr(part, "image_size", None) or 64 for part in [model.config])
        parts = {"image_processor": ViTImageProcessorPil(size={"height": size, "width": size})}
        given = __import__("PIL.Image").Image.new("RGB", (40, 40), (90, 120, 30))
    else:
        parts = {"feature_extractor": Wav2Vec2FeatureExtractor(), "tokenizer": words()}
        given = torch.linspace(-1, 1, 1600).sin().numpy()
    more = {"max_new_tokens": 3, "do_sample": False} if task == "text-generation" else {}
    said = pipeline(task, model=model, device="cpu", **parts)(given, **more)  # type: ignore[call-overload]
    return [torch.tensor(value) for value in _numbers(said)]


def _numbers(said: Any) -> list[float]:
    if isinstance(said, dict):
        said = list(said.values())
    if isinstance(said, list | tuple):
        return [number for part in said for number in _numbers(part)]
    return (
        [float(said)]
        if isinstance(said, int | float)
        else [float(sum(map(ord, said)))]
        if isinstance(said, str)
        else []
    )
