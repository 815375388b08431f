"""Genotypes to haplotypes, against sequences that are spelled by hand: those of 2,504 people, and made-up ones."""

import csv
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import ABSENT, DATA, fasta, names, vcf

from greenformers.genome import variants
from greenformers.genome.diplotype import diplotype, text
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.reference import Reference

pytest.importorskip("pysam", reason="the genome extra is not installed")

APOE = DATA / "genomics_apoe_1000g"
#           1        10        20
SEQUENCE = "GATTACAGCCTTGACGTAACGGTC"
WHOLE = Region("19", 0, len(SEQUENCE))


@pytest.fixture
def reference(tmp_path):
    return Reference(fasta(tmp_path / "made.fa", **{"19": SEQUENCE}))


def variants_of(tmp_path, reference, *records, region=WHOLE, name="a.vcf", people=("ann",), **given):
    return variants.read(vcf(tmp_path / name, records, people, **given), reference, region)


def both(tmp_path, reference, *records, region=WHOLE):
    """Sequences of both haplotypes of one person, and how many alleles were left out."""
    result = variants_of(tmp_path, reference, *records, region=region)
    first, second = result.haplotypes("ann")
    return first.sequence(), second.sequence(), result.left_out


def edited(*edits, sequence=SEQUENCE):
    """Bases from positions, from 1, on replaced by others; the last edit first."""
    for place, removed, bases in sorted(edits, reverse=True):
        sequence = sequence[: place - 1] + bases + sequence[place - 1 + removed :]
    return sequence


def test_apoe_of_everybody():
    if not APOE.is_dir():
        pytest.skip(ABSENT)
    reference = Reference(APOE / "apoe_exon4_cds_GRCh37.fa")
    region = reference.region(None)
    result = variants.read(APOE / "apoe_exon4_1000g_phase3.vcf.gz", reference, region)
    haplotypes = np.load(APOE / "apoe_haplotypes.npz")
    with (APOE / "samples.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert result.people == haplotypes["sample"].tolist() == [row["sample"] for row in rows]
    assert len(result.people) == 2504
    exon, alternatives = str(haplotypes["exon4"]), haplotypes["alt"]  # which are read at each mention
    places = haplotypes["pos"] - haplotypes["exon4_start"]
    epsilon = {("T", "C"): "e3", ("C", "C"): "e4", ("T", "T"): "e2", ("C", "T"): "e1"}
    for alleles, row in zip(haplotypes["hap"], rows, strict=True):
        pair = result.haplotypes(row["sample"])
        for chromosome, has, side in zip(pair, alleles, ("hap0_allele", "hap1_allele"), strict=True):
            spelled = list(exon)
            for place, alternative in zip(places[has == 1], alternatives[has == 1], strict=True):
                spelled[place] = alternative
            sequence = chromosome.sequence()
            assert sequence == "".join(spelled)
            at = (sequence[position - 1 - region.start] for position in (45_411_941, 45_412_079))
            assert epsilon[tuple(at)] == row[side]
        assert len(diplotype(*pair)) == 707
    assert result.left_out == 0
    assert result.phased


@pytest.mark.parametrize(
    ("record", "first", "second"),
    [
        # Substitutions, of several positions, deletions, insertions, mixtures.
        ((4, "T", "G", "0|1"), [], [(4, 1, "G")]),
        ((4, "T", "G", "1|0"), [(4, 1, "G")], []),
        ((4, "T", "G", "1/1"), [(4, 1, "G")], [(4, 1, "G")]),
        ((4, "TACA", "GACC", "0|1"), [], [(4, 4, "GACC")]),
        ((4, "TAC", "T", "0|1"), [], [(5, 2, "")]),
        ((4, "T", "TGG", "1|0"), [(5, 0, "GG")], []),
        ((4, "TAC", "G", "0|1"), [], [(4, 3, "G")]),
        ((4, "T", "GCC", "0|1"), [], [(4, 1, "GCC")]),
        ((4, "TACA", "TGGCCA", "1|1"), [(5, 2, "GGCC")], [(5, 2, "GGCC")]),
        ((24, "C", "CAA", "0|1"), [], [(25, 0, "AA")]),
        ((24, "c", "g", "0|1"), [], [(24, 1, "G")]),
        # Several alternatives.
        ((4, "T", "G,C", "1|2"), [(4, 1, "G")], [(4, 1, "C")]),
        ((4, "TA", "T,TAGG,CC", "2|3"), [(6, 0, "GG")], [(4, 2, "CC")]),
        ((4, "T", "G,C", "2/1"), [(4, 1, "C")], [(4, 1, "G")]),
        # Missing ones, and a chromosome alone.
        ((4, "T", "G", "."), [(4, 1, "N")], [(4, 1, "N")]),
        ((4, "TA", "T", "./."), [(4, 2, "NN")], [(4, 2, "NN")]),
        ((4, "T", "G", ".|1"), [(4, 1, "N")], [(4, 1, "G")]),
        ((4, "T", "G", "1|."), [(4, 1, "G")], [(4, 1, "N")]),
        ((4, "T", "G", "./0"), [(4, 1, "N")], []),
        ((4, "T", "G", "1"), [(4, 1, "G")], [(4, 1, "G")]),
        ((4, "T", "G", "0"), [], []),
        ((4, "T", ".", "0/0"), [], []),
        ((4, "T", "N", "0|1"), [], [(4, 1, "N")]),
        ((4, "N", "G", "0|1"), [], [(4, 1, "G")]),
    ],
)
def test_records(tmp_path, reference, record, first, second):
    assert both(tmp_path, reference, record) == (edited(*first), edited(*second), 0)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        # Of a region of positions 5..8, ACAG, what an allele leaves of it.
        ((2, "ATTACAG", "A", "1|1"), ""),
        ((2, "ATT", "A", "1|1"), "ACAG"),
        ((2, "ATTACA", "TTTCCA", "1|1"), "CCAG"),
        ((2, "ATTACAGCC", "A", "1|1"), ""),
        ((7, "AGCC", "A", "1|1"), "ACA"),
        ((7, "AGCC", "ATTT", "1|1"), "ACAT"),
        ((3, "TTAC", "TTACGG", "1|1"), "ACGGAG"),
        ((4, "T", "TGG", "1|1"), "ACAG"),
        ((8, "G", "GTT", "1|1"), "ACAGTT"),
        ((5, "A", "AGG", "1|1"), "AGGCAG"),
        ((9, "C", "T", "1|1"), "ACAG"),
        ((4, "T", "G", "1|1"), "ACAG"),
        ((2, "ATTAC", "<DEL>", "1|1"), "NNAG"),
        ((7, "AGCC", "C", "./."), "ACNN"),
    ],
)
@pytest.mark.parametrize("name", ["a.vcf", "a.vcf.gz"])
def test_at_the_ends_of_a_region(tmp_path, reference, name, record, expected):
    result = variants_of(tmp_path, reference, record, region=Region("19", 4, 8), name=name)
    assert [chromosome.sequence() for chromosome in result.haplotypes("ann")] == [expected] * 2
    assert result.left_out == 0


@pytest.mark.parametrize(
    ("record", "region", "expected"),
    [
        ((1, "G", "GG", "1|1"), WHOLE, "G" + SEQUENCE),
        ((1, "G", "CCG", "1|1"), WHOLE, "CC" + SEQUENCE),
        ((5, "A", "ACA", "1|1"), Region("19", 4, 8), "ACACAG"),
        ((2, "ATTACA", "A", "1|1"), Region("19", 4, 8), "G"),
    ],
)
def test_the_base_before_a_change_stays(tmp_path, reference, record, region, expected):
    assert both(tmp_path, reference, record, region=region) == (expected, expected, 0)


def test_insertions_on_both_sides_of_a_base(tmp_path, reference):
    expected = edited((5, 0, "GG"), (6, 0, "A"))
    assert both(tmp_path, reference, (4, "T", "TGG", "1|1"), (5, "A", "AA", "1|1")) == (expected, expected, 0)


@pytest.mark.parametrize(
    ("records", "first", "second", "left_out"),
    [
        # Within a deletion, and on the other chromosome.
        ([(4, "TACA", "T", "1|0"), (6, "C", "G", "1|1")], [(5, 3, "")], [(6, 1, "G")], 1),
        ([(4, "TACA", "T", "1|0"), (6, "C", "G", "0|1")], [(5, 3, "")], [(6, 1, "G")], 0),
        ([(4, "TACA", "T", "0/1"), (6, "C", "G", "0/1")], [(6, 1, "G")], [(5, 3, "")], 0),
        ([(4, "TACA", "T", "0/1"), (6, "C", "G", "1/0")], [(6, 1, "G")], [(5, 3, "")], 0),
        ([(4, "TACA", "T", "1/1"), (6, "C", "G", "0/1")], [(5, 3, "")], [(5, 3, "")], 1),
        ([(4, "TACA", "T", "1|0"), (6, "C", "*,G", "1|2")], [(5, 3, "")], [(6, 1, "G")], 0),
        # Of one position in two records.
        ([(4, "T", "G", "0|1"), (4, "T", "C", "1|0")], [(4, 1, "C")], [(4, 1, "G")], 0),
        ([(4, "T", "G", "0|1"), (4, "T", "C", "0|1")], [], [(4, 1, "G")], 1),
        ([(4, "T", "G", "0|1"), (4, "T", "C", "./.")], [(4, 1, "N")], [(4, 1, "G")], 0),
        # A site of two alternatives in two records, each of which calls the other's allele missing.
        ([(4, "T", "G", "1/."), (4, "T", "C", "./1")], [(4, 1, "G")], [(4, 1, "C")], 0),
        ([(4, "T", "G", "1|."), (4, "T", "C", ".|1")], [(4, 1, "G")], [(4, 1, "C")], 0),
        # Side by side: the base before an insertion or a deletion is itself another one.
        ([(4, "T", "G", "0|1"), (4, "T", "TCC", "0|1")], [], [(4, 1, "GCC")], 0),
        ([(4, "T", "G", "0|1"), (4, "TA", "T", "0|1")], [], [(4, 2, "G")], 0),
        ([(4, "T", "TCC", "0|1"), (4, "TA", "T", "0|1")], [], [(5, 1, "CC")], 0),
        ([(4, "T", "TCC", "0|1"), (4, "T", "TGG", "0|1")], [], [(5, 0, "CC")], 1),
        ([(4, "TA", "T", "0|1"), (6, "C", "G", "0|1")], [], [(5, 2, "G")], 0),
        # In the other order, which VCF leaves open.
        ([(4, "T", "TCC", "0|1"), (4, "T", "G", "0|1")], [], [(4, 1, "GCC")], 0),
        ([(4, "TA", "T", "0|1"), (4, "T", "G", "0|1")], [], [(4, 2, "G")], 0),
        ([(4, "TA", "T", "0|1"), (4, "T", "TCC", "0|1")], [], [(5, 1, "CC")], 0),
        ([(4, "T", "TCC", "0|1"), (4, "TA", "T", "0|1"), (4, "T", "G", "0|1")], [], [(4, 2, "GCC")], 0),
        ([(4, "TA", "T", "0|1"), (4, "T", "TCC", "0|1"), (4, "T", "G", "0|1")], [], [(4, 2, "GCC")], 0),
        ([(4, "TA", "T", "0|1"), (4, "T", "G", "./.")], [(4, 1, "N")], [(4, 2, "N")], 0),
        ([(4, "T", "TCC", "0|1"), (4, "T", "GA", "0|1")], [], [(5, 0, "CC")], 1),
    ],
)
def test_records_at_one_place(tmp_path, reference, records, first, second, left_out):
    assert both(tmp_path, reference, *records) == (edited(*first), edited(*second), left_out)


def test_a_deletion_has_its_name_where_bases_are_missing(tmp_path):
    records = [(4, "T", "G"), (6, "CA", "C"), (7, "A", "T"), (9, "C", "CGG"), (12, "T", "C")]
    path = vcf(tmp_path / "a.vcf", [(*record, "0|1") for record in records])
    for (place, *_), name in zip(records[:4], ("rs1", "rs2", "rs3", "rs4"), strict=True):  # the last one has none
        path.write_text(path.read_text().replace(f"19\t{place}\t.", f"19\t{place}\t{name}"))
    assert variants.names(path, WHOLE) == {4: "rs1", 7: "rs2/rs3", 9: "rs4"}


def test_asking_twice_changes_nothing(tmp_path, reference):
    result = variants_of(tmp_path, reference, (4, "T", "G", "0|1"), (4, "T", "C", "0|1"))
    assert [chromosome.sequence() for chromosome in result.haplotypes("ann")] == [
        chromosome.sequence() for chromosome in result.haplotypes("ann")
    ]
    assert result.left_out == 1


def test_a_diplotype(tmp_path, reference):
    result = variants_of(tmp_path, reference, (2, "A", "C", "0/1"), (4, "T", "TGG", "1|0"), (6, "CA", "C", "1/1"))
    assert not result.phased
    pairs = diplotype(*result.haplotypes("ann"))
    assert names(pairs)[:9] == ["G-G", "A-C", "T-T", "T-T", "GI-DEL", "GI-DEL", "A-A", "C-C", "DEL-DEL"]
    assert text(pairs) == "GMTT" + 2 * text(pairs)[4] + "AC-" + SEQUENCE[7:]


def in_sets(path, *records, people=("ann",), keys="GT:PS"):
    """A VCF whose calls have more than their genotypes."""
    plain = vcf(path, records, people).read_text().replace("\tGT\t", f"\t{keys}\t")
    head = "".join(f'##FORMAT=<ID={key},Number=1,Type=String,Description="">\n' for key in keys.split(":")[1:])
    path.write_text(plain.replace("##FORMAT", f"{head}##FORMAT"))
    return path


@pytest.mark.parametrize(
    ("calls", "keys", "phased"),
    [
        (("0|1:100", "0|1:900"), "GT:PS", False),
        (("0|1:100", "1|0:100"), "GT:PS", True),
        (("0|1:9:100", "0|1:9:900"), "GT:DP:PS", False),
        # Homozygous ones need no phase, and calls without a phase set are of one.
        (("0|1:100", "1|1:900"), "GT:PS", True),
        (("0|1:100", "0|0:900"), "GT:PS", True),
        (("0|1:.", "0|1"), "GT:PS", True),
        (("0|1:100", "0|1:."), "GT:PS", False),
        (("0|1:19*2*0,19*2*1", "0|1:19*2*0,19*2*1"), "GT:PSL", True),
        (("0|1:19*2*0,19*2*1", "0|1:19*2*1,19*2*0"), "GT:PSL", False),
        (("0|1:.:a,b", "0|1:.:a,c"), "GT:PS:PSL", False),
    ],
)
def test_phase_sets(tmp_path, reference, calls, keys, phased):
    path = in_sets(tmp_path / "a.vcf", (2, "A", "C", calls[0]), (9, "C", "G", calls[1]), keys=keys)
    result = variants.read(path, reference, WHOLE)
    assert (result.phased, result.apart) == (phased, [] if phased else ["ann"])
    # Of a part of the region there is one.
    assert variants.read(path, reference, Region("19", 0, 5)).phased


def test_phase_sets_of_others_do_not_count(tmp_path, reference):
    records = [(4, "TAC", "T", "0|1:100", "0|1:100"), (5, "A", "G", "0|1:900", "0|1:100")]
    result = variants.read(in_sets(tmp_path / "a.vcf", *records, people=("ann", "bob")), reference, WHOLE)
    assert result.apart == ["ann"]
    # As what is not phased: an allele goes to the haplotype that has room.
    assert [chromosome.sequence() for chromosome in result.haplotypes("ann")] == [
        edited((5, 1, "G")),
        edited((5, 2, "")),
    ]
    assert [chromosome.sequence() for chromosome in result.haplotypes("bob")] == [SEQUENCE, edited((5, 2, ""))]
    assert result.left_out == 1


RECORDS = [
    (2, "A", "C", "0|1", "0|0", "1|1"),
    (4, "TAC", "T,TACC", "1|2", "0|1", "./."),
    (9, "C", "G", "0|0", "1|1", "0|1"),
    (15, "C", "CTT", "1|0", "0/1", "0"),
]
PEOPLE = ["ann", "bob", "cid"]


def everything(result):
    return {person: [chromosome.sequence() for chromosome in result.haplotypes(person)] for person in result.people}


@pytest.mark.parametrize("region", [WHOLE, Region("19", 4, 15), Region("chr19", 8, 9), Region("19", 20, 24)])
@pytest.mark.parametrize("contig", ["19", "chr19"])
def test_every_kind_of_file(tmp_path, reference, region, contig):
    results = []
    for index in (True, False):
        for name in ("a.vcf", "a.vcf.gz", "a.bcf"):
            folder = tmp_path / str(index)
            folder.mkdir(exist_ok=True)
            path = vcf(folder / name, RECORDS, PEOPLE, contig=contig, index=index)
            assert variants.people(path) == PEOPLE
            results.append(everything(variants.read(path, reference, region)))
    assert all(result == results[0] for result in results)
    if region == WHOLE:
        assert results[0]["ann"] == [edited((5, 2, ""), (16, 0, "TT")), edited((2, 1, "C"), (7, 0, "C"))]
        assert results[0]["cid"] == [
            edited((2, 1, "C"), (4, 3, "NNN")),
            edited((2, 1, "C"), (4, 3, "NNN"), (9, 1, "G")),
        ]


@pytest.mark.parametrize("name", ["a.vcf", "a.vcf.gz", "a.bcf"])
def test_some_people(tmp_path, reference, name):
    """In the order of the file, whatever the order they are asked for in."""
    path = vcf(tmp_path / name, RECORDS, PEOPLE)
    whole = everything(variants.read(path, reference, WHOLE))
    for some in (["bob"], ["cid", "ann"], ["bob", "cid", "ann"]):
        result = variants.read(path, reference, WHOLE, some)
        assert result.people == [person for person in PEOPLE if person in some]
        assert everything(result) == {person: whole[person] for person in result.people}


@st.composite
def haplotype(draw, sequence):
    """Records of one chromosome, as place of the anchor, reference and alternative; and its sequence."""
    records, spelled, done = [], "", 0
    place = draw(st.integers(2, 6))
    while place < len(sequence):
        kind = draw(st.sampled_from(["substitution", "insertion", "deletion", "mixture"]))
        removed = 0 if kind == "insertion" else draw(st.integers(1, min(4, len(sequence) - place)))
        size = {"substitution": (removed, removed), "deletion": (0, 0)}.get(kind, (1, 4))
        bases = draw(st.text("ACGT", min_size=size[0], max_size=size[1]))
        anchor = place - (kind != "substitution")
        old = sequence[anchor : place + removed]
        new = sequence[anchor:place] + bases
        if old != new:
            records.append((anchor, old, new))
            spelled += sequence[done:place] + bases
            done = place + removed
        place += removed + draw(st.integers(2, 9))
    return records, spelled + sequence[done:]


@st.composite
def person(draw):
    sequence = draw(st.text("ACGT", min_size=3, max_size=40))
    return sequence, draw(haplotype(sequence)), draw(haplotype(sequence))


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(person(), st.booleans())
def test_any_phased_person(tmp_path, drawn, joined):
    """Also with what both chromosomes have at one place in one record."""
    sequence, *sides = drawn
    merged = {}
    for side, (records, _) in enumerate(sides):
        for anchor, old, new in records:
            key = (anchor, old) if joined else (anchor, old, new, side)
            alternatives, calls = merged.setdefault(key, ([], [0, 0]))
            if new not in alternatives:
                alternatives.append(new)
            calls[side] = alternatives.index(new) + 1
    rows = [
        (key[0] + 1, key[1], ",".join(alternatives), "{}|{}".format(*calls))
        for key, (alternatives, calls) in sorted(merged.items())
    ]
    reference = Reference(fasta(tmp_path / "drawn.fa", **{"19": sequence}))
    result = variants.read(vcf(tmp_path / "drawn.vcf", rows), reference, Region("19", 0, len(sequence)))
    pair = result.haplotypes("ann")
    assert [chromosome.sequence() for chromosome in pair] == [spelled for _, spelled in sides]
    assert result.left_out == 0


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([(4, "G", "T", "0|1")], "is not of this reference, at 19:4 it has G for the reference's T"),
        ([(2, "ATTAG", "A", "0|0")], "is not of this reference, at 19:2 it has ATTAG for the reference's ATTAC"),
        ([(9, "C", "G", "0|1"), (4, "T", "G", "0|1")], "must be sorted, position 4 comes after 9"),
        ([(4, "T", "G", "0|2")], "at 19:4 it has allele 2 of 1"),
        ([(4, "T", "G", "0|1|1")], "at 19:4 a genotype must have one or two alleles, one has 3"),
    ],
)
@pytest.mark.parametrize("name", ["a.vcf", "a.bcf"])
def test_wrong_records(tmp_path, reference, name, records, message):
    with pytest.raises(GenomeError, match=rf"^{re.escape(str(tmp_path / name))}: {re.escape(message)}$"):
        variants_of(tmp_path, reference, *records, name=name, index=False)


def test_an_allele_where_there_is_none(tmp_path, reference):
    with pytest.raises(GenomeError, match=r"a\.vcf: at 19:4 it has allele 1 of 0$"):
        variants_of(tmp_path, reference, (4, "T", ".", "0|1"))


def test_records_elsewhere_may_be_of_anything(tmp_path, reference):
    records = [(4, "G", "T", "0|1"), (9, "C", "G", "0|1"), (20, "A", "T", "0|9")]
    result = variants_of(tmp_path, reference, *records, region=Region("19", 6, 12))
    assert result.haplotypes("ann")[1].sequence() == "AGGCTT"
