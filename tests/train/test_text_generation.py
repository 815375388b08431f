"""Texts from trained models: continued, translated, refused."""

import pytest
import torch
from tiny import SIZES, TEXT, characters

from greenformers.data import Examples, Labelled, Pairs
from greenformers.train.causal_lm import CausalLM
from greenformers.train.classification import TextClassification
from greenformers.train.evaluate import written
from greenformers.train.generation import continuations, translations
from greenformers.train.save import save
from greenformers.train.seq2seq import Seq2Seq

SOURCES = ["to be", "or", "not to be that is the question", "", "mind", "suffer the mind"]


@pytest.fixture(scope="module")
def causal():
    return built(CausalLM(TEXT, characters(), 24))


@pytest.fixture(scope="module")
def pair():
    data = Pairs("written", "en", "de", [(TEXT.train[:20], TEXT.train[20:50])] * 2, [], [])
    return built(Seq2Seq(data, characters(), 13))


def built(objective):
    torch.manual_seed(3)
    model = objective.build(objective.config(**SIZES)).eval()
    model.config.sparse_prediction = False
    return model, objective.tokenizer


def greedy(model, ids: list[int], new: int, source: torch.Tensor | None = None) -> list[int]:
    """The likeliest token, again and again, without cache, padding or `generate`."""
    end = model.config.eos_token_id
    for _ in range(new):
        with torch.no_grad():
            given = {} if source is None else {"decoder_input_ids": torch.tensor([ids])}
            logits = model(torch.tensor([ids]) if source is None else source, **given).logits
        ids = [*ids, int(logits[0, -1].argmax())]
        if ids[-1] == end:
            break
    return ids


def test_prompts_together_are_continued_as_each_alone(causal) -> None:
    model, tokenizer = causal
    prompts = ["to be or", "t", "nobler in"]
    texts = continuations(model, tokenizer, prompts, new_tokens=9)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        assert text == tokenizer.decode(greedy(model, ids, 9), skip_special_tokens=True)
        assert text.startswith(prompt)
        assert continuations(model, tokenizer, [prompt], new_tokens=9) == [text]
    assert len({text[-5:] for text in texts}) > 1  # the prompt matters


def test_draws_are_of_the_seed(causal, tmp_path) -> None:
    model, tokenizer = causal
    save(model, tmp_path / "model", tokenizer)

    def drawn(seed: int) -> list[str]:
        return written(tmp_path, ["to be"], seed=seed, max_new_tokens=15, do_sample=True, temperature=2.0)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    # By default as much as there is room for, which is less than 100.
    ids = tokenizer("to be", add_special_tokens=False)["input_ids"]
    expected = tokenizer.decode(greedy(model, ids, 19), skip_special_tokens=True)
    assert written(tmp_path, ["to be"], seed=0, max_new_tokens=None) == [expected]


def test_translations_keep_their_order_over_batches(pair) -> None:
    model, tokenizer = pair
    start = model.config.decoder_start_token_id
    expected = []
    for source in SOURCES:
        ids = torch.tensor([tokenizer(source, truncation=True, max_length=13)["input_ids"]])
        expected.append(tokenizer.decode(greedy(model, [start], 12, ids), skip_special_tokens=True))
    assert len(set(expected)) > 1
    for size in (1, 4, 64):
        assert list(translations(model, tokenizer, SOURCES, batch_size=size)) == expected
    assert list(translations(model, tokenizer, [])) == []
    short = list(translations(model, tokenizer, SOURCES[:2], max_new_tokens=3))
    assert all(text.startswith(cut) and len(cut) <= 3 for text, cut in zip(expected, short, strict=False))


def test_what_cannot_be_continued_is_refused(causal) -> None:
    model, tokenizer = causal
    for prompts, new, message in (
        (["to", ""], 3, "a prompt must have at least one character, got an empty one"),
        (["to be"], 0, r"max_new_tokens must be in 1\.\.19 behind a prompt of 5 tokens, got 0"),
        (["t", "to be"], 20, r"max_new_tokens must be in 1\.\.19 behind a prompt of 5 tokens, got 20"),
        (["t" * 24], 1, "a prompt must have at most 23 tokens, got one of 24"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            continuations(model, tokenizer, prompts, new_tokens=new)


def test_what_writes_no_text_is_refused(causal, tmp_path) -> None:
    (tmp_path / "causal").mkdir()
    save(causal[0], tmp_path / "causal" / "model", causal[1])
    with pytest.raises(ValueError, match=r"^there must be at least one prompt, got none$"):
        written(tmp_path / "causal", [], seed=0, max_new_tokens=None)
    with pytest.raises(ValueError, match=r"^a prompt must have at most 23 tokens, got one of 40$"):
        written(tmp_path / "causal", ["t" * 40], seed=0, max_new_tokens=None)
    rows = Examples([("to be",), ("not",)], [0, 1])
    data = Labelled("written", ("a", "b"), rows, rows, rows)
    model, tokenizer = built(TextClassification(data, characters(), 16))
    (tmp_path / "labels").mkdir()
    save(model, tmp_path / "labels" / "model", tokenizer)
    message = "^the model must be a causal or a sequence-to-sequence one, got GreenformerForSequenceClassification$"
    with pytest.raises(ValueError, match=message):
        written(tmp_path / "labels", ["to be"], seed=0, max_new_tokens=None)
    with pytest.raises(FileNotFoundError):
        written(tmp_path / "nothing", ["to be"], seed=0, max_new_tokens=None)
