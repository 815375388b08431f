"""Everybody's sequence of a region, as one file: a line of settings, then a line a person. Thesis 5.3.1.

Memory does not grow with the number of people, and what is done is kept when the work is stopped.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from greenformers.genome import reads, variants
from greenformers.genome.diplotype import ALPHABETS, Haplotype, diplotype, text
from greenformers.genome.files import GenomeError, Region, checked
from greenformers.genome.read_options import Thresholds
from greenformers.genome.reference import Reference

MODES = ("diplotype", "haplotype")
TOGETHER = 250
"""People of one file whose variants are in memory together."""


@dataclass(frozen=True)
class Encoding:
    """How sequences are written.

    Attributes:
        reference: FASTA file.
        region: of it, as `Reference.region` gives it.
        mode: "diplotype": one sequence of pairs; "haplotype": two of bases, a tab between them, for phased variants.
        alphabet: of the pairs.
        thresholds: of reads.

    Raises:
        ValueError: there is no such mode or alphabet.
    """

    reference: Path
    region: Region
    mode: str = "diplotype"
    alphabet: str = "iupac"
    thresholds: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        check_kind(self.mode, self.alphabet)

    def settings(self) -> dict[str, object]:
        """What the first line of a file tells."""
        about = {"reference": self.reference.name, "region": str(self.region), "mode": self.mode}
        return about | {"alphabet": self.alphabet, "thresholds": asdict(self.thresholds)}


def check_kind(mode: str, alphabet: str) -> None:
    """Raise ValueError where there is no such mode or alphabet."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
    if alphabet not in ALPHABETS:
        raise ValueError(f"alphabet must be one of {', '.join(ALPHABETS)}; got {alphabet!r}")


@dataclass(frozen=True)
class Source:
    """Where people's genotypes are: one file of everybody's variants, or a file a person."""

    path: Path
    people: tuple[str, ...]


def is_reads(path: Path) -> bool:
    """Whether a file is one of reads, by its name."""
    return path.suffix.lower() in (".bam", ".cram")


def people(path: Path) -> list[str]:
    """Who is in a file; at least one.

    Raises:
        GenomeError: nobody, or the file cannot be used.
    """
    found = reads.people(path) if is_reads(path) else variants.people(path)
    if not found:
        raise GenomeError(f"{path}: has no genotypes, only sites")
    if not all(name and name.isprintable() for name in found):
        raise GenomeError(f"{path}: a person's name must have characters, all of them printable")
    return found


def sequences(source: Source, encoding: Encoding) -> Iterator[tuple[str, str]]:
    """The people of a source and their sequences, in the order of `Source.people`.

    Raises:
        GenomeError: the file cannot be used.
    """
    # A file that was replaced is another one.
    whole = encoding.reference.resolve()
    reference = _reference(whole, whole.stat().st_mtime_ns)
    if is_reads(source.path):
        if len(source.people) != 1:
            raise GenomeError(f"{source.path}: has reads of {len(source.people)} people, must be of one")
        if encoding.mode == "haplotype":
            raise GenomeError(f"{source.path}: reads do not tell which haplotype a base is of; use phased variants")
        pairs = reads.read(source.path, reference, encoding.region, encoding.thresholds)
        yield source.people[0], text(pairs, encoding.alphabet)
        return
    found = variants.read(source.path, reference, encoding.region, source.people)
    if encoding.mode == "haplotype" and not found.phased:
        raise GenomeError(f"{source.path}: haplotypes need phased genotypes (0|1), some are not (0/1)")
    for person in source.people:
        yield person, _written(found.haplotypes(person), encoding)


def _written(both: tuple[Haplotype, Haplotype], encoding: Encoding) -> str:
    if encoding.mode == "haplotype":
        return "\t".join(one.sequence() for one in both)
    return text(diplotype(*both), encoding.alphabet)


@lru_cache(maxsize=1)
def _reference(path: Path, _: int) -> Reference:
    return Reference(path)


def _all(source: Source, encoding: Encoding) -> list[tuple[str, str]]:
    return list(sequences(source, encoding))


def encode(
    sources: Iterable[Source],
    encoding: Encoding,
    out: Path,
    *,
    phenotypes: dict[str, str] | None = None,
    workers: int = 1,
    resume: bool = False,
) -> Iterator[int]:
    """Write everybody's sequence; told: people done. The file appears under its name when it is finished.

    Args:
        sources: who is where.
        encoding: how.
        out: file to write; beside it, until it is finished, the same with .part.
        phenotypes: of the people, for a column of their own.
        workers: files of reads or variants that are read at a time, by a process each.
        resume: go on with a .part.

    Raises:
        GenomeError: somebody is in two files, or a file cannot be used; what was written before stays in .part.
        ValueError: out is there, or .part is and resume is not given, or .part is of other settings; or somebody has no
            phenotype where others have.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if out.exists():
        raise ValueError(f"{out} is there already")
    part = out.with_name(out.name + ".part")
    columns = ["person", *(["phenotype"] if phenotypes is not None else []), *_columns(encoding)]
    head = f"#{json.dumps(encoding.settings(), ensure_ascii=False)}\n" + "\t".join(columns) + "\n"
    sources = list(sources)
    everybody = homes_of((source.path, source.people) for source in sources)
    if phenotypes is not None and (unknown := [person for person in everybody if person not in phenotypes]):
        raise ValueError(f"phenotypes must be of everybody, {unknown[0]} has none")
    done = _resumed(part, head, resume)
    for person, phenotype in done.items():
        if person not in everybody or (phenotypes is not None and phenotypes[person] != phenotype):
            raise ValueError(f"{part} is of other people or phenotypes than these, {person} is one; remove it")
    count = len(done)
    yield count
    try:
        with part.open("a", encoding="utf-8", newline="") as file:
            if file.tell() == 0:
                file.write(head)
            for found in _each(list(_left(sources, done)), encoding, workers):
                for person, sequence in found:
                    shown = [person, *([phenotypes[person]] if phenotypes is not None else []), sequence]
                    file.write("\t".join(shown) + "\n")
                    count += 1
                    yield count
                file.flush()
        part.replace(out)
    finally:
        if not count:
            part.unlink(missing_ok=True)


def homes_of(people: Iterable[tuple[Path, Iterable[str]]]) -> dict[str, Path]:
    """The file of each person, of files and the people in them.

    Raises:
        GenomeError: somebody is in two files, or in one twice.
    """
    homes: dict[str, Path] = {}
    for path, names in people:
        for name in names:
            if name in homes:
                raise GenomeError(f"{path}: has person {name}, who is in {homes[name]} too")
            homes[name] = path
    return homes


def _columns(encoding: Encoding) -> list[str]:
    return ["sequence"] if encoding.mode == "diplotype" else ["first", "second"]


def _left(sources: Iterable[Source], done: dict[str, str]) -> Iterator[Source]:
    """What is not done, at most so many people of a file at a time."""
    for source in sources:
        people = [person for person in source.people if person not in done]
        for start in range(0, len(people), TOGETHER):
            yield Source(source.path, tuple(people[start : start + TOGETHER]))


def _each(sources: list[Source], encoding: Encoding, workers: int) -> Iterator[Iterable[tuple[str, str]]]:
    """What each source gives, in their order; a few are read ahead."""
    if workers == 1 or len(sources) == 1:
        yield from (sequences(source, encoding) for source in sources)
        return
    # Forked workers would inherit the threads of whatever has been imported.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead: deque[Future[list[tuple[str, str]]]] = deque()
        for source in sources:
            ahead.append(pool.submit(_all, source, encoding))
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _resumed(part: Path, head: str, resume: bool) -> dict[str, str]:
    """Who is written already, with what comes after the name; a line that was not finished is cut off."""
    if not part.exists():
        return {}
    if not resume:
        raise ValueError(f"{part} is of work that was stopped: --resume goes on with it, or remove it")
    written = head.encode()
    with part.open("r+b") as file:
        start = file.read(len(written))
        if start != written[: len(start)]:
            raise ValueError(f"{part} is of other settings than these; remove it")
        if len(start) < len(written):
            file.truncate(0)
            return {}
        done, end = dict[str, str](), file.tell()
        for line in file:
            if not line.endswith(b"\n"):
                break
            person, after, _ = (line + b"\t").split(b"\t", 2)
            done[person.decode()] = after.decode()
            end += len(line)
        file.truncate(end)
    return done


def load(path: Path) -> Iterator[dict[str, str]]:
    """The rows of an encoded file, one after the other, by their columns.

    Raises:
        GenomeError: it is not one, or is damaged.
    """
    settings_of(path)
    with path.open(encoding="utf-8", newline="") as file:
        header = [file.readline(), file.readline()][1].rstrip("\n").split("\t")
        for number, line in enumerate(file, start=3):
            fields = line.rstrip("\n").split("\t")
            if not line.endswith("\n"):
                raise GenomeError(f"{path}: line {number} has no end: the file was cut")
            if len(fields) != len(header):
                raise GenomeError(f"{path}: line {number} must have {len(header)} columns, has {len(fields)}")
            yield dict(zip(header, fields, strict=True))


def settings_of(path: Path) -> dict[str, object]:
    """The settings of an encoded file.

    Raises:
        GenomeError: it is not one.
    """
    checked(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first, header = file.readline(), file.readline()
        about = json.loads(first.removeprefix("#"))
        Encoding(Path(about["reference"]), Region.parse(about["region"]), about["mode"], about["alphabet"])
    except (ValueError, KeyError, TypeError) as error:
        raise GenomeError(f"{path}: no file that `greenformers genome encode` wrote") from error
    if not header.startswith("person\t"):
        raise GenomeError(f"{path}: no file that `greenformers genome encode` wrote")
    return dict(about)
