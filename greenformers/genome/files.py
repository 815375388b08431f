"""Files of genomes: checks that they are local, whole and indexed; regions, and contigs under either of their names."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from greenformers._extras import needed

INDEXES = {
    ".bam": (".bai", ".csi"),
    ".cram": (".crai",),
    ".vcf.gz": (".tbi", ".csi"),
    ".bcf": (".csi",),
    ".fa": (".fai",),
    ".fasta": (".fai",),
    ".fna": (".fai",),
    ".fa.gz": (".fai",),
    ".fasta.gz": (".fai",),
    ".fna.gz": (".fai",),
}
"""Suffixes of the index of a file, by the suffix of the file."""

BLOCKS = ".gzi"
"""Suffix of the index of the blocks of a FASTA file that is packed with bgzip, which it has beside the other."""

# The end of every BGZF file: an empty block.
_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


class GenomeError(ValueError):
    """A file that cannot be used: its name and why, in one line, without anybody's genotype."""


@dataclass(frozen=True)
class Region:
    """Positions of a contig.

    Attributes:
        contig: Name of the contig.
        start: First position, from 0.
        end: Position after the last one.
    """

    contig: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.contig}:{self.start + 1}-{self.end}"

    def __len__(self) -> int:
        return self.end - self.start

    @classmethod
    def parse(cls, text: str) -> Region:
        """Parse a region such as "19:45,411,941-45,412,079", from 1 and with both ends, as samtools writes it.

        Raises:
            ValueError: The text is not written like this, or the region has no position.
        """
        match = re.fullmatch(r"(\S+):([\d,]+)-([\d,]+)", text, flags=re.ASCII)
        if match is None:
            raise ValueError(f"region must be written as 19:45411941-45412079, got {text!r}")
        start, end = (int(match[group].replace(",", "") or 0) for group in (2, 3))
        if not 1 <= start <= end < 2**31:
            raise ValueError(f"region must have 1 <= first <= last < 2^31, got {text!r}")
        return cls(match[1], start - 1, end)


def matched(contig: str, contigs: Iterable[str]) -> str | None:
    """The name of a contig among those of a file: the same, or with or without chr, or M for MT."""
    names = set(contigs)
    bare = contig.removeprefix("chr")
    same = [contig, bare, f"chr{bare}"]
    if bare in ("M", "MT"):
        same += ["M", "MT", "chrM", "chrMT"]
    return next((name for name in same if name in names), None)


def named(contig: str, contigs: Iterable[str], path: Path) -> str:
    """The name of a contig among those of a file, as `matched` finds it.

    Raises:
        GenomeError: The file has no such contig.
    """
    names = list(contigs)
    if (name := matched(contig, names)) is None:
        listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise GenomeError(f"{path}: has no contig {contig}, it has {listed or 'none'}")
    return name


def checked(path: Path) -> str:
    """The absolute path of a local file that is not empty; htslib would take a URL or another file's name too.

    Raises:
        GenomeError: There is no such file, or it cannot be read.
    """
    if "##idx##" in str(path):
        raise GenomeError(f"{path}: a name with ##idx## in it is not for a file")
    if path.is_dir():
        raise GenomeError(f"{path}: a folder, not a file")
    if not path.exists():
        raise GenomeError(f"{path}: no such file")
    if not path.is_file():
        raise GenomeError(f"{path}: not a regular file")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise GenomeError(f"{path}: cannot be read ({error.strerror})") from error
    if empty:
        raise GenomeError(f"{path}: empty, 0 bytes")
    return str(path.resolve())


def digest(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        GenomeError: As in `checked`.
    """
    checked(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def whole(path: Path) -> None:
    """Raise GenomeError where a packed file is not BGZF or lacks its last block, or a text its last line's end."""
    with path.open("rb") as file:
        start = file.read(18)
        if start[:2] != b"\x1f\x8b":
            file.seek(-1, 2)
            if start.startswith(b"##") and file.read() != b"\n":
                raise GenomeError(f"{path}: cut off, its last line has no end")
            return
        if not _in_blocks(start):
            raise GenomeError(f"{path}: packed with gzip, must be with bgzip")
        file.seek(-min(len(_END), path.stat().st_size), 2)
        if file.read() != _END:
            raise GenomeError(f"{path}: cut off, its last block is missing")


def _in_blocks(start: bytes) -> bool:
    """Whether a file that begins so is packed with bgzip. SAM format specification, section 4.1."""
    return start[:2] == b"\x1f\x8b" and start[3:4] == b"\x04" and start[12:14] == b"BC"


def index_of(path: Path, suffixes: Iterable[str], references: int | None = None, *, needed: bool = True) -> str | None:
    """The index of a file.

    Args:
        path: The file.
        suffixes: Suffixes of an index of such a file.
        references: Number of contigs of the file; an index with another number is of another file, and htslib would
            read beyond its end.
        needed: Whether there must be an index.

    Raises:
        GenomeError: The index is missing and needed, older than its file, or that of another file.
    """
    near = (near for suffix in suffixes for near in (path.with_name(path.name + suffix), path.with_suffix(suffix)))
    index = next((candidate for candidate in near if candidate.is_file()), None)
    if index is None:
        if not needed:
            return None
        raise GenomeError(f"{path}: has no index; --index makes one beside it")
    # One second is allowed, as copies of a folder do not keep the order of times.
    if index.stat().st_mtime + 1 < path.stat().st_mtime:
        raise GenomeError(
            f"{path}: its index {index.name} is older than the file; remove it, and --index makes another"
        )
    if references is not None and (count := _references(index)) not in (None, references):
        raise GenomeError(f"{path}: its index {index.name} is of another file, with {count} contigs for {references}")
    return str(index.resolve())


def _references(index: Path) -> int | None:
    """Number of contigs of a BAI or CSI index; None for other kinds. SAM format specification, section 5.2; CSIv1."""
    with index.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(index) if packed else index.open("rb") as file:
            start = file.read(16)
            if start[:4] == b"BAI\1":
                return int.from_bytes(start[4:8], "little")
            if start[:4] == b"CSI\1":
                file.read(int.from_bytes(start[12:16], "little"))
                return int.from_bytes(file.read(4), "little")
    except (OSError, EOFError) as error:
        raise GenomeError(f"{index}: damaged ({error})") from error
    return None


def make_index(path: Path) -> Path | None:
    """Make the missing index of a BAM, CRAM, BGZF-compressed VCF or FASTA file beside it.

    Returns:
        Its index; None if it has one, or is a FASTA file packed with gzip, which has none.

    Raises:
        GenomeError: The file is not sorted, damaged, not BGZF-compressed, or its folder cannot be written.
    """
    pysam, name = htslib(), checked(path)
    kind = next((kind for kind in INDEXES if path.name.lower().endswith(kind)), None)
    if kind is None:
        raise GenomeError(f"{path}: an index is for {', '.join(INDEXES)}")
    packed = kind.endswith(".gz") and kind != ".vcf.gz"
    blocks = path.with_name(path.name + BLOCKS)
    if packed:
        with path.open("rb") as file:
            if not _in_blocks(file.read(18)):
                return None
    if any(path.with_name(path.name + suffix).is_file() for suffix in INDEXES[kind]) and (
        not packed or blocks.is_file()
    ):
        return None
    index = path.with_name(path.name + INDEXES[kind][0])
    unfinished = index.with_name(f".{index.name}.unfinished")
    with told(path, "no index can be made"):
        try:
            if kind in (".bam", ".cram"):
                pysam.index("-o", str(unfinished), name)
            elif kind in (".vcf.gz", ".bcf"):
                pysam.bcftools.index(*(["-t"] if kind == ".vcf.gz" else []), "-f", "-o", str(unfinished), name)
            else:
                pysam.faidx(name, "--fai-idx", str(unfinished), *(["--gzi-idx", str(blocks)] if packed else []))
                _check_names(path, unfinished)
            unfinished.replace(index)
        except pysam.SamtoolsError as error:
            # Of a file that is not sorted htslib says no more than this.
            if "failed to create index" not in str(error):
                raise
            raise GenomeError(f"{path}: no index can be made (it is not sorted by position, or damaged)") from error
        finally:
            unfinished.unlink(missing_ok=True)
    return index


def make_indexes(paths: Iterable[Path]) -> Iterator[Path]:
    """Make the missing indexes of all files that can have one; yields each index that was made.

    Raises:
        GenomeError: As in `make_index`.
    """
    for path in paths:
        if path.name.lower().endswith(tuple(INDEXES)) and (index := make_index(path)):
            yield index


def _check_names(path: Path, index: Path) -> None:
    """Raise GenomeError where an index has fewer sequences than its FASTA file, as names are there twice."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file, index.open("rb") as entries:
        if (count := sum(line.startswith(b">") for line in file)) != (indexed := sum(1 for _ in entries)):
            raise GenomeError(f"{path}: has {count} sequences of {indexed} names")


def check_people(path: Path) -> None:
    """Raise GenomeError where a VCF file has a person twice, of which htslib only says that its header is not valid."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with suppress(OSError, EOFError, zlib.error), opened(path, "rt", encoding="utf-8", errors="replace") as lines:
        columns = next((line.split() for line in takewhile(_of_header, lines) if line.startswith("#CHROM")), [])
        names = Counter(columns[9:])
        if twice := [name for name, count in names.items() if count > 1]:
            raise GenomeError(f"{path}: has person {twice[0]} {names[twice[0]]} times")


def _of_header(line: str) -> bool:
    return line.startswith("#")


@contextmanager
def told(path: Path, failure: str) -> Iterator[None]:
    """Raise the errors of pysam on a damaged file as a `GenomeError` of one line."""
    pysam = htslib()
    try:
        yield
    except GenomeError:
        raise
    except (OSError, ValueError, NotImplementedError, pysam.SamtoolsError, UnicodeDecodeError) as error:
        reason = re.sub(r"(?s).*stderr=", "", str(error)).strip("\n' ").replace("\\n", "\n").splitlines()
        raise GenomeError(f"{path}: {failure} ({reason[-1] if reason else type(error).__name__})") from error


def htslib() -> Any:
    """The module pysam, without messages of its own.

    Raises:
        MissingExtraError: The package pysam is not installed.
    """
    pysam: Any = needed("reading genomes", "genome", "pysam")
    needed("reading genomes", "genome", "pysam", "pysam.bcftools")
    # htslib would print its messages to stderr.
    pysam.set_verbosity(0)
    return pysam
