"""Quality of compressed models: scores of them and of the dense model on the same examples."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.compress.answers import (
    Answered,
    Answers,
    Classified,
    Embedded,
    Predicted,
    Ranked,
    Score,
    Several,
    Words,
)
from greenformers.compress.writing import check_writing, written
from greenformers.data._examples import Examples
from greenformers.data._pooling import pooling_of
from greenformers.data._reader import Reader
from greenformers.data._rows import IGNORED, Batches, Rows
from greenformers.data._texts import Texts, batches, check_block, padded
from greenformers.measure.answer_spans import answer_f1, answer_span
from greenformers.measure.quality import evaluating

SIZE = 32  # examples in a batch


def judge(models: Mapping[str, PreTrainedModel], examples: Examples, reader: Reader) -> dict[str, dict[str, Score]]:
    """Scores of each model, by metric; the first model is the one the others are compared with.

    Pairs with scores judge an encoder of texts (Spearman's correlation of cosines), labelled examples a classifier
    (accuracy, or Spearman's correlation of its scores where it gives no classes), tagged words one of tokens (F1 of
    entities, or accuracy where tags are none of entities), answers one that finds them (F1 of words), plain text a
    language model (perplexity), sources and targets an encoder-decoder (perplexity of the target, and BLEU or the word
    error rate of the texts it writes), recordings a CTC model (word error rate). Encoders have the mean cosine between
    their embeddings and those of the dense model, too, if they are as wide.

    Raises:
        ValueError: The examples cannot judge this kind of model.
    """
    check_examples(next(iter(models.values())), examples, reader)
    first: Answers | None = None
    scores: dict[str, dict[str, Score]] = {}
    for name, model in models.items():
        own = answers(model, examples, reader)
        scores[name] = own.scores(first)
        first = first or own
    return scores


def answers(model: PreTrainedModel, examples: Examples, reader: Reader) -> Answers:
    """What a model answers to examples that can judge it, see `check_examples`.

    Raises:
        ValueError: The tokenizer has no mask token, or no token of the texts was masked.
    """
    if reader.task == "encoder":
        return embedded(model, examples, reader)
    if reader.task == "classifier":
        told = _ranked if reader.scores else _classified
        return told(model, reader.rows(examples, classes=True), reader)
    if reader.task == "tagger":
        assert isinstance(examples, Texts)
        return _tagged(model, examples, reader)
    if reader.task == "answerer":
        assert isinstance(examples, Texts)
        return _answered(model, examples, reader)
    if reader.task == "seq2seq":
        return Several([_targets(model, reader.rows(examples), reader), written(model, examples, reader)])
    if reader.task == "ctc":
        return written(model, examples, reader)
    assert isinstance(examples, Texts)
    assert reader.tokenizer is not None
    predicted = _predicted if reader.task == "causal_lm" else _masked
    return predicted(model, examples, reader.tokenizer, reader.length)


def check_examples(model: PreTrainedModel, examples: Examples, reader: Reader) -> None:
    """Check that examples can judge a model.

    Raises:
        ValueError: They cannot.
    """
    reader.check(examples)
    if reader.task in ("seq2seq", "ctc"):
        check_writing(model, examples, reader)
    if not isinstance(examples, Texts):
        if reader.task == "classifier" and not all(examples.said):
            raise ValueError(f"{examples.name}: a classifier is judged by examples in folders of their classes")
        return
    task = reader.task
    if task == "encoder" and examples.labels is not None and not (examples.paired and examples.label_kind == "score"):
        raise ValueError(f"{examples.name}: an encoder is judged by plain text or by pairs with scores, not by classes")
    if (task == "encoder" or reader.scores) and examples.labels is not None and len(set(examples.labels)) < 2:
        raise ValueError(f"{examples.name}: texts judge a {type(model).__name__} where their scores differ")
    if task == "classifier":
        _check_classes(model, examples, reader)
    if task == "answerer" and (examples.labels is None or examples.label_kind != "answers"):
        raise ValueError(
            f"{examples.name}: a {type(model).__name__} is judged by the columns question, context and answers"
        )
    if task == "tagger":
        if examples.labels is None or examples.label_kind != "tags":
            raise ValueError(
                f"{examples.name}: a {type(model).__name__} is judged by words and their tags, a file .conll or the "
                "columns tokens and tags"
            )
        _check_range(examples.name, max(tag for tags in examples.labels for tag in tags), model)
    if task in ("causal_lm", "masked_lm") and examples.labels is not None:
        raise ValueError(f"{examples.name}: a language model is judged by plain text, not by a table")
    if task == "causal_lm" and reader.tokenizer is not None:
        check_block(examples.lines, reader.tokenizer, reader.length)


def _check_classes(model: PreTrainedModel, texts: Texts, reader: Reader) -> None:
    """Raise ValueError where texts cannot judge a classifier: without labels, or with others than it gives."""
    columns = "sentence and label, or of a pair such as sentence1 and sentence2, and label"
    if reader.scores:
        columns += " or score"
    if texts.labels is None or (texts.label_kind == "score" and not reader.scores):
        raise ValueError(f"{texts.name}: a {type(model).__name__} is judged by a table with the columns {columns}")
    if not reader.scores:
        _check_range(texts.name, max(texts.labels), model)


def _check_range(name: str, most: float, model: PreTrainedModel) -> None:
    """Raise ValueError where the largest label is none of a model's."""
    classes = getattr(model.config, "num_labels", None)
    if classes and most >= classes:
        raise ValueError(f"{name}: labels must be in 0..{classes - 1}, the classes of the model; got {most:g}")


@torch.inference_mode()
def embed(model: PreTrainedModel, texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int) -> Tensor:
    """Sentence embeddings (texts, d) in float32: the mean over tokens or the model's own pooling, at unit length."""
    pool = pooling_of(model)
    rows: dict[int, Tensor] = {}
    with evaluating(model):
        for places, batch in padded(texts, tokenizer, length, SIZE):
            hidden = model(**batch).last_hidden_state
            for place, row in zip(places, pool(hidden, batch.get("attention_mask")), strict=True):
                rows[place] = F.normalize(row.float(), dim=-1)
    return torch.stack([rows[place] for place in range(len(texts))])


@torch.inference_mode()
def embed_files(model: PreTrainedModel, examples: Examples, reader: Reader) -> Tensor:
    """Embeddings (examples, d) of images or recordings in float32: the mean over positions, at unit length."""
    embeddings: dict[int, Tensor] = {}
    with evaluating(model):
        for places, batch in _numbered(reader.rows(examples), reader):
            hidden = model(**batch).last_hidden_state
            hidden = hidden if hidden.dim() == 3 else hidden.flatten(2).mT  # of convolutions, whose positions come last
            embeddings |= dict(zip(places, F.normalize(hidden.float().mean(1), dim=-1), strict=True))
    return torch.stack([embeddings[place] for place in range(len(examples))])


def embedded(model: PreTrainedModel, examples: Examples, reader: Reader) -> Embedded:
    """Embeddings of examples, with the scores of pairs if they have some."""
    if not isinstance(examples, Texts):
        return Embedded(embed_files(model, examples, reader))
    assert reader.tokenizer is not None
    rows = embed(model, examples.lines, reader.tokenizer, reader.length)
    return Embedded(rows, None if examples.labels is None else np.asarray(examples.labels))


def as_ranked_by(model: PreTrainedModel, pairs: Texts, reader: Reader) -> Texts:
    """The same pairs with a model's own similarities as their scores: what agrees with these ranks them as it does."""
    return replace(pairs, labels=embedded(model, pairs, reader).cosines.tolist(), label_kind="score")


def _numbered(rows: Rows, reader: Reader) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Batches, each with the numbers of its examples. Recordings share a batch only where none is padded or cut."""
    batched = Batches(rows, SIZE, exact=reader.kind == "sound")
    for number, places in enumerate(batched.places):
        yield places, batched[number]


@torch.inference_mode()
def _classified(model: PreTrainedModel, rows: Rows, reader: Reader) -> Classified:
    right = torch.zeros(len(rows), dtype=torch.bool)
    with evaluating(model):
        for places, batch in _numbered(rows, reader):
            labels = batch.pop("labels")
            logits = model(**batch).logits
            right[places] = (logits.argmax(-1) == labels) & ~logits.isnan().any(-1)  # of these the largest is none
    return Classified(right)


@torch.inference_mode()
def _tagged(model: PreTrainedModel, texts: Texts, reader: Reader) -> Words:
    """The tags of the words of each sentence; one that was cut off, or whose logits are no numbers, has none."""
    names = {number: name for name, number in reader.classes.items()}
    words = list(reader.first_words(texts))
    told: list[list[int]] = [[-1] * len(text.split(" ")) for text in texts.lines]
    with evaluating(model):
        for places, batch in _numbered(reader.rows(texts), reader):
            logits = model(**batch).logits.float()
            tags = logits.argmax(-1).masked_fill(logits.isnan().any(-1), -1)
            for place, row in zip(places, tags.tolist(), strict=True):
                for at in (words[place] >= 0).nonzero().flatten().tolist():
                    told[place][int(words[place][at])] = row[at]
    return Words.of(
        [[names.get(tag, "") for tag in row] for row in told],
        [[names.get(tag, str(tag)) for tag in row] for row in texts.labels or ()],
        list(reader.classes),
    )  # fmt: skip


@torch.inference_mode()
def _answered(model: PreTrainedModel, texts: Texts, reader: Reader) -> Answered:
    """The answers that a model finds, of all windows of a text.

    None, where examples without an answer are there and the first token of every window, which stands for that, has a
    larger sum of its two logits.
    """
    rows, windows = reader.windows(texts)
    answers, likeliest, lacking = [""] * len(texts), [-inf] * len(texts), [inf] * len(texts)
    with evaluating(model):
        for numbers, batch in _numbered(rows, reader):
            out = model(**batch)
            for number, start, end in zip(numbers, out.start_logits.float(), out.end_logits.float(), strict=True):
                place, spans = windows[number].place, windows[number].spans
                lacking[place] = min(lacking[place], (start[0] + end[0]).item())
                span = answer_span(start, end, [span is not None for span in spans])
                if span is not None and span.logits > likeliest[place]:
                    first, last = spans[span.first], spans[span.last]
                    assert first is not None
                    assert last is not None
                    likeliest[place], answers[place] = span.logits, texts.segments[place][1][first[0] : last[1]]
    if not all(texts.labels or ()):
        answers = ["" if lacking[place] > likeliest[place] else answer for place, answer in enumerate(answers)]
    pairs = zip(answers, texts.labels or (), strict=True)
    return Answered(np.array([answer_f1(answer, right) for answer, right in pairs]))


@torch.inference_mode()
def _ranked(model: PreTrainedModel, rows: Rows, reader: Reader) -> Ranked:
    given, scored = np.zeros(len(rows)), np.zeros(len(rows))
    with evaluating(model):
        for places, batch in _numbered(rows, reader):
            scored[places] = batch.pop("labels").double().numpy()
            given[places] = model(**batch).logits.double().flatten().numpy()
    return Ranked(given, scored)


@torch.inference_mode()
def _targets(model: PreTrainedModel, rows: Rows, reader: Reader) -> Predicted:
    """Losses of the target texts, of each token given those before it."""
    losses, tokens = np.zeros(len(rows)), np.zeros(len(rows))
    with evaluating(model):
        for places, batch in _numbered(rows, reader):
            labels = batch["labels"]
            each = F.cross_entropy(model(**batch).logits.float().mT, labels, reduction="none", ignore_index=IGNORED)
            losses[places] = each.sum(1).double().numpy()
            tokens[places] = (labels != IGNORED).sum(1).numpy()
    return Predicted(losses, tokens)


def _size(length: int) -> int:
    """Number of blocks in a batch: the scores of a vocabulary of 150,000 take 0.6 MB a token."""
    return max(1, min(SIZE, 4096 // length))


@torch.inference_mode()
def _predicted(model: PreTrainedModel, texts: Texts, tokenizer: PreTrainedTokenizerBase, length: int) -> Predicted:
    """Losses of the blocks of a text, of each token given those before it in the block."""
    losses, tokens = [], []
    with evaluating(model):
        for batch in batches(texts.lines, tokenizer, "causal_lm", length, _size(length)):
            logits = model(**batch).logits[:, :-1].float()
            targets = batch["input_ids"][:, 1:]
            each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
            losses.append(each.double().sum(1).numpy())
            tokens.append(np.full(*targets.shape))
    return Predicted(np.concatenate(losses), np.concatenate(tokens))


@torch.inference_mode()
def _masked(model: PreTrainedModel, texts: Texts, tokenizer: PreTrainedTokenizerBase, length: int) -> Predicted:
    """Losses of 15 % of the tokens of the blocks of a text, masked all at once; the same ones for every model."""
    if tokenizer.mask_token_id is None:
        raise ValueError("the tokenizer has no mask token")
    draw = torch.Generator().manual_seed(0)
    special = torch.tensor(tokenizer.all_special_ids)
    losses, tokens = [], []
    with evaluating(model):
        for batch in batches(texts.lines, tokenizer, "masked_lm", length, _size(length)):
            ids = batch["input_ids"]
            chosen = (torch.rand(ids.shape, generator=draw) < 0.15) & ~torch.isin(ids, special)
            each = torch.zeros(ids.shape, dtype=torch.double)
            if chosen.any():
                logits = model(input_ids=ids.masked_fill(chosen, tokenizer.mask_token_id)).logits[chosen].float()
                each[chosen] = F.cross_entropy(logits, ids[chosen], reduction="none").double()
            losses.append(each.sum(1).numpy())
            tokens.append(chosen.sum(1).numpy())
    if not any(count.any() for count in tokens):
        raise ValueError(f"{texts.name} is too short: no token was masked")
    return Predicted(np.concatenate(losses), np.concatenate(tokens))
