"""Models that tag words, as of named entities: what teaches them, and by what they are judged."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import refused, run
from models import sentences, tokenizer
from zoo import network

import greenformers
from greenformers.changes import Heal, LowRank
from greenformers.compress.answers import Words
from greenformers.compress.quality import judge
from greenformers.data import _read_texts
from greenformers.data._read_texts import read_texts
from greenformers.data._reader import Reader
from greenformers.data._text_files import Stream
from greenformers.data._texts import Texts
from greenformers.export import deploy
from greenformers.measure.entities import entity_scores
from greenformers.measure.record import read

TAGS = ["B-LOC", "O", "I-LOC", "B-PER", "I-PER"]
"""In an order of the model's own."""


def tagger(tags: list[str] = TAGS, cls: str = "BertForTokenClassification") -> Any:
    torch.manual_seed(0)
    model: Any = network(
        "bert", cls, num_labels=len(tags), id2label=dict(enumerate(tags)),
        label2id={name: number for number, name in enumerate(tags)},
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    return model.eval()


@torch.no_grad()
def told(model: Any, line: str) -> list[str]:
    """The tags that a model gives the words of a sentence, each of which is one token."""
    ids = tokenizer("bert")(line, return_tensors="pt")
    return [model.config.id2label[tag] for tag in model(**ids).logits[0, 1:-1].argmax(-1).tolist()]


def conll(path: Path, rows: list[list[str]], lines: list[str]) -> Path:
    """A file of sentences, in the four columns of CoNLL 2003."""
    sentences_ = [
        "\n".join(f"{word} NN B-NP {tag}" for word, tag in zip(line.split(), tags, strict=True))
        for line, tags in zip(lines, rows, strict=True)
    ]
    path.write_text("-DOCSTART- -X- -X- O\n\n" + "\n\n".join(sentences_) + "\n")
    return path


def some(lines: list[str]) -> list[list[str]]:
    draw = random.Random(1)
    return [draw.choices(TAGS, k=len(line.split())) for line in lines]


def test_entities_are_judged_as_the_model_tags_words(tmp_path: Path) -> None:
    model, lines = tagger(), sentences(30)
    right = some(lines)
    reader = Reader.of(model, tokenizer("bert"), 40)
    texts, _ = read_texts(conll(tmp_path / "a.conll", right, lines), classes=reader.classes)
    assert (texts.lines, texts.label_kind) == (lines, "tags")
    scores = judge({"own": model, "same": model}, texts, reader)
    assert scores["own"]["f1"][0] == pytest.approx(entity_scores([told(model, line) for line in lines], right)["f1"])
    assert scores["same"]["f1"][1] == [0, 0]
    # Words that are cut off are in no entity.
    short = Reader.of(model, tokenizer("bert"), 5)
    cut = [[*told(model, " ".join(line.split()[:3])), *["O"] * len(line.split()[3:])] for line in lines]
    assert judge({"own": model}, texts, short)["own"]["f1"][0] == pytest.approx(entity_scores(cut, right)["f1"])
    with torch.no_grad():
        model.classifier.bias.fill_(float("nan"))
    assert judge({"own": model}, texts, reader)["own"]["f1"][0] == 0


def test_tags_of_other_kinds_are_judged_word_by_word() -> None:
    model, lines = tagger(["NOUN", "VERB", "X"]), sentences(20)
    right = [[len(word) % 3 for word in line.split()] for line in lines]
    score = judge(
        {"own": model},
        Texts("pos", [(line,) for line in lines], right, label_kind="tags"),
        Reader.of(model, tokenizer("bert"), 40),
    )
    same = [
        name == model.config.id2label[tag]
        for line, tags in zip(lines, right, strict=True) for name, tag in zip(told(model, line), tags, strict=True)
    ]  # fmt: skip
    assert score["own"]["accuracy"][0] == pytest.approx(100 * np.mean(same))


def test_marks_of_last_and_single_words_count_as_entities() -> None:
    classes = ["O", "B-x", "I-x", "E-x", "S-x"]
    words = Words.of([["S-x", "B-x", "I-x", "E-x"]], [["S-x", "B-x", "E-x", "O"]], classes)
    assert (words.metric, words.counts.tolist()) == ("f1", [[1, 2, 2]])


def test_tags_by_name_by_number_and_by_a_source_with_names_of_its_own(tmp_path: Path) -> None:
    classes = {name: number for number, name in enumerate(TAGS)}
    for column, tags in (("ner_tags", ["O", "B-PER"]), ("tags", [1, 3]), ("labels", ["O", 3])):
        (tmp_path / "a.jsonl").write_text(json.dumps({"tokens": ["a", "b"], column: tags}) + "\n")
        texts, _ = read_texts(tmp_path / "a.jsonl", classes=classes)
        assert (texts.segments, texts.labels) == ([("a b",)], [[1, 3]])
        assert read_texts(tmp_path / "a.jsonl", labelled=False)[0].labels is None
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")
    own = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    features = datasets.Features(
        tokens=datasets.List(datasets.Value("string")), ner_tags=datasets.List(datasets.ClassLabel(names=own))
    )
    dataset = datasets.Dataset.from_dict({"tokens": [["a", "b"]] * 9, "ner_tags": [[0, 1]] * 9}, features=features)
    stream = Stream("hub train", dataset.to_iterable_dataset(), 100)
    assert stream.names == {"ner_tags": own}
    texts = _read_texts._read("hub", [stream], _read_texts.Bounds(100), True, classes)
    assert texts.labels == [[TAGS.index("O"), TAGS.index("B-PER")]] * 9


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"tokens": ["a", "b"], "tags": [0]}', "the tags must be a list, a tag for each of the tokens"),
        ('{"tokens": "a b", "tags": [0, 0]}', "the tokens must be a list of strings"),
        ('{"tokens": ["a b"], "tags": [0]}', "the tokens must be words: one is empty, or has a space"),
        ('{"tokens": ["a"], "tags": ["secret"]}', "the label must be one of O, or a whole number from 0 on"),
    ],
)
def test_damaged_rows_of_words(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "a.jsonl").write_text(content + "\n")
    with pytest.raises(ValueError, match=said) as caught:
        read_texts(tmp_path / "a.jsonl", classes={"O": 0})
    assert "secret" not in str(caught.value)
    (tmp_path / "a.conll").write_bytes("one\tO\r\n\xa0\tO\r\n\r\n-DOCSTART- -X- O\r\n\r\ntwo NN O\n".encode())
    texts, _ = read_texts(tmp_path / "a.conll", classes={"O": 0})
    assert (texts.lines, texts.labels) == (["one \xa0", "two"], [[0, 0], [0]])
    (tmp_path / "a.conll").write_text("two words\tO\n")
    with pytest.raises(ValueError, match=r"a.conll, line 1: the tokens must be words: one is empty, or has a space"):
        read_texts(tmp_path / "a.conll", classes={"O": 0})
    (tmp_path / "a.conll").write_text("word\n\n")
    with pytest.raises(ValueError, match=r"a.conll, line 1: expected a word and its tag in each line of the sentence"):
        read_texts(tmp_path / "a.conll")


def test_a_tagger_from_a_file_to_smaller_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, lines = tagger(), sentences(60)
    for saved in (model, tokenizer("bert")):
        saved.save_pretrained(tmp_path / "model")
    texts = conll(tmp_path / "ner.conll", [told(model, line) for line in lines], lines)
    results, small = tmp_path / "results.jsonl", tmp_path / "small"
    line = ["compress", str(tmp_path / "model"), "--texts", str(texts), "--length", "20", "--lengths", ""]
    line += ["--keep", "0.5", "--solver", "loss", "--heal", "5", "--heal-batch", "8", "--int8"]
    assert run(monkeypatch, *line, "--out", str(small), "--results", str(results)) == 0
    scores = [record.value for record in read(results) if record.metric == "f1"]
    assert scores[0] == 100
    assert len(scores) == 4
    assert all(0 <= score < 100 for score in scores[1:])
    assert "F1" in capsys.readouterr().out
    exported = ["export", str(small), "--texts", str(texts), "--length", "20", "--lengths", "", "--formats", "openvino"]
    assert run(monkeypatch, *exported, "--out", str(tmp_path / "files")) == 0
    assert "F1" in capsys.readouterr().out
    (tmp_path / "plain.txt").write_text("\n".join(lines))
    int8: Any = greenformers.load(small)
    rows = Reader.of(int8, tokenizer("bert"), 20)
    parts = deploy._parts(int8, read_texts(tmp_path / "plain.txt")[0], rows, ["onnx"], None, 10)
    assert parts.keys() == {"calibration"}  # nothing can be judged
    plain = [*line[:2], "--evaluate", str(tmp_path / "plain.txt"), "--out", str(tmp_path / "o"), "--keep", "0.5"]
    assert "is judged by words and their tags, a file .conll or the columns" in refused(monkeypatch, capsys, *plain)
    reader = Reader.of(network("bert", "BertModel"), tokenizer("bert"), 20)
    tagged, _ = read_texts(texts, labelled=False)
    assert len(reader.rows(tagged)) == 60
    with pytest.raises(ValueError, match="tags of words are for token classification, not for this model"):
        reader.check(replace(tagged, labels=[], label_kind="tags"))


def test_in_python_a_tagger_learns_from_plain_texts() -> None:
    model = tagger()
    before = [told(model, line) for line in sentences(20)]
    changes = [LowRank(keep=0.5, solver="loss"), Heal(4, batch_size=8)]
    greenformers.compress(model, changes, texts=sentences(60), tokenizer=tokenizer("bert"), length=20)
    assert [told(model, line) for line in sentences(20)] != before
