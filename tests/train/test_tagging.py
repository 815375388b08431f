"""Tagging: labels at the first token of every word by every tokenizer, and an F1 that a run reaches."""

from pathlib import Path

import pytest
import torch
from tiny import QUIET, SIZES, written
from torch.testing import assert_close

from greenformers.data import TOKENIZERS, Sentences, Tagged, load, train_tokenizer
from greenformers.data._words import first_tokens
from greenformers.measure.entities import entity_scores
from greenformers.train import fit_pipeline
from greenformers.train.fit import fit
from greenformers.train.settings import Settings
from greenformers.train.stream import Stream, generator
from greenformers.train.tagging import Tagging

WORDS = [["@ann", "saw", "New", "York", "!"], ["é", "🙂🙂", "x"], ["a"]]
TAGS = [[1, 0, 3, 4, 0], [0, 2, 1], [0]]
NAMES = ("O", "B-person", "I-person", "B-location", "I-location")
SENTENCES = Sentences(WORDS, TAGS)
DATA = Tagged("written", NAMES, SENTENCES, SENTENCES, Sentences())


def tagging(kind: str = "bpe", length: int = 60) -> Tagging:
    texts = [" ".join(words) for words in WORDS] * 3
    vocabulary = 280 if kind == "bpe" else None
    return Tagging(DATA, train_tokenizer(kind, texts, max_length=length, vocab_size=vocabulary), length)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_word_has_one_label_at_its_first_token(kind: str) -> None:
    objective = tagging(kind)
    for place, words in enumerate(WORDS):
        example = objective.example("train", place, generator(0))
        labels, ids = example["labels"].tolist(), example["input_ids"].tolist()
        assert [label for label in labels if label != -100] == TAGS[place]
        assert labels[0] == labels[-1] == -100
        # The tokens from one label to the next are the word.
        starts = [at for at, label in enumerate(labels) if label != -100]
        for word, start, end in zip(words, starts, [*starts[1:], len(ids) - 1], strict=True):
            assert objective.tokenizer.decode(ids[start:end]).strip() == word


def test_first_tokens_by_hand() -> None:
    # "ab cde f": [CLS], "ab", " c", "de", " ", "f", [SEP]
    spans = [(0, 0), (0, 2), (2, 4), (4, 6), (6, 7), (7, 8), (0, 0)]
    assert first_tokens(["ab", "cde", "f"], spans) == [-1, 0, 1, -1, -1, 2, -1]


def test_a_batch_is_padded_and_its_padding_is_not_scored() -> None:
    objective = tagging()
    examples = [objective.example("train", place, generator(0)) for place in range(3)]
    batch = objective.collate(examples)
    for row, example in enumerate(examples):
        count = len(example["labels"])
        assert batch["attention_mask"][row].tolist() == [1] * count + [0] * (len(batch["labels"][0]) - count)
        assert (batch["labels"][row, count:] == -100).all()
        assert (batch["input_ids"][row, count:] == objective.tokenizer.pad_token_id).all()
    torch.manual_seed(0)
    model = objective.build(objective.config(**SIZES)).eval()
    logits = model(**batch).logits
    for row, example in enumerate(examples):
        count = len(example["labels"])
        alone = model(input_ids=example["input_ids"][None]).logits[0]
        assert_close(logits[row, :count], alone, atol=1e-5, rtol=1e-4)


def test_a_stage_of_one_shape_is_not_taught_its_padding() -> None:
    run = object.__new__(fit_pipeline._Run)
    run.objective = tagging()
    run.stream, run.longest = Stream(run.objective, 3, 1, 0), 60
    batch = run._batch(0)
    assert batch["labels"].shape == (3, 60)
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    assert run.objective.scored(batch) == sum(map(len, TAGS))


def test_the_score_is_that_of_predictions_sentence_by_sentence() -> None:
    objective = tagging(length=9)  # which cuts off words
    torch.manual_seed(0)
    model = objective.build(objective.config(**SIZES | {"initializer_range": 2.0})).eval()
    assert model.config.id2label == dict(enumerate(NAMES))
    predicted = []
    for place, words in enumerate(WORDS):
        example = objective.example("valid", place, generator(0))
        tags = model(input_ids=example["input_ids"][None]).logits[0].argmax(-1)
        seen = [NAMES[tag] for tag, label in zip(tags, example["labels"], strict=True) if label != -100]
        predicted.append([*seen, *["O"] * (len(words) - len(seen))])
    assert len(predicted[0]) == 5
    assert objective.predicted(model, "valid", 2) == predicted
    assert objective.right("valid") == [[NAMES[tag] for tag in row] for row in TAGS]
    expected = entity_scores(predicted, [[NAMES[tag] for tag in row] for row in TAGS])
    for size in (1, 3):
        assert objective.evaluate(model, "valid", size) == pytest.approx(expected)


def test_it_learns(tmp_path: Path) -> None:
    """Through the settings of a run: names that are always entities are told after some steps."""
    lines = "ann\tB-person\nmet\tO\nbo\tB-person\n"
    other = "in\tO\nnew\tB-location\nyork\tI-location"
    text = f"{lines}\n{other}\n\n" * 6
    folder = written(tmp_path / "data", wnut17_train__conll=text, wnut17_dev__conll=text)
    settings = Settings(
        data="wnut17", folder=folder, tokenizer="words", length=8, hidden=16, heads=2, feed_forward=32, layers=1,
        steps=60, batch=6, learning_rate=1e-2,
    )  # fmt: skip
    task = settings.task()
    assert isinstance(task.objective, Tagging)
    model = task.network()
    assert task.objective.evaluate(model, "valid", 4)["f1"] < 50
    history = fit(model, task.objective, settings.schedule, label="tags", console=QUIET)
    assert history.curve("eval_f1")[-1][1] == pytest.approx(100)
    assert set(task.objective.evaluate(model, "valid", 4)) == {"f1", "precision", "recall"}


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^length must be at least 3, got 2$"):
        Tagging(DATA, tagging().tokenizer, 2)
    folder = written(tmp_path, wnut17_train__conll="ann\tB-person\n")
    with pytest.raises(ValueError, match=r"^objective must be one of tagging for wnut17, got 'causal_lm'$"):
        Settings(data="wnut17", folder=folder, objective="causal_lm").task()
    with pytest.raises(ValueError, match=r"^wnut17 has no valid split in the folder or dataset given$"):
        load("wnut17", folder).split("valid")
