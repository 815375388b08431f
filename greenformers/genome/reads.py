"""Aligned reads (BAM, CRAM) to a diplotype: the two symbols most reads have at every position. Thesis 5.3.1.

Which reads and bases count is as in `samtools mpileup -B`: no unmapped, secondary, failed or duplicate ones, no orphans
of a pair, base quality 13. The two mates of a fragment count once where they overlap: where they differ, the better
base, and neither where both are as good. A deletion has the quality of the base after it, an insertion that of the base
before it. A base N counts as nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from greenformers.genome.diplotype import DEL, INSERTED, PAIR, N, encoded, with_columns
from greenformers.genome.files import INDEXES, GenomeError, Region, checked, htslib, index_of, named, told
from greenformers.genome.reference import Reference

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Unmapped, secondary, failed, duplicate; paired, and paired as expected.
_LEFT_OUT, _PAIRED, _PROPER = 0x704, 0x1, 0x2
# Of the CIGAR: what is aligned, by whether it advances in the read and in the reference.
_MATCH, _INSERTION, _DELETION, _SKIP, _SOFT = (0, 7, 8), 1, 2, 3, 4
_HELD = 2**22  # bases of reads held at a time
_NOTHING = 5  # what does not count
_LAST = 4  # column of the deletion in counts of positions, of N in counts of inserted bases
_DIFFERENT = 0.1  # share of aligned bases that differ from the reference at most; another genome's differ at 0.75


@dataclass(frozen=True)
class Thresholds:
    """What makes a diplotype of reads.

    Attributes:
        depth: fragments at a position at least; N below.
        count: fragments with the second symbol at least, for it to be there.
        share: of all fragments that have it, at least.
        base_quality: of a base that counts, Phred.
        mapping_quality: of a read that counts, Phred.

    Raises:
        ValueError: one is out of range.
    """

    depth: int = 3
    count: int = 2
    share: float = 0.2
    base_quality: int = 13
    mapping_quality: int = 0

    def __post_init__(self) -> None:
        if self.depth < 1 or self.count < 1:
            raise ValueError(f"depth and count must be at least 1, got {self.depth} and {self.count}")
        if not 0 <= self.share <= 0.5:
            raise ValueError(f"share must be in 0..0.5, got {self.share}")
        for name in ("base_quality", "mapping_quality"):
            if not 0 <= getattr(self, name) <= 93:
                raise ValueError(f"{name} must be in 0..93, got {getattr(self, name)}")


class _Read(NamedTuple):
    name: str
    start: int
    end: int
    bases: bytes
    qualities: bytes
    cigar: list[tuple[int, int]]


@dataclass
class Profile:
    """How many fragments have which symbol.

    Attributes:
        counts: at the n positions of a region, of A, C, G, T and DEL, (n, 5).
        inserted: after a position, by the number of positions before it: of each inserted base how many have A, C, G,
            T and N there, (k, 5).
        different: share of the bases that are not the reference's.
    """

    counts: NDArray[np.int32]
    inserted: dict[int, NDArray[np.int32]]
    different: float


def read(path: Path, reference: Reference, region: Region, thresholds: Thresholds | None = None) -> NDArray[np.uint8]:
    """The diplotype of a region, (m,), by the reads of one person.

    Args:
        path: of a BAM or CRAM file, sorted, with an index.
        reference: what the reads are aligned to.
        region: of the reference.
        thresholds: what counts.

    Raises:
        GenomeError: the file cannot be used: damaged, without index, without reads there, or aligned to something else.
    """
    return called(profile(path, reference, region, thresholds or Thresholds()), thresholds or Thresholds())


def people(path: Path) -> list[str]:
    """Names of the people whose reads a file has (SM of its read groups); that of the file where it names none."""
    with told(path, "no BAM or CRAM file that can be read"), htslib().AlignmentFile(checked(path)) as file:
        groups = file.header.to_dict().get("RG", [])
    return sorted({group["SM"] for group in groups if "SM" in group}) or [path.name.split(".")[0]]


def profile(path: Path, reference: Reference, region: Region, thresholds: Thresholds) -> Profile:
    """How many fragments have which symbol in a region. Memory is O(region + some reads); see `read`."""
    whole = encoded(reference.fetch(region))
    found = Profile(np.zeros((len(region), 5), np.int32), {}, 0.0)
    with told(path, "damaged, or its index is that of another file"):
        for reads, start, end in _stretches(_reads(path, reference, region, thresholds), region):
            part = slice(start - region.start, end - region.start)
            _count(found, reads, start, end, region.start, whole[part], thresholds.base_quality)
    bases = found.counts[:, :4]
    known = whole < N
    same = int(bases[known, whole[known]].sum())
    total = int(bases[known].sum())
    if not found.counts.any():
        raise GenomeError(f"{path}: has no reads at {region}")
    found.different = 1 - same / total if total else 0.0
    if found.different > _DIFFERENT:
        share = f"{100 * found.different:.0f} % of its bases at {region} differ"
        raise GenomeError(f"{path}: is not aligned to {reference.path.name}, {share}")
    return found


def _reads(path: Path, reference: Reference, region: Region, thresholds: Thresholds) -> Iterator[_Read]:
    pysam = htslib()
    name, kind = checked(path), path.suffix.lower()
    if kind not in (".bam", ".cram"):
        raise GenomeError(f"{path}: reads must be in a .bam or .cram file")
    if kind == ".cram":
        # Without it, htslib would make one; where it cannot, it would look for the bases in the network.
        index_of(reference.path, INDEXES[".fa"])
    given = {"reference_filename": str(reference.path.resolve())} if kind == ".cram" else {}
    with pysam.AlignmentFile(name, **given) as file:
        order = file.header.to_dict().get("HD", {}).get("SO", "coordinate")
        if order not in ("coordinate", "unknown"):
            raise GenomeError(f"{path}: reads must be sorted by coordinate, they are {order}")
        contig = named(region.contig, file.references, path)
        index = index_of(path, INDEXES[kind], file.nreferences)
    with pysam.AlignmentFile(name, index_filename=index, **given) as file:
        for one in file.fetch(contig, region.start, min(region.end, file.get_reference_length(contig))):
            flag, bases = one.flag, one.query_sequence
            if flag & _LEFT_OUT or flag & (_PAIRED | _PROPER) == _PAIRED or bases is None or not one.cigartuples:
                continue
            if one.mapping_quality < thresholds.mapping_quality:
                continue
            # Qualities that are not there are no reason to leave a base out.
            qualities = one.query_qualities
            known = b"\xff" * len(bases) if qualities is None else qualities.tobytes()
            yield _Read(one.query_name, one.reference_start, one.reference_end, bases.encode(), known, one.cigartuples)


def _stretches(reads: Iterator[_Read], region: Region) -> Iterator[tuple[list[_Read], int, int]]:
    """Parts of a region, and all reads there: they come sorted, so what is before the newest one is complete."""
    held: list[_Read] = []
    size, limit, start = 0, _HELD, region.start
    for one in reads:
        if size > limit and one.start > start:
            yield held, start, min(one.start, region.end)
            start = one.start
            held = [earlier for earlier in held if earlier.end > start]
            size = sum(len(earlier.bases) for earlier in held)
            limit = max(_HELD, 2 * size)
        held.append(one)
        size += len(one.bases)
    if held:
        yield held, start, region.end


class _Runs(NamedTuple):
    """Stretches of one CIGAR operation: read, first position, first base (of all reads in a row), length, deleted."""

    rows: list[tuple[int, int, int, int, bool]]
    inserted: list[tuple[int, int, int]]  # run before it, first base, length


def _runs(reads: list[_Read]) -> _Runs:
    found = _Runs([], [])
    offset = 0
    for number, one in enumerate(reads):
        place, base = one.start, offset
        anchored = False
        for operation, length in one.cigar:
            if operation in _MATCH:
                found.rows.append((number, place, base, length, False))
                place, base, anchored = place + length, base + length, True
            elif operation == _DELETION:
                found.rows.append((number, place, base, length, True))
                place, anchored = place + length, True
            elif operation == _INSERTION:
                if anchored:
                    found.inserted.append((len(found.rows) - 1, base, length))
                base += length
            elif operation == _SKIP:
                place, anchored = place + length, False
            elif operation == _SOFT:
                base += length
        # One place more: a deletion at the end of a read has no base after it.
        offset += len(one.bases) + 1
    return found


def _count(
    found: Profile, reads: list[_Read], start: int, end: int, origin: int, reference: NDArray[np.uint8], quality: int
) -> None:
    """Add to a profile the positions start..end - 1."""
    letters = b"N".join([one.bases for one in reads] + [b""])
    bases = encoded(letters.decode("latin-1"))
    qualities = np.frombuffer(b"\0".join([one.qualities for one in reads] + [b""]), np.uint8)
    runs = _runs(reads)
    if not runs.rows:
        return
    number, first, base, length, deleted = (np.array(column) for column in zip(*runs.rows, strict=True))
    ends = np.cumsum(length)
    within = np.arange(ends[-1]) - np.repeat(ends - length, length)
    place = np.repeat(first, length) + within
    gone = np.repeat(deleted, length)
    at = np.repeat(base, length) + np.where(gone, 0, within)
    inside = (place >= start) & (place < end)
    seen = bases[at]
    if b"=" in letters:
        same = inside & (np.frombuffer(letters, np.uint8)[at] == ord("="))
        seen[same] = reference[place[same] - start]
    symbol = np.where(gone, _LAST, np.where(seen == N, _NOTHING, seen))
    kept = inside & (qualities[at] >= quality) & (symbol < _NOTHING)
    fragments = _fragments(reads)[np.repeat(number, length)[kept]]
    kept[kept] = _once(fragments, place[kept], symbol[kept], qualities[at][kept])
    flat = (place[kept] - origin) * 5 + symbol[kept]
    found.counts += np.bincount(flat, minlength=found.counts.size).reshape(-1, 5).astype(np.int32)
    for run, at_base, size in runs.inserted:
        anchor = ends[run] - 1
        if kept[anchor]:
            after = int(place[anchor]) - origin + 1
            _add(found.inserted, after, bases[at_base : at_base + size])


def _add(inserted: dict[int, NDArray[np.int32]], place: int, codes: NDArray[np.uint8]) -> None:
    counts = inserted.get(place, np.zeros((0, 5), np.int32))
    if len(counts) < len(codes):
        counts = np.concatenate([counts, np.zeros((len(codes) - len(counts), 5), np.int32)])
    counts[np.arange(len(codes)), codes] += 1
    inserted[place] = counts


def _fragments(reads: list[_Read]) -> NDArray[np.int64]:
    """A number for each read; mates have one name, and one number."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(one.name, len(numbers)) for one in reads])


def _once(
    fragment: NDArray[np.int64], place: NDArray[np.int64], symbol: NDArray[np.int64], quality: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Which observations count, where two mates have seen one position."""
    counted = np.ones(len(place), dtype=bool)
    # The better quality first.
    order = np.lexsort((-quality.astype(np.int16), place, fragment))
    same = (np.diff(fragment[order]) == 0) & (np.diff(place[order]) == 0)
    first, second = order[:-1][same], order[1:][same]
    counted[second] = False
    counted[first[(symbol[first] != symbol[second]) & (quality[first] == quality[second])]] = False
    return counted


def called(found: Profile, thresholds: Thresholds) -> NDArray[np.uint8]:
    """Pairs of a profile: the two symbols most fragments have; of those as frequent, the first in A, C, G, T, DEL."""
    codes = np.array([0, 1, 2, 3, DEL], dtype=np.uint8)
    pairs = _two(found.counts, codes, thresholds)
    columns = {}
    depths = found.counts.sum(axis=1)
    for place, counts in found.inserted.items():
        none = depths[place - 1] - counts.sum(axis=1, keepdims=True)
        both = _two(
            np.concatenate([counts, none], axis=1), np.array([*range(INSERTED, DEL), DEL], np.uint8), thresholds
        )
        there = (both != PAIR[DEL, DEL]) & (both != PAIR[N, N])
        if there.any():
            columns[place] = both[there]
    return with_columns(pairs, columns)


def _two(counts: NDArray[np.int32], codes: NDArray[np.uint8], thresholds: Thresholds) -> NDArray[np.uint8]:
    depth = counts.sum(axis=1)
    order = np.argsort(-counts, axis=1, kind="stable")[:, :2]
    first, second = codes[order[:, 0]], codes[order[:, 1]]
    often = counts[np.arange(len(counts)), order[:, 1]]
    there = (often >= thresholds.count) & (often >= thresholds.share * depth)
    pairs = PAIR[first, np.where(there, second, first)]
    return np.where(depth < thresholds.depth, PAIR[N, N], pairs)
