"""Tokenizers made from the training texts: characters, bytes, words, or byte-level BPE (Sennrich, Haddow, Birch 2016).

Bytes are written as the printable characters that GPT-2 gave them; BPE splits words as GPT-2 does before it merges.
Words stand between white space and are written with a mark before them, so that none is taken for a special token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

KINDS = ("characters", "bytes", "words", "bpe")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0..4
BYTES = 256
LEAST = len(SPECIAL) + BYTES
VOCABULARY = 8000
WORD = "▁"  # what tokenizers write before a word


def train_tokenizer(
    kind: str, texts: Iterable[str], *, max_length: int, vocab_size: int | None = None
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on texts. The same texts give the same tokenizer.

    Ids 0..4 are [PAD], [UNK], [CLS], [SEP], [MASK]; a sequence is [CLS] A [SEP], a pair [CLS] A [SEP] B [SEP] with
    token types 0 and 1 (given with `return_token_type_ids=True`). Special tokens written out in a text are read as
    plain characters. Decoding without special tokens gives the text back exactly; with "characters" and "words", if the
    training texts had all of them, and with "words" as words between single spaces.

    Args:
        kind: "characters", one id for each character of the texts, [UNK] for others; "bytes", one for each of the 256
            bytes of UTF-8, byte b being id 5 + b; "words", one for each word of the texts between white space, [UNK]
            for others; "bpe", the bytes and the pairs most frequent in the texts.
        texts: Texts to train on; read once, and only as far as needed. One string is read line by line.
        max_length: Most tokens of a sequence, with the special ones, to which `truncation=True` cuts; at least 3.
        vocab_size: For "bpe", number of ids with the special ones, 261 or more; 8000 if not given. Short texts may
            have too few pairs to reach it.

    Raises:
        ValueError: There is no such kind, an argument is out of its range, or there is no text.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if max_length < 3:
        raise ValueError(f"max_length must be at least 3, got {max_length}")
    if vocab_size is not None and kind != "bpe":
        raise ValueError(f"vocab_size is for bpe, a vocabulary of {kind} has a size of its own; got {vocab_size}")
    if vocab_size is not None and vocab_size < LEAST:
        raise ValueError(f"vocab_size must be at least {LEAST} for bpe, got {vocab_size}")
    # A long text in one piece would take 100 bytes of memory a character.
    some = _some(texts.splitlines(keepends=True) if isinstance(texts, str) else texts)
    if kind == "characters":
        return _wrapped(_characters(some), max_length)
    if kind == "bytes":
        return _wrapped(_bytes(), max_length)
    if kind == "words":
        return _wrapped(_words(some), max_length)
    return _wrapped(_bpe(some, VOCABULARY if vocab_size is None else vocab_size), max_length)


def _some(texts: Iterable[str]) -> Iterator[str]:
    """The texts that are not empty, of which there must be one."""
    filled = (text for text in texts if text)
    first = next(filled, None)
    if first is None:
        raise ValueError("texts must hold at least one character, got none")
    return chain([first], filled)


def _characters(texts: Iterable[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    characters: set[str] = set().union(*texts)
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *sorted(characters)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _words(texts: Iterable[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    words: set[str] = set().union(*(text.split() for text in texts))
    vocabulary = {
        token: number for number, token in enumerate([*SPECIAL, *(f"{WORD}{word}" for word in sorted(words))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Replace(Regex(r"(?<!\S)(?=\S)"), WORD)  # where a word begins
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # A mark within a word is the text's own.
    spaces = decoders.Replace(Regex(f"^{WORD}"), " ")
    tokenizer.decoder = decoders.Sequence([spaces, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def _bytes() -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *_byte_characters()])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=_byte_characters(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _byte_characters() -> list[str]:
    """The character that stands for each byte, 0..255: itself where printable in Latin-1, else one from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(BYTES) if byte not in printable]
    return [chr(byte) if byte in printable else chr(BYTES + others.index(byte)) for byte in range(BYTES)]


def _wrapped(tokenizer: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        bos_token="[CLS]",
        eos_token="[SEP]",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
