"""Encoded people with phenotypes: which part of the region, and who is in which split. Thesis 5.3.1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from greenformers.genome import encode
from greenformers.genome.cohort import Cohort, Person
from greenformers.genome.diplotype import DEL, N, pairs_of, places, symbols, text
from greenformers.genome.files import GenomeError, Region, matched

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class People:
    """Everybody's diplotype of a region, and phenotype.

    Attributes:
        region: where.
        alphabet: of the diplotypes.
        names: of the people.
        pairs: everybody's pairs, (m,) each.
        labels: 1 for the phenotype that is predicted, the last one in the order of the alphabet.
        phenotypes: both, that one last.
    """

    region: Region
    alphabet: str
    names: list[str]
    pairs: list[NDArray[np.uint8]]
    labels: NDArray[np.int64]
    phenotypes: list[str]

    @classmethod
    def load(cls, path: Path, region: str | None = None) -> People:
        """From what `genome encode` wrote with a cohort.

        Args:
            path: of the file.
            region: part of its region; None: all of it.

        Raises:
            GenomeError: it is no such file, is damaged, has no phenotypes or not two of them, somebody twice, or not
                this region.
        """
        about = encode.settings_of(path)
        if about["mode"] != "diplotype":
            raise GenomeError(f"{path}: must hold diplotypes, holds {about['mode']}s")
        alphabet, (whole, part) = str(about["alphabet"]), part_of(path, region)
        names, pairs, phenotypes = [], [], []
        for number, row in enumerate(encode.load(path), start=3):
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
        known = sorted(set(phenotypes))
        if len(known) != 2:
            raise GenomeError(f"{path}: must have two phenotypes, has {len(known)}")
        labels = np.array([known.index(one) for one in phenotypes])
        return cls(Region(whole.contig, part.start, part.end), alphabet, names, pairs, labels, known)

    def text(self, number: int) -> str:
        """The characters of a person's diplotype."""
        return text(self.pairs[number], self.alphabet)

    def splits(self, seed: int, valid: float, test: float) -> dict[str, list[int]]:
        """Numbers of the people in train, valid and test; see `Cohort.splits`."""
        numbers = {name: number for number, name in enumerate(self.names)}
        people = [Person(name, self.phenotypes[label]) for name, label in zip(self.names, self.labels, strict=True)]
        found = Cohort(people, self.phenotypes).splits(seed, valid=valid, test=test)
        return {split: [numbers[person.name] for person in some] for split, some in found.items()}

    def counts(self) -> tuple[NDArray[np.int8], list[tuple[int, str]]]:
        """How many of each symbol everybody has, where people differ.

        Returns:
            Counts 0, 1 or 2, (people, features); of each feature its position in the genome, from 1, and its symbol:
            A, C, G, T, N, DEL, or + for one inserted after it. At a position the most frequent symbol has no feature.
        """
        length = len(self.region)
        kinds = ("A", "C", "G", "T", "N", "DEL", "+")
        found = np.zeros((len(self.pairs), length, len(kinds)), dtype=np.int8)
        for number, pairs in enumerate(self.pairs):
            both, place = symbols(pairs), places(pairs)
            for side in both.T:
                base, inserted = (side <= N) | (side == DEL), (side > N) & (side < DEL)
                # An inserted column's own DEL is not one of the position.
                own = base & (np.diff(place, prepend=-1) > 0)
                found[number, place[own], np.where(side[own] == DEL, N + 1, side[own])] += 1
                found[number, place[inserted], N + 2] = 1
        total = found.sum(axis=0, dtype=np.int64)
        varied = (found != found[:1]).any(axis=0)
        varied[np.arange(length), total.argmax(axis=1)] = False
        where = np.argwhere(varied)
        return found[:, varied], [(self.region.start + int(place) + 1, kinds[kind]) for place, kind in where]


def part_of(path: Path, region: str | None) -> tuple[Region, Region]:
    """The region of an encoded file, and a part of it; None: all of it.

    Raises:
        GenomeError: it is no such file, or the part is not within.
    """
    whole = Region.parse(str(encode.settings_of(path)["region"]))
    part = whole if region is None else Region.parse(region)
    same = matched(part.contig, [whole.contig]) is not None
    if not same or not whole.start <= part.start < part.end <= whole.end:
        raise GenomeError(f"{path}: has {whole}; {part} is not within")
    return whole, part


def _second(names: list[str]) -> int:
    """Where a name is for the second time."""
    first = {name: number for number, name in reversed(list(enumerate(names)))}
    return next(number for number, name in enumerate(names) if first[name] != number)


def cut(pairs: NDArray[np.uint8], start: int, end: int) -> NDArray[np.uint8]:
    """The columns at the positions start..end - 1, what is inserted after them too."""
    place = places(pairs)
    return pairs[(place >= start) & (place < end)]
