"""The grid of the efficiency study: variants x lengths x ranks. Greenformers thesis, Cahyawijaya 2021, 3.2.

A cell is a variant of one rank at one length. All cells of a length run interleaved, with the dense network beside
them, once with SDPA, which the others are compared with, and once with eager attention.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from greenformers.attention import names
from greenformers.measure.bench_options import MODES as MODES
from greenformers.measure.bench_options import Network
from greenformers.measure.narrower import controlled
from greenformers.model import GreenformerConfig
from greenformers.model.block import layer_of
from greenformers.model.stack import run
from greenformers.model.variant import NARROW, control, rank_option, slots

BASELINE, EAGER = "transformer", "transformer (eager)"


@dataclass(frozen=True)
class Cell:
    """One variant of one rank at one length.

    Attributes:
        variant: Name of the variant, see `greenformers.model.variant`, or `EAGER`.
        rank: Rank of the low-rank linear layers, and of a mechanism that has such an option (`Attention.rank_option`);
            None for a variant that has neither.
        length: Tokens in a sequence, N.
    """

    variant: str
    rank: int | None
    length: int

    @property
    def name(self) -> str:
        """Name of the variant with its rank, for people."""
        return self.variant if self.rank is None else f"{self.variant} {self.rank}"


class Stack(nn.Module):
    """The layers of a cell. Embedding and head are no part of the study.

    Args:
        network: Sizes of the network.
        cell: Variant, rank and length.

    Raises:
        ValueError: Raised where the variant or its sizes cannot be.
    """

    def __init__(self, network: Network, cell: Cell) -> None:
        super().__init__()
        variant = BASELINE if cell.variant == EAGER else cell.variant
        config = GreenformerConfig(
            hidden_size=network.hidden,
            num_attention_heads=network.heads,
            intermediate_size=network.feed_forward,
            num_hidden_layers=network.layers,
            max_position_embeddings=cell.length,
            hidden_dropout_prob=0.0,
            **slots(variant, rank=cell.rank or 1, attention_size=cell.rank, narrow=True),
            **network.slots,
        )

        def layers(config: GreenformerConfig, count: int = 1) -> nn.ModuleList:
            return nn.ModuleList(layer_of(config, at, causal=network.causal) for at in range(count))

        def once(layers: nn.ModuleList, config: GreenformerConfig) -> Tensor:
            return run(layers, torch.randn(1, cell.length, config.hidden_size))[0]

        config = controlled(variant, config, layers, once)  # by one layer, as all are alike
        self.layers, self.width = layers(config, network.layers), config.hidden_size
        self.eager = cell.variant == EAGER

    def forward(self, x: Tensor) -> Tensor:
        """Run all layers, (B, N, d) to (B, N, d); a narrower network reads and gives its first coordinates alone."""
        with attention_by(self.eager):
            return run(self.layers, x if x.shape[-1] == self.width else x[..., : self.width].contiguous())[0]


@contextmanager
def attention_by(eager: bool) -> Iterator[None]:
    """In a `with` block, run attention as two plain products and a softmax where `eager`, else as torch chooses."""
    if not eager:
        yield
        return
    with sdpa_kernel(SDPBackend.MATH):
        yield


def ranked(variant: str) -> bool:
    """Whether a variant has a rank."""
    variant = BASELINE if variant == EAGER else variant
    return slots(variant, rank=1, narrow=True)["rank"] is not None or rank_option(variant) is not None


def variants(causal: bool = False) -> list[str]:
    """Names of all variants but the dense one: low rank, its controls, and each mechanism alone and with low rank.

    Args:
        causal: Whether only variants with a causal form are named.
    """
    choices = ["lrt", *NARROW]
    for name in names():
        if name != "full" and possible(name, causal) is None:
            choices += [name, f"lrt+{name}"]
    return choices


@cache
def possible(variant: str, causal: bool) -> str | None:
    """The reason why a variant cannot be, or None where it can.

    Args:
        variant: Name of the variant.
        causal: Whether the network is causal.
    """
    try:
        rank = 1 if ranked(variant) else None
    except ValueError as error:
        return str(error)
    return _fault(Cell(variant, rank, 8), Network(hidden=8, heads=1, feed_forward=8, layers=1, causal=causal))


def refusal(cell: Cell, network: Network) -> str | None:
    """The reason why a control of low rank cannot be at these sizes, or None where it can, and for other variants.

    It has as many heads as the other networks, and even the narrowest heads may cost more than the low rank.

    Args:
        cell: Variant, rank and length.
        network: Sizes of the network.
    """
    return None if control(cell.variant) is None else _fault(cell, network)


def _fault(cell: Cell, network: Network) -> str | None:
    """The reason why a cell cannot be built, or None where it can."""
    try:
        with torch.device("meta"):
            Stack(network, cell)
    except ValueError as error:
        return str(error)
    return None


def cells(chosen: Sequence[str], lengths: Sequence[int], ranks: Sequence[int], network: Network) -> list[Cell]:
    """All cells, each once, length by length, the two dense ones first.

    Ranks larger than d, and projected lengths larger than N, are left out; controls that cannot be are not, see
    `refusal`.

    Args:
        chosen: Names of variants.
        lengths: Lengths N in tokens.
        ranks: Ranks of each variant that has one.
        network: Sizes that all cells have in common.

    Raises:
        ValueError: Raised where a variant cannot be.
    """
    for variant in chosen:
        if reason := possible(variant, network.causal):
            raise ValueError(reason)
    grid = []
    for length in dict.fromkeys(lengths):
        grid += [Cell(BASELINE, None, length), Cell(EAGER, None, length)]
        for variant in chosen:
            if variant in (BASELINE, EAGER):
                continue
            if not ranked(variant):
                grid.append(Cell(variant, None, length))
                continue
            shortens = rank_option(variant) is not None
            grid += [
                Cell(variant, rank, length)
                for rank in ranks
                if rank <= network.hidden and (not shortens or rank <= length)
            ]
    return list(dict.fromkeys(grid))


def call_of(stack: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """A function that runs a forward pass and returns the sum of its outputs, a scalar with a gradient.

    Args:
        stack: Network, (B, N, d) to (B, N, d).
        x: Input (B, N, d).
    """
    return lambda: stack(x).sum()
