"""Quality of the texts that models write: translations by BLEU, transcripts by the word error rate."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from greenformers.data._examples import Examples
from greenformers.data._reader import Reader
from greenformers.data._rows import Batches
from greenformers.data._texts import Texts
from greenformers.measure import recognition, translation
from greenformers.measure.quality import evaluating
from greenformers.measure.recognition import bootstrap_difference, edits, plain_words
from greenformers.measure.translation import bleu_difference, translation_scores

MOST = 200
"""Largest number of examples for which a text is written: every token takes a pass of the decoder."""

SIZE = 16

Score = tuple[float, list[float] | None]


def check_writing(model: PreTrainedModel, examples: Examples, reader: Reader) -> None:
    """Check on one example that a model writes a text, and that it can be judged.

    Raises:
        MissingExtraError: The library that counts errors in transcripts is not installed.
        ValueError: The model cannot write a text.
    """
    if reader.kind == "sound":
        recognition.needed()
    elif isinstance(examples, Texts):
        translation.needed()
    try:
        texts_of(model, examples.at([0]), reader)
    except OSError:
        raise
    except Exception as error:  # whatever networks and their generation settings raise
        why = " ".join(str(error).split())[:300]
        raise ValueError(f"a {type(model).__name__} cannot write a text for {examples.name}: {why}") from error


def written(models: Mapping[str, PreTrainedModel], examples: Examples, reader: Reader) -> dict[str, dict[str, Score]]:
    """BLEU of translations, or the word error rate of transcripts, on the first `MOST` examples, decoded greedily.

    Transcripts and references are compared in lower case, without punctuation.
    """
    chosen = examples.at(range(min(MOST, len(examples))))
    references = [target for _, target in chosen.segments] if isinstance(chosen, Texts) else chosen.said
    texts = {name: texts_of(model, chosen, reader) for name, model in models.items()}
    first = next(iter(texts.values()))
    if isinstance(chosen, Texts):
        return {
            name: {
                "bleu": (
                    translation_scores(own, references)["bleu"],
                    None if own is first else bleu_difference(own, first, references),
                )
            }
            for name, own in texts.items()
        }
    references = [plain_words(text) for text in references]
    counted = {name: edits([plain_words(text) for text in own], references, "word") for name, own in texts.items()}
    wrong, words = next(iter(counted.values()))
    scores: dict[str, dict[str, Score]] = {}
    for place, (name, (own, _)) in enumerate(counted.items()):
        interval = None if place == 0 or len(own) < 2 else list(bootstrap_difference(own, wrong, words))
        scores[name] = {"wer": (100 * float(own.sum() / words.sum()), interval)}
    return scores


@torch.inference_mode()
def texts_of(model: PreTrainedModel, examples: Examples, reader: Reader) -> list[str]:
    """The text that a model writes for each example."""
    writer: Any = model
    rows = reader.rows(examples)
    batched = Batches(rows, SIZE, exact=reader.kind == "sound")
    texts: dict[int, str] = {}
    assert reader.tokenizer is not None
    with evaluating(model):
        for number, places in enumerate(batched.places):
            batch = {name: x for name, x in batched[number].items() if name not in ("labels", "decoder_attention_mask")}
            if reader.task == "ctc":
                ids = model(**batch).logits.argmax(-1)
            else:
                ids = writer.generate(**batch, max_new_tokens=max(1, reader.length - 1), do_sample=False, num_beams=1)
            texts |= dict(zip(places, reader.tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True))
    return [texts[place] for place in range(len(rows))]
