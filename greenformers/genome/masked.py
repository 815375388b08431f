"""Pre-training: masked tokens of sentences, concatenated to sequences of one length. Cahyawijaya 2021, 5.3.1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from greenformers.genome import corpus
from greenformers.genome.diplotype import diplotype, text
from greenformers.genome.reference import Reference
from greenformers.genome.tokenizer import ids_of
from greenformers.train.masked_lm import MaskedLM

SHARES = {"train": (0, 18), "valid": (18, 19), "test": (19, 20)}
"""Twentieths of each split: of a genome, whose sentences from different beginnings overlap, or of every 20 people."""

_AT_ONCE = 1000  # sentences tokenized together


@dataclass(frozen=True, eq=False)
class Genome:
    """Sequences to draw sentences from.

    Attributes:
        sequences: Sequences of a genome, by split; empty where encoded people are read from a file.
        path: File that `genome encode` wrote, if any.
        starts: Number of beginnings from which a sequence is cut.
        count: Most sentences of the training split.
        seed: Seed of the draw.
    """

    sequences: dict[str, list[str]]
    path: Path | None
    starts: int
    count: int
    seed: int

    def split(self, name: str) -> Iterable[str]:
        """Sentences of "train", "valid" or "test"; the latter two are cut from one beginning, so that none overlap."""
        if self.path is not None:
            return corpus.sentences_of(self.path, self.seed, count=self.count, share=tuple(range(*SHARES[name])))
        # A single beginning is the first character, as these parts are short.
        options = {"starts": self.starts} if name == "train" else {"starts": 1, "first": 0}
        return corpus.sentences(self.sequences[name], self.seed, count=self.count, **options)


class GenomeMaskedLM(MaskedLM):
    """Sequences [CLS] sentence [SEP] sentence ... [SEP] of one length.

    Args:
        genome: Source of the sentences.
        tokenizer: Tokenizer of the sentences.
        length: Length of a sequence, in tokens.
    """

    data: Genome  # type: ignore[assignment]

    def __init__(self, genome: Genome, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        super().__init__(genome, tokenizer, length)  # type: ignore[arg-type]

    def blocks(self, split: str) -> Tensor:
        """The tokens of a split in sequences (n, length - 2), int32."""
        if split not in self._blocks:
            separator = torch.tensor([self.tokenizer.sep_token_id], dtype=torch.int32)
            parts: list[Tensor] = []
            for sentences in _batched(self.data.split(split), _AT_ONCE):
                for row in ids_of(self.tokenizer, sentences, markers=False):
                    parts += [torch.tensor(row, dtype=torch.int32), separator]
            # The last [SEP] of a sequence is added with its [CLS].
            ids, width = torch.cat(parts[:-1]) if parts else torch.empty(0), self.length - self.markers
            if len(ids) < width:
                most = len(ids) + self.markers
                raise ValueError(f"length must be at most {most}, the {split} tokens, got {self.length}")
            self._blocks[split] = ids[: len(ids) // width * width].view(-1, width)
        return self._blocks[split]

    def places(self, text: Tensor) -> Tensor:
        """All but those of [SEP] between two sentences, which tell nothing of a genome."""
        return (text != self.tokenizer.sep_token_id).nonzero().squeeze(1)


def _batched(items: Iterable[str], size: int) -> Iterable[list[str]]:
    batch: list[str] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def parts(
    genome: Reference, region: str | None, sites: Path | None, *, least: float, mode: str, alphabet: str,
    left_out: list[int] | None = None,
) -> dict[str, list[str]]:  # fmt: skip
    """The sequences of each split: a genome with its variants, cut by the reference's positions.

    Haplotypes differ in length from the reference and from each other.

    Args:
        genome: The reference.
        region: Region of the reference; None for its only sequence.
        sites: VCF or BCF file of common variants; None for none.
        least: Least frequency of the rarer allele of a common variant.
        mode: "diplotype" or "haplotype".
        alphabet: Alphabet of diplotypes.
        left_out: Positions to which those of sites without known bases are added, as in `corpus.haplotypes`.

    Raises:
        ValueError: The region is too short to be cut.
        GenomeError: A file cannot be used.
    """
    whole = genome.region(region)
    if len(whole) < max(SHARES["test"]):
        raise ValueError(f"region must have at least {max(SHARES['test'])} positions, {whole} has {len(whole)}")
    haplotypes = corpus.haplotypes(genome, whole, sites, least=least, left_out=left_out)
    sequences = {}
    for name, ends in SHARES.items():
        low, high = (share * len(whole) // 20 for share in ends)
        both = [haplotype.part(low, high) for haplotype in haplotypes]
        if mode == "diplotype":
            sequences[name] = [text(diplotype(*both), alphabet)]
        else:
            sequences[name] = [haplotype.sequence() for haplotype in both]
    return sequences
