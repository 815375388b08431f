"""Sentences to learn tokens from: pieces of a genome with its common variants. Thesis 5.3.1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from greenformers.genome import encode, variants
from greenformers.genome.diplotype import Haplotype, encoded
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.reference import Reference

if TYPE_CHECKING:
    from numpy.typing import NDArray

STARTS, FIRST, SHORTEST, LONGEST, SENTENCES = 50, 5_000, 500, 1_000, 3_000_000
"""Of the thesis: where reading starts, how often; characters of a sentence; sentences drawn."""


def haplotypes(
    reference: Reference, region: Region, sites: Path | None = None, *, least: float = 0.01
) -> tuple[Haplotype, Haplotype]:
    """The reference, and the reference with the most frequent alternative at every common site.

    Their diplotype is the thesis' "complete diplotype of the chromosome".

    Args:
        reference: the genome.
        region: of it.
        sites: VCF or BCF; people in it do not matter. None: no variants.
        least: frequency of the rarer allele (INFO AF) that makes a site common; a site that dbSNP marks COMMON is.

    Raises:
        ValueError: least is not in 0..0.5.
        GenomeError: a file cannot be used, or no record says how frequent it is.
    """
    if not 0 <= least <= 0.5:
        raise ValueError(f"least must be in 0..0.5, got {least}")
    bases = reference.fetch(region)
    first, second = Haplotype(encoded(bases)), variants.Spelled(Haplotype(encoded(bases)))
    known = sites is None
    for start, ref, alts, about in () if sites is None else variants.sites(sites, region, bases):
        frequencies = frequency(about, len(alts), sites)
        common = "COMMON" in about and about["COMMON"] != "0"
        known = known or common or frequencies is not None
        if frequencies is not None:
            common = common or least <= sum(frequencies) <= 1 - least
        if not common:
            continue
        best = 0 if frequencies is None else int(np.argmax(frequencies))
        edit = variants.edit_of(start, ref, alts[best])
        if edit is not None and edit.bases is not None:
            second.put(edit)
    if not known:
        raise GenomeError(f"{sites}: no record at {region} has a frequency (AF) or is marked COMMON")
    return first, second.haplotype


def frequency(about: dict[str, str], count: int, path: Path | None) -> list[float] | None:
    """Frequencies of the alternatives of a site (INFO AF); None where they are not given.

    Raises:
        GenomeError: they are not numbers in 0..1, or not as many.
    """
    if "AF" not in about:
        return None
    try:
        found = [0.0 if one == "." else float(one) for one in about["AF"].split(",")]
    except ValueError:
        found = []
    what = f"frequencies (AF) of {count} alternatives must be"
    if len(found) != count or not all(0 <= one <= 1 for one in found):
        raise GenomeError(f"{path}: {what} in 0..1, got {about['AF'][:40]!r}")
    # A little more is rounding.
    if sum(found) > 1.001:
        raise GenomeError(f"{path}: {what} at most 1 together, got {about['AF'][:40]!r}")
    return found


def pieces(
    length: int,
    source: np.random.Generator,
    *,
    starts: int = STARTS,
    first: int = FIRST,
    shortest: int = SHORTEST,
    longest: int = LONGEST,
    count: int = SENTENCES,
) -> NDArray[np.int64]:
    """Where sentences begin and end, (n, 2), in the order of their beginnings.

    From each of some beginnings, drawn in 0..first, consecutive pieces of drawn lengths go to the end; of all of them,
    `count` are drawn. Only these numbers are in memory.

    Args:
        length: characters of the sequence.
        source: of what is random.
        starts: beginnings.
        first: the last of them.
        shortest: characters of a piece; the last one of a sequence may be shorter.
        longest: characters.
        count: pieces at most.

    Raises:
        ValueError: a number is below 1, first below 0, or shortest above longest.
    """
    if min(length, starts, shortest, count) < 1 or first < 0 or shortest > longest:
        given = f"{length}, {starts}, {first}, {shortest}..{longest}, {count}"
        raise ValueError(
            f"length, starts, first, shortest and count must be from 1 on (first: 0), in order; got {given}"
        )
    found = []
    for _ in range(starts):
        begin = int(source.integers(0, min(first, length - 1) + 1))
        most = (length - begin) // shortest + 1
        ends = begin + np.cumsum(source.integers(shortest, longest + 1, size=most))
        ends = np.append(ends[ends < length], length)
        found.append(np.stack([np.append(begin, ends[:-1]), ends], axis=1))
    every = np.concatenate(found)
    if count < len(every):
        every = every[source.choice(len(every), size=count, replace=False)]
    return every[np.lexsort((every[:, 1], every[:, 0]))]


def kind_of(path: Path) -> tuple[str, str]:
    """Mode and alphabet of a file that `genome encode` wrote."""
    about = encode.settings_of(path)
    return str(about["mode"]), str(about["alphabet"])


def sentences_of(
    path: Path, seed: int, *, count: int = SENTENCES, share: tuple[int, ...] = tuple(range(20))
) -> Iterator[str]:
    """Sentences of the people of a file that `genome encode` wrote: each sequence once from a drawn beginning on.

    The file is read as the sentences are; it may be larger than memory. Pieces of the first sequences are not more
    likely than others where `count` is less than there are: each is taken with the same probability.

    Args:
        path: of the file.
        seed: of the draw.
        count: sentences, about.
        share: whose sentences: of every 20 people one after the other, these; 0..19.

    Raises:
        GenomeError: it is not such a file, or has nobody.
    """
    if count < 1:
        raise ValueError(f"count of sentences must be at least 1, got {count}")
    source = np.random.default_rng(seed)
    total = sum(len(sequence) for sequence in _sequences(path, share))
    if not total:
        raise GenomeError(f"{path}: has no sequences")
    chance = min(1.0, count * (SHORTEST + LONGEST) / 2 / total)
    for sequence in _sequences(path, share):
        found = pieces(len(sequence), source, starts=1, first=min(LONGEST, len(sequence)))
        for begin, end in found[source.random(len(found)) < chance]:
            yield sequence[begin:end]


def _sequences(path: Path, share: tuple[int, ...]) -> Iterator[str]:
    for number, row in enumerate(encode.load(path)):
        if number % 20 in share:
            yield from (row[name] for name in ("sequence", "first", "second") if row.get(name))


def sentences(sequences: Sequence[str], seed: int, **options: int) -> Iterator[str]:
    """Sentences of all sequences, one after the other; options as of `pieces`, `count` being that of all together."""
    source = np.random.default_rng(seed)
    count = options.pop("count", SENTENCES)
    if count < 1:
        raise ValueError(f"count of sentences must be at least 1, got {count}")
    for number, sequence in enumerate(sequences):
        share = count // len(sequences) + (number < count % len(sequences))
        for begin, end in pieces(len(sequence), source, count=max(1, share), **options):
            yield sequence[begin:end]
