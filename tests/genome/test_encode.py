"""Everybody's sequence in one file: what is in it, and what is left of work that was stopped."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from made import aligned, bases, fasta, line, vcf

from greenformers.genome import encode as module
from greenformers.genome.diplotype import ALPHABETS, diplotype, pairs_of, text
from greenformers.genome.encode import Encoding, Source, encode, is_reads, people
from greenformers.genome.encoded_file import load, settings_of
from greenformers.genome.files import GenomeError, Region, make_index
from greenformers.genome.reads import Thresholds

pytest.importorskip("pysam", reason="the genome extra is not installed")

SEQUENCE = bases(120, 11)
OTHER = {"A": "C", "C": "G", "G": "T", "T": "A"}
NAMES = [f"p{number}" for number in range(7)]
WHOLE = Region("19", 0, 120)
CALLS = ["0|0", "0|1", "1|0", "1|1"]
PHENOTYPES = {name: str(number % 2) for number, name in enumerate(NAMES)}


def changed(*places):
    return "".join(OTHER[base] if place in places else base for place, base in enumerate(SEQUENCE))


def calls(number):
    """Of a person, at the positions 10, 20 and 30."""
    return [CALLS[number % 4], CALLS[number // 4], CALLS[(number + 1) % 4]]


def haplotypes(number):
    return [
        changed(*[place for place, call in zip((10, 20, 30), calls(number), strict=True) if call[side] == "1"])
        for side in (0, 2)
    ]


def records(numbers):
    return [
        (place + 1, SEQUENCE[place], OTHER[SEQUENCE[place]], *[calls(number)[at] for number in numbers])
        for at, place in enumerate((10, 20, 30))
    ]


@pytest.fixture
def reference(tmp_path):
    return fasta(tmp_path / "made.fa", **{"19": SEQUENCE})


@pytest.fixture
def together(tmp_path):
    """One file of everybody."""
    return [Source(vcf(tmp_path / "all.vcf.gz", records(range(7)), NAMES), tuple(NAMES))]


@pytest.fixture
def apart(tmp_path):
    """A file a person."""
    return [
        Source(vcf(tmp_path / f"{name}.vcf", records([number]), [name]), (name,)) for number, name in enumerate(NAMES)
    ]


def reads(path, *sequences, contigs=None):
    lines = [line(f"r{number}", 0, "120M", sequence, contig="19") for number, sequence in enumerate([*sequences] * 4)]
    return aligned(path, lines, contigs or {"19": 120})


def rows(path):
    return [row.split("\t") for row in path.read_text().splitlines()]


def fuse(both, alphabet):
    from greenformers.genome.diplotype import Haplotype, encoded

    return text(diplotype(*[Haplotype(encoded(side)) for side in both]), alphabet)


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("kind", ["together", "apart"])
def test_diplotypes_of_variants(request, tmp_path, reference, kind, alphabet):
    sources, out = request.getfixturevalue(kind), tmp_path / "out.tsv"
    encoding = Encoding(reference, WHOLE, alphabet=alphabet)
    assert list(encode(sources, encoding, out)) == list(range(8))
    head, columns, *rest = rows(out)
    about = {"reference": "made.fa", "region": "19:1-120", "mode": "diplotype", "alphabet": alphabet}
    assert json.loads(head[0].removeprefix("#")) == about | {"thresholds": asdict(Thresholds())}
    assert settings_of(out) == encoding.settings()
    assert columns == ["person", "sequence"]
    assert rest == [[name, fuse(haplotypes(number), alphabet)] for number, name in enumerate(NAMES)]
    assert [row["sequence"] for row in load(out)] == [sequence for _, sequence in rest]
    assert len(pairs_of(rest[0][1], alphabet)) == 120
    assert {path.name for path in tmp_path.glob("out*")} == {"out.tsv"}


@pytest.mark.parametrize("kind", ["together", "apart"])
def test_haplotypes_of_variants(request, tmp_path, reference, kind):
    out = tmp_path / "out.tsv"
    list(encode(request.getfixturevalue(kind), Encoding(reference, WHOLE, "haplotype"), out, phenotypes=PHENOTYPES))
    assert rows(out)[1] == ["person", "phenotype", "first", "second"]
    assert rows(out)[2:] == [[name, PHENOTYPES[name], *haplotypes(number)] for number, name in enumerate(NAMES)]
    assert list(load(out))[1] == {"person": "p1", "phenotype": "1", "first": changed(), "second": changed(10, 30)} | {
        "first": haplotypes(1)[0], "second": haplotypes(1)[1],
    }  # fmt: skip


def test_reads_and_variants_of_a_part(tmp_path, reference, apart):
    path = reads(tmp_path / "ann.bam", changed(), changed(50))
    out = tmp_path / "out.tsv"
    encoding = Encoding(reference, Region("19", 5, 60), thresholds=Thresholds(depth=2))
    assert list(encode([apart[1], Source(path, ("ann",)), apart[3]], encoding, out)) == [0, 1, 2, 3]
    expected = [fuse([side[5:60] for side in both], "iupac") for both in (haplotypes(1), [SEQUENCE, changed(50)])]
    assert [row[1] for row in rows(out)[2:4]] == expected
    assert [row[0] for row in rows(out)[2:]] == ["p1", "ann", "p3"]


def test_cram(tmp_path, reference):
    make_index(reference)
    lines = [line(f"r{number}", 0, "120M", changed(7), contig="19") for number in range(4)]
    path = aligned(tmp_path / "a.cram", lines, {"19": 120}, reference=reference)
    list(encode([Source(path, ("ann",))], Encoding(reference, WHOLE), tmp_path / "out.tsv"))
    assert rows(tmp_path / "out.tsv")[2] == ["ann", changed(7)]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_few_people_of_a_file_at_a_time(monkeypatch, tmp_path, reference, together, size):
    read, asked = module.variants.read, []

    def noted(path, reference, region, people):
        asked.append(len(people))
        return read(path, reference, region, people)

    list(encode(together, Encoding(reference, WHOLE), tmp_path / "whole.tsv"))
    monkeypatch.setattr(module, "TOGETHER", size)
    monkeypatch.setattr(module.variants, "read", noted)
    list(encode(together, Encoding(reference, WHOLE), tmp_path / "out.tsv"))
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert max(asked) == size
    assert sum(asked) == 7


def test_people_in_the_order_asked_for(tmp_path, reference, together):
    source = Source(together[0].path, ("p5", "p1"))
    list(encode([source], Encoding(reference, WHOLE, "haplotype"), tmp_path / "out.tsv"))
    assert rows(tmp_path / "out.tsv")[2:] == [["p5", *haplotypes(5)], ["p1", *haplotypes(1)]]


def test_who_is_in_a_file(tmp_path, together):
    assert people(together[0].path) == NAMES
    assert people(reads(tmp_path / "ann.b.bam", SEQUENCE)) == ["ann"]
    assert [is_reads(tmp_path / name) for name in ("a.bam", "a.CRAM", "a.vcf.gz", "bam", "a.bam.vcf")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def stopped(sources, encoding, out, after, **given):
    """Close the work when so many are done; what is left of it."""
    work = encode(sources, encoding, out, **given)
    for done in work:
        if done == after:
            break
    work.close()
    return out.with_name(out.name + ".part")


@pytest.mark.parametrize("kind", ["together", "apart"])
@pytest.mark.parametrize("after", [1, 4, 6])
@pytest.mark.parametrize("cut", [0, 1, 50, 119])
def test_work_that_was_stopped_goes_on(request, monkeypatch, tmp_path, reference, kind, after, cut):
    monkeypatch.setattr(module, "TOGETHER", 3)
    sources, encoding = request.getfixturevalue(kind), Encoding(reference, WHOLE, alphabet="thesis")
    list(encode(sources, encoding, tmp_path / "whole.tsv", phenotypes=PHENOTYPES))
    part = stopped(sources, encoding, tmp_path / "out.tsv", after, phenotypes=PHENOTYPES)
    assert len(rows(part)) == 2 + after
    part.write_bytes(part.read_bytes()[: len(part.read_bytes()) - cut])
    left = after - (cut > 0)
    done = list(encode(sources, encoding, tmp_path / "out.tsv", phenotypes=PHENOTYPES, resume=True))
    assert done == list(range(left, 8))
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert not part.exists()


@pytest.mark.parametrize("size", [0, 1, 30, 150])
def test_a_part_with_half_a_head(tmp_path, reference, apart, size):
    encoding, out = Encoding(reference, WHOLE), tmp_path / "out.tsv"
    part = stopped(apart, encoding, out, 1)
    part.write_bytes(part.read_bytes()[:size])
    assert list(encode(apart, encoding, out, resume=True)) == list(range(8))
    assert len(list(load(out))) == 7


def test_all_were_done(tmp_path, reference, apart):
    encoding, out = Encoding(reference, WHOLE), tmp_path / "out.tsv"
    part = stopped(apart, encoding, out, 7)
    assert part.exists()
    assert list(encode(apart, encoding, out, resume=True)) == [7]
    assert len(list(load(out))) == 7


def test_what_a_part_refuses(tmp_path, reference, apart):
    encoding, out = Encoding(reference, WHOLE), tmp_path / "out.tsv"
    part = stopped(apart, encoding, out, 2)
    content = part.read_bytes()
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(part))} is of work that was stopped: --resume goes on with"
    ):
        next(encode(apart, encoding, out))
    others = [
        (Encoding(reference, Region("19", 0, 119)), {}),
        (Encoding(reference, WHOLE, "haplotype"), {}),
        (Encoding(reference, WHOLE, alphabet="thesis"), {}),
        (Encoding(reference, WHOLE, thresholds=Thresholds(depth=4)), {}),
        (Encoding(reference, WHOLE, structural="refuse"), {}),
        (encoding, {"phenotypes": PHENOTYPES}),
    ]
    for other, given in others:
        with pytest.raises(ValueError, match=r"is of other settings than these; remove it$"):
            next(encode(apart, other, out, resume=True, **given))
    assert part.read_bytes() == content
    out.write_text("there")
    with pytest.raises(ValueError, match=r"is there already$"):
        next(encode(apart, encoding, out, resume=True))
    assert (out.read_text(), part.read_bytes()) == ("there", content)


def test_a_part_of_other_people(tmp_path, reference, apart):
    encoding, out = Encoding(reference, WHOLE), tmp_path / "out.tsv"
    stopped(apart[:3], encoding, out, 2)
    with pytest.raises(ValueError, match="p0"):
        list(encode(apart[3:], encoding, out, resume=True))


def test_a_part_of_other_contents(tmp_path, reference, apart):
    encoding, out = Encoding(reference, WHOLE), tmp_path / "out.tsv"
    part = stopped(apart, encoding, out, 2)
    content = apart[0].path.read_text()
    assert content.count("0|1") > 0
    apart[0].path.write_text(content.replace("0|1", "0|0"))
    with pytest.raises(ValueError, match=r"out\.tsv\.part holds another sequence of p0 than .* give; remove it$"):
        list(encode(apart, encoding, out, resume=True))
    apart[0].path.write_text(content)
    assert list(encode(apart, encoding, out, resume=True)) == list(range(2, 8))
    assert not part.exists()


def test_a_part_of_other_phenotypes(tmp_path, reference, apart):
    encoding, out = Encoding(reference, WHOLE), tmp_path / "out.tsv"
    stopped(apart, encoding, out, 2, phenotypes=PHENOTYPES)
    other = PHENOTYPES | {"p0": "1"}
    try:
        list(encode(apart, encoding, out, phenotypes=other, resume=True))
    except ValueError:
        return
    assert {row["person"]: row["phenotype"] for row in load(out)} == other


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fault_in_the_middle(tmp_path, reference, apart, workers):
    """What was done stays, and the work goes on when the fault is mended. Two workers read what one does."""
    encoding, out = Encoding(reference, WHOLE), tmp_path / "out.tsv"
    content = apart[4].path.read_text()
    apart[4].path.write_text(content.replace(f"\t{SEQUENCE[10]}\t", f"\t{OTHER[SEQUENCE[10]]}\t"))
    with pytest.raises(GenomeError, match=r"p4\.vcf: is not of this reference, at 19:11 it has"):
        list(encode(apart, encoding, out, workers=workers))
    assert not out.exists()
    assert [row[0] for row in rows(tmp_path / "out.tsv.part")[2:]] == NAMES[:4]
    apart[4].path.write_text(content)
    assert list(encode(apart, encoding, out, resume=True)) == [4, 5, 6, 7]
    list(encode(apart, encoding, tmp_path / "whole.tsv"))
    assert out.read_bytes() == (tmp_path / "whole.tsv").read_bytes()


def test_nothing_is_left_if_nobody_was_done(tmp_path, reference, apart):
    before = sorted(tmp_path.iterdir())
    gone = Source(tmp_path / "gone.vcf", ("p0",))
    with pytest.raises(GenomeError, match=r"gone\.vcf: no such file$"):
        list(encode([gone, *apart[1:]], Encoding(reference, WHOLE), tmp_path / "out.tsv"))
    stopped(apart, Encoding(reference, WHOLE), tmp_path / "out.tsv", 0)
    with pytest.raises(FileNotFoundError):
        list(encode(apart, Encoding(reference, WHOLE), tmp_path / "nowhere" / "out.tsv"))
    assert sorted(tmp_path.iterdir()) == before


def test_haplotypes_need_phase(tmp_path, reference):
    unphased = vcf(tmp_path / "a.vcf", [(11, SEQUENCE[10], OTHER[SEQUENCE[10]], "0/1", "0|1")], ["ann", "bob"])
    encoding = Encoding(reference, WHOLE, "haplotype")
    with pytest.raises(GenomeError, match=r"a\.vcf: haplotypes need phased genotypes \(0\|1\), some are not \(0/1\)$"):
        list(encode([Source(unphased, ("ann", "bob"))], encoding, tmp_path / "out.tsv"))
    assert list(encode([Source(unphased, ("bob",))], encoding, tmp_path / "out.tsv")) == [0, 1]
    path = reads(tmp_path / "ann.bam", SEQUENCE)
    with pytest.raises(GenomeError, match=r"ann\.bam: reads do not tell which haplotype a base is of; use phased"):
        list(encode([Source(path, ("ann",))], encoding, tmp_path / "other.tsv"))


def test_haplotypes_need_one_phase_set(tmp_path, reference):
    records = [(place, SEQUENCE[place - 1], OTHER[SEQUENCE[place - 1]], f"0|1:{place}", "0|1:9") for place in (11, 21)]
    path = vcf(tmp_path / "a.vcf", records, ["ann", "bob"])
    path.write_text(path.read_text().replace("\tGT\t", "\tGT:PS\t"))
    encoding = Encoding(reference, WHOLE, "haplotype")
    said = r"a\.vcf: haplotypes need genotypes of one phase set \(PS\), those of ann are of several$"
    with pytest.raises(GenomeError, match=said):
        list(encode([Source(path, ("bob", "ann"))], encoding, tmp_path / "out.tsv"))
    assert list(encode([Source(path, ("bob",))], encoding, tmp_path / "bob.tsv")) == [0, 1]
    assert list(encode([Source(path, ("ann",))], Encoding(reference, WHOLE), tmp_path / "ann.tsv")) == [0, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "genotype"}, "mode must be one of diplotype, haplotype; got 'genotype'"),
        ({"alphabet": "IUPAC"}, "alphabet must be one of iupac, thesis; got 'IUPAC'"),
    ],
)
def test_encodings_that_are_none(tmp_path, given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Encoding(tmp_path / "made.fa", WHOLE, **given)


def test_workers_out_of_range(tmp_path, reference, apart):
    with pytest.raises(ValueError, match=r"^workers must be at least 1, got 0$"):
        next(encode(apart, Encoding(reference, WHOLE), tmp_path / "out.tsv", workers=0))


def test_damaged_files_are_not_loaded(tmp_path, reference, apart):
    out = tmp_path / "out.tsv"
    list(encode(apart, Encoding(reference, WHOLE), out))
    whole = out.read_text()
    for content in (whole[:-1], whole[:-50], whole + "x\n", whole + "\n", whole.replace("p3\t", "p3 ")):
        out.write_text(content)
        with pytest.raises(
            GenomeError, match=r"out\.tsv: line \d+ (has no end: the file was cut|must have 2 columns, has [12])$"
        ):
            list(load(out))
    for content in ("\n", TABLE, "{}\n", "##fileformat=VCFv4.3\n#CHROM\n", "#{}\nsequence\tperson\n"):
        out.write_text(content)
        with pytest.raises(GenomeError, match=r"no file that `greenformers genome encode` wrote$"):
            list(load(out))
    for content in ("\n", TABLE, "##fileformat=VCFv4.3\n"):
        out.write_text(content)
        with pytest.raises(GenomeError, match=r"no file that `greenformers genome encode` wrote$"):
            settings_of(out)


TABLE = "person\tsequence\nann\tACGT\n"


@pytest.mark.parametrize("content", [b"5\n", b"[1]\n", b"null\n", b"\xff\xfe\n", b"\x1f\x8b\x08\x04"])
def test_other_files_have_no_settings(tmp_path, content):
    out = tmp_path / "out.tsv"
    out.write_bytes(content)
    for call in (settings_of, lambda path: list(load(path))):
        with pytest.raises(GenomeError, match=r"no file that `greenformers genome encode` wrote$"):
            call(out)


def test_a_reference_of_the_same_name_elsewhere(monkeypatch, tmp_path):
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        sequence = bases(60, len(place) + ord(place[0]))
        path = fasta(Path("made.fa"), **{"19": sequence})
        variants = vcf(Path("a.vcf"), [(9, sequence[8], OTHER[sequence[8]], "0|0")])
        list(encode([Source(variants, ("ann",))], Encoding(path, Region("19", 0, 60)), Path("out.tsv")))
        assert rows(Path("out.tsv"))[2][1] == sequence


def test_a_reference_that_was_replaced(tmp_path):
    for number in range(2):
        sequence = bases(60, number)
        path = fasta(tmp_path / "made.fa", **{"19": sequence})
        variants = vcf(tmp_path / "a.vcf", [(9, sequence[8], OTHER[sequence[8]], "0|0")])
        out = tmp_path / f"{number}.tsv"
        list(encode([Source(variants, ("ann",))], Encoding(path, Region("19", 0, 60)), out))
        assert rows(out)[2][1] == sequence


def test_somebody_in_two_sources(tmp_path, reference, apart):
    twice = [*apart, Source(apart[0].path, ("p3",))]
    with pytest.raises(GenomeError, match=r"p0\.vcf: has person p3, who is in .*p3\.vcf too"):
        next(encode(twice, Encoding(reference, WHOLE), tmp_path / "out.tsv"))
    assert list(tmp_path.glob("out*")) == []


def test_somebody_without_a_phenotype(tmp_path, reference, apart):
    phenotypes = {name: phenotype for name, phenotype in PHENOTYPES.items() if name != "p4"}
    with pytest.raises(ValueError, match=r"^phenotypes must be of everybody, p4 has none$"):
        next(encode(apart, Encoding(reference, WHOLE), tmp_path / "out.tsv", phenotypes=phenotypes))
    assert list(tmp_path.glob("out*")) == []


@pytest.mark.parametrize("names", [(), ("ann", "bob")])
def test_reads_are_of_one_person(tmp_path, reference, names):
    source = Source(reads(tmp_path / "ann.bam", changed()), names)
    with pytest.raises(GenomeError, match=f"ann.bam: has reads of {len(names)} people, must be of one"):
        list(module.sequences(source, Encoding(reference, WHOLE)))
