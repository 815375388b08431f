"""Pairs of texts that are cut to a length: the same tokens as by the tokenizer's own truncation, in linear time."""

import random
import time

import pytest
from transformers import PreTrainedTokenizerFast

from greenformers.data import Examples, Labelled, train_tokenizer
from greenformers.data._pairs import encoded_pairs
from greenformers.train.classification import TextClassification

WORDS = ["play", "played", "playing", "a", "straße", "漢字", "unseen", "!"]


def wordpiece() -> PreTrainedTokenizerFast:
    """A tokenizer that divides words, and has other special tokens in a pair than ours."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    pieces = ["[UNK]", "<s>", "</s>", "play", "##ed", "##ing", "a", "straß", "##e", "漢", "##字", "!"]
    tokenizer = Tokenizer(models.WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="<s>", sep_token="</s>")


def some(source: random.Random, most: int) -> list[str]:
    return [" ".join(source.choices(WORDS, k=source.randint(0, most))) for _ in range(60)]


@pytest.mark.parametrize("kind", ["bytes", "bpe", "wordpiece"])
@pytest.mark.parametrize("length", [4, 5, 12, 33, 1000])
def test_pairs_are_cut_as_the_tokenizer_cuts_them(kind: str, length: int) -> None:
    source = random.Random(length)
    first, second = (some(source, 9) + some(source, most) for most in (3, 15))
    tokenizer = wordpiece() if kind == "wordpiece" else train_tokenizer(kind, first, max_length=1000, vocab_size=None)
    for pair in ((first, second), (second, first)):
        expected = tokenizer(*pair, truncation=True, max_length=length, return_token_type_ids=True, verbose=False)
        for typed, names in ((False, ["input_ids"]), (True, ["input_ids", "token_type_ids"])):
            rows = list(encoded_pairs(tokenizer, *pair, length, typed=typed))
            assert all(list(row) == names for row in rows)
            assert all([row[name] for row in rows] == expected[name] for name in names)


def test_long_pairs_take_no_longer_for_being_cut_short() -> None:
    pairs = Examples([("to be " * 500, "or not " * 500)] * 4, [0, 1, 0, 1])
    tokenizer = train_tokenizer("bytes", ["x"], max_length=8)
    start = time.perf_counter()
    objective = TextClassification(Labelled("pairs", ("no", "yes"), pairs, pairs, pairs), tokenizer, 8)
    assert time.perf_counter() - start < 2  # a minute where every part of one text is paired with all of the other
    assert [tokenizer.decode(row) for row in objective.rows("train")] == ["[CLS]to[SEP]or [SEP]"] * 4
