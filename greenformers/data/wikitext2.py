"""WikiText-2, words of Wikipedia articles. Merity, Xiong, Bradbury, Socher 2016, arXiv:1609.07843.

2,088,628 / 217,646 / 245,569 words with the line ends, 33,278 of them distinct; rare words are <unk>.
"""

from __future__ import annotations

from pathlib import Path

from greenformers.data._columns import fetch_text
from greenformers.data._files import need, read_text
from greenformers.data._kinds import SPLITS, Text
from greenformers.data._source import choose


def load(folder: str | Path | None, dataset: str | None = None) -> Text:
    """36,718 / 3,760 / 4,358 lines; words are separated by spaces.

    Args:
        folder: Folder that holds wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, each plain, .gz or .xz.
        dataset: Data set of the `datasets` library, used instead of a folder; "Salesforce/wikitext:wikitext-2-v1" on
            the hub, whose empty lines lack the space that the files have.

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged.
        OSError: The folder, a file or the dataset is missing or cannot be read.
    """
    source = choose("wikitext2", folder, dataset)
    if isinstance(source, str):
        return fetch_text("wikitext2", source)
    train, valid, test = (read_text(need(source, f"wiki.{part}.tokens")) for part in SPLITS)
    return Text("wikitext2", train, valid, test)
