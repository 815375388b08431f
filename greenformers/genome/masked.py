"""Pre-training: masked tokens of sentences, put together to sequences of one length. Thesis 5.3.1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from greenformers.genome import corpus
from greenformers.genome.diplotype import ALPHABETS, diplotype, text
from greenformers.genome.encode import MODES
from greenformers.genome.reference import Reference
from greenformers.genome.settings import Network, Pretraining
from greenformers.genome.tokenizer import ids_of
from greenformers.model.variant import rank_option
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.task import MODEL, Task

SHARES = {"train": (0, 18), "valid": (18, 19), "test": (19, 20)}
"""Which twentieths are for what: of a genome, as sentences from different beginnings overlap; of every 20 people."""

_AT_ONCE = 1000  # sentences tokenized together


@dataclass(frozen=True, eq=False)
class Genome:
    """Sequences to draw sentences from.

    Attributes:
        sequences: of a genome, by split; none where encoded people are read from a file.
        path: of what `genome encode` wrote.
        starts: beginnings from which a sequence is cut.
        count: sentences at most, of the training split.
        seed: of the draw.
    """

    sequences: dict[str, list[str]]
    path: Path | None
    starts: int
    count: int
    seed: int

    def split(self, name: str) -> Iterable[str]:
        """Sentences of "train", "valid" or "test"; those two are cut from one beginning: none is there twice."""
        if self.path is not None:
            return corpus.sentences_of(self.path, self.seed, count=self.count, share=tuple(range(*SHARES[name])))
        # From the first character on, where there is one beginning alone: these parts are short.
        how = {"starts": self.starts} if name == "train" else {"starts": 1, "first": 0}
        return corpus.sentences(self.sequences[name], self.seed, count=self.count, **how)


class GenomeMaskedLM(MaskedLM):
    """Sequences [CLS] sentence [SEP] sentence ... [SEP] of one length.

    Args:
        genome: gives the sentences.
        tokenizer: turns them into tokens.
        length: of a sequence, in tokens.
    """

    data: Genome  # type: ignore[assignment]

    def __init__(self, genome: Genome, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        super().__init__(genome, tokenizer, length)  # type: ignore[arg-type]

    def blocks(self, split: str) -> Tensor:
        """The sentences of a split as (n, length - 2) int32."""
        if split not in self._blocks:
            separator = torch.tensor([self.tokenizer.sep_token_id], dtype=torch.int32)
            parts: list[Tensor] = []
            for some in _batched(self.data.split(split), _AT_ONCE):
                for row in ids_of(self.tokenizer, some, markers=False):
                    parts += [torch.tensor(row, dtype=torch.int32), separator]
            # The last [SEP] of a sequence is put there with its [CLS].
            ids, width = torch.cat(parts[:-1]) if parts else torch.empty(0), self.length - self.markers
            if len(ids) < width:
                most = len(ids) + self.markers
                raise ValueError(f"length must be at most {most}, the {split} tokens, got {self.length}")
            self._blocks[split] = ids[: len(ids) // width * width].view(-1, width)
        return self._blocks[split]


def _batched(items: Iterable[str], size: int) -> Iterable[list[str]]:
    some: list[str] = []
    for item in items:
        some.append(item)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some


def prepare(settings: Pretraining) -> Task:
    """Read the genome, and make the objective.

    Raises:
        ValueError: a setting out of range, or not one source of sentences.
        OSError: a file is missing.
    """
    if (settings.reference is None) == (settings.sequences is None):
        raise ValueError("name a reference or sequences, one of them")
    if settings.mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {settings.mode!r}")
    if settings.alphabet not in ALPHABETS:
        raise ValueError(f"alphabet must be one of {', '.join(ALPHABETS)}; got {settings.alphabet!r}")
    if settings.sequences is not None:
        for name in ("region", "sites", "mode", "alphabet"):
            if (given := getattr(settings, name)) != getattr(Pretraining, name):
                raise ValueError(f"{name} is for a reference; of sequences it is the file's own, got {given!r}")
    for name in ("starts", "sentences"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")
    sequences = {} if settings.reference is None else _sequences(settings, Reference(Path(settings.reference)))
    path = None if settings.sequences is None else Path(settings.sequences)
    source = Genome(sequences, path, settings.starts, settings.sentences, settings.seed)
    tokenizer = tokenizer_of(settings)
    return Task(GenomeMaskedLM(source, tokenizer, settings.length), tokenizer, projected(settings))


def _sequences(settings: Pretraining, genome: Reference) -> dict[str, list[str]]:
    """The genome with its variants, cut by the reference's positions: haplotypes are not as long as it, nor alike."""
    whole = genome.region(settings.region)
    sites = None if settings.sites is None else Path(settings.sites)
    if len(whole) < max(SHARES["test"]):
        raise ValueError(f"region must have at least {max(SHARES['test'])} positions, {whole} has {len(whole)}")
    haplotypes = corpus.haplotypes(genome, whole, sites, least=settings.least)
    found = {}
    for name, ends in SHARES.items():
        low, high = (share * len(whole) // 20 for share in ends)
        both = [one.part(low, high) for one in haplotypes]
        if settings.mode == "diplotype":
            found[name] = [text(diplotype(*both), settings.alphabet)]
        else:
            found[name] = [one.sequence() for one in both]
    return found


def tokenizer_of(settings: Network) -> PreTrainedTokenizerFast:
    """The tokenizer a run names, or that of the run it starts from.

    Raises:
        ValueError: neither is named, or there is none.
    """
    if settings.tokens is None and settings.init is None:
        raise ValueError("tokens must be a folder of `genome tokenize` where there is no init")
    folder = Path(settings.tokens) if settings.tokens is not None else Path(settings.init or "") / MODEL
    # What is not there would be taken for a name on the hub, and looked for there.
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"tokens must be a folder of `genome tokenize`, and init a finished run; got {str(folder)!r}")
    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def projected(settings: Network) -> Network:
    """The settings with how much of full attention is kept, where it was not given."""
    if settings.k is not None or rank_option(settings.variant) is None:
        return settings
    return replace(settings, k=min(256, settings.length))
