"""Made-up genomes, reads and variants, written to disk with pysam."""

import random
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from greenformers.genome.diplotype import SYMBOLS, symbols

DATA = Path(__file__).parents[2].parent / "shared/data"
_SPANS = (("END", 1), ("SVLEN", "."))
ABSENT = "shared/data is not beside the repository on this machine"


def bases(count: int, seed: int = 0, letters: str = "ACGT") -> str:
    return "".join(random.Random(seed).choices(letters, k=count))


def names(pairs) -> list[str]:
    """Pairs as A-C, the smaller code first."""
    return [f"{SYMBOLS[first]}-{SYMBOLS[second]}" for first, second in symbols(pairs)]


def fasta(path: Path, width: int = 60, **sequences: str) -> Path:
    """Sequences under their names; a name may have __ for what Python's names cannot: a colon, then a minus."""
    lines = []
    for name, sequence in sequences.items():
        lines.append(">" + name.replace("__", ":", 1).replace("__", "-"))
        lines += [sequence[start : start + width] for start in range(0, len(sequence), width)]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def line(
    name: str,
    start: int,
    cigar: str,
    sequence: str,
    qualities: Sequence[int] | int | None = 30,
    *,
    flag: int = 0,
    mapping: int = 60,
    contig: str = "17",
) -> str:
    """A read as a line of SAM.

    Args:
        name: of its fragment.
        start: of the first aligned position, from 0.
        cigar: how it is aligned.
        sequence: its bases.
        qualities: of the bases; one number for all of them, None where they are missing.
        flag: of SAM.
        mapping: its mapping quality.
        contig: what it is aligned to.
    """
    if isinstance(qualities, int):
        qualities = [qualities] * len(sequence)
    written = "*" if qualities is None or sequence == "*" else "".join(chr(33 + quality) for quality in qualities)
    fields = (name, flag, contig, start + 1, mapping, cigar, "*", 0, 0, sequence, written)
    return "\t".join(map(str, fields))


def aligned(
    path: Path,
    lines: Iterable[str],
    contigs: dict[str, int],
    *,
    reference: Path | None = None,
    order: str = "coordinate",
    index: bool = True,
    groups: Iterable[str] = (),
) -> Path:
    """Write a BAM file, or a CRAM file to a reference."""
    import pysam  # of the genome extra

    header = [f"@HD\tVN:1.6\tSO:{order}"] + [f"@SQ\tSN:{name}\tLN:{length}" for name, length in contigs.items()]
    header += [f"@RG\tID:{number}\tSM:{person}" for number, person in enumerate(groups)]
    sam = path.with_suffix(".sam")
    sam.write_text("".join(row + "\n" for row in [*header, *lines]))
    if order == "coordinate":
        kind = ["-O", "cram", "--reference", str(reference)] if path.suffix == ".cram" else ["-O", "bam"]
        pysam.sort(*kind, "-o", str(path), str(sam))
    else:
        pysam.view("-b", "-o", str(path), str(sam), catch_stdout=False)
    sam.unlink()
    if index:
        pysam.index(str(path))
    return path


def vcf(
    path: Path,
    records: Iterable[Sequence[object]],
    people: Sequence[str] = ("ann",),
    *,
    contig: str = "19",
    index: bool = True,
    infos: Sequence[str] = (),
    others: Sequence[str] = (),
) -> Path:
    """Write .vcf, .vcf.gz or .bcf.

    Args:
        path: of the file.
        records: of each: position, from 1, reference allele, other alleles, and what each person has.
        people: their names.
        contig: of the records.
        index: whether one is made, where there can be one.
        infos: INFO of each record, where there are any.
        others: further contigs that the header names.
    """
    import pysam

    header = [
        "##fileformat=VCFv4.3",
        *(f"##contig=<ID={name},length=1000000>" for name in (contig, *others)),
        '##FORMAT=<ID=GT,Number=1,Type=String,Description="Genotype">',
        *(f'##INFO=<ID={name},Number={number},Type=Integer,Description="Span">' for name, number in _SPANS if infos),
        "\t".join(
            ["#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO", *(["FORMAT", *people] * bool(people))]
        ),
    ]
    lines = []
    for info, (place, ref, alt, *calls) in zip_longest(infos, records, fillvalue="."):
        lines.append(
            "\t".join(map(str, [contig, place, ".", ref, alt, ".", ".", info, *(["GT"] * bool(calls)), *calls]))
        )
    text = "".join(row + "\n" for row in header + lines)
    if path.suffix == ".vcf":
        path.write_text(text)
        return path
    plain = path.with_name(path.name + ".plain")
    plain.write_text(text)
    if path.suffix == ".bcf":
        with pysam.VariantFile(str(plain)) as there, pysam.VariantFile(str(path), "wb", header=there.header) as here:
            for record in there:
                here.write(record)
        if index:
            pysam.tabix_index(str(path), preset="bcf")
    else:
        pysam.tabix_compress(str(plain), str(path))
        if index:
            pysam.tabix_index(str(path), preset="vcf")
    plain.unlink()
    return path
