"""Quality of the texts that models write: translations by BLEU, transcripts by the word error rate."""

from typing import Any

import torch
from transformers import PreTrainedModel

from greenformers.compress.answers import Transcribed, Translated
from greenformers.data._examples import Examples
from greenformers.data._reader import Reader
from greenformers.data._rows import Batches
from greenformers.data._texts import Texts
from greenformers.measure import recognition, translation
from greenformers.measure.quality import evaluating
from greenformers.measure.recognition import edits, plain_words

MOST = 200
"""Largest number of examples for which a text is written: every token takes a pass of the decoder."""

SIZE = 16

BEGINNING = 8
"""Tokens that a decoder of sound may begin with, such as the language and the task, within its longest text."""


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


def written(model: PreTrainedModel, examples: Examples, reader: Reader) -> Translated | Transcribed:
    """Translations or transcripts of the first `MOST` examples, decoded greedily.

    Transcripts and references are compared in lower case, without punctuation.
    """
    chosen = examples.at(range(min(MOST, len(examples))))
    texts = texts_of(model, chosen, reader)
    if isinstance(chosen, Texts):
        return Translated(texts, [target for _, target in chosen.segments])
    said = [plain_words(text) for text in chosen.said]
    return Transcribed(*edits([plain_words(text) for text in texts], said, "word"))


@torch.inference_mode()
def texts_of(model: PreTrainedModel, examples: Examples, reader: Reader) -> list[str]:
    """The text that a model writes for each example."""
    writer: Any = model
    rows = reader.rows(examples)
    batched = Batches(rows, SIZE, exact=reader.kind == "sound")
    texts: dict[int, str] = {}
    assert reader.tokenizer is not None
    most = getattr(model.config, "max_target_positions", None)
    room = reader.length - 1 if most is None else min(reader.length - 1, most - BEGINNING)
    with evaluating(model):
        for number, places in enumerate(batched.places):
            batch = {name: x for name, x in batched[number].items() if name not in ("labels", "decoder_attention_mask")}
            if reader.task == "ctc":
                ids = model(**batch).logits.argmax(-1)
            else:
                ids = writer.generate(**batch, max_new_tokens=max(1, room), do_sample=False, num_beams=1)
            texts |= dict(zip(places, reader.tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True))
    return [texts[place] for place in range(len(rows))]
