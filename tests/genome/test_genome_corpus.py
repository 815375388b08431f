"""The complete diplotype of a chromosome, and where it is cut into sentences."""

import re
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import bases, fasta, vcf

from greenformers.genome import corpus
from greenformers.genome.diplotype import diplotype, text
from greenformers.genome.encode import Encoding, Source, encode
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.reference import Reference

pytest.importorskip("pysam", reason="the genome extra is not installed")

#           1        10        20
SEQUENCE = "GATTACAGCCTTGACGTAACGGTC"
WHOLE = Region("19", 0, len(SEQUENCE))


@pytest.fixture
def reference(tmp_path):
    return Reference(fasta(tmp_path / "made.fa", **{"19": SEQUENCE}))


def sites(path, *records, people=()):
    """A VCF of records: position, reference, alternatives, INFO; what people have comes after them."""
    plain = vcf(path, [(place, ref, alt, *calls) for place, ref, alt, _, *calls in records], people)
    abouts = iter([about for _, _, _, about, *_ in records])
    lines = [line.split("\t") for line in plain.read_text().splitlines()]
    for fields in lines:
        if not fields[0].startswith("#"):
            fields[7] = next(abouts)
    head = ['##INFO=<ID=AF,Number=A,Type=Float,Description="">', '##INFO=<ID=COMMON,Number=0,Type=Flag,Description="">']
    whole = ["\t".join(fields) for fields in lines]
    plain.write_text("".join(row + "\n" for row in [whole[0], *head, *whole[1:]]))
    return plain


def second(tmp_path, reference, *records, region=WHOLE, **given):
    """The haplotype of the common alleles."""
    first, other = corpus.haplotypes(reference, region, sites(tmp_path / "sites.vcf", *records), **given)
    assert first.sequence() == reference.fetch(region)
    return other.sequence()


def test_without_sites_there_is_the_reference_twice(reference):
    first, other = corpus.haplotypes(reference, WHOLE)
    assert (first.sequence(), other.sequence()) == (SEQUENCE, SEQUENCE)
    assert text(diplotype(first, other)) == SEQUENCE


@pytest.mark.parametrize(
    ("about", "least", "there"),
    [
        ("AF=0.01", 0.01, True),
        ("AF=0.0099", 0.01, False),
        ("AF=0.5", 0.5, True),
        ("AF=0.99", 0.01, True),
        ("AF=0.991", 0.01, False),
        ("AF=1", 0.01, False),
        ("AF=1", 0.0, True),
        ("AF=.", 0.01, False),
        ("AF=1e-3", 0.001, True),
        ("DP=3;AF=0.3;NS=7", 0.01, True),
        ("COMMON", 0.01, True),
        ("COMMON=1", 0.01, True),
        ("COMMON=0;AF=0.001", 0.01, False),
        ("COMMON=0;AF=0.3", 0.01, True),
        ("COMMON;AF=0.001", 0.01, True),
    ],
)
def test_which_sites_are_common(tmp_path, reference, about, least, there):
    expected = "GATGACAGCCTTGACGTAACGGTC" if there else SEQUENCE
    assert second(tmp_path, reference, (4, "T", "G", about), least=least) == expected


def test_the_most_frequent_alternative(tmp_path, reference):
    records = (4, "T", "A,G,C", "AF=0.005,0.004,0.003"), (9, "C", "A,T", "AF=.,0.2"), (13, "G", "A,C", "COMMON")
    assert second(tmp_path, reference, *records) == "GATGACAGCCTTGACGTAACGGTC".replace("GATG", "GATA").replace(
        "GCCTTG", "GTCTTA"
    )


def test_indels_and_what_is_no_sequence(tmp_path, reference):
    records = (4, "T", "TGG", "AF=0.3"), (9, "CCT", "C", "AF=0.4"), (15, "C", "<DEL>", "AF=0.4"), (17, "T", "*", "AF=1")
    path = sites(tmp_path / "sites.vcf", *records)
    left_out = []
    first, other = corpus.haplotypes(reference, WHOLE, path, least=0, left_out=left_out)
    assert other.sequence() == "GATTGGACAGCTGACGTAACGGTC"
    assert text(diplotype(first, other)).count("-") == 0
    assert left_out == [15]


def test_of_two_that_overlap_the_first_is_there(tmp_path, reference):
    assert second(tmp_path, reference, (4, "TAC", "T", "AF=0.3"), (5, "A", "G", "AF=0.5")) == "GATTAGCCTTGACGTAACGGTC"


def test_a_part_of_the_contig(tmp_path, reference):
    records = (2, "A", "C", "AF=0.3"), (4, "T", "G", "AF=0.3"), (9, "CC", "C", "AF=0.3"), (20, "C", "G", "AF=0.3")
    assert second(tmp_path, reference, *records, region=Region("19", 3, 12)) == "GACAGCTT"


def test_whoever_has_them(tmp_path, reference):
    path = sites(tmp_path / "a.vcf", (4, "T", "G", "AF=0.3", "0|0", "0|0"), people=["ann", "bob"])
    assert corpus.haplotypes(reference, WHOLE, path)[1].sequence()[3] == "G"


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ("AF=0.3,0.2", "frequencies (AF) of 1 alternatives must be in 0..1, got '0.3,0.2'"),
        ("AF=1.01", "frequencies (AF) of 1 alternatives must be in 0..1, got '1.01'"),
        ("AF=nan", "frequencies (AF) of 1 alternatives must be in 0..1, got 'nan'"),
        ("DP=3", "no record at 19:1-24 has a frequency (AF) or is marked COMMON"),
        ("COMMON=0", "no record at 19:1-24 has a frequency (AF) or is marked COMMON"),
    ],
)
def test_frequencies_that_are_none(tmp_path, reference, about, message):
    with pytest.raises(GenomeError, match=rf"/sites\.vcf: {re.escape(message)}$"):
        second(tmp_path, reference, (4, "T", "G", about))


def test_wrong_sites(tmp_path, reference):
    path = sites(tmp_path / "sites.vcf", (4, "C", "G", "AF=0.3"))
    with pytest.raises(GenomeError, match=r"is not of this reference, at 19:4 it has C for the reference's T$"):
        corpus.haplotypes(reference, WHOLE, path)
    for least in (-0.1, 0.51, float("nan")):
        with pytest.raises(ValueError, match=rf"^least must be in 0..0.5, got {least}$"):
            corpus.haplotypes(reference, WHOLE, path, least=least)


@given(
    length=st.integers(1, 400),
    starts=st.integers(1, 5),
    first=st.integers(1, 150),
    shortest=st.integers(1, 40),
    more=st.integers(0, 40),
    seed=st.integers(0, 2**32),
)
def test_pieces_go_from_their_beginning_to_the_end(length, starts, first, shortest, more, seed):
    given = {"starts": starts, "first": first, "shortest": shortest, "longest": shortest + more}
    pieces = corpus.pieces(length, np.random.default_rng(seed), **given)
    again = corpus.pieces(length, np.random.default_rng(seed), **given)
    np.testing.assert_array_equal(pieces, again)
    assert pieces.tolist() == sorted(pieces.tolist())
    sizes = pieces[:, 1] - pieces[:, 0]
    last = pieces[:, 1] == length
    assert last.sum() == starts
    assert ((sizes[~last] >= shortest) & (sizes[~last] <= shortest + more)).all()
    assert ((sizes[last] >= 1) & (sizes[last] <= shortest + more)).all()
    # Every piece but the last goes on in another one, and as many have no piece before them as there are beginnings.
    begins, ends = np.unique(pieces[:, 0], return_counts=True), np.unique(pieces[~last][:, 1], return_counts=True)
    before = dict(zip(*map(np.ndarray.tolist, ends), strict=True))
    fresh = {place: count - before.get(place, 0) for place, count in zip(*map(np.ndarray.tolist, begins), strict=True)}
    assert min(fresh.values()) >= 0
    assert before.keys() <= fresh.keys()
    assert sum(fresh.values()) == starts
    assert all(place <= min(first, length - 1) for place, count in fresh.items() if count)


@given(length=st.integers(1, 300), count=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_pieces_are_drawn_without_putting_back(length, count, seed):
    given = {"starts": 1, "first": 10, "shortest": 3, "longest": 7}
    every = corpus.pieces(length, np.random.default_rng(seed), **given).tolist()
    pieces = corpus.pieces(length, np.random.default_rng(seed), count=count, **given).tolist()
    assert len(pieces) == min(count, len(every))
    assert pieces == sorted(pieces)
    assert len({tuple(piece) for piece in pieces}) == len(pieces)
    assert all(piece in every for piece in pieces)


def test_one_beginning_is_consecutive():
    pieces = corpus.pieces(100_000, np.random.default_rng(0), starts=1).tolist()
    assert all(piece[1] == other[0] for piece, other in pairwise(pieces))
    assert 100_000 / 1000 <= len(pieces) <= 100_000 / 500 + 1
    sizes = [end - begin for begin, end in pieces[:-1]]
    assert min(sizes) < 520
    assert max(sizes) > 980


@pytest.mark.parametrize(
    "given", [{"length": 0}, {"starts": 0}, {"first": -1}, {"shortest": 0}, {"count": 0}, {"shortest": 8}]
)
def test_pieces_out_of_range(given):
    usual = {"length": 50, "starts": 2, "first": 5, "shortest": 3, "longest": 7, "count": 9} | given
    with pytest.raises(ValueError, match=r"^length, starts, first, shortest and count must be"):
        corpus.pieces(source=np.random.default_rng(0), **usual)


def test_sentences_of_several_sequences():
    given = {"starts": 3, "first": 20, "shortest": 5, "longest": 9}
    sequences = [bases(200, 1), bases(150, 2, "RYSW")]
    every = list(corpus.sentences(sequences, 5, **given))
    assert every == list(corpus.sentences(sequences, 5, **given))
    assert every != list(corpus.sentences(sequences, 6, **given))
    assert all(sum(sentence in sequence for sequence in sequences) for sentence in every)
    assert sum(map(len, every)) >= 3 * (200 - 20 + 150 - 20)
    some = list(corpus.sentences(sequences, 5, count=7, **given))
    assert len(some) == 7
    assert [sentence in sequences[0] for sentence in some] == [True] * 4 + [False] * 3


def test_neighbours_are_not_copies_of_one_part():
    sequence = bases(5000, 3)
    given = {"starts": 20, "first": 20, "shortest": 20, "longest": 40}
    begins = [sequence.index(sentence) for sentence in corpus.sentences([sequence], 0, **given)]
    near = sum(abs(a - b) < 40 for a, b in pairwise(begins)) / len(begins)
    assert near < 0.1
    alone = [sequence.index(sentence) for sentence in corpus.sentences([sequence], 0, **given | {"starts": 1})]
    assert alone == sorted(alone)


@pytest.mark.parametrize("count", [0, -5])
def test_a_count_of_sentences_out_of_range(count):
    with pytest.raises(ValueError, match="count"):
        list(corpus.sentences([bases(200)], 0, count=count))


@pytest.fixture
def people(tmp_path):
    """Five encoded people of 40,000 positions; how they are written can be chosen."""
    sequence = bases(40_000, 4)
    reference = fasta(tmp_path / "long.fa", **{"19": sequence})
    other = {"A": "C", "C": "A", "G": "T", "T": "G"}
    records = [(place + 1, sequence[place], other[sequence[place]], *["0|1"] * 5) for place in range(0, 40_000, 100)]
    names = [f"p{number}" for number in range(5)]
    path = vcf(tmp_path / "a.vcf", records, names)

    def written(**given):
        out = tmp_path / "encoded.tsv"
        encoding = Encoding(reference, Region("19", 0, 40_000), **given)
        list(encode([Source(path, tuple(names))], encoding, out))
        return out

    return written


@pytest.mark.parametrize("mode", ["diplotype", "haplotype"])
def test_sentences_of_people(people, mode):
    path = people(mode=mode, alphabet="thesis")
    assert corpus.kind_of(path) == (mode, "thesis")
    sentences = corpus.sentences_of(path, 3)
    assert isinstance(sentences, Iterator)
    sentences = list(sentences)
    assert sentences == list(corpus.sentences_of(path, 3))
    assert sentences != list(corpus.sentences_of(path, 4))
    assert set("".join(sentences)) == set("ACGT") | (set("嗄个") if mode == "diplotype" else set())
    sequences = 5 if mode == "diplotype" else 10
    assert sequences * 39_000 <= sum(map(len, sentences)) <= sequences * 40_000
    assert max(map(len, sentences)) <= 1000


def test_each_piece_of_people_is_as_likely(people):
    path = people()
    counts = [len(list(corpus.sentences_of(path, seed, count=60))) for seed in range(30)]
    # 200,000 characters: 267 pieces of 750 on average, and five more as the last ones are shorter.
    assert np.mean(counts) == pytest.approx(60, rel=0.1)
    assert len(list(corpus.sentences_of(path, 0, count=10**6))) == pytest.approx(267, rel=0.05)


def test_people_who_are_none(people):
    path = people()
    head = path.read_text().splitlines(keepends=True)[:2]
    path.write_text("".join(head))
    with pytest.raises(GenomeError, match=r"has no sequences$"):
        next(corpus.sentences_of(path, 0))
    path.write_text("person\tsequence\nann\tACGT\n")
    with pytest.raises(GenomeError, match=r"no file that `greenformers genome encode` wrote$"):
        next(corpus.sentences_of(path, 0))
    with pytest.raises(GenomeError, match=r"no file that `greenformers genome encode` wrote$"):
        corpus.kind_of(path)


def test_sentences_are_not_held():
    """Of 300 kilobases read 50 times: 20,000 sentences of 15 MB, held as 16 bytes each."""
    sequence = bases(300_000)
    tracemalloc.start()
    try:
        total = sum(len(sentence) for sentence in corpus.sentences([sequence], 0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > 14_700_000
    assert peak < 4_000_000


def test_a_damaged_file_is_found_before_its_first_sentence(people):
    path = people()
    path.write_text(path.read_text()[:-1])
    with pytest.raises(GenomeError, match="line 7 has no end: the file was cut"):
        next(corpus.sentences_of(path, 0))


def test_too_few_people_for_a_split(people):
    with pytest.raises(GenomeError, match="has too few people for its splits: of every 20 those from 19 to 19 are one"):
        next(corpus.sentences_of(people(), 0, share=(18,)))
