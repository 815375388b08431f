"""Whose genomes are in which files, and what no selection can be: as the command says it, so does the library."""

import gzip
import re
from pathlib import Path

import pytest
from made import aligned, bases, fasta, line, vcf

from greenformers.genome.encode import Source
from greenformers.genome.files import INDEXES, GenomeError, make_indexes
from greenformers.genome.selection import Selection

pysam = pytest.importorskip("pysam", reason="the genome extra is not installed")

SEQUENCE = bases(60, 5)


def variants(path: Path, *names: str) -> Path:
    return vcf(path, [(11, SEQUENCE[10], "ACGT"["CGTA".index(SEQUENCE[10])], *["0|1" for _ in names])], list(names))


def reads(path: Path, *groups: str) -> Path:
    return aligned(path, [line("r", 0, "60M", SEQUENCE, contig="19")], {"19": 60}, groups=groups)


def table(path: Path, *rows: str, columns: str = "person\tphenotype") -> Path:
    path.write_text("\n".join([columns, *rows]) + "\n")
    return path


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_everybody_of_the_files() -> None:
    files = [variants(Path("a.vcf"), "ann", "bob"), variants(Path("b.vcf"), "eve")]
    selection = Selection.of(files)
    assert selection.phenotypes is None
    assert selection.sources() == ([Source(files[0], ("ann", "bob")), Source(files[1], ("eve",))], 0)


def test_a_cohort_of_the_files() -> None:
    files = [variants(Path("a.vcf"), "ann", "bob", "dan"), variants(Path("b.vcf"), "eve")]
    selection = Selection.of(files, table(Path("c.tsv"), "dan\t1", "ann\t0"))
    assert selection.phenotypes == {"dan": "1", "ann": "0"}
    assert selection.sources() == ([Source(files[0], ("ann", "dan"))], 2)


def test_a_cohort_with_paths() -> None:
    for name, person in {"x": "ann", "y": "bob"}.items():
        variants(Path(f"{name}.vcf"), person)
    rows = table(Path("c.tsv"), "ann\t1\tx.vcf", "bob\t0\ty.vcf", columns="person\tphenotype\tpath")
    sources, others = Selection.of(table=rows).sources()
    assert sources == [Source(Path("x.vcf"), ("ann",)), Source(Path("y.vcf"), ("bob",))]
    assert others == 0
    variants(Path("y.vcf"), "somebody")
    with pytest.raises(GenomeError, match=r"^y\.vcf: has no person bob$"):
        Selection.of(table=rows).sources()


@pytest.mark.parametrize("paths", [False, True])
def test_files_or_a_table_with_paths(paths: bool) -> None:
    file = variants(Path("a.vcf"), "ann")
    rows = ["ann\t1\ta.vcf", "bob\t0\tb.vcf"] if paths else ["ann\t1", "bob\t0"]
    variants(Path("b.vcf"), "bob")
    cohort = table(Path("c.tsv"), *rows, columns="person\tphenotype" + ("\tpath" if paths else ""))
    with pytest.raises(ValueError, match=r"^name FILES, or a cohort with the column path; not both$"):
        Selection.of([file] if paths else [], cohort)
    with pytest.raises(ValueError, match=r"^name FILES, or a cohort with the column path; not both$"):
        Selection.of()


def test_two_people_with_one_path() -> None:
    variants(Path("a.vcf"), "ann", "bob")
    cohort = table(Path("c.tsv"), "ann\t1\ta.vcf", "bob\t0\ta.vcf", columns="person\tphenotype\tpath")
    with pytest.raises(GenomeError, match=r"^c\.tsv: ann and bob have one path, a\.vcf both; name it as FILES"):
        Selection.of(table=cohort)


def test_somebody_in_two_files() -> None:
    files = [variants(Path("a.vcf"), "ann", "bob"), variants(Path("b.vcf"), "bob")]
    with pytest.raises(GenomeError, match=r"^b\.vcf: has person bob, who is in a\.vcf too$"):
        Selection.of(files).sources()
    # Also one who is not wanted: one of the files is not what it is taken for.
    with pytest.raises(GenomeError, match=r"^b\.vcf: has person bob, who is in a\.vcf too$"):
        Selection.of(files, table(Path("c.tsv"), "ann\t1", "eve\t0")).sources()


def test_a_file_given_twice() -> None:
    file = variants(Path("a.vcf"), "ann")
    with pytest.raises(GenomeError, match=r"^a\.vcf: is given twice$"):
        Selection.of([file, Path("a.vcf")])
    Path("b.vcf").symlink_to("a.vcf")
    with pytest.raises(GenomeError, match=r"^b\.vcf: is given twice, it is a\.vcf too$"):
        Selection.of([file, Path("b.vcf")])


@pytest.mark.parametrize(
    ("rows", "missing"), [(["ann\t1", "eve\t0"], "eve"), (["dan\t1", "ann\t1", "eve\t0"], "dan, and 1 more")]
)
def test_somebody_in_no_file(rows: list[str], missing: str) -> None:
    selection = Selection.of([variants(Path("a.vcf"), "ann", "bob")], table(Path("c.tsv"), *rows))
    with pytest.raises(GenomeError, match=rf"^c\.tsv: no file has person {missing}$"):
        selection.sources()


def test_reads_of_several_people() -> None:
    file = reads(Path("a.bam"), "ann", "bob")
    with pytest.raises(GenomeError, match=r"^a\.bam: has reads of 2 people, must be of one$"):
        Selection.of([file]).sources()
    # A table that says whose they are is believed.
    variants(Path("b.vcf"), "eve")
    rows = table(Path("c.tsv"), "ann\t1\ta.bam", "eve\t0\tb.vcf", columns="person\tphenotype\tpath")
    assert Selection.of(table=rows).sources()[0][0] == Source(file, ("ann",))


def test_missing_indexes_are_made() -> None:
    fasta(Path("ref.fa"), **{"19": SEQUENCE})
    pysam.tabix_compress("ref.fa", "packed.fa.gz")
    Path("other.fa.gz").write_bytes(gzip.compress(Path("ref.fa").read_bytes()))
    variants(Path("a.vcf"), "ann")
    paths = [
        variants(Path("b.vcf.gz"), "bob"),
        Path("a.vcf"),
        Path("ref.fa"),
        Path("packed.fa.gz"),
        Path("other.fa.gz"),
    ]
    for path in paths:
        for kind, endings in INDEXES.items():
            for ending in endings if path.name.endswith(kind) else ():
                path.with_name(path.name + ending).unlink(missing_ok=True)
    assert list(make_indexes(paths)) == [Path("b.vcf.gz.tbi"), Path("ref.fa.fai"), Path("packed.fa.gz.fai")]
    assert all(path.is_file() for path in (Path("b.vcf.gz.tbi"), Path("ref.fa.fai")))
    assert list(make_indexes(paths)) == []
    Path("x.vcf.gz").write_bytes(b"x")
    with pytest.raises(GenomeError, match=re.escape("x.vcf.gz: no index can be made")):
        list(make_indexes([Path("x.vcf.gz")]))
