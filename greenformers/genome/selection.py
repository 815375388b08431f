"""Selection of people from files: all people of the files, or the cohort of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from greenformers.genome.assemblies import is_assembly
from greenformers.genome.cohort import Cohort
from greenformers.genome.encode import Source, homes_of, is_reads, people
from greenformers.genome.files import GenomeError


@dataclass(frozen=True)
class Selection:
    """Files, and the people to read from them.

    Attributes:
        paths: The files: BAM or CRAM of one person each; VCF or BCF, or FASTA of haplotypes, of any number.
        table: The table of the cohort; None for all people in the files.
        cohort: The cohort of the table.
        owners: The person of each file, where the table has paths.
    """

    paths: tuple[Path, ...]
    table: Path | None
    cohort: Cohort | None
    owners: dict[Path, str]

    @classmethod
    def of(cls, files: Sequence[Path] = (), table: Path | None = None) -> Selection:
        """Select the people of given files, or of the files that a table has paths to.

        Raises:
            GenomeError: The table cannot be used, or has two people with one path; or a file is given twice.
            ValueError: Both files and paths in the table are given, or neither.
        """
        cohort = None if table is None else Cohort.load(table)
        owners: dict[Path, str] = {}
        for person in [] if cohort is None else cohort.people:
            if person.path in owners:
                both = f"{owners[person.path]} and {person.name}"
                raise GenomeError(f"{table}: {both} have one path, {person.path} both; name it as FILES instead")
            if person.path is not None:
                owners[person.path] = person.name
        if bool(files) == bool(owners):
            raise ValueError("name FILES, or a cohort with the column path; not both")
        given: dict[Path, Path] = {}
        for path in files or owners:
            whole = path.resolve()
            if whole in given:
                other = "" if given[whole] == path else f", it is {given[whole]} too"
                raise GenomeError(f"{path}: is given twice{other}")
            given[whole] = path
        return cls(tuple(given.values()), table, cohort, owners)

    @property
    def phenotypes(self) -> dict[str, str] | None:
        """The phenotypes of the cohort by name; None without a cohort."""
        return None if self.cohort is None else {person.name: person.phenotype for person in self.cohort.people}

    def sources(self) -> tuple[list[Source], int]:
        """The selected people by file, and the number of people in the files whom the table does not name.

        Raises:
            GenomeError: A file cannot be used, or has reads of several people; or a person is in two files; or a person
                of the cohort is in no file.
        """
        names = {path: [self.owners[path]] if path in self.owners else people(path) for path in self.paths}
        for path, owner in self.owners.items():  # of reads the table is believed; haplotypes are a file to read whole
            if not is_reads(path) and not is_assembly(path) and owner not in people(path):
                raise GenomeError(f"{path}: has no person {owner}")
        homes = homes_of(names.items())
        selected = homes if self.phenotypes is None else self.phenotypes
        if missing := [name for name in selected if name not in homes]:
            others = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise GenomeError(f"{self.table}: no file has person {missing[0]}{others}")
        sources = []
        for path, everybody in names.items():
            if is_reads(path) and len(everybody) > 1:
                raise GenomeError(f"{path}: has reads of {len(everybody)} people, must be of one")
            if chosen := tuple(name for name in everybody if name in selected):
                sources.append(Source(path, chosen))
        named = {*selected, *(() if self.cohort is None else self.cohort.without)}
        return sources, sum(name not in named for name in homes)
