"""Tokens that are learnt by one call, and what is refused before any work: as the command says it."""

import re
from pathlib import Path
from typing import Any

import pytest
from made import bases, fasta, vcf

from greenformers.genome.corpus import haplotypes, kind_of
from greenformers.genome.encode import Encoding, Source, encode
from greenformers.genome.files import Region
from greenformers.genome.learn import learn
from greenformers.genome.reference import Reference
from greenformers.genome.token_options import TokenOptions
from greenformers.genome.tokenizer import SPECIAL

pytest.importorskip("pysam", reason="the genome extra is not installed")
pytest.importorskip("sentencepiece", reason="the genome extra is not installed")
from transformers import PreTrainedTokenizerFast

LENGTH = 9000


@pytest.fixture
def genome(tmp_path: Path) -> Path:
    return fasta(tmp_path / "ref.fa", **{"19": bases(LENGTH, 3)})


@pytest.fixture
def encoded(tmp_path: Path, genome: Path) -> Path:
    """Encoded people: haplotypes in the alphabet of the thesis."""
    first = Reference(genome).fetch(Region("19", 10, 11))
    path = vcf(tmp_path / "a.vcf", [(11, first, "ACGT"["CGTA".index(first)], "0|1", "1|1")], ["ann", "bob"])
    out = tmp_path / "people.tsv"
    list(encode([Source(path, ("ann", "bob"))], Encoding(genome, Region("19", 0, LENGTH), "haplotype", "thesis"), out))
    return out


@pytest.mark.parametrize(("mode", "least"), [("diplotype", 71), ("haplotype", 10)])
def test_subwords_of_a_genome(tmp_path: Path, genome: Path, mode: str, least: int) -> None:
    options = TokenOptions(reference=genome, mode=mode, size=least + 20, longest=5, starts=3, max_length=77)
    learnt = learn(options, tmp_path / "new")
    assert len(learnt.tokenizer) == least + 20
    assert learnt.sentences == pytest.approx((3 if mode == "diplotype" else 6) * 6500 / 750, rel=0.4)
    assert learnt.mean is not None
    assert learnt.vocabulary_mean is not None
    assert 1 < learnt.mean < 5
    assert 1 < learnt.vocabulary_mean < 5
    loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path / "new")
    assert loaded.get_vocab() == learnt.tokenizer.get_vocab()
    assert loaded.model_max_length == 77
    both = haplotypes(Reference(genome), Region("19", 0, LENGTH))
    assert loaded.unk_token_id not in loaded(both[0].sequence(), verbose=False)["input_ids"]


def test_tokens_of_encoded_people_are_of_their_mode(tmp_path: Path, encoded: Path) -> None:
    assert kind_of(encoded) == ("haplotype", "thesis")
    learnt = learn(TokenOptions(sequences=encoded, size=30), tmp_path / "new")
    assert set("".join(set(learnt.tokenizer.get_vocab()) - set(SPECIAL))) == set("ACGTN")
    assert learnt.mean is not None
    assert learnt.mean > 1


def test_kmers_have_no_mean(tmp_path: Path, genome: Path) -> None:
    learnt = learn(TokenOptions(reference=genome, size=40, pattern="101", stride=2, starts=1), tmp_path / "new")
    words = set(learnt.tokenizer.get_vocab()) - set(SPECIAL)
    assert {f"{first}.{last}" for first in "ACGT" for last in "ACGT"} <= words
    assert len(words) <= 40 - 5
    assert (learnt.mean, learnt.vocabulary_mean) == (None, None)
    assert learnt.tokenizer.init_kwargs["kmer_pattern"] == "101"
    assert learnt.sentences > 1


REFERENCE, SEQUENCES = {"reference": Path("ref.fa")}, {"sequences": Path("people.tsv")}
OWN = "sites, mode and alphabet are for --reference; those of --sequences are the file's own"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "name --reference or --sequences, one of them"),
        (REFERENCE | SEQUENCES, "name --reference or --sequences, one of them"),
        (SEQUENCES | {"sites": Path("sites.vcf")}, OWN),
        (SEQUENCES | {"mode": "haplotype"}, OWN),
        (SEQUENCES | {"alphabet": "thesis"}, OWN),
        (REFERENCE | {"mode": "diploid"}, "mode must be one of diplotype, haplotype; got 'diploid'"),
        (REFERENCE | {"alphabet": "greek"}, "alphabet must be one of iupac, thesis; got 'greek'"),
        (REFERENCE | {"seed": -1}, "seed must be at least 0, got -1"),
        (REFERENCE | {"stride": 2}, "stride is for --pattern, got 2"),
        (REFERENCE | {"pattern": "11", "longest": 8}, "longest is for subwords, without --pattern, got 8"),
        (REFERENCE | {"least": 0.1}, "least is for --sites, got 0.1"),
        (SEQUENCES | {"starts": 5}, "starts is for --reference, got 5"),
        (REFERENCE | {"starts": 0}, "starts must be at least 1, got 0"),
        (REFERENCE | {"sentences": 0}, "sentences must be at least 1, got 0"),
    ],
)
def test_options_that_are_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TokenOptions(**given)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_there_is_not_written_over(tmp_path: Path, genome: Path, kind: str) -> None:
    out = tmp_path / "new"
    if kind == "folder":
        out.mkdir()
    (out / "file" if kind == "folder" else out).write_text("x")
    with pytest.raises(ValueError, match=r"new is there already, and not an empty folder$"):
        learn(TokenOptions(reference=genome, size=100), out)
    assert (out / "file" if kind == "folder" else out).read_text() == "x"


def test_what_is_stopped_as_it_is_written_leaves_nothing(
    tmp_path: Path, genome: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left a folder that the same command refused then, or took for whole."""

    def stopped(_: PreTrainedTokenizerFast, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text("{")
        raise KeyboardInterrupt

    options, out = TokenOptions(reference=genome, size=40, pattern="11", starts=1), tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedTokenizerFast, "save_pretrained", stopped)
        with pytest.raises(KeyboardInterrupt):
            learn(options, out)
    assert not out.exists()
    learn(options, out)
    assert PreTrainedTokenizerFast.from_pretrained(out).init_kwargs["kmer_pattern"] == "11"


def test_an_empty_folder_is_written_into(tmp_path: Path, genome: Path) -> None:
    (tmp_path / "new").mkdir()
    learn(TokenOptions(reference=genome, size=75, starts=1), tmp_path / "new")
    assert (tmp_path / "new" / "tokenizer.json").is_file()
