"""Tokenizers: ids, round trips, special tokens, saving."""

import pytest
from transformers import AutoTokenizer

from greenformers.data import train_tokenizer

KINDS = ["characters", "bytes", "bpe"]
TEXTS = ["The cat sat on the mat.\n\n  The  dog's hat?\t", "Zwölf Boxkämpfer jagen Viktor.", "", "数据 🙂"]
# What a decoder may spoil: spaces before marks, at the ends, in a row; line ends; no text at all.
HARD = [
    " a cat , the dog 's hat ?  ",
    "\n\nThe\t\n mat",
    "don 't , do n't .",
    "jag🙂数",
    "Zwölf",
    "",
    " ",
]
OTHER = ["e\u0301 ß\u2028\x00\x1f\xad", "مرحبا\r\n", "👩\u200d👩\u200d👧"]


@pytest.fixture(params=KINDS)
def tokenizer(request):
    return train_tokenizer(request.param, TEXTS, max_length=64, vocab_size=300 if request.param == "bpe" else None)


def plain(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_special_tokens(tokenizer):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.convert_tokens_to_ids(special) == [0, 1, 2, 3, 4]
    assert [tokenizer.pad_token, tokenizer.unk_token, tokenizer.cls_token, tokenizer.sep_token] == special[:4]
    assert (tokenizer.mask_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (4, 2, 3)
    assert tokenizer.model_max_length == 64
    assert min(plain(tokenizer, TEXTS[0])) > 4


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind):
    tokenizer = train_tokenizer(kind, TEXTS + HARD, max_length=64)
    for text in HARD if kind == "characters" else HARD + OTHER:
        assert tokenizer.decode(plain(tokenizer, text)) == text
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_one_and_two_segments(tokenizer):
    first, second = plain(tokenizer, "The cat"), plain(tokenizer, " mat.")
    single = tokenizer("The cat", return_token_type_ids=True)
    assert single["input_ids"] == [2, *first, 3]
    assert set(single["token_type_ids"]) == {0}
    pair = tokenizer("The cat", " mat.", return_token_type_ids=True)
    assert pair["input_ids"] == [2, *first, 3, *second, 3]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert tokenizer("The cat", " mat.", add_special_tokens=False)["input_ids"] == first + second


def test_batches_are_cut_and_padded(tokenizer):
    batch = tokenizer(["T" * 100, "The"], truncation=True, padding=True)
    assert [len(ids) for ids in batch["input_ids"]] == [len(batch["input_ids"][0])] * 2
    assert batch["input_ids"][0][0] == 2
    assert batch["input_ids"][0][-1] == 3
    assert len(tokenizer("The cat sat " * 50, truncation=True)["input_ids"]) == 64
    length = sum(batch["attention_mask"][1])
    assert set(batch["input_ids"][1][length:]) <= {0}


def test_special_tokens_written_out_are_text():
    text = "a [MASK] and [SEP][CLS][UNK] [PAD]"
    for kind in KINDS:
        tokenizer = train_tokenizer(kind, [text], max_length=64)
        for ids in (plain(tokenizer, text), tokenizer(text)["input_ids"][1:-1]):
            assert min(ids) > 4
            assert tokenizer.decode(ids) == text


def test_saved_and_loaded_gives_the_same_ids(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.model_max_length == 64
    for text in HARD + OTHER + ["a [MASK]"]:
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert loaded.decode(loaded(text)["input_ids"]) == tokenizer.decode(tokenizer(text)["input_ids"])
        assert loaded("The", text)["input_ids"] == tokenizer("The", text)["input_ids"]


def test_characters():
    tokenizer = train_tokenizer("characters", ["cab\n", " a"], max_length=64)
    assert tokenizer.get_vocab() == {
        "[PAD]": 0,
        "[UNK]": 1,
        "[CLS]": 2,
        "[SEP]": 3,
        "[MASK]": 4,
        "\n": 5,
        " ": 6,
        "a": 7,
        "b": 8,
        "c": 9,
    }
    assert plain(tokenizer, "a z\nb") == [7, 6, 1, 5, 8]


def test_words(tmp_path):
    tokenizer = train_tokenizer("words", ["[MAX 2 9 ]\n", " the [CLS] the ▁x▁ "], max_length=64)
    words = ["2", "9", "[CLS]", "[MAX", "]", "the", "▁x▁"]
    assert tokenizer.get_vocab() == {
        token: number
        for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *("▁" + word for word in words)])
    }
    assert plain(tokenizer, "[MAX  9\t2 cat\n] ") == [8, 6, 5, 1, 9]
    assert plain(tokenizer, "[CLS] x ▁x▁") == [7, 1, 11]  # no special token, whatever the text says
    assert plain(tokenizer, "") == []
    assert tokenizer("2 9", "the")["input_ids"] == [2, 5, 6, 3, 10, 3]
    assert tokenizer("2 " * 100, truncation=True)["input_ids"] == [2, *[5] * 62, 3]
    assert tokenizer.decode(tokenizer("[MAX  2 ▁x▁\n]")["input_ids"], skip_special_tokens=True) == "[MAX 2 ▁x▁ ]"
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert plain(loaded, "[MAX [SEP] ▁x▁ the") == [8, 1, 11, 10]


def test_bytes_are_their_numbers():
    tokenizer = train_tokenizer("bytes", ["x"], max_length=64)
    assert len(tokenizer) == 261
    text = "".join(map(chr, range(256))) + "数🙂"
    assert plain(tokenizer, text) == [5 + byte for byte in text.encode()]
    # Bytes that no UTF-8 text has, too.
    assert sorted(tokenizer.get_vocab().values()) == list(range(261))


def test_bpe_counts_everything():
    text = "the cat sat on the mat, the other cat ate that hat; " * 3
    assert len(train_tokenizer("bpe", [text], max_length=64, vocab_size=261)) == 261
    tokenizer = train_tokenizer("bpe", [text], max_length=64, vocab_size=271)
    assert len(tokenizer) == 271
    assert len(plain(tokenizer, text)) < len(text)
    assert len(train_tokenizer("bpe", [text], max_length=64)) < 8000


def test_bpe_learns_the_same_each_time():
    words = [f"{a}{b}{c}" for a in ("re", "un", "in") for b in ("lat", "form", "tend") for c in ("ed", "ing", "s")]
    text = " ".join(words * 2)
    first, again, lines = (
        train_tokenizer("bpe", texts, max_length=64, vocab_size=320) for texts in ([text], (t for t in [text]), text)
    )
    assert first.get_vocab() == again.get_vocab() == lines.get_vocab()
    assert first.backend_tokenizer.to_str() == again.backend_tokenizer.to_str()


def test_one_string_is_read_by_lines():
    text = "The cat\nsat\n\non the mat\n"
    for kind in KINDS:
        of_text, of_lines = (
            train_tokenizer(kind, texts, max_length=64) for texts in (text, text.splitlines(keepends=True))
        )
        assert of_text.get_vocab() == of_lines.get_vocab()
        assert of_text.decode(plain(of_text, text)) == text


@pytest.mark.parametrize(
    ("kind", "texts", "options", "expected"),
    [
        ("syllables", ["a"], {}, "kind must be one of characters, bytes, words, bpe, got 'syllables'"),
        ("bpe", ["a"], {"vocab_size": 260}, "vocab_size must be at least 261 for bpe, got 260"),
        (
            "bytes",
            ["a"],
            {"vocab_size": 261},
            "vocab_size is for bpe, a vocabulary of bytes has a size of its own; got 261",
        ),
        (
            "characters",
            ["a"],
            {"vocab_size": 6},
            "vocab_size is for bpe, a vocabulary of characters has a size of its own; got 6",
        ),
        ("bpe", ["a"], {"max_length": 2}, "max_length must be at least 3, got 2"),
        ("bytes", [], {}, "texts must hold at least one character, got none"),
        ("characters", ["", ""], {}, "texts must hold at least one character, got none"),
        ("bpe", "", {}, "texts must hold at least one character, got none"),
    ],
)
def test_arguments_out_of_range(kind, texts, options, expected):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        train_tokenizer(kind, texts, **({"max_length": 64} | options))
    assert str(caught.value) == expected
