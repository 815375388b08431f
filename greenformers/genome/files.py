"""Files of genomics: local, whole, with an index; regions, and contigs under either of their names."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
}
"""What the index of a file ends in, by the end of its name."""

# Of every BGZF file: an empty block.
_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


class GenomeError(ValueError):
    """A file that cannot be used: its name and why, in one line, without anybody's genotype."""


@dataclass(frozen=True)
class Region:
    """Positions of a contig.

    Attributes:
        contig: its name.
        start: of the first position, from 0.
        end: after the last one.
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
        """Of "19:45,411,941-45,412,079", from 1 and both ends included, as samtools writes it.

        Raises:
            ValueError: not written like this, or no position in it.
        """
        found = re.fullmatch(r"(\S+):([\d,]+)-([\d,]+)", text, flags=re.ASCII)
        if found is None:
            raise ValueError(f"region must be written as 19:45411941-45412079, got {text!r}")
        start, end = (int(found[group].replace(",", "") or 0) for group in (2, 3))
        if not 1 <= start <= end < 2**31:
            raise ValueError(f"region must have 1 <= first <= last < 2^31, got {text!r}")
        return cls(found[1], start - 1, end)


def matched(contig: str, known: Iterable[str]) -> str | None:
    """The name of a contig among those of a file: the same, or with or without chr, or M for MT."""
    names = set(known)
    bare = contig.removeprefix("chr")
    same = [contig, bare, f"chr{bare}"]
    if bare in ("M", "MT"):
        same += ["M", "MT", "chrM", "chrMT"]
    return next((name for name in same if name in names), None)


def named(contig: str, known: Iterable[str], path: Path) -> str:
    """As `matched`.

    Raises:
        GenomeError: the file has no such contig.
    """
    names = list(known)
    if (found := matched(contig, names)) is None:
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise GenomeError(f"{path}: has no contig {contig}, it has {some or 'none'}")
    return found


def checked(path: Path) -> str:
    """The absolute path of a local file that holds something; htslib would take a URL or another file's name too.

    Raises:
        GenomeError: there is no such file, or it cannot be read.
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
        GenomeError: as `checked`.
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
        if start[3:4] != b"\x04" or start[12:14] != b"BC":
            raise GenomeError(f"{path}: packed with gzip, must be with bgzip")
        file.seek(-min(len(_END), path.stat().st_size), 2)
        if file.read() != _END:
            raise GenomeError(f"{path}: cut off, its last block is missing")


def index_of(path: Path, suffixes: Iterable[str], references: int | None = None, *, needed: bool = True) -> str | None:
    """The index of a file.

    Args:
        path: the file.
        suffixes: what an index of such a file ends in.
        references: contigs of the file; an index of another number of them is another file's, and htslib would read
            beyond its end.
        needed: whether there must be one.

    Raises:
        GenomeError: there is none and it is needed, it is older than its file, or another file's.
    """
    near = (near for suffix in suffixes for near in (path.with_name(path.name + suffix), path.with_suffix(suffix)))
    index = next((one for one in near if one.is_file()), None)
    if index is None:
        if not needed:
            return None
        raise GenomeError(f"{path}: has no index; --index makes one beside it")
    # A second: copies of a folder do not keep the order.
    if index.stat().st_mtime + 1 < path.stat().st_mtime:
        raise GenomeError(
            f"{path}: its index {index.name} is older than the file; remove it, and --index makes another"
        )
    if references is not None and (found := _references(index)) not in (None, references):
        raise GenomeError(f"{path}: its index {index.name} is of another file, with {found} contigs for {references}")
    return str(index.resolve())


def _references(index: Path) -> int | None:
    """Contigs of a BAI or CSI index; None of another kind. SAM format specification, section 5.2; CSIv1."""
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
    """Make the missing index of a BAM, CRAM, BGZF-compressed VCF or FASTA file beside it; None if it has one.

    Raises:
        GenomeError: the file is not sorted, damaged, not BGZF-compressed, or its folder cannot be written.
    """
    pysam, name = htslib(), checked(path)
    kind = next((kind for kind in INDEXES if path.name.lower().endswith(kind)), None)
    if kind is None:
        raise GenomeError(f"{path}: an index is for {', '.join(INDEXES)}")
    if any(path.with_name(path.name + suffix).is_file() for suffix in INDEXES[kind]):
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
                pysam.faidx(name, "--fai-idx", str(unfinished))
                _check_names(path, unfinished)
            unfinished.replace(index)
        finally:
            unfinished.unlink(missing_ok=True)
    return index


def make_indexes(paths: Iterable[Path]) -> Iterator[Path]:
    """Make the missing indexes of all files that are of a kind that has one; given: each that was made.

    Raises:
        GenomeError: as `make_index`.
    """
    for path in paths:
        if path.name.lower().endswith(tuple(INDEXES)) and (index := make_index(path)):
            yield index


def _check_names(path: Path, index: Path) -> None:
    """Raise GenomeError where an index has fewer sequences than its FASTA file: of one name the first alone is."""
    with path.open("rb") as file, index.open("rb") as entries:
        if (count := sum(line.startswith(b">") for line in file)) != (indexed := sum(1 for _ in entries)):
            raise GenomeError(f"{path}: has {count} sequences of {indexed} names")


@contextmanager
def told(path: Path, what: str) -> Iterator[None]:
    """What pysam raises on a damaged file, as one line."""
    pysam = htslib()
    try:
        yield
    except GenomeError:
        raise
    except (OSError, ValueError, NotImplementedError, pysam.SamtoolsError, UnicodeDecodeError) as error:
        reason = re.sub(r"(?s).*stderr=", "", str(error)).strip("\n' ").replace("\\n", "\n").splitlines()
        raise GenomeError(f"{path}: {what} ({reason[-1] if reason else type(error).__name__})") from error


def htslib() -> Any:
    """The module pysam, silent.

    Raises:
        MissingExtraError: it is not installed.
    """
    pysam: Any = needed("reading genomes", "genome", "pysam")
    needed("reading genomes", "genome", "pysam", "pysam.bcftools")
    # Its messages go to stderr by themselves otherwise.
    pysam.set_verbosity(0)
    return pysam
