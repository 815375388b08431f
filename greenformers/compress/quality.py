"""Quality of compressed models: scores of them and of the dense model on the same examples."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import exp

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.compress.writing import check_writing, written
from greenformers.data._examples import Examples
from greenformers.data._pooling import pooling_of
from greenformers.data._reader import Reader
from greenformers.data._rows import IGNORED, Batches, Rows
from greenformers.data._texts import Texts, batches, padded
from greenformers.measure.correlation import spearman
from greenformers.measure.quality import evaluating, paired_difference

SIZE = 32  # examples in a batch
RESAMPLES = 2000

Score = tuple[float, list[float] | None]
"""A value, and the 95 % interval of its difference from the dense model's, if there is one."""


def judge(models: Mapping[str, PreTrainedModel], examples: Examples, reader: Reader) -> dict[str, dict[str, Score]]:
    """Scores of each model, by metric; the first model is the one the others are compared with.

    Pairs with scores judge an encoder of texts (Spearman's correlation of cosines), labelled examples a classifier
    (accuracy), plain text a language model (perplexity), sources and targets an encoder-decoder (perplexity of the
    target, and BLEU or the word error rate of the texts it writes), recordings a CTC model (word error rate). Encoders
    have the mean cosine between their embeddings and those of the dense model, too, if they are as wide.

    Raises:
        ValueError: The examples cannot judge this kind of model.
    """
    check_examples(next(iter(models.values())), examples, reader)
    if reader.task == "encoder":
        return _encoders(models, examples, reader)
    if reader.task == "classifier":
        return _classifiers(models, reader.rows(examples, classes=True), reader)
    if reader.task in ("seq2seq", "ctc"):
        teacher_forced = _targets(models, reader.rows(examples), reader) if reader.task == "seq2seq" else {}
        return {
            name: teacher_forced.get(name, {}) | scores for name, scores in written(models, examples, reader).items()
        }
    assert isinstance(examples, Texts)
    assert reader.tokenizer is not None
    perplexity = _perplexity if reader.task == "causal_lm" else _masked
    return {
        name: {"perplexity": (perplexity(model, examples, reader.tokenizer, reader.length), None)}
        for name, model in models.items()
    }


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
    task, columns = reader.task, len(examples.segments[0])
    if task == "encoder" and examples.labels is not None:
        if columns != 2:
            raise ValueError(
                f"{examples.name}: an encoder is judged by plain text or by pairs with scores, not by classes"
            )
        if len(set(examples.labels)) < 2:
            raise ValueError(f"{examples.name}: pairs judge an encoder where their scores differ")
    if task == "classifier" and (examples.labels is None or columns != 1):
        raise ValueError(f"{examples.name}: a classifier is judged by a table with the columns sentence and label")
    classes = getattr(model.config, "num_labels", None)
    if task == "classifier" and examples.labels is not None and classes and max(examples.labels) >= classes:
        raise ValueError(
            f"{examples.name}: labels must be in 0..{classes - 1}, the classes of the model; "
            f"got {max(examples.labels):g}"
        )
    if task in ("causal_lm", "masked_lm") and examples.labels is not None:
        raise ValueError(f"{examples.name}: a language model is judged by plain text, not by a table")


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


def as_ranked_by(model: PreTrainedModel, pairs: Texts, reader: Reader) -> Texts:
    """The same pairs with a model's own similarities as their scores: what agrees with these ranks them as it does."""
    assert reader.tokenizer is not None
    rows = embed(model, pairs.lines, reader.tokenizer, reader.length)
    return replace(pairs, labels=_cosines(rows).tolist())


def _cosines(rows: Tensor) -> np.ndarray:
    """The cosine of each pair, of whose two texts the embeddings stand beside each other."""
    cosines: np.ndarray = (rows[::2] * rows[1::2]).sum(-1).numpy()
    return cosines


def _encoders(models: Mapping[str, PreTrainedModel], examples: Examples, reader: Reader) -> dict[str, dict[str, Score]]:
    scores: dict[str, dict[str, Score]] = {}
    dense: Tensor | None = None
    alike: np.ndarray | None = None
    for name, model in models.items():
        if isinstance(examples, Texts):
            assert reader.tokenizer is not None
            rows = embed(model, examples.lines, reader.tokenizer, reader.length)
        else:
            rows = embed_files(model, examples, reader)
        dense = rows if dense is None else dense
        # A narrower model's embeddings have no coordinates in common with these.
        same = rows.shape == dense.shape
        scores[name] = {"cosine": ((rows * dense).sum(-1).double().mean().item(), None)} if same else {}
        if isinstance(examples, Texts) and examples.labels is not None:
            cosines = _cosines(rows)
            value = 100 * spearman(cosines, np.asarray(examples.labels))
            interval = None if alike is None else spearman_difference(cosines, alike, np.asarray(examples.labels))
            alike = cosines if alike is None else alike
            scores[name]["spearman"] = (value, interval)
    return scores


def spearman_difference(a: np.ndarray, b: np.ndarray, scores: np.ndarray, seed: int = 0) -> list[float]:
    """95 % bootstrap interval of 100 times the difference of two Spearman correlations on the same pairs."""
    return _interval(len(scores), lambda at: 100 * (spearman(a[at], scores[at]) - spearman(b[at], scores[at])), seed)


def _interval(count: int, difference: Callable[[np.ndarray], float], seed: int = 0) -> list[float]:
    """The 95 % bootstrap interval of a difference on so many examples."""
    draw = np.random.default_rng(seed)
    low, high = np.quantile([difference(draw.integers(0, count, count)) for _ in range(RESAMPLES)], [0.025, 0.975])
    return [float(low), float(high)]


def _numbered(rows: Rows, reader: Reader) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Batches, each with the numbers of its examples. Recordings share a batch only where none is padded or cut."""
    batched = Batches(rows, SIZE, exact=reader.kind == "sound")
    for number, places in enumerate(batched.places):
        yield places, batched[number]


@torch.inference_mode()
def _classifiers(models: Mapping[str, PreTrainedModel], rows: Rows, reader: Reader) -> dict[str, dict[str, Score]]:
    scores: dict[str, dict[str, Score]] = {}
    first: Tensor | None = None
    for name, model in models.items():
        right = torch.zeros(len(rows), dtype=torch.bool)
        with evaluating(model):
            for places, batch in _numbered(rows, reader):
                labels = batch.pop("labels")
                right[places] = model(**batch).logits.argmax(-1) == labels
        interval = None if first is None else list(paired_difference(right, first)[1:])
        first = right if first is None else first
        scores[name] = {"accuracy": (100 * right.double().mean().item(), interval)}
    return scores


@torch.inference_mode()
def _targets(models: Mapping[str, PreTrainedModel], rows: Rows, reader: Reader) -> dict[str, dict[str, Score]]:
    """Perplexity of the target texts, of each token given those before it; intervals by resampling examples."""
    scores: dict[str, dict[str, Score]] = {}
    first: np.ndarray | None = None
    tokens = np.zeros(len(rows))
    for name, model in models.items():
        losses = np.zeros(len(rows))
        with evaluating(model):
            for places, batch in _numbered(rows, reader):
                labels = batch["labels"]
                logits = model(**batch).logits.float()
                token_losses = F.cross_entropy(logits.mT, labels, reduction="none", ignore_index=IGNORED)
                losses[places] = token_losses.sum(1).double().numpy()
                tokens[places] = (labels != IGNORED).sum(1).numpy()
        value = exp(losses.sum() / tokens.sum())
        interval = None if first is None else _perplexities(losses, first, tokens)
        first = losses if first is None else first
        scores[name] = {"perplexity": (value, interval)}
    return scores


def _perplexities(losses: np.ndarray, first: np.ndarray, tokens: np.ndarray) -> list[float]:
    return _interval(
        len(tokens), lambda at: exp(losses[at].sum() / tokens[at].sum()) - exp(first[at].sum() / tokens[at].sum())
    )


def _size(length: int) -> int:
    """Number of blocks in a batch: the scores of a vocabulary of 150,000 take 0.6 MB a token."""
    return max(1, min(SIZE, 4096 // length))


@torch.inference_mode()
def _perplexity(model: PreTrainedModel, texts: Texts, tokenizer: PreTrainedTokenizerBase, length: int) -> float:
    """Perplexity of each token of a block given those before it in the block."""
    total, count = 0.0, 0
    with evaluating(model):
        for batch in batches(texts.lines, tokenizer, "causal_lm", length, _size(length)):
            logits = model(**batch).logits[:, :-1].float()
            targets = batch["input_ids"][:, 1:]
            total += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
            count += targets.numel()
    return exp(total / count)


@torch.inference_mode()
def _masked(model: PreTrainedModel, texts: Texts, tokenizer: PreTrainedTokenizerBase, length: int) -> float:
    """Perplexity of 15 % of the tokens, masked all at once; the same ones for every model."""
    if tokenizer.mask_token_id is None:
        raise ValueError("the tokenizer has no mask token")
    draw = torch.Generator().manual_seed(0)
    special = torch.tensor(tokenizer.all_special_ids)
    total, count = 0.0, 0
    with evaluating(model):
        for batch in batches(texts.lines, tokenizer, "masked_lm", length, _size(length)):
            ids = batch["input_ids"]
            chosen = (torch.rand(ids.shape, generator=draw) < 0.15) & ~torch.isin(ids, special)
            if chosen.any():
                logits = model(input_ids=ids.masked_fill(chosen, tokenizer.mask_token_id)).logits[chosen].float()
                total += F.cross_entropy(logits, ids[chosen], reduction="sum").item()
                count += int(chosen.sum())
    if not count:
        raise ValueError(f"{texts.name} is too short: no token was masked")
    return exp(total / count)
