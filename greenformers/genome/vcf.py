"""Files of variants, VCF and BCF: their records as columns, and whether they are of a reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from greenformers.genome.alleles import reach
from greenformers.genome.files import (
    INDEXES,
    GenomeError,
    Region,
    check_people,
    checked,
    htslib,
    index_of,
    matched,
    named,
    told,
    whole,
)  # fmt: skip

SUFFIXES = (".vcf", ".vcf.gz", ".bcf")
"""Suffixes of files of variants."""


def opened(path: Path) -> Any:
    """A file of variants, opened by htslib.

    Raises:
        GenomeError: It is none, or cannot be read.
    """
    pysam, name = htslib(), checked(path)
    if not path.name.lower().endswith(SUFFIXES):
        raise GenomeError(f"{path}: variants must be in a .vcf, .vcf.gz or .bcf file")
    whole(path)
    try:
        with told(path, "no VCF or BCF file that can be read"):
            return pysam.VariantFile(name)
    except GenomeError:
        check_people(path)
        raise


def placed(record: list[str], region: Region, bases: str, path: Path) -> tuple[int, str, list[str]]:
    """Start in the region, reference and alternatives of a record.

    Raises:
        GenomeError: Its reference is not that of the region, whose bases are given.
    """
    start, ref = int(record[1]) - 1 - region.start, record[3].upper()
    inside = bases[max(start, 0) : max(start + len(ref), 0)]
    ours = ref[max(-start, 0) : max(-start, 0) + len(inside)]
    if any(theirs != here for theirs, here in zip(ours, inside, strict=True) if "N" not in (theirs, here)):
        mismatch = f"at {record[0]}:{record[1]} it has {ref[:20]} for the reference's {inside[:20]}"
        raise GenomeError(f"{path}: is not of this reference, {mismatch}")
    # Names of contigs in breakends have small letters too.
    alts = [alt if re.search(r"[\[\]<]", alt) else alt.upper() for alt in record[4].split(",")]
    return start, ref, [] if alts == ["."] else alts


def records(file: Any, path: Path, region: Region) -> Iterator[list[str]]:
    """Yield the columns of the records that overlap a region.

    Raises:
        GenomeError: The file is not sorted, its index is of another file, or it has no records of the contig.
    """
    kind = next((kind for kind in INDEXES if path.name.lower().endswith(kind)), None)
    contigs = len(file.header.contigs) if kind == ".bcf" else None
    index = None if kind is None else index_of(path, INDEXES[kind], contigs, needed=False)
    header_contigs = set(file.header.contigs)
    if index is not None and kind == ".vcf.gz":
        # A header need not name all contigs.
        with htslib().TabixFile(str(path.resolve()), index=index) as lines:
            index_contigs = lines.contigs
        first = next(iter(file), None)
        if first is not None and first.chrom not in index_contigs:
            raise GenomeError(f"{path}: its index is of another file, it has no contig {first.chrom}")
        name = matched(region.contig, index_contigs)
        every = file.fetch(name, region.start, region.end) if name else ()
    else:
        every = (
            file.fetch()
            if index is None
            else file.fetch(named(region.contig, header_contigs, path), region.start, region.end)
        )
    seen, before = dict[str, bool](), -1
    for record in every:
        contig = record.chrom
        if contig not in seen:
            seen[contig] = matched(region.contig, [contig]) is not None
        if not seen[contig]:
            continue
        if record.start < before:
            raise GenomeError(f"{path}: must be sorted, position {record.pos} comes after {before + 1}")
        before = record.start
        if record.start >= region.end:
            continue
        inside = record.start + len(record.ref) > region.start
        # The text of a record is long where there are many people.
        if inside or record.alts is None or any(alt.startswith("<") for alt in record.alts):
            columns = str(record).rstrip("\n").split("\t")
            if inside or reach(record.start, columns[3], columns[4].split(","), columns[7]) > region.start:
                yield columns
    if not any(seen.values()):
        contig = named(region.contig, header_contigs | set(seen), path)
        if index is None:
            elsewhere = bool(seen)
        elif kind == ".vcf.gz":
            elsewhere = not name and bool(index_contigs)
        else:
            elsewhere = not any(True for _ in file.fetch(contig)) and any(True for _ in file.fetch())
        if elsewhere:
            raise GenomeError(f"{path}: has no record of contig {contig}, which its header names, but of others")
