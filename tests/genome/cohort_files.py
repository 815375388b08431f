"""Small files of a made-up cohort: reads, variants, tables; and how they are damaged."""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from genome.made import aligned, bases, fasta, line, vcf

SEQUENCE = bases(300, 31)
OTHER = {"A": "C", "C": "G", "G": "T", "T": "A"}
PLACES = (10, 40, 150)
CALLS = {"ann": ("0|1", "1|1", "0|0"), "bob": ("1|0", "0|0", "0|1"), "cid": ("0|0", "0|1", "1|1")}


def changed(*places: int) -> str:
    """The reference with other bases at some positions, from 1."""
    return "".join(OTHER[base] if at in places else base for at, base in enumerate(SEQUENCE, 1))


def records(*people: str) -> list[tuple[object, ...]]:
    return [
        (place, SEQUENCE[place - 1], OTHER[SEQUENCE[place - 1]], *[CALLS[name][at] for name in people])
        for at, place in enumerate(PLACES)
    ]


def reads(*sequences: str) -> list[str]:
    return [
        line(f"r{number}", 0, f"{len(sequence)}M", sequence, contig="19")
        for number, sequence in enumerate([*sequences] * 4)
    ]


def with_info(path: Path, *abouts: str) -> Path:
    """A VCF of sites: INFO of each."""
    lines = [row.split("\t") for row in vcf(path, records(), people=()).read_text().splitlines()]
    about = iter(abouts)
    lines = [row if row[0].startswith("#") else [*row[:7], next(about)] for row in lines]
    path.write_text("".join("\t".join(row) + "\n" for row in lines))
    return path


def everything(folder: Path) -> Path:
    """Of three people, one of whom has reads."""
    import pysam

    folder.mkdir()
    reference = fasta(folder / "ref.fa", **{"19": SEQUENCE})
    pysam.faidx(str(reference))
    aligned(folder / "dan.bam", reads(SEQUENCE, changed(20)), {"19": 300})
    aligned(folder / "eve.cram", reads(changed(30)), {"19": 300}, reference=reference)
    vcf(folder / "all.vcf.gz", records(*CALLS), list(CALLS))
    vcf(folder / "ann.vcf", records("ann"), ["ann"])
    with_info(folder / "sites.vcf", "AF=0.3", "AF=0.001", "AF=0.5")
    (folder / "all.tsv").write_text("person\tphenotype\nann\t1\nbob\t0\ncid\tNA\n")
    (folder / "paths.tsv").write_text("person\tphenotype\tpath\nann\t1\tann.vcf\ndan\t0\tdan.bam\n")
    (folder / "effects.tsv").write_text(f"position\tallele\todds_ratio\n10\t{OTHER[SEQUENCE[9]]}\t3\n")
    (folder / "text").write_text("nothing of a genome\n")
    return folder


Damage = Callable[[Path], object]


def cut(name: str, share: float = 0.5) -> Damage:
    """The file ends early; its index is not older."""

    def damage(folder: Path) -> None:
        path = folder / name
        status = os.stat(path)
        path.write_bytes(path.read_bytes()[: int(share * status.st_size)])
        os.utime(path, (status.st_atime, status.st_mtime))

    return damage


def written(name: str, content: str | bytes = b"") -> Damage:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def named(name: str, other: str) -> Damage:
    return lambda folder: shutil.copy2(folder / name, folder / other)


def replaced(name: str, *pairs: tuple[str, str]) -> Damage:
    def damage(folder: Path) -> None:
        text = (folder / name).read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text)

    return damage


def older(name: str) -> Damage:
    return lambda folder: os.utime(folder / name, (1e9, 1e9))


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def packed(name: str) -> Damage:
    """With gzip, in place of the file."""

    def damage(folder: Path) -> None:
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()

    return damage


def bam(name: str, *lines: str, **given: object) -> Damage:
    return lambda folder: aligned(folder / name, lines, **{"contigs": {"19": 300}} | given)


def variants(name: str, *rows: tuple[object, ...], people: tuple[str, ...] = ("ann",), **given: object) -> Damage:
    return lambda folder: vcf(folder / name, rows, people, **given)


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]
