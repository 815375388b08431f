"""The longest sequence of a network within a budget of bytes of memory. Cahyawijaya 2021, 5.4.3, table 5.3.

The budget is the need of the dense transformer with eager attention for 1,024 nucleotides, one a token. Counted are
weights, in training their gradients and AdamW's two moments, and the activations of a classifier of sequences. They are
counted from shapes, operation by operation, so that a small machine can compute the need of a large one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.genome.longest_options import Size
from greenformers.measure.grid import BASELINE, EAGER, MODES, attention_by
from greenformers.measure.record import Record
from greenformers.measure.trace import trace
from greenformers.model import GreenformerConfig
from greenformers.model.heads import GreenformerForSequenceClassification
from greenformers.model.variant import slots

MARKERS = 2
"""Number of special tokens of a sequence: [CLS] and [SEP]."""
MOMENTS = 2


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        variant: Variant of the network, see `greenformers.model.variant`, or `EAGER`.
        mode: "inference" or "training".
        recompute: Whether activations within a layer are computed again in the backward pass of training.
        vocabulary: Size of the vocabulary.
    """

    variant: str
    mode: str
    recompute: bool
    vocabulary: int


class _Classifier(nn.Module):
    """A classifier whose input is a tensor of the shape of the tokens."""

    def __init__(self, setting: Setting, size: Size, length: int) -> None:
        super().__init__()
        variant = BASELINE if setting.variant == EAGER else setting.variant
        config = GreenformerConfig(
            vocab_size=setting.vocabulary,
            max_position_embeddings=length,
            hidden_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=size.feed_forward,
            hidden_dropout_prob=size.dropout,
            **slots(variant, rank=size.rank, attention_size=min(size.k, length)),
        )
        self.model = GreenformerForSequenceClassification(config)
        if setting.recompute:
            self.model.activation_checkpointing_enable()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(input_ids=torch.zeros(x.shape, dtype=torch.long, device=x.device)).logits


@cache
def needed(setting: Setting, size: Size, tokens: int, device: str = "cpu") -> float:
    """Bytes of memory for sequences of so many tokens.

    Networks of two and of three layers are traced, as layers are alike. In training each further layer adds as much as
    the third; in inference the tensors of a layer are freed when the next one runs.

    Raises:
        ValueError: A size is out of range, or a variant is not possible.
    """
    training = setting.mode == "training"
    peaks: list[float] = []
    weights: list[int] = []
    for layers in [2, 3] if size.layers > 2 else [size.layers]:
        fewer = replace(size, layers=layers)
        with torch.device("meta"):
            module = _Classifier(setting, fewer, tokens)
        weights.append(sum(parameter.numel() * parameter.element_size() for parameter in module.parameters()))
        if training or len(peaks) == 0:
            # Around the backward pass too: it may compute layers again.
            with attention_by(setting.variant == EAGER):
                traced = trace(
                    partial(_Classifier, setting, fewer, tokens), (size.batch, tokens), training=training, device=device
                )
            peaks.append(traced.peak)
    further = size.layers - 3
    peak, held = (
        figures[-1] + further * (figures[-1] - figures[0]) if len(figures) > 1 else figures[0]
        for figures in (peaks, weights)
    )
    return peak + held * (1 + MOMENTS * training)


def longest(setting: Setting, size: Size, budget: float, device: str = "cpu", *, near: int = 1024) -> int:
    """The most tokens of sequences that fit into so many bytes, or one less; 0 where no sequence fits.

    The need is a polynomial of the tokens, of degree 2 at most, as long as its peak is at the same operation. So the
    root of the one through three lengths is near the answer, if not the answer, and few lengths are traced.

    Args:
        setting: Setting of the row.
        size: Size of the network.
        budget: Budget in bytes.
        device: Device on which the network would run.
        near: Length that is tried first.
    """
    over: dict[int, float] = {}
    # The most tokens that fit and the fewest that do not, so far.
    low, high, guess = MARKERS, math.inf, max(MARKERS + 1, near)
    while high - low > 1 + (low > MARKERS):
        over[guess] = needed(setting, size, guess, device) - budget
        low, high = (guess, high) if over[guess] <= 0 else (low, guess)
        if len(over) == 1:  # as if the need were in proportion to the length
            root = guess * budget / (over[guess] + budget)
        else:
            root = _root(over) if len(over) < _GUESSES else math.nan
        if math.isnan(root):
            guess = 2 * low if high == math.inf else int(low + high) // 2
        else:
            # Rounding must not turn a length that fits into one less.
            root = math.floor(root + 1e-3)
            guess = min(root if root > low else low + 2, 1000 * low if high == math.inf else int(high) - 1)
    return low if low > MARKERS else 0


_GUESSES = 8
"""Number of lengths after which the search only halves: the need is no polynomial."""


def _root(values: Mapping[int, float]) -> float:
    """A root of the polynomial through the three values nearest to 0, or through two; NaN where there is none."""
    points = sorted(values.items(), key=lambda point: abs(point[1]))[:3]
    if len(points) < 2:
        return math.nan
    (x, y), *others = points
    slopes = [(value - y) / (place - x) for place, value in others]
    bend = (slopes[-1] - slopes[0]) / (others[-1][0] - others[0][0]) if len(others) > 1 else 0.0
    slope = slopes[0] - bend * (others[0][0] - x)
    discriminant = slope**2 - 4 * bend * y
    if slope <= 0 or discriminant < 0:
        return math.nan
    return x - 2 * y / (slope + math.sqrt(discriminant))


@dataclass(frozen=True)
class LongestSequence:
    """The result of a row.

    Attributes:
        setting: Setting of the row.
        budget: Budget in bytes.
        tokens: The most tokens that fit, with [CLS] and [SEP].
        nucleotides: Number of nucleotides in these tokens.
    """

    setting: Setting
    budget: float
    tokens: int
    nucleotides: float


def rows(
    variants: Sequence[str], modes: Sequence[str], size: Size, vocabularies: Mapping[int, float], budget: float | None
) -> list[Setting]:
    """All rows: every variant in every mode, in training with and without recomputation, with each vocabulary.

    Args:
        variants: Variants, see `greenformers.model.variant`, and `EAGER`.
        modes: Modes, "inference" or "training" each.
        size: Size of the networks.
        vocabularies: From the size of each vocabulary to the mean number of nucleotides of its tokens.
        budget: Budget in bytes; None for that of `study`.

    Raises:
        ValueError: A value is out of range, or a variant is not possible.
    """
    for name in ("batch", "k", "rank", "hidden", "layers", "heads", "feed_forward"):
        if getattr(size, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(size, name)}")
    if not 0 <= size.dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {size.dropout}")
    if budget is not None and not 0 < budget < math.inf:
        raise ValueError(f"memory must be above 0 GiB, and finite; got {budget / 2**30:g}")
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise ValueError(f"mode must be of {', '.join(MODES)}; got {unknown[0]!r}")
    if not variants or not modes:
        raise ValueError(f"there must be at least one of variants and mode, got {len(variants)} and {len(modes)}")
    settings = [
        Setting(variant, mode, recompute, vocabulary)
        for mode in modes
        for recompute in ((False, True) if mode == "training" else (False,))
        for variant in variants
        for vocabulary in vocabularies
    ]
    with torch.device("meta"):
        for variant in variants:
            _Classifier(Setting(variant, "training", False, 8), replace(size, layers=1), MARKERS + 1)
    return settings


def study(
    settings: Sequence[Setting],
    size: Size,
    vocabularies: Mapping[int, float],
    *,
    budget: float | None = None,
    reference: int = 1024,
    device: str = "cpu",
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[LongestSequence]:
    """Compute the longest sequence of each row.

    Args:
        settings: Settings of the rows, see `rows`.
        size: Size of the networks.
        vocabularies: Vocabularies as in `rows`; the first one sets the budget.
        budget: Budget in bytes; by default the need of eager attention for `reference` nucleotides.
        reference: Number of nucleotides that sets the budget.
        device: Device on which the networks would run.
        progress: Function that is called with the share that is done.
    """
    first = next(iter(vocabularies))
    tokens = round(reference / vocabularies[first]) + MARKERS
    near = tokens
    for number, row in enumerate(settings):
        progress(number / len(settings))
        room = budget or needed(Setting(EAGER, row.mode, False, first), size, tokens, device)
        most = longest(row, size, room, device, near=near)
        # Of the same network with other tokens it is about the same.
        near = most or tokens
        yield LongestSequence(row, room, most, max(0, most - MARKERS) * vocabularies[row.vocabulary])
    progress(1.0)


def records(
    results: Sequence[LongestSequence], size: Size, names: Mapping[int, str], context: dict[str, Any]
) -> list[Record]:
    """A record for each row, with its ratio to eager attention with the first vocabulary, where that is a row.

    Args:
        results: Results of `study`.
        size: Size of the networks.
        names: Names of the vocabularies, such as "subwords".
        context: Context of the records.
    """
    rows = []
    for result in results:
        base = next((reference for reference in results if _reference(reference, result, next(iter(names)))), None)
        ratio = result.nucleotides / base.nucleotides if base and base.nucleotides else None
        setting = {
            "mode": result.setting.mode, "recompute": result.setting.recompute,
            "tokens": names[result.setting.vocabulary], "token_count": result.tokens,
            "memory_gib": round(result.budget / 2**30, 2), **asdict(size),
        }  # fmt: skip
        rows.append(
            Record.of(
                "longest_sequence", result.nucleotides, benchmark="genome_length", variant=result.setting.variant,
                setting=setting, ratio=ratio, to=None if ratio is None else EAGER, source="counted", context=context,
            )
        )  # fmt: skip
    return rows


def _reference(row: LongestSequence, result: LongestSequence, vocabulary: int) -> bool:
    return row.setting == Setting(EAGER, result.setting.mode, False, vocabulary)
