"""Tiny Shakespeare, 1,115,394 characters of plays, 65 of them distinct. Karpathy 2015, char-rnn."""

from __future__ import annotations

from pathlib import Path

from greenformers.data._columns import fetch_text
from greenformers.data._files import need, read_text
from greenformers.data._kinds import Text
from greenformers.data._source import choose


def load(folder: str | Path | None, dataset: str | None = None) -> Text:
    """The first 90 % of the characters to train on, the next 5 % to validate on, the last 5 % to test on.

    The text comes without a split, and this is char-rnn's.

    Args:
        folder: Folder that holds input.txt, plain, .gz or .xz.
        dataset: Data set of the `datasets` library, used instead of a folder; it is split alike if it has no split of
            its own.

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged.
        OSError: The folder, the file or the dataset is missing or cannot be read.
    """
    source = choose("tinyshakespeare", folder, dataset)
    if not isinstance(source, str):
        return _divided(read_text(need(source, "input.txt")))
    text = fetch_text("tinyshakespeare", source)
    return text if text.valid or text.test else _divided(text.train)


def _divided(text: str) -> Text:
    valid, test = len(text) * 90 // 100, len(text) * 95 // 100
    return Text("tinyshakespeare", text[:valid], text[valid:test], text[test:])
