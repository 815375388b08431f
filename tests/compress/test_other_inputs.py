"""Models of images, of recordings, and encoder-decoders: calibrated, healed, judged and saved with their own inputs."""

import copy
import importlib
import shutil
from pathlib import Path

import pytest
import torch
from command_line import refused_unchanged, run
from other_inputs import examples, models, tone
from transformers import AutoImageProcessor, AutoTokenizer, ViTForImageClassification, WhisperFeatureExtractor
from zoo import network

import greenformers
from greenformers.changes import Heal, LowRank
from greenformers.changes._units import ranks_of
from greenformers.checkpoint.pretrained import features_of, pretrained
from greenformers.compress import run as running
from greenformers.compress import side_by_side
from greenformers.compress.quality import judge
from greenformers.compress.writing import texts_of
from greenformers.data._examples import read_examples
from greenformers.data._reader import Reader
from greenformers.data._rows import Rows

pytest.importorskip("soundfile", reason="the speech extra is not installed")
pytest.importorskip("jiwer", reason="the speech extra is not installed")

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("place")
    models(root)
    examples(root)
    return root


def reader_of(folder: Path, length: int = 16) -> tuple[torch.nn.Module, Reader]:
    model, words = pretrained(str(folder))
    return model, Reader.of(model, words, length, features=features_of(str(folder), model))


@pytest.mark.parametrize(
    ("model", "texts", "shown"),
    [
        ("t5", "--texts pairs.tsv", ("BLEU", "Perplexity")),
        ("vit", "--texts images", ("Accuracy (%)",)),
        ("ViTModel", "--texts plain", ("Cosine",)),
        ("whisper", "--texts said", ("Word error rate", "Perplexity")),
        ("wav2vec2", "--texts said", ("Word error rate",)),
        ("heard", "--texts tones --solver loss", ("Accuracy (%)",)),
    ],
)
def test_the_command(
    place: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured, model: str, texts: str, shown: tuple[str, ...]
) -> None:
    monkeypatch.chdir(place)
    out = tmp_path / "small"
    words = f"compress {model} {texts} --length 16 --keep 0.6 --heal 2 --heal-batch 3 --out {out}"
    words += "" if "solver" in texts else " --solver activation"
    assert run(monkeypatch, *words.split(), "--lengths", "") == 0
    text = capsys.readouterr().out
    for expected in (*shown, "heal: 2 steps of 3 examples"):
        assert expected in text, text
    assert ranks_of(greenformers.load(out))
    assert "to learn from" in (out / "README.md").read_text()
    if model.startswith("vit"):
        assert AutoImageProcessor.from_pretrained(out).size["height"] == 20
    if model == "whisper":
        assert WhisperFeatureExtractor.from_pretrained(out).feature_size == 16
        assert AutoTokenizer.from_pretrained(out)("two")["input_ids"] == [5]


def test_the_accuracy_of_images_is_that_by_hand(place: Path) -> None:
    model, reader = reader_of(place / "vit")
    learnt, judged = read_examples(place / "images", "image")
    assert judged is not None
    assert (len(learnt), len(judged)) == (15, 12)
    rows = reader.rows(judged, classes=True)
    right = [int(model(row["pixel_values"][None]).logits.argmax()) == int(row["labels"]) for row in rows]
    scores = judge({"dense": model, "again": model}, judged, reader)
    assert scores["dense"]["accuracy"][0] == pytest.approx(100 * sum(right) / 12)
    low, high = scores["again"]["accuracy"][1]
    assert low < 0 < high


def test_the_perplexity_of_targets_is_that_of_the_model_itself(place: Path) -> None:
    """One by one: what pads a batch says nothing."""
    model, reader = reader_of(place / "t5")
    pairs, _ = read_examples(place / "pairs.tsv", "text")
    total = count = 0.0
    for row in reader.rows(pairs):
        loss = model(**{name: x[None] for name, x in row.items()}).loss.detach()
        total, count = total + float(loss) * len(row["labels"]), count + len(row["labels"])
    scores = judge({"dense": model}, pairs, reader)["dense"]
    assert scores["perplexity"][0] == pytest.approx(float(torch.tensor(total / count).exp()), rel=1e-4)


def test_transcripts_are_the_words_that_were_said(place: Path) -> None:
    model, reader = reader_of(place / "wav2vec2")
    said, heard = read_examples(place / "said", "sound")
    assert heard is not None
    assert heard.said[1] == "two three"
    assert (len(said), len(heard)) == (12, 6)
    alone = [texts_of(model, heard.at([number]), reader)[0] for number in range(6)]
    assert texts_of(model, heard, reader) == alone


def test_recordings_of_a_batch_are_cut_to_the_shortest(place: Path) -> None:
    _, reader = reader_of(place / "wav2vec2")
    said, _ = read_examples(place / "said", "sound")
    rows = reader.rows(said)
    batch = rows.collate([rows[0], rows[1]])
    assert batch["input_values"].shape == batch["attention_mask"].shape == (2, 1600)
    assert torch.equal(batch["input_values"][1], rows[1]["input_values"][:1600])
    shapes = [each["input_values"].shape for each in reader.batches(said)]
    assert sorted(shapes) == [(4, 1600), (4, 3200), (4, 4800)]


def test_in_python_examples_are_what_the_trainer_takes() -> None:
    model = network("vit")
    draw = torch.Generator().manual_seed(0)
    rows = [{"pixel_values": torch.randn(3, 20, 20, generator=draw)} for _ in range(20)]
    report = greenformers.compress(
        model, [LowRank(keep=0.6, solver="activation"), Heal(2, batch_size=4)], examples=rows
    )
    assert [step.report.change["name"] for step in report.steps] == ["low_rank", "heal"]
    t5 = network("t5")
    ids = [torch.randint(3, 53, (5 + n % 4,), generator=draw) for n in range(20)]
    greenformers.compress(
        t5, [LowRank(keep=0.6), Heal(2, batch_size=4)], examples=[{"input_ids": x, "labels": x} for x in ids]
    )
    assert ranks_of(model)
    assert ranks_of(t5)
    with pytest.raises(ValueError, match="give either texts or examples"):
        greenformers.compress(network("vit"), 0.6, examples=rows, texts=["one"], tokenizer=object())


def test_examples_without_a_mask_are_given_one() -> None:
    """What pads a text in a batch says nothing."""
    model = network("bart")
    draw = torch.Generator().manual_seed(0)
    ids = [[torch.randint(3, 53, (n,), generator=draw) for n in lengths] for lengths in [(5, 9), (9, 5)] * 10]
    rows = [{"input_ids": source, "labels": target} for source, target in ids]
    by_examples, by_batches = (copy.deepcopy(model) for _ in range(2))
    greenformers.compress(by_examples, LowRank(keep=0.6, solver="activation"), examples=rows)
    single = [{name: x[None] for name, x in row.items()} for row in rows]
    greenformers.compress(by_batches, LowRank(keep=0.6, solver="activation"), calibration=single)
    for x, y in zip(by_examples.parameters(), by_batches.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_rows_are_padded_by_what_each_argument_wants() -> None:
    rows = Rows(
        [{"input_ids": torch.arange(n), "labels": torch.arange(n)} for n in (2, 3)], filler={"input_ids": 7}
    )  # fmt: skip
    batch = rows.collate(list(rows))
    assert batch["input_ids"].tolist() == [[0, 1, 7], [0, 1, 2]]
    assert batch["labels"].tolist() == [[0, 1, -100], [0, 1, 2]]


def test_recommend_for_images(place: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["recommend", "--model", str(place / "vit"), "--texts", str(place / "images"), "--batch", "2"]
    monkeypatch.setattr("greenformers.search.lab.REPEATS", 2)
    monkeypatch.setattr("greenformers.search.lab.SECONDS", 0.0)
    monkeypatch.setattr("greenformers.search.lab.PAUSE", 0.0)
    monkeypatch.setattr("greenformers.search.advice.REPEATS", 3)
    monkeypatch.setattr(side_by_side, "METERED", ("latency",))
    monkeypatch.setattr("greenformers.search.search.CHANCE", 0)
    monkeypatch.setattr("greenformers.search.search.propose", lambda *_, **__: [])
    assert run(monkeypatch, *words) == 0
    text = capsys.readouterr().out
    assert "2 examples" in text
    assert "accuracy" in text.lower()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("vit --evaluate pairs.tsv", "pairs.tsv is a file: the model reads a folder of images"),
        ("vit --evaluate said", "said holds no image, nor folders of them"),
        ("vit --evaluate plain", "names no class, which would be none of the model's: dark, light, mixed"),
        ("vit --evaluate others", "has the class 'cats', which is none of the model's: dark, light, mixed, or 0..2"),
        ("vit --evaluate damaged", "is not an image that can be read"),
        ("vit --evaluate nowhere", "nowhere is not there"),
        ("bare --evaluate images", "a ViTForImageClassification needs an image processor"),
        ("t5 --evaluate images", "images is a folder without texts: no file in it is .txt, .tsv, .jsonl, .parquet"),
        ("t5 --evaluate plain.txt", "an encoder-decoder needs a table with the columns source and target"),
        ("whisper --evaluate long", "1 of 1 recordings are longer than the 1 s that the model hears, 0.wav among them"),
        ("whisper --evaluate tones/high", "what is said in the recordings is needed"),
        ("whisper --evaluate plain.txt", "plain.txt is a file: the model reads a folder of recordings, or a manifest"),
        ("vit --heal 6 --heal-batch 40 --heal-texts images", "batch must be at most 14, the training examples, got 40"),
    ],
)
def test_what_cannot_be_read_is_refused(
    place: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured, words: str, message: str
) -> None:
    if not (place / "bare").exists():
        ViTForImageClassification.from_pretrained(place / "vit").save_pretrained(place / "bare")
        (place / "others" / "cats").mkdir(parents=True)
        shutil.copy(place / "images" / "test" / "dark" / "0.png", place / "others" / "cats")
        (place / "damaged" / "dark").mkdir(parents=True)
        (place / "damaged" / "dark" / "0.png").write_bytes(b"no image")
        (place / "plain.txt").write_text("one\ntwo\n")
        (place / "long" / "one").mkdir(parents=True)
        tone(place / "long" / "one" / "0.wav", 300, 1.2)
    line = ["compress", *words.split(), "--out", str(tmp_path / "small"), "--lengths", ""]
    assert message in refused_unchanged(monkeypatch, capsys, place, tmp_path, *line)


def test_what_is_said_is_not_cut_by_the_length_of_texts(place: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(importlib.import_module("greenformers.compress.job"), "USUAL", 2)
    seen, check = list[int](), running.check_examples
    monkeypatch.setattr(running, "check_examples", lambda m, e, r: (seen.append(r.length), check(m, e, r))[1])
    words = ["compress", str(place / "whisper"), "--evaluate", str(place / "said"), "--lengths", "", "--int8"]
    assert run(monkeypatch, *words, "--out", str(tmp_path / "out")) == 0
    assert seen == [24]
