"""Made-up phenotypes of real genotypes, and made-up genotypes, to try a pipeline where no cohort can be had.

Results on them say nothing about people. Synthetic haplotypes are drawn from the frequencies of sites, each by itself:
there is no linkage between them, and their file says so.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from greenformers._extras import needed
from greenformers.genome import variants
from greenformers.genome.alleles import edit_of
from greenformers.genome.corpus import frequency
from greenformers.genome.files import GenomeError, Region, checked, htslib
from greenformers.genome.reference import Reference

APOE = {"e2/e2": 0.6, "e2/e3": 0.6, "e3/e3": 1.0, "e2/e4": 2.6, "e3/e4": 3.2, "e4/e4": 14.9}
"""Odds ratios of Alzheimer's disease by APOE genotype, Caucasian subjects of clinics and autopsies. Farrer 1997, JAMA
278(16), table 3."""

EPSILON = {("T", "T"): "e2", ("T", "C"): "e3", ("C", "C"): "e4", ("C", "T"): "e1"}
"""Alleles of APOE by the bases at rs429358 and rs7412."""

APOE_SITES = {37: (45_411_941, 45_412_079), 38: (44_908_684, 44_908_822)}
"""Positions of rs429358 and rs7412 on chr19, from 1, by the number of the GRCh assembly."""

PRESETS = {f"apoe{assembly}": assembly for assembly in APOE_SITES}


@dataclass(frozen=True)
class Effect:
    """The effect of an allele.

    Attributes:
        position: Position in the genome, from 1.
        allele: The base.
        odds_ratio: Odds ratio of each copy of the base.
    """

    position: int
    allele: str
    odds_ratio: float


def effects(table: Path) -> list[Effect]:
    """Read effects from a table with the columns position, allele and odds_ratio, separated by tabs.

    Raises:
        GenomeError: The table is missing, or a row is not like this.
    """
    checked(table)
    try:
        return _effects(table)
    except (UnicodeDecodeError, csv.Error) as error:
        raise GenomeError(f"{table}: no table that can be read ({error})") from error


def _effects(table: Path) -> list[Effect]:
    causes = []
    with table.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", strict=True)
        if missing := {"position", "allele", "odds_ratio"} - set(reader.fieldnames or []):
            raise GenomeError(f"{table}: must have columns position, allele, odds_ratio; has no {sorted(missing)[0]}")
        for row in reader:
            try:
                cause = Effect(int(row["position"]), row["allele"].upper(), float(row["odds_ratio"]))
            except (ValueError, TypeError, AttributeError):
                cause = Effect(0, "", 0.0)
            if cause.position < 1 or cause.allele not in tuple("ACGT") or not 0 < cause.odds_ratio < math.inf:
                raise GenomeError(
                    f"{table}: line {reader.line_num} must have a position, a base, an odds ratio above 0"
                )
            causes.append(cause)
    if not causes:
        raise GenomeError(f"{table}: has no effects")
    return causes


def bases_at(called: variants.Variants, region: Region, positions: Sequence[int]) -> Iterator[list[str]]:
    """Bases of both haplotypes of every person at some positions of the genome, as two strings.

    Raises:
        ValueError: A position is not in the region.
    """
    for position in positions:
        if not region.start < position <= region.end:
            raise ValueError(f"positions of effects must be in {region}, got {position}")
    places = [position - 1 - region.start for position in positions]
    for person in called.people:
        yield [
            "".join("ACGTN------"[haplotype.bases[place]] for place in places)
            for haplotype in called.haplotypes(person)
        ]


def epsilon(called: variants.Variants, region: Region, assembly: int) -> list[str]:
    """The APOE genotype of every person, such as e3/e4; ? where it is not known.

    Unphased calls of an e2/e4 are those of an e1/e3 too, and e1 is one in thousands.
    """
    places = [position - 1 - region.start for position in APOE_SITES[assembly]]
    records = [
        calls for edits, calls in zip(called.edits, called.calls, strict=True)
        if any(edit.start <= place < edit.start + edit.removed for edit in edits.values() for place in places)
    ]  # fmt: skip
    genotypes = []
    for person, both in enumerate(bases_at(called, region, APOE_SITES[assembly])):
        phased = all(calls[person][1] for calls in records if person in calls)
        alleles = sorted(EPSILON.get((bases[0], bases[1]), "?") for bases in both)
        genotype = "?" if "?" in alleles else "/".join(alleles)
        genotypes.append("e2/e4" if genotype == "e1/e3" and not phased else genotype)
    return genotypes


def log_odds(called: variants.Variants, region: Region, causes: Sequence[Effect]) -> list[float | None]:
    """Sum of the logarithms of the odds ratios of every person's alleles; None where one of them is not known."""
    return _log_odds(bases_at(called, region, [cause.position for cause in causes]), causes)


def _log_odds(bases: Iterable[list[str]], causes: Sequence[Effect]) -> list[float | None]:
    return [
        None
        if any("N" in side for side in both)
        else sum(
            math.log(cause.odds_ratio) * sum(side[site] == cause.allele for side in both)
            for site, cause in enumerate(causes)
        )
        for both in bases
    ]


def _check_differ(bases: Sequence[list[str]], causes: Sequence[Effect]) -> None:
    """Warn of effects of alleles of which all people have as many copies, as they make no difference.

    Raises:
        ValueError: All effects are such.
    """
    alike = []
    for site, cause in enumerate(causes):
        counts = {sum(side[site] == cause.allele for side in both) for both in bases if "N" not in "".join(both)}
        if len(counts) == 1:
            alike.append(f"{cause.position} {cause.allele}")
    if len(alike) == len(causes):
        raise ValueError(f"positions of effects must have variants of their alleles, none of {', '.join(alike)} has")
    if alike:
        warnings.warn(f"nobody differs at {', '.join(alike)}: these effects make no difference", stacklevel=3)


def phenotypes(odds: Sequence[float], prevalence: float, seed: int) -> list[int]:
    """Phenotypes, 1 for ill, drawn by a logistic model whose mean probability is the prevalence.

    Raises:
        ValueError: The prevalence is not in (0, 1).
    """
    needed("drawing phenotypes", "genome", "scipy")
    from scipy.optimize import brentq
    from scipy.special import expit

    if not 0 < prevalence < 1:
        raise ValueError(f"prevalence must be above 0 and below 1, got {prevalence}")
    values = np.array(odds)
    bound = float(np.abs(values).max(initial=0.0)) + 50.0 - math.log(prevalence) - math.log1p(-prevalence)
    base = brentq(lambda a: float(expit(a + values).mean()) - prevalence, -bound, bound)
    drawn = np.random.default_rng(seed).random(len(values))
    return [int(ill) for ill in drawn < expit(base + values)]


def odds_of(
    path: Path, reference: Reference, region: str | None, preset: str | None, table: Path | None
) -> tuple[dict[str, float | None], str]:
    """Log odds of all people in a file of variants, None where they are not known, and the name of their source.

    Args:
        path: VCF or BCF file.
        reference: Reference that the variants are called against.
        region: Region to read; None for the one that the preset needs, or else the only sequence.
        preset: Published odds ratios: "apoe37" or "apoe38".
        table: Table of `effects`, where there is no preset.

    Raises:
        ValueError: There is no such preset, or all people have as many copies of the alleles of all effects.
        GenomeError: A file cannot be used.
    """
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}; got {preset!r}")
    if preset is None:
        assert table is not None
        causes, where = effects(table), reference.region(region)
        called = variants.read(path, reference, where)
        bases = list(bases_at(called, where, [cause.position for cause in causes]))
        _check_differ(bases, causes)
        return dict(zip(called.people, _log_odds(bases, causes), strict=True)), table.name
    assembly = PRESETS[preset]
    first, last = APOE_SITES[assembly]
    where = reference.region(region or f"19:{first}-{last}")
    called = variants.read(path, reference, where)
    letters = [called.reference[position - 1 - where.start : position - where.start] for position in (first, last)]
    if letters != ["T", "C"]:
        sites = f"{where.contig}:{first} and {last}"
        raise GenomeError(
            f"{reference.path}: is not GRCh{assembly}, at {sites} there are {', '.join(letters)} for T, C"
        )
    published: dict[str, float | None] = {name: math.log(ratio) for name, ratio in APOE.items()}
    genotypes = epsilon(called, where, assembly)
    return {name: published.get(genotype) for name, genotype in zip(called.people, genotypes, strict=True)}, preset


def write_phenotypes(
    out: Path, odds: dict[str, float | None], prevalence: float, seed: int, source: str
) -> dict[str, int]:
    """Write a table of made-up phenotypes, 1 for ill; the file gets its name when it is finished.

    Returns:
        Number of people who are "1", "0", and "left out", as their odds are not known.

    Raises:
        ValueError: The prevalence is not in (0, 1), or nobody's odds are known.
    """
    known_odds = {name: value for name, value in odds.items() if value is not None}
    if not known_odds:
        raise ValueError(f"of {len(odds)} people nobody has a genotype with an odds ratio")
    drawn = phenotypes(list(known_odds.values()), prevalence, seed)
    source_text = f"simulated: {source}, prevalence {prevalence:g}, seed {seed}"
    unfinished = out.with_name(f".{out.name}.unfinished")
    with unfinished.open("w", encoding="utf-8", newline="") as file:
        file.write("person\tphenotype\tsource\n")
        file.writelines(f"{name}\t{ill}\t{source_text}\n" for name, ill in zip(known_odds, drawn, strict=True))
    unfinished.replace(out)
    return {"1": sum(drawn), "0": len(drawn) - sum(drawn), "left out": len(odds) - len(known_odds)}


def synthetic(
    sites: Path, reference: Reference, region: Region, people: int, out: Path, seed: int,
    left_out: list[int] | None = None,
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Write a VCF of people whose haplotypes are drawn from the frequencies of sites; yields position done, records.

    Sites of structural variants, of which the bases are not known, are left out.

    Args:
        sites: VCF or BCF file with frequencies (INFO AF).
        reference: Reference of the sites.
        region: Region of the sites.
        people: Number of people, whose names are S0001 and so on.
        out: File to write, .vcf.gz, with an index beside it; both get their names when they are finished.
        seed: Seed of the draw.
        left_out: Positions, from 1 on the contig, to which those of these sites are added.

    Raises:
        GenomeError: The sites cannot be used, or have no frequencies.
        ValueError: `people` is below 1, or `out` does not end in .vcf.gz.
    """
    if people < 1 or not out.name.endswith(".vcf.gz"):
        raise ValueError(f"people must be at least 1 and out end in .vcf.gz, got {people} and {out.name}")
    pysam = htslib()
    source = np.random.default_rng(seed)
    names = [f"S{number:0{len(str(people))}}" for number in range(1, people + 1)]
    unfinished = out.with_name(f".{out.name}.unfinished.vcf.gz")
    written, bases = 0, reference.fetch(region)
    try:
        # pysam would crash where it cannot open the file.
        unfinished.touch()
        with pysam.BGZFile(str(unfinished.resolve()), "wb") as file:
            file.write("\n".join([*_header(region, names), ""]).encode())
            for start, ref, alts, info in variants.sites(sites, region, bases):
                frequencies = frequency(info, len(alts), sites)
                if frequencies is None or start < 0:
                    continue
                share = [max(0.0, 1 - sum(frequencies)), *frequencies]
                drawn = source.choice(len(share), size=(people, 2), p=np.array(share) / sum(share))
                # After the draw, so that those of the other sites do not depend on it.
                if any(edit_of(start, ref, alt) is None for alt in alts):
                    if left_out is not None:
                        left_out.append(region.start + start + 1)
                    continue
                calls = "\t".join(f"{first}|{second}" for first, second in drawn.tolist())
                place = region.start + start + 1
                file.write(f"{region.contig}\t{place}\t.\t{ref}\t{','.join(alts)}\t.\t.\t.\tGT\t{calls}\n".encode())
                written += 1
                yield start + region.start, written
        if not written:
            raise GenomeError(f"{sites}: has no site with a frequency (AF) at {region}")
        pysam.tabix_index(str(unfinished.resolve()), preset="vcf", force=True)
        for suffix in (".tbi", ""):
            unfinished.with_name(unfinished.name + suffix).replace(out.with_name(out.name + suffix))
    finally:
        for suffix in (".tbi", ""):
            unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)


def _header(region: Region, names: list[str]) -> list[str]:
    columns = ["#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO", "FORMAT", *names]
    return [
        "##fileformat=VCFv4.3",
        "##source=greenformers genome simulate",
        "##synthetic=haplotypes drawn from the frequency of each site by itself; no linkage; no real person",
        '##FORMAT=<ID=GT,Number=1,Type=String,Description="Genotype">',
        f"##contig=<ID={region.contig}>",
        "\t".join(columns),
    ]
