"""Encoded people: part of the region, splits, and how many of each symbol everybody has."""

import json
import tracemalloc
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from greenformers.genome.diplotype import Haplotype, diplotype, encoded, text
from greenformers.genome.encode import Encoding
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.people import People, cut

REFERENCE = "ACGTACGTAC"
HEAD = Encoding(Path("a.fa"), Region("19", 100, 110)).settings()


def changed(*edits) -> Haplotype:
    haplotype = Haplotype(encoded(REFERENCE))
    for name, *given in edits:
        getattr(haplotype, name)(*given)
    return haplotype


PLAIN = changed()
TYPES = {
    "ann": (PLAIN, PLAIN, "0"),
    "bob": (changed(("substitute", 2, "T")), PLAIN, "1"),
    "cay": (changed(("substitute", 2, "T"), ("delete", 5, 2)), changed(("substitute", 2, "T")), "1"),
    "dan": (changed(("insert", 8, "GG")), changed(("insert", 8, "G")), "0"),
}


@pytest.fixture
def path(tmp_path):
    rows = [f"{name}\t{label}\t{text(diplotype(first, second))}" for name, (first, second, label) in TYPES.items()]
    file = tmp_path / "people.tsv"
    file.write_text("\n".join([f"#{json.dumps(HEAD)}", "person\tphenotype\tsequence", *rows, ""]))
    return file


def test_counts_are_those_of_both_haplotypes(path):
    people = People.load(path)
    counts, features = people.counts()
    assert people.names == list(TYPES)
    assert people.labels.tolist() == [0, 1, 1, 0]
    # Positions from 1: 103 is the third of the region, 106 and 107 are deleted once, 108 has something after it.
    assert features == [(103, "T"), (106, "DEL"), (107, "DEL"), (108, "+")]
    assert counts.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [2, 1, 1, 0], [0, 0, 0, 2]]


def test_a_part_has_the_same_counts(path):
    people = People.load(path, "19:103-106")
    assert str(people.region) == "19:103-106"
    assert [people.text(number)[0] for number in range(4)] == ["G", "K", "T", "G"]
    assert people.counts()[1] == [(103, "T"), (106, "DEL")]
    # What is inserted after the last position belongs to it.
    assert len(People.load(path, "19:101-108").pairs[3]) == 10
    assert len(People.load(path, "19:109-110").pairs[3]) == 2


def test_counts_take_no_more_memory_than_the_pairs_where_few_positions_differ():
    pairs = [np.zeros(4_000, np.uint8) for _ in range(300)]
    pairs[7][5] = 1
    names = [str(number) for number in range(len(pairs))]
    people = People(Region("19", 0, 4_000), "iupac", names, pairs, np.zeros(300, np.int64), ["0", "1"])
    tracemalloc.start()
    counts, features = people.counts()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < sum(map(len, pairs))
    assert features == [(6, "C")]
    assert counts.sum(axis=0).tolist() == [1]


def test_cut_is_the_whole_between_its_ends():
    pairs = diplotype(*TYPES["dan"][:2])
    assert np.array_equal(np.concatenate([cut(pairs, 0, 8), cut(pairs, 8, 10)]), pairs)


def test_splits_have_everybody_once(path):
    people = People.load(path)
    many = People(people.region, "iupac", [str(n) for n in range(100)], [people.pairs[0]] * 100,
                  np.arange(100) % 2, ["0", "1"])  # fmt: skip
    parts = many.splits(3, 0.1, 0.2)
    assert sorted(chain(*parts.values())) == list(range(100))
    assert {name: len(some) for name, some in parts.items()} == {"train": 70, "valid": 10, "test": 20}
    assert all(sum(n % 2 for n in some) == len(some) / 2 for some in parts.values())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"mode": "diplotype"', '"mode": "haplotype"', r"must hold diplotypes, holds haplotypes$"),
        ("\tphenotype\t", "\tcolour\t", r"has no phenotypes; encode with --cohort$"),
        ("\t1\t", "\t0\t", r"must have two phenotypes, has 1$"),
    ],
)
def test_files_that_do_not_fit(path, old, new, message):
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(GenomeError, match=message):
        People.load(path)


def test_a_part_that_is_not_there(path):
    with pytest.raises(GenomeError, match=r"has 19:101-110; 19:100-105 is not within$"):
        People.load(path, "19:100-105")


def test_an_insertion_counts_on_each_haplotype():
    pairs = [
        diplotype(*(changed(*[("insert", 8, "G")] * copies) for copies in both)) for both in ((0, 0), (1, 0), (1, 1))
    ]
    people = People(Region("19", 100, 110), "iupac", list("abc"), pairs, np.array([0, 1, 1]), ["0", "1"])
    counts, features = people.counts()
    assert features == [(108, "+")]
    assert counts.tolist() == [[0], [1], [2]]


def test_which_phenotype_is_predicted(path):
    path.write_text(path.read_text().replace("\t0\t", "\tcontrol\t").replace("\t1\t", "\tcase\t"))
    assert People.load(path).phenotypes == ["case", "control"]
    people = People.load(path, disease="case")
    assert people.phenotypes == ["control", "case"]
    assert people.labels.tolist() == [0, 1, 1, 0]
    with pytest.raises(GenomeError, match="disease must be one of case, control; got 'ill'"):
        People.load(path, disease="ill")
