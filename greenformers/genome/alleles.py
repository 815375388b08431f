r"""Alleles of VCF records as edits of the reference. VCF 4.4, sections 1.6.1, 3 and 5.

An allele that is written in bases replaces those of the reference; bases other than A, C, G and T are N. All other
alleles, here called structural, do not say what the haplotype has, and are unknown (N):

| ALT | what is N |
|---|---|
| <DEL>, <DUP>, <DUP:TANDEM>, <INV>, <CNV>, <CN0> and any other name | the positions after POS, to END or by SVLEN |
| <INS>, <INS:ME:ALU> | bases inserted after POS: SVLEN of them, or one where it is not given |
| an assembled contig beside bases: C<ctg1>, <ctg1>C | inserted bases beside those, as many as of <INS> |
| <*>, <NON_REF>, <X> | the positions from POS to END, or those of REF |
| breakend with its mate on this contig: T[19:90[, T]19:90], ]19:90]T, [19:90[T | the positions from one to the other |
| breakend of another contig, single one (T. or .T), <BND>, <TRA>, <CTX> | the positions of REF |
| * | the positions of REF, where no earlier record has deleted them |

The sign of SVLEN is that of VCF 4.4, or for deletions that of VCF 4.3. Where END and SVLEN differ, the larger span is
taken. Confidence intervals (CIPOS, CIEND) do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from greenformers.genome.files import matched

MISSING = -1
"""Number of an allele that is missing in a genotype."""

LONGEST_INSERTED = 1_000_000
"""Most unknown bases that an insertion may have."""

# Bases, and the letters that stand for several.
_LETTERS = "ACGTRYSWKMBDHVN"
_NAME = re.compile(r"<([^<>\s]+)>")
_ASSEMBLED = re.compile(rf"([{_LETTERS}]*)<[^<>\s]+>([{_LETTERS}]*)", re.IGNORECASE | re.ASCII)
_MATED = re.compile(
    rf"([{_LETTERS}.]*)([\[\]])(?P<contig>[^\[\]]+):(?P<position>\d{{1,18}})\2([{_LETTERS}.]*)",
    re.IGNORECASE | re.ASCII,
)
_SINGLE = re.compile(rf"\.[{_LETTERS}]+|[{_LETTERS}]+\.", re.IGNORECASE)
_UNSPECIFIED = ("*", "NON_REF", "X")
# As breakends, but without the place of the mate in the allele; END may be a position of another contig.
_JUNCTIONS = ("BND", "TRA", "CTX")
_WITHOUT_SPAN = ("INS", *_JUNCTIONS)
_SPANNED = "*"


class Edit(NamedTuple):
    """The change that an allele makes to the reference.

    Attributes:
        start: First position that is replaced, from 0 in the region.
        removed: Number of positions that are replaced.
        bases: Bases in their place; None where they are not known.
        kind: Kind of a structural allele, such as DEL or BND; empty for others.
    """

    start: int
    removed: int
    bases: str | None
    kind: str = ""

    @property
    def spanned(self) -> bool:
        """Whether the allele says that the positions are deleted by another record (*)."""
        return self.kind == _SPANNED


def edit_of(start: int, ref: str, alt: str) -> Edit | None:
    """The shortest edit of an allele that is written in bases; None for any other."""
    if not re.fullmatch(f"[{_LETTERS}]+", alt):
        return None
    end = 0
    # The last base stays: VCF puts what is inserted or deleted after it.
    while end < min(len(ref), len(alt)) - 1 and ref[-1 - end] == alt[-1 - end]:
        end += 1
    ref, alt = ref[: len(ref) - end], alt[: len(alt) - end]
    shared = 0
    while shared < min(len(ref), len(alt)) and ref[shared] == alt[shared]:
        shared += 1
    return Edit(start + shared, len(ref) - shared, alt[shared:])


@dataclass(frozen=True)
class Site:
    """A record without its genotypes.

    Attributes:
        contig: Name of the contig.
        origin: First position of the region, from 0 on the contig.
        start: First position of the record, from 0 in the region.
        ref: Bases of the reference.
        alts: The alternatives.
        info: INFO of the record, as text.
    """

    contig: str
    origin: int
    start: int
    ref: str
    alts: list[str]
    info: str

    def edits(self, numbers: Iterable[int]) -> dict[int, Edit]:
        """The edits of alleles, by their numbers; an allele that changes nothing has none.

        Args:
            numbers: Numbers of the alleles, 0 for the reference, `MISSING` for a missing one.

        Raises:
            ValueError: An allele is not as VCF 4.4 writes it, or END or SVLEN is not that of the allele.
        """
        edits = {}
        for number in numbers:
            edit = self._missing() if number == MISSING else None if number == 0 else self._edit(number)
            if edit is not None:
                edits[number] = edit
        return edits

    @property
    def disagrees(self) -> bool:
        """Whether END and SVLEN give different spans to an allele that has one."""
        for number, alt in enumerate(self.alts, 1):
            length = self._length(number) if _has_span(alt) else None
            if length is not None and self._end not in (None, self.start + 1 + length):
                return True
        return False

    def _edit(self, number: int) -> Edit | None:
        alt, start = self.alts[number - 1], self.start
        if alt == ".":
            return None
        if (edit := edit_of(start, self.ref, alt)) is not None:
            return edit
        if alt == _SPANNED:
            return Edit(start, len(self.ref), None, _SPANNED)
        if (named := _NAME.fullmatch(alt)) is not None:
            return self._named(number, named[1].upper())
        if (assembled := _ASSEMBLED.fullmatch(alt)) is not None and bool(assembled[1]) != bool(assembled[2]):
            edit = edit_of(start, self.ref, assembled[1].upper() + self._inserted(number) + assembled[2].upper())
            return None if edit is None else edit._replace(kind="INS")
        if (mated := _MATED.fullmatch(alt)) is not None and bool(mated[1]) != bool(mated[5]):
            low, high = start, start + len(self.ref)
            if matched(mated["contig"], [self.contig]) is not None:
                mate = int(mated["position"]) - 1 - self.origin
                low, high = min(low, mate), max(high, mate + 1)
            return Edit(low, high - low, None, "BND")
        if _SINGLE.fullmatch(alt) is not None:
            return Edit(start, len(self.ref), None, "BND")
        raise ValueError(f"ALT must be as in VCF 4.4, got {alt[:20]!r}")

    def _named(self, number: int, name: str) -> Edit:
        """The edit of a symbolic allele."""
        start, ref_end, length = self.start, self.start + len(self.ref), self._length(number)
        if name in _UNSPECIFIED:
            return Edit(start, max(ref_end, self._end or ref_end) - start, None, f"<{name}>")
        kind = _kind(name)
        if kind in _JUNCTIONS:
            return Edit(start, len(self.ref), None, kind)
        if kind == "INS":
            return Edit(start + 1, 0, self._inserted(number), kind)
        ends = [ref_end, self._end or ref_end, start + 1 + (length or 0)]
        if max(ends) == start + 1:
            raise ValueError(f"<{name[:20]}> must have END after POS or SVLEN, it has neither")
        return Edit(start + 1, max(ends) - start - 1, None, kind)

    def _inserted(self, number: int) -> str:
        """The bases that an alternative inserts, all unknown: as many as SVLEN says, or one."""
        length = self._length(number)
        if length is not None and length > LONGEST_INSERTED:
            shown = self.alts[number - 1][:20]
            raise ValueError(f"SVLEN of {shown} must be at most {LONGEST_INSERTED:,}, got {length:,}")
        return "N" * (length or 1)

    def _missing(self) -> Edit:
        """The edit of a missing allele: nothing is known at the positions of the record."""
        edits = [self._edit(number) for number in range(1, len(self.alts) + 1)]
        spans = [(edit.start, edit.start + edit.removed) for edit in edits if edit is not None and edit.bases is None]
        low = min([self.start, *(first for first, _ in spans)])
        # A block of a gVCF may have no alternative, and reach to its END.
        ends = [] if self.alts or self._end is None else [self._end]
        high = max([self.start + len(self.ref), *ends, *(last for _, last in spans)])
        return Edit(low, high - low, None)

    @cached_property
    def _about(self) -> dict[str, str]:
        entries = [entry.partition("=") for entry in self.info.split(";")]
        for name in ("END", "SVLEN"):
            if sum(entry[0] == name for entry in entries) > 1:
                raise ValueError(f"INFO must have one {name}, has several")
        return {name: value for name, _, value in entries}

    @cached_property
    def _end(self) -> int | None:
        """The position after the last one (END), from 0 in the region; None where it is not given."""
        if (end := _whole("END", self._about.get("END", "."))) is None:
            return None
        if end - self.origin <= self.start:
            raise ValueError(f"END must be at least POS, {self.origin + self.start + 1}, got {end}")
        return end - self.origin

    def _length(self, number: int) -> int | None:
        """Number of bases (SVLEN) of an alternative; None where it is not given, or 0 as of inversions in VCF 4.3."""
        texts = self._about.get("SVLEN", ".").split(",")
        if len(texts) not in (1, len(self.alts)):
            raise ValueError(f"SVLEN must be a number for each of {len(self.alts)} alternatives, has {len(texts)}")
        length = _whole("SVLEN", texts[number - 1 if len(texts) > 1 else 0])
        if length is not None and length < 0 and not _may_shrink(self.alts[number - 1]):
            raise ValueError(f"SVLEN of {self.alts[number - 1][:20]} must not be below 0, got {length}")
        return abs(length) if length else None


def reach(start: int, ref: str, alts: Iterable[str], info: str) -> int:
    """The position after the last one that a record may say something of, from 0 on the contig; INFO may be wrong."""
    ends = [start + len(ref)]
    if any(alt.startswith("<") or alt == "." for alt in alts):
        ends += [int(end) for end in re.findall(r"(?:^|;)END=(\d{1,18})(?=;|$)", info, flags=re.ASCII)]
        for lengths in re.findall(r"(?:^|;)SVLEN=([-+\d,.]+)", info, flags=re.ASCII):
            ends += [start + 1 + int(length) for length in re.findall(r"\d{1,18}", lengths, flags=re.ASCII)]
    return max(ends)


def _kind(name: str) -> str:
    """The kind of a symbolic allele: the first part of its name; CN0, CN1, ... are of CNV."""
    kind = name.split(":")[0]
    return "CNV" if re.fullmatch(r"CN\d+", kind, flags=re.ASCII) else kind


def _has_span(alt: str) -> bool:
    """Whether an allele is a symbolic one at the positions from POS + 1 to END."""
    named = _NAME.fullmatch(alt)
    return named is not None and named[1].upper() not in _UNSPECIFIED and _kind(named[1].upper()) not in _WITHOUT_SPAN


def _may_shrink(alt: str) -> bool:
    """Whether an allele may have fewer bases than the reference, so that its SVLEN may have a sign, as in VCF 4.3."""
    named = _NAME.fullmatch(alt)
    if named is None:
        return _ASSEMBLED.fullmatch(alt) is None
    return _kind(named[1].upper()) not in ("INS", "DUP")


def _whole(name: str, text: str) -> int | None:
    if text == ".":
        return None
    if not re.fullmatch(r"[+-]?\d{1,18}", text, flags=re.ASCII):
        raise ValueError(f"{name} must be a whole number, got {text[:20]!r}")
    return int(text)
