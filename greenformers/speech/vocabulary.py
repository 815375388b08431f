"""The vocabulary: the characters of a corpus, and <PAD>, <SOS> and <EOS>. Cahyawijaya 2021, 4.2.1."""

import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from greenformers.checkpoint.files import read_json

SPECIAL = ("<PAD>", "<SOS>", "<EOS>")
"""Ids 0, 1 and 2."""


def vocabulary(texts: Iterable[str], *, max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer with an id for each character of the texts, from 3 on; it leaves out other characters.

    Args:
        texts: Transcripts of training.
        max_length: Most characters, with the end token, to which `truncation=True` cuts.

    Raises:
        ValueError: `max_length` is below 2, or the texts have no character.
    """
    from tokenizers import Tokenizer, decoders, models

    if max_length < 2:
        raise ValueError(f"max_length must be at least 2, got {max_length}")
    characters = sorted(set().union(*texts))
    if not characters:
        raise ValueError("texts must hold at least one character, got none")
    ids = {token: number for number, token in enumerate([*SPECIAL, *characters])}
    # BPE without merges and without an unknown token leaves out unknown characters.
    tokenizer = Tokenizer(models.BPE(ids, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        pad_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def check_covers(
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterable[str],
    *,
    of: str = "the corpus",
    source: str = "init",
    become: str = "are left out",
) -> None:
    """Warn where a vocabulary does not have all characters of some texts.

    Args:
        tokenizer: The vocabulary.
        texts: The texts.
        of: Where they are from.
        source: Where the vocabulary is from.
        become: What becomes of the others, for the message.

    Raises:
        ValueError: It has none of them.
    """
    letters = Counter(character for text in texts for character in text if not character.isspace())
    ids = tokenizer.get_vocab()
    lost = Counter({character: count for character, count in letters.items() if character not in ids})
    if lost and lost == letters:
        raise ValueError(f"the vocabulary of {source} must have characters of {of}, it has none of them")
    if lost:
        share = lost.total() / letters.total()
        warnings.warn(
            f"{len(lost)} characters of {of}, {share:.1%} of its texts, {become}: they are not in the "
            f"vocabulary of {source}",
            stacklevel=2,
        )


def read_vocabulary(folder: Path) -> PreTrainedTokenizerFast:
    """The vocabulary in the folder of a model.

    Raises:
        FileNotFoundError: There is no tokenizer.json.
        ValueError: It is damaged.
    """
    path = folder / "tokenizer.json"
    missing = [name for name in ("added_tokens", "model") if name not in read_json(path)]
    if missing:
        raise ValueError(f"{path} must be that of a tokenizer, it has no {missing[0]}")
    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def vocabulary_of(folder: Path) -> PreTrainedTokenizerFast:
    """The vocabulary that a finished run was trained with.

    Args:
        folder: Folder of the run's model.

    Raises:
        ValueError: There is no tokenizer in the folder, or it is damaged.
    """
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"init must be the folder of a finished run, got {str(folder.parent)!r}")
    return read_vocabulary(folder)
