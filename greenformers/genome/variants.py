"""Haplotypes and diplotypes of any region and person, from genotypes (VCF, BCF). Cahyawijaya 2021, 5.3.1.

The alleles of a genotype are put into the reference: substitutions, insertions, deletions, mixtures of them. A missing
genotype makes the positions of its record N, and so does a structural variant on the haplotype that has it, see
`alleles`. Where genotypes are not phased, an allele goes to the first haplotype, in the order it is written, that has
no other allele there; the diplotype of single substitutions does not depend on this. Heterozygous genotypes of a person
that are of several phase sets in the region (PS, PSL; those without are one set) count as not phased.

A structural variant counts where its record begins in the region, or reaches into it by END, or by SVLEN but in a
.vcf.gz file with an index, which has END alone. A breakend counts where its record is in the region: of a pair that
begins before it and ends after it, nothing is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from greenformers.genome.alleles import MISSING, Edit, Site, edit_of
from greenformers.genome.diplotype import Haplotype, N, encoded
from greenformers.genome.files import GenomeError, Region, told
from greenformers.genome.reference import Reference
from greenformers.genome.vcf import opened, placed, records

Genotype = tuple[tuple[int, ...], bool]
"""The alleles of a call, -1 where missing, and whether they are phased."""

# Names that a list of htslib cannot have: it splits it at commas, ^ before it leaves people out, and - is everybody.
_UNLISTED = re.compile(r"[\^-]|.*,")


@dataclass
class Variants:
    """Called variants of some people in a region.

    Attributes:
        reference: Bases of the region.
        people: Names of the people, in the order of the file.
        edits: For every record, the edit of each alternative allele, and of a missing one.
        calls: For every record, the genotype of each person with another allele than the reference's.
        disagreeing: Positions, from 1 on the contig, of records whose END and SVLEN differ.
        apart: Names of the people whose phased genotypes are of several phase sets (PS, PSL), and count as not phased.
        records: Number of records in the region.
        failed: Positions of records with calls that did not pass every filter of the file (FILTER), and count alike.
    """

    reference: str
    people: list[str]
    edits: list[dict[int, Edit]]
    calls: list[dict[int, Genotype]]
    disagreeing: list[int] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    records: int = 0
    failed: list[int] = field(default_factory=list)
    _left_out: dict[str, int] = field(default_factory=dict)
    _structural: dict[str, list[Edit]] = field(default_factory=dict)

    @property
    def left_out(self) -> int:
        """Number of alleles left out of the haplotypes computed so far, as they overlap another allele."""
        return sum(self._left_out.values())

    def structural(self, person: str) -> list[Edit]:
        """The structural alleles in the haplotypes of a person, which must have been computed."""
        return self._structural[person]

    @property
    def phased(self) -> bool:
        """Whether every genotype is phased."""
        return all(phased for calls in self.calls for _, phased in calls.values())

    def haplotypes(self, person: str) -> tuple[Haplotype, Haplotype]:
        """The two haplotypes of a person.

        Raises:
            ValueError: There is no such person.
        """
        if person not in self.people:
            raise ValueError(f"person must be one of the {len(self.people)} of the variants, got {person!r}")
        number = self.people.index(person)
        left_out, structural = 0, list[Edit]()
        spelled = [Spelled(Haplotype(encoded(self.reference))) for _ in range(2)]
        for edits, calls in zip(self.edits, self.calls, strict=True):
            if number not in calls:
                continue
            alleles, phased = calls[number]
            for side, allele in enumerate(alleles):
                if (edit := edits.get(allele)) is None:
                    continue
                order = spelled[side : side + 1] if phased else [spelled[side], spelled[1 - side]]
                if edit.spanned and any(not haplotype.free(edit) for haplotype in order):
                    # The deletion of an earlier record is there.
                    continue
                chosen = next((haplotype for haplotype in order if haplotype.free(edit)), order[0])
                if not chosen.put(edit):
                    # Of a site in several records, the others may call an allele missing that this one has.
                    left_out += edit.bases is not None or bool(edit.kind)
                elif edit.kind:
                    structural.append(edit)
        self._left_out[person], self._structural[person] = left_out, structural
        return spelled[0].haplotype, spelled[1].haplotype


class Spelled:
    """A haplotype into which records are put, in their order."""

    def __init__(self, haplotype: Haplotype) -> None:
        # A deletion may begin before the region.
        self.haplotype, self._busy = haplotype, -(2**31)
        # Records are in the order of POS, the base before an insertion or a deletion: a substitution of this base may
        # come after them.
        self._gap = (self._busy, self._busy)

    def free(self, edit: Edit) -> bool:
        """Whether an edit overlaps no earlier one."""
        end, (first, last) = edit.start + edit.removed, self._gap
        if edit.start < self._busy and not first <= edit.start <= end <= last:
            return False
        inserts = edit.bases is not None and len(edit.bases) > edit.removed
        return not inserts or end not in self.haplotype.inserted

    def put(self, edit: Edit) -> bool:
        """Apply an edit, unless it overlaps an earlier one; returns whether it was applied.

        A structural allele of unknown bases is applied whatever is there, and a missing one as far as nothing is there;
        a later allele takes the place of a missing one.
        """
        start, removed, bases, kind = edit
        end = start + removed
        if bases is None:
            before = (max(start, self._gap[0]), min(end, self._gap[1]))
            after = (max(start, self._busy), end)
            unknown = [(start, end)] if kind else [before, after]
            unknown = [(first, last) for first, last in unknown if first < last]
            for first, last in unknown:
                self._unknown(first, last)
                if kind:
                    self._busy = max(self._busy, last)
                    self._gap = (self._busy, self._busy)
            return bool(unknown)
        if not self.free(edit):
            return False
        length = len(self.haplotype.bases)
        # An insertion at the end of what is free takes nothing of it; of one within, what is behind stays free.
        first, last = self._gap
        if start >= self._busy:
            self._gap = (first if start == last == self._busy else self._busy, start)
        elif end > start or end < last:
            self._gap = (end, last)
        self._busy = max(self._busy, end)
        # Bases are substituted as far as both go; the rest is deleted or inserted.
        both = min(removed, len(bases))
        for place in range(max(start, 0), min(start + removed, length)):
            if place < start + both:
                self.haplotype.substitute(place, bases[place - start])
            else:
                self.haplotype.delete(place, 1)
        if len(bases) > both and 0 < start + both <= length:
            self.haplotype.insert(start + both, bases[both:])
        return True

    def _unknown(self, start: int, end: int) -> None:
        self.haplotype.bases[max(start, 0) : max(end, 0)] = N
        for place in [place for place in self.haplotype.inserted if start < place < end]:
            del self.haplotype.inserted[place]


def read(path: Path, reference: Reference, region: Region, people: Sequence[str] | None = None) -> Variants:
    """The genotypes of a region.

    With an index only the region is read, otherwise the file from its start.

    Args:
        path: Path of a VCF or BCF file, sorted.
        reference: Reference that the variants are called against.
        region: Region of the reference.
        people: Names of the people to read; None for all.

    Raises:
        GenomeError: The file is damaged, not sorted, without genotypes, or of another reference.
        ValueError: A person is not in the file.
    """
    bases = reference.fetch(region)
    variants, columns = Variants(bases, [], [], []), None
    if people is not None and not people:
        raise ValueError("people must name at least one")
    with told(path, "damaged"), opened(path) as file:
        names = list(file.header.samples)
        if not names:
            raise GenomeError(f"{path}: has no genotypes, only sites")
        if people is not None:
            known_names, chosen = set(names), set(people)
            if missing := [person for person in people if person not in known_names]:
                raise GenomeError(
                    f"{path}: has no person {missing[0]}" + f", and {len(missing) - 1} more" * (len(missing) > 1)
                )
            if any(map(_UNLISTED.match, people)):
                columns = [number for number, name in enumerate(names, start=9) if name in chosen]
            else:
                file.subset_samples(list(people))
        # People are in the order of the file, whatever the order of `people`.
        variants.people = names if people is None else [name for name in names if name in chosen]
        genotypes: dict[str, Genotype] = {}
        phase_sets: dict[int, set[str]] = {}
        for record in records(file, path, region):
            variants.records += 1
            _add(variants, record, region, path, genotypes, phase_sets, columns)
    _take_apart(variants, [number for number, sets in phase_sets.items() if len(sets) > 1])
    return variants


def people(path: Path) -> list[str]:
    """Names of the people in a file."""
    with told(path, "no VCF or BCF file that can be read"), opened(path) as file:
        return list(file.header.samples)


def sites(path: Path, region: Region, bases: str) -> Iterator[tuple[int, str, list[str], dict[str, str]]]:
    """The records of a region without genotypes: start in the region, reference, alternatives, and INFO by name.

    Args:
        path: Path of a VCF or BCF file, sorted.
        region: The region to read.
        bases: Bases of the reference in the region.

    Raises:
        GenomeError: The file cannot be used, or is of another reference.
    """
    with told(path, "damaged"), opened(path) as file:
        # Reading genotypes would cost time.
        file.subset_samples([])
        for record in records(file, path, region):
            start, ref, alts = placed(record, region, bases, path)
            info = (part.partition("=") for part in record[7].split(";"))
            if alts:
                yield start, ref, alts, {name: value for name, _, value in info}


def names(path: Path, region: Region) -> dict[int, str]:
    """Names (ID) of the variants of a file in a region, by position, from 1; variants without a name are left out.

    A variant is where it changes bases, which of a deletion is after POS; an insertion is at the base before it. Those
    of one place have their names with a slash between.

    Raises:
        GenomeError: The file cannot be used.
    """
    with told(path, "damaged"), opened(path) as file:
        if len(file.header.samples):
            file.subset_samples([])
        names_at: dict[int, list[str]] = {}
        for record in records(file, path, region):
            position, name = int(record[1]), record[2]
            edits = [edit_of(position, record[3].upper(), alt.upper()) for alt in record[4].split(",")]
            for place in {position if edit is None else edit.start - (not edit.removed) for edit in edits}:
                if name != "." and name not in names_at.setdefault(place, []):
                    names_at[place].append(name)
    return {place: "/".join(own) for place, own in names_at.items() if own}


def _add(
    variants: Variants, record: list[str], region: Region, path: Path, genotypes: dict[str, Genotype],
    phase_sets: dict[int, set[str]], columns: list[int] | None,
) -> None:  # fmt: skip
    """Add a record, of people in some columns; phase sets of heterozygous calls are added by the number of the person.

    Without columns it is one of all people.
    """
    start, ref, alts = placed(record, region, variants.reference, path)
    if record[8:9] == [] or record[8].split(":")[0] != "GT":
        raise GenomeError(f"{path}: at {record[0]}:{record[1]} it has no genotypes (GT)")
    keys = record[8].split(":")
    places = [keys.index(name) for name in ("PS", "PSL") if name in keys]
    calls: dict[int, Genotype] = {}
    for number, entry in enumerate(record[9:] if columns is None else [record[column] for column in columns]):
        written = entry.split(":", 1)[0]
        if written not in genotypes:
            genotypes[written] = _genotype(written, f"{path}: at {record[0]}:{record[1]}")
        if any(genotypes[written][0]):
            calls[number] = genotypes[written]
            alleles, phased = genotypes[written]
            if phased and alleles[0] != alleles[1]:
                phase_sets.setdefault(number, set()).add(_phase_set(entry, places))
    if not calls:
        return
    if record[6] not in ("PASS", "."):
        variants.failed.append(int(record[1]))
    called = {allele for alleles, _ in calls.values() for allele in alleles}
    if max(called) > len(alts):
        raise GenomeError(f"{path}: at {record[0]}:{record[1]} it has allele {max(called)} of {len(alts)}")
    site = Site(record[0], region.start, start, ref, alts, record[7])
    try:
        variants.edits.append(site.edits(called))
        if any(edit.kind for edit in variants.edits[-1].values()) and site.disagrees:
            variants.disagreeing.append(int(record[1]))
    except ValueError as error:
        raise GenomeError(f"{path}: at {record[0]}:{record[1]} {error}") from error
    variants.calls.append(calls)


def _phase_set(entry: str, places: Sequence[int]) -> str:
    """The phase set of a call; calls without one are of one set, which is empty. VCF 4.4, section 1.6.2."""
    fields = entry.split(":") if places else []
    return ":".join(fields[place].strip(".,") for place in places if place < len(fields)).strip(":")


def _take_apart(variants: Variants, numbers: Sequence[int]) -> None:
    """Make the calls of people count as not phased: nothing says which haplotypes of their phase sets are together."""
    variants.apart = [variants.people[number] for number in sorted(numbers)]
    for calls in variants.calls:
        for number in calls.keys() & set(numbers):
            alleles, _ = calls[number]
            calls[number] = alleles, alleles[0] == alleles[1]


def _genotype(text: str, where: str) -> Genotype:
    # VCF 4.4 may give the phase of the first allele too.
    alleles = re.split(r"[|/]", text.lstrip("|/"))
    if not 1 <= len(alleles) <= 2 or not all(allele == "." or allele.isdecimal() for allele in alleles):
        raise GenomeError(f"{where} a genotype must have one or two alleles, one has {len(alleles)}")
    # A single chromosome, as X in men, counts as both.
    numbers = tuple(MISSING if allele == "." else int(allele) for allele in alleles) * (3 - len(alleles))
    return numbers, "/" not in text or numbers[0] == numbers[1]
