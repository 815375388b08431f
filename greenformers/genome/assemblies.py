"""Haplotypes of assemblies (FASTA), paired by their names: sample#haplotype#contig, as in the human pangenome (PanSN).

A place in an assembly is not a place in the reference; to find it is for an aligner. So haplotypes are taken whole, as
bases. For diplotypes, or a part of the region, they must be aligned: all sequences of the file have one length, with -
for gaps, and one of them is the reference's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from greenformers.genome.diplotype import DEL, Haplotype, N, encoded
from greenformers.genome.files import GenomeError, Region, checked, htslib, matched, told
from greenformers.genome.reference import HELD, Reference

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SUFFIXES = (".fa", ".fasta", ".fna")
_GAP = "-"
# As for reads: the largest share of positions that differ from the reference, and where there are enough to tell.
_DIFFERENT, _ENOUGH = 0.1, 100
# Where nothing is aligned: runs of so many bases of the region, and the least share of them that a sequence has.
_ANCHORS, _RUN, _ALIKE = 200, 16, 0.1


def is_assembly(path: Path) -> bool:
    """Whether a file is one of assemblies, by its name."""
    return path.name.lower().removesuffix(".gz").endswith(_SUFFIXES)


def people(path: Path) -> list[str]:
    """Names of the samples that have two haplotypes in a file.

    Raises:
        GenomeError: The file cannot be read, its sequences have other names, a haplotype has several sequences, or no
            sample has two haplotypes.
    """
    samples = _paired(path, _read(path))
    names = [name for name, haplotypes in samples.items() if len(haplotypes) == 2]
    if not names:
        raise GenomeError(f"{path}: has no sample with two haplotypes, of {len(samples)}")
    return names


def unpaired(path: Path) -> int:
    """Number of samples that do not have two haplotypes in a file.

    Raises:
        GenomeError: As in `people`.
    """
    return sum(len(haplotypes) != 2 for haplotypes in _paired(path, _read(path)).values())


def samples(path: Path) -> Iterator[list[str]]:
    """Bases of all sequences of each sample, without gaps; a sequence with another name is a sample of its own."""
    together: dict[str, list[str]] = {}
    for name, row in _read(path).items():
        together.setdefault(name.split("#")[0], []).append(_bases(row))
    yield from together.values()


def read(
    path: Path, reference: Reference, region: Region, people: Sequence[str], *, aligned: bool
) -> Iterator[tuple[str, tuple[Haplotype, Haplotype]]]:
    """The haplotypes of people, in the order of their names in the file.

    Args:
        path: Path of a FASTA file, which may be packed with gzip.
        reference: The reference.
        region: Region of the reference. Sequences that are not aligned are all of this region, and taken whole.
        people: Names of the people.
        aligned: Whether the haplotypes must have the positions of the reference. Otherwise those that are not aligned
            have positions of their own.

    Raises:
        GenomeError: The file is not as in `people`, a person is not there, the sequences are not aligned though they
            must be, or are of another reference or region.
    """
    rows = _read(path)
    paired = _paired(path, rows)
    for person in people:
        if len(paired.get(person, ())) != 2:
            raise GenomeError(f"{path}: person {person} must have two haplotypes, has {len(paired.get(person, ()))}")
    lengths = {len(row) for row in rows.values()}
    gaps = any(_GAP in row for row in rows.values())
    if len(lengths) > 1 and (aligned or gaps):
        gapped = ", though some have gaps (-)" if gaps else ""
        raise GenomeError(
            f"{path}: sequences of {len(lengths)} lengths are not aligned{gapped}; diplotypes need aligned ones, or "
            "the variants (VCF) that an aligner finds; --mode haplotype takes those without gaps"
        )
    if not aligned and not gaps:
        _check_whole(path, rows, reference, region)
        for person in people:
            first, second = (Haplotype(encoded(_bases(row))) for row in paired[person].values())
            yield person, (first, second)
        return
    row, start = _reference_row(path, rows, reference, region)
    # The position of each column; of a column that the reference does not have, the position before it.
    present = row != ord(_GAP)
    place = np.cumsum(present) - 1 - start
    inside, bases = (place >= 0) & (place < len(region)), encoded(reference.fetch(region))
    for person in people:
        first, second = (
            _aligned(_letters(row)[inside], present[inside], place[inside]) for row in paired[person].values()
        )
        for haplotype in (first, second):
            _check_alike(path, haplotype, bases, reference, region)
        yield person, (first, second)


def _read(path: Path) -> dict[str, str]:
    """The sequences by name, in capitals."""
    name, rows, total = checked(path), dict[str, str](), 0
    with told(path, "no FASTA file that can be read"):
        for record in htslib().FastxFile(name):
            if record.name in rows:
                raise GenomeError(f"{path}: has sequence {record.name} twice")
            rows[record.name] = (record.sequence or "").upper()
            total += len(rows[record.name])
            if not rows[record.name]:
                raise GenomeError(f"{path}: sequence {record.name} is empty")
            if total > HELD:
                raise GenomeError(f"{path}: has more than {HELD:,} bases; cut out the region")
    if not rows:
        raise GenomeError(f"{path}: has no sequence")
    return rows


def _paired(path: Path, rows: dict[str, str]) -> dict[str, dict[str, str]]:
    """The sequence of each haplotype of each sample, haplotypes in the order of their names."""
    paired: dict[str, dict[str, str]] = {}
    for name, row in rows.items():
        parts = name.split("#", 2)
        if len(parts) < 2 or not all(parts[:2]):
            raise GenomeError(f"{path}: sequences must be named sample#haplotype#contig, got {name[:40]!r}")
        sample, haplotype = parts[:2]
        own = paired.setdefault(sample, {})
        if haplotype in own:
            raise GenomeError(f"{path}: haplotype {haplotype} of {sample} must be one sequence, has several")
        own[haplotype] = row
    return {sample: dict(sorted(own.items())) for sample, own in paired.items()}


def _bases(row: str) -> str:
    return re.sub("[^ACGT]", "N", row.replace(_GAP, ""))


def _letters(row: str) -> NDArray[np.uint8]:
    return np.frombuffer(row.encode("latin-1", "replace"), dtype=np.uint8)


def _part(name: str, length: int) -> Region | None:
    """The region in the name of a sequence, whose first position is from 0 or from 1, by its length."""
    match = re.fullmatch(r"(?:[^#]*#){0,2}(.+):(\d+)-(\d+)", name, flags=re.ASCII)
    if match is None:
        return None
    end = int(match[3])
    return Region(match[1], end - length, end) if end - int(match[2]) in (length, length - 1) else None


def _check_whole(path: Path, rows: dict[str, str], reference: Reference, region: Region) -> None:
    """Raise GenomeError where sequences are of the region's contig, but none of the region, or of another reference.

    And where one has hardly a base of the region, by runs of bases: another gene, or the other strand.
    """
    parts = {name: _part(name, len(row)) for name, row in rows.items()}
    same = {name: part for name, part in parts.items() if part and matched(region.contig, [part.contig])}
    exact = [name for name, part in same.items() if (part.start, part.end) == (region.start, region.end)]
    if same and not exact:
        listed = ", ".join(str(part) for part in list(same.values())[:3])
        raise GenomeError(f"{path}: is not aligned, and taken whole: the region must be {listed}, got {region}")
    for name in exact:
        _check_same(path, _bases(rows[name]), reference, region)
    anchors = _anchors(reference.fetch(region))
    for name, row in rows.items():
        if len(row) < _ENOUGH or len(anchors) < _ANCHORS // 10:
            continue
        bases = _bases(row)
        here, turned = (sum(anchor in strand for anchor in anchors) for strand in (bases, _other_strand(bases)))
        if here < _ALIKE * len(anchors):
            reason = "is on the other strand" if turned > here else f"has none of the bases of {region}"
            raise GenomeError(f"{path}: sequence {name} {reason}, though it is not aligned and taken whole")


def _anchors(bases: str) -> list[str]:
    """Runs of known bases at equal distances, by which a sequence of the region is told from others."""
    starts = range(0, len(bases) - _RUN + 1, max(1, len(bases) // _ANCHORS))
    return [run for start in starts if "N" not in (run := bases[start : start + _RUN])]


def _other_strand(bases: str) -> str:
    return bases[::-1].translate(str.maketrans("ACGT", "TGCA"))


def _check_same(path: Path, bases: str, reference: Reference, region: Region) -> None:
    pairs = zip(bases, reference.fetch(region), strict=True)
    if any(theirs != here for theirs, here in pairs if "N" not in (theirs, here)):
        raise GenomeError(
            f"{path}: is not of this reference, its sequence of {region} differs from {reference.path.name}"
        )


def _reference_row(
    path: Path, rows: dict[str, str], reference: Reference, region: Region
) -> tuple[NDArray[np.uint8], int]:
    """The reference's row of an alignment, and the index of the region's first position among its bases."""
    for name, row in rows.items():
        bases = _bases(row)
        part = _part(name, len(bases))
        if part is None or matched(region.contig, [part.contig]) is None:
            continue
        start = region.start - part.start
        if start >= 0 and region.end <= part.end:
            _check_same(path, bases[start : start + len(region)], reference, region)
            return _letters(row), start
    whole = reference.fetch(region)
    for row in rows.values():
        if _bases(row) == whole:
            return _letters(row), 0
    raise GenomeError(f"{path}: must have the reference as one of its aligned sequences, none is of {region}")


def _aligned(row: NDArray[np.uint8], present: NDArray[np.bool_], place: NDArray[np.int64]) -> Haplotype:
    """A row of an alignment as a haplotype: its bases where the reference has one, and those inserted between."""
    gap, codes = row == ord(_GAP), encoded(row.tobytes().decode("latin-1"))
    inserted: dict[int, NDArray[np.uint8]] = {}
    extra = ~present & ~gap
    for after in np.unique(place[extra]):
        inserted[int(after) + 1] = codes[extra & (place == after)]
    return Haplotype(np.where(gap, np.uint8(DEL), codes)[present], inserted)


def _check_alike(
    path: Path, haplotype: Haplotype, bases: NDArray[np.uint8], reference: Reference, region: Region
) -> None:
    both = (haplotype.bases < N) & (bases < N)
    different = int((haplotype.bases[both] != bases[both]).sum())
    if both.sum() >= _ENOUGH and different > _DIFFERENT * both.sum():
        share = f"{100 * different / both.sum():.0f} % of the bases of a haplotype at {region} differ"
        raise GenomeError(f"{path}: is not aligned to {reference.path.name}, {share}")
