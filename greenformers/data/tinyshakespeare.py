"""Tiny Shakespeare, 1,115,394 characters of plays, 65 of them distinct. Karpathy 2015, char-rnn."""

from __future__ import annotations

from pathlib import Path

from greenformers.data._columns import fetch_text
from greenformers.data._files import need, read_text
from greenformers.data._kinds import Text
from greenformers.data._source import choose


def load(folder: str | Path | None, dataset: str | None = None) -> Text:
    """The first 90 % of the characters to learn from, the next 5 % to choose by, the last 5 % to score on.

    The text comes without a split, and this is char-rnn's.

    Args:
        folder: holds input.txt, as it is, .gz or .xz.
        dataset: used instead of a folder; split alike if it has no split of its own.

    Raises:
        ValueError: not exactly one of folder and dataset; a damaged file.
        OSError: the folder, the file or the dataset is missing or cannot be read.
    """
    source = choose("tinyshakespeare", folder, dataset)
    if not isinstance(source, str):
        return _divided(read_text(need(source, "input.txt")))
    text = fetch_text("tinyshakespeare", source)
    return text if text.valid or text.test else _divided(text.train)


def _divided(text: str) -> Text:
    valid, test = len(text) * 90 // 100, len(text) * 95 // 100
    return Text("tinyshakespeare", text[:valid], text[valid:test], text[test:])
