"""Diplotypes of reads once more, in plain Python, from what samtools mpileup prints."""

import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

from greenformers.genome.diplotype import SYMBOLS

GONE = "*"


def printed(path: Path, reference: str, contig: str, mapping: int = 0) -> dict[int, list[tuple[str, str, int, str]]]:
    """By position from 0, of every read there: its name, base, quality and what is inserted after."""
    import pysam  # of the genome extra

    text = pysam.samtools.mpileup(
        "-B", "-x", "-Q", "0", "-q", str(mapping), "-d", "0", "-r", contig, "--output-QNAME", str(path)
    )
    columns = {}
    for row in text.splitlines():
        _, place, _, count, marks, qualities, names = row.split("\t")
        if count == "0":
            continue
        place = int(place) - 1
        here = reads(marks, reference[place])
        names = names.split(",")
        assert len(here) == len(names) == len(qualities) == int(count)
        columns[place] = [
            (name, base, ord(quality) - 33, added)
            for name, (base, added), quality in zip(names, here, qualities, strict=True)
        ]
    return columns


def reads(marks: str, reference: str) -> list[tuple[str, str]]:
    """Base of each read and what is inserted after it."""
    bases, at = [], 0
    while at < len(marks):
        mark = marks[at]
        if mark == "^":
            at += 2
        elif mark == "$":
            at += 1
        elif mark in "+-":
            count = re.match(r"\d+", marks[at + 1 :])[0]
            start = at + 1 + len(count)
            at = start + int(count)
            if mark == "+":
                # Padding is no base.
                bases[-1] = (bases[-1][0], marks[start:at].upper().replace("*", ""))
        else:
            bases.append((reference if mark in ".," else mark.upper(), ""))
            at += 1
    return bases


def counted(column: list[tuple[str, str, int, str]], quality: int) -> list[tuple[str, str]]:
    """Base, and what is inserted after it, of every fragment."""
    fragments = {}
    for name, base, own, added in column:
        if base in "ACGT" + GONE and own >= quality:
            fragments.setdefault(name, []).append((own, base, added))
    bases = []
    for mates in fragments.values():
        best = [mate for mate in mates if mate[0] == max(own for own, _, _ in mates)]
        if len({base for _, base, _ in best}) == 1:
            bases.append(best[0][1:])
    return bases


def pair(seen: list[str], order: str, thresholds) -> list[str] | None:
    """The two most frequent; None where there are too few."""
    if len(seen) < thresholds.depth:
        return None
    ranked = sorted(Counter(seen).items(), key=lambda entry: (-entry[1], order.index(entry[0])))
    first, second = ranked[0][0], ranked[1:2]
    for other, often in second:
        if often >= thresholds.count and often >= Fraction(str(thresholds.share)) * len(seen):
            return [first, other]
    return [first, first]


def written(both: list[str], suffix: str) -> str:
    symbols = ["DEL" if base == GONE else base + suffix for base in both]
    return "-".join(sorted(symbols, key=SYMBOLS.index))


def expected(columns: dict[int, list[tuple[str, str, int, str]]], start: int, end: int, thresholds) -> list[str]:
    """The pairs of positions start..end - 1, and between them and after them, as A-C."""
    pairs = []
    for place in range(start, end):
        seen = counted(columns.get(place, []), thresholds.base_quality)
        both = pair([base for base, _ in seen], "ACGT" + GONE, thresholds)
        pairs.append("N-N" if both is None else written(both, ""))
        for number in range(max((len(added) for _, added in seen), default=0)):
            column = [added[number] if number < len(added) else GONE for _, added in seen]
            both = pair(column, "ACGTN" + GONE, thresholds)
            if both not in (None, [GONE, GONE]):
                pairs.append(written(both, "I"))
    return pairs
