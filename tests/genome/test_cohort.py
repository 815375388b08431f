"""Tables of people, and splits that nobody is in twice."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenformers.genome.cohort import Cohort, Person
from greenformers.genome.files import GenomeError

TABS = "person\tphenotype\nann\t1\nbob\t0\ncid\t1\n"
PEOPLE = [Person("ann", "1"), Person("bob", "0"), Person("cid", "1")]


def load(tmp_path, content, name="cohort.tsv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Cohort.load(path)


def refused(tmp_path, content, message, name="cohort.tsv"):
    with pytest.raises(GenomeError, match=f"^{re.escape(str(tmp_path / name))}: {re.escape(message)}") as caught:
        load(tmp_path, content, name)
    assert "\n" not in str(caught.value)


def cohort_of(counts):
    """A cohort of so many people of each phenotype, one after the other."""
    people = [Person(f"{name}{number}", name) for name, count in counts.items() for number in range(count)]
    return Cohort(people, sorted(counts))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", TABS),
        ("a.txt", TABS),
        ("a.TSV", TABS),
        ("a.csv", TABS.replace("\t", ",")),
        ("a.tsv", "\ufeff" + TABS),
        ("a.csv", "\ufeff" + TABS.replace("\t", ",").replace("\n", "\r\n")),
        ("a.tsv", TABS.replace("\n", "\r\n")),
        ("a.tsv", TABS.rstrip()),
        ("a.tsv", TABS.replace("\n", "\n\n") + "\n\t\n"),
        ("a.tsv", TABS.replace("ann", " ann ").replace("person", "person ")),
        ("a.csv", '"person","phenotype"\n"ann","1"\n"bob",0\n"cid","1"\n'),
        ("a.csv", 'note,phenotype,person\n"a, b",1,ann\n"c\nd",0,bob\n"""e""",1,cid\n'),
    ],
)
def test_tables(tmp_path, name, content):
    cohort = load(tmp_path, content, name)
    assert (cohort.people, cohort.phenotypes, cohort.without) == (PEOPLE, ["0", "1"], ())
    assert cohort.balance() == {"0": 1, "1": 2}


def test_names_are_kept_as_they_are(tmp_path):
    cohort = load(tmp_path, "person,phenotype\n007,case\nÅsa Öst,control\n'x',case\n", "a.csv")
    assert [person.name for person in cohort.people] == ["007", "Åsa Öst", "'x'"]
    assert cohort.phenotypes == ["case", "control"]


@pytest.mark.parametrize("missing", ["", "NA", "na", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", ".", "?"])
def test_a_phenotype_that_is_missing(tmp_path, missing):
    cohort = load(tmp_path, TABS + f"dan\t{missing}\neve\t {missing}\n")
    assert (cohort.people, cohort.phenotypes, len(cohort.without)) == (PEOPLE, ["0", "1"], 2)


def test_paths_are_from_the_table_on(tmp_path, monkeypatch):
    (tmp_path / "reads").mkdir()
    (tmp_path / "tables").mkdir()
    for name in ("reads/ann.bam", "tables/bob.bam"):
        (tmp_path / name).write_text("reads")
    content = f"person\tpath\tphenotype\nann\t../reads/ann.bam\t1\nbob\tbob.bam\t0\ncid\t{tmp_path}/reads/ann.bam\t.\n"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables/cohort.tsv").write_text(content)
    cohort = Cohort.load(Path("tables/cohort.tsv"))
    assert [person.path.resolve() for person in cohort.people] == [
        tmp_path / "reads/ann.bam", tmp_path / "tables/bob.bam",
    ]  # fmt: skip
    assert len(cohort.without) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("person\tphenotype\nann\t1\nann\t0\n", "line 3 has person ann again, after line 2"),
        ("person\tphenotype\nann\t1\n\nbob\t0\n ann\tNA\n", "line 5 has person ann again, after line 2"),
        ("person\tphenotype\nann\t1\n\t0\n", "line 3 names no person"),
        ("person\tphenotype\nann\t1\n  \t0\n", "line 3 names no person"),
        ("person\tphenotype\nann\t1\nbob\n", "line 3 must have 2 columns, has 1"),
        ("person\tphenotype\nann\t1\nbob\t0\t1\n", "line 3 must have 2 columns, has 3"),
        ("person\tphenotype\nann\t1\nbob\t1\n", "must have two phenotypes, has 1: 1"),
        ("person\tphenotype\nann\tNA\n", "must have two phenotypes, has 0: none"),
        ("person\tphenotype\na\t1\nb\t2\nc\t3\n", "must have two phenotypes, has 3: 1, 2, 3"),
        ("person\tphenotype\n" + "".join(f"p{n}\t{n}\n" for n in range(9)), "must have two phenotypes, has 9: 0, 1, 2"),
        ("person\tstatus\nann\t1\n", "must have one column phenotype, has person, status"),
        ("name\tphenotype\nann\t1\n", "must have one column person, has name, phenotype"),
        ("Person\tphenotype\nann\t1\n", "must have one column person, has Person, phenotype"),
        ("person\tphenotype\tperson\nann\t1\tann\n", "must have one column person, has person, phenotype, person"),
        ("person,phenotype\nann,1\n", "must have one column person, has person,phenotype"),
        ("person\tphenotype\n", "must have a header and people below it"),
        ("\n\n", "must have a header and people below it"),
        ("", "empty, 0 bytes"),
        ("person\tphenotype\nann\t1\nbob\t\xff0\n".encode("latin-1"), "no table that can be read ("),
        ("person\tphenotype\nann\t1\n".encode("utf-16"), "no table that can be read ("),
        ('person\tphenotype\nann\t"1\nbob\t0\n', "no table that can be read ("),
        ("person\tphenotype\nann\t" + "1" * 200_000 + "\n", "no table that can be read (field larger than"),
        ("person\tphenotype\tpath\nann\t1\t\n", "line 2, person ann has no path"),
    ],
)
def test_tables_that_are_none(tmp_path, content, message):
    refused(tmp_path, content, message)


@pytest.mark.parametrize("name", ["a.xlsx", "a", "tsv", "a.tsv.gz"])
def test_names_of_no_table(tmp_path, name):
    refused(tmp_path, TABS, "a table must end in .csv, .tsv, .txt", name)


@pytest.mark.parametrize("content", ["\t".join(["x" * 9] * 10_000) + "\nann\n", f"person\t{'x' * 10**5}\nann\t1\n"])
def test_a_long_header_is_not_shown(tmp_path, content):
    with pytest.raises(GenomeError) as caught:
        load(tmp_path, content)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone.bam", "no such file"),
        ("../../gone.bam", "no such file"),
        ("link.bam", "no such file"),
        ("folder", "a folder, not a file"),
        ("folder/..", "a folder, not a file"),
        ("fifo.bam", "not a regular file"),
        ("empty.bam", "empty, 0 bytes"),
        ("there.bam##idx##other", "a name with ##idx## in it is not for a file"),
        ("http://127.0.0.1/a.bam", "no such file"),
        ("s3://a/b.bam", "no such file"),
    ],
)
@pytest.mark.parametrize("phenotype", ["0", "NA"])
def test_files_that_are_none(tmp_path, path, message, phenotype):
    (tmp_path / "there.bam").write_text("reads")
    (tmp_path / "empty.bam").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.bam").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo.bam")
    with pytest.raises(GenomeError, match=f"{re.escape(str(Path(path)))}: {message}$"):
        load(tmp_path, f"person\tphenotype\tpath\nann\t1\tthere.bam\nbob\t{phenotype}\t{path}\n")


@pytest.mark.parametrize("inside", ["\t", "\n", "\r", "\0"])
@pytest.mark.parametrize("column", ["person", "phenotype"])
def test_what_no_line_can_hold(tmp_path, inside, column):
    row = {"person": "ann", "phenotype": "1"}
    row[column] += inside + "x"
    with pytest.raises(GenomeError, match="line"):
        load(tmp_path, f'person,phenotype\n"{row["person"]}","{row["phenotype"]}"\nbob,0\n', "a.csv")


@settings(max_examples=40, deadline=None)
@given(ill=st.integers(10, 80), well=st.integers(10, 80), seed=st.integers(0, 2**32 - 1))
def test_splits_are_of_everybody_once(ill, well, seed):
    cohort = cohort_of({"0": well, "1": ill})
    splits = cohort.splits(seed)
    assert list(splits) == ["train", "valid", "test"]
    assert Counter(person for part in splits.values() for person in part) == Counter(cohort.people)
    assert len(splits["test"]) == pytest.approx(0.2 * (ill + well), abs=1)
    assert len(splits["valid"]) == pytest.approx(0.1 * (ill + well), abs=1)
    for part in splits.values():
        count = sum(person.phenotype == "1" for person in part)
        assert count == pytest.approx(ill / (ill + well) * len(part), abs=1.5)
        assert 0 < count < len(part)
    assert cohort.splits(seed) == splits


def test_splits_differ_by_seed_and_are_mixed():
    cohort = cohort_of({"0": 50, "1": 50})
    parts = [cohort.splits(seed)["test"] for seed in range(5)]
    assert len({tuple(person.name for person in part) for part in parts}) == 5
    assert parts[0] != sorted(parts[0], key=lambda person: person.name)


def test_other_shares():
    splits = cohort_of({"0": 600, "1": 400}).splits(3, valid=0.25, test=0.05)
    assert {name: len(part) for name, part in splits.items()} == {"train": 700, "valid": 250, "test": 50}
    assert {name: sum(person.phenotype == "1" for person in part) for name, part in splits.items()} == {
        "train": 280, "valid": 100, "test": 20,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("valid", "test"),
    [
        *[(0, 0.2), (0.1, 0), (-0.1, 0.2), (0.5, 0.5), (0.9, 0.2), (1, 1)],
        pytest.param(float("nan"), 0.2),
    ],
)
def test_shares_out_of_range(valid, test):
    with pytest.raises(
        ValueError, match=f"^valid and test must be above 0 and below 1 together, got {valid} and {test}"
    ):
        cohort_of({"0": 50, "1": 50}).splits(0, valid=valid, test=test)


@pytest.mark.parametrize(
    "counts",
    [
        {"0": 1, "1": 1},
        {"0": 100, "1": 1},
        {"0": 3, "1": 3},
        *[pytest.param(counts) for counts in ({"0": 97, "1": 3}, {"0": 15, "1": 3})],
    ],
)
def test_too_few_people(counts):
    first, second = counts.values()
    with pytest.raises(ValueError, match=rf"^{first} and {second} people are too few for splits of 0\.1 and 0\.2$"):
        cohort_of(counts).splits(0)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range(seed):
    with pytest.raises(ValueError, match="seed"):
        cohort_of({"0": 50, "1": 50}).splits(seed)
