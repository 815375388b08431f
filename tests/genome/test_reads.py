"""Reads against an independent count of what samtools mpileup prints, real ones and made-up ones."""

import random
import re
import shutil

import numpy as np
import pytest
from made import ABSENT, DATA, aligned, bases, fasta, line, names
from pileup import counted, expected, printed

from greenformers.genome import reads, variants
from greenformers.genome.diplotype import pairs_of, places, text
from greenformers.genome.files import GenomeError, Region, make_index
from greenformers.genome.reads import Thresholds
from greenformers.genome.reference import Reference

pysam = pytest.importorskip("pysam", reason="the genome extra is not installed")

REAL = DATA / "genomics_bam"
SOME = [
    Thresholds(),
    Thresholds(depth=1, count=1, share=0.0, base_quality=0),
    Thresholds(depth=8, count=3, share=0.35, base_quality=30),
    Thresholds(depth=2, count=1, share=0.1, base_quality=20, mapping_quality=30),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A copy of the real files, with indexes."""
    if not REAL.is_dir():
        pytest.skip(ABSENT)
    folder = tmp_path_factory.mktemp("real")
    for path in REAL.iterdir():
        shutil.copyfile(path, folder / path.name)
    # The index that comes with a file is not older than it.
    (folder / "mpileup.1.bam.bai").touch()
    for name in ("mpileup.1.bam", "mpileup.2.bam", "NA12878.chr22.tiny.bam", "mpileup.ref.fa", "q.fa"):
        make_index(folder / name)
    return folder


def agree(path, reference, contig, parts, some=SOME):
    """Number of pairs that were compared."""
    whole, compared = reference.fetch(reference.region(contig)), 0
    columns = {}
    for thresholds in some:
        mapping = thresholds.mapping_quality
        if mapping not in columns:
            columns[mapping] = printed(path, whole, contig, mapping)
        by_place = [expected(columns[mapping], place, place + 1, thresholds) for place in range(len(whole))]
        for start, end in parts:
            region = Region(contig, start, end)
            if not any(
                counted(columns[mapping].get(place, []), thresholds.base_quality) for place in range(start, end)
            ):
                with pytest.raises(GenomeError, match=f": has no reads that count at {region}$"):
                    reads.read(path, reference, region, thresholds)
                continue
            ours = names(reads.read(path, reference, region, thresholds))
            assert ours == [pair for pairs in by_place[start:end] for pair in pairs]
            compared += len(ours)
    return compared


@pytest.mark.parametrize("name", ["mpileup.1.bam", "mpileup.2.bam"])
def test_real_reads(real, name):
    parts = [(0, 4200), (0, 1), (1234, 1301), (3000, 4200), (99, 2700)]
    assert agree(real / name, Reference(real / "mpileup.ref.fa"), "17", parts) > 4 * 8000


@pytest.mark.slow
def test_real_reads_of_na12878(real):
    reference = Reference(real / "q.fa")
    assert agree(real / "NA12878.chr22.tiny.bam", reference, "q", [(0, 12356), (5000, 5011)], SOME[1:3]) > 2 * 12356


@pytest.mark.parametrize("held", [1, 5000, 100_000])
def test_a_few_reads_at_a_time(real, monkeypatch, held):
    path, reference = real / "mpileup.1.bam", Reference(real / "mpileup.ref.fa")
    for region in (Region("17", 0, 4200), Region("17", 700, 1500)):
        monkeypatch.undo()
        whole = text(reads.read(path, reference, region))
        monkeypatch.setattr(reads, "_HELD", held)
        assert text(reads.read(path, reference, region)) == whole


def test_real_variants_are_in_the_reads(real):
    """At all 14 places where Genome in a Bottle has one; no variant there is an insertion or a deletion."""
    reference = Reference(real / "q.fa")
    region = reference.region(None)
    pairs = reads.read(real / "NA12878.chr22.tiny.bam", reference, region)
    by_place = dict(zip(places(pairs).tolist(), names(pairs), strict=True))
    path = real / "NA12878.chr22.tiny.giab.vcf.gz"
    first, second = variants.read(path, reference, region).haplotypes("NA12878")
    with pysam.VariantFile(str(path)) as records:
        changes = [(record.start, record.alts[0]) for record in records]
    assert len(changes) == 14
    for place, alternative in changes:
        called = sorted("ACGT"[haplotype.bases[place]] for haplotype in (first, second))
        assert by_place[place] == "-".join(called)
        assert alternative in called


def test_a_real_cram_file_this_htslib_decodes_wrongly(real):
    path, reference = real / "mpileup.1.cram", Reference(real / "mpileup.ref.fa")
    make_index(path)
    message = (
        r"mpileup\.1\.cram: 26 % of its bases at 17:1-4200 differ from mpileup\.ref\.fa, as its 17 has 81,195,210 "
        r"bases, and here it has 4,200; or htslib [\d.]+ decodes the file wrongly: turn it into BAM with the program "
        r"that wrote it$"
    )
    with pytest.raises(GenomeError, match=message):
        reads.read(path, reference, reference.region(None))


# Made-up reads.
LENGTH = 97
FLAGS = [0] * 12 + [16] * 6 + [4, 256, 512, 1024, 2048, 1 | 64, 1 | 128 | 16, 3 | 64]


def random_cigar(chance, room, changes):
    """Operations that fit in some positions."""
    operations = [(chance.choice("MMM=X"), chance.randint(1, 9))]
    for _ in range(chance.choice(changes)):
        middle = chance.choice(["I", "D", "I", "D", "N", "S", "P", "PI", "IPI", "DI", "ID", "DN", "NI"])
        operations += [(operation, chance.randint(1, 4)) for operation in middle if operation != "S"]
        operations.append((chance.choice("MMM=X"), chance.randint(1, 9)))
    while sum(count for operation, count in operations if operation in "M=XDN") > room:
        operations = operations[:-1] if len(operations) > 1 else [("M", room)]
    while operations[-1][0] in "NP":
        operations.pop()
    ends = [[("S", chance.randint(1, 3))] if chance.random() < 0.2 else [] for _ in range(2)]
    hard = [[("H", chance.randint(1, 3))] if chance.random() < 0.1 else [] for _ in range(2)]
    return hard[0] + ends[0] + operations + ends[1] + hard[1]


def random_read(chance, reference, name, start, flag, changes=(0, 0, 1, 1, 2, 3, 4)):
    """A line of SAM, with the reference's bases and a few errors."""
    cigar, place, sequence = random_cigar(chance, len(reference) - start, changes), start, ""
    for operation, count in cigar:
        if operation in "M=X":
            sequence += reference[place : place + count]
        elif operation in "IS":
            sequence += "".join(chance.choices("ACGTN", weights=[5, 5, 5, 5, 1], k=count))
        place += count * (operation in "M=XDN")
    sequence = "".join(chance.choice("ACGTN") if chance.random() < 0.03 else base for base in sequence)
    qualities = chance.choice([None, *(4 * [[chance.choice([2, 12, 13, 20, 20, 37]) for _ in sequence]])])
    written = "".join(f"{count}{operation}" for operation, count in cigar)
    return line(name, start, written, sequence, qualities, flag=flag, mapping=chance.choice([0, 29, 30, 60]))


def random_reads(seed, reference, *, fragments=60):
    chance, lines = random.Random(seed), []
    for number in range(fragments):
        start = chance.randrange(len(reference))
        if chance.random() < 0.4:
            near = min(max(start + chance.randint(-6, 6), 0), len(reference) - 1)
            lines.append(random_read(chance, reference, f"r{number}", start, 99))
            lines.append(random_read(chance, reference, f"r{number}", near, 147))
            if chance.random() < 0.1:
                lines.append(random_read(chance, reference, f"r{number}", near, 2048 | 147))
        else:
            lines.append(random_read(chance, reference, f"r{number}", start, chance.choice(FLAGS)))
    return lines


@pytest.fixture
def reference(tmp_path):
    path = fasta(tmp_path / "made.fa", **{"17": bases(LENGTH, 5)})
    make_index(path)
    return Reference(path)


@pytest.mark.parametrize("seed", range(25))
def test_made_up_reads(tmp_path, reference, seed, monkeypatch):
    # In a few positions, many may differ.
    monkeypatch.setattr(reads, "_DIFFERENT", 1)
    whole = reference.fetch(Region("17", 0, LENGTH))
    path = aligned(tmp_path / "a.bam", random_reads(seed, whole), {"17": LENGTH})
    some = random.Random(seed)
    start, end = sorted(some.sample(range(LENGTH + 1), 2))
    parts = [(0, LENGTH), (start, end), (start, start + 1)]
    agree(path, reference, "17", parts)
    monkeypatch.setattr(reads, "_HELD", some.choice([1, 20, 200]))
    agree(path, reference, "17", parts)


def test_long_reads(tmp_path, monkeypatch):
    """Of 1,000 operations each."""
    whole = bases(9973, 1)
    path = fasta(tmp_path / "long.fa", **{"17": whole})
    chance = random.Random(1)
    lines = [random_read(chance, whole, f"r{number}", chance.randrange(3000), 0, changes=[400]) for number in range(12)]
    path, reference = aligned(tmp_path / "a.bam", lines, {"17": 9973}), Reference(path)
    assert agree(path, reference, "17", [(0, 9973), (2999, 3012)], SOME[::2]) > 2 * 9000
    monkeypatch.setattr(reads, "_HELD", 5000)
    agree(path, reference, "17", [(0, 9973)], SOME[:1])


def test_cram_gives_what_bam_gives(tmp_path, reference):
    lines = random_reads(3, reference.fetch(Region("17", 0, LENGTH)))
    paths = [aligned(tmp_path / name, lines, {"17": LENGTH}, reference=reference.path) for name in ("a.bam", "a.cram")]
    for region in (Region("17", 0, LENGTH), Region("17", 40, 71)):
        for thresholds in SOME:
            bam, cram = (reads.read(path, reference, region, thresholds) for path in paths)
            assert text(bam) == text(cram)


SPELLED, LAST = "ACGTACGTACGT", 12
EVERYTHING = Thresholds(depth=1, count=1, share=0.0, base_quality=0)


def called(tmp_path, *lines, thresholds=EVERYTHING, end=LAST):
    """Pairs by reads that are given as name, start, CIGAR, bases, qualities and flag."""
    reference = Reference(fasta(tmp_path / "spelled.fa", **{"17": SPELLED}))
    rows = [line(name, start, *rest, flag=flag) for name, start, *rest, flag in lines]
    path = aligned(tmp_path / "spelled.bam", rows, {"17": LAST})
    return text(reads.read(path, reference, Region("17", 0, end), thresholds))


def test_a_diplotype_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(reads, "_DIFFERENT", 1)
    whole = [(f"a{number}", 2, "8M", "GTACGTAC", 30, flag) for number, flag in enumerate([0, 16, 3, 2048])]
    # T to A, an insertion of GT after it, C and G deleted.
    changed = [(f"b{number}", 2, "2M2I1M2D3M", "GAGTATAC", 30, 0) for number in range(2)]
    out = [(f"c{number}", 2, "8M", "TTTTTTTT", 30, flag) for number, flag in enumerate([4, 256, 512, 1024, 1, 9])]
    poor = [("d0", 2, "8M", "TTTTTTTT", 12, 0), ("e0", 2, "8M", "NNNNNNNN", 40, 0)]
    symbols = called(tmp_path, *whole, *changed, *out, *poor, thresholds=Thresholds())
    assert names(pairs_of(symbols)) == [
        "N-N", "N-N", "G-G", "A-T", "GI-DEL", "TI-DEL", "A-A", "C-DEL", "G-DEL", "T-T", "A-A", "C-C", "N-N", "N-N",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("ACGT", 30), ("ACGT", 30), "ACGTNN"),
        (("ACGT", 30), ("ACTT", 29), "ACGTNN"),
        (("ACGT", 30), ("ACTT", 31), "ACTTNN"),
        (("ACGT", 30), ("ACTT", 30), "ACNTNN"),
        (("ACGT", None), ("ACTT", 60), "ACGTNN"),
        (("ACGT", 30), ("ACNT", 60), "ACGTNN"),
    ],
)
def test_mates_count_once(tmp_path, monkeypatch, first, second, expected):
    monkeypatch.setattr(reads, "_DIFFERENT", 1)
    both = [("r", 0, "4M", *first, 99), ("r", 0, "4M", *second, 147)]
    assert called(tmp_path, *both, end=6) == expected
    with pytest.raises(GenomeError, match=r": has no reads that count at 17:5-6$"):
        reads.read(tmp_path / "spelled.bam", Reference(tmp_path / "spelled.fa"), Region("17", 4, 6))
    # As two fragments, there would be two.
    assert set(called(tmp_path, *both, thresholds=Thresholds(depth=2, count=1))) == {"N"}


@pytest.mark.parametrize("order", ["CAA", "AAC", "ACA"])
def test_three_alignments_of_one_fragment(tmp_path, monkeypatch, order):
    """Of bases as good as each other, neither counts, in whatever order they come."""
    monkeypatch.setattr(reads, "_DIFFERENT", 1)
    three = [("r", 0, "4M", f"{base}CGT", 30, flag) for base, flag in zip(order, [99, 147, 2147], strict=True)]
    assert called(tmp_path, *three, end=4) == "NCGT"


def test_bases_written_as_the_references(tmp_path, monkeypatch):
    monkeypatch.setattr(reads, "_DIFFERENT", 1)
    assert called(tmp_path, ("r", 2, "6M", "=T=CGA", 30, 0), end=8) == "NNGTACGA"


def test_a_read_without_bases_counts_for_nothing(tmp_path):
    some = [("r", 0, "4M", "ACGT", 30, 0), ("s", 0, "2M2D2M", "*", None, 0)]
    assert called(tmp_path, *some, end=4) == "ACGT"


def test_two_insertions_at_one_place_are_one(tmp_path):
    """Padding, which says where in a longer insertion they are, is between them."""
    symbols = called(tmp_path, ("r", 0, "4M1I1P2I4M", "ACGTGCAACGT", 30, 0), end=8)
    assert symbols == "ACGTgcaACGT"


@pytest.mark.parametrize("cigar", ["2I4M", "2S2I4M", "2I2D4M", "0M2I4M"])
def test_an_insertion_with_nothing_before_it_counts_for_nothing(tmp_path, monkeypatch, cigar):
    monkeypatch.setattr(reads, "_DIFFERENT", 1)
    count = sum(int(count) for count, _ in re.findall(r"(\d+)([MIS])", cigar))
    symbols = called(tmp_path, ("r", 0, cigar, "GGGGACGT"[-count:], 30, 0), end=4 + 2 * ("D" in cigar))
    assert symbols == ("--ACGT" if "D" in cigar else "ACGT")


def test_a_region_of_one_position_that_differs(tmp_path):
    """A variant, not another genome."""
    four = [(f"r{number}", 0, "12M", "ACGTACGTACCT", 30, 0) for number in range(4)]
    assert called(tmp_path, *four) == "ACGTACGTACCT"
    pairs = reads.read(tmp_path / "spelled.bam", Reference(tmp_path / "spelled.fa"), Region("17", 10, 11))
    assert text(pairs) == "C"


def test_insertions_at_the_ends_of_a_region(tmp_path):
    """What follows its last position is of it, what comes before its first one is not."""
    four = [(f"r{number}", 0, "4M1I4M1I2M", "ACGTGACGTGAC", 30, 0) for number in range(4)]
    called(tmp_path, *four)
    pairs = reads.read(tmp_path / "spelled.bam", Reference(tmp_path / "spelled.fa"), Region("17", 4, 8))
    assert text(pairs) == "ACGTg"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"share": 0.2}, "S"),
        ({"share": 0.21}, "C"),
        ({"count": 3}, "C"),
        ({"depth": 11}, "N"),
        ({"mapping_quality": 50}, "C"),
        ({"base_quality": 31}, "G"),
    ],
)
def test_thresholds(tmp_path, monkeypatch, given, expected):
    """8 fragments have C, 2 have G of a better quality but not as well mapped; at the edge they count."""
    monkeypatch.setattr(reads, "_DIFFERENT", 1)
    lines = [line(f"c{number}", 0, "1M", "C", 30, mapping=50) for number in range(8)]
    lines += [line(f"g{number}", 0, "1M", "G", 40, mapping=49) for number in range(2)]
    path = aligned(tmp_path / "a.bam", lines, {"17": 1})
    thresholds = Thresholds(**{"depth": 2} | given)
    pairs = reads.read(path, Reference(fasta(tmp_path / "a.fa", **{"17": "C"})), Region("17", 0, 1), thresholds)
    assert text(pairs) == expected


def test_a_share_that_is_no_binary_fraction():
    """7 of 100 are a share of 0.07."""
    counts = np.array([[93, 7, 0, 0, 0]], dtype=np.int32)
    assert text(reads.called(reads.Profile(counts, {}, 0.0), Thresholds(share=0.07))) == "M"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"depth": 0}, "depth and count must be at least 1, got 0 and 2"),
        ({"count": -1}, "depth and count must be at least 1, got 3 and -1"),
        ({"share": 0.6}, "share must be in 0..0.5, got 0.6"),
        ({"share": float("nan")}, "share must be in 0..0.5, got nan"),
        ({"base_quality": 94}, "base_quality must be in 0..93, got 94"),
        ({"mapping_quality": -1}, "mapping_quality must be in 0..93, got -1"),
    ],
)
def test_wrong_thresholds(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Thresholds(**given)
