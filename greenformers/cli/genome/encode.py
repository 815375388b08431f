"""`greenformers genome encode`. Heavy imports are inside the command, so that --help answers at once."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import from_fields
from greenformers.cli.genome._flags import FASTA, Alphabet, Mode, Where
from greenformers.genome.read_options import Thresholds

if TYPE_CHECKING:
    from greenformers.genome.encode import Encoding, Source

ORDER = 10

Index = Annotated[bool, typer.Option("--index", help="Make indexes that are missing, beside their files.")]


@from_fields
def encode(
    *,
    reference: FASTA,
    out: Annotated[Path, typer.Option(help="File to write: a line a person.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="BAM or CRAM of a person each, or VCF or BCF of any number.")
    ] = None,
    region: Where = None,
    cohort: Annotated[
        Path | None, typer.Option(help="Table (.tsv, .csv) with person, phenotype, and path if there are no FILES.")
    ] = None,
    mode: Mode = "diplotype",
    alphabet: Alphabet = "iupac",
    thresholds: Thresholds,
    workers: Annotated[int, typer.Option(help="Files read at a time, by a process each.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the work was stopped.")] = False,
    index: Index = False,
) -> None:
    """Write everybody's diplotype, or both haplotypes, of a region."""
    from greenformers.genome.cohort import Cohort
    from greenformers.genome.encode import Encoding, people
    from greenformers.genome.encode import encode as run
    from greenformers.genome.files import GenomeError, make_index
    from greenformers.genome.reference import Reference

    console = terminal.console(stderr=True)
    group = None if cohort is None else Cohort.load(cohort)
    own: dict[Path, str] = {}
    for person in [] if group is None else group.people:
        if person.path in own:
            both = f"{own[person.path]} and {person.name}"
            raise GenomeError(f"{cohort}: {both} have one path, {person.path} both; name it as FILES instead")
        if person.path is not None:
            own[person.path] = person.name
    if bool(files) == bool(own):
        raise ValueError("name FILES, or a cohort with the column path; not both")
    paths = [*(files or own)]
    if index:
        for path in [*paths, reference]:
            if path.name.endswith((".bam", ".cram", ".vcf.gz", ".bcf", ".fa", ".fasta")) and (made := make_index(path)):
                print(f"index:  {made}", file=sys.stderr)
    where = Reference(reference).region(region)
    encoding = Encoding(reference, where, mode, alphabet, thresholds)
    phenotypes = None if group is None else {person.name: person.phenotype for person in group.people}
    found = {path: [own[path]] if path in own else people(path) for path in paths}
    seen: dict[str, Path] = {}
    for path, names in found.items():
        for name in names:
            if name in seen:
                raise GenomeError(f"{path}: has person {name}, who is in {seen[name]} too")
            seen[name] = path
    if phenotypes is not None and (missing := [name for name in phenotypes if name not in seen]):
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise GenomeError(f"{cohort}: no file has person {missing[0]}{more}")
    sources = _sources(found, own, phenotypes)
    total = sum(len(source.people) for source in sources)
    with terminal.Steps(console) as steps:
        for done in run(sources, encoding, out, phenotypes=phenotypes, workers=workers, resume=resume):
            steps("people", done / total)
    _encoded(out, encoding, total, len(seen) - total, group)


def _sources(found: dict[Path, list[str]], own: dict[Path, str], phenotypes: dict[str, str] | None) -> "list[Source]":
    from greenformers.genome.encode import Source, is_reads
    from greenformers.genome.files import GenomeError

    sources = []
    for path, names in found.items():
        if is_reads(path) and len(names) > 1 and path not in own:
            raise GenomeError(f"{path}: has reads of {len(names)} people, must be of one")
        wanted = tuple(name for name in names if phenotypes is None or name in phenotypes)
        if wanted:
            sources.append(Source(path, wanted))
    return sources


def _encoded(out: Path, encoding: "Encoding", people: int, others: int, group: object) -> None:
    """What has been done, without anything of anybody."""
    from greenformers.genome.cohort import Cohort

    region = encoding.region
    print(f"{out}: {people:,} people, {encoding.mode}s of {region} ({len(region):,} positions)")
    if isinstance(group, Cohort):
        balance = ", ".join(f"{count:,} {phenotype}" for phenotype, count in group.balance().items())
        print(f"phenotypes: {balance}")
        if group.unknown or others:
            print(f"left out: {group.unknown:,} without phenotype, {others:,} not in the table")
