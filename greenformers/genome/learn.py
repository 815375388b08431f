"""Training of a tokenizer on a genome, or on encoded people. Cahyawijaya 2021, 5.3.1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from greenformers.genome import corpus, tokenizer
from greenformers.genome.diplotype import diplotype, text
from greenformers.genome.files import GenomeError
from greenformers.genome.reference import Reference
from greenformers.genome.token_options import TokenOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MEASURED = 1000
"""Number of sentences of encoded people on which the mean length of a token is measured."""


@dataclass(frozen=True)
class Learnt:
    """A tokenizer that was trained.

    Attributes:
        tokenizer: The tokenizer; `from_pretrained` loads it.
        sentences: Number of sentences it was trained on.
        mean: Mean length of a token in the sequences, in characters; None for k-mers.
        vocabulary_mean: Mean length of a token in the vocabulary, in characters; None for k-mers.
        left_out: Number of common sites that are structural variants, whose bases are not known.
    """

    tokenizer: PreTrainedTokenizerFast
    sentences: int
    mean: float | None = None
    vocabulary_mean: float | None = None
    left_out: int = 0


def learn(options: TokenOptions, out: Path) -> Learnt:
    """Train a tokenizer, and write it into a folder.

    Args:
        options: Sequences to train on, and kind of tokens.
        out: Folder of the tokenizer, a new or an empty one.

    Raises:
        ValueError: `out` is there already, or an option is out of range.
        GenomeError: A file cannot be used.
        ImportError: The genome extra is not installed.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already, and not an empty folder")
    left_out: list[int] = []
    whole, sentences, alphabet = _read(options, left_out)
    counted = _Counted(sentences)
    if options.pattern is not None:
        tokens = tokenizer.kmer_tokens(
            counted, pattern=options.pattern, stride=options.stride, size=options.size, max_length=options.max_length
        )
        tokenizer.save(tokens, out)
        return Learnt(tokens, counted.count, left_out=len(left_out))
    tokens = tokenizer.subwords(
        counted, size=options.size, characters=tokenizer.base_tokens(alphabet), longest=options.longest,
        max_length=options.max_length,
    )  # fmt: skip
    tokenizer.save(tokens, out)
    if options.sequences is not None:
        whole = corpus.sentences_of(options.sequences, options.seed, count=MEASURED)
    means = tokenizer.mean_length(tokens, whole), tokenizer.mean_token(tokens)
    return Learnt(tokens, counted.count, *means, left_out=len(left_out))


def _read(options: TokenOptions, left_out: list[int]) -> tuple[Iterable[str], Iterator[str], str | None]:
    """The sequences of a genome, the sentences, and the alphabet of pairs, None for bases.

    Positions of sites that are left out, as in `corpus.haplotypes`, are added to `left_out`.
    """
    if options.sequences is not None:
        mode, characters = corpus.kind_of(options.sequences)
        sentences = corpus.sentences_of(options.sequences, options.seed, count=options.sentences)
        return [], sentences, characters if mode == "diplotype" else None
    assert options.reference is not None  # TokenOptions has one of them
    genome = Reference(options.reference)
    if options.region is None and len(genome.regions) > 1:
        raise GenomeError(
            f"{options.reference}: has {len(genome.regions)} sequences; name one with --region, or --sequences learns "
            "from all of them"
        )
    region = genome.region(options.region)
    both = corpus.haplotypes(genome, region, options.sites, least=options.least, left_out=left_out)
    alphabet = options.alphabet if options.mode == "diplotype" else None
    whole = [haplotype.sequence() for haplotype in both] if alphabet is None else [text(diplotype(*both), alphabet)]
    return whole, corpus.sentences(whole, options.seed, starts=options.starts, count=options.sentences), alphabet


class _Counted:
    """Sentences that are counted as they are read."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self._sentences, self.count = sentences, 0

    def __iter__(self) -> Iterator[str]:
        for sentence in self._sentences:
            self.count += 1
            yield sentence
