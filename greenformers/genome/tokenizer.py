"""Tokenizers of sequences: subwords of SentencePiece (BPE, Cahyawijaya 2021, 5.2.2), and k-mers, whole or gapped.

K-mers are baselines. All are saved as tokenizers that transformers loads. A sequence becomes [CLS] sequence [SEP].
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from greenformers._extras import needed
from greenformers.genome.diplotype import ALPHABETS, BASES

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Ids 0 to 4."""

LARGEST = 2**24
"""Most tokens of a vocabulary."""

LONGEST_PIECE = 16
"""Longest subword, in characters: the default limit of SentencePiece."""


def base_tokens(alphabet: str | None) -> str:
    """The 66 characters of an alphabet of pairs; for None the 5 of haplotypes."""
    return BASES if alphabet is None else ALPHABETS[alphabet]


def subwords(
    sentences: Iterable[str],
    *,
    size: int = 32_000,
    characters: str,
    longest: int = LONGEST_PIECE,
    max_length: int = 4096,
) -> PreTrainedTokenizerFast:
    """Train subwords with SentencePiece: BPE, NFKC.

    Its model is converted to one of `tokenizers`. Where a subword can be merged from overlapping pairs, the two may
    merge different ones; the decoded text is the same.

    Args:
        sentences: Sentences to train on, read once. Training takes about 40 bytes of memory a character.
        size: Size of the vocabulary, with the special tokens and the characters.
        characters: Characters that are in the vocabulary even where no sentence has them, so that every sequence can be
            encoded.
        longest: Longest token, in characters.
        max_length: Most tokens of a sequence, to which `truncation=True` cuts.

    Raises:
        ValueError: `size` is too small for the characters, or larger than the sentences allow.
        MissingExtraError: The package sentencepiece is not installed.
    """
    sentencepiece = needed("a vocabulary of subwords", "genome", "sentencepiece")
    from tokenizers import Tokenizer, decoders, models, normalizers

    least = len(SPECIAL) + len(characters)
    if size < least:
        raise ValueError(f"size must be at least {least}, for {len(characters)} characters; got {size}")
    if not 1 <= longest <= 512:
        raise ValueError(f"longest must be in 1..512, got {longest}")
    _check_sizes(size, max_length)
    read, written = _Read(sentences), io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read.after(characters), model_writer=written, model_type="bpe", vocab_size=size,
            character_coverage=1.0, normalization_rule_name="nfkc", add_dummy_prefix=False,
            max_sentence_length=2**30, max_sentencepiece_length=longest, unk_id=1, pad_id=0, bos_id=2, eos_id=3,
            pad_piece=SPECIAL[0], unk_piece=SPECIAL[1], bos_piece=SPECIAL[2], eos_piece=SPECIAL[3],
            control_symbols=[SPECIAL[4]], minloglevel=2, hard_vocab_limit=False,
        )  # fmt: skip
    except RuntimeError as error:
        if read.fault is not None:
            raise read.fault from None
        raise ValueError(f"tokens cannot be learnt from these sentences: {str(error).splitlines()[-1]}") from error
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ids = {model.id_to_piece(number): number for number in range(model.get_piece_size())}
    tokenizer = Tokenizer(models.BPE(ids, _merges(ids), unk_token=SPECIAL[1]))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.decoder = decoders.Fuse()
    return _finished(tokenizer, max_length)


class _Read:
    """The sentences that SentencePiece reads; it hides errors of an iterator, so they are kept here."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self._sentences = iter(sentences)
        self.fault: BaseException | None = None

    def after(self, characters: str) -> Iterator[str]:
        """The characters, a sentence each, so that the vocabulary has them all; then the sentences."""
        try:
            first = next(self._sentences, None)
            if first is not None:
                yield from characters
                yield first
            yield from self._sentences
        except BaseException as fault:
            self.fault = fault
            raise


def _merges(ids: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs that each subword can be merged from, earlier subwords first."""
    return [
        (token[:cut], token[cut:])
        for token in ids
        if token not in SPECIAL
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]


def kmers(sequence: str, pattern: str = "111111", stride: int = 1) -> str:
    """The k-mers of a sequence with spaces between them, the input of the tokenizers of `kmer_tokens`.

    Args:
        sequence: A sequence of n characters.
        pattern: Pattern of 1 for a place that is read, and 0 for a gap: 1100011 is a gapped 7-mer of 4. Gaps become a
            dot.
        stride: Distance from one k-mer to the next; those of stride k do not overlap.

    A remainder at the end that is shorter than the pattern is a word by itself, if no k-mer holds it.

    Raises:
        ValueError: The pattern is not of 0 and 1, with 1 at both ends, or the stride is not in 1..its length.
    """
    _check(pattern, stride)
    gaps = [place for place, kind in enumerate(pattern) if kind == "0"]
    words = []
    for begin in range(0, max(1, len(sequence) - len(pattern) + stride), stride):
        word = sequence[begin : begin + len(pattern)]
        words.append(
            "".join("." if place in gaps else character for place, character in enumerate(word)) if gaps else word
        )
    return " ".join(words)


def sequence_of(words: str, pattern: str = "111111", stride: int = 1) -> str:
    """The sequence of the words of `kmers`; places that are gaps in all k-mers are dots."""
    _check(pattern, stride)
    characters: list[str] = []
    for number, word in enumerate(words.split(" ")):
        characters += ["."] * (number * stride + len(word) - len(characters))
        for place, character in enumerate(word, number * stride):
            characters[place] = character if character != "." else characters[place]
    return "".join(characters)


def kmer_tokens(
    sentences: Iterable[str], *, pattern: str = "111111", stride: int = 1, size: int = 32_000, max_length: int = 4096
) -> PreTrainedTokenizerFast:
    """A tokenizer of the most frequent k-mers of some sentences; its input is the output of `kmers`.

    Other k-mers are [UNK]: unlike subwords, not all k-mers of 66 characters can be tokens.

    Raises:
        ValueError: As in `kmers`, or `size` is too small.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    if size <= len(SPECIAL):
        raise ValueError(f"size must be above {len(SPECIAL)}, got {size}")
    _check_sizes(size, max_length)
    seen: Counter[str] = Counter()
    for sentence in sentences:
        seen.update(kmers(sentence, pattern, stride).split(" "))
    # Equally frequent ones in alphabetical order, so that the result is always the same.
    best = sorted(seen, key=lambda word: (-seen[word], word))[: size - len(SPECIAL)]
    ids = {token: number for number, token in enumerate([*SPECIAL, *best])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _finished(tokenizer, max_length, kmer_pattern=pattern, kmer_stride=stride)


def _check_sizes(size: int, max_length: int) -> None:
    if size > LARGEST:
        raise ValueError(f"size must be at most {LARGEST}, got {size}")
    if max_length < 4:
        raise ValueError(f"max_length must be at least 4, got {max_length}")


def _check(pattern: str, stride: int) -> None:
    if not re.fullmatch("1([01]*1)?", pattern):
        raise ValueError(f"pattern must be of 0 and 1, with 1 at both ends, got {pattern!r}")
    if not 1 <= stride <= len(pattern):
        raise ValueError(f"stride must be in 1..{len(pattern)}, got {stride}")


def _finished(tokenizer: Tokenizer, max_length: int, **about: str | int) -> PreTrainedTokenizerFast:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    numbers = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=numbers
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", clean_up_tokenization_spaces=False, **about,
    )  # fmt: skip


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a tokenizer into a folder, a new or an empty one: whole or not at all.

    Raises:
        OSError: The folder is not empty, or cannot be written.
    """
    from greenformers.checkpoint.save import building

    with building(folder) as unfinished:
        tokenizer.save_pretrained(unfinished)


def written_for(tokenizer: PreTrainedTokenizerFast, sequence: str) -> str:
    """The input of a tokenizer for a sequence: words of k-mers for a tokenizer of k-mers, else the sequence itself."""
    pattern = tokenizer.init_kwargs.get("kmer_pattern")
    return sequence if pattern is None else kmers(sequence, pattern, tokenizer.init_kwargs["kmer_stride"])


def ids_of(tokenizer: PreTrainedTokenizerFast, sequences: Sequence[str], *, markers: bool) -> list[list[int]]:
    """The tokens of sequences of any length, with [CLS] and [SEP] around them or not.

    Raises:
        ValueError: A character of a sequence is not a token, and the tokens are not k-mers, of which rare ones are
            [UNK].
    """
    words = [written_for(tokenizer, sequence) for sequence in sequences]
    rows = tokenizer(words, add_special_tokens=markers, return_attention_mask=False, verbose=False)["input_ids"]
    if "kmer_pattern" not in tokenizer.init_kwargs and any(tokenizer.unk_token_id in ids for ids in rows):
        raise ValueError(f"tokens of {tokenizer.name_or_path} do not have all characters of the sequences")
    return rows


def mean_length(tokenizer: PreTrainedTokenizerFast, sequences: Iterable[str]) -> float:
    """Mean length of the tokens of sequences in characters, without special tokens."""
    characters = tokens = 0
    for sequence in sequences:
        characters += len(sequence)
        words = written_for(tokenizer, sequence)
        tokens += len(tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"])
    return characters / tokens


def mean_token(tokenizer: PreTrainedTokenizerFast) -> float:
    """Mean length of the tokens of a vocabulary in characters, without special tokens.

    It is above `mean_length`, as long tokens are rare. The 8.7 of Cahyawijaya 2021, 5.4.3, is near this figure.
    """
    lengths = [len(token) for token in tokenizer.get_vocab() if token not in SPECIAL]
    return sum(lengths) / len(lengths)
