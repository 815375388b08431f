"""The longest sequence a network can take within a memory budget. Thesis 5.4.3, table 5.3.

The budget is what the dense transformer with eager attention needs for 1,024 nucleotides, one a token. All that is held
is counted: weights, in training their gradients and AdamW's two moments, and the activations of a classifier of
sequences. Counted from shapes, operation by operation, so that a small machine can answer for a large one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from greenformers import _extras
from greenformers.genome.longest_options import Size
from greenformers.measure.grid import BASELINE, EAGER, MODES, attention_by
from greenformers.measure.record import Record
from greenformers.measure.trace import trace
from greenformers.model import GreenformerConfig
from greenformers.model.heads import GreenformerForSequenceClassification
from greenformers.model.variant import slots

MARKERS = 2
"""[CLS] and [SEP]."""
MOMENTS = 2


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        variant: see `greenformers.model.variant`, or `EAGER`.
        mode: "inference" or "training".
        recompute: in training, activations within a layer are not kept.
        vocabulary: how many different tokens there are.
    """

    variant: str
    mode: str
    recompute: bool
    vocabulary: int


class _Classifier(nn.Module):
    """From a tensor that is only a shape to logits."""

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
    """Bytes for sequences of so many tokens.

    Layers are alike: two and three are looked at. In training each further one adds what the third does; in inference
    a layer's tensors are gone when the next one runs.

    Raises:
        ValueError: a size out of range, or a variant that cannot be.
    """
    training = setting.mode == "training"
    peaks: list[float] = []
    weights: list[int] = []
    for layers in [2, 3] if size.layers > 2 else [size.layers]:
        one = replace(size, layers=layers)
        with torch.device("meta"):
            module = _Classifier(setting, one, tokens)
        weights.append(sum(each.numel() * each.element_size() for each in module.parameters()))
        if training or len(peaks) == 0:
            # Around the backward pass too: it may compute layers again.
            with attention_by(setting.variant == EAGER):
                found = trace(
                    partial(_Classifier, setting, one, tokens), (size.batch, tokens), training=training, device=device
                )
            peaks.append(found.peak)
    further = size.layers - 3
    peak, held = (one[-1] + further * (one[-1] - one[0]) if len(one) > 1 else one[0] for one in (peaks, weights))
    return peak + held * (1 + MOMENTS * training)


def longest(setting: Setting, size: Size, budget: float, device: str = "cpu") -> int:
    """The most tokens whose sequences fit into so many bytes, or one less; 0 where no sequence does."""

    def over(tokens: float) -> float:
        return needed(setting, size, round(tokens), device) - budget

    if over(MARKERS + 1) > 0:
        return 0
    low, high = MARKERS + 1, 1024
    while over(high) <= 0:
        low, high = high, 2 * high
    optimize: Any = _extras.needed("the longest sequence", "genome", "scipy", "scipy.optimize")
    found = round(optimize.brentq(over, low, high, xtol=0.5))
    while over(found) > 0:
        found -= 1
    return found


@dataclass(frozen=True)
class Found:
    """A row's answer.

    Attributes:
        setting: which row.
        budget: bytes.
        tokens: the most that fit, [CLS] and [SEP] too.
        nucleotides: what these tokens stand for.
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
        variants: of `greenformers.model.variant`, and `EAGER`.
        modes: "inference", "training".
        size: of the networks.
        vocabularies: number of tokens to the nucleotides one stands for on average.
        budget: bytes; None: see `study`.

    Raises:
        ValueError: a value out of range, or a variant that cannot be.
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
    found = [
        Setting(variant, mode, recompute, vocabulary)
        for mode in modes
        for recompute in ((False, True) if mode == "training" else (False,))
        for variant in variants
        for vocabulary in vocabularies
    ]
    with torch.device("meta"):
        for variant in variants:
            _Classifier(Setting(variant, "training", False, 8), replace(size, layers=1), MARKERS + 1)
    return found


def study(
    wanted: Sequence[Setting],
    size: Size,
    vocabularies: Mapping[int, float],
    *,
    budget: float | None = None,
    reference: int = 1024,
    device: str = "cpu",
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[Found]:
    """Answer rows.

    Args:
        wanted: of `rows`.
        size: of the networks.
        vocabularies: as `rows`; the first sets the budget.
        budget: bytes; by default what eager attention needs for `reference` nucleotides.
        reference: nucleotides.
        device: on which it would run.
        progress: told the share that is done.
    """
    first = next(iter(vocabularies))
    tokens = round(reference / vocabularies[first]) + MARKERS
    for number, row in enumerate(wanted):
        progress(number / len(wanted))
        room = budget or needed(Setting(EAGER, row.mode, False, first), size, tokens, device)
        most = longest(row, size, room, device)
        yield Found(row, room, most, max(0, most - MARKERS) * vocabularies[row.vocabulary])
    progress(1.0)


def records(found: Sequence[Found], size: Size, names: Mapping[int, str], about: dict[str, Any]) -> list[Record]:
    """A record a row, with its ratio to eager attention with the first kind of tokens, where that is a row.

    Args:
        found: of `study`.
        size: of the networks.
        names: of the vocabularies, "subwords".
        about: context of the records.
    """
    made = []
    for one in found:
        base = next((row for row in found if _reference(row, one, next(iter(names)))), None)
        ratio = one.nucleotides / base.nucleotides if base and base.nucleotides else None
        setting = {
            "mode": one.setting.mode, "recompute": one.setting.recompute, "tokens": names[one.setting.vocabulary],
            "token_count": one.tokens, "memory_gib": round(one.budget / 2**30, 2), **asdict(size),
        }  # fmt: skip
        made.append(
            Record.of(
                "longest_sequence", one.nucleotides, benchmark="genome_length", variant=one.setting.variant,
                setting=setting, ratio=ratio, to=None if ratio is None else EAGER, source="counted", context=about,
            )
        )  # fmt: skip
    return made


def _reference(row: Found, one: Found, vocabulary: int) -> bool:
    return row.setting == Setting(EAGER, one.setting.mode, False, vocabulary)
