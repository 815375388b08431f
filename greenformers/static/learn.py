"""A static encoder learned from a teacher and texts."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.changes._distillation import VALID, Distillation
from greenformers.changes._student import Student
from greenformers.checkpoint.pooling import is_sentence_transformer, know, transformer_in
from greenformers.compress.job import USUAL
from greenformers.data._pooling import pooling_of
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.measure.quality import evaluating
from greenformers.model.positions import reach
from greenformers.static.folder import StaticEncoder
from greenformers.static.table import Bags, alike, beginning, directions, least_squares

Progress = Callable[[str, float], None]

DIMS = 256
"""Usual number of dimensions, of a model whose embeddings have as many."""

RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Weights of the beginning that are tried, on texts that are not learned from."""

AT_ONCE = 1000
"""Texts that are made tokens at once."""

TOKENS = 512
"""Tokens that the teacher is given at once, each alone."""


@dataclass(frozen=True)
class Learned:
    """A static encoder, and how it was learned.

    Attributes:
        weight: A vector for each token (V, d').
        tokenizer: The teacher's tokenizer.
        begun: The mean cosine to the teacher on texts that were not learned from, with the vectors of tokens alone.
        cosine: The same with the vectors that were learned.
        energy: The share of the energy of the teacher's embeddings in the d' directions.
        ridge: The weight of the beginning.
        texts: Number of texts that were learned from.
        seen: The share of the tokens that occur in them.
    """

    weight: Tensor
    tokenizer: Any
    begun: float
    cosine: float
    energy: float
    ridge: float
    texts: int
    seen: float


def learn(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    texts: Sequence[str],
    *,
    dims: int | None = None,
    length: int,
    cache: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Learned:
    """Learn a vector for each token from what a teacher gives to texts.

    Args:
        teacher: A sentence encoder.
        tokenizer: Its tokenizer, one of the tokenizers library.
        texts: Texts without labels; one in twenty is not learned from, and chooses the weight of the beginning.
        dims: Number d' of directions, at most the width of the teacher's embeddings; by default at most `DIMS`.
        length: Longest text in tokens.
        cache: Folder that keeps what the teacher gives.
        progress: Function that is called as work goes on.

    Raises:
        ValueError: There are too few texts, more dimensions are asked for than there are, or the tokenizer is of
            another kind.
    """
    plain: Any = tokenizer
    dims = checked(teacher, plain, texts, dims)
    rows = _given(teacher, plain, texts, length, cache, progress)
    limits = {"add_special_tokens": False, "truncation": True, "max_length": length}
    # Of all texts at once everything else that a tokenizer gives would be held too.
    pieces = (list(texts[start : start + AT_ONCE]) for start in range(0, len(texts), AT_ONCE))
    ids = [row for piece in pieces for row in plain(piece, **limits)["input_ids"]]
    table: Any = teacher.get_input_embeddings()
    size = max(len(plain), int(table.weight.shape[0]))
    held = set(range(0, len(texts), VALID))
    learnt, others = ([at for at in range(len(texts)) if (at in held) is out] for out in (False, True))
    bags, judged = (Bags.of([ids[at] for at in places], size) for places in (learnt, others))
    U, energy = directions(rows[learnt], dims)
    Y, Y_held = rows[learnt] @ U, rows[others] @ U
    alone = _alone(teacher, plain, size, progress) @ U
    E_0 = beginning(alone, bags, Y)
    best: tuple[float, float, Tensor] | None = None
    E = E_0
    # From much weight on the beginning to little, each from the last: the next is near.
    for number, ridge in enumerate(sorted(RIDGES, reverse=True)):
        E = least_squares(bags, Y, E_0, ridge, begin=E)
        cosine = alike(judged, E, Y_held)
        progress("learning", (number + 1) / len(RIDGES))
        if best is not None and cosine < best[0]:
            break
        best = (cosine, ridge, E)
    assert best is not None
    cosine, ridge, weight = best
    seen = (torch.bincount(bags.ids, minlength=size) > 0).double().mean().item()
    return Learned(weight, plain, alike(judged, E_0, Y_held), cosine, energy, ridge, len(learnt), seen)


def learned_by(
    model: Any, texts: Sequence[str], *, tokenizer: PreTrainedTokenizerBase | None, dims: int | None,
    length: int | None, cache: Path | None, progress: Progress,
) -> tuple[StaticEncoder, Learned]:  # fmt: skip
    """See `greenformers.static.static`; also how it was learned."""
    if is_sentence_transformer(model):
        tokenizer = tokenizer or model.tokenizer
        model = transformer_in(model)
    else:
        know(model)
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"{type(model).__name__} is not a model of transformers: it gives no embeddings of texts")
    learned = learn(model, tokenizer, texts, dims=dims, length=longest(model, length), cache=cache, progress=progress)
    return StaticEncoder.of(learned.weight, learned.tokenizer), learned


def longest(model: PreTrainedModel, length: int | None) -> int:
    """The longest text in tokens: as given, by default that of the model's pooling, or 128, within its reach.

    Raises:
        ValueError: The model reads no text of the length that is given.
    """
    most = reach(model)
    if length is not None and length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    if length is not None and most is not None and length > most:
        raise ValueError(f"length must be at most {most}, the longest input; got {length}")
    usual = length or pooling_of(model).length or USUAL
    return min(usual, most or usual)


def checked(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, texts: Sequence[str], dims: int | None
) -> int:
    """The number of directions, where a static encoder can be learned.

    Raises:
        ValueError: It cannot.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{type(teacher).__name__} has no tokenizer of the tokenizers library, which the result needs")
    if Reader.of(teacher, tokenizer, 8).task != "encoder":
        raise ValueError(f"{type(teacher).__name__} gives no embeddings of texts: a static encoder learns from these")
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got a single one")
    if len(texts) < 2 * VALID:
        raise ValueError(f"a static encoder needs at least {2 * VALID} texts, got {len(texts)}")
    width = _pooled(teacher, tokenizer)
    if dims is not None and not 1 <= dims <= width:
        raise ValueError(f"dims must be in 1..{width}, the width of the teacher's embeddings; got {dims}")
    return min(DIMS, width) if dims is None else dims


@torch.no_grad()
def _pooled(teacher: PreTrainedModel, tokenizer: Any) -> int:
    with evaluating(teacher):
        batch = tokenizer(["a"], return_tensors="pt")
        return int(pooling_of(teacher)(teacher(**batch).last_hidden_state, batch.get("attention_mask")).shape[-1])


def _given(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int,
    cache: Path | None, progress: Progress,
) -> Tensor:  # fmt: skip
    """What the teacher gives to texts (S, d), of unit length."""
    if cache is None:
        with tempfile.TemporaryDirectory() as folder:
            return _given(teacher, tokenizer, texts, length, Path(folder) / "teacher", progress)
    rows = Reader.of(teacher, tokenizer, length).rows(Texts("texts", [(text,) for text in texts]))
    if len(rows) != len(texts):
        raise ValueError("a text without tokens is none to learn from: leave it out")
    teacher_outputs = Distillation(rows).remember(
        Student(teacher, teacher, {"embeddings": 1.0}, 1.0), cache, lambda share: progress("asking the teacher", share)
    )
    return torch.nn.functional.normalize(teacher_outputs.whole("vector"), dim=1)


@torch.no_grad()
def _alone(teacher: PreTrainedModel, tokenizer: Any, size: int, progress: Progress) -> Tensor:
    """What the teacher gives to each token alone (V, d), of unit length; 0 for those that it has no embedding of."""
    letter = tokenizer("a", return_special_tokens_mask=True)
    places = [at for at, special in enumerate(letter["special_tokens_mask"]) if not special]
    before, after = (letter["input_ids"][: places[0]], letter["input_ids"][places[-1] + 1 :])
    pool, parts = pooling_of(teacher), []
    own: Any = teacher.get_input_embeddings()
    there = min(size, int(own.weight.shape[0]))
    with evaluating(teacher):
        for start in range(0, there, TOKENS):
            tokens = torch.arange(start, min(start + TOKENS, there))
            ids = torch.stack([torch.tensor([*before, token, *after]) for token in tokens.tolist()])
            mask = torch.ones_like(ids)
            parts.append(pool(teacher(input_ids=ids, attention_mask=mask).last_hidden_state, mask).float())
            progress("asking the teacher for tokens", min(start + TOKENS, there) / there)
    rows = torch.nn.functional.normalize(torch.cat(parts), dim=1)
    if not rows.isfinite().all():
        raise ValueError("what the teacher gives to some tokens alone is not finite")
    return torch.nn.functional.pad(rows, (0, 0, 0, size - there))
