"""Sequences of people for a region, in a file with settings, a header and a line a person. Cahyawijaya 2021, 5.3.1.

Memory does not grow with the number of people, and the work can be stopped and resumed.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from greenformers.genome import assemblies, reads, variants
from greenformers.genome.diplotype import ALPHABETS, Haplotype, diplotype, text
from greenformers.genome.files import GenomeError, Region, checked
from greenformers.genome.read_options import Thresholds
from greenformers.genome.reference import Reference
from greenformers.genome.vcf import SUFFIXES

MODES = ("diplotype", "haplotype")
STRUCTURAL = ("unknown", "refuse")
"""What becomes of a structural variant: its positions are unknown (N), or its file is refused."""
TOGETHER = 250
"""Number of people of one file whose variants are in memory at once."""


@dataclass(frozen=True)
class Encoding:
    """Options of the encoded sequences.

    Attributes:
        reference: FASTA file.
        region: Region of the reference, as `Reference.region` gives it.
        mode: "diplotype" for one sequence of pairs; "haplotype" for two of bases, with a tab between them, from phased
            variants or assembled haplotypes.
        alphabet: Alphabet of the pairs.
        thresholds: Thresholds of the reads that count.
        structural: "unknown" for N at the positions of a structural variant; "refuse" for an error. See `alleles`.

    Raises:
        ValueError: There is no such mode, alphabet or `structural`.
    """

    reference: Path
    region: Region
    mode: str = "diplotype"
    alphabet: str = "iupac"
    thresholds: Thresholds = field(default_factory=Thresholds)
    structural: str = "unknown"

    def __post_init__(self) -> None:
        check_kind(self.mode, self.alphabet)
        if self.structural not in STRUCTURAL:
            raise ValueError(f"structural must be one of {', '.join(STRUCTURAL)}; got {self.structural!r}")

    def settings(self) -> dict[str, object]:
        """The settings in the first line of a file."""
        settings = {"reference": self.reference.name, "region": str(self.region), "mode": self.mode}
        if self.structural != STRUCTURAL[0]:
            settings["structural"] = self.structural
        return settings | {"alphabet": self.alphabet, "thresholds": asdict(self.thresholds)}


def check_kind(mode: str, alphabet: str) -> None:
    """Raise ValueError where there is no such mode or alphabet."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
    if alphabet not in ALPHABETS:
        raise ValueError(f"alphabet must be one of {', '.join(ALPHABETS)}; got {alphabet!r}")


@dataclass(frozen=True)
class Source:
    """A file and the people to read from it: variants or assembled haplotypes of many people, or reads of one."""

    path: Path
    people: tuple[str, ...]


@dataclass
class Tally:
    """What is to be told of sequences: alleles that are not in them as files have them, filters, and empty files.

    Attributes:
        structural: Number of alleles of structural variants, which are N, by their kind.
        overlapping: Number of alleles that are left out, as another one of the haplotype is there.
        disagreeing: Files and positions of records whose END and SVLEN differ.
        failed: Files and positions of records that did not pass every filter of their file, and count alike.
        empty: Files without a record in the region.
    """

    structural: Counter[str] = field(default_factory=Counter)
    overlapping: int = 0
    disagreeing: set[tuple[Path, int]] = field(default_factory=set)
    failed: set[tuple[Path, int]] = field(default_factory=set)
    empty: set[Path] = field(default_factory=set)

    def add(self, other: Tally) -> None:
        """Add the numbers of other people."""
        self.structural += other.structural
        self.overlapping += other.overlapping
        self.disagreeing |= other.disagreeing
        self.failed |= other.failed
        self.empty |= other.empty

    def lines(self) -> Iterator[str]:
        """The numbers that are not 0, a line each."""
        if total := self.structural.total():
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.structural.items()))
            yield f"structural variants: {_counted(total, 'allele')}, unknown (N) at their positions: {kinds}"
        if self.disagreeing:
            records = _counted(len(self.disagreeing), "record")
            yield f"END and SVLEN differ in {records} of structural variants; the larger span is unknown (N)"
        if self.overlapping:
            yield f"overlapping: {_counted(self.overlapping, 'allele')} left out, as another of the haplotype is there"
        if self.failed:
            records = _counted(len(self.failed), "record")
            yield f"filters: {records} did not pass those of the file (FILTER), and counted"
        for path in sorted(self.empty):
            yield f"{path.name} has no record in the region: everybody of it has the bases of the reference there"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def is_reads(path: Path) -> bool:
    """Whether a file is one of reads, by its name."""
    return path.suffix.lower() in (".bam", ".cram")


def people(path: Path) -> list[str]:
    """Names of the people in a file, at least one.

    Raises:
        GenomeError: Nobody is in the file, or it cannot be used.
    """
    module = reads if is_reads(path) else assemblies if assemblies.is_assembly(path) else variants
    checked(path)
    if module is variants and not path.name.lower().endswith(SUFFIXES):
        kinds = f"reads (.bam, .cram), variants ({', '.join(SUFFIXES)}) or haplotypes (.fa, .fasta, .fna)"
        raise GenomeError(f"{path}: must be a file of {kinds}")
    names = module.people(path)
    if not names:
        raise GenomeError(f"{path}: has no genotypes, only sites")
    if not all(name and name.isprintable() for name in names):
        raise GenomeError(f"{path}: a person's name must have characters, all of them printable")
    return names


def sequences(source: Source, encoding: Encoding, tally: Tally | None = None) -> Iterator[tuple[str, str]]:
    """The people of a source and their sequences, in the order of `Source.people`.

    Args:
        source: File, and the people to read from it.
        encoding: Options of the sequences.
        tally: Numbers to which those of these people are added.

    Raises:
        GenomeError: The file cannot be used, or has a structural variant that the encoding refuses.
    """
    # The time of change is part of the cache key: a file may be replaced.
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
    if assemblies.is_assembly(source.path):
        for person, both in assemblies.read(
            source.path, reference, encoding.region, source.people, aligned=encoding.mode == "diplotype"
        ):
            yield person, _written(both, encoding)
        return
    called = variants.read(source.path, reference, encoding.region, source.people)
    if encoding.mode == "haplotype" and called.apart:
        raise GenomeError(
            f"{source.path}: haplotypes need genotypes of one phase set (PS), those of {called.apart[0]} are of several"
        )
    if encoding.mode == "haplotype" and not called.phased:
        raise GenomeError(f"{source.path}: haplotypes need phased genotypes (0|1), some are not (0/1)")
    for person in source.people:
        both = called.haplotypes(person)
        structural = called.structural(person)
        if structural and encoding.structural == "refuse":
            kind, first = structural[0].kind, encoding.region.start + structural[0].start + 1
            raise GenomeError(
                f"{source.path}: has a structural variant ({kind}) at {encoding.region.contig}:{first}, whose bases "
                "are not known; --structural unknown makes them N"
            )
        if tally is not None:
            tally.structural.update(edit.kind for edit in structural)
        yield person, _written(both, encoding)
    if tally is not None:
        tally.overlapping += called.left_out
        tally.disagreeing |= {(source.path, position) for position in called.disagreeing}
        tally.failed |= {(source.path, position) for position in called.failed}
        tally.empty |= set() if called.records else {source.path}


def _written(both: tuple[Haplotype, Haplotype], encoding: Encoding) -> str:
    if encoding.mode == "haplotype":
        return "\t".join(haplotype.sequence() for haplotype in both)
    return text(diplotype(*both), encoding.alphabet)


@lru_cache(maxsize=1)
def _reference(path: Path, _: int) -> Reference:
    return Reference(path)


def _all(source: Source, encoding: Encoding) -> tuple[list[tuple[str, str]], Tally]:
    tally = Tally()
    return list(sequences(source, encoding, tally)), tally


def encode(
    sources: Iterable[Source],
    encoding: Encoding,
    out: Path,
    *,
    phenotypes: dict[str, str] | None = None,
    workers: int = 1,
    resume: bool = False,
    tally: Tally | None = None,
) -> Iterator[int]:
    """Write the sequences of all people; yields the number of people done. The file gets its name when it is finished.

    Args:
        sources: Files, and the people to read from each.
        encoding: Options of the sequences.
        out: File to write; until it is finished its name ends in .part.
        phenotypes: Phenotypes of the people, for a column of their own.
        workers: Number of files of reads or variants that are read at a time, each by a process.
        resume: Whether to go on with a .part file.
        tally: Numbers to which those of the people are added who are not in a .part file.

    Raises:
        GenomeError: A person is in two files, or a file cannot be used; lines written before stay in .part.
        ValueError: `out` exists, or .part exists and `resume` is not given, or .part has other settings or is of
            files with other contents; or a person has no phenotype where others have one.
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
    done = _resumed(part, head, resume, phenotypes is not None)
    for person, phenotype in done.items():
        if person not in everybody or (phenotypes is not None and phenotypes[person] != phenotype):
            raise ValueError(f"{part} is of other people or phenotypes than these, {person} is one; remove it")
    for person in [*done][:1]:
        _check_again(part, Source(everybody[person], (person,)), encoding, phenotypes)
    count = len(done)
    yield count
    try:
        with part.open("a", encoding="utf-8", newline="") as file:
            if file.tell() == 0:
                file.write(head)
            for group in _results(list(_left(sources, done)), encoding, workers, tally):
                for person, sequence in group:
                    file.write(_line(person, sequence, phenotypes))
                    count += 1
                    yield count
                file.flush()
        part.replace(out)
    finally:
        if not count:
            part.unlink(missing_ok=True)


def _line(person: str, sequence: str, phenotypes: dict[str, str] | None) -> str:
    return "\t".join([person, *([phenotypes[person]] if phenotypes is not None else []), sequence]) + "\n"


def _check_again(part: Path, source: Source, encoding: Encoding, phenotypes: dict[str, str] | None) -> None:
    """Raise ValueError where the first person that is written has another sequence by the files as they are now."""
    with part.open(encoding="utf-8", newline="") as file:
        written = [file.readline() for _ in range(3)][-1]
    if written not in {_line(*person, phenotypes) for person in sequences(source, encoding)}:
        raise ValueError(
            f"{part} holds another sequence of {source.people[0]} than {encoding.reference} and {source.path} give; "
            "remove it"
        )


def homes_of(people: Iterable[tuple[Path, Iterable[str]]]) -> dict[str, Path]:
    """The file that each person is in.

    Raises:
        GenomeError: A person is in two files, or in one twice.
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
    """Sources of the people who are not done, at most `TOGETHER` people each."""
    for source in sources:
        people = [person for person in source.people if person not in done]
        for start in range(0, len(people), TOGETHER):
            yield Source(source.path, tuple(people[start : start + TOGETHER]))


def _results(
    sources: list[Source], encoding: Encoding, workers: int, tally: Tally | None
) -> Iterator[Iterable[tuple[str, str]]]:
    """People and sequences of each source, in the order of the sources; a few are read ahead."""
    if workers == 1 or len(sources) == 1:
        yield from (sequences(source, encoding, tally) for source in sources)
        return
    # Forked workers would inherit the threads of whatever has been imported.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead: deque[Future[tuple[list[tuple[str, str]], Tally]]] = deque()
        for source in sources:
            ahead.append(pool.submit(_all, source, encoding))
            if len(ahead) > 2 * workers:
                yield _added(ahead.popleft(), tally)
        while ahead:
            yield _added(ahead.popleft(), tally)


def _added(future: Future[tuple[list[tuple[str, str]], Tally]], tally: Tally | None) -> list[tuple[str, str]]:
    group, own = future.result()
    if tally is not None:
        tally.add(own)
    return group


def _resumed(part: Path, head: str, resume: bool, with_phenotypes: bool) -> dict[str, str]:
    """People written already, with their phenotypes, if there are any; an unfinished last line is cut off."""
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
            done[person.decode()] = after.decode() if with_phenotypes else ""
            end += len(line)
        file.truncate(end)
    return done
