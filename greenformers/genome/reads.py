"""Aligned reads (BAM, CRAM) to a diplotype: the two most frequent symbols at every position. Cahyawijaya 2021, 5.3.1.

Which reads and bases count is as in `samtools mpileup -B`: no unmapped, secondary, failed or duplicate ones, no orphans
of a pair, base quality 13. The two mates of a fragment count once where they overlap; where they differ, the base of
better quality counts, and none where both qualities are equal. A deletion has the quality of the base after it, an
insertion that of the base before it. A base N does not count.
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
# Largest share of aligned bases that differ from the reference; of another genome 0.75 differ. Fewer positions than
# these may all be variants.
_DIFFERENT, _ENOUGH = 0.1, 100

# Kinds that bases are counted as: A, C, G, T, deleted; not counted; equal to the reference.
_NOTHING, _SAME = 5, 6
_KIND_OF = {ord(letter): kind for kind, letter in enumerate("ACGTD")} | {ord("="): _SAME}
_KINDS = bytes(_KIND_OF.get(letter, _NOTHING) for letter in range(256))


class _Cigar(NamedTuple):
    """The alignment of a read, from its CIGAR: SAM format specification, section 1.4.

    Attributes:
        runs: Runs of bases at consecutive positions, or of deleted positions: first position, counted from that of the
            read; first base, or the one after the deletion; length; whether deleted.
        inserted: Insertions: index of the run before, first base, length.
        span: Number of positions from the first to the last.
    """

    runs: list[tuple[int, int, int, bool]]
    inserted: list[tuple[int, int, int]]
    span: int


_Read = tuple[str | None, int, str, bytes, _Cigar]
"""Name of a read that has a mate, first position, bases, qualities (Phred) and CIGAR."""


@dataclass
class Profile:
    """Number of fragments with each symbol.

    Attributes:
        counts: Counts of A, C, G, T and DEL at the n positions of a region, (n, 5).
        inserted: Counts of A, C, G, T and N for each of k inserted bases, (k, 5), by the number of positions before the
            insertion.
        different: Share of the bases that differ from the reference.
    """

    counts: NDArray[np.int32]
    inserted: dict[int, NDArray[np.int32]]
    different: float


def read(path: Path, reference: Reference, region: Region, thresholds: Thresholds | None = None) -> NDArray[np.uint8]:
    """The diplotype of a region, (m,), by the reads of one person.

    Args:
        path: Path of a BAM or CRAM file, sorted, with an index.
        reference: Reference that the reads are aligned to.
        region: Region of the reference.
        thresholds: Thresholds of the reads that count.

    Raises:
        GenomeError: The file is damaged, has no index or no reads in the region, or is aligned to another reference.
    """
    thresholds = thresholds or Thresholds()
    return called(profile(path, reference, region, thresholds), thresholds)


def people(path: Path) -> list[str]:
    """Names of the people whose reads are in a file (SM of its read groups); the name of the file where it has none."""
    with told(path, "no BAM or CRAM file that can be read"), htslib().AlignmentFile(checked(path)) as file:
        groups = file.header.to_dict().get("RG", [])
    return sorted({group["SM"] for group in groups if "SM" in group}) or [path.name.split(".")[0]]


def profile(path: Path, reference: Reference, region: Region, thresholds: Thresholds) -> Profile:
    """Number of fragments with each symbol in a region. Memory is O(region + some reads); arguments as in `read`."""
    whole = encoded(reference.fetch(region))
    fragments = Profile(np.zeros((len(region), 5), np.int32), {}, 0.0)
    try:
        with told(path, "damaged, or its index is that of another file"):
            for reads, start, end in _stretches(_reads(path, reference, region, thresholds), region):
                _count(fragments, reads, start, end, region.start, whole, thresholds.base_quality)
    except GenomeError as error:
        # For a CRAM file of another reference htslib says that it is truncated.
        if (
            error.__cause__ is not None
            and (same := _same_reference(path, reference, region)) is not None
            and not same[0]
        ):
            raise GenomeError(f"{path}: needs another reference than {reference.path.name}, {same[1]}") from error
        raise
    if not fragments.counts.any():
        raise GenomeError(f"{path}: has no reads that count at {region}")
    is_base = whole < N
    total = int(fragments.counts[is_base, :N].sum())
    if total:
        fragments.different = 1 - int(fragments.counts[is_base, whole[is_base]].sum()) / total
    if fragments.different > _DIFFERENT and int(is_base.sum()) >= _ENOUGH:
        share = f"{100 * fragments.different:.0f} % of its bases at {region} differ"
        if (same := _same_reference(path, reference, region)) is None:
            raise GenomeError(f"{path}: is not aligned to {reference.path.name}, {share}")
        version = htslib().version.__htslib_version__
        wrongly = f"htslib {version} decodes the file wrongly: turn it into BAM with the program that wrote it"
        reason = wrongly if same[0] else f"as {same[1]}; or {wrongly}"
        raise GenomeError(f"{path}: {share} from {reference.path.name}, {reason}")
    return fragments


def _same_reference(path: Path, reference: Reference, region: Region) -> tuple[bool, str] | None:
    """Whether a CRAM file is written against a reference, by length and MD5 of the contig, and the reason if not.

    None for a BAM file, and for a CRAM file whose header does not tell.
    """
    if path.suffix.lower() != ".cram":
        return None
    with told(path, "no BAM or CRAM file that can be read"), htslib().AlignmentFile(checked(path)) as file:
        contig = named(region.contig, file.references, path)
        about = next(entry for entry in file.header.to_dict()["SQ"] if entry["SN"] == contig)
    if "M5" not in about or contig not in reference.names:
        return None
    theirs, (length, own) = str(about["M5"]).lower(), reference.checksum(contig)
    if length != int(about["LN"]):
        return False, f"its {contig} has {int(about['LN']):,} bases, and here it has {length:,}"
    return theirs == own, f"the MD5 of its {contig} is {theirs[:8]}..., and here it is {own[:8]}..."


def _reads(path: Path, reference: Reference, region: Region, thresholds: Thresholds) -> Iterator[_Read]:
    pysam = htslib()
    name, kind = checked(path), path.suffix.lower()
    if kind not in (".bam", ".cram"):
        raise GenomeError(f"{path}: reads must be in a .bam or .cram file")
    options = {}
    if kind == ".cram":
        # Without an index htslib would make one; where it cannot, it would fetch the bases from the internet.
        index_of(reference.path, INDEXES[".fa"])
        options["reference_filename"] = str(reference.path.resolve())
        with told(path, "cut off or damaged"):
            pysam.quickcheck(name)
    cigars: dict[str, _Cigar] = {}
    lowest = thresholds.mapping_quality
    with pysam.AlignmentFile(name, **options) as file:
        # The first line of the header only, as there may be thousands of contigs.
        match = re.match(r"@HD\t(?:.*\t)?SO:(\w+)", str(file.header))
        if match and (order := match[1]) not in ("coordinate", "unknown"):
            raise GenomeError(f"{path}: reads must be sorted by coordinate, they are {order}")
        contig = named(region.contig, file.references, path)
        index_of(path, INDEXES[kind], file.nreferences)
        if kind == ".cram" and contig not in reference.names:
            theirs = ", ".join(reference.names[:5])
            raise GenomeError(
                f"{path}: a CRAM file needs a reference with its names: {contig}; {reference.path.name} has {theirs}"
            )
        end = min(region.end, file.get_reference_length(contig))
        for alignment in file.fetch(contig, region.start, end) if region.start < end else ():
            flag, bases, written = alignment.flag, alignment.query_sequence, alignment.cigarstring
            if flag & _LEFT_OUT or flag & (_PAIRED | _PROPER) == _PAIRED or bases is None or written is None:
                continue
            if lowest and alignment.mapping_quality < lowest:
                continue
            if (cigar := cigars.get(written)) is None:
                cigar = cigars[written] = _parsed(alignment.cigartuples)
            # A base without quality counts.
            # Not query_qualities_str: pysam 0.24 adds 33 to them in place, to Python's own copy where there is one.
            phred = alignment.query_qualities
            qualities = b"\xff" * len(bases) if phred is None else phred.tobytes()
            mate = alignment.query_name if flag & _PAIRED else None
            yield mate, alignment.reference_start, bases, qualities, cigar


def _parsed(operations: list[tuple[int, int]]) -> _Cigar:
    cigar = _Cigar([], [], sum(length for kind, length in operations if kind in (0, 2, 3, 7, 8)))
    place = base = 0
    anchored = False
    for kind, length in operations:
        if length and kind in (0, 2, 7, 8):  # M D = X
            cigar.runs.append((place, base, length, kind == 2))
            anchored = True
        elif kind == 3:  # N
            anchored = False
        elif kind == 1 and anchored:  # I
            # Between two insertions is padding, which aligns them with a longer insertion of another read.
            run, together = len(cigar.runs) - 1, length
            if cigar.inserted and cigar.inserted[-1][0] == run:
                together += cigar.inserted.pop()[2]
            cigar.inserted.append((run, base + length - together, together))
        place += length * (kind in (0, 2, 3, 7, 8))
        base += length * (kind in (0, 1, 4, 7, 8))
    return cigar


def _stretches(reads: Iterator[_Read], region: Region) -> Iterator[tuple[list[_Read], int, int]]:
    """Parts of a region with all reads there. Reads are sorted, so positions before the newest read are complete."""
    held: list[_Read] = []
    size, limit, start = 0, _HELD, region.start
    for newest in reads:
        if size > limit and newest[1] > start:
            yield held, start, min(newest[1], region.end)
            start = newest[1]
            held = [earlier for earlier in held if earlier[1] + earlier[4].span > start]
            size = sum(len(earlier[2]) for earlier in held)
            limit = max(_HELD, 2 * size)
        held.append(newest)
        size += len(newest[2])
    if held:
        yield held, start, region.end


class _Seen(NamedTuple):
    """Observations of reads, one after the other: `first` and `length` of each run of consecutive positions.

    Attributes:
        first: First position of each run.
        length: Length of each run.
        bases: Bases of each run, D where deleted.
        qualities: Qualities of each run (Phred).
        inserted: Insertions: index of the observation before, and the bases.
        mates: For each pair of reads that overlap, the bounds of the observations of both, and the positions they
            share.
    """

    first: list[int]
    length: list[int]
    bases: list[str]
    qualities: list[bytes]
    inserted: list[tuple[int, str]]
    mates: list[tuple[int, int, int, int, int, int]]


def _seen(reads: list[_Read], start: int, end: int) -> _Seen:
    """Observations of reads at the positions start..end - 1."""
    seen = _Seen([], [], [], [], [], [])
    firsts, lengths, letters, marks, inserted, mates = seen
    before: dict[str, list[tuple[int, int, int, int, bool]]] = {}
    total = 0
    for name, origin, bases, qualities, (runs, insertions, span) in reads:
        begin, last = total, origin + span
        whole = start <= origin and last <= end
        ends: list[int | None] = []
        for place, base, length, deleted in runs:
            first, count = origin + place, length
            if not whole:
                skipped = max(0, start - first)
                count = min(length, end - first) - skipped
                if count <= 0:
                    ends.append(None)
                    continue
                first, base = first + skipped, base if deleted else base + skipped
            total += count
            # Without the end of a run, the insertion after it is not in the part either.
            ends.append(total - 1 if whole or first + count == origin + place + length else None)
            firsts.append(first)
            lengths.append(count)
            if deleted:
                letters.append("D" * count)
                # A deletion at the end of a read has no base after it.
                marks.append((qualities[base : base + 1] or b"\0") * count)
            else:
                letters.append(bases[base : base + count])
                marks.append(qualities[base : base + count])
        for run, base, length in insertions:
            if (anchor := ends[run]) is not None:
                inserted.append((anchor, bases[base : base + length]))
        if name is not None:
            own = begin, total, origin, last, total - begin == span
            if (earlier := before.get(name)) is None:
                before[name] = [own]
                continue
            for mate in earlier:
                lowest, highest = max(start, origin, mate[2]), min(end, last, mate[3])
                if lowest < highest:
                    mates.append((*_within(mate, lowest, highest), *_within(own, lowest, highest), lowest, highest))
            earlier.append(own)
    return seen


def _within(observed: tuple[int, int, int, int, bool], lowest: int, highest: int) -> tuple[int, int]:
    """Bounds of the observations of a read that hold all those at some positions; exact for reads without gaps."""
    begin, end, origin, _, straight = observed
    return (begin + lowest - origin, begin + highest - origin) if straight else (begin, end)


def _count(
    profile: Profile, reads: list[_Read], start: int, end: int, origin: int, reference: NDArray[np.uint8], quality: int
) -> None:
    """Add the counts at the positions start..end - 1 to a profile."""
    seen = _seen(reads, start, end)
    if not seen.first:
        return
    # A bytearray, as some bytes are changed below.
    written = bytearray("".join(seen.bases).encode("latin-1", "replace").translate(_KINDS))
    kinds = np.frombuffer(written, np.uint8)
    qualities = np.frombuffer(b"".join(seen.qualities), np.uint8)
    # Each position is one more than the one before, except at the start of a run.
    first, length = np.array(seen.first), np.array(seen.length)
    place = np.ones(len(kinds), dtype=np.int64)
    place[0] = first[0]
    place[np.cumsum(length)[:-1]] = first[1:] - first[:-1] - length[:-1] + 1
    np.cumsum(place, out=place)
    if (as_reference := np.flatnonzero(kinds == _SAME)).size:
        reference_bases = reference[place[as_reference] - origin]
        kinds[as_reference] = np.where(reference_bases < N, reference_bases, _NOTHING)
    kinds[qualities < quality] = _NOTHING
    if seen.mates:
        _count_once(kinds, qualities, place, np.array(seen.mates).T)
    # A column for bases that do not count is faster than leaving them out.
    flat = (place - start) * (_NOTHING + 1)
    flat += kinds
    counts = np.bincount(flat, minlength=(end - start) * (_NOTHING + 1)).reshape(-1, _NOTHING + 1)
    profile.counts[start - origin : end - origin] += counts[:, :_NOTHING].astype(np.int32)
    for anchor, bases in seen.inserted:
        if kinds[anchor] != _NOTHING:
            _add(profile.inserted, int(place[anchor]) - origin + 1, encoded(bases))


def _add(inserted: dict[int, NDArray[np.int32]], place: int, codes: NDArray[np.uint8]) -> None:
    counts = inserted.get(place, np.zeros((0, 5), np.int32))
    if len(counts) < len(codes):
        counts = np.concatenate([counts, np.zeros((len(codes) - len(counts), 5), np.int32)])
    counts[np.arange(len(codes)), codes] += 1
    inserted[place] = counts


def _count_once(
    kinds: NDArray[np.uint8], qualities: NDArray[np.uint8], place: NDArray[np.int64], mates: NDArray[np.int64]
) -> None:
    """Leave out the worse of two mates at a position, and both where they differ with equal quality."""
    first, first_end, second, second_end, lowest, highest = mates
    size = highest - lowest
    offset = np.cumsum(size) - size - lowest
    both = []
    for begin, end in ((first, first_end), (second, second_end)):
        length = end - begin
        owner = np.repeat(np.arange(len(begin)), length)
        observation = np.arange(len(owner)) + np.repeat(begin - np.cumsum(length) + length, length)
        positions = place[observation]
        shared = (positions >= lowest[owner]) & (positions < highest[owner]) & (kinds[observation] != _NOTHING)
        slots = np.full(size.sum(), -1)
        slots[offset[owner[shared]] + positions[shared]] = observation[shared]
        both.append(slots)
    left, right = (side[(both[0] >= 0) & (both[1] >= 0)] for side in both)
    better = qualities[left].astype(np.int16) - qualities[right]
    neither = left[(better == 0) & (kinds[left] != kinds[right])]
    kinds[np.where(better >= 0, right, left)] = _NOTHING
    kinds[neither] = _NOTHING


def called(profile: Profile, thresholds: Thresholds) -> NDArray[np.uint8]:
    """Pairs of a profile: the two most frequent symbols; of equally frequent ones, the first of A, C, G, T, DEL."""
    codes = np.array([0, 1, 2, 3, DEL], dtype=np.uint8)
    pairs = _two(profile.counts, codes, thresholds)
    columns = {}
    depths = profile.counts.sum(axis=1)
    for place, counts in profile.inserted.items():
        without = depths[place - 1] - counts.sum(axis=1, keepdims=True)
        both = _two(
            np.concatenate([counts, without], axis=1), np.array([*range(INSERTED, DEL), DEL], np.uint8), thresholds
        )
        present = (both != PAIR[DEL, DEL]) & (both != PAIR[N, N])
        if present.any():
            columns[place] = both[present]
    return with_columns(pairs, columns)


def _two(counts: NDArray[np.int32], codes: NDArray[np.uint8], thresholds: Thresholds) -> NDArray[np.uint8]:
    depth, rows = counts.sum(axis=1), np.arange(len(counts))
    best = counts.argmax(axis=1)
    rest = counts.copy()
    rest[rows, best] = -1
    next_best = rest.argmax(axis=1)
    first, second, frequency = codes[best], codes[next_best], rest[rows, next_best]
    # In floating point 0.07 * 100 is above 7, but 7 of 100 are a share of 0.07.
    heterozygous = (frequency >= thresholds.count) & (frequency >= thresholds.share * depth - 1e-9)
    pairs = PAIR[first, np.where(heterozygous, second, first)]
    return np.where(depth < thresholds.depth, PAIR[N, N], pairs)
