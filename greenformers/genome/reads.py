"""Aligned reads (BAM, CRAM) to a diplotype: the two symbols most reads have at every position. Thesis 5.3.1.

Which reads and bases count is as in `samtools mpileup -B`: no unmapped, secondary, failed or duplicate ones, no orphans
of a pair, base quality 13. The two mates of a fragment count once where they overlap: where they differ, the better
base, and neither where both are as good. A deletion has the quality of the base after it, an insertion that of the base
before it. A base N counts as nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from greenformers.genome.diplotype import DEL, INSERTED, PAIR, N, encoded, with_columns
from greenformers.genome.files import INDEXES, GenomeError, Region, checked, htslib, index_of, named, told
from greenformers.genome.read_options import Thresholds
from greenformers.genome.reference import Reference

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Unmapped, secondary, failed, duplicate; paired, and paired as expected.
_LEFT_OUT, _PAIRED, _PROPER = 0x704, 0x1, 0x2
_HELD = 2**22  # bases of reads held at a time
# Share of aligned bases that differ from the reference at most; another genome's differ at 0.75. Fewer positions than
# these may all be variants.
_DIFFERENT, _ENOUGH = 0.1, 100

# What a base is counted as: A, C, G, T, then a deletion; nothing; what the reference has.
_NOTHING, _SAME = 5, 6
_KIND_OF = {ord(letter): kind for kind, letter in enumerate("ACGTD")} | {ord("="): _SAME}
_KINDS = bytes(_KIND_OF.get(letter, _NOTHING) for letter in range(256))


class _Cigar(NamedTuple):
    """What a CIGAR says of a read: SAM format specification, section 1.4.

    Attributes:
        runs: stretches of bases at consecutive positions, or of deleted positions: first position, counted from that of
            the read; first base, or the one after the deletion; length; whether deleted.
        inserted: which run is before them, first base, length.
        span: positions from the first to the last.
    """

    runs: list[tuple[int, int, int, bool]]
    inserted: list[tuple[int, int, int]]
    span: int


_Read = tuple[str | None, int, str, bytes, _Cigar]
"""Name of one that has a mate, first position, bases, qualities (Phred) and CIGAR."""


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
    thresholds = thresholds or Thresholds()
    return called(profile(path, reference, region, thresholds), thresholds)


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
            _count(found, reads, start, end, region.start, whole, thresholds.base_quality)
    if not found.counts.any():
        raise GenomeError(f"{path}: has no reads that count at {region}")
    known = whole < N
    total = int(found.counts[known, :N].sum())
    if total:
        found.different = 1 - int(found.counts[known, whole[known]].sum()) / total
    if found.different > _DIFFERENT and int(known.sum()) >= _ENOUGH:
        share = f"{100 * found.different:.0f} % of its bases at {region} differ"
        raise GenomeError(f"{path}: is not aligned to {reference.path.name}, {share}")
    return found


def _reads(path: Path, reference: Reference, region: Region, thresholds: Thresholds) -> Iterator[_Read]:
    pysam = htslib()
    name, kind = checked(path), path.suffix.lower()
    if kind not in (".bam", ".cram"):
        raise GenomeError(f"{path}: reads must be in a .bam or .cram file")
    given = {}
    if kind == ".cram":
        # Without its index, htslib would make one; where it cannot, it would look for the bases in the network.
        index_of(reference.path, INDEXES[".fa"])
        given["reference_filename"] = str(reference.path.resolve())
        with told(path, "cut off or damaged"):
            pysam.quickcheck(name)
    cigars: dict[str, _Cigar] = {}
    lowest = thresholds.mapping_quality
    with pysam.AlignmentFile(name, **given) as file:
        # Its first line alone: there may be thousands of contigs.
        found = re.match(r"@HD\t(?:.*\t)?SO:(\w+)", str(file.header))
        if found and (order := found[1]) not in ("coordinate", "unknown"):
            raise GenomeError(f"{path}: reads must be sorted by coordinate, they are {order}")
        contig = named(region.contig, file.references, path)
        index_of(path, INDEXES[kind], file.nreferences)
        if kind == ".cram" and contig not in reference.names:
            theirs = ", ".join(reference.names[:5])
            raise GenomeError(
                f"{path}: a CRAM file needs a reference with its names: {contig}; {reference.path.name} has {theirs}"
            )
        end = min(region.end, file.get_reference_length(contig))
        for one in file.fetch(contig, region.start, end) if region.start < end else ():
            flag, bases, written = one.flag, one.query_sequence, one.cigarstring
            if flag & _LEFT_OUT or flag & (_PAIRED | _PROPER) == _PAIRED or bases is None or written is None:
                continue
            if lowest and one.mapping_quality < lowest:
                continue
            if (cigar := cigars.get(written)) is None:
                cigar = cigars[written] = _parsed(one.cigartuples)
            # Qualities that are not there are no reason to leave a base out.
            # Not query_qualities_str: pysam 0.24 adds 33 to them in place, to Python's own copy where there is one.
            known = one.query_qualities
            qualities = b"\xff" * len(bases) if known is None else known.tobytes()
            mate = one.query_name if flag & _PAIRED else None
            yield mate, one.reference_start, bases, qualities, cigar


def _parsed(operations: list[tuple[int, int]]) -> _Cigar:
    found = _Cigar([], [], sum(length for kind, length in operations if kind in (0, 2, 3, 7, 8)))
    place = base = 0
    anchored = False
    for kind, length in operations:
        if length and kind in (0, 2, 7, 8):  # M D = X
            found.runs.append((place, base, length, kind == 2))
            anchored = True
        elif kind == 3:  # N
            anchored = False
        elif kind == 1 and anchored:  # I
            # Between two of them is padding, which says where they are in another read's longer insertion.
            run, together = len(found.runs) - 1, length
            if found.inserted and found.inserted[-1][0] == run:
                together += found.inserted.pop()[2]
            found.inserted.append((run, base + length - together, together))
        place += length * (kind in (0, 2, 3, 7, 8))
        base += length * (kind in (0, 1, 4, 7, 8))
    return found


def _stretches(reads: Iterator[_Read], region: Region) -> Iterator[tuple[list[_Read], int, int]]:
    """Parts of a region, and all reads there: they come sorted, so what is before the newest one is complete."""
    held: list[_Read] = []
    size, limit, start = 0, _HELD, region.start
    for one in reads:
        if size > limit and one[1] > start:
            yield held, start, min(one[1], region.end)
            start = one[1]
            held = [earlier for earlier in held if earlier[1] + earlier[4].span > start]
            size = sum(len(earlier[2]) for earlier in held)
            limit = max(_HELD, 2 * size)
        held.append(one)
        size += len(one[2])
    if held:
        yield held, start, region.end


class _Seen(NamedTuple):
    """Observations of reads, one after the other: `first` and `length` of each stretch of consecutive positions.

    Attributes:
        bases: D is deleted.
        qualities: Phred.
        inserted: the observation before them, and the bases.
        mates: of two reads that overlap, the observations among which theirs are, and the positions of both.
    """

    first: list[int]
    length: list[int]
    bases: list[str]
    qualities: list[bytes]
    inserted: list[tuple[int, str]]
    mates: list[tuple[int, int, int, int, int, int]]


def _seen(reads: list[_Read], start: int, end: int) -> _Seen:
    """What reads have at the positions start..end - 1."""
    found = _Seen([], [], [], [], [], [])
    firsts, lengths, letters, marks, inserted, mates = found
    before: dict[str, list[tuple[int, int, int, int, bool]]] = {}
    total = 0
    for name, origin, bases, qualities, (runs, insertions, span) in reads:
        begin, last = total, origin + span
        whole = start <= origin and last <= end
        ends: list[int | None] = []
        for place, base, length, deleted in runs:
            first, kept = origin + place, length
            if not whole:
                skipped = max(0, start - first)
                kept = min(length, end - first) - skipped
                if kept <= 0:
                    ends.append(None)
                    continue
                first, base = first + skipped, base if deleted else base + skipped
            total += kept
            # Where the end is not there, neither is what is inserted after it.
            ends.append(total - 1 if whole or first + kept == origin + place + length else None)
            firsts.append(first)
            lengths.append(kept)
            if deleted:
                letters.append("D" * kept)
                # A deletion at the end of a read has no base after it.
                marks.append((qualities[base : base + 1] or b"\0") * kept)
            else:
                letters.append(bases[base : base + kept])
                marks.append(qualities[base : base + kept])
        for run, base, length in insertions:
            if (anchor := ends[run]) is not None:
                inserted.append((anchor, bases[base : base + length]))
        if name is not None:
            one = begin, total, origin, last, total - begin == span
            if (earlier := before.get(name)) is None:
                before[name] = [one]
                continue
            for mate in earlier:
                lowest, highest = max(start, origin, mate[2]), min(end, last, mate[3])
                if lowest < highest:
                    mates.append((*_within(mate, lowest, highest), *_within(one, lowest, highest), lowest, highest))
            earlier.append(one)
    return found


def _within(one: tuple[int, int, int, int, bool], lowest: int, highest: int) -> tuple[int, int]:
    """Observations of a read among which all those of some positions are; a straight one has one for each position."""
    begin, end, origin, _, straight = one
    return (begin + lowest - origin, begin + highest - origin) if straight else (begin, end)


def _count(
    found: Profile, reads: list[_Read], start: int, end: int, origin: int, reference: NDArray[np.uint8], quality: int
) -> None:
    """Add to a profile the positions start..end - 1."""
    seen = _seen(reads, start, end)
    if not seen.first:
        return
    # A bytearray, for some of them are changed below.
    written = bytearray("".join(seen.bases).encode("latin-1", "replace").translate(_KINDS))
    kinds = np.frombuffer(written, np.uint8)
    qualities = np.frombuffer(b"".join(seen.qualities), np.uint8)
    # Positions: one more than the one before, except from stretch to stretch.
    first, length = np.array(seen.first), np.array(seen.length)
    place = np.ones(len(kinds), dtype=np.int64)
    place[0] = first[0]
    place[np.cumsum(length)[:-1]] = first[1:] - first[:-1] - length[:-1] + 1
    np.cumsum(place, out=place)
    if (same := np.flatnonzero(kinds == _SAME)).size:
        there = reference[place[same] - origin]
        kinds[same] = np.where(there < N, there, _NOTHING)
    kinds[qualities < quality] = _NOTHING
    if seen.mates:
        _count_once(kinds, qualities, place, np.array(seen.mates).T)
    # Faster with a column for what does not count than without it.
    flat = (place - start) * (_NOTHING + 1)
    flat += kinds
    counts = np.bincount(flat, minlength=(end - start) * (_NOTHING + 1)).reshape(-1, _NOTHING + 1)
    found.counts[start - origin : end - origin] += counts[:, :_NOTHING].astype(np.int32)
    for anchor, bases in seen.inserted:
        if kinds[anchor] != _NOTHING:
            _add(found.inserted, int(place[anchor]) - origin + 1, encoded(bases))


def _add(inserted: dict[int, NDArray[np.int32]], place: int, codes: NDArray[np.uint8]) -> None:
    counts = inserted.get(place, np.zeros((0, 5), np.int32))
    if len(counts) < len(codes):
        counts = np.concatenate([counts, np.zeros((len(codes) - len(counts), 5), np.int32)])
    counts[np.arange(len(codes)), codes] += 1
    inserted[place] = counts


def _count_once(
    kinds: NDArray[np.uint8], qualities: NDArray[np.uint8], place: NDArray[np.int64], mates: NDArray[np.int64]
) -> None:
    """Of two mates at one position the better one counts; none where they differ and are as good."""
    first, first_end, second, second_end, lowest, highest = mates
    size = highest - lowest
    offset = np.cumsum(size) - size - lowest
    both = []
    for begin, end in ((first, first_end), (second, second_end)):
        length = end - begin
        owner = np.repeat(np.arange(len(begin)), length)
        at = np.arange(len(owner)) + np.repeat(begin - np.cumsum(length) + length, length)
        there = place[at]
        shared = (there >= lowest[owner]) & (there < highest[owner]) & (kinds[at] != _NOTHING)
        slots = np.full(size.sum(), -1)
        slots[offset[owner[shared]] + there[shared]] = at[shared]
        both.append(slots)
    one, other = (side[(both[0] >= 0) & (both[1] >= 0)] for side in both)
    better = qualities[one].astype(np.int16) - qualities[other]
    neither = one[(better == 0) & (kinds[one] != kinds[other])]
    kinds[np.where(better >= 0, other, one)] = _NOTHING
    kinds[neither] = _NOTHING


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
    depth, rows = counts.sum(axis=1), np.arange(len(counts))
    best = counts.argmax(axis=1)
    rest = counts.copy()
    rest[rows, best] = -1
    next_best = rest.argmax(axis=1)
    first, second, often = codes[best], codes[next_best], rest[rows, next_best]
    # 7 of 100 are a share of 0.07, though 0.07 * 100 is above 7.
    there = (often >= thresholds.count) & (often >= thresholds.share * depth - 1e-9)
    pairs = PAIR[first, np.where(there, second, first)]
    return np.where(depth < thresholds.depth, PAIR[N, N], pairs)
