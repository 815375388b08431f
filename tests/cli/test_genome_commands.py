"""The commands of genomes, as a user meets them: one after the other, from variants to tokens."""

import csv
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import refused, run
from genome import cohort_files as files
from genome.made import ABSENT, DATA

from greenformers.genome.diplotype import Haplotype, diplotype, encoded, text
from greenformers.genome.encoded_file import load, settings_of

pytest.importorskip("pysam", reason="the genome extra is not installed")
pytest.importorskip("sentencepiece", reason="the genome extra is not installed")

APOE = DATA / "genomics_apoe_1000g"
SECRET = re.compile(r"[ACGTN]{15,}|[01][|/][01]")


@pytest.fixture
def shown(monkeypatch, capsys):
    """Run a command that must succeed; the lines it prints."""

    def command(words, *more):
        assert run(monkeypatch, "genome", *words.split(), *more) == 0
        whole = capsys.readouterr()
        assert not SECRET.search(whole.out + whole.err)
        assert "greenformers:" not in whole.err
        assert "Traceback" not in whole.err
        return whole.out.splitlines()

    return command


def pairs(first, second, alphabet="iupac"):
    return text(diplotype(*[Haplotype(encoded(side)) for side in (first, second)]), alphabet)


def expected(name):
    sides = [[at for at, call in zip(files.PLACES, files.CALLS[name], strict=True) if call[n] == "1"] for n in (0, 2)]
    return [files.changed(*side) for side in sides]


def test_help_lists_genome(monkeypatch, capsys):
    assert run(monkeypatch, "--help") == 0
    assert re.search(r"(?m)^\W*genome\s+From reads and variants", capsys.readouterr().out)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from greenformers import cli; sys.argv = ['greenformers', 'genome', 'encode', '--help']\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = 'torch', 'transformers', 'pysam', 'sentencepiece', 'sklearn', 'scipy'\n"
        "print(*[name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stderr.strip()) == (0, "")
    assert "--mapping-quality" in process.stdout


@pytest.mark.parametrize("command", ["encode", "tokenize", "simulate"])
def test_help_tells_every_option(monkeypatch, capsys, command):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, "genome", command, "--help") == 0
    options = re.findall(r"(?m)^\W*(--[\w-]+).*$", capsys.readouterr().out)
    assert "--reference" in options
    assert "--out" in options
    assert len(options) == len(set(options))


def test_encode_a_cohort(here, shown):
    out = shown("encode --reference ref.fa --out new.tsv all.vcf.gz --cohort all.tsv --alphabet thesis")
    assert out == [
        "new.tsv: 2 people, diplotypes of 19:1-300 (300 positions)",
        "phenotypes: 1 person with 0, 1 person with 1",
        "left out: 1 without phenotype, 0 not in the table",
    ]
    rows = list(load(here / "new.tsv"))
    assert [(row["person"], row["phenotype"]) for row in rows] == [("ann", "1"), ("bob", "0")]
    assert [row["sequence"] for row in rows] == [pairs(*expected(name), "thesis") for name in ("ann", "bob")]
    assert settings_of(here / "new.tsv")["alphabet"] == "thesis"
    assert not (here / "new.tsv.part").exists()


def test_encode_files_of_all_kinds(here, shown):
    words = "encode --reference ref.fa --out new.tsv dan.bam all.vcf.gz eve.cram --region chr19:5-160 --count 2"
    assert shown(words) == ["new.tsv: 5 people, diplotypes of 19:5-160 (156 positions)"]
    sides = [(files.SEQUENCE, files.changed(20)), *[expected(name) for name in files.CALLS], 2 * [files.changed(30)]]
    assert [(row["person"], row["sequence"]) for row in load(here / "new.tsv")] == [
        (name, pairs(*[side[4:160] for side in both]))
        for name, both in zip(["dan", "ann", "bob", "cid", "eve"], sides, strict=True)
    ]


def test_encode_by_the_paths_of_a_table(monkeypatch, capsys, here):
    for name in ("dan.bam.bai", "ref.fa.fai"):
        (here / name).unlink()
    words = "encode --reference ref.fa --out new.tsv --cohort paths.tsv"
    assert "dan.bam: has no index; --index makes one beside it" in refusal(monkeypatch, capsys, words)
    assert (here / "new.tsv.part").exists()
    assert not list(here.glob("*.fai"))
    assert run(monkeypatch, "genome", *words.split(), "--resume", "--index") == 0
    whole = capsys.readouterr()
    assert re.findall("(?m)^index:  (.*)$", whole.err) == ["dan.bam.bai", "ref.fa.fai"]
    assert whole.out.splitlines()[1:] == ["phenotypes: 1 person with 0, 1 person with 1"]
    assert [row["person"] for row in load(here / "new.tsv")] == ["ann", "dan"]
    assert not list(here.glob(".*"))


def refusal(monkeypatch, capsys, words):
    assert run(monkeypatch, "genome", *words.split()) == 2
    error = capsys.readouterr().err
    (line,) = re.findall("(?m)^greenformers: .*$", error)
    assert not SECRET.search(error)
    return line


def test_haplotypes(here, shown):
    words = "encode --reference ref.fa --out new.tsv all.vcf.gz --mode haplotype"
    assert shown(words) == ["new.tsv: 3 people, haplotypes of 19:1-300 (300 positions)"]
    assert [[row["first"], row["second"]] for row in load(here / "new.tsv")] == [expected(name) for name in files.CALLS]


def test_tokens_of_a_genome_and_of_people(here, shown):
    from transformers import AutoTokenizer

    (here / "genome").mkdir()  # an empty folder is as good as none
    out = shown("tokenize --reference ref.fa --sites sites.vcf --out genome --size 90 --starts 9 --alphabet thesis")
    assert out[0] == "genome: 90 tokens of 9 sentences"
    assert re.search(r"a token has [1-9]\.\d\d ", out[1])
    shown("encode --reference ref.fa --out new.tsv all.vcf.gz --alphabet thesis")
    tokenizer = AutoTokenizer.from_pretrained(here / "genome")
    assert tokenizer.model_max_length == 4096
    assert tokenizer.cls_token_id == 2
    out = shown("tokenize --sequences new.tsv --out people --size 90 --max-length 50")
    assert re.fullmatch(r"people: 90 tokens of \d sentences", out[0])
    tokenizer = AutoTokenizer.from_pretrained(here / "people")
    sequence = files.SEQUENCE
    assert tokenizer.decode(tokenizer(sequence)["input_ids"], skip_special_tokens=True) == sequence
    assert len(tokenizer(sequence, truncation=True)["input_ids"]) == 50


def test_tokens_of_people_have_their_variants(here, shown):
    from transformers import AutoTokenizer

    shown("encode --reference ref.fa --out new.tsv all.vcf.gz")
    shown("tokenize --sequences new.tsv --out people --size 90")
    tokenizer = AutoTokenizer.from_pretrained(here / "people")
    for row in load(here / "new.tsv"):
        assert tokenizer.decode(tokenizer(row["sequence"])["input_ids"], skip_special_tokens=True) == row["sequence"]


def test_tokens_are_the_same_by_seed(here, shown):
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        shown(f"tokenize --reference ref.fa --out {name} --size 150 --starts 3 --seed {seed}")
    first, again, other = ((here / name / "tokenizer.json").read_text() for name in ("one", "two", "three"))
    assert first == again != other


def test_kmers(here, shown):
    from transformers import AutoTokenizer

    from greenformers.genome.tokenizer import kmers

    words = "tokenize --reference ref.fa --mode haplotype --out kmers --pattern 1101 --stride 2 --size 5000"
    (out,) = shown(words)
    assert re.fullmatch(r"kmers: \d+ tokens of 100 sentences", out)
    tokenizer = AutoTokenizer.from_pretrained(here / "kmers")
    assert tokenizer.unk_token_id in tokenizer(kmers("ACGTNNNN", "1101", 2))["input_ids"]
    assert "...." not in tokenizer.get_vocab()


def test_from_phenotypes_to_tokens(here, shown):
    out = shown("simulate --reference ref.fa --sites sites.vcf --people 40 --out made.vcf.gz --seed 3")
    assert out == ["made.vcf.gz: 40 synthetic people, 3 sites, no linkage"]
    out = shown("simulate --reference ref.fa --variants made.vcf.gz --effects effects.tsv --out made.tsv")
    ill, well = re.fullmatch(r"made.tsv: (\d+) people with the made-up disease, (\d+) without", out[0]).groups()
    assert int(ill) + int(well) == 40
    with (here / "made.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert sum(row["phenotype"] == "1" for row in rows) == int(ill)
    out = shown("encode --reference ref.fa made.vcf.gz --cohort made.tsv --mode haplotype --out new.tsv")
    assert out[1] == f"phenotypes: {well} people with 0, {ill} people with 1"
    assert [row["phenotype"] for row in load(here / "new.tsv")] == [row["phenotype"] for row in rows]
    out = shown("tokenize --sequences new.tsv --out tokens --size 60 --alphabet iupac")
    assert re.fullmatch(r"tokens: 60 tokens of \d+ sentences", out[0])
    assert not list(here.glob(".*"))


def test_sites_of_structural_variants_are_counted(here, shown):
    rows = [row.split("\t") for row in (here / "sites.vcf").read_text().splitlines()]
    rows[-1][4], rows[-1][7] = "<DEL>", "AF=0.5;END=200"
    rows.insert(1, ['##INFO=<ID=END,Number=1,Type=Integer,Description="">'])
    (here / "sites.vcf").write_text("".join("\t".join(row) + "\n" for row in rows))
    said = "left out: 1 site of structural variants, whose bases are not known; the reference stands there"
    assert shown("tokenize --reference ref.fa --sites sites.vcf --out tokens --size 90 --starts 9")[1] == said
    out = shown("simulate --reference ref.fa --sites sites.vcf --people 40 --out made.vcf.gz")
    assert out == ["made.vcf.gz: 40 synthetic people, 2 sites, no linkage", said]


def test_apoe(shown, tmp_path):
    if not APOE.is_dir():
        pytest.skip(ABSENT)
    given = ["--reference", str(APOE / "apoe_exon4_cds_GRCh37.fa")]
    path = str(APOE / "apoe_exon4_1000g_phase3.vcf.gz")
    before = sorted(APOE.iterdir())
    table, out = str(tmp_path / "made.tsv"), str(tmp_path / "new.tsv")
    lines = shown("simulate --preset apoe37 --prevalence 0.4", *given, "--variants", path, "--out", table)
    assert re.fullmatch(r".*: (9\d\d|10\d\d|1,0\d\d) people with the made-up disease, 1,[45]\d\d without", lines[0])
    assert lines[1:] == ["left out: 1 whose odds are not known"]
    lines = shown("encode", path, *given, "--cohort", table, "--out", out)
    assert lines[0].startswith(f"{out}: 2,503 people, diplotypes of ")
    assert lines[-1] == "left out: 0 without phenotype, 1 not in the table"
    assert sorted(APOE.iterdir()) == before


def big(tmp_path, kind):
    """A file with a header of 100,000 contigs, or with a line of 10 MB."""
    name, _, excess = kind.partition(", ")
    long, contigs = "x" * 10_000_000, range(100_000)
    if name == "vcf":
        extra = f"##note={long}\n" if excess == "line" else "".join(f"##contig=<ID=c{n}>\n" for n in contigs)
        path = files.vcf(tmp_path / "big.vcf", files.records("ann"), ["ann"])
        path.write_text(path.read_text().replace("##contig", extra + "##contig", 1))
        return path
    lengths = {"19": 300} | ({} if excess == "line" else {f"c{n}": 9 for n in contigs})
    lines = [f"@CO\t{long}"] if excess == "line" else []
    return files.aligned(tmp_path / "big.bam", [*lines, *files.reads(files.SEQUENCE)], lengths)


@pytest.mark.parametrize("kind", ["vcf, contigs", "vcf, line", "bam, contigs", "bam, line"])
def test_large_headers_are_quick(here, shown, kind):
    path = big(here, kind)
    start = time.perf_counter()
    shown(f"encode --reference ref.fa --out new.tsv {path.name}")
    assert time.perf_counter() - start < 5
    assert len(list(load(here / "new.tsv"))) == 1


@pytest.mark.parametrize(
    "name",
    [
        "a b.bam",
        ".bam",
        "a;$(touch x).bam",
        "-.bam",
        "a\tb.bam",
        "a\nb.bam",
        "..bam",
    ],
)
def test_names_of_files(monkeypatch, here, name):
    """Either they are taken, and come back as one line, or refused."""
    for end in ("", ".bai"):
        shutil.copy2(here / f"dan.bam{end}", here / f"{name}{end}")
    words = ["--reference", "ref.fa", "--out", "new.tsv", "--", name]
    if run(monkeypatch, "genome", "encode", *words) == 0:
        (row,) = load(here / "new.tsv")
        assert row["person"].strip()
    assert not (here / "x").exists()


@pytest.mark.parametrize("name", ["[red]", "a[/]"])
def test_brackets_in_names(here, shown, name):
    (here / Path(name).parent).mkdir(exist_ok=True)
    assert shown("encode --reference ref.fa ann.vcf --out", f"{name}.tsv")[0].startswith(f"{name}.tsv: 1 person,")


@pytest.mark.parametrize("phenotype", ["[red]", "[/x]"])
def test_brackets_in_phenotypes(here, shown, phenotype):
    (here / "all.tsv").write_text(f"person\tphenotype\nann\t{phenotype}\nbob\t0\n")
    assert (
        f"1 person with {phenotype}" in shown("encode --reference ref.fa all.vcf.gz --cohort all.tsv --out new.tsv")[1]
    )


@pytest.mark.parametrize(
    "words",
    [
        "tokenize --out new --sequences there.tsv --sites sites.vcf",
        "tokenize --out new --sequences there.tsv --alphabet thesis",
        "simulate --out new.vcf.gz --reference ref.fa --sites sites.vcf --effects effects.tsv",
        "simulate --out new.tsv --reference ref.fa --variants all.vcf.gz --effects effects.tsv --people 9",
    ],
)
def test_options_that_do_not_go_together(monkeypatch, capsys, here, words):
    assert run(monkeypatch, "genome", "encode", "all.vcf.gz", "--reference", "ref.fa", "--out", "there.tsv") == 0
    capsys.readouterr()
    assert (here / "there.tsv").exists()
    words += " --size 75" * words.startswith("tokenize")
    assert "--" in refused(monkeypatch, capsys, "genome", *words.split())
