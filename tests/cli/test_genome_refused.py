"""Damaged and hostile files, and options that are none: one line, exit code 2, and nothing left behind."""

import os
import re
import shutil
import threading

import pytest
from command_line import run
from genome import cohort_files as files
from genome.cohort_files import both, cut, named, older, packed, replaced, variants, without, written
from genome.made import bases, fasta

pytest.importorskip("pysam", reason="the genome extra is not installed")
pytest.importorskip("sentencepiece", reason="the genome extra is not installed")

ENCODE, TOKENIZE, SIMULATE = (
    "encode --reference ref.fa --out new.tsv ",
    "tokenize --out new ",
    "simulate --out new.tsv ",
)
LEARN = TOKENIZE + "--reference ref.fa --size 80 "
PHENOTYPES = SIMULATE + "--reference ref.fa --variants all.vcf.gz --effects effects.tsv "
REF, ALT = files.SEQUENCE[9], files.OTHER[files.SEQUENCE[9]]
FIRST = (10, REF, ALT)
OTHER = ENCODE.replace("ref.fa", "other.fa")


def another(folder):
    fasta(folder / "other.fa", **{"19": bases(300, 99)})


def of_two(folder):
    """An index of a file of two contigs."""
    files.bam("x.bam", files.line("r", 0, "9M", "ACGTACGTA", contig="1"), contigs={"1": 9, "19": 9})(folder)
    shutil.move(folder / "x.bam.bai", folder / "dan.bam.bai")
    (folder / "x.bam").unlink()


def of_another(folder):
    variants("x.vcf.gz", (10, "A", "C", "0|1"), contig="18")(folder)
    shutil.move(folder / "x.vcf.gz.tbi", folder / "all.vcf.gz.tbi")
    (folder / "x.vcf.gz").unlink()


def special(folder):
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo.bam")
    os.mkfifo(folder / "fifo.tsv")
    (folder / "link.bam").symlink_to("nowhere.bam")
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()


def infos(*abouts):
    return lambda folder: files.with_info(folder / "sites.vcf", *abouts)


UNSORTED = (files.records("ann")[1], files.records("ann")[0])
TWO = files.records("ann", "bob")

CASES = {
    # Cut off.
    "bam": (cut("dan.bam"), ENCODE + "dan.bam", r"dan\.bam: .*(cut off|truncated|damaged).*"),
    "vcf": (cut("all.vcf.gz"), ENCODE + "all.vcf.gz", r"all\.vcf\.gz: cut off, its last block is missing"),
    "vcf, its end": (cut("all.vcf.gz", 0.95), ENCODE + "all.vcf.gz", r"all\.vcf\.gz: cut off, its last block is .*"),
    "cram": (cut("eve.cram"), ENCODE + "eve.cram", r"eve\.cram: (cut off|no BAM or CRAM file).*"),
    "fasta": (
        both(packed("ref.fa"), without("ref.fa.fai"), cut("ref.fa.gz")),
        "encode --reference ref.fa.gz --out new.tsv ann.vcf", r"ref\.fa\.gz: no FASTA file that can be read .*",
    ),
    "vcf, by a byte of its text": (cut("ann.vcf", 0.97), ENCODE + "ann.vcf", r"ann\.vcf: .*"),
    "gzip, not bgzip": (packed("ann.vcf"), ENCODE + "ann.vcf.gz", r"ann\.vcf\.gz: packed with gzip, must .*"),
    # Indexes.
    "index of another bam": (of_two, ENCODE + "dan.bam", r"dan\.bam: its index dan\.bam\.bai is of another file, .*"),
    "index of another vcf": (of_another, ENCODE + "all.vcf.gz", r"all\.vcf\.gz: its index is of another file, .*"),
    "older index, bam": (older("dan.bam.bai"), ENCODE + "dan.bam", r"dan\.bam: its index dan\.bam\.bai is older .*"),
    "older index, vcf": (older("all.vcf.gz.tbi"), ENCODE + "all.vcf.gz", r"all\.vcf\.gz: its index \S+ is older .*"),
    "older index, fasta": (older("ref.fa.fai"), ENCODE + "ann.vcf", r"ref\.fa: its index ref\.fa\.fai is older .*"),
    "no index": (without("dan.bam.bai"), ENCODE + "dan.bam", r"dan\.bam: has no index; --index makes one beside it"),
    "text for an index": (written("dan.bam.bai", "x"), ENCODE + "dan.bam", r"dan\.bam: damaged, or its index is .*"),
    # References and regions.
    "another reference, bam": (another, OTHER + "dan.bam", r"dan\.bam: is not aligned to other\.fa, \d+ % .*"),
    "another reference, vcf": (another, OTHER + "ann.vcf", r"ann\.vcf: is not of this reference, at 19:10 .*"),
    "no region": (None, ENCODE + "ann.vcf --region 19:20-10", "region must have 1 <= first <= last < 2.31, got '.*'"),
    "before the first": (None, ENCODE + "ann.vcf --region 19:0-10", "region must have 1 <= first .*"),
    "region outside": (None, ENCODE + "ann.vcf --region 19:100-301", r"ref\.fa: has 19:1-300; 19:\S+ is not within"),
    "region wrongly": (None, ENCODE + "ann.vcf --region 19:1..9", "region must be written as 19:45411941-45412079, .*"),
    "no such contig": (None, ENCODE + "ann.vcf --region 20:1-9", r"ref\.fa: has no contig 20, it has 19"),
    "large region": (None, ENCODE + "ann.vcf --region 19:1-99999999999999999999", "region must have 1 <= .*"),
    # Paths.
    "idx": (None, ENCODE + "dan.bam##idx##ann.vcf", "dan.bam##idx##ann.vcf: a name with ##idx## .*"),
    "http": (None, ENCODE + "http://127.0.0.1:9/a.bam", "http:/127.0.0.1:9/a.bam: no such file"),
    "s3": (None, ENCODE + "s3://bucket/a.vcf.gz", "s3:/bucket/a.vcf.gz: no such file"),
    "ftp": (None, ENCODE + "ftp://127.0.0.1/a.cram", "ftp:/127.0.0.1/a.cram: no such file"),
    "a reference of the network": (
        None, "encode --reference http://127.0.0.1:9/ref.fa --out new.tsv ann.vcf", "http:/\\S+: no such file",
    ),
    "folder": (special, ENCODE + "folder", "folder: .*"),
    "fifo": (special, ENCODE + "fifo.bam", "fifo.bam: not a regular file"),
    "fifo for a table": (special, ENCODE + "ann.vcf --cohort fifo.tsv", "fifo.tsv: not a regular file"),
    "link to nowhere": (special, ENCODE + "link.bam", "link.bam: no such file"),
    "cohort, outside": (
        replaced("paths.tsv", ("dan.bam", "../gone.bam")), ENCODE + "--cohort paths.tsv", "../gone.bam: no such file",
    ),
    "cohort, nul": (
        replaced("paths.tsv", ("dan.bam", "dan\0.bam")), ENCODE + "--cohort paths.tsv",
        "(.*dan.*bam: no such file|paths.tsv: line 3 .*)",
    ),
    # Other files than their names tell.
    "empty bam": (written("x.bam"), ENCODE + "x.bam", "x.bam: empty, 0 bytes"),
    "empty vcf": (written("x.vcf"), ENCODE + "x.vcf", "x.vcf: empty, 0 bytes"),
    "empty fasta": (written("ref.fa"), ENCODE + "ann.vcf", "ref.fa: empty, 0 bytes"),
    "empty table": (written("all.tsv"), ENCODE + "all.vcf.gz --cohort all.tsv", "all.tsv: empty, 0 bytes"),
    "empty sites": (written("sites.vcf"), LEARN + "--sites sites.vcf", "sites.vcf: empty, 0 bytes"),
    "text for bam": (named("text", "x.bam"), ENCODE + "x.bam", "x.bam: no BAM or CRAM file that can be read .*"),
    "text for vcf": (named("text", "x.vcf"), ENCODE + "x.vcf", "x.vcf: no VCF or BCF file that can be read .*"),
    "text for fasta": (named("text", "x.fa"), LEARN.replace("ref.fa", "x.fa"), "x.fa: .*"),
    "bam for vcf": (named("dan.bam", "x.vcf.gz"), ENCODE + "x.vcf.gz", "x.vcf.gz: no VCF or BCF file that can be .*"),
    "vcf for bam": (named("all.vcf.gz", "x.bam"), ENCODE + "x.bam", "x.bam: .*"),
    "bam for fasta": (named("dan.bam", "x.fa"), LEARN.replace("ref.fa", "x.fa"), "x.fa: .*"),
    "unknown kind": (
        None, ENCODE + "text",
        r"text: must be a file of reads \(.bam, .cram\), variants \(.vcf, .vcf.gz, .bcf\) or haplotypes \(.fa, .*",
    ),
    "unsorted bam": (
        files.bam("x.bam", *files.reads(files.SEQUENCE), order="unsorted", index=False), ENCODE + "x.bam",
        "x.bam: reads must be sorted by coordinate, they are unsorted",
    ),
    "unsorted vcf": (variants("x.vcf", *UNSORTED), ENCODE + "x.vcf", "x.vcf: must be sorted, position 10 .*"),
    "unsorted, to be indexed": (
        variants("x.vcf.gz", *UNSORTED, index=False), ENCODE + "x.vcf.gz --index",
        r"x.vcf.gz: no index can be made \(it is not sorted by position, or damaged\)",
    ),
    "cut off, to be indexed": (
        both(cut("dan.bam"), without("dan.bam.bai")), ENCODE + "dan.bam --index", "dan.bam: no index can be made .*",
    ),
    "reads of N": (
        files.bam("x.bam", *files.reads("N" * 300)), ENCODE + "x.bam", "x.bam: has no reads that count at 19:1-300",
    ),
    # People.
    "in two files": (None, ENCODE + "ann.vcf all.vcf.gz", "all.vcf.gz: has person ann, who is in ann.vcf too"),
    "nobody's data": (
        replaced("all.tsv", ("bob", "bert")), ENCODE + "all.vcf.gz --cohort all.tsv", "all.tsv: no file has .* bert",
    ),
    "twice in a table": (
        replaced("all.tsv", ("bob", "ann")), ENCODE + "all.vcf.gz --cohort all.tsv",
        "all.tsv: line 3 has person ann again, after line 2",
    ),
    "twice in a vcf": (
        replaced("ann.vcf", ("FORMAT\tann", "FORMAT\tann\tann"), ("|1\n", "|1\t0|1\n"), ("|0\n", "|0\t0|1\n")),
        ENCODE + "ann.vcf", "ann.vcf: has person ann 2 times",
    ),
    "no phenotype": (
        replaced("all.tsv", ("phenotype", "status")), ENCODE + "all.vcf.gz --cohort all.tsv",
        "all.tsv: must have one column phenotype, has person, status",
    ),
    "reads of two": (
        files.bam("x.bam", groups=["ann", "bob"]), ENCODE + "x.bam", "x.bam: has reads of 2 people, must be of one",
    ),
    "files and paths": (None, ENCODE + "ann.vcf --cohort paths.tsv", "name FILES, or a cohort with .*; not both"),
    "no files": (None, ENCODE + "--cohort all.tsv", "name FILES, or a cohort with the column path; not both"),
    # Genotypes.
    "sites alone": (None, PHENOTYPES.replace("all.vcf.gz", "sites.vcf"), "sites.vcf: has no genotypes, only sites"),
    "three alleles": (
        variants("x.vcf", (*FIRST, "0|1|1")), ENCODE + "x.vcf", "x.vcf: at 19:10 a genotype must have .*, one has 3",
    ),
    "allele too high": (variants("x.vcf", (*FIRST, "0|7")), ENCODE + "x.vcf", "x.vcf: at 19:10 it has allele 7 of 1"),
    "no genotype": (variants("x.vcf", (*FIRST, "x")), ENCODE + "x.vcf", "x.vcf: .*"),
    "not phased": (
        variants("x.vcf", (*FIRST, "0/1")), ENCODE + "x.vcf --mode haplotype",
        "x.vcf: haplotypes need phased genotypes .*, some are not .*",
    ),
    "haplotypes of reads": (None, ENCODE + "dan.bam --mode haplotype", "dan.bam: reads do not tell which haplotype .*"),
    # Where to.
    "there": (written("new.tsv", "x"), ENCODE + "ann.vcf", "new.tsv is there already"),
    "stopped": (written("new.tsv.part", "x"), ENCODE + "ann.vcf", "new.tsv.part is of work that was stopped: .*"),
    "of other settings": (written("new.tsv.part", "x"), ENCODE + "ann.vcf --resume", "new.tsv.part is of other .*"),
    "no folder": (None, "encode --reference ref.fa ann.vcf --out no/new.tsv", "no/new.tsv.*: No such file or .*"),
    "a file for a folder": (None, "encode --reference ref.fa ann.vcf --out text/new.tsv", "text/new.tsv.*: Not a .*"),
    "tokenizer there": (special, "tokenize --reference ref.fa --out full", "full is there already, and not an .*"),
    "table there": (
        written("new.tsv", "x"), PHENOTYPES,
        "new.tsv is there already",
    ),
    # Options.
    "mode": (None, ENCODE + "ann.vcf --mode diploid", "mode must be one of diplotype, haplotype; got 'diploid'"),
    "alphabet": (None, LEARN + "--alphabet greek", "alphabet must be one of iupac, thesis; got 'greek'"),
    "alphabet of bases": (None, LEARN + "--mode haplotype --alphabet thesis", "alphabet is of pairs: it must be .*"),
    "structural of reads": (
        None, ENCODE + "dan.bam --structural refuse",
        r"structural is of variants \(VCF or BCF\), and no file has any; got refuse",
    ),
    "depth": (None, ENCODE + "dan.bam --depth 0", "depth and count must be at least 1, got 0 and 2"),
    "workers": (None, ENCODE + "ann.vcf --workers 0", "workers must be at least 1, got 0"),
    "size": (None, TOKENIZE + "--reference ref.fa --size 70", "size must be at least 71, for 66 characters; got 70"),
    "size of k-mers": (None, TOKENIZE + "--reference ref.fa --size 5 --pattern 111", "size must be above 5, got 5"),
    "pattern": (None, LEARN + "--pattern 110", "pattern must be of 0 and 1, with 1 at both ends, got '110'"),
    "stride": (None, LEARN + "--pattern 111 --stride 4", "stride must be in 1..3, got 4"),
    "starts": (None, LEARN + "--starts 0", "starts must be at least 1, got 0"),
    "least": (None, LEARN + "--sites sites.vcf --least 0.6", "least must be in 0..0.5, got 0.6"),
    "not encoded": (None, TOKENIZE + "--sequences text", "text: no file that `greenformers genome encode` wrote"),
    "two to learn from": (None, LEARN + "--sequences text", "name --reference or --sequences, one of them"),
    "frequencies": (infos("AF=x", "AF=1", "AF=1"), LEARN + "--sites sites.vcf", "sites.vcf: frequencies .* got 'x'"),
    "no frequencies": (infos("DP=1", "DP=1", "DP=1"), LEARN + "--sites sites.vcf", "sites.vcf: no record at .*"),
    "synthetic": (
        infos("AF=0.3", "AF=0.3", "AF=7"), "simulate --out new.vcf.gz --reference ref.fa --sites sites.vcf",
        "sites.vcf: frequencies .* got '7'",
    ),
    "synthetic, .vcf": (None, "simulate --out new.vcf --reference ref.fa --sites sites.vcf", "people .*new.vcf"),
    "preset": (
        None, SIMULATE + "--reference ref.fa --variants all.vcf.gz --preset apoe",
        "preset must be one of apoe37, apoe38; got 'apoe'",
    ),
    "prevalence": (
        None, PHENOTYPES + "--prevalence 1",
        "prevalence must be above 0 and below 1, got 1.0",
    ),
    "effects": (
        written("effects.tsv", "x\ty\n"), PHENOTYPES + "",
        "effects.tsv: must have columns position, allele, odds_ratio; .*",
    ),
    "neither": (None, SIMULATE + "--reference ref.fa", "give either --variants, for phenotypes, or --sites, for .*"),
    "sites alone, encode": (None, ENCODE + "sites.vcf", "sites.vcf: has no .*"),
    "settings that lack the mode": (
        written("x.tsv", '#{"a": 1}\n'), TOKENIZE + "--sequences x.tsv", "x.tsv: no file that .* wrote"),
    "settings of another alphabet": (
        written("x.tsv", '#{"mode": "diplotype", "alphabet": "greek"}\nperson\tsequence\nann\tACGT\n'),
        TOKENIZE + "--sequences x.tsv", "x.tsv: .*"),
    "settings that are a list": (
        written("x.tsv", "[1]\n"), TOKENIZE + "--sequences x.tsv", "x.tsv: no file that .* wrote"),
    "bam for sequences": (None, TOKENIZE + "--sequences dan.bam", "dan.bam: .*"),
    "effects, nobody differs": (
        written("effects.tsv", "position\tallele\todds_ratio\n6\tA\t3\n"), PHENOTYPES,
        "positions of effects must have variants of their alleles, none of 6 A has",
    ),
    "effects, not text": (written("effects.tsv", b"\xff\n"), PHENOTYPES, "effects.tsv: .*"),
    "effects, one long field": (
        written("effects.tsv", "position\tallele\todds_ratio\n1\tA\t" + "2" * 10**6), PHENOTYPES, "effects.tsv: .*"),
    "a long header of a table": (
        written("all.tsv", "x" * 10**5 + "\nann\n"), ENCODE + "all.vcf.gz --cohort all.tsv",
        "all.tsv: must have one column .*"),
    "a name that is not UTF-8": (
        lambda folder: (folder / "ann.vcf").write_bytes((folder / "ann.vcf").read_bytes().replace(b"\tann", b"\t\xe9")),
        ENCODE + "ann.vcf", "ann.vcf: .*"),
    "vcf, within its last genotype": (
        lambda folder: (folder / "ann.vcf").write_bytes((folder / "ann.vcf").read_bytes()[:-3]), ENCODE + "ann.vcf",
        "ann.vcf: .*cut off.*"),
    "a file of two people in a table": (
        written("paths.tsv", "person\tphenotype\tpath\nann\t1\tall.vcf.gz\nbob\t0\tall.vcf.gz\n"),
        ENCODE + "--cohort paths.tsv", "paths.tsv: .*(ann|line 3).* all.vcf.gz .*"),
    "a control character in a name": (
        replaced("paths.tsv", ("dan.bam", "dan\x1b[31m.bam")), ENCODE + "--cohort paths.tsv",
        "[^\x00-\x1f]*"),
    "a region of sequences": (
        None, TOKENIZE + "--sequences people.tsv --size 80 --region 19:1-9",
        "region is for --reference; .*, got 19:1-9"),
    "a prevalence of sites": (
        None, SIMULATE + "--reference ref.fa --sites sites.vcf --prevalence 0.1",
        "--prevalence cannot be combined with --sites: .*"),
    "longest": (None, LEARN + "--longest 0", "longest must be .*, got 0"),
    "no sentences": (None, LEARN + "--sentences 0", "sentences must be .*, got 0"),
    "no length": (None, LEARN + "--max-length 0", "max.length must be .*, got 0"),
    "a huge size": (None, LEARN + "--size 99999999999", "size must be .*"),
    "a seed below 0": (None, LEARN + "--seed -1", "seed must be .*, got -1"),
}  # fmt: skip


def listed(folder):
    """Files, with what is in them."""
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in folder.rglob("*")
    }


def check(capsys, folder, before, code, message):
    """What a refusal says, and that it leaves nothing."""
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, ""), shown
    lines = [row for row in shown.err.splitlines() if row.strip() and not re.match(r"(people|sites) .* %", row)]
    assert len(lines) == 1, shown.err
    assert re.fullmatch(f"greenformers: {message}", lines[0]), lines[0]
    assert len(lines[0]) < 300
    secret = r"[ACGTN]{21,}|[0-9.][|/][0-9.]"
    assert not re.search(secret, shown.err.replace("(0|1)", "").replace("(0/1)", "").replace(str(folder.parent), ""))
    assert listed(folder) == before


@pytest.mark.parametrize(
    "name",
    [
        *CASES,
    ],
)
def test_one_line_and_nothing_left(monkeypatch, capsys, here, name):
    damage, words, message = CASES[name]
    if damage is not None:
        damage(here)
    before = listed(here)
    code = run(monkeypatch, "genome", *words.split())
    check(capsys, here, before, code, message)


def test_a_fifo_for_sequences(monkeypatch, capsys, here):
    special(here)
    before = listed(here)
    # Somebody who opens it and writes nothing, so that this test ends.
    writer = threading.Thread(target=lambda: (here / "fifo.tsv").open("wb").close(), daemon=True)
    writer.start()
    code = run(monkeypatch, "genome", *(TOKENIZE + "--sequences fifo.tsv").split())
    with open(os.open("fifo.tsv", os.O_RDONLY | os.O_NONBLOCK)):
        writer.join()
    check(capsys, here, before, code, "fifo.tsv: not a regular file")


@pytest.mark.parametrize("name", ["a\nb.bam", "a\tb.vcf"])
def test_a_name_of_two_lines_is_shown_in_one(monkeypatch, capsys, here, name):
    before = listed(here)
    code = run(monkeypatch, "genome", *ENCODE.split(), name)
    check(capsys, here, before, code, "a b.(bam|vcf): no such file")


@pytest.mark.parametrize("out", ["/proc/new.tsv", "/dev/full/new.tsv"])
def test_a_folder_that_cannot_be_written(monkeypatch, capsys, here, out):
    before = listed(here)
    code = run(monkeypatch, "genome", *ENCODE.replace("new.tsv", out).split(), "ann.vcf")
    check(capsys, here, before, code, re.escape(out) + ".*: (No such file or directory|Not a directory)")
    code = run(monkeypatch, "genome", *PHENOTYPES.replace("new.tsv", out).split())
    check(capsys, here, before, code, ".*: (No such file or directory|Not a directory)")
    code = run(monkeypatch, "genome", *LEARN.replace("new", out).split())
    check(capsys, here, before, code, ".*: (No such file or directory|Not a directory)")


def test_an_error_does_not_stand_behind_a_bar(monkeypatch, capsys, here):
    """The first of two files is read, so that there are bars; then the second is wrong."""
    variants("x.vcf", (*FIRST, "0|7"), people=("zoe",))(here)
    assert run(monkeypatch, "genome", *ENCODE.split(), "ann.vcf", "x.vcf") == 2
    lines = [row for row in capsys.readouterr().err.splitlines() if row.strip()]
    assert lines == ["greenformers: x.vcf: at 19:10 it has allele 7 of 1"]


def test_a_file_given_twice(monkeypatch, capsys, here):
    before = listed(here)
    code = run(monkeypatch, "genome", *ENCODE.split(), "dan.bam", "dan.bam")
    check(capsys, here, before, code, r"dan\.bam: is given twice")
