"""A cohort: phenotypes, files of genomes, and splits that have no person in common. Cahyawijaya 2021, 5.3.1."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from greenformers._extras import needed
from greenformers.genome.files import GenomeError, checked

MISSING = ("", "NA", "na", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", ".", "?")
"""Entries of a table where a phenotype is not known."""


@dataclass(frozen=True)
class Person:
    """One person.

    Attributes:
        name: Name in the table and in the files.
        phenotype: Phenotype in the table.
        path: File of the person's own reads or variants; None where one file has those of all people.
    """

    name: str
    phenotype: str
    path: Path | None = None


@dataclass(frozen=True)
class Cohort:
    """People whose phenotype is known, none of them twice.

    Attributes:
        people: The people, in the order of the table.
        phenotypes: The distinct phenotypes, sorted; the last one is predicted.
        without: People that are left out, as their phenotype is missing.
    """

    people: list[Person]
    phenotypes: list[str]
    without: tuple[str, ...] = ()

    @classmethod
    def load(cls, table: Path) -> Cohort:
        """Load a cohort from a table with a header: .csv with commas, .tsv or .txt with tabs.

        Columns are person, phenotype and, where each person has a file, path, relative to the table's folder. Other
        columns are not read.

        Raises:
            GenomeError: The table, a column, a name or a file is missing, a person is there twice, or there are not two
                phenotypes.
        """
        rows = _rows(table)
        _, header = rows[0]
        for column in ("person", "phenotype"):
            if header.count(column) != 1:
                raise GenomeError(f"{table}: must have one column {column}, has {', '.join(header)[:80]}")
        people: list[Person] = []
        seen: dict[str, int] = {}
        without: list[str] = []
        for line, fields in rows[1:]:
            if len(fields) != len(header):
                raise GenomeError(f"{table}: line {line} must have {len(header)} columns, has {len(fields)}")
            row = dict(zip(header, (field.strip() for field in fields), strict=True))
            name = row["person"]
            if not name:
                raise GenomeError(f"{table}: line {line} names no person")
            if not (name + row["phenotype"]).isprintable():
                raise GenomeError(f"{table}: line {line} has a tab or another character that cannot be printed")
            if name in seen:
                raise GenomeError(f"{table}: line {line} has person {name} again, after line {seen[name]}")
            seen[name] = line
            path = None
            if "path" in header:
                if not row["path"]:
                    raise GenomeError(f"{table}: line {line}, person {name} has no path")
                path = table.parent / row["path"]
                checked(path)
            if row["phenotype"] in MISSING:
                without.append(name)
            else:
                people.append(Person(name, row["phenotype"], path))
        phenotypes = sorted({person.phenotype for person in people})
        if len(phenotypes) != 2:
            listed = ", ".join(phenotypes[:5]) or "none"
            raise GenomeError(f"{table}: must have two phenotypes, has {len(phenotypes)}: {listed}")
        return cls(people, phenotypes, tuple(without))

    def balance(self) -> dict[str, int]:
        """Number of people with each phenotype."""
        counts = Counter(person.phenotype for person in self.people)
        return {phenotype: counts[phenotype] for phenotype in self.phenotypes}

    def splits(self, seed: int, *, valid: float = 0.1, test: float = 0.2) -> dict[str, list[Person]]:
        """Divide the people into train, valid and test, each with the cohort's shares of phenotypes.

        Args:
            seed: Seed of the draw.
            valid: Share of the people in the validation split.
            test: Share of the people in the test split.

        Raises:
            ValueError: The shares are not above 0 and below 1 together, or too small for one person of each phenotype.
        """
        needed("a split of people", "genome", "scikit-learn", "sklearn")
        from sklearn.model_selection import train_test_split

        if not (valid > 0 and test > 0 and valid + test < 1):
            raise ValueError(f"valid and test must be above 0 and below 1 together, got {valid} and {test}")
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must be in 0..2^32 - 1, got {seed}")
        try:
            rest, last = train_test_split(
                self.people, test_size=test, random_state=seed, stratify=[person.phenotype for person in self.people]
            )
            first, middle = train_test_split(
                rest, test_size=valid / (1 - test), random_state=seed, stratify=[person.phenotype for person in rest]
            )
        except ValueError as error:
            raise self._too_few(valid, test) from error
        if any({person.phenotype for person in part} != set(self.phenotypes) for part in (first, middle, last)):
            raise self._too_few(valid, test)
        return {"train": first, "valid": middle, "test": last}

    def _too_few(self, valid: float, test: float) -> ValueError:
        counts = " and ".join(str(count) for count in self.balance().values())
        return ValueError(f"{counts} people are too few for splits of {valid} and {test}")


def _rows(table: Path) -> list[tuple[int, list[str]]]:
    """Lines of a table that are not empty, with their numbers; the header and at least one more."""
    delimiters = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
    if table.suffix.lower() not in delimiters:
        raise GenomeError(f"{table}: a table must end in {', '.join(delimiters)}")
    checked(table)
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiters[table.suffix.lower()], strict=True)
            rows = [(reader.line_num, fields) for fields in reader if any(fields)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise GenomeError(f"{table}: no table that can be read ({error})") from error
    if len(rows) < 2:
        raise GenomeError(f"{table}: must have a header and people below it")
    rows[0] = (rows[0][0], [name.strip() for name in rows[0][1]])
    return rows
