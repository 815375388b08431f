"""`greenformers genome simulate`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli.genome._flags import FASTA, Where

ORDER = 30
EXAMPLES = (
    "greenformers genome simulate --reference hg19.fa --variants 1000g.vcf.gz --preset apoe37 "
    "--prevalence 0.3 --out cohort.tsv",
    "greenformers genome simulate --reference hg19.fa --sites sites.vcf.gz --region 19:45409039-45412650 "
    "--people 1000 --out made.vcf.gz",
)


def simulate(
    reference: FASTA,
    out: Annotated[Path, typer.Option(help="File to write: a table of phenotypes, or .vcf.gz of genotypes.")],
    region: Where = None,
    variants: Annotated[Path | None, typer.Option(help="Phenotypes for the people of a VCF or BCF.")] = None,
    preset: Annotated[str | None, typer.Option(help="apoe37 or apoe38: published odds ratios, GRCh37 or 38.")] = None,
    effects: Annotated[
        Path | None, typer.Option(help="Table (.tsv) with position, allele and odds_ratio, of each copy.")
    ] = None,
    prevalence: Annotated[float, typer.Option(help="Share of people with the disease.")] = 0.5,
    sites: Annotated[Path | None, typer.Option(help="Genotypes drawn from the frequencies (AF) of a VCF.")] = None,
    people: Annotated[int | None, typer.Option(help="How many to draw; 1000 if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
) -> None:
    """Make up phenotypes for real genotypes, or genotypes from frequencies (without linkage), to try a pipeline."""
    from greenformers.genome import simulate as made
    from greenformers.genome.reference import Reference

    if (variants is None) == (sites is None):
        raise ValueError("name --variants, for phenotypes, or --sites, for genotypes; one of them")
    if variants is not None and (preset is None) == (effects is None):
        raise ValueError("name --preset or --effects, one of them")
    if sites is not None and (preset is not None or effects is not None):
        raise ValueError("preset and effects are for --variants")
    if variants is not None and people is not None:
        raise ValueError("people are for --sites")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if out.exists():
        raise ValueError(f"{out} is there already")
    genome = Reference(reference)
    if sites is not None:
        where = genome.region(region)
        with terminal.Steps(terminal.console(stderr=True)) as steps:
            written, count = 0, 1000 if people is None else people
            for place, written in made.synthetic(sites, genome, where, count, out, seed):  # noqa: B007
                steps("sites", (place - where.start) / len(where))
        print(f"{out}: {count:,} synthetic people, {written:,} sites, no linkage")
        return
    assert variants is not None
    odds, source = made.odds_of(variants, genome, region, preset, effects)
    counts = made.write_phenotypes(out, odds, prevalence, seed, source)
    print(f"{out}: {counts['1']:,} people with the made-up disease, {counts['0']:,} without")
    if counts["left out"]:
        print(f"left out: {counts['left out']:,} without a published odds ratio")
