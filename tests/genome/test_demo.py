"""The demonstration: what it needs, and with the real data what it leaves."""

import json
import re
from pathlib import Path

import pytest
from command_line import refused, run
from made import ABSENT, DATA

from greenformers.genome.demo import Files
from greenformers.genome.files import GenomeError
from greenformers.measure.record import read

pytest.importorskip("pysam", reason="the genome extra is not installed")
pytest.importorskip("sentencepiece", reason="the genome extra is not installed")

NEEDED = {
    "apoe": "genomics_apoe_1000g/people.vcf.gz",
    "exon": "genomics_apoe_1000g/apoe_exon4_cds.fa",
    "sites": "genomics_chr20_1mb/sites.vcf.gz",
    "sequence": "genomics_chr20_1mb/part.fa.gz",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Files of the names that are looked for, with nothing in them."""
    for name in NEEDED.values():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    return tmp_path / "data"


def test_files_are_found_by_their_names(data: Path) -> None:
    (data / "genomics_apoe_1000g" / "apoe_cds.fa").touch()  # of the whole gene, which is not the exon
    assert Files.under(data)._asdict() == {field: data / name for field, name in NEEDED.items()}


@pytest.mark.parametrize("field", NEEDED)
def test_a_missing_file_is_named(data: Path, field: str) -> None:
    (data / NEEDED[field]).unlink()
    pattern = {"apoe": "apoe_1000g/*.vcf.gz", "exon": "apoe_1000g/apoe_exon4*.fa",
               "sites": "chr20_1mb/*.vcf.gz", "sequence": "chr20_1mb/*.fa.gz"}[field]  # fmt: skip
    with pytest.raises(GenomeError, match=f"^{re.escape(f'{data}: has no genomics_{pattern}')}$"):
        Files.under(data)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data nowhere", r"nowhere: has no genomics_apoe_1000g/\*\.vcf\.gz"),
        ("--data data --splits 0", "splits must be at least 1 and people at least 200, got 0 and 2000"),
        ("--data data --people 199", "splits must be at least 1 and people at least 200, got 5 and 199"),
        ("--data data --out data", "data is there already; --resume goes on with it"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_left(monkeypatch, capsys, data, words, message) -> None:
    monkeypatch.chdir(data.parent)
    before = sorted(data.rglob("*"))
    line = refused(monkeypatch, capsys, "genome", "demo", "--out", "new", *words.split())
    assert re.fullmatch(f"greenformers: {message}", line)
    assert sorted(data.rglob("*")) == before
    assert list(data.parent.iterdir()) == [data]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_page_of_everything(monkeypatch, capsys, tmp_path: Path) -> None:
    if not (DATA / "genomics_apoe_1000g").is_dir():
        pytest.skip(ABSENT)
    monkeypatch.chdir(tmp_path)
    given = ["--data", str(DATA), "--out", "out", "--people", "200", "--splits", "1", "--results", "demo.jsonl"]
    assert run(monkeypatch, "genome", "demo", *given) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "out"
    assert out.rstrip().endswith("page: out/index.html")
    page = (folder / "index.html").read_text()
    # Pictures are in the page, and beside it.
    page, count = re.subn(r'src="data:image/png;base64,[^"]{1000,}"', "", page)
    assert count == 3
    for name in ("models", "track", "surroundings"):
        assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert "All diseases here are made up." in page
    assert "rs429358" in page
    # Nobody's name, and nothing that somebody has.
    files = [folder / part / "people.tsv" for part in ("apoe", "pair", "nothing", "surroundings")]
    people = {line.split("\t")[0] for file in files for line in file.read_text().splitlines()[2:]}
    assert len(people) > 2600
    for text in (page, out, (tmp_path / "demo.jsonl").read_text()):
        assert not people & set(re.findall(r"\w+", text))
        assert not re.search(r"[ACGTNRYKMSW]{12,}|\b[01]\|[01]\b", text)
    records = read(tmp_path / "demo.jsonl")
    assert {record.benchmark for record in records} == {"genome_demo"}
    assert len({json.dumps(record.setting["study"]) for record in records}) == 4
    assert all(record.context["command"].startswith("greenformers genome demo") for record in records)
