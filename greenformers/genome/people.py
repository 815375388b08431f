"""Encoded people with phenotypes, for a part of the region, and their splits. Cahyawijaya 2021, 5.3.1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from greenformers.genome import encoded_file
from greenformers.genome.cohort import Cohort, Person
from greenformers.genome.diplotype import DEL, N, pairs_of, places, symbols, text
from greenformers.genome.files import GenomeError, Region, matched

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = ("A", "C", "G", "T", "N", "DEL", "+")
"""Symbols that are counted at a position: the codes up to N, a deleted base, and an insertion after it."""


@dataclass(frozen=True)
class People:
    """Diplotypes of people for a region, and their phenotypes.

    Attributes:
        region: The region.
        alphabet: Alphabet of the diplotypes.
        names: Names of the people.
        pairs: Pairs of each person, (m,).
        labels: Label of each person, 1 for the phenotype that is predicted.
        phenotypes: Both phenotypes, the predicted one last.
    """

    region: Region
    alphabet: str
    names: list[str]
    pairs: list[NDArray[np.uint8]]
    labels: NDArray[np.int64]
    phenotypes: list[str]

    @classmethod
    def load(cls, path: Path, region: str | None = None, *, disease: str | None = None) -> People:
        """Load a file that `genome encode` wrote with a cohort.

        Args:
            path: Path of the file.
            region: Part of the file's region; None for all of it.
            disease: Phenotype that is predicted; None for the last one in alphabetical order.

        Raises:
            GenomeError: It is no such file, is damaged, has no phenotypes or not two of them, has a person twice, or
                does not hold the region or the disease.
        """
        settings = encoded_file.settings_of(path)
        if settings["mode"] != "diplotype":
            raise GenomeError(f"{path}: must hold diplotypes, holds {settings['mode']}s")
        alphabet, (whole, part) = str(settings["alphabet"]), part_of(path, region)
        names, pairs, phenotypes = [], [], []
        for number, row in enumerate(encoded_file.load(path), start=3):
            if "phenotype" not in row:
                raise GenomeError(f"{path}: has no phenotypes; encode with --cohort")
            names.append(row["person"])
            phenotypes.append(row["phenotype"])
            try:
                own = pairs_of(row["sequence"], alphabet)
            except ValueError as error:
                raise GenomeError(f"{path}: line {number}: {error}") from error
            if int(places(own).max(initial=-1)) + 1 != len(whole):
                raise GenomeError(f"{path}: line {number} must have the {len(whole):,} positions of {whole}")
            pairs.append(cut(own, part.start - whole.start, part.end - whole.start))
        if len(set(names)) < len(names):
            raise GenomeError(f"{path}: line {_second(names) + 3} is of a person who is there already")
        distinct = sorted(set(phenotypes))
        if len(distinct) != 2:
            raise GenomeError(f"{path}: must have two phenotypes, has {len(distinct)}")
        if disease is not None:
            if disease not in distinct:
                raise GenomeError(f"{path}: disease must be one of {', '.join(distinct)}; got {disease!r}")
            distinct.sort(key=lambda phenotype: phenotype == disease)
        labels = np.array([distinct.index(phenotype) for phenotype in phenotypes])
        return cls(Region(whole.contig, part.start, part.end), alphabet, names, pairs, labels, distinct)

    def text(self, number: int) -> str:
        """The characters of a person's diplotype."""
        return text(self.pairs[number], self.alphabet)

    def splits(self, seed: int, valid: float, test: float) -> dict[str, list[int]]:
        """Indices of the people in train, valid and test, see `Cohort.splits`."""
        numbers = {name: number for number, name in enumerate(self.names)}
        people = [Person(name, self.phenotypes[label]) for name, label in zip(self.names, self.labels, strict=True)]
        parts = Cohort(people, self.phenotypes).splits(seed, valid=valid, test=test)
        return {split: [numbers[person.name] for person in members] for split, members in parts.items()}

    def counts(self) -> tuple[NDArray[np.int8], list[tuple[int, str]]]:
        """Counts of each symbol of each person, where people differ.

        Returns:
            Counts 0, 1 or 2, (people, features), and for each feature its position in the genome, from 1, and its
            symbol: A, C, G, T, N, DEL, or + for an insertion after it, however long. The most frequent of a position's
            other symbols has no feature.
        """
        length = len(self.region)
        first = _counts(self.pairs[0], length)
        total, varied = np.zeros((length, N + 2), np.int64), np.zeros(first.shape, np.bool_)
        for pairs in self.pairs:
            own = _counts(pairs, length)
            total += own[:, : N + 2]
            varied |= own != first
        varied[np.arange(length), total.argmax(axis=1)] = False
        # Counted again: where nobody differs they would take many times the memory of all the pairs.
        counts = np.stack([_counts(pairs, length)[varied] for pairs in self.pairs])
        return counts, [(self.region.start + int(place) + 1, KINDS[kind]) for place, kind in np.argwhere(varied)]


def _counts(pairs: NDArray[np.uint8], length: int) -> NDArray[np.int8]:
    """Counts 0, 1 or 2 of each symbol of `KINDS` at the positions of a person, (positions, 7)."""
    counts = np.zeros((length, len(KINDS)), dtype=np.int8)
    both, place = symbols(pairs), places(pairs)
    for side in both.T:
        # An inserted column's own DEL is not one of the position.
        own = ((side <= N) | (side == DEL)) & (np.diff(place, prepend=-1) > 0)
        counts[place[own], np.where(side[own] == DEL, N + 1, side[own])] += 1
    # Of an insertion of several bases the column that most haplotypes have tells how many have it.
    np.maximum.at(counts[:, N + 2], place, ((both > N) & (both < DEL)).sum(axis=1, dtype=np.int8))
    return counts


def part_of(path: Path, region: str | None) -> tuple[Region, Region]:
    """The region of an encoded file, and a part of it, where `region` is None all of it.

    Raises:
        GenomeError: The file is not one of `genome encode`, or the part is not within its region.
    """
    whole = Region.parse(str(encoded_file.settings_of(path)["region"]))
    part = whole if region is None else Region.parse(region)
    same = matched(part.contig, [whole.contig]) is not None
    if not same or not whole.start <= part.start < part.end <= whole.end:
        raise GenomeError(f"{path}: has {whole}; {part} is not within")
    return whole, part


def _second(names: list[str]) -> int:
    """Index of the first name that is there for the second time."""
    first = {name: number for number, name in reversed(list(enumerate(names)))}
    return next(number for number, name in enumerate(names) if first[name] != number)


def cut(pairs: NDArray[np.uint8], start: int, end: int) -> NDArray[np.uint8]:
    """The columns at the positions start..end - 1, with those inserted after them."""
    place = places(pairs)
    return pairs[(place >= start) & (place < end)]
