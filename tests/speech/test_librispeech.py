"""Real speech: an excerpt of LibriSpeech in its own layout, read as a corpus, and two utterances learnt by heart."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from speech.tones import QUIET

from greenformers.measure.recognition import scores as error_rates
from greenformers.speech.recognise import Recogniser
from greenformers.speech.recordings import recordings
from greenformers.speech.search import Search
from greenformers.speech.settings import SpeechSettings
from greenformers.train import run

pytest.importorskip("soundfile", reason="the speech extra is not installed")
pytest.importorskip("jiwer", reason="the speech extra is not installed")

EXCERPT = Path(__file__).parents[2].parent / "shared/data/librispeech_excerpt"
RATE, HOP, BINS = 16_000, 160, 161
SPLITS = {"train": "train-clean-100", "valid": "dev-other", "test": "test-other"}
# Two short ones, of two speakers, without a beginning in common.
PAIR = ("3005-163389-0007", "3331-159605-0004")
SMALL: dict[str, Any] = {
    "longest": 2.5, "channels": 4, "hidden": 48, "layers": 1, "decoder_layers": 1, "heads": 4, "feed_forward": 96,
    "residual": "pre", "dropout": 0.0, "batch": 2, "learning_rate": 5e-3,
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    not EXCERPT.is_dir(), reason="shared/data/librispeech_excerpt is not beside the repository on this machine"
)


def utterances() -> dict[str, dict[str, str]]:
    """The rows of the transcripts, by the name of the utterance."""
    head, *lines = (line.split("\t") for line in (EXCERPT / "transcripts.tsv").read_text().splitlines())
    return {line[0]: dict(zip(head, line, strict=True)) for line in lines}


def laid_out(folder: Path, parts: Mapping[str, Sequence[str]]) -> Path:
    """Utterances, by the part of LibriSpeech that they are to be in, in its layout."""
    rows = utterances()
    for part, names in parts.items():
        for name in names:
            speaker, chapter, _ = name.split("-")
            place = folder / part / speaker / chapter
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.flac").symlink_to(EXCERPT / "flac" / f"{name}.flac")
            with (place / f"{speaker}-{chapter}.trans.txt").open("a") as file:
                file.write(f"{name} {rows[name]['text']}\n")
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """The pair to learn from, and again to validate on."""
    return laid_out(tmp_path / "pair", {SPLITS["train"]: PAIR, SPLITS["valid"]: PAIR})


def test_the_excerpt_is_read_in_its_layout(tmp_path: Path) -> None:
    rows = utterances()
    names = sorted(rows)
    assert len(names) == 60  # six of each of ten speakers
    parts = {"train": names[:36], "valid": names[36:48], "test": names[48:]}
    place = laid_out(tmp_path / "corpus", {SPLITS[split]: chosen for split, chosen in parts.items()})
    sounds = recordings(place, None, rate=RATE, longest=20.0)
    assert list(sounds.texts()) == [rows[name]["text"] for name in parts["train"]]
    for split, chosen in parts.items():
        assert sounds.size(split) == len(chosen)
        for index in range(0, len(chosen), 6):
            waveform, text = sounds.sound(split, index, torch.Generator())
            assert (len(waveform), text) == (int(rows[chosen[index]]["samples"]), rows[chosen[index]]["text"])
            assert 0.01 < waveform.abs().max() <= 1


def test_an_utterance_becomes_an_example(pair: Path) -> None:
    task = SpeechSettings(corpus=str(pair), **SMALL).task()
    rows = utterances()
    for index, name in enumerate(PAIR):
        example = task.objective.example("train", index, torch.Generator())
        assert example["input_features"].shape == (1 + int(rows[name]["samples"]) // HOP, BINS)
        assert task.tokenizer is not None
        assert task.tokenizer.decode(example["labels"][:-1].tolist()) == rows[name]["text"]


@pytest.mark.slow
def test_two_utterances_are_learnt_by_heart(tmp_path: Path, pair: Path) -> None:
    """One that did not hear would write the same of both, and half of the characters wrong."""
    paces = {"steps": 200, "log_every": 50, "evaluate_every": 200, "save_every": 200}
    settings = SpeechSettings(corpus=str(pair), layout="librispeech", **SMALL, **paces)
    task = settings.task()
    assert task.objective.evaluate(task.network(), "valid", 2)["loss"] > 2
    run.start(tmp_path / "run", settings, QUIET)
    scores = json.loads((tmp_path / "run/scores.json").read_text())
    assert scores["loss"] < 0.1
    assert scores["cer"] < 10
    recogniser = Recogniser.load(tmp_path / "run", Search(width=2))
    sounds = [settings.recordings().sound("valid", index, torch.Generator())[0] for index in range(2)]
    said = [utterances()[name]["text"] for name in PAIR]
    assert error_rates(recogniser.texts(sounds), said)["cer"] < 10
