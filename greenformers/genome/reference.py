"""A reference genome, or a part of one: FASTA, with an index or small enough to be read whole."""

from __future__ import annotations

import re
from hashlib import md5
from pathlib import Path

from greenformers.genome.files import (
    BLOCKS,
    INDEXES,
    GenomeError,
    Region,
    checked,
    htslib,
    index_of,
    matched,
    named,
    told,
)  # fmt: skip

HELD = 300_000_000
"""Most bases of a FASTA file without an index: a chromosome, not a genome."""


class Reference:
    """The sequences of a FASTA file, by region.

    A FASTA file without an index (.fai, and .gzi where it is packed with bgzip) is read whole; it may be packed with
    gzip. A sequence named 19:1001-2000, as `samtools faidx` names a part it cuts out, is that part of contig 19.

    Args:
        path: Path of the FASTA file.

    Raises:
        GenomeError: The file is missing, damaged, without a sequence, or too long without an index.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._file, self._held = path, None, dict[str, str]()
        name, pysam = checked(path), htslib()
        blocks = path.with_name(path.name + BLOCKS) if path.suffix == ".gz" else None
        index = None
        if blocks is None or blocks.is_file():
            index = index_of(path, INDEXES[".fa"], needed=False)
        if index is not None:
            with told(path, "no FASTA file that can be read"):
                more = {} if blocks is None else {"filepath_index_compressed": str(blocks.resolve())}
                self._file = pysam.FastaFile(name, filepath_index=index, **more)
                lengths = dict(zip(self._file.references, self._file.lengths, strict=True))
        else:
            with told(path, "no FASTA file that can be read"):
                self._read(pysam.FastxFile(name))
            lengths = {contig: len(bases) for contig, bases in self._held.items()}
        if not lengths:
            raise GenomeError(f"{path}: has no sequence")
        # Contig, first position and end of each sequence.
        self._parts: dict[str, Region] = {}
        for sequence, length in lengths.items():
            self._parts[sequence] = Region(sequence, 0, length)
            if cut := re.fullmatch(r"(.+):(\d+)-(\d+)", sequence, flags=re.ASCII):
                start, end = int(cut[2]) - 1, int(cut[3])
                if end - start == length:
                    self._parts[sequence] = Region(cut[1], start, end)

    @property
    def names(self) -> list[str]:
        """Names of the sequences in the file."""
        return list(self._parts)

    @property
    def regions(self) -> list[Region]:
        """Regions that the file holds, in its order."""
        return list(self._parts.values())

    def region(self, text: str | None) -> Region:
        """A region from its text, with the contig's name in this file; the whole contig where the text is its name.

        Args:
            text: Text such as 19:45411941-45412079 or 19; None for the only sequence.

        Raises:
            GenomeError: The region is not within a sequence, or there are several sequences.
            ValueError: The text is not a region.
        """
        if text in self._parts:
            return self._parts[text]
        if text is None or ":" not in text:
            matching = [part for part in self.regions if text is None or matched(text, [part.contig])]
            if not matching:
                named(text or "", [part.contig for part in self.regions], self.path)
            if len(matching) > 1:
                raise GenomeError(f"{self.path}: has {len(matching)} sequences; name one with --region")
            return matching[0]
        region = Region.parse(text)
        contig = named(region.contig, [part.contig for part in self.regions], self.path)
        region = Region(contig, region.start, region.end)
        self._sequence(region)
        return region

    def fetch(self, region: Region) -> str:
        """Bases of a region, in capitals; letters other than A, C, G and T, which stand for several, are N.

        Raises:
            GenomeError: The region is not within a sequence, or the file is damaged.
        """
        sequence = self._sequence(region)
        part = self._parts[sequence]
        start, end = region.start - part.start, region.end - part.start
        if self._file is None:
            bases = self._held[sequence][start:end]
        else:
            with told(self.path, "damaged, or its index is that of another file"):
                bases = self._file.fetch(sequence, start, end)
        if len(bases) != len(region):
            raise GenomeError(f"{self.path}: has {len(bases)} of the {len(region)} bases of {region}")
        return re.sub("[^ACGT]", "N", bases.upper())

    def checksum(self, contig: str) -> tuple[int, str]:
        """Length and MD5 of a sequence of the file, as in the header of a CRAM file (SAM specification, 1.3.2).

        Args:
            contig: Name of the sequence in the file.

        Raises:
            GenomeError: There is no such sequence, or the file is damaged.
        """
        named(contig, self._parts, self.path)
        with told(self.path, "damaged, or its index is that of another file"):
            bases = self._held[contig] if self._file is None else self._file.fetch(contig)
        return len(bases), md5(re.sub("[^!-~]", "", bases).upper().encode(), usedforsecurity=False).hexdigest()

    def _sequence(self, region: Region) -> str:
        """The name of the sequence that holds a region."""
        own = [(name, part) for name, part in self._parts.items() if matched(region.contig, [part.contig])]
        for name, part in own:
            if part.start <= region.start and region.end <= part.end:
                return name
        if not own:
            named(region.contig, [part.contig for part in self._parts.values()], self.path)
        raise GenomeError(f"{self.path}: has {', '.join(str(part) for _, part in own[:3])}; {region} is not within")

    @property
    def _indexing(self) -> str:
        return "samtools faidx" + (", of a file that bgzip has packed," if self.path.suffix == ".gz" else "")

    def _read(self, records: object) -> None:
        total = 0
        for record in records:  # type: ignore[attr-defined]
            if record.name in self._held:
                raise GenomeError(f"{self.path}: has sequence {record.name} twice")
            total += len(record.sequence or "")
            if total > HELD:
                raise GenomeError(
                    f"{self.path}: has no index, and more than {HELD:,} bases: {self._indexing} makes one"
                )
            if record.quality is not None:
                raise GenomeError(f"{self.path}: reads with qualities (FASTQ), not a reference (FASTA)")
            self._held[record.name] = record.sequence or ""
