"""Texts to learn from, apart from those that judge."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from models import tokenizer
from zoo import network

from greenformers.changes import Heal, Int8
from greenformers.compress.job import Job
from greenformers.compress.parts import parts_of
from greenformers.compress.reading import apart, check_parts, cut_off, fitted, read_parts
from greenformers.compress.run import files_of
from greenformers.compress.unfinished import Unfinished
from greenformers.data import _read_texts
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts


def test_a_decoder_that_classifies_needs_a_token_for_padding() -> None:
    model: Any = network("gpt2", "GPT2ForSequenceClassification", n_layer=1)
    model.config.pad_token_id = None
    with pytest.raises(ValueError, match=r"reads the last token of each text that is not padding: set pad_token_id"):
        Reader.of(model, tokenizer("gpt2"), 16)


def test_no_text_that_judges_is_learned_from() -> None:
    training = Texts("corpus.txt", [("a",), ("b",), ("c",), ("d",)])
    pairs = Texts("pairs.tsv", [("a", "e"), ("f", "c")], [1.0, 2.0], label_kind="score")
    reader = Reader.of(network("bert"), tokenizer("bert"), 16)
    parts, gone = apart({"training": training, "judging": pairs}, reader)
    assert parts["training"] == Texts("corpus.txt", [("b",), ("d",)])
    assert parts["judging"] is pairs
    assert gone == 2
    both = Texts("pairs.txt", [("b", "g"), ("g", "h")])
    assert apart({"training": both, "judging": Texts("others", [("b",)])}, reader)[0]["training"] == both.at([1])
    with pytest.raises(ValueError, match=r"every text of corpus.txt to learn from is one to judge by"):
        apart({"training": training, "judging": training}, reader)


def test_without_training_nothing_changes() -> None:
    parts = {"judging": Texts("pairs.tsv", [("a", "b")])}
    assert apart(parts, Reader.of(network("bert"), tokenizer("bert"), 16)) == (parts, 0)


def test_what_is_longer_than_the_longest_text_is_counted() -> None:
    texts = Texts("texts", [("w1 w2", "w1 w2 w3"), ("w1", "w2 w3 w4 w5"), ("w1", "w2")])

    def reader(name: str, kind: str, length: int) -> Reader:
        return Reader.of(network(name, kind), tokenizer(name), length)

    # [CLS], [SEP] and one more [SEP] of a pair that is one input.
    alone, both = "BertModel", "BertForSequenceClassification"
    for kind, length, longer in ((alone, 6, 0), (alone, 5, 1), (alone, 4, 2), (both, 8, 0), (both, 7, 2)):
        assert reader("bert", kind, length).cut_off(texts) == longer
    assert reader("gpt2", "GPT2LMHeadModel", 2).cut_off(texts) == 0
    pairs = Texts("pairs", texts.segments, translated=True)
    own = tokenizer("t5")
    most = max(len(own(text)["input_ids"]) for text in texts.lines)
    assert [reader("t5", "T5ForConditionalGeneration", most - less).cut_off(pairs) for less in (0, 1)] == [0, 1]
    told = "1 of the 3 texts that judge have more than 5 tokens (--length): what is beyond is not read."
    assert cut_off(texts, reader("bert", "BertModel", 5)) == [told]
    assert cut_off(texts, reader("bert", "BertModel", 6)) == cut_off(None, reader("bert", "BertModel", 5)) == []


def test_of_a_classifier_a_pair_is_one_text() -> None:
    reader = Reader.of(network("bert", "BertForSequenceClassification"), tokenizer("bert"), 16)
    learnt = Texts("nli.tsv", [("a", "b"), ("a", "c"), ("c", "a")])
    judged = Texts("judged.tsv", [("a", "c"), ("d", "b")], [0, 1])
    assert apart({"training": learnt, "judging": judged}, reader) == (
        {"training": learnt.at([0, 2]), "judging": judged}, 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "purposes", "limit", "sizes"),
    [
        (3000, ("calibration", "training", "judging"), 1000, {"judging": 600, "calibration": 600, "training": 1800}),
        (90_000, ("calibration", "training", "judging"), 99, {"judging": 2000, "calibration": 99, "training": 87_901}),
        (3000, ("calibration", "judging"), 128, {"judging": 2000, "calibration": 128}),
        (500, ("calibration", "judging"), 1000, {"judging": 250, "calibration": 250}),
        (1500, ("calibration", "judging"), 1000, {"judging": 750, "calibration": 750}),
        (500, ("training", "judging"), 1000, {"judging": 100, "training": 400}),
        (5000, ("judging",), 1000, {"judging": 2000}),
        (5000, ("training",), 1000, {"training": 5000}),
    ],
)  # fmt: skip
def test_what_nothing_is_learned_from_judges(
    count: int, purposes: tuple[str, ...], limit: int, sizes: dict[str, int]
) -> None:
    """A search of a file with pairs of its own had 299 to tell recipes apart by, of 3,000."""
    parts = parts_of(range(count), purposes, 0, limit)
    assert {name: len(part) for name, part in parts.items()} == sizes
    assert len({x for part in parts.values() for x in part}) == sum(sizes.values())


def test_a_recipe_without_a_teacher_needs_no_place_for_what_it_gives() -> None:
    job = Job(texts=Path("t"), teacher_cache=Path("c"))
    assert fitted(job, [Int8()]).teacher_cache is None
    assert fitted(job, [Heal()]).teacher_cache == Path("c")
    check_parts([Int8()], fitted(Job(texts=Path("t"), evaluate=Path("p")), [Int8()]))


def test_what_is_unfinished_is_of_the_very_files(tmp_path: Path) -> None:
    def folder() -> Path:
        return Unfinished.of(tmp_path / "out", [], files_of("MODEL", Job(texts=tmp_path / "texts"))).folder

    assert files_of("MODEL", Job(texts=Path("hf://datasets/nyu-mll/glue:sst2"))) == []
    file = tmp_path / "texts" / "deep" / "a.txt"
    file.parent.mkdir(parents=True)
    file.write_text("one\n")
    before = folder()
    assert folder() == before
    file.write_text("two two\n")
    assert folder() != before


def test_of_a_large_file_that_calibrates_no_more_is_held_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_read_texts, "ENOUGH", 20_000)
    for name in ("some", "other"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{row:04} " + "x" * 995 + "\n" for row in range(500)))
    reader: Any = SimpleNamespace(kind="text", classes={}, check=lambda _: None)
    job = Job(calibrate=tmp_path / "some.txt", evaluate=tmp_path / "other.txt", limit=24)
    parts = read_parts([Int8()], job, reader)
    assert {name: (part.name, len(part)) for name, part in parts.items()} == {
        "calibration": ("some.txt (24 of 500 texts)", 24),
        "judging": ("other.txt", 500),
    }
