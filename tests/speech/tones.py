"""A language of tones, one a letter and silence for a space, written to disk as a corpus; and tiny runs on it."""

import json
import math
from pathlib import Path

import numpy as np
from rich.console import Console

from greenformers.speech.settings import SpeechSettings
from greenformers.train import run

QUIET = Console(quiet=True)
RATE = 4_000
LETTER = 0.12  # seconds
HERTZ = {"a": 300.0, "b": 700.0, "c": 1_200.0, "d": 1_700.0}
OTHER = 450.0  # of every other character
TEXTS = ["ab", "cd", "a b", "dab", "bad", "cab", "d a", "cc", "ad bc", "bb", "cad", "dd a"]

# Settings of the smallest run; the network hears 2 s at once, in 52 positions.
SMALL = {
    "rate": RATE, "n_fft": 64, "window": 64, "hop": 40, "longest": 2.0, "channels": 2, "rank": 3, "hidden": 16,
    "layers": 1, "decoder_layers": 1, "heads": 2, "feed_forward": 24, "batch": 4, "steps": 3, "learning_rate": 0.01,
}  # fmt: skip
POSITIONS = 52


def spoken(text: str, rate: int = RATE) -> np.ndarray:
    """The sound of a text, (n,), with a little noise, which is the same every time."""
    time = np.arange(round(LETTER * rate)) / rate
    tones = [
        0.5 * np.sin(2 * math.pi * HERTZ.get(letter, OTHER) * time) if letter != " " else 0 * time for letter in text
    ]
    whole = np.concatenate(tones)
    return whole + 0.005 * np.random.default_rng(len(text)).standard_normal(len(whole))


def sound(path: Path, text: str, rate: int = RATE, channels: int = 1) -> Path:
    """Write a text as sound; silence in all channels but the last."""
    import soundfile  # of the speech extra

    path.parent.mkdir(parents=True, exist_ok=True)
    samples = spoken(text, rate)
    silent = [np.zeros_like(samples)] * (channels - 1)
    soundfile.write(path, np.stack([*silent, samples], 1), rate)
    return path


def corpus(folder: Path, **splits: list[str]) -> Path:
    """Manifests and sounds; 12, 5 and 7 utterances if the texts of no split are given."""
    splits = splits or {"train": TEXTS, "valid": TEXTS[:5], "test": TEXTS[5:]}
    for split, texts in splits.items():
        names = [f"sounds/{split}{number}.wav" for number in range(len(texts))]
        rows = [
            {"path": sound(folder / name, text) and name, "text": text} for name, text in zip(names, texts, strict=True)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def settings(folder: Path, **given) -> SpeechSettings:
    return SpeechSettings(**SMALL | {"corpus": str(folder)} | given)


def finished(out: Path, folder: Path, **given) -> Path:
    """The folder of a run that has ended, which is evaluated and saved in the end alone if nothing else is given."""
    steps = given.get("steps", SMALL["steps"])
    run.start(out, settings(folder, **{"evaluate_every": steps, "save_every": steps} | given), QUIET)
    return out


def digits(folder: Path, takes: int = 10, samples: int = 900) -> Path:
    """Spoken digits: a clip of tones for each of 2 speakers, 10 digits and some takes."""
    who = [(speaker, digit, take) for speaker in range(2) for digit in range(10) for take in range(takes)]
    speaker, digit, take = (np.array(values, dtype=np.uint8) for values in zip(*who, strict=True))
    time = np.arange(samples) / 8000
    clips = [8000 * np.sin(2 * math.pi * (200 * (d + 1) + 10 * t + 5 * s) * time) for s, d, t in who]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "fsdd.npz",
        audio=np.concatenate(clips).astype(np.int16),
        offsets=np.arange(len(who) + 1) * samples,
        digit=digit,
        speaker=speaker,
        index=take,
        speakers=np.array(["ann", "bob"]),
        sample_rate=np.array(8000, dtype=np.int32),
    )
    return folder
