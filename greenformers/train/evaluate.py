"""Use of a finished run: scores on any split, and text from its model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast, set_seed

from greenformers.measure.record import Record
from greenformers.measure.translation import needed, translation_scores
from greenformers.model import GreenformerForCausalLM, GreenformerForSeq2SeqLM
from greenformers.train.generation import continuations, translations
from greenformers.train.replaced_token_detection import ReplacedTokenDetection
from greenformers.train.run import MODEL, settings_of, trained
from greenformers.train.seq2seq import Seq2Seq
from greenformers.train.settings import Settings


def evaluate(
    run: Path, split: str, *, folder: Path | None = None, beams: int = 4, batch_size: int = 64
) -> tuple[dict[str, float], list[str]]:
    """Score the trained model of a run.

    Args:
        run: Folder of a finished run.
        split: Split of its data set: "train", "valid" or "test".
        folder: Folder of the data set, if it has moved since.
        beams: Width of the beam search for translations.
        batch_size: Number of examples computed at a time.

    Returns:
        Scores by name, accuracy in percent, losses in nats; and for an encoder-decoder every source with its
        reference and its translation.

    Raises:
        MissingExtraError: The package that scores translations is not installed.
        ValueError: There is no such split, or the run is of replaced token detection, whose encoder alone has no score.
        OSError: There is no finished run in the folder, or its data are missing.
    """
    model = trained(run)
    settings = settings_of(run, Settings)
    # The run's own tokenizer, not one trained anew.
    settings = replace(
        settings, init=str(run), vocabulary=None, folder=settings.folder if folder is None else str(folder)
    )
    objective = settings.task().objective
    if isinstance(objective, ReplacedTokenDetection):
        raise ValueError("a run of replaced_token_detection leaves an encoder: fine-tune it with --init, then evaluate")
    if isinstance(objective, Seq2Seq):
        needed()
    scores = objective.evaluate(model, split, batch_size)
    if not isinstance(objective, Seq2Seq):
        return scores, []
    sources, references = zip(*objective.data.split(split), strict=True)
    outputs = list(translations(model, objective.tokenizer, sources, batch_size=batch_size, num_beams=beams))
    pairs = [f"source: {a}\ntarget: {b}\nours:   {c}\n" for a, b, c in zip(sources, references, outputs, strict=True)]
    return scores | translation_scores(outputs, references), pairs


def records(run: Path, split: str, scores: dict[str, float]) -> list[Record]:
    """The scores of a run as records, without context."""
    settings = settings_of(run, Settings)
    setting = {"data": settings.data, "split": split, "hidden": settings.hidden, "layers": settings.layers}
    return [
        Record.of(name, value, benchmark="evaluate", variant=settings.variant, setting=setting)
        for name, value in scores.items()
    ]


def written(run: Path, texts: Sequence[str], *, seed: int, max_new_tokens: int | None, **options: Any) -> list[str]:
    """Continue texts with a language model, or translate them with an encoder-decoder.

    Args:
        run: Folder of a finished run.
        texts: Texts, at least one.
        seed: Seed of the sampling, where tokens are sampled.
        max_new_tokens: Most tokens to add; by default as many as fit the model, and at most 100 for a continuation.
        **options: Options of transformers' `generate`.

    Raises:
        ValueError: There is no text, an option is out of range, or the run's model writes no text.
        OSError: There is no finished run in the folder.
    """
    model = trained(run)
    if not isinstance(model, GreenformerForCausalLM | GreenformerForSeq2SeqLM):
        raise ValueError(f"the model must be a causal or a sequence-to-sequence one, got {type(model).__name__}")
    if not texts:
        raise ValueError("there must be at least one prompt, got none")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(run / MODEL)
    set_seed(seed)
    room = model.config.max_position_embeddings
    if isinstance(model, GreenformerForSeq2SeqLM):
        new = room - 1 if max_new_tokens is None else max_new_tokens
        return list(translations(model, tokenizer, texts, max_new_tokens=new, **options))
    longest = max(len(row) for row in tokenizer(list(texts), add_special_tokens=False)["input_ids"])
    new = max_new_tokens if max_new_tokens is not None else min(100, room - longest)
    return continuations(model, tokenizer, texts, new_tokens=new, **options)
