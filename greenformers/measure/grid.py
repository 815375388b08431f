"""The efficiency study: variants x lengths x ranks, in inference and training. Thesis 3.2.

A cell is a variant of one size at one length. All cells of a length run interleaved, with the dense network beside
them, once with SDPA (what the others are compared with) and once with eager attention.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from greenformers.attention import names
from greenformers.measure.bench_options import MODES as MODES
from greenformers.measure.bench_options import Network
from greenformers.model import GreenformerConfig
from greenformers.model.block import layer_of
from greenformers.model.stack import run
from greenformers.model.variant import rank_option, slots

BASELINE, EAGER = "transformer", "transformer (eager)"


@dataclass(frozen=True)
class Cell:
    """One variant of one size at one length.

    Attributes:
        variant: see `greenformers.model.variant`, or `EAGER`.
        rank: of the low-rank maps, and of a mechanism that has such an option (`Attention.rank_option`); None for a
            variant that has neither.
        length: N.
    """

    variant: str
    rank: int | None
    length: int

    @property
    def name(self) -> str:
        """How people call it."""
        return self.variant if self.rank is None else f"{self.variant} {self.rank}"


class Stack(nn.Module):
    """The layers of a cell, without embedding and head, which are no part of the study."""

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
            **slots(variant, rank=cell.rank or 1, attention_size=cell.rank),
            **network.slots,
        )
        self.layers = nn.ModuleList(layer_of(config, at, causal=network.causal) for at in range(network.layers))
        self.eager = cell.variant == EAGER

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, d) to (B, N, d)."""
        with attention_by(self.eager):
            return run(self.layers, x)[0]


@contextmanager
def attention_by(eager: bool) -> Iterator[None]:
    """Scaled dot product attention by two plain products and a softmax in a `with` block, where `eager`."""
    if not eager:
        yield
        return
    with sdpa_kernel(SDPBackend.MATH):
        yield


def ranked(variant: str) -> bool:
    """True if a variant has a rank."""
    variant = BASELINE if variant == EAGER else variant
    return slots(variant, rank=1)["rank"] is not None or rank_option(variant) is not None


def variants(causal: bool = False) -> list[str]:
    """Every variant that can be: the dense one, low rank, each mechanism alone and with low rank."""
    found = ["lrt"]
    for name in names():
        if name != "full" and possible(name, causal) is None:
            found += [name, f"lrt+{name}"]
    return found


def possible(variant: str, causal: bool) -> str | None:
    """Why a variant cannot be, or None where it can."""
    network = Network(hidden=8, heads=1, feed_forward=8, layers=1, causal=causal)
    try:
        with torch.device("meta"):
            Stack(network, Cell(variant, 1 if ranked(variant) else None, 8))
    except ValueError as error:
        return str(error)
    return None


def cells(chosen: Sequence[str], lengths: Sequence[int], ranks: Sequence[int], network: Network) -> list[Cell]:
    """All cells, length by length, the two dense ones first.

    Ranks larger than d, and projected lengths larger than N, are left out.

    Raises:
        ValueError: a variant that cannot be.
    """
    for variant in chosen:
        if reason := possible(variant, network.causal):
            raise ValueError(reason)
    found = []
    for length in lengths:
        found += [Cell(BASELINE, None, length), Cell(EAGER, None, length)]
        for variant in chosen:
            if variant in (BASELINE, EAGER):
                continue
            if not ranked(variant):
                found.append(Cell(variant, None, length))
                continue
            shortens = rank_option(variant) is not None
            found += [
                Cell(variant, rank, length)
                for rank in ranks
                if rank <= network.hidden and (not shortens or rank <= length)
            ]
    return found


def call_of(stack: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """A forward pass to a number that can be differentiated."""
    return lambda: stack(x).sum()
