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
    out: Annotated[
        Path, typer.Option(help="File that is written: a table of phenotypes, or a .vcf.gz file of genotypes.")
    ],
    region: Where = None,
    variants: Annotated[
        Path | None, typer.Option(help="VCF or BCF file of people, for whom phenotypes are drawn.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Published odds ratios at APOE: apoe37 (GRCh37) or apoe38 (GRCh38).")
    ] = None,
    effects: Annotated[
        Path | None, typer.Option(help="Table (.tsv) with columns position, allele, and odds_ratio of one copy.")
    ] = None,
    prevalence: Annotated[
        float | None, typer.Option(help="Share of people with the disease, with --variants; by default 0.5.")
    ] = None,
    sites: Annotated[
        Path | None, typer.Option(help="VCF file of frequencies (AF), from which genotypes are drawn.")
    ] = None,
    people: Annotated[int | None, typer.Option(help="Number of people with --sites; by default 1000.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
) -> None:
    """Draw phenotypes for real genotypes, or genotypes from frequencies (without linkage), to try the pipeline."""
    from greenformers.genome import simulate as simulation
    from greenformers.genome.corpus import without_bases
    from greenformers.genome.reference import Reference

    if (variants is None) == (sites is None):
        raise ValueError("give either --variants, for phenotypes, or --sites, for genotypes")
    if variants is not None and (preset is None) == (effects is None):
        raise ValueError("--variants needs either --preset or --effects")
    if sites is not None and (preset is not None or effects is not None):
        raise ValueError("--preset and --effects cannot be combined with --sites: they need --variants")
    if sites is not None and prevalence is not None:
        raise ValueError("--prevalence cannot be combined with --sites: it needs --variants")
    if variants is not None and people is not None:
        raise ValueError("--people cannot be combined with --variants: it needs --sites")
    if prevalence is not None and not 0 < prevalence < 1:
        raise ValueError(f"prevalence must be above 0 and below 1, got {prevalence}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if out.exists():
        raise ValueError(f"{out} is there already")
    genome = Reference(reference)
    if sites is not None:
        where = genome.region(region)
        with terminal.Steps(terminal.console(stderr=True)) as steps:
            written, count, left_out = 0, 1000 if people is None else people, list[int]()
            drawn = simulation.synthetic(sites, genome, where, count, out, seed, left_out)
            for place, written in drawn:  # noqa: B007
                steps("sites", (place - where.start) / len(where))
        print(f"{out}: {count:,} synthetic people, {written:,} sites, no linkage")
        if left_out:
            print(without_bases(len(left_out)))
        return
    assert variants is not None
    odds, source = simulation.odds_of(variants, genome, region, preset, effects)
    counts = simulation.write_phenotypes(out, odds, 0.5 if prevalence is None else prevalence, seed, source)
    print(f"{out}: {counts['1']:,} people with the made-up disease, {counts['0']:,} without")
    if counts["left out"]:
        print(f"left out: {counts['left out']:,} whose odds are not known")
