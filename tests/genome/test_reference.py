"""FASTA files right and wrong, regions and contigs under their names, and indexes that are whole or not there."""

import gzip
import os
import re
from pathlib import Path

import pytest
from made import aligned, bases, fasta, line, vcf

from greenformers.genome.files import GenomeError, Region, checked, make_index, matched, named, told, whole
from greenformers.genome.reference import Reference

pysam = pytest.importorskip("pysam", reason="the genome extra is not installed")

SEQUENCE = bases(150, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("19:1-1", Region("19", 0, 1)),
        ("chr19:45,411,941-45,412,079", Region("chr19", 45_411_940, 45_412_079)),
        ("HLA-A*01:01:2-20", Region("HLA-A*01:01", 1, 20)),
        ("1:1-2147483647", Region("1", 0, 2**31 - 1)),
    ],
)
def test_region(text, expected):
    region = Region.parse(text)
    assert region == expected
    assert len(region) == expected.end - expected.start
    assert str(region) == text.replace(",", "")


@pytest.mark.parametrize(
    "text", ["", "19", "19:", "19:1", "19:1-", "19:-5", ":1-2", "19:a-b", "19:1-2 ", "1 9:1-2", "19:1-2-3", "19:1.5-2",
             "19:١-٢", "19:1–2", "19:-1-2"],
)  # fmt: skip
def test_not_written_as_a_region(text):
    with pytest.raises(
        ValueError, match=f"^region must be written as 19:45411941-45412079, got {re.escape(repr(text))}$"
    ):
        Region.parse(text)


@pytest.mark.parametrize("text", ["19:0-1", "19:2-1", "19:1-2147483648", "19:,-,"])
def test_no_position_in_a_region(text):
    with pytest.raises(
        ValueError, match=f"^region must have 1 <= first <= last < 2\\^31, got {re.escape(repr(text))}$"
    ):
        Region.parse(text)


@pytest.mark.parametrize(
    ("contig", "contigs", "expected"),
    [
        ("19", ["chr19", "19"], "19"),
        ("chr19", ["19", "chr19"], "chr19"),
        ("19", ["1", "chr19"], "chr19"),
        ("chr19", ["19"], "19"),
        ("MT", ["chrM"], "chrM"),
        ("chrM", ["MT"], "MT"),
        ("M", ["chrMT"], "chrMT"),
        ("X", ["chrX"], "chrX"),
        ("9", ["19", "chr99"], None),
        ("19", [], None),
        ("chr", ["chr19"], None),
    ],
)
def test_contigs(contig, contigs, expected, tmp_path):
    assert matched(contig, contigs) == expected
    if expected is None:
        there = ", ".join(contigs) or "none"
        with pytest.raises(GenomeError, match=f"a.fa: has no contig {contig}, it has {there}$"):
            named(contig, contigs, tmp_path / "a.fa")


@pytest.fixture(params=["indexed", "held", "packed", "in blocks"])
def kind(request):
    return request.param


def opened(path, kind):
    if kind == "indexed":
        make_index(path)
    if kind == "packed":
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    if kind == "in blocks":
        packed = path.with_name(path.name + ".gz")
        pysam.tabix_compress(str(path), str(packed))
        assert make_index(packed) == packed.with_name("a.fa.gz.fai")
        path = packed
    return Reference(path)


def test_bases(tmp_path, kind):
    reference = opened(fasta(tmp_path / "a.fa", **{"1": SEQUENCE, "chr2": SEQUENCE[::-1]}), kind)
    assert reference.regions == [Region("1", 0, 150), Region("chr2", 0, 150)]
    for start, end in [(0, 150), (0, 1), (59, 61), (149, 150), (7, 7)]:
        assert reference.fetch(Region("1", start, end)) == SEQUENCE[start:end]
        assert reference.fetch(Region("chr1", start, end)) == SEQUENCE[start:end]
        assert reference.fetch(Region("2", start, end)) == SEQUENCE[::-1][start:end]
    for text, expected in [("chr1:3-9", Region("1", 2, 9)), ("2", Region("chr2", 0, 150)), ("1", Region("1", 0, 150))]:
        assert reference.region(text) == expected


def test_other_letters(tmp_path, kind):
    reference = opened(fasta(tmp_path / "a.fa", **{"1": "acgtnRYKMSWbdhvUu*-ACGT"}), kind)
    assert reference.fetch(reference.region(None)) == "ACGT" + "N" * 15 + "ACGT"


def test_lines_as_windows_ends_them(tmp_path, kind):
    path = tmp_path / "a.fa"
    path.write_bytes(b">1 of somebody\r\nACGT\r\nAC\r\n>2\r\nGG\r\n")
    reference = opened(path, kind)
    assert reference.fetch(Region("1", 0, 6)) == "ACGTAC"
    assert reference.regions[1] == Region("2", 0, 2)


def test_parts(tmp_path, kind):
    """As samtools faidx names what it cuts out."""
    reference = opened(
        fasta(tmp_path / "a.fa", chr19__101__250=SEQUENCE, chr19__1001__1005="ACGTA", a__1__9="AC"), kind
    )
    assert reference.regions == [Region("chr19", 100, 250), Region("chr19", 1000, 1005), Region("a:1-9", 0, 2)]
    assert reference.fetch(Region("19", 100, 250)) == SEQUENCE
    assert reference.fetch(reference.region("19:1002-1003")) == "CG"
    assert reference.region("chr19:250-250") == Region("chr19", 249, 250)
    with pytest.raises(GenomeError, match=r"a\.fa(\.gz)?: has 2 sequences; name one with --region$"):
        reference.region("19")
    for outside in ("19:250-251", "19:100-101", "19:500-501", "19:101-1005"):
        there = re.escape(f"has chr19:101-250, chr19:1001-1005; chr{outside} is not within")
        with pytest.raises(GenomeError, match=rf"a\.fa(\.gz)?: {there}$"):
            reference.region(outside)


def test_regions_that_are_not_there(tmp_path, kind):
    reference = opened(fasta(tmp_path / "a.fa", **{"1": SEQUENCE, "2": "ACG"}), kind)
    file = r"a\.fa(\.gz)?"
    for use in (lambda: reference.region("1:150-151"), lambda: reference.fetch(Region("1", 149, 151))):
        with pytest.raises(GenomeError, match=rf"{file}: has 1:1-150; 1:150-151 is not within$"):
            use()
    uses = [
        lambda: reference.region("3:1-2"),
        lambda: reference.region("3"),
        lambda: reference.fetch(Region("3", 0, 1)),
    ]
    for use in uses:
        with pytest.raises(GenomeError, match=rf"{file}: has no contig 3, it has 1, 2$"):
            use()
    with pytest.raises(GenomeError, match=rf"{file}: has 2 sequences; name one with --region$"):
        reference.region(None)
    with pytest.raises(GenomeError, match=rf"{file}: has 1:1-150; 1:0-3 is not within$"):
        reference.fetch(Region("1", -1, 3))


def test_contigs_with_a_colon_in_their_name(tmp_path, kind):
    reference = opened(fasta(tmp_path / "a.fa", **{"HLA-A*01:01": SEQUENCE}), kind)
    assert reference.region("HLA-A*01:01:3-5") == Region("HLA-A*01:01", 2, 5)


def test_the_name_alone_of_a_contig_with_a_colon(tmp_path):
    reference = Reference(fasta(tmp_path / "a.fa", **{"HLA-A*01:01": SEQUENCE}))
    assert reference.region("HLA-A*01:01") == Region("HLA-A*01:01", 0, 150)


def test_an_index_of_another_file(tmp_path):
    path = fasta(tmp_path / "a.fa", **{"1": SEQUENCE})
    make_index(path)
    fasta(path, **{"1": SEQUENCE[:90]})
    with pytest.raises(GenomeError, match=r"a\.fa: "):
        Reference(path).fetch(Region("1", 0, 150))


def test_an_older_index(tmp_path):
    """Its offsets may be those of a file of the same length."""
    path = fasta(tmp_path / "a.fa", **{"1": SEQUENCE, "2": SEQUENCE})
    make_index(path)
    fasta(path, **{"2": SEQUENCE[::-1], "1": SEQUENCE})
    os.utime(tmp_path / "a.fa.fai", (1e9, 1e9))
    with pytest.raises(GenomeError, match=r"a\.fa: its index a\.fa\.fai is older than the file"):
        Reference(path)


@pytest.mark.parametrize("content", [b"", b"no index", b"1\t-5\t3\t60\t61\n", b"1\t150\t3\t0\t0\n", b"1\t150\t3\t60\n"])
def test_damaged_indexes(tmp_path, content):
    path = fasta(tmp_path / "a.fa", **{"1": SEQUENCE})
    (tmp_path / "a.fa.fai").write_bytes(content)
    with pytest.raises(GenomeError, match=r"a\.fa: "):
        Reference(path).fetch(Region("1", 0, 150))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, 0 bytes"),
        (b"\n\n", "has no sequence"),
        (b"no sequence at all\n", "has no sequence"),
        (b"@r1\nACGT\n+\nIIII\n", r"reads with qualities \(FASTQ\), not a reference \(FASTA\)"),
        (b">1\nAC\n>2\nAC\n>1\nGT\n", "has sequence 1 twice"),
        (b"\x1f\x8b\x08\x00 no gzip", "(no FASTA file that can be read|has no sequence).*"),
    ],
)
def test_no_reference(tmp_path, content, message):
    path = tmp_path / "a.fa"
    path.write_bytes(content)
    with pytest.raises(GenomeError, match=rf"^{re.escape(str(path))}: {message}$"):
        Reference(path)


def test_a_sequence_twice_with_an_index(tmp_path):
    path = tmp_path / "a.fa"
    path.write_text(">1\nACGT\n>1\nGGGG\n")
    with pytest.raises(GenomeError, match=r"a\.fa: "):
        make_index(path)
    assert sorted(tmp_path.iterdir()) == [path]


def test_packed_and_cut_off(tmp_path):
    path = tmp_path / "a.fa.gz"
    content = gzip.compress(fasta(tmp_path / "a.fa", **{"1": bases(5000)}).read_bytes())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(GenomeError, match=r"a\.fa\.gz: "):
        Reference(path)


def test_too_long_without_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr("greenformers.genome.reference.HELD", 149)
    path = fasta(tmp_path / "a.fa", **{"1": SEQUENCE})
    with pytest.raises(GenomeError, match=r"a\.fa: has no index, and more than 149 bases: samtools faidx makes one$"):
        Reference(path)
    make_index(path)
    assert Reference(path).fetch(Region("1", 0, 150)) == SEQUENCE


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "a folder, not a file"),
        ("none.fa", "no such file"),
        ("https://example.org/a.fa", "no such file"),
        ("s3://bucket/a.fa", "no such file"),
        ("a.fa##idx##b.fai", "a name with ##idx## in it is not for a file"),
        ("/dev/null", "not a regular file"),
        ("-", "no such file"),
        ("empty.fa", "empty, 0 bytes"),
    ],
)
def test_no_local_file(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.fa").touch()
    path = tmp_path / name if name.startswith(("folder", "empty")) else Path(name)
    for use in (checked, Reference, make_index):
        with pytest.raises(GenomeError, match=f"^{re.escape(str(path))}: {message}$"):
            use(path)


@pytest.mark.parametrize("name", ["data:,x", "file:a.fa", "a b.fa", "ä嗄.fa", "-.fa"])
def test_strange_names(tmp_path, monkeypatch, name):
    """A file is what its name says, whatever htslib would take it for."""
    monkeypatch.chdir(tmp_path)
    path = fasta(Path(name), **{"1": SEQUENCE})
    assert Reference(path).fetch(Region("1", 0, 150)) == SEQUENCE
    if name.endswith(".fa"):
        make_index(path)
        assert Reference(path).fetch(Region("1", 0, 150)) == SEQUENCE


def test_indexes_are_made(tmp_path):
    paths = [
        fasta(tmp_path / "a.fa", **{"1": SEQUENCE}),
        fasta(tmp_path / "b.fasta", **{"1": SEQUENCE}),
        aligned(tmp_path / "c.bam", [line("r", 0, "4M", "ACGT")], {"17": 150}, index=False),
        aligned(tmp_path / "d.cram", [], {"1": 150}, reference=tmp_path / "a.fa", index=False),
        vcf(tmp_path / "e.vcf.gz", [(1, "A", "C", "0|1")], index=False),
        vcf(tmp_path / "f.bcf", [(1, "A", "C", "0|1")], index=False),
    ]
    (tmp_path / "a.fa.fai").unlink(missing_ok=True)
    assert [make_index(path).name for path in paths] == [
        "a.fa.fai", "b.fasta.fai", "c.bam.bai", "d.cram.crai", "e.vcf.gz.tbi", "f.bcf.csi",
    ]  # fmt: skip
    assert [make_index(path) for path in paths] == [None] * 6
    assert not list(tmp_path.glob(".*"))


def broken(tmp_path, name):
    path = tmp_path / name
    if name == "unsorted.bam":
        rows = [line("r", 50, "4M", "ACGT"), line("s", 0, "4M", "ACGT")]
        return aligned(path, rows, {"17": 150}, order="unsorted", index=False)
    if name == "unsorted.vcf.gz":
        return vcf(path, [(9, "A", "C", "0|1"), (1, "A", "C", "0|1")], index=False)
    if name == "plain.vcf.gz":
        path.write_bytes(gzip.compress(vcf(tmp_path / "x.vcf", [(1, "A", "C", "0|1")]).read_bytes()))
        (tmp_path / "x.vcf").unlink()
        return path
    if name == "uneven.fa":
        path.write_text(">1\nACGT\nAC\nACGT\n")
        return path
    path.write_bytes(b"no such thing")
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("unsorted.bam", "uneven.fa", "a.bam", "a.cram", "a.fa"),
        "unsorted.vcf.gz",
        "plain.vcf.gz",
        "a.bcf",
        "a.vcf.gz",
    ],
)
def test_indexes_that_cannot_be_made(tmp_path, name):
    """Nothing is left, and what was said is in one line."""
    path = broken(tmp_path, name)
    with pytest.raises(GenomeError, match=rf"^{re.escape(str(path))}: no index can be made \(.+\)$") as caught:
        make_index(path)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == [path]


def test_no_index_for_other_files(tmp_path):
    path = vcf(tmp_path / "a.vcf", [(1, "A", "C", "0|1")])
    with pytest.raises(
        GenomeError, match=r"a\.vcf: an index is for \.bam, \.cram, \.vcf\.gz, \.bcf, \.fa, .*\.fna\.gz$"
    ):
        make_index(path)


def test_a_folder_that_cannot_be_written(tmp_path):
    path = fasta(tmp_path / "a.fa", **{"1": SEQUENCE})
    (tmp_path / ".a.fa.fai.unfinished").mkdir()
    with pytest.raises(GenomeError, match=r"a\.fa: no index can be made \(.+\)$"):
        make_index(path)


def test_whole(tmp_path):
    path = vcf(tmp_path / "a.vcf.gz", [(1, "A", "C", "0|1")], index=False)
    whole(path)
    content = path.read_bytes()
    for cut in (1, 28, len(content) - 20):
        path.write_bytes(content[:-cut])
        with pytest.raises(GenomeError, match=r"a\.vcf\.gz: cut off, its last block is missing$"):
            whole(path)
    path.write_bytes(gzip.compress(b"not in blocks"))
    with pytest.raises(GenomeError, match=r"a\.vcf\.gz: packed with gzip, must be with bgzip$"):
        whole(path)
    path.write_bytes(b"not packed")
    whole(path)


def test_told_in_one_line(tmp_path):
    with pytest.raises(GenomeError, match=r"/a: broken \(second\)$"), told(tmp_path / "a", "broken"):
        raise OSError("first\nsecond\n")
    with pytest.raises(GenomeError, match=r"/a: broken \(OSError\)$"), told(tmp_path / "a", "broken"):
        raise OSError
    with pytest.raises(GenomeError, match=r"^as it was$"), told(tmp_path / "a", "broken"):
        raise GenomeError("as it was")
