"""`greenformers genome encode`. Heavy imports are inside the command, so that --help answers at once."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import from_fields
from greenformers.cli.genome._flags import FASTA, Where
from greenformers.genome.read_options import Thresholds

if TYPE_CHECKING:
    from greenformers.genome.cohort import Cohort
    from greenformers.genome.encode import Encoding

ORDER = 10
EXAMPLES = (
    "greenformers genome encode everybody.vcf.gz --reference hg19.fa --region 19:45409039-45412650 "
    "--cohort cohort.tsv --out apoe.tsv",
)


@from_fields
def encode(
    *,
    reference: FASTA,
    out: Annotated[Path, typer.Option(help="File that is written, with one line for each person.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="BAM or CRAM files of one person each; VCF or BCF, or FASTA of assembled haplotypes, of any number."
        ),
    ] = None,
    region: Where = None,
    cohort: Annotated[
        Path | None,
        typer.Option(help="Table (.tsv, .csv) with columns person and phenotype, and path if there are no FILES."),
    ] = None,
    mode: Annotated[str, typer.Option(help="Sequences: diplotype (66 characters) or haplotype (5).")] = "diplotype",
    alphabet: Annotated[
        str, typer.Option(help="Characters of the pairs: iupac, or thesis (Cahyawijaya 2021, table 5.1).")
    ] = "iupac",
    structural: Annotated[
        str,
        typer.Option(
            help="Structural variants, whose bases are not known: unknown (N at their positions), or refuse the file."
        ),
    ] = "unknown",
    thresholds: Thresholds,
    workers: Annotated[int, typer.Option(help="Number of files that are read at a time, each in a process.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an earlier run was stopped.")] = False,
    index: Annotated[
        bool, typer.Option("--index", help="Create the indexes that are missing, beside their files.")
    ] = False,
) -> None:
    """Write the diplotype, or both haplotypes, of every person in a region."""
    from greenformers.genome.assemblies import is_assembly, unpaired
    from greenformers.genome.encode import STRUCTURAL, Encoding, Tally, check_kind, is_reads
    from greenformers.genome.encode import encode as run
    from greenformers.genome.files import make_indexes
    from greenformers.genome.reference import Reference
    from greenformers.genome.selection import Selection

    console = terminal.console(stderr=True)
    selection = Selection.of(files or (), cohort)
    if thresholds != Thresholds() and not any(is_reads(path) for path in selection.paths):
        given = next(field.name for field in fields(thresholds) if getattr(thresholds, field.name) != field.default)
        raise ValueError(f"{given} is of reads (BAM or CRAM), and no file has any")
    if structural != STRUCTURAL[0] and all(is_reads(path) or is_assembly(path) for path in selection.paths):
        raise ValueError(f"structural is of variants (VCF or BCF), and no file has any; got {structural}")
    if mode == "haplotype" and alphabet != "iupac":
        raise ValueError(f"alphabet is of pairs: it must be left out with mode haplotype, got {alphabet}")
    check_kind(mode, alphabet)
    for created in make_indexes([*selection.paths, reference]) if index else ():
        print(f"index:  {created}", file=sys.stderr)
    encoding = Encoding(reference, Reference(reference).region(region), mode, alphabet, thresholds, structural)
    sources, others = selection.sources()
    total, tally, before = sum(len(source.people) for source in sources), Tally(), None
    with terminal.Steps(console) as steps:
        for done in run(
            sources, encoding, out, phenotypes=selection.phenotypes, workers=workers, resume=resume, tally=tally
        ):
            before = done if before is None else before
            steps("people", done / total)
    _encoded(out, encoding, total, others, selection.cohort)
    for path in selection.paths:
        if is_assembly(path) and (single := unpaired(path)):
            print(f"left out: {single:,} samples of {path} without two haplotypes")
    for line in tally.lines():
        print(line + (f" (without the {before:,} people of the earlier run)" if before else ""))


def _encoded(out: Path, encoding: "Encoding", people: int, others: int, cohort: "Cohort | None") -> None:
    """Print a summary, in which no data of a person appear."""
    region = encoding.region
    print(f"{out}: {_counted(people)}, {encoding.mode}s of {region} ({len(region):,} positions)")
    if cohort is not None:
        balance = ", ".join(f"{_counted(count)} with {phenotype}" for phenotype, count in cohort.balance().items())
        print(f"phenotypes: {balance}")
        if cohort.without or others:
            print(f"left out: {len(cohort.without):,} without phenotype, {others:,} not in the table")


def _counted(people: int) -> str:
    return f"{people:,} {'person' if people == 1 else 'people'}"
