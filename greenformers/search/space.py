"""The recipes that a search may try: of each change one of its settings or none, in the order of a command line.

A recipe is a row of numbers, one for each change: 0 where it is left out, else which of its settings, the mildest
being 1. Two neighbouring numbers are two neighbouring settings, so that steps are small ones.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import log2

from torch import nn

from greenformers.advise.in_runtime import TORCH
from greenformers.changes import Change, Given, kinds
from greenformers.checkpoint.structure import changes_of
from greenformers.compress.apply import check

Genes = tuple[int, ...]
"""The number of the setting of each change of a space; 0 for none."""

TRIES = 50
"""Draws after which a legal row of numbers is given up."""


@dataclass(frozen=True)
class Space:
    """The settings of each change, the mildest first.

    Attributes:
        slots: The settings of each change, in the order in which changes are applied.
        legal: Function that says whether a recipe can be applied to the network.
        refused: Changes that can be applied in no setting, each with the reason.
        left: The share of the work of matrix products that each setting leaves, see `Change.products_left`.
    """

    slots: tuple[tuple[Change, ...], ...]
    legal: Callable[[Genes], bool]
    refused: tuple[tuple[Change, str], ...] = ()
    left: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def of(
        cls, model: nn.Module, given: Given, *, length: int, causal: bool, heals: bool = True, runtime: str = TORCH
    ) -> "Space":
        """The space of a network.

        Args:
            model: The network.
            given: Data and settings that changes may use.
            length: Tokens of a text.
            causal: Whether the network is a decoder.
            heals: Whether recipes will be healed; without it changes that need healing are left out.
            runtime: Runtime of the recipes; changes that are of use in torch alone are left out for another one.

        Raises:
            ValueError: No change can be applied.
        """
        slots, refused = [], []
        for kind in sorted(kinds(), key=lambda kind: kind.order):
            if (kind.needs_healing and not heals) or (kind.in_torch and runtime != TORCH):
                continue
            settings = kind.searched(model, length=length, causal=causal, heals=heals)
            settings = [change.fitted(model, length) for change in settings]
            reasons = [_unfit(model, [change], given) for change in settings]
            if fit := [change for change, why in zip(settings, reasons, strict=True) if why is None]:
                slots.append(tuple(fit))
            elif settings:
                refused.append((settings[0], str(reasons[0])))
        if not slots:
            raise ValueError("; ".join(["no change of the search can be applied", *(why for _, why in refused)]))
        whole = tuple(slots)
        # Each change was checked alone, which runs the network. What excludes what depends on their kinds.
        legal = cache(lambda there: _in_order(model, _recipe(whole, there)))
        left = tuple(tuple(change.products_left(model) for change in slot) for slot in slots)
        return cls(whole, lambda genes: legal(tuple(map(bool, genes))), tuple(refused), left)

    @property
    def nothing(self) -> Genes:
        """The network as it is."""
        return (0,) * len(self.slots)

    def recipe(self, genes: Genes) -> tuple[Change, ...]:
        """The changes of a row of numbers, in order."""
        return _recipe(self.slots, genes)

    def strengths(self, genes: Genes) -> list[float]:
        """How strong the setting of each change is, from 0, none, to 1, its strongest."""
        return [gene / len(slot) for gene, slot in zip(genes, self.slots, strict=True)]

    def reductions(self, genes: Genes) -> list[float]:
        """How often each setting halves the work of matrix products; how strong it is where that is not known."""
        left = self.left or tuple((1.0,) * len(slot) for slot in self.slots)
        own = (shares[gene - 1] if gene else 1.0 for gene, shares in zip(genes, left, strict=True))
        return [-log2(x) if x < 1 else s for x, s in zip(own, self.strengths(genes), strict=True)]

    def singles(self) -> list[Genes]:
        """Each change alone: all at their middle setting, then at their mildest, then at their strongest.

        Those that round come first: they are made at once and lose least, and a short search may end after a few.
        """
        levels = [((len(slot) + 1) // 2, 1, len(slot)) for slot in self.slots]
        rows = [
            self._one(place, gene)
            for genes in zip(*levels, strict=True)
            for place, gene in sorted(enumerate(genes), key=lambda row: not self.slots[row[0]][0].freezes)
        ]
        return [row for row in dict.fromkeys(rows) if self.legal(row)]

    def alone(self) -> list[Genes]:
        """Each change that takes something away, alone, at its middle setting."""
        slots = [(place, slot) for place, slot in enumerate(self.slots) if not slot[0].freezes]
        rows = [self._one(place, (len(slot) + 1) // 2) for place, slot in slots]
        return [row for row in rows if self.legal(row)]

    def _one(self, place: int, gene: int) -> Genes:
        """One change and no other."""
        return tuple(gene if at == place else 0 for at in range(len(self.slots)))

    def drawn(self, draw: random.Random) -> Genes:
        """A legal recipe by chance: each change is in it half of the time."""
        for _ in range(TRIES):
            genes = tuple(draw.randint(1, len(slot)) if draw.random() < 0.5 else 0 for slot in self.slots)
            if any(genes) and self.legal(genes):
                return genes
        return draw.choice(self.singles())

    def mutated(self, genes: Genes, draw: random.Random) -> Genes:
        """A legal neighbour: some numbers a step up or down, and now and then a change put in or left out."""
        for _ in range(TRIES):
            row = list(genes)
            for place, slot in enumerate(self.slots):
                if draw.random() < 1 / len(row):
                    row[place] = draw.randint(0, len(slot))
                elif row[place] and draw.random() < 0.5:
                    row[place] = min(len(slot), max(0, row[place] + draw.choice((-1, 1))))
            if tuple(row) != genes and any(row) and self.legal(tuple(row)):
                return tuple(row)
        return self.drawn(draw)

    def crossed(self, first: Genes, second: Genes, draw: random.Random) -> Genes:
        """A legal recipe that has each number of one of two."""
        for _ in range(TRIES):
            row = tuple(draw.choice(pair) for pair in zip(first, second, strict=True))
            if any(row) and self.legal(row):
                return row
        return first


def changed(genes: Genes) -> list[int]:
    """The places of the changes that are in a recipe."""
    return [place for place, gene in enumerate(genes) if gene]


def _recipe(slots: Sequence[Sequence[Change]], genes: Genes) -> tuple[Change, ...]:
    return tuple(slot[gene - 1] for gene, slot in zip(genes, slots, strict=True) if gene)


def _in_order(model: nn.Module, changes: Sequence[Change]) -> bool:
    """Whether changes can follow each other."""
    earlier = list(changes_of(model))
    for change in changes:
        try:
            change.check_order(earlier)
        except ValueError:
            return False
        earlier += change.traces
    return True


def _unfit(model: nn.Module, changes: Sequence[Change], given: Given) -> str | None:
    """Why changes cannot be applied; None where they can."""
    try:
        check(model, changes, given)
    except ValueError as error:
        return str(error)
    return None
