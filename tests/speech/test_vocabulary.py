"""The characters of a corpus as tokens: their ids, what is left out, and that a saved vocabulary is the same."""

import pytest
from transformers import AutoTokenizer

from greenformers.speech.vocabulary import SPECIAL, vocabulary

ENGLISH = ["the cat sat", "i'm here", "zebra quiz"]
CHINESE = ["甚至出现交易几乎停滞的情况", "一二线城市"]
MIXED = ["我用iphone 打电话"]


def ids(tokenizer, text, **options):
    return tokenizer(text, **options)["input_ids"]


def test_ids():
    tokenizer = vocabulary(["cab", "b d"], max_length=7)
    assert len(tokenizer) == tokenizer.vocab_size == 8
    assert tokenizer.get_vocab() == {"<PAD>": 0, "<SOS>": 1, "<EOS>": 2, " ": 3, "a": 4, "b": 5, "c": 6, "d": 7}
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token) == SPECIAL
    assert tokenizer.unk_token_id is None
    assert tokenizer.model_max_length == 7
    assert ids(tokenizer, "bad cab") == [5, 4, 7, 3, 6, 4, 5]
    assert vocabulary(iter(["d b", "bac"]), max_length=7).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(
    "texts", [ENGLISH, CHINESE, MIXED, ["  a  b ", "\tc\n"], ["é", "e\u0301", "ﬁ", "İ", "👍🏽"]], ids=repr
)
def test_text_comes_back(texts):
    tokenizer = vocabulary(texts, max_length=50)
    for text in texts:
        tokens = ids(tokenizer, text)
        assert len(tokens) == len(text)
        assert min(tokens) > 2
        assert tokenizer.decode(tokens) == text
        assert tokenizer.decode([1, *tokens, 2, 0, 0], skip_special_tokens=True) == text
        assert [tokenizer.decode([token]) for token in tokens] == list(text)
    assert tokenizer.batch_decode([ids(tokenizer, text) for text in texts]) == texts
    assert ids(tokenizer, texts) == [ids(tokenizer, text) for text in texts]
    assert tokenizer.decode([]) == ""
    assert ids(tokenizer, "") == []


def test_no_character_is_normalised():
    tokenizer = vocabulary(["aB"], max_length=5)
    assert tokenizer.decode(ids(tokenizer, "AaBb")) == "aB"
    composed = vocabulary(["é"], max_length=5)
    assert ids(composed, "e\u0301") == []


def test_spaces_before_marks_stay():
    text = "i 'm here . is n't it ?"
    tokenizer = vocabulary([text], max_length=50)
    assert tokenizer.decode(ids(tokenizer, text)) == text


def test_unknown_characters_are_left_out():
    tokenizer = vocabulary(["abc"], max_length=9)
    assert ids(tokenizer, "a?b c 中a") == [3, 4, 5, 3]
    assert ids(tokenizer, "中文 ?") == []
    assert ids(tokenizer, "ab" * 3000) == [3, 4] * 3000


@pytest.mark.parametrize("mark", SPECIAL)
def test_marks_in_a_text_are_characters(mark):
    tokenizer = vocabulary(["PADSOE<>ab"], max_length=50)
    text = f"a{mark}b"
    tokens = ids(tokenizer, text)
    assert not set(tokens) & {0, 1, 2}
    assert tokenizer.decode(tokens) == text
    without = vocabulary(["ab"], max_length=50)
    assert ids(without, text) == ids(without, "ab") == [3, 4]


@pytest.mark.parametrize("texts", [ENGLISH, CHINESE, ["PADSOE<>ab c"]], ids=repr)
def test_a_saved_one_is_the_same(texts, tmp_path):
    tokenizer = vocabulary(texts, max_length=11)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2)
    assert loaded.model_max_length == 11
    for text in (*texts, "a<PAD>b<EOS>", " a  c ", "x'y .", "中"):
        tokens = ids(tokenizer, text)
        assert ids(loaded, text) == tokens
        assert loaded.decode(tokens) == tokenizer.decode(tokens)
    long = "".join(texts) * 2
    assert ids(loaded, long, truncation=True) == ids(tokenizer, long)[:11]


def test_truncation_and_padding():
    tokenizer = vocabulary(["abc"], max_length=5)
    assert ids(tokenizer, "abcabc", truncation=True) == [3, 4, 5, 3, 4]
    assert ids(tokenizer, "abcabc", truncation=True, max_length=4) == [3, 4, 5, 3]
    assert ids(tokenizer, "abc", truncation=True, max_length=4) == [3, 4, 5]
    # What one call asks for is not kept for the next.
    assert ids(tokenizer, "abcabc", verbose=False) == [3, 4, 5, 3, 4, 5]
    batch = tokenizer(["abc", "b"], padding=True)
    assert batch["input_ids"] == [[3, 4, 5], [4, 0, 0]]
    assert batch["attention_mask"] == [[1, 1, 1], [1, 0, 0]]


def test_wrong_arguments():
    with pytest.raises(ValueError, match="max_length must be at least 2, got 1"):
        vocabulary(["a"], max_length=1)
    for texts in ([], ["", ""]):
        with pytest.raises(ValueError, match="at least one character, got none"):
            vocabulary(texts, max_length=2)
    assert len(vocabulary(["a"], max_length=2)) == 4
