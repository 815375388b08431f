"""Unlabelled English sentences for students of sentence encoders: of five data sets, each once, in an order by seed."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from _harness import Option, data

from greenformers.data import imdb, multi30k, sst2
from greenformers.data._files import need, read_lines
from greenformers.data.stsb import load as stsb

WORDS = 5, 60
"""Fewest and most words of a sentence of running text."""

SOURCES: tuple[Option, ...] = (
    data("--wikitext", "wikitext2", "WikiText-2"),
    data("--reviews", "imdb", "IMDB"),
    data("--phrases", "sst2", "SST-2"),
    data("--captions", "multi30k_en_de", "Multi30k"),
)


def corpus(pairs: Path, wikitext: Path, reviews: Path, phrases: Path, captions: Path) -> list[str]:
    """The sentences of the training parts, without those of STS-B's other parts; labels and scores are not read."""
    scored = stsb(pairs)
    texts: list[str] = [segment for row in scored.train.texts for segment in row]
    texts += [text[0] for text in sst2.load(phrases).train.texts]
    texts += [part for line in read_lines(need(wikitext, "wiki.train.tokens")) for part in _of_wikitext(line)]
    texts += [sentence for text in imdb.load(reviews).train.texts for sentence in _split(text[0])]
    texts += [source for source, _ in multi30k.load(captions).train]
    # What students are judged by is not learned from: captions of several sets are of the same pictures.
    judged = {plain(segment) for part in (scored.valid, scored.test) for row in part.texts for segment in row}
    unique = list(dict.fromkeys(text.strip() for text in texts if plain(text) and plain(text) not in judged))
    random.Random(0).shuffle(unique)
    return unique


def plain(text: str) -> str:
    """The words of a text, by which it is the same as another."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _of_wikitext(line: str) -> Iterator[str]:
    line = line.strip()
    if not line.startswith("="):
        yield from (part.strip() for part in line.split(" . ") if WORDS[0] < len(part.split()) < WORDS[1])


def _split(text: str) -> Iterator[str]:
    """Sentences of running text, without marks of HTML."""
    plain = re.sub(r"<[^>]+>", " ", text)
    for part in re.split(r"(?<=[.!?])\s+", plain):
        if WORDS[0] < len(part.split()) < WORDS[1]:
            yield part.strip()
