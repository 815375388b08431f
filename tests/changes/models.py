"""Folders with tiny models and their tokenizers, and texts they know."""

import random
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from tokenizers.trainers import WordLevelTrainer
from transformers import PreTrainedTokenizerFast
from zoo import network

WORDS = [a + b for a in ("ba", "do", "ki", "lu", "me", "na") for b in ("r", "s", "t", "n", "lo", "mi")]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(count)]


@cache
def words() -> str:
    """A tokenizer of the words, as text."""
    backend = Tokenizer(WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(sentences(200), WordLevelTrainer(special_tokens=SPECIAL, show_progress=False))
    assert backend.get_vocab_size() < 53
    text: str = backend.to_str()
    return text


def tokenizer(name: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer.from_str(words())
    if name == "gpt2":
        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[SEP]", unk_token="[UNK]")
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip


def folder(root: Path, name: str, cls: str) -> Path:
    """A model, drawn at random so that its outputs tell texts apart, and its tokenizer."""
    model = network(name, cls)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    model.save_pretrained(root / cls)
    tokenizer(name).save_pretrained(root / cls)
    return root / cls


def pairs(path: Path, count: int = 30) -> Path:
    """How many words two sentences share, as their score."""
    rows = [
        (a, b, len(set(a.split()) & set(b.split()))) for a, b in zip(sentences(count), sentences(count, 1), strict=True)
    ]
    path.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{score}\n" for a, b, score in rows))
    return path


def labelled(path: Path, count: int = 30) -> Path:
    path.write_text("sentence\tlabel\n" + "".join(f"{text}\t{len(text) % 2}\n" for text in sentences(count, 2)))
    return path
