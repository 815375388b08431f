"""Sentences to train on: pieces of a genome with its common variants. Cahyawijaya 2021, 5.3.1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from greenformers.genome import encoded_file, variants
from greenformers.genome.alleles import edit_of
from greenformers.genome.assemblies import is_assembly, samples
from greenformers.genome.diplotype import Haplotype, encoded
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.reference import Reference

if TYPE_CHECKING:
    from numpy.typing import NDArray

STARTS, FIRST, SHORTEST, LONGEST, SENTENCES = 50, 5_000, 500, 1_000, 3_000_000
"""Values of Cahyawijaya 2021: number of starts, last start, shortest and longest sentence in characters, sentences."""


def haplotypes(
    reference: Reference,
    region: Region,
    sites: Path | None = None,
    *,
    least: float = 0.01,
    left_out: list[int] | None = None,
) -> tuple[Haplotype, Haplotype]:
    """The reference, and the reference with the most frequent alternative at every common site.

    Their diplotype is the "complete diplotype of the chromosome" of Cahyawijaya 2021.

    Args:
        reference: The genome.
        region: Region of the genome.
        sites: VCF or BCF file of variants, whose genotypes are not read; None for no variants.
        least: Least frequency of the rarer allele (INFO AF) of a common site; sites that dbSNP marks COMMON are common
            too.
        left_out: Positions, from 1 on the contig, to which those of common sites are added whose most frequent
            alternative is a structural variant: the reference stands there.

    Raises:
        ValueError: `least` is not in 0..0.5.
        GenomeError: A file cannot be used, or no record has a frequency.
    """
    if not 0 <= least <= 0.5:
        raise ValueError(f"least must be in 0..0.5, got {least}")
    bases = reference.fetch(region)
    first, second = Haplotype(encoded(bases)), variants.Spelled(Haplotype(encoded(bases)))
    has_frequencies = sites is None
    for start, ref, alts, info in () if sites is None else variants.sites(sites, region, bases):
        frequencies = frequency(info, len(alts), sites)
        common = "COMMON" in info and info["COMMON"] != "0"
        has_frequencies = has_frequencies or common or frequencies is not None
        if frequencies is not None:
            common = common or least <= sum(frequencies) <= 1 - least
        if not common:
            continue
        best = 0 if frequencies is None else int(np.argmax(frequencies))
        if (edit := edit_of(start, ref, alts[best])) is not None:
            second.put(edit)
        elif left_out is not None and alts[best] not in ("*", "."):
            # N at its positions, often many thousands, would leave out the other sites there.
            left_out.append(region.start + start + 1)
    if not has_frequencies:
        raise GenomeError(f"{sites}: no record at {region} has a frequency (AF) or is marked COMMON")
    return first, second.haplotype


def without_bases(count: int) -> str:
    """One line on sites that were left out."""
    sites = f"{count:,} site{'s' * (count != 1)}"
    return f"left out: {sites} of structural variants, whose bases are not known; the reference stands there"


def frequency(info: dict[str, str], count: int, path: Path | None) -> list[float] | None:
    """Frequencies of the alternatives of a site (INFO AF); None where they are not given.

    Raises:
        GenomeError: The frequencies are not numbers in 0..1, or not one for each alternative.
    """
    if "AF" not in info:
        return None
    try:
        frequencies = [0.0 if value == "." else float(value) for value in info["AF"].split(",")]
    except ValueError:
        frequencies = []
    rule = f"frequencies (AF) of {count} alternatives must be"
    if len(frequencies) != count or not all(0 <= value <= 1 for value in frequencies):
        raise GenomeError(f"{path}: {rule} in 0..1, got {info['AF'][:40]!r}")
    # A little more than 1 is rounding.
    if sum(frequencies) > 1.001:
        raise GenomeError(f"{path}: {rule} at most 1 together, got {info['AF'][:40]!r}")
    return frequencies


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

    From each of `starts` beginnings, drawn in 0..first, the sequence is cut to its end into pieces of random lengths;
    of all pieces, `count` are drawn. Only their ends are in memory.

    Args:
        length: Length of the sequence, in characters.
        source: Generator of the draws.
        starts: Number of beginnings.
        first: Largest beginning.
        shortest: Shortest piece, in characters; the last one of a sequence may be shorter.
        longest: Longest piece, in characters.
        count: Most pieces to draw.

    Raises:
        ValueError: A number is below 1, `first` is below 0, or `shortest` is above `longest`.
    """
    if min(length, starts, shortest, count) < 1 or first < 0 or shortest > longest:
        given = f"{length}, {starts}, {first}, {shortest}..{longest}, {count}"
        raise ValueError(
            f"length, starts, first, shortest and count must be from 1 on (first: 0), in order; got {given}"
        )
    bounds = []
    for _ in range(starts):
        begin = int(source.integers(0, min(first, length - 1) + 1))
        most = (length - begin) // shortest + 1
        ends = begin + np.cumsum(source.integers(shortest, longest + 1, size=most))
        ends = np.append(ends[ends < length], length)
        bounds.append(np.stack([np.append(begin, ends[:-1]), ends], axis=1))
    all_bounds = np.concatenate(bounds)
    if count < len(all_bounds):
        all_bounds = all_bounds[source.choice(len(all_bounds), size=count, replace=False)]
    return all_bounds[np.lexsort((all_bounds[:, 1], all_bounds[:, 0]))]


def kind_of(path: Path) -> tuple[str, str]:
    """Mode and alphabet of a file that `genome encode` wrote, or of a FASTA file of haplotypes."""
    if is_assembly(path):
        return "haplotype", "iupac"
    settings = encoded_file.settings_of(path)
    return str(settings["mode"]), str(settings["alphabet"])


def sentences_of(
    path: Path, seed: int, *, count: int = SENTENCES, share: tuple[int, ...] = tuple(range(20))
) -> Iterator[str]:
    """Sentences of the people of a file: each sequence is cut once, from a random start on.

    A file of `genome encode` is read line by line, and may be larger than memory. Where there are more sentences than
    `count`, each is taken with the same probability.

    Args:
        path: Path of a file that `genome encode` wrote, or of a FASTA file of haplotypes, which is held in memory.
        seed: Seed of the draw.
        count: Approximate number of sentences.
        share: People to read: their places in every 20 consecutive people, 0..19.

    Raises:
        GenomeError: It is not such a file, or has no people.
    """
    if count < 1:
        raise ValueError(f"count of sentences must be at least 1, got {count}")
    source = np.random.default_rng(seed)
    total = sum(len(sequence) for sequence in _sequences(path, share))
    if not total:
        whole = len(share) == 20
        few = f"has too few people for its splits: of every 20 those from {share[0] + 1} to {share[-1] + 1} are one"
        raise GenomeError(f"{path}: {'has no sequences' if whole else few}")
    chance = min(1.0, count * (SHORTEST + LONGEST) / 2 / total)
    for sequence in _sequences(path, share):
        bounds = pieces(len(sequence), source, starts=1, first=min(LONGEST, len(sequence)))
        for begin, end in bounds[source.random(len(bounds)) < chance]:
            yield sequence[begin:end]


def _sequences(path: Path, share: tuple[int, ...]) -> Iterator[str]:
    people = samples(path) if is_assembly(path) else map(_columns, encoded_file.load(path))
    for number, own in enumerate(people):
        if number % 20 in share:
            yield from own


def _columns(row: dict[str, str]) -> list[str]:
    return [row[name] for name in ("sequence", "first", "second") if row.get(name)]


def sentences(sequences: Sequence[str], seed: int, **options: int) -> Iterator[str]:
    """Sentences of all sequences, one after the other; options are those of `pieces`, with `count` for all together.

    Of several beginnings they come in an order by chance: neighbours would be copies of one part of the genome, and
    what is masked in one of them would stand in the next.
    """
    source = np.random.default_rng(seed)
    count = options.pop("count", SENTENCES)
    if count < 1:
        raise ValueError(f"count of sentences must be at least 1, got {count}")
    for number, sequence in enumerate(sequences):
        share = count // len(sequences) + (number < count % len(sequences))
        bounds = pieces(len(sequence), source, count=max(1, share), **options)
        if options.get("starts", STARTS) > 1:
            bounds = source.permutation(bounds)
        for begin, end in bounds:
            yield sequence[begin:end]
