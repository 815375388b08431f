"""Haplotypes of assemblies: paired by name, whole or aligned, against sequences spelled by hand; and refusals."""

import gzip
import re
from pathlib import Path

import pytest
from command_line import run
from made import ABSENT, DATA, bases, names

from greenformers.genome import assemblies, corpus
from greenformers.genome.diplotype import diplotype
from greenformers.genome.encode import Encoding, Source, encode, is_reads, people
from greenformers.genome.encoded_file import load
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.reference import Reference

pytest.importorskip("pysam", reason="the genome extra is not installed")

REAL = DATA / "genomics_hprc_haplotypes/kir3dl1_haplotypes.fa.gz"
# Figure 5.2 of Cahyawijaya 2021 as an alignment, with a base more on each side.
ALIGNED = {
    "ref#0#chr19:101-107": "CTAT---AAG",
    "ann#1#c1:5-14": "CTATTGCAAG",
    "ann#2#c2:900-904": "CTA-----AG",
    "bob#2#c3:1-7": "CTGT---AAG",
    "bob#1#c4:1-8": "CTAT--RAAN",
    "cid#1#c5:1-7": "CTAT---AAG",
}
PLACE = Region("19", 100, 107)


def written(path: Path, rows: dict[str, str]) -> Path:
    text = "".join(f">{name} locus=made\n{row}\n" for name, row in rows.items())
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    return Reference(written(tmp_path / "ref.fa", {"chr19:101-107": "CTATAAG"}))


@pytest.mark.parametrize("name", ["a.fa", "a.fasta.gz", "A.FNA"])
def test_an_alignment_by_hand(tmp_path, reference, name):
    path = written(tmp_path / name, ALIGNED)
    assert people(path) == ["ann", "bob"]
    assert assemblies.unpaired(path) == 2
    assert not is_reads(path)
    haplotypes = dict(assemblies.read(path, reference, PLACE, ["bob", "ann"], aligned=True))
    assert list(haplotypes) == ["bob", "ann"]
    assert [haplotype.sequence() for haplotype in haplotypes["ann"]] == ["CTATTGCAAG", "CTAAG"]
    assert names(diplotype(*haplotypes["ann"])) == [
        "C-C", "T-T", "A-A", "T-DEL", "TI-DEL", "GI-DEL", "CI-DEL", "A-DEL", "A-A", "G-G",
    ]  # fmt: skip
    # Haplotypes in the order of their names; other letters than A, C, G and T are N.
    assert [haplotype.sequence() for haplotype in haplotypes["bob"]] == ["CTATNAAN", "CTGTAAG"]


@pytest.mark.parametrize(
    ("region", "ann", "bob"),
    [
        ((102, 104), ["ATTGC", "A"], ["ATN", "GT"]),
        ((104, 107), ["AAG", "AG"], ["AAN", "AAG"]),
        ((100, 103), ["CTA", "CTA"], ["CTA", "CTG"]),
    ],
)
@pytest.mark.parametrize("mode", [True, False])
def test_a_part_of_an_alignment(tmp_path, reference, region, ann, bob, mode):
    path = written(tmp_path / "a.fa", ALIGNED)
    haplotypes = dict(assemblies.read(path, reference, Region("chr19", *region), ["ann", "bob"], aligned=mode))
    assert {name: [haplotype.sequence() for haplotype in both] for name, both in haplotypes.items()} == {
        "ann": ann,
        "bob": bob,
    }


def test_the_reference_is_known_by_its_bases_too(tmp_path, reference):
    rows = {name.replace("chr19:101-107", "x"): row for name, row in ALIGNED.items()}
    path = written(tmp_path / "a.fa", rows)
    ((_, both),) = assemblies.read(path, reference, PLACE, ["ann"], aligned=True)
    assert [haplotype.sequence() for haplotype in both] == ["CTATTGCAAG", "CTAAG"]
    with pytest.raises(
        GenomeError, match=r"must have the reference as one of its aligned sequences, none is of 19:103-"
    ):
        list(assemblies.read(path, reference, Region("19", 102, 104), ["ann"], aligned=True))


def test_whole_haplotypes_in_one_file(tmp_path, reference):
    rows = {name: row.replace("-", "") for name, row in ALIGNED.items()}
    path = written(tmp_path / "a.fa", rows)
    encoding = Encoding(reference.path, Region("chr19", 100, 107), "haplotype")
    out = tmp_path / "out.tsv"
    list(encode([Source(path, tuple(people(path)))], encoding, out, phenotypes={"ann": "1", "bob": "0"}))
    assert [list(row.values()) for row in load(out)] == [
        ["ann", "1", "CTATTGCAAG", "CTAAG"], ["bob", "0", "CTATNAAN", "CTGTAAG"],
    ]  # fmt: skip


@pytest.mark.parametrize("first", [101, 100])
def test_first_positions_from_1_and_from_0(tmp_path, reference, first):
    """As samtools writes a region, and as a walk of a pangenome graph has it."""
    rows = {name.replace("chr19:101", f"chr19:{first}"): row for name, row in ALIGNED.items()}
    path = written(tmp_path / "a.fa", rows)
    assert dict(assemblies.read(path, reference, PLACE, ["ann"], aligned=True))["ann"][1].sequence() == "CTAAG"


LONG = bases(300, 3)
WHOLE = {name: row.replace("-", "") for name, row in ALIGNED.items()}
REFUSED = {
    "not aligned": (WHOLE, PLACE, True, r"sequences of 4 lengths are not aligned; diplotypes need aligned ones, or .*"),
    "gaps, not aligned": (
        ALIGNED | {"dan#1#x": "CT-A"}, PLACE, False, r"sequences of 2 lengths .* aligned, though some have gaps .*",
    ),
    "other names": (ALIGNED | {"chr19": "CTATTGCAAG"}, PLACE, True, "sequences must be named sample#haplotype#.*"),
    "no haplotype": ({"ann##c": "CT"}, PLACE, True, r"sequences must be named .*, got 'ann##c'"),
    "several contigs": (
        WHOLE | {"ann#1#c9": "CTAT"}, PLACE, False, "haplotype 1 of ann must be one sequence, has several",
    ),
    "the same twice": (">ann#1#c\nCT\n>ann#1#c\nCT\n", PLACE, True, "has sequence ann#1#c twice"),
    "an empty one": (">ann#1#c\n>ann#2#c\nCT\n", PLACE, True, "sequence ann#1#c is empty"),
    "nobody": (ALIGNED, PLACE, True, "person cid must have two haplotypes, has 1"),
    "another reference": (
        ALIGNED | {"ref#0#chr19:101-107": "CTAC---AAG"}, PLACE, True, "is not of this reference, .* from ref.fa",
    ),
    "no reference": ({"ann#1": "CTATAAC", "ann#2": "CTATAAC"}, PLACE, True, "must have the reference as one .*"),
    "a part that cannot be cut": (
        WHOLE, Region("19", 100, 105), False, "is not aligned, .*: the region must be chr19:101-107, got .*",
    ),
    "text": ("nothing\n", PLACE, True, "(has no sequence|no FASTA file .*)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path, reference, name):
    rows, region, aligned, message = REFUSED[name]
    path = tmp_path / "a.fa"
    if isinstance(rows, str):
        path.write_text(rows)
    else:
        written(path, rows)
    person = "cid" if name == "nobody" else "ann"
    with pytest.raises(GenomeError, match=rf"^{re.escape(str(path))}: {message}$"):
        list(assemblies.read(path, reference, region, [person], aligned=aligned))


def test_equal_lengths_by_chance_are_not_an_alignment(tmp_path):
    rows = {"ref#0#19:1-300": LONG, "ann#1": LONG, "ann#2": LONG[100:] + LONG[:100]}
    path, reference = written(tmp_path / "a.fa", rows), Reference(written(tmp_path / "ref.fa", {"19": LONG}))
    with pytest.raises(
        GenomeError, match=r"a\.fa: is not aligned to ref\.fa, 7\d % of the bases of a haplotype at 19:1-300"
    ):
        list(assemblies.read(path, reference, Region("19", 0, 300), ["ann"], aligned=True))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (LONG[::-1].translate(str.maketrans("ACGT", "TGCA")), "is on the other strand, though it is not aligned"),
        (bases(300, 4), "has none of the bases of 19:1-300, though it is not aligned and taken whole"),
        (LONG[:100] + LONG[150:], None),
    ],
    ids=["the other strand", "another gene", "a deletion"],
)
def test_whole_sequences_are_of_the_region(tmp_path, other, message):
    path = written(tmp_path / "a.fa", {"ann#1#c1": LONG, "ann#2#c2": other})
    reference, region = Reference(written(tmp_path / "ref.fa", {"19": LONG})), Region("19", 0, 300)
    if message is None:
        ((_, both),) = assemblies.read(path, reference, region, ["ann"], aligned=False)
        assert [haplotype.sequence() for haplotype in both] == [LONG, other]
    else:
        with pytest.raises(GenomeError, match=rf"a\.fa: sequence ann#2#c2 {message}"):
            list(assemblies.read(path, reference, region, ["ann"], aligned=False))


def test_nobody_has_two(tmp_path):
    with pytest.raises(GenomeError, match=r"a\.fa: has no sample with two haplotypes, of 2$"):
        people(written(tmp_path / "a.fa", {"ann#1#c": "ACGT", "bob#1#c": "ACGT"}))


def test_sentences_of_samples_are_in_one_split(tmp_path):
    rows = {f"s{number}#{side}#c": bases(900, 10 * number + side) for number in range(40) for side in (1, 2)}
    path = written(tmp_path / "a.fa.gz", rows | {"chrM": bases(900, 999)})
    assert corpus.kind_of(path) == ("haplotype", "iupac")
    shares = [list(corpus.sentences_of(path, 0, share=share)) for share in (tuple(range(18)), (18,), (19,))]
    for numbers, sentences in zip((range(18), [18], [19]), shares, strict=True):
        own = [row for name, row in rows.items() if int(name[1:].split("#")[0]) % 20 in numbers]
        assert sentences
        assert all(any(sentence in row for row in [*own, bases(900, 999)]) for sentence in sentences)


def test_a_pangenome(monkeypatch, capsys, tmp_path):
    """78 sequences of 44 samples: whole haplotypes and tokens; no diplotypes, as they are not aligned."""
    pytest.importorskip("sentencepiece", reason="the genome extra is not installed")
    if not REAL.is_file():
        pytest.skip(ABSENT)
    with gzip.open(REAL, "rt") as file:
        entries = [entry.split("\n", 1) for entry in file.read().split(">")[1:]]
    rows = {head.split()[0]: row.replace("\n", "") for head, row in entries}
    ours = rows["GRCh38#0#chr19:54816436-54830779"]
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "ref.fa", {"chr19:54816437-54830779": ours})
    assert run(monkeypatch, "genome", *f"encode {REAL} --reference ref.fa --mode haplotype --out k.tsv".split()) == 0
    assert capsys.readouterr().out.splitlines() == [
        "k.tsv: 34 people, haplotypes of chr19:54816437-54830779 (14,343 positions)",
        f"left out: 10 samples of {REAL} without two haplotypes",
    ]
    whole = {tuple(name.split("#")[:2]): row for name, row in rows.items()}
    read = list(load(tmp_path / "k.tsv"))
    assert len(read) == 34
    assert all((row["first"], row["second"]) == (whole[row["person"], "1"], whole[row["person"], "2"]) for row in read)
    assert run(monkeypatch, "genome", *f"encode {REAL} --reference ref.fa --out d.tsv".split()) == 2
    assert "kir3dl1_haplotypes.fa.gz: sequences of 11 lengths are not aligned; diplotypes" in capsys.readouterr().err
    assert run(monkeypatch, "genome", *f"tokenize --reference {REAL} --out t".split()) == 2
    assert "has 78 sequences; name one with --region, or --sequences learns from" in capsys.readouterr().err
    assert run(monkeypatch, "genome", *f"tokenize --sequences {REAL} --size 60 --sentences 50 --out t".split()) == 0
    assert re.search(r"^t: 60 tokens of \d+ sentences$", capsys.readouterr().out, flags=re.MULTILINE)
