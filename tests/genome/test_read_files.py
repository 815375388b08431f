"""BAM and CRAM files that cannot be used, and those of other names."""

import gzip
import os
import re
import shutil

import pytest
from made import aligned, bases, fasta, line

from greenformers.genome import reads
from greenformers.genome.diplotype import text
from greenformers.genome.files import GenomeError, Region, make_index
from greenformers.genome.reference import Reference

pytest.importorskip("pysam", reason="the genome extra is not installed")

WHOLE = bases(200, 7)
LONG = 60_000
PART = Region("17", 100, 59_000)


def four(contig="17", sequence=WHOLE):
    return [line(f"r{number}", 0, f"{len(sequence)}M", sequence, contig=contig) for number in range(4)]


def many(reference, contig="17"):
    whole = reference.fetch(Region("17", 0, LONG))
    return [
        line(f"r{start}", start, "100M", whole[start : start + 100], contig=contig)
        for start in range(0, LONG - 100, 10)
    ]


@pytest.fixture
def long(tmp_path):
    path = fasta(tmp_path / "long.fa", **{"17": bases(LONG, 3)})
    make_index(path)
    return Reference(path)


@pytest.fixture
def reference(tmp_path):
    path = fasta(tmp_path / "made.fa", **{"17": WHOLE})
    make_index(path)
    return Reference(path)


def refused(path, reference, message, region=None):
    """As it is said, in one line."""
    with pytest.raises(GenomeError, match=f"^{re.escape(str(path.parent))}/{message}$") as caught:
        reads.read(path, reference, region or reference.region(None))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["bam", "cram"])
def test_no_index(tmp_path, reference, kind):
    path = aligned(tmp_path / f"a.{kind}", four(), {"17": 200}, reference=reference.path, index=False)
    refused(path, reference, rf"a\.{kind}: has no index; --index makes one beside it")
    index = make_index(path)
    assert index.name == f"a.{kind}." + {"bam": "bai", "cram": "crai"}[kind]
    assert text(reads.read(path, reference, reference.region(None))) == WHOLE
    # As other programs name it.
    index.rename(path.with_suffix(index.suffix))
    assert text(reads.read(path, reference, reference.region(None))) == WHOLE


def test_an_index_of_another_kind(tmp_path, reference):
    import pysam

    path = aligned(tmp_path / "a.bam", four(), {"17": 200}, index=False)
    pysam.index("-c", str(path))
    assert text(reads.read(path, reference, reference.region(None))) == WHOLE
    other = aligned(tmp_path / "b.bam", four("1"), {"1": 200, "17": 200}, index=False)
    pysam.index("-c", str(other))
    shutil.move(tmp_path / "b.bam.csi", tmp_path / "a.bam.csi")
    refused(path, reference, r"a\.bam: its index a\.bam\.csi is of another file, with 2 contigs for 1")


def test_the_index_of_another_file(tmp_path, reference):
    path = aligned(tmp_path / "a.bam", four(), {"17": 200}, index=False)
    aligned(tmp_path / "b.bam", four("1"), {"1": 200, "17": 200})
    shutil.move(tmp_path / "b.bam.bai", tmp_path / "a.bam.bai")
    refused(path, reference, r"a\.bam: its index a\.bam\.bai is of another file, with 2 contigs for 1")


def test_an_older_index(tmp_path, reference):
    path = aligned(tmp_path / "a.bam", four(), {"17": 200})
    os.utime(tmp_path / "a.bam.bai", (1e9, 1e9))
    refused(
        path, reference, r"a\.bam: its index a\.bam\.bai is older than the file; remove it, and --index makes another"
    )


@pytest.mark.parametrize("content", [b"", b"BAI", b"BAI\1", b"no index at all, but text", b"\x1f\x8b\x08\x04no gzip"])
@pytest.mark.parametrize("kind", ["bam", "cram"])
def test_damaged_indexes(tmp_path, reference, content, kind):
    path = aligned(tmp_path / f"a.{kind}", four(), {"17": 200}, reference=reference.path)
    index = next(tmp_path.glob(f"a.{kind}.*"))
    index.write_bytes(content)
    refused(path, reference, r"a\.\w+(\.\w+)?: .*(damaged|index).*")


@pytest.mark.parametrize("order", ["queryname", "unsorted"])
def test_not_sorted(tmp_path, reference, order):
    path = aligned(tmp_path / "a.bam", four(), {"17": 200}, order=order, index=False)
    refused(path, reference, rf"a\.bam: reads must be sorted by coordinate, they are {order}")


def test_no_reads(tmp_path, reference):
    path = aligned(tmp_path / "a.bam", four(sequence=WHOLE[:50]), {"17": 200})
    refused(path, reference, r"a\.bam: has no reads that count at 17:51-200", Region("17", 50, 200))
    path = aligned(tmp_path / "b.bam", [], {"17": 200})
    refused(path, reference, r"b\.bam: has no reads that count at 17:1-200")


def test_another_reference(tmp_path):
    path = aligned(tmp_path / "a.bam", four(), {"17": 200})
    other = Reference(fasta(tmp_path / "other.fa", **{"17": bases(200, 8)}))
    refused(path, other, r"a\.bam: is not aligned to other\.fa, 7\d % of its bases at 17:1-200 differ")


def test_a_shorter_contig(tmp_path, reference):
    path = aligned(tmp_path / "a.bam", four(sequence=WHOLE[:50]), {"17": 60})
    refused(path, reference, r"a\.bam: has no reads that count at 17:101-200", Region("17", 100, 200))


@pytest.mark.parametrize(("here", "there"), [("17", "chr17"), ("chr17", "17"), ("MT", "chrM"), ("chrM", "MT")])
def test_contigs_under_their_other_names(tmp_path, here, there):
    reference = Reference(fasta(tmp_path / "here.fa", **{here: WHOLE}))
    path = aligned(tmp_path / "a.bam", four(there), {"1": 10, there: 200})
    for name in (here, there):
        assert text(reads.read(path, reference, Region(name, 3, 60))) == WHOLE[3:60]


def test_cram_of_another_contig_name(tmp_path, long):
    """It has only what differs from the sequence of this name; where htslib finds none, it looks elsewhere."""
    own = fasta(tmp_path / "own.fa", chr17=long.fetch(Region("17", 0, LONG)))
    path = aligned(tmp_path / "a.cram", many(long, "chr17"), {"chr17": LONG}, reference=own)
    own.unlink()
    refused(path, long, r"a\.cram: .*chr17.*long\.fa.*")


def test_cram_of_another_reference(tmp_path, long):
    """htslib says that it is truncated; one base is enough."""
    path = aligned(tmp_path / "a.cram", many(long), {"17": LONG}, reference=long.path)
    whole = long.fetch(Region("17", 0, LONG))
    digest = r"the MD5 of its 17 is [0-9a-f]{8}\.\.\., and here it is [0-9a-f]{8}\.\.\."
    for name, sequence, reason in (
        ("other", bases(LONG, 4), digest),
        ("one", whole[:300] + "ACGT"["CGTA".index(whole[300])] + whole[301:], digest),
        ("short", bases(59_500, 4), "its 17 has 60,000 bases, and here it has 59,500"),
    ):
        other = fasta(tmp_path / f"{name}.fa", **{"17": sequence})
        make_index(other)
        refused(path, Reference(other), rf"a\.cram: needs another reference than {name}\.fa, {reason}", PART)
    # The same in small letters is the same.
    small = fasta(tmp_path / "small.fa", **{"17": whole.lower()})
    make_index(small)
    assert text(reads.read(path, Reference(small), PART)) == long.fetch(PART)


def test_cram_that_is_decoded_wrongly(monkeypatch, tmp_path, long):
    path = aligned(tmp_path / "a.cram", many(long), {"17": LONG}, reference=long.path)
    monkeypatch.setattr(reads, "_DIFFERENT", -1.0)
    wrongly = r"htslib [\d.]+ decodes the file wrongly: turn it into BAM with the program that wrote it"
    refused(path, long, rf"a\.cram: 0 % of its bases at 17:101-59000 differ from long\.fa, {wrongly}", PART)


def test_no_such_contig(tmp_path, reference):
    path = aligned(tmp_path / "a.bam", four("18"), {str(number): 200 for number in range(18, 25)})
    refused(path, reference, r"a\.bam: has no contig 17, it has 18, 19, 20, 21, 22, \.\.\.")


def test_other_files(tmp_path, reference):
    path = tmp_path / "a.sam"
    path.write_text("@HD\tVN:1.6\n")
    refused(path, reference, r"a\.sam: reads must be in a \.bam or \.cram file")
    refused(tmp_path / "b.bam", reference, r"b\.bam: no such file")
    path = tmp_path / "c.bam"
    path.write_text("text")
    refused(path, reference, r"c\.bam: damaged, or its index is that of another file \(.*\)")
    with pytest.raises(GenomeError, match=r"c\.bam: no BAM or CRAM file that can be read \(.*\)$"):
        reads.people(path)


def test_a_reference_without_index_for_cram(tmp_path):
    path = fasta(tmp_path / "made.fa", **{"17": WHOLE})
    reads_file = aligned(tmp_path / "a.cram", four(), {"17": 200}, reference=path)
    (tmp_path / "made.fa.fai").unlink(missing_ok=True)
    refused(reads_file, Reference(path), r"made\.fa: has no index; --index makes one beside it")
    assert not (tmp_path / "made.fa.fai").exists()


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_cut_off(tmp_path, long, share):
    path = aligned(tmp_path / "a.bam", many(long), {"17": LONG})
    assert text(reads.read(path, long, PART)) == long.fetch(PART)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path, long, r"a\.bam: .*(truncated|cut off).*")


def test_cut_off_between_two_blocks(tmp_path, long):
    path = aligned(tmp_path / "a.bam", many(long), {"17": LONG})
    content, end = path.read_bytes(), 0
    while end < len(content) / 2:
        # The size of a BGZF block, less 1, is 16 bytes after its start.
        end += int.from_bytes(content[end + 16 : end + 18], "little") + 1
    path.write_bytes(content[:end])
    refused(path, long, r"a\.bam: .*(truncated|cut off).*")


@pytest.fixture
def cram(tmp_path, long):
    """In 60 containers of 100 reads."""
    import pysam

    path, options = tmp_path / "a.cram", ["--output-fmt-option", "seqs_per_slice=100"]
    bam = aligned(tmp_path / "a.bam", many(long), {"17": LONG})
    pysam.view("-C", "-T", str(long.path), *options, "-o", str(path), str(bam), catch_stdout=False)
    make_index(path)
    assert text(reads.read(path, long, PART)) == long.fetch(PART)
    return path


def test_cram_cut_off_within_a_container(cram, long):
    content = cram.read_bytes()
    cram.write_bytes(content[: len(content) // 2])
    refused(cram, long, r"a\.cram: .*(truncated|cut off).*")


@pytest.mark.parametrize("container", [1, 30, 59, 60])
def test_cram_cut_off_between_two_containers(cram, long, container):
    """That of the end is 38 bytes. CRAM format specification, section 9."""
    rows = gzip.decompress(cram.with_suffix(".cram.crai").read_bytes()).decode().splitlines()
    content = cram.read_bytes()
    starts = [int(row.split("\t")[3]) for row in rows] + [len(content) - 38]
    cram.write_bytes(content[: starts[container]])
    refused(cram, long, r"a\.cram: .*(truncated|cut off).*")


def test_people(tmp_path):
    path = aligned(tmp_path / "a.b.bam", four(), {"17": 200}, groups=["bob", "ann", "bob"])
    assert reads.people(path) == ["ann", "bob"]
    assert reads.people(aligned(tmp_path / "c.d.bam", four(), {"17": 200})) == ["c"]
