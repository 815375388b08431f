"""Whose genomes are in which files: all people of the files, or a cohort that a table names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from greenformers.genome.cohort import Cohort
from greenformers.genome.encode import Source, homes_of, is_reads, people
from greenformers.genome.files import GenomeError


@dataclass(frozen=True)
class Selection:
    """Files, and whom of them is wanted.

    Attributes:
        paths: the files: BAM or CRAM of a person each, or VCF or BCF of any number.
        table: the file that names the cohort; None: everybody in the files is wanted.
        cohort: who is in the table.
        owners: whose a file is, where the table says so.
    """

    paths: tuple[Path, ...]
    table: Path | None
    cohort: Cohort | None
    owners: dict[Path, str]

    @classmethod
    def of(cls, files: Sequence[Path] = (), table: Path | None = None) -> Selection:
        """The files that are named, or those that a table has a path to.

        Raises:
            GenomeError: the table cannot be used, or has two people with one path.
            ValueError: there are both files and paths in the table, or neither.
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
        return cls(tuple(files or owners), table, cohort, owners)

    @property
    def phenotypes(self) -> dict[str, str] | None:
        """The phenotypes of the cohort by name; None without a cohort."""
        return None if self.cohort is None else {person.name: person.phenotype for person in self.cohort.people}

    def sources(self) -> tuple[list[Source], int]:
        """The people that are wanted, by file; and how many others the files have.

        Raises:
            GenomeError: a file cannot be used, has reads of several people, or somebody who is in another file too; or
                no file has somebody of the cohort.
        """
        names = {path: [self.owners[path]] if path in self.owners else people(path) for path in self.paths}
        homes = homes_of(names.items())
        wanted = homes if self.phenotypes is None else self.phenotypes
        if missing := [name for name in wanted if name not in homes]:
            more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise GenomeError(f"{self.table}: no file has person {missing[0]}{more}")
        sources = []
        for path, everybody in names.items():
            if is_reads(path) and len(everybody) > 1:
                raise GenomeError(f"{path}: has reads of {len(everybody)} people, must be of one")
            if chosen := tuple(name for name in everybody if name in wanted):
                sources.append(Source(path, chosen))
        return sources, len(homes) - sum(len(source.people) for source in sources)
