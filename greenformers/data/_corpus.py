"""Corpora of speech, and the layouts they come in. No audio is read here.

| layout | what the folder holds |
|---|---|
| manifest | train, valid and test as .tsv, .csv or .jsonl, each naming audio and text; or one such file |
| aishell | transcript/aishell_transcript_v0.8.txt, wav/{train,dev,test}/<speaker>/<id>.wav |
| hkust | audio/{train,dev}/<call>.sph, trans/{train,dev}/<call>.txt |
| librispeech | {train,dev,test}-*/<speaker>/<chapter>/<speaker>-<chapter>.trans.txt, audio <id>.flac beside it |
| common_voice | train.tsv, dev.tsv, test.tsv, audio in clips/ |

Runs of white space in a text become one space. Errors name the file and the line, never the text.
"""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

LAYOUTS = ("manifest", "aishell", "hkust", "librispeech", "common_voice")
SPLITS = ("train", "valid", "test")
SUFFIXES = (".tsv", ".csv", ".jsonl")
COMMON_VOICE = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
AISHELL = Path("transcript", "aishell_transcript_v0.8.txt")
AISHELL_PARTS = ("train", "dev", "test")
# HKUST comes without a validation split; one call of 36 gives the 4.2 hours of 156 that are usual.
HKUST_HELD_OUT = 36
HKUST_AUDIO = (".sph", ".wav")
# Folders that may hold audio and trans: the folder itself, its packages, or the data folders of these.
HKUST_PLACES = ("", "*/", "*/*/")
HKUST_LINE = re.compile(r"\s*(\d+(?:\.\d*)?)\s+(\d+(?:\.\d*)?)\s+([AB])\s*[:：](.*)")
UTF8, GBK = ("utf-8-sig",), ("utf-8-sig", "gb18030")

Row = dict[str, Any]


@dataclass(frozen=True)
class Utterance:
    """A recording, or a part of one, and the words said in it.

    Attributes:
        path: The audio file; nothing looks for it before it is read.
        text: The words said, not empty.
        speaker: Name of the speaker, if known.
        start: Time in the file at which the utterance begins, in seconds.
        end: Time at which it ends, in seconds; None for the end of the file.
        channel: Channel of the file, counted from 0; None where it has one only.
    """

    path: Path
    text: str
    speaker: str | None = None
    start: float = 0.0
    end: float | None = None
    channel: int | None = None


@dataclass(frozen=True, eq=False)
class Corpus:
    """Utterances in three splits, any of which may be empty.

    Attributes:
        name: Name of the folder or file that holds the corpus.
        train: Utterances to train on.
        valid: Utterances to validate on.
        test: Utterances to test on.
    """

    name: str
    train: list[Utterance]
    valid: list[Utterance]
    test: list[Utterance]

    def split(self, name: str) -> list[Utterance]:
        """The utterances of a split: train, valid or test.

        Raises:
            ValueError: There is no such split, or it is empty.
        """
        if name not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {name!r}")
        content: list[Utterance] = getattr(self, name)
        if not content:
            raise ValueError(f"{self.name} has no {name} split")
        return content


def load(
    source: str | Path, layout: str | None = None, *, valid: str | Path | None = None, test: str | Path | None = None
) -> Corpus:
    """Read which utterances a corpus has.

    Args:
        source: The folder of the corpus; or one manifest, its training split.
        layout: One of `LAYOUTS`; None: recognised from what the folder holds.
        valid: The manifest of the validation split, if `source` is one.
        test: The manifest of the test split, if `source` is one.

    Raises:
        ValueError: There is no such layout, none or several are recognised, or a file is damaged.
        OSError: The source or a file is missing or cannot be read.
    """
    source = Path(source)
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    if not source.exists():
        raise FileNotFoundError(f"a corpus must be a folder or a manifest, {str(source)!r} is neither")
    name = source.resolve().name
    if source.is_file():
        if layout not in (None, "manifest"):
            raise ValueError(f"layout {layout} must be a folder, {source.name} is a file")
        return Corpus(name, *(_manifest(Path(path)) if path is not None else [] for path in (source, valid, test)))
    if valid is not None or test is not None:
        raise ValueError(f"valid and test go with a manifest, {source.name} is a folder and has its own splits")
    layout = _recognised(source) if layout is None else layout
    corpus = Corpus(name, *_READERS[layout](source))
    if not (corpus.train or corpus.valid or corpus.test):
        raise ValueError(f"{name}: expected a corpus in layout {layout}, found no utterance")
    return corpus


def layouts_of(folder: Path) -> list[str]:
    """The layouts that a folder looks like."""
    clips = (folder / "clips").is_dir() and any((folder / name).is_file() for name in COMMON_VOICE.values())
    # Common Voice calls its validation split dev.
    clips = clips and not any((folder / f"valid{suffix}").is_file() for suffix in SUFFIXES)
    fits = {
        "manifest": not clips and any(_manifests(folder, split) for split in SPLITS),
        "aishell": (folder / AISHELL).is_file(),
        "hkust": any(any(folder.glob(f"{place}trans/train")) for place in HKUST_PLACES),
        "librispeech": any(any(folder.glob(f"{part}-*/*/*/*.trans.txt")) for part in ("train", "dev", "test")),
        "common_voice": clips,
    }
    return [layout for layout in LAYOUTS if fits[layout]]


def _recognised(folder: Path) -> str:
    layouts = layouts_of(folder)
    if len(layouts) != 1:
        fitting = " and ".join(layouts) or "none"
        name = folder.resolve().name
        raise ValueError(f"{name}: expected one layout of {', '.join(LAYOUTS)}, recognised {fitting}; name it")
    return layouts[0]


def _lines(path: Path, encodings: tuple[str, ...] = UTF8) -> list[str]:
    r"""The lines of a file without their ends, \n or \r\n; at least one."""
    data = path.read_bytes()
    for encoding in encodings:
        try:
            lines = data.decode(encoding).split("\n")
            break
        except UnicodeDecodeError as error:
            place = data.count(b"\n", 0, error.start) + 1
    else:
        names = "UTF-8" if encodings == UTF8 else "GBK or UTF-8"
        raise ValueError(f"{path.name}, line {place}: expected {names}, found another byte")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise ValueError(f"{path.name}, line 1: expected utterances, found an empty file")
    return [line.removesuffix("\r") for line in lines]


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _manifests(folder: Path, split: str) -> list[Path]:
    return [path for suffix in SUFFIXES if (path := folder / f"{split}{suffix}").is_file()]


def _folder_of_manifests(folder: Path) -> list[list[Utterance]]:
    splits = []
    for split in SPLITS:
        paths = _manifests(folder, split)
        if len(paths) > 1:
            raise ValueError(f"{folder.name}: expected one manifest of split {split}, found {len(paths)}")
        splits.append(_manifest(paths[0]) if paths else [])
    return splits


def _manifest(path: Path) -> list[Utterance]:
    """The utterances of a manifest; a path in it is relative to its folder."""
    readers = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl}
    if path.suffix not in readers:
        raise ValueError(f"{path.name}: a manifest must end in {', '.join(SUFFIXES)}")
    return _utterances(path, readers[path.suffix](path), {"path": "path", "text": "text"}, path.parent)


def _common_voice(folder: Path) -> list[list[Utterance]]:
    keys = {"path": "path", "text": "sentence", "speaker": "client_id"}
    paths = [folder / name for name in COMMON_VOICE.values()]
    return [_utterances(path, _tsv(path), keys, folder / "clips") if path.is_file() else [] for path in paths]


def _utterances(path: Path, rows: Iterator[tuple[int, Row]], keys: dict[str, str], folder: Path) -> list[Utterance]:
    """An utterance a row; `keys` names what a row must have, by the attribute it is for."""
    utterances = []
    for number, row in rows:
        place = f"{path.name}, line {number}"
        missing = [key for key in keys.values() if key not in row]
        if missing:
            # The header of a table is its first line; a line of JSON has its own keys.
            place = place if path.suffix == ".jsonl" else f"{path.name}, line 1"
            raise ValueError(f"{place}: expected {', '.join(keys.values())}, found no {missing[0]}")
        audio, text = (_string(row[keys[name]], keys[name], place) for name in ("path", "text"))
        speaker = row.get(keys.get("speaker", "speaker"))
        if speaker is not None:
            speaker = _string(speaker, "speaker", place) if speaker != "" else None
        start, end = (_seconds(row.get(name), name, place) for name in ("start", "end"))
        if end is not None and end <= (start or 0.0):
            raise ValueError(f"{place}: expected end after start")
        utterances.append(Utterance(folder / audio, text, speaker, start or 0.0, end))
    if not utterances:
        raise ValueError(f"{path.name}, line 2: expected utterances, found none")
    return utterances


def _string(value: Any, name: str, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{place}: expected {name} as text that is not empty")
    # A path may have any white space inside.
    return value.strip() if name == "path" else _spaced(value)


def _seconds(value: Any, name: str, place: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        # JSON's true would be 1.0.
        seconds = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = float("nan")
    if not isfinite(seconds) or seconds < 0:
        raise ValueError(f"{place}: expected {name} in seconds, at least 0")
    return seconds


def _tsv(path: Path) -> Iterator[tuple[int, Row]]:
    """Rows of a table without quoting, and their line numbers."""
    return _rows(path, iter(enumerate((line.split("\t") for line in _lines(path)), start=1)))


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    """Rows of a table with quoting, and the line numbers of their ends."""
    reader = csv.reader(io.StringIO("\n".join(_lines(path)), newline=""), strict=True)

    def lines() -> Iterator[tuple[int, list[str]]]:
        try:
            for fields in reader:
                yield reader.line_num, fields
        except csv.Error:
            raise ValueError(f"{path.name}, line {reader.line_num}: expected whole CSV fields") from None

    return _rows(path, lines())


def _rows(path: Path, lines: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, Row]]:
    _, columns = next(lines, (1, []))
    for number, fields in lines:
        if len(fields) != len(columns):
            raise ValueError(f"{path.name}, line {number}: expected {len(columns)} fields, found {len(fields)}")
        yield number, dict(zip(columns, fields, strict=True))


def _jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    """Objects, one a line, and their line numbers."""
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path.name}, line {number}: expected a JSON object")
        yield number, row


def _identified(path: Path) -> Iterator[tuple[str, str]]:
    """Id and text of each line."""
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split(maxsplit=1)
        if len(fields) < 2:
            raise ValueError(f"{path.name}, line {number}: expected an id, a space, and text that is not empty")
        yield fields[0], _spaced(fields[1])


def _aishell(folder: Path) -> list[list[Utterance]]:
    """AiShell-1, Bu 2017, openslr.org/33; its words are set apart by spaces, Chinese is not: the spaces go."""
    texts = {name: text.replace(" ", "") for name, text in _identified(folder / AISHELL)}
    splits, silent = [], 0
    for part in AISHELL_PARTS:
        paths = sorted((folder / "wav" / part).glob("*/*.wav"))
        transcribed = [path for path in paths if path.stem in texts]
        silent += len(paths) - len(transcribed)
        splits.append([Utterance(path, texts[path.stem], path.parent.name) for path in transcribed])
    _left_out(folder, silent, "recordings without transcript")
    return splits


def _librispeech(folder: Path) -> list[list[Utterance]]:
    """LibriSpeech, Panayotov 2015, openslr.org/12; all folders of a kind together: train-clean-100, train-other-500."""
    return [
        [
            Utterance(path.parent / f"{name}.flac", text, path.parent.parent.name)
            for path in sorted(folder.glob(f"{part}-*/*/*/*.trans.txt"))
            for name, text in _identified(path)
        ]
        for part in ("train", "dev", "test")
    ]


def _left_out(folder: Path, count: int, kind: str) -> None:
    if count:
        warnings.warn(f"{folder.resolve().name}: {count} {kind} left out", stacklevel=4)


def _hkust(folder: Path) -> list[list[Utterance]]:
    """HKUST/MTS, Liu 2006: telephone calls in Mandarin, LDC2005S15 (audio) and LDC2005T32 (transcripts).

    Written from published recipes for it, not tried on it, which is licensed. Assumed: audio/{train,dev}/<call>.sph
    (or .wav) and trans/{train,dev}/<call>.txt, up to two folders down.
    A call has two channels, A and B, and is named <date>_<time>_A<speaker>_B<speaker>. A transcript is in GBK (or
    UTF-8): header lines, which begin with # or come before the first number, then "start end A: text" in seconds.

    The official dev calls are "test"; every 36th training call, by name, is "valid". Turns of no length, turns
    that another turn ran into, and turns without words are left out and counted. See `_said` for the text.
    """
    calls = {part: _hkust_files(folder, f"trans/{part}", (".txt",)) for part in ("train", "dev")}
    audio = {part: _hkust_files(folder, f"audio/{part}", HKUST_AUDIO) for part in calls}
    splits: dict[str, list[Utterance]] = {split: [] for split in SPLITS}
    dropped = 0
    for part, transcripts in calls.items():
        for place, (call, transcript) in enumerate(transcripts.items(), start=1):
            split = "test" if part == "dev" else "train" if place % HKUST_HELD_OUT else "valid"
            if call not in audio[part]:
                raise ValueError(f"{transcript.name}: expected audio {part}/{call}.sph or .wav, found none")
            turns = _hkust_turns(transcript, audio[part][call])
            splits[split] += [turn for turn in turns if turn is not None]
            dropped += turns.count(None)
    _left_out(folder, dropped, "turns damaged or without words")
    return list(splits.values())


def _hkust_files(folder: Path, place: str, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Files by the name of the call, in the order of the names."""
    paths = (path for outer in HKUST_PLACES for path in folder.glob(f"{outer}{place}/*"))
    return dict(sorted((path.stem, path) for path in paths if path.suffix.lower() in suffixes))


def _hkust_turns(transcript: Path, audio: Path) -> list[Utterance | None]:
    """The turns of a call; None for a turn to leave out."""
    speakers = dict(re.findall(r"_([AB])([^_]+)", transcript.stem))
    turns: list[Utterance | None] = []
    header = True
    for number, line in enumerate(_lines(transcript, GBK), start=1):
        header = header and not line.lstrip()[:1].isdigit()
        if header or not line.strip() or line.startswith("#"):
            continue
        match = HKUST_LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{transcript.name}, line {number}: expected 'start end A: text' or 'start end B: text'")
        start, end, side, text = float(match[1]), float(match[2]), match[3], _said(match[4])
        if start >= end or not text or re.search(r"(?<![A-Za-z])[AB]\s*[:：]", match[4]):
            turns.append(None)
            continue
        speaker = speakers.get(side, f"{transcript.stem}-{side}")
        turns.append(Utterance(audio, text, speaker, start, end, "AB".index(side)))
    return turns


def _said(text: str) -> str:
    """The words of a turn without the marks of transcribers.

    {laugh}, {breath} and the like go; of <foreign language="English">...</foreign>, <noise>...</noise> and the (( ))
    of what is hard to hear the marks go, and the words stay; so do those of %hesitation, ~A (a letter) and +word+.
    Punctuation goes, Latin letters become capitals, and a space stays only between two Latin words.
    """
    text = re.sub(r"\{[^}]*\}|</?[^>]*>", " ", text)
    text = _spaced(re.sub(r"[()%~+\-.,?!。，？！、]", "", text)).upper()
    return re.sub(r"(?<![A-Z'])\s+|\s+(?![A-Z'])", "", text)


_READERS: dict[str, Callable[[Path], list[list[Utterance]]]] = {
    "manifest": _folder_of_manifests,
    "aishell": _aishell,
    "hkust": _hkust,
    "librispeech": _librispeech,
    "common_voice": _common_voice,
}
