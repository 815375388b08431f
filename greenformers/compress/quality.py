"""What a compression lost: the dense and the compressed model on the same texts."""

from collections.abc import Mapping
from math import exp

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.data._pooling import pooling_of
from greenformers.data._texts import Task, Texts, batches, padded, task_of
from greenformers.measure.quality import evaluating, paired_difference

SIZE = 32  # texts in a batch
RESAMPLES = 2000

Score = tuple[float, list[float] | None]
"""A value, and the 95 % interval of its difference from the dense model's, where there is one."""


def judge(
    models: Mapping[str, PreTrainedModel], texts: Texts, tokenizer: PreTrainedTokenizerBase, length: int
) -> dict[str, dict[str, Score]]:
    """Scores of each model, by metric; the first model is the one the others are compared with.

    Pairs with scores judge an encoder (Spearman's correlation of cosines), labelled texts a classifier, plain text a
    language model (perplexity). Of encoders the mean cosine between their embeddings and the dense one's is given too.

    Raises:
        ValueError: the texts cannot judge this kind of model.
    """
    task = check_texts(next(iter(models.values())), texts)
    if task == "encoder":
        return _encoders(models, texts, tokenizer, length)
    if task == "classifier":
        return _classifiers(models, texts, tokenizer, length)
    if task == "causal_lm":
        return {
            name: {"perplexity": (_perplexity(model, texts, tokenizer, length), None)} for name, model in models.items()
        }
    return {name: {"perplexity": (_masked(model, texts, tokenizer, length), None)} for name, model in models.items()}


def check_texts(model: PreTrainedModel, texts: Texts) -> Task:
    """What a model is for, if texts can judge it.

    Raises:
        ValueError: They cannot.
    """
    task, columns = task_of(model), len(texts.segments[0])
    if task == "encoder" and texts.labels is not None:
        if columns != 2:
            raise ValueError(
                f"{texts.name}: an encoder is judged by plain text or by pairs with scores, not by classes"
            )
        if len(set(texts.labels)) < 2:
            raise ValueError(f"{texts.name}: pairs judge an encoder where their scores differ")
    if task == "classifier" and (texts.labels is None or columns != 1):
        raise ValueError(f"{texts.name}: a classifier is judged by a table with the columns sentence and label")
    classes = getattr(model.config, "num_labels", None)
    if task == "classifier" and texts.labels is not None and classes and max(texts.labels) >= classes:
        raise ValueError(
            f"{texts.name}: labels must be in 0..{classes - 1}, the classes of the model; got {max(texts.labels):g}"
        )
    if task in ("causal_lm", "masked_lm") and texts.labels is not None:
        raise ValueError(f"{texts.name}: a language model is judged by plain text, not by a table")
    return task


@torch.inference_mode()
def embed(model: PreTrainedModel, texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int) -> Tensor:
    """Sentence embeddings: the mean over tokens, or the model's own pooling, brought to unit length.

    (texts, d), in float32.
    """
    pool = pooling_of(model)
    rows: dict[int, Tensor] = {}
    with evaluating(model):
        for places, batch in padded(texts, tokenizer, length, SIZE):
            hidden = model(**batch).last_hidden_state
            for place, row in zip(places, pool(hidden, batch.get("attention_mask")), strict=True):
                rows[place] = F.normalize(row.float(), dim=-1)
    return torch.stack([rows[place] for place in range(len(texts))])


def _encoders(
    models: Mapping[str, PreTrainedModel], texts: Texts, tokenizer: PreTrainedTokenizerBase, length: int
) -> dict[str, dict[str, Score]]:
    found: dict[str, dict[str, Score]] = {}
    dense: Tensor | None = None
    alike: np.ndarray | None = None
    for name, model in models.items():
        rows = embed(model, texts.lines, tokenizer, length)
        dense = rows if dense is None else dense
        found[name] = {"cosine": ((rows * dense).sum(-1).double().mean().item(), None)}
        if texts.labels is not None:
            cosines = (rows[::2] * rows[1::2]).sum(-1).numpy()  # segments of an example stand beside each other
            value = 100 * _spearman(cosines, np.asarray(texts.labels))
            interval = None if alike is None else spearman_difference(cosines, alike, np.asarray(texts.labels))
            alike = cosines if alike is None else alike
            found[name]["spearman"] = (value, interval)
    return found


def spearman_difference(a: np.ndarray, b: np.ndarray, scores: np.ndarray, seed: int = 0) -> list[float]:
    """95 % bootstrap interval of 100 times the difference of two Spearman correlations on the same pairs."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(RESAMPLES):
        at = draw.integers(0, len(scores), len(scores))
        found.append(_spearman(a[at], scores[at]) - _spearman(b[at], scores[at]))
    low, high = np.quantile(found, [0.025, 0.975])
    return [100 * float(low), 100 * float(high)]


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's correlation; of a constant, which has none, 0."""
    return float(spearmanr(a, b).statistic) if np.ptp(a) and np.ptp(b) else 0.0


@torch.inference_mode()
def _classifiers(
    models: Mapping[str, PreTrainedModel], texts: Texts, tokenizer: PreTrainedTokenizerBase, length: int
) -> dict[str, dict[str, Score]]:
    labels = torch.tensor(texts.labels).long()
    found: dict[str, dict[str, Score]] = {}
    first: Tensor | None = None
    for name, model in models.items():
        right = torch.zeros(len(labels), dtype=torch.bool)
        with evaluating(model):
            for places, batch in padded(texts.lines, tokenizer, length, SIZE):
                right[places] = model(**batch).logits.argmax(-1) == labels[places]
        interval = None if first is None else list(paired_difference(right, first)[1:])
        first = right if first is None else first
        found[name] = {"accuracy": (100 * right.double().mean().item(), interval)}
    return found


@torch.inference_mode()
def _perplexity(model: PreTrainedModel, texts: Texts, tokenizer: PreTrainedTokenizerBase, length: int) -> float:
    """Of each token of a block given those before it in the block."""
    total, count = 0.0, 0
    with evaluating(model):
        for batch in batches(texts.lines, tokenizer, "causal_lm", length, SIZE):
            logits = model(**batch).logits[:, :-1].float()
            targets = batch["input_ids"][:, 1:]
            total += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
            count += targets.numel()
    return exp(total / count)


@torch.inference_mode()
def _masked(model: PreTrainedModel, texts: Texts, tokenizer: PreTrainedTokenizerBase, length: int) -> float:
    """Of 15 % of the tokens, masked all at once; the same ones for every model."""
    if tokenizer.mask_token_id is None:
        raise ValueError("the tokenizer has no mask token")
    draw = torch.Generator().manual_seed(0)
    special = torch.tensor(tokenizer.all_special_ids)
    total, count = 0.0, 0
    with evaluating(model):
        for batch in batches(texts.lines, tokenizer, "masked_lm", length, SIZE):
            ids = batch["input_ids"]
            chosen = (torch.rand(ids.shape, generator=draw) < 0.15) & ~torch.isin(ids, special)
            if chosen.any():
                logits = model(input_ids=ids.masked_fill(chosen, tokenizer.mask_token_id)).logits[chosen].float()
                total += F.cross_entropy(logits, ids[chosen], reduction="sum").item()
                count += int(chosen.sum())
    if not count:
        raise ValueError(f"{texts.name} is too short: no token was masked")
    return exp(total / count)
