"""Models of question answering: what teaches them, and by what they are judged."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_line import refused, run
from models import sentences, tokenizer
from zoo import network

import greenformers
from greenformers.changes import Heal, LowRank
from greenformers.changes._student import Student
from greenformers.compress.quality import judge
from greenformers.data._read_texts import read_texts
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.data._windows import windows
from greenformers.measure.answer_spans import LONGEST, answer_f1, answer_span
from greenformers.measure.record import read


def answerer(noise: float = 0.0) -> Any:
    torch.manual_seed(0)
    model: Any = network("bert", "BertForQuestionAnswering")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1).add_(noise * torch.randn_like(parameter))
    return model.eval()


def asked(count: int = 24) -> list[tuple[str, str]]:
    return list(zip(sentences(count), sentences(count, 1), strict=True))


@torch.no_grad()
def best_answer(model: Any, question: str, context: str) -> str:
    """The likeliest part of a text, of all parts one after the other; each word is a token."""
    out = model(**tokenizer("bert")(question, context, return_tensors="pt"))
    first = 2 + len(question.split())  # behind [CLS], the question and [SEP]
    words = context.split()
    spans = [(i, j) for i in range(len(words)) for j in range(i, min(len(words), i + LONGEST))]
    start, end = (x[0, first:].tolist() for x in (out.start_logits, out.end_logits))
    i, j = max(spans, key=lambda span: start[span[0]] + end[span[1]])
    return " ".join(words[i : j + 1])


def test_answers_are_judged_as_the_model_finds_them() -> None:
    model, other = answerer(), answerer(0.1)
    right = [[best_answer(model, *pair)] for pair in asked()]
    texts = Texts("squad", asked(), right, label_kind="answers")
    reader = Reader.of(model, tokenizer("bert"), 40)
    scores = judge({"own": model, "other": other}, texts, reader)
    assert scores["own"]["f1"][0] == 100
    expected = [answer_f1(best_answer(other, *pair), answer) for pair, answer in zip(asked(), right, strict=True)]
    assert scores["other"]["f1"][0] == pytest.approx(sum(expected) / len(expected))
    interval = scores["other"]["f1"][1]
    assert interval is not None
    assert interval[0] < interval[1] < 0
    # Where the question leaves no room the text is cut; and where none is right, none may be told.
    assert judge({"own": model}, texts, Reader.of(model, tokenizer("bert"), 6))["own"]["f1"][0] < 100
    with torch.no_grad():
        model.qa_outputs.weight.zero_()
        model.qa_outputs.bias.zero_()
    none = Texts("squad", asked(), [[] for _ in asked()], label_kind="answers")
    assert judge({"own": model}, none, reader)["own"]["f1"][0] == 0  # as likely as others is not likelier


def test_windows_hold_every_token_and_those_of_a_third_twice() -> None:
    own = tokenizer("bert")
    words = [word for word in own.get_vocab() if word.isalpha()]
    question, text = " ".join(words[:2]), " ".join(words[2:23])
    expected = own(question, text)["input_ids"]
    # 5 of the question and special ones, 9 of the text, of which 3 are in the next window too.
    read = list(windows(own, [(words[0], words[1]), (question, text)], 14, typed=True))
    assert [window.place for window in read] == [0, 1, 1, 1]
    assert all(window.whole for window in read)
    parts = [window.row["input_ids"].tolist() for window in read[1:]]
    assert parts == [expected[:4] + expected[4 + at : 13 + at] + expected[-1:] for at in (0, 6, 12)]
    assert [window.row["token_type_ids"].tolist() for window in read[1:]] == [[0] * 4 + [1] * 10] * 3
    held = [[text[slice(*span)] for span in window.spans if span is not None] for window in read[1:]]
    assert held == [text.split()[at : at + 9] for at in (0, 6, 12)]
    short = list(windows(own, [(" ".join(words[:4]), " ".join(words[4:7]))], 6, typed=False))
    assert [(len(window.row["input_ids"]), window.whole) for window in short] == [(6, False)]


def test_an_answer_is_the_likeliest_of_all_windows() -> None:
    """A model without positions: it gives a token the same logits wherever it stands."""

    def logits(ids: torch.Tensor) -> torch.Tensor:
        return (7 * ids).remainder(53).float()

    model: Any = answerer()
    model.forward = lambda input_ids, **_: SimpleNamespace(start_logits=logits(input_ids), end_logits=logits(input_ids))
    words = [word for word in tokenizer("bert").get_vocab() if word.isalpha()]
    draw = random.Random(0)
    pairs = [(words[0], " ".join(draw.sample(words[1:], 30))) for _ in range(6)]
    right = [[text.split()[int(logits(ids).argmax())]] for _, text in pairs
             for ids in [torch.tensor(tokenizer("bert")(text, add_special_tokens=False)["input_ids"])]]  # fmt: skip
    texts = Texts("squad", pairs, right, label_kind="answers")
    reader = Reader.of(model, tokenizer("bert"), 12)
    assert judge({"own": model}, texts, reader)["own"]["f1"][0] == 100
    assert reader.cut_off(texts) == 0
    lacking = Texts("squad", [*pairs, (words[0], "")], [*right, []], label_kind="answers")
    assert judge({"own": model}, lacking, reader)["own"]["f1"][0] == 100


def test_spans_and_words_by_hand() -> None:
    start, end = torch.zeros(40), torch.zeros(40)
    start[3], end[2], end[5], end[36] = 1.0, 3.0, 1.0, 2.5
    inside = [False, False, *([True] * 35)]  # the last three are padding
    assert answer_span(start, end, inside) == (3.0, 2, 2)
    end[2] = 0.0
    assert answer_span(start, end, inside) == (2.5, 7, 36)  # from 3 it would be longer than `LONGEST`
    assert answer_span(start, end, [False] * 37) is None
    start[:] = math.nan
    assert answer_span(start, end, inside) is None
    assert answer_f1("The Second Republic!", ["second republic", "it"]) == 100
    assert answer_f1("the second", ["second republic"]) == pytest.approx(200 / 3)
    assert (answer_f1("", []), answer_f1("word", []), answer_f1("", ["word"]), answer_f1("the", ["a"])) == (
        100,
        0,
        0,
        100,
    )


def test_padding_teaches_nothing() -> None:
    teacher, model = answerer(), answerer(0.1)
    reader = Reader.of(teacher, tokenizer("bert"), 40)
    rows = reader.rows(Texts("squad", [("bar", "dos kit"), *asked(3)]))
    student = Student(model, teacher, {"logits": 1.0}, 2.0)
    alone = [student(**{name: x[None] for name, x in row.items()})["loss"] for row in rows]
    torch.testing.assert_close(student(**rows.collate(list(rows)))["loss"], torch.stack(alone).mean())


def test_columns_of_questions(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for column, value, answers in [
        ("answers", {"text": ["x", "y"], "answer_start": [0, 2]}, ["x", "y"]), ("answers", {"text": []}, []),
        ("answers", ["x"], ["x"]), ("answer", "x", ["x"]), ("answer", " ", []),
    ]:  # fmt: skip
        path.write_text(json.dumps({"id": 1, "context": "x y", "question": "who?", column: value}) + "\n")
        texts, _ = read_texts(path)
        assert (texts.segments, texts.labels, texts.label_kind) == ([("who?", "x y")], [answers], "answers")
        assert read_texts(path, labelled=False)[0].labels is None
    path.write_text(json.dumps({"context": "x y", "question": "who?", "answers": 5}) + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1: the answers must be a list of strings, or {"):
        read_texts(path)


def test_a_model_of_answers_from_a_file_to_a_smaller_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = answerer()
    for saved in (model, tokenizer("bert")):
        saved.save_pretrained(tmp_path / "model")
    rows = [{"question": a, "context": b, "answers": {"text": [best_answer(model, a, b)]}} for a, b in asked(48)]
    (tmp_path / "squad.jsonl").write_text("\n".join(map(json.dumps, rows)))
    results = tmp_path / "results.jsonl"
    line = ["compress", str(tmp_path / "model"), "--length", "40", "--lengths", "", "--keep", "0.5", "--solver", "loss"]
    learnt = ["--texts", str(tmp_path / "squad.jsonl"), "--heal", "4", "--heal-batch", "8", "--results", str(results)]
    assert run(monkeypatch, *line, *learnt, "--out", str(tmp_path / "small")) == 0
    scores = [record.value for record in read(results) if record.metric == "f1"]
    assert scores[0] == 100
    assert all(score < 100 for score in scores[1:])
    assert "F1" in capsys.readouterr().out
    (tmp_path / "pairs.tsv").write_text("question\tcontext\n" + "".join(f"{a}\t{b}\n" for a, b in asked()))
    (tmp_path / "plain.txt").write_text("\n".join(sentences(20)))
    for name, said in (
        ("pairs.tsv", "is judged by the columns question, context and answers"),
        ("plain.txt", "question answering needs the columns question and context"),
    ):
        words = [*line, "--evaluate", str(tmp_path / name), "--out", str(tmp_path / "out"), "--solver", "svd"]
        assert said in refused(monkeypatch, capsys, *words)
    encoder = Reader.of(network("bert", "BertModel"), tokenizer("bert"), 20)
    with pytest.raises(ValueError, match="answers are for models of question answering, this one is none"):
        encoder.check(read_texts(tmp_path / "squad.jsonl")[0])


def test_in_python_a_model_of_answers_learns_from_pairs() -> None:
    model = answerer()
    before = [best_answer(model, *pair) for pair in asked()]
    changes = [LowRank(keep=0.5, solver="loss"), Heal(4, batch_size=8)]
    greenformers.compress(model, changes, texts=asked(60), tokenizer=tokenizer("bert"), length=40)
    assert [best_answer(model, *pair) for pair in asked()] != before
