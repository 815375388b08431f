"""Structural variants of VCF 4.4: what each makes unknown, against sequences that are spelled by hand, and refusals."""

import gzip
import re
from collections import Counter
from pathlib import Path

import pytest
from command_line import run
from made import ABSENT, DATA, fasta, vcf

from greenformers.genome import variants
from greenformers.genome.diplotype import diplotype, text
from greenformers.genome.encode import Encoding, Source, Tally, encode
from greenformers.genome.encoded_file import load
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.reference import Reference

pytest.importorskip("pysam", reason="the genome extra is not installed")

APOE = DATA / "genomics_apoe_1000g"
#           1        10        20
SEQUENCE = "GATTACAGCCTTGACGTAACGGTC"
WHOLE = Region("19", 0, len(SEQUENCE))


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    return Reference(fasta(tmp_path / "made.fa", **{"19": SEQUENCE}))


def called(folder: Path, reference: Reference, *records, region=WHOLE, name="a.vcf", **given):
    """Variants of records with INFO: position, reference, alternatives, INFO, call."""
    rows = [(*record[:3], *record[4:]) for record in records]
    return variants.read(vcf(folder / name, rows, infos=[record[3] for record in records], **given), reference, region)


def spelled(folder: Path, reference: Reference, *records, **given) -> tuple[str, str, Counter[str], int]:
    """Both haplotypes of a person, the structural alleles by kind, and how many alleles were left out."""
    result = called(folder, reference, *records, **given)
    first, second = result.haplotypes("ann")
    kinds = Counter(edit.kind for edit in result.structural("ann"))
    return first.sequence(), second.sequence(), kinds, result.left_out


@pytest.mark.parametrize(
    ("alt", "info", "expected", "kind"),
    [
        # The base before the variant (POS 4) is known; what follows is not.
        ("<DEL>", "END=9", "GATTNNNNNCTTGACGTAACGGTC", "DEL"),
        ("<DEL>", "SVLEN=5", "GATTNNNNNCTTGACGTAACGGTC", "DEL"),
        ("<DEL>", "SVLEN=-5", "GATTNNNNNCTTGACGTAACGGTC", "DEL"),
        ("<DEL>", "SVTYPE=DEL;END=9;SVLEN=-5", "GATTNNNNNCTTGACGTAACGGTC", "DEL"),
        ("<del>", "END=9", "GATTNNNNNCTTGACGTAACGGTC", "DEL"),
        ("<DEL:ME:L1>", "END=9", "GATTNNNNNCTTGACGTAACGGTC", "DEL"),
        ("<DUP>", "END=9;SVLEN=5", "GATTNNNNNCTTGACGTAACGGTC", "DUP"),
        ("<DUP:TANDEM>", "END=9", "GATTNNNNNCTTGACGTAACGGTC", "DUP"),
        ("<INV>", "END=9;SVLEN=0", "GATTNNNNNCTTGACGTAACGGTC", "INV"),
        ("<CNV>", "END=9", "GATTNNNNNCTTGACGTAACGGTC", "CNV"),
        ("<CNV:TR>", "END=9", "GATTNNNNNCTTGACGTAACGGTC", "CNV"),
        ("<CN0>", "END=9", "GATTNNNNNCTTGACGTAACGGTC", "CNV"),
        ("<CN12>", "END=9", "GATTNNNNNCTTGACGTAACGGTC", "CNV"),
        ("<SOMETHING>", "END=9", "GATTNNNNNCTTGACGTAACGGTC", "SOMETHING"),
        ("<DEL>", "END=99", "GATTNNNNNNNNNNNNNNNNNNNN", "DEL"),
        # Inserted bases, as many as are known.
        ("<INS>", ".", "GATTNACAGCCTTGACGTAACGGTC", "INS"),
        ("<INS>", "END=4;SVLEN=3", "GATTNNNACAGCCTTGACGTAACGGTC", "INS"),
        ("<INS:ME:ALU>", "SVLEN=2", "GATTNNACAGCCTTGACGTAACGGTC", "INS"),
        # An assembled contig, beside bases that may differ from those of the reference.
        ("T<ctg1>", ".", "GATTNACAGCCTTGACGTAACGGTC", "INS"),
        ("C<ctg1>", "SVTYPE=INS", "GATCNACAGCCTTGACGTAACGGTC", "INS"),
        ("tgg<HLA-A*01:01>", "SVLEN=2", "GATTGGNNACAGCCTTGACGTAACGGTC", "INS"),
        ("<ctg1>T", "SVLEN=3", "GATNNNTACAGCCTTGACGTAACGGTC", "INS"),
        # Not of one allele: POS is unknown too.
        ("<NON_REF>", ".", "GATNACAGCCTTGACGTAACGGTC", "<NON_REF>"),
        ("<*>", "END=9", "GATNNNNNNCTTGACGTAACGGTC", "<*>"),
        ("<X>", ".", "GATNACAGCCTTGACGTAACGGTC", "<X>"),
        # Breakends: from one end to the other on this contig.
        ("T[19:9[", ".", "GATNNNNNNCTTGACGTAACGGTC", "BND"),
        ("T]19:9]", ".", "GATNNNNNNCTTGACGTAACGGTC", "BND"),
        ("]19:9]T", ".", "GATNNNNNNCTTGACGTAACGGTC", "BND"),
        ("[19:9[T", ".", "GATNNNNNNCTTGACGTAACGGTC", "BND"),
        ("[19:2[T", ".", "GNNNACAGCCTTGACGTAACGGTC", "BND"),
        ("TGGN[19:6[", "END=20", "GATNNNAGCCTTGACGTAACGGTC", "BND"),
        ("t[chr19:6[", ".", "GATNNNAGCCTTGACGTAACGGTC", "BND"),
        ("]19:0]T", ".", "NNNNACAGCCTTGACGTAACGGTC", "BND"),
        # Of another contig, an assembled one, single ones.
        ("T[20:9[", ".", "GATNACAGCCTTGACGTAACGGTC", "BND"),
        ("]HLA-A*01:01:01:9]T", ".", "GATNACAGCCTTGACGTAACGGTC", "BND"),
        ("T[<ctg1>:1[", ".", "GATNACAGCCTTGACGTAACGGTC", "BND"),
        (".[20:9[", ".", "GATNACAGCCTTGACGTAACGGTC", "BND"),
        ("T.", ".", "GATNACAGCCTTGACGTAACGGTC", "BND"),
        ("TGGA.", ".", "GATNACAGCCTTGACGTAACGGTC", "BND"),
        (".T", ".", "GATNACAGCCTTGACGTAACGGTC", "BND"),
        ("<BND>", "END=9", "GATNACAGCCTTGACGTAACGGTC", "BND"),
        ("<TRA>", "CHR2=20;END=2", "GATNACAGCCTTGACGTAACGGTC", "TRA"),
        # Without the deletion that it is of.
        ("*", ".", "GATNACAGCCTTGACGTAACGGTC", "*"),
    ],
)
def test_each_kind(tmp_path, reference, alt, info, expected, kind):
    record = (4, "T", alt, info)
    assert spelled(tmp_path, reference, (*record, "0|1")) == (SEQUENCE, expected, {kind: 1}, 0)
    assert spelled(tmp_path, reference, (*record, "1|0")) == (expected, SEQUENCE, {kind: 1}, 0)
    assert spelled(tmp_path, reference, (*record, "1/1")) == (expected, expected, {kind: 2}, 0)
    assert spelled(tmp_path, reference, (*record, "0|0")) == (SEQUENCE, SEQUENCE, {}, 0)
    # Beside an allele that is written in bases.
    other = spelled(tmp_path, reference, (4, "T", f"G,{alt}", info, "1|2"))
    assert other == ("GATGACAGCCTTGACGTAACGGTC", expected, {kind: 1}, 0)


@pytest.mark.parametrize(
    ("alt", "info", "expected"),
    [
        # Of a genotype that is missing nothing is known in the whole span, POS as well.
        ("<DEL>", "END=9", "GATNNNNNNCTTGACGTAACGGTC"),
        ("<NON_REF>", "END=9", "GATNNNNNNCTTGACGTAACGGTC"),
        ("G,<DEL>", "SVLEN=.,5", "GATNNNNNNCTTGACGTAACGGTC"),
        ("T[19:9[", ".", "GATNNNNNNCTTGACGTAACGGTC"),
        ("<INS>", "SVLEN=9", "GATNACAGCCTTGACGTAACGGTC"),
        ("C<ctg1>", "SVLEN=9", "GATNACAGCCTTGACGTAACGGTC"),
        ("*", ".", "GATNACAGCCTTGACGTAACGGTC"),
        (".", "END=9", "GATNNNNNNCTTGACGTAACGGTC"),  # a block of a gVCF where nothing was read
    ],
)
def test_missing_genotypes(tmp_path, reference, alt, info, expected):
    assert spelled(tmp_path, reference, (4, "T", alt, info, "./.")) == (expected, expected, {}, 0)


def test_a_block_that_begins_before_the_region_reaches_into_it(tmp_path, reference):
    block = (4, "T", ".", "END=7", "./.")
    assert spelled(tmp_path, reference, block, region=Region("19", 5, 9))[:2] == ("NNGC", "NNGC")


@pytest.mark.parametrize(
    ("records", "first", "second", "left_out"),
    [
        # Another record within the span is left out, and one that reaches into it makes way.
        (
            [(4, "T", "<DEL>", "END=9", "0|1"), (6, "C", "G", ".", "1|1")],
            "GATTAGAGCCTTGACGTAACGGTC", "GATTNNNNNCTTGACGTAACGGTC", 1,
        ),
        (
            [(4, "TACA", "T", ".", "0|1"), (6, "C", "<DUP>", "END=12", "0|1")],
            SEQUENCE, "GATTNNNNNNGACGTAACGGTC", 0,
        ),
        (
            [(6, "C", "CGG", ".", "0|1"), (8, "G", "]19:4]G", ".", "0|1")],
            SEQUENCE, "GATNNNNNCCTTGACGTAACGGTC", 0,
        ),
        # Both breakends of a pair say the same.
        (
            [(4, "T", "T[19:9[", ".", "0|1"), (9, "C", "]19:4]C", ".", "0|1")],
            SEQUENCE, "GATNNNNNNCTTGACGTAACGGTC", 0,
        ),
        # * is the deletion of an earlier record, of either haplotype where the phase is not known.
        (
            [(4, "TACA", "T", ".", "1|0"), (6, "C", "*,G", ".", "1|2")],
            "GATTGCCTTGACGTAACGGTC", "GATTAGAGCCTTGACGTAACGGTC", 0,
        ),
        (
            [(4, "TACA", "T", ".", "0/1"), (6, "C", "*,G", ".", "1/2")],
            "GATTAGAGCCTTGACGTAACGGTC", "GATTGCCTTGACGTAACGGTC", 0,
        ),
        (
            [(4, "T", "<DEL>", "END=9", "0/1"), (6, "C", "*", ".", "0/1")],
            SEQUENCE, "GATTNNNNNCTTGACGTAACGGTC", 0,
        ),
        # Where the phase is not known, the haplotype that has room.
        (
            [(4, "TACA", "T", ".", "0/1"), (6, "C", "<DEL>", "END=9", "0/1")],
            "GATTACNNNCTTGACGTAACGGTC", "GATTGCCTTGACGTAACGGTC", 0,
        ),
        # Side by side, at the base between two spans.
        (
            [(2, "A", "<DEL>", "END=4", "0|1"), (4, "T", "<INV>", "END=6", "0|1"), (6, "C", "CA", ".", "0|1")],
            SEQUENCE, "GANNNNAAGCCTTGACGTAACGGTC", 0,
        ),
        # A missing genotype counts as far as nothing else is there.
        (
            [(4, "TACA", "T", ".", "1|1"), (6, "C", "<NON_REF>", "END=9", "./.")],
            "GATTNNCTTGACGTAACGGTC", "GATTNNCTTGACGTAACGGTC", 0,
        ),
    ],
)  # fmt: skip
def test_records_at_one_place(tmp_path, reference, records, first, second, left_out):
    result = spelled(tmp_path, reference, *records)
    assert (*result[:2], result[3]) == (first, second, left_out)


@pytest.mark.parametrize("name", ["a.vcf", "a.vcf.gz", "a.bcf"])
@pytest.mark.parametrize("index", [True, False])
def test_what_reaches_into_a_region(tmp_path, reference, name, index):
    """With an index and without, as in the whole."""
    records = [
        (2, "A", "<DEL>", "END=7", "1|0"),
        (3, "T", "<DUP>", "END=5;SVLEN=2", "0|1"),
        (9, "C", "<INS>", "SVLEN=2", "0|1"),
        (20, "C", "<INV>", "END=22", "1|1"),
    ]
    for start, end, first, second in (
        (4, 9, "NNNGC", "NCAGCNN"),
        (5, 6, "N", "C"),
        (19, 24, "CNNTC", "CNNTC"),
        (0, 24, "GANNNNNGCCTTGACGTAACNNTC", "GATNNCAGCNNCTTGACGTAACNNTC"),
    ):
        result = spelled(tmp_path, reference, *records, region=Region("19", start, end), name=name, index=index)
        assert result[:2] == (first, second)
        for path in tmp_path.glob("a.*"):
            path.unlink()


@pytest.mark.parametrize(("name", "index"), [("a.vcf", False), ("a.vcf.gz", False), ("a.bcf", True), ("a.bcf", False)])
def test_what_reaches_into_a_region_by_svlen(tmp_path, reference, name, index):
    """The index of a .vcf.gz file is the exception: htslib has only END there."""
    record = (3, "T", "<DUP>", "SVLEN=2", "0|1")
    part = spelled(tmp_path, reference, record, region=Region("19", 4, 9), name=name, index=index)
    assert part[:2] == ("ACAGC", "NCAGC")


def test_a_breakend_before_the_region_is_not_read(tmp_path, reference):
    """An index does not find it; its mate in the region is read."""
    records = [(4, "T", "T[19:9[", ".", "0|1"), (9, "C", "]19:4]C", ".", "0|1")]
    for name in ("a.vcf", "b.vcf.gz"):
        assert spelled(tmp_path, reference, *records[:1], region=Region("19", 5, 8), name=name)[:2] == ("CAG", "CAG")
    for name in ("c.vcf", "d.vcf.gz"):
        part = spelled(tmp_path, reference, *records, region=Region("19", 5, 10), name=name)
        assert part[:2] == ("CAGCC", "NNNNC")


def test_a_diplotype_of_a_deletion(tmp_path, reference):
    result = called(tmp_path, reference, (4, "T", "<DEL>", "END=7", "0|1"))
    pairs = diplotype(*result.haplotypes("ann"))
    unknown = {base: text(diplotype(*_pair(base, "N"))) for base in "AC"}
    assert text(pairs) == "GATT" + unknown["A"] + unknown["C"] + unknown["A"] + SEQUENCE[7:]


def _pair(*bases):
    from greenformers.genome.diplotype import Haplotype, encoded

    return [Haplotype(encoded(base)) for base in bases]


REFUSED = {
    "END is text": ("<DEL>", "END=x", None),
    "END beyond all numbers": ("<DEL>", "END=99999999999999", "<DEL> must have END after POS or SVLEN, it has neither"),
    "END before POS": ("<DEL>", "END=2", "END must be at least POS, 4, got 2"),
    "END below 0": ("<DEL>", "END=-9", "END must be at least POS, 4, got -9"),
    "END twice": ("<DEL>", "END=9;END=12", "INFO must have one END, has several"),
    "no END and no SVLEN": ("<DEL>", ".", "<DEL> must have END after POS or SVLEN, it has neither"),
    "END at POS": ("<INV>", "END=4", "<INV> must have END after POS or SVLEN, it has neither"),
    "SVLEN of 0": ("<DUP>", "SVLEN=0", "<DUP> must have END after POS or SVLEN, it has neither"),
    "SVLEN is text": ("<DEL>", "SVLEN=five", None),
    "SVLEN of the wrong sign": ("<INS>", "SVLEN=-5", "SVLEN of <INS> must not be below 0, got -5"),
    "a duplication of fewer": ("<DUP>", "END=9;SVLEN=-5", "SVLEN of <DUP> must not be below 0, got -5"),
    "SVLEN of too many": ("<DEL>", "SVLEN=5,5,5", "SVLEN must be a number for each of 1 alternatives, has 3"),
    "SVLEN of too few": ("<DEL>,<DUP>,G", "SVLEN=5,5", "SVLEN must be a number for each of 3 alternatives, has 2"),
    "a huge insertion": ("<INS>", "SVLEN=2000000000", "SVLEN of <INS> must be at most 1,000,000, got 2,000,000,000"),
    "a huge contig": ("T<ctg1>", "SVLEN=2000000000", "SVLEN of T<ctg1> must be at most 1,000,000, got 2,000,000,000"),
    "a contig of fewer": ("T<ctg1>", "SVLEN=-5", "SVLEN of T<ctg1> must not be below 0, got -5"),
    "a contig between bases": ("T<ctg1>T", ".", "ALT must be as in VCF 4.4, got 'T<ctg1>T'"),
    "a contig beside a star": ("*<ctg1>", ".", "ALT must be as in VCF 4.4, got '*<ctg1>'"),
    "a name without end": ("<DEL", "END=9", "ALT must be as in VCF 4.4, got '<DEL'"),
    "no name": ("<>", "END=9", "ALT must be as in VCF 4.4, got '<>'"),
    "two names": ("<DEL><DUP>", "END=9", "ALT must be as in VCF 4.4, got '<DEL><DUP>'"),
    "two stars": ("**", ".", "ALT must be as in VCF 4.4, got '**'"),
    "bases and a star": ("T*", ".", "ALT must be as in VCF 4.4, got 'T*'"),
    "brackets that differ": ("T[19:9]", ".", "ALT must be as in VCF 4.4, got 'T[19:9]'"),
    "one bracket": ("T[19:9", ".", "ALT must be as in VCF 4.4, got 'T[19:9'"),
    "a mate without place": ("T[19[", ".", "ALT must be as in VCF 4.4, got 'T[19['"),
    "a mate at no number": ("T[19:x[", ".", "ALT must be as in VCF 4.4, got 'T[19:x['"),
    "bases on both sides": ("T[19:9[T", ".", "ALT must be as in VCF 4.4, got 'T[19:9[T'"),
    "bases on no side": ("[19:9[", ".", "ALT must be as in VCF 4.4, got '[19:9['"),
    "two dots": (".T.", ".", "ALT must be as in VCF 4.4, got '.T.'"),
    "markup": ("[red]T", ".", "ALT must be as in VCF 4.4, got '[red]T'"),
    "a long one": ("T-" * 5000, ".", "ALT must be as in VCF 4.4, got 'T-T-T-T-T-T-T-T-T-T-'"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("call", ["0|1", "./."])
def test_what_is_wrong_is_one_line(tmp_path, reference, name, call):
    alt, info, message = REFUSED[name]
    path = tmp_path / "a.vcf"
    with pytest.raises(GenomeError) as error:
        called(tmp_path, reference, (4, "T", alt, info, call))
    said = str(error.value)
    assert "\n" not in said
    assert len(said) < 300
    if message is None:
        # htslib says it, or we do.
        assert said.startswith(f"{path}: ")
    else:
        assert said == f"{path}: at 19:4 {message}"


@pytest.mark.parametrize("name", [name for name, row in REFUSED.items() if row[2] is not None])
def test_what_nobody_has_may_be_wrong(tmp_path, reference, name):
    alt, info, _ = REFUSED[name]
    assert spelled(tmp_path, reference, (4, "T", alt, info, "0|0"))[:2] == (SEQUENCE, SEQUENCE)


@pytest.mark.parametrize(
    ("alt", "info", "expected"),
    [
        ("R", ".", "GATNACAGCCTTGACGTAACGGTC"),
        ("TRG", ".", "GATTNGACAGCCTTGACGTAACGGTC"),
        ("G", "END=20;SVLEN=x;END=3", "GATGACAGCCTTGACGTAACGGTC"),
        ("<DEL>", ";;=;END=9;;", "GATTNNNNNCTTGACGTAACGGTC"),
        ("<DEL>", "XEND=20;END=9;SVLENGTH=99", "GATTNNNNNCTTGACGTAACGGTC"),
        # The larger span of two that differ.
        ("<DEL>", "END=9;SVLEN=-2", "GATTNNNNNCTTGACGTAACGGTC"),
        ("<DEL>", "END=6;SVLEN=-5", "GATTNNNNNCTTGACGTAACGGTC"),
    ],
)
def test_what_is_odd_is_encoded_as_documented(tmp_path, reference, alt, info, expected):
    assert spelled(tmp_path, reference, (4, "T", alt, info, "0|1"))[:2] == (SEQUENCE, expected)


@pytest.mark.parametrize(
    ("alt", "info", "disagree"),
    [
        ("<DEL>", "END=9;SVLEN=-5", False),
        ("<DEL>", "END=9;SVLEN=-4", True),
        ("<DUP>", "END=9;SVLEN=10", True),
        ("<INV>", "END=9;SVLEN=0", False),
        ("<INS>", "END=5;SVLEN=300", False),
        ("<DEL>,<DUP>", "END=9;SVLEN=5,5", False),
        ("<DEL>,<DUP>", "END=9;SVLEN=5,8", True),
        ("G,<DEL>", "END=9;SVLEN=.,7", True),
        ("<DEL>", "END=9", False),
    ],
)
def test_where_end_and_svlen_differ(tmp_path, reference, alt, info, disagree):
    number = len(alt.split(","))
    result = called(tmp_path, reference, (4, "T", alt, info, f"0|{number}"))
    assert result.disagreeing == [4] * disagree


RECORDS = [
    (4, "T", "<DEL>", "0|1", "1|1", "0|0"),
    (6, "C", "G", "1|1", "0|0", "0|1"),
    (12, "T", "T[20:5[,<INS>", "0|0", "1|2", "0|0"),
]
INFOS = ["END=9;SVLEN=-4", ".", "."]
PEOPLE = ["ann", "bob", "cid"]


def test_what_failed_a_filter_and_who_has_no_record_is_told(tmp_path, reference):
    failed = vcf(tmp_path / "failed.vcf", [(4, "T", "G", "0|1"), (6, "C", "G", "0|1"), (12, "T", "C", "0|0")])
    text = failed.read_text().replace("##FORMAT", '##FILTER=<ID=q10,Description="Low">\n##FORMAT', 1)
    for place in (4, 12):  # nobody has the allele of the last one
        text = re.sub(rf"(?m)^(19\t{place}\t.*?)\t\.\t\.\t\.\tGT", r"\1\t.\tq10\t.\tGT", text)
    failed.write_text(text)
    elsewhere = vcf(tmp_path / "elsewhere.vcf", [(100, "T", "G", "0|1")], ["bob"])
    tally = Tally()
    sources = [Source(failed, ("ann",)), Source(elsewhere, ("bob",))]
    list(encode(sources, Encoding(reference.path, WHOLE, "haplotype"), tmp_path / "out.tsv", tally=tally))
    assert list(tally.lines()) == [
        "filters: 1 record did not pass those of the file (FILTER), and counted",
        "elsewhere.vcf has no record in the region: everybody of it has the bases of the reference there",
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_they_are_counted_over_people_and_files(monkeypatch, tmp_path, reference, workers):
    from greenformers.genome import encode as module

    monkeypatch.setattr(module, "TOGETHER", 2)
    sources = [
        Source(vcf(tmp_path / f"{name}.vcf", RECORDS, people, infos=INFOS), tuple(people))
        for name, people in (("a", PEOPLE), ("b", ["dan", "eve", "fay"]))
    ]
    tally = Tally()
    encoding = Encoding(reference.path, WHOLE, "haplotype")
    list(encode(sources, encoding, tmp_path / "out.tsv", workers=workers, tally=tally))
    assert tally.structural == {"DEL": 6, "BND": 2, "INS": 2}
    assert tally.overlapping == 2
    assert tally.disagreeing == {(source.path, 4) for source in sources}
    assert list(tally.lines()) == [
        "structural variants: 10 alleles, unknown (N) at their positions: 2 BND, 6 DEL, 2 INS",
        "END and SVLEN differ in 2 records of structural variants; the larger span is unknown (N)",
        "overlapping: 2 alleles left out, as another of the haplotype is there",
    ]
    assert list(Tally().lines()) == []


def test_they_are_refused_where_that_is_asked_for(tmp_path, reference):
    path = vcf(tmp_path / "a.vcf", RECORDS, PEOPLE, infos=INFOS)
    encoding = Encoding(reference.path, WHOLE, structural="refuse")
    assert list(encode([Source(path, ("cid",))], encoding, tmp_path / "cid.tsv")) == [0, 1]
    with pytest.raises(
        GenomeError, match=r"a\.vcf: has a structural variant \(DEL\) at 19:5, whose bases are not known"
    ):
        list(encode([Source(path, ("cid", "bob"))], encoding, tmp_path / "out.tsv"))
    with pytest.raises(ValueError, match=r"^structural must be one of unknown, refuse; got 'n'$"):
        Encoding(reference.path, WHOLE, structural="n")


def test_planted_in_a_file_of_real_people(monkeypatch, capsys, tmp_path):
    """The file of APOE with one record of each kind more, through the command."""
    if not APOE.is_dir():
        pytest.skip(ABSENT)
    with gzip.open(APOE / "apoe_exon4_1000g_phase3.vcf.gz", "rt") as file:
        header = file.read().partition("#CHROM")[0]
    exon = Reference(APOE / "apoe_exon4_cds_GRCh37.fa")
    region = exon.region(None)
    bases, start = exon.fetch(region), region.start
    planted = {  # offset, alternative, INFO, unknown positions
        "del": (100, "<DEL>", "SVTYPE=DEL;END={};SVLEN=-100", 100),
        "ins": (210, "<INS>", "SVTYPE=INS;SVLEN=7", 0),
        "inv": (220, "<INV>", "SVTYPE=INV;END={}", 30),
        "dup": (260, "<DUP:TANDEM>", "SVTYPE=DUP;END={}", 40),
        "bnd": (310, "{}[5:1000[", "SVTYPE=BND", 0),
        "any": (320, "<NON_REF>", ".", 0),
    }
    rows = []
    for number, (place, alt, info, span) in enumerate(planted.values()):
        calls = ["0|1" if number == person else "0|0" for person in range(len(planted))]
        position = start + place + 1
        columns = ["19", position, ".", bases[place], alt.format(bases[place]), ".", ".", info.format(position + span)]
        rows.append("\t".join(map(str, [*columns, "GT", *calls])))
    names = ["#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO", "FORMAT", *planted]
    (tmp_path / "a.vcf").write_text(header + "\n".join(["\t".join(names), *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    words = f"encode a.vcf --reference {exon.path} --mode haplotype --out new.tsv".split()
    assert run(monkeypatch, "genome", *words) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "structural variants: 6 alleles, unknown (N) at their positions: 1 <NON_REF>, 1 BND, 1 DEL, 1 DUP, 1 INS, 1 INV"
    ]
    expected = {
        "del": bases[:101] + "N" * 100 + bases[201:],
        "ins": bases[:211] + "N" * 7 + bases[211:],
        "inv": bases[:221] + "N" * 30 + bases[251:],
        "dup": bases[:261] + "N" * 40 + bases[301:],
        "bnd": bases[:310] + "N" + bases[311:],
        "any": bases[:320] + "N" + bases[321:],
    }
    assert {row["person"]: (row["first"], row["second"]) for row in load(tmp_path / "new.tsv")} == {
        name: (bases, second) for name, second in expected.items()
    }
    assert run(monkeypatch, "genome", *words[:-1], "other.tsv", "--structural", "refuse") == 2
    (line,) = re.findall(r"(?m)^greenformers: .*$", capsys.readouterr().err)
    assert "a.vcf: has a structural variant (DEL) at chr19:45411892, whose bases are not known" in line
