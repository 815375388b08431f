"""Classifiers and rerankers of pairs of texts: both texts are one input, when they calibrate, teach and judge."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import refused, run
from models import sentences
from models import tokenizer as tokenizer_of
from scipy.stats import spearmanr
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from zoo import network

import greenformers
from greenformers.changes import Heal, Int8, LowRank
from greenformers.compress.quality import judge
from greenformers.data._read_texts import read_texts
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.measure.record import read
from greenformers.search.advice import usual

COUNT = 48


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that tells the two texts of a pair apart, as BERT's does."""
    given = tokenizer_of("bert")
    return PreTrainedTokenizerFast(
        tokenizer_object=given.backend_tokenizer, **given.special_tokens_map,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def classifier(outputs: int = 2, name: str = "bert", cls: str = "BertForSequenceClassification") -> Any:
    """A classifier whose logits tell pairs apart."""
    torch.manual_seed(0)
    model: Any = network(name, cls, num_labels=outputs, **({"type_vocab_size": 2} if name == "bert" else {}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    if name == "bert":  # so that there are several classes
        with torch.no_grad():
            model.eval().classifier.bias.sub_(logits(model, segments()).mean(0))
    return model.eval()


def segments(count: int = COUNT) -> list[tuple[str, str]]:
    return list(zip(sentences(count), sentences(count, 1), strict=True))


@torch.no_grad()
def logits(model: Any, pairs: list[tuple[str, str]]) -> Tensor:
    """The logits of each pair by itself, as a user of transformers computes them."""
    return torch.cat([model(**tokenizer()(*pair, return_tensors="pt")).logits for pair in pairs])


def table(path: Path, labels: list[Any], columns: str = "premise\thypothesis\tlabel") -> Path:
    rows = [f"{a}\t{b}\t{label}" for (a, b), label in zip(segments(len(labels)), labels, strict=True)]
    path.write_text("\n".join([columns, *rows]) + "\n")
    return path


def test_classes_of_pairs_are_judged_as_the_model_reads_pairs() -> None:
    model, labels = classifier(), [float(number % 2) for number in range(COUNT)]
    own = logits(model, segments())
    assert not torch.allclose(own, logits(model, [(b, a) for a, b in segments()]), atol=1e-3)
    reader = Reader.of(model, tokenizer(), 40)
    assert reader.typed
    scores = judge({"own": model}, Texts("nli", segments(), labels), reader)["own"]
    assert scores["accuracy"][0] == pytest.approx(100 * (own.argmax(1) == torch.tensor(labels)).double().mean().item())
    inputs = [tokenizer()(*pair, return_tensors="pt") for pair in segments()]
    untyped = torch.cat([model(**{**each, "token_type_ids": None}).logits for each in inputs])
    assert not torch.allclose(own, untyped, atol=1e-3)


def test_scores_of_pairs_are_judged_by_their_order() -> None:
    model, labels = classifier(1), [float(len(set(a.split()) & set(b.split()))) for a, b in segments()]
    reader = Reader.of(model, tokenizer(), 40)
    other = classifier(1)
    with torch.no_grad():
        other.classifier.weight.add_(0.1 * torch.randn_like(other.classifier.weight))
    scores = judge({"own": model, "other": other}, Texts("pairs", segments(), labels, label_kind="score"), reader)
    for name, network_ in (("own", model), ("other", other)):
        expected = spearmanr(logits(network_, segments()).flatten(), labels)[0]
        assert scores[name]["spearman"][0] == pytest.approx(100 * expected, abs=1e-6)
    interval = scores["other"]["spearman"][1]
    assert interval is not None
    assert interval[0] <= scores["other"]["spearman"][0] - scores["own"]["spearman"][0] <= interval[1]
    # Classes that are numbers are scores too, as of passages that answer a question or do not.
    assert judge({"own": model}, Texts("pairs", segments(), [float(x > 0) for x in labels]), reader)["own"]["spearman"]


def test_rows_and_batches_hold_both_texts() -> None:
    texts = Texts("nli", segments(), [0.0] * COUNT)
    reader = Reader.of(classifier(), tokenizer(), 40)
    for row, pair in zip(reader.rows(texts), segments(), strict=True):
        expected = tokenizer()(*pair, return_tensors="pt")
        assert row.keys() == expected.keys()
        assert all(torch.equal(row[name], expected[name][0]) for name in row)
        assert row["token_type_ids"].sum() == len(pair[1].split()) + 1
    batches = reader.batches(texts)
    assert sum(len(batch["input_ids"]) for batch in batches) == COUNT
    assert all(batch["attention_mask"].all() for batch in batches)
    assert all("labels" not in batch and batch["token_type_ids"].any() for batch in batches)
    # A model that does not tell the two apart gets none, and an encoder reads each text by itself.
    plain = Reader.of(classifier(name="distilbert", cls="DistilBertForSequenceClassification"), tokenizer(), 40)
    assert plain.rows(texts)[0].keys() == {"input_ids", "attention_mask"}
    assert len(Reader.of(network("bert", "BertModel"), tokenizer(), 40).rows(texts)) == 2 * COUNT
    assert usual(texts, tokenizer(), classifier()) > usual(texts, tokenizer(), network("bert", "BertModel"))


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_classifier_of_pairs_from_a_table_to_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outputs: int
) -> None:
    model = classifier(outputs)
    for saved in (model, tokenizer()):
        saved.save_pretrained(tmp_path / "model")
    own = logits(model, segments())
    said = own.argmax(1).tolist() if outputs > 1 else [f"{score:.4f}" for score in own.flatten().tolist()]
    texts = table(tmp_path / "pairs.tsv", said, f"question\tsentence\t{'label' if outputs > 1 else 'score'}")
    words = ["--texts", str(texts), "--length", "40", "--lengths", ""]
    recipe = ["--keep", "0.5", "--solver", "activation", "--heal", "4", "--heal-batch", "8"]
    small, results = tmp_path / "small", tmp_path / "results.jsonl"
    line = ["compress", str(tmp_path / "model"), "--out", str(small), *words, *recipe, "--results", str(results)]
    assert run(monkeypatch, *line) == 0
    metric = "accuracy" if outputs > 1 else "spearman"
    scores = {record.variant: record.value for record in read(results) if record.metric == metric}
    assert scores.pop("original") == pytest.approx(100)
    assert all(-100 <= score < 100 for score in scores.values())
    assert metric.capitalize() in capsys.readouterr().out
    if outputs > 1:
        files = tmp_path / "files"
        int8 = greenformers.load(small)
        greenformers.compress(int8, [Int8()])
        greenformers.save(int8, tmp_path / "int8")
        tokenizer().save_pretrained(tmp_path / "int8")
        assert run(monkeypatch, "export", str(tmp_path / "int8"), "--out", str(files), "--formats", "onnx", *words) == 0
        assert "ranges of pairs of texts" in (files / "README.md").read_text()


def test_in_python_pairs_calibrate_and_teach() -> None:
    model = classifier()
    before = logits(model, segments())
    changes = [LowRank(keep=0.5, solver="loss"), Heal(4, batch_size=8)]
    report = greenformers.compress(model, changes, texts=segments(), tokenizer=tokenizer(), length=40)
    assert [step.report.change["name"] for step in report.steps] == ["low_rank", "heal"]
    assert logits(model, segments()).shape == before.shape
    assert not torch.equal(logits(model, segments()), before)


def test_labels_that_judge_no_such_model(tmp_path: Path) -> None:
    encoder, classes = network("bert", "BertModel"), Texts("nli", segments(), [0.0, 1.0] * 24)
    with pytest.raises(ValueError, match="an encoder is judged by plain text or by pairs with scores, not by classes"):
        judge({"own": encoder}, classes, Reader.of(encoder, tokenizer(), 40))
    model = classifier()
    reader = Reader.of(model, tokenizer(), 40)
    with pytest.raises(ValueError, match=r"sts: a BertForSequenceClassification is judged by a table with the columns"):
        judge({"own": model}, Texts("sts", segments(), [0.5, 1.0] * 24, label_kind="score"), reader)
    with pytest.raises(ValueError, match=r"nli: labels must be in 0..1, the classes of the model; got 2"):
        judge({"own": model}, Texts("nli", segments(), [0.0, 2.0] * 24), reader)
    scorer = classifier(1)
    with pytest.raises(ValueError, match="texts judge a BertForSequenceClassification where their scores differ"):
        judge({"own": scorer}, Texts("one", segments(), [1.0] * COUNT), Reader.of(scorer, tokenizer(), 40))
    (tmp_path / "a.tsv").write_text("text\ttext_pair\tlabel\na\tb\t1\n")
    with pytest.raises(ValueError, match="has texts in text_pair beside text: classes of pairs stand beside sentence1"):
        read_texts(tmp_path / "a.tsv")


def test_columns_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    for columns, labels, kind in [
        ("premise\thypothesis\tlabel", [1], "class"), ("question\tsentence\tlabel", [1], "class"),
        ("query\tpassage\tscore", [1.0], "score"), ("question1\tquestion2\tid", None, "class"),
    ]:  # fmt: skip
        path.write_text(f"{columns}\none\ttwo\t1\n")
        texts, _ = read_texts(path)
        assert (texts.segments, texts.labels, texts.label_kind) == ([("one", "two")], labels, kind)
        assert read_texts(path, labelled=False)[0].labels is None
    path.write_text("premise\thypothesis\tlabels\none\ttwo\t1\n")
    with pytest.raises(ValueError, match=r"a\.tsv has a column labels: classes must be in a column label, or in none"):
        read_texts(path)


def test_a_command_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for saved in (classifier(), tokenizer()):
        saved.save_pretrained(tmp_path / "model")
    texts = table(tmp_path / "pairs.tsv", [5] * 12)
    line = ["compress", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--evaluate", str(texts)]
    assert "labels must be in 0..1, the classes of the model; got 5" in refused(
        monkeypatch, capsys, *line, "--keep", "0.5", "--length", "40"
    )
