"""Use of a finished run: scores on any split, and text from its model."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast, set_seed

from greenformers.data import Document, Summaries
from greenformers.measure import summaries, translation
from greenformers.measure.device import accelerator
from greenformers.measure.keys_read import KeysRead, keys_read
from greenformers.measure.record import Record
from greenformers.model import GreenformerForCausalLM, GreenformerForSeq2SeqLM
from greenformers.train.generation import GREEDY, Writing, continuations, translations
from greenformers.train.replaced_token_detection import ReplacedTokenDetection
from greenformers.train.run import MODEL, SETTINGS, settings_of, trained
from greenformers.train.seq2seq import Seq2Seq
from greenformers.train.settings import Settings

MOST_NEW, AT_ONCE = 100, 64
"""Most tokens that are added by default, and prompts that are continued at once."""

BEAMS = Writing(beams=4)
"""How translations and summaries that are scored are searched for, unless another way is given."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a run scores on a split.

    Attributes:
        scores: Scores by name: accuracy in percent, losses in nats; BLEU, chrF and ROUGE from 0 to 100; and of a
            network with `dacs` the share of the keys in sight that are read, in percent.
        texts: Of an encoder-decoder every source with its references and what was written.
        written: Of an encoder-decoder what was written, by example.
        intervals: 95 % intervals of scores, of those that have one.
        baselines: Of summaries the scores of baselines, the first sentences of each document, by name.
        differences: Of summaries the 95 % intervals of scores less those of a baseline, by name of the baseline.
    """

    scores: dict[str, float]
    texts: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    intervals: dict[str, list[float]] = field(default_factory=dict)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    differences: dict[str, dict[str, list[float]]] = field(default_factory=dict)


def evaluate(
    run: Path, split: str, *, folder: Path | None = None, writing: Writing | None = None, batch_size: int = 64
) -> Evaluation:
    """Score the trained model of a run.

    Args:
        run: Folder of a finished run.
        split: Split of its data set: "train", "valid" or "test".
        folder: Folder of the data set, if it has moved since.
        writing: How translations and summaries are searched for; None for `BEAMS`.
        batch_size: Number of examples computed at a time.

    Raises:
        MissingExtraError: The package that scores translations or summaries is not installed.
        ValueError: There is no such split, the run is of replaced token detection, whose encoder alone has no score,
            or a way of writing is given for a run that writes no text.
        OSError: There is no finished run in the folder, or its data are missing.
    """
    model = trained(run).to(accelerator())  # type: ignore[arg-type]
    settings = settings_of(run, Settings)
    # The run's own tokenizer, not one trained anew.
    settings = replace(
        settings, init=str(run), vocabulary=None, folder=settings.folder if folder is None else str(folder)
    )
    objective = settings.task().objective
    if isinstance(objective, ReplacedTokenDetection):
        raise ValueError("a run of replaced_token_detection leaves an encoder: fine-tune it with --init, then evaluate")
    if not isinstance(objective, Seq2Seq):
        if writing is not None:
            raise ValueError(
                f"options of writing are for seq2seq, the run is of {settings.data}, without texts to write"
            )
        with keys_read(model) as counts:
            scores = objective.evaluate(model, split, batch_size)
        return Evaluation(scores | _told(counts))
    documents = objective.data.split(split) if isinstance(objective.data, Summaries) else None
    (translation.needed if documents is None else summaries.needed)()
    with keys_read(model) as counts:
        scores = objective.evaluate(model, split, batch_size)
    scores |= _told(counts)
    sources, references = zip(*objective.texts(split), strict=True)
    longest = min(settings.length - 1, objective.target_length)
    outputs = list(
        translations(
            model, objective.tokenizer, sources, batch_size=batch_size, max_new_tokens=longest, writing=writing or BEAMS
        )
    )
    if documents is not None:
        return _summarised(documents, outputs, scores)
    texts = [_shown(*row) for row in zip(sources, references, outputs, strict=True)]
    return Evaluation(scores | translation.translation_scores(outputs, references), texts, outputs)


def _told(counts: KeysRead) -> dict[str, float]:
    """The share of keys that attention read, of a network with attention that stops by itself."""
    return {} if counts.share is None else {"keys_read": 100 * counts.share}


def _summarised(documents: Sequence[Document], outputs: list[str], scores: dict[str, float]) -> Evaluation:
    """The scores of summaries, beside those of the first sentences of each document."""
    references = [document.summaries for document in documents]
    ours = summaries.rouge(outputs, references)
    leads = {
        name: summaries.rouge([summaries.lead(document.text, count) for document in documents], references)
        for name, count in summaries.LEADS.items()
    }
    return Evaluation(
        scores | summaries.means(ours),
        [
            _shown(document.source, "\n        ".join(document.summaries), output)
            for document, output in zip(documents, outputs, strict=True)
        ],
        outputs,
        {name: summaries.interval(values) for name, values in ours.items()},
        {name: summaries.means(theirs) for name, theirs in leads.items()},
        {name: summaries.differences(ours, theirs) for name, theirs in leads.items()},
    )


def _shown(source: str, reference: str, output: str) -> str:
    return f"source: {source}\ntarget: {reference}\nours:   {output}\n"


def records(run: Path, split: str, evaluation: Evaluation) -> list[Record]:
    """The scores of a run and of baselines as records, without context; a difference is that to the first baseline."""
    settings = settings_of(run, Settings)
    setting = {"data": settings.data, "split": split, "hidden": settings.hidden, "layers": settings.layers}
    first = next(iter(evaluation.baselines), None)
    paired = evaluation.differences.get(first or "", {})
    about: dict[str, Any] = {"benchmark": "evaluate", "setting": setting}
    rows = []
    for name, value in evaluation.scores.items():
        to = first if name in paired else None
        rows.append(Record.of(name, value, variant=settings.variant, interval=paired.get(name), to=to, **about))
    for baseline, scores in evaluation.baselines.items():
        rows += [Record.of(name, value, variant=baseline, **about) for name, value in scores.items()]
    return rows


def written(
    run: Path,
    texts: Sequence[str],
    *,
    seed: int,
    max_new_tokens: int | None,
    writing: Writing = GREEDY,
    **options: Any,
) -> list[str]:
    """Continue texts with a language model, or translate or summarise them with an encoder-decoder.

    Args:
        run: Folder of a finished run.
        texts: Texts, at least one.
        seed: Seed of the sampling, where tokens are sampled.
        max_new_tokens: Most tokens to add; by default the `target_length` of the run, or as many as fit the model, and
            at most 100 for a continuation.
        writing: How the text is searched for.
        **options: Options of transformers' `generate`: do_sample, temperature, top_k, top_p.

    Raises:
        ValueError: There is no text, one is empty, an option is out of range, or the run's model writes no text.
        OSError: There is no finished run in the folder.
    """
    model = trained(run).to(accelerator())  # type: ignore[arg-type]
    if not isinstance(model, GreenformerForCausalLM | GreenformerForSeq2SeqLM):
        raise ValueError(f"the model must be a causal or a sequence-to-sequence one, got {type(model).__name__}")
    if not texts:
        raise ValueError("there must be at least one prompt, got none")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(run / MODEL)
    rows = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    lengths = [len(row) for row in rows]
    if not all(lengths):
        raise ValueError("a prompt must have at least one character, got an empty one")
    unknown = sum(row.count(tokenizer.unk_token_id) for row in rows)
    if unknown:
        warnings.warn(
            f"{unknown} of the {sum(lengths)} tokens of the prompts are not in the model's vocabulary: they are read "
            f"as unknown",
            stacklevel=2,
        )
    set_seed(seed)
    room = model.config.max_position_embeddings
    if isinstance(model, GreenformerForSeq2SeqLM):
        if max_new_tokens is None and (run / SETTINGS).exists():
            target = settings_of(run, Settings).target_length
            max_new_tokens = None if target is None else min(room - 1, target)
        options["max_new_tokens"] = max_new_tokens
        return list(translations(model, tokenizer, texts, writing=writing, **options))
    # With a memory of earlier segments prompts may be longer than what is read at once.
    remembers = bool(model.config.memory_length)
    new = [
        (MOST_NEW if remembers else min(MOST_NEW, room - length)) if max_new_tokens is None else max_new_tokens
        for length in lengths
    ]
    out: dict[int, str] = {}
    for count in sorted(set(new)):  # what does not fit comes first, and is refused before anything is written
        places = [place for place, own in enumerate(new) if own == count]
        for at in range(0, len(places), AT_ONCE):
            some = places[at : at + AT_ONCE]
            prompts = [texts[place] for place in some]
            continued = continuations(model, tokenizer, prompts, new_tokens=count, writing=writing, **options)
            out |= dict(zip(some, continued, strict=True))
    return [out[place] for place in range(len(texts))]
