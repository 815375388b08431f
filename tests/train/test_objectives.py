"""What is learnt: examples, batches, losses and scores of every objective, against values made by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from tiny import SIZES, TEXT, batches, build, by_hand, characters

from greenformers.data import Document, Examples, Labelled, Pairs, Summaries, Text, load
from greenformers.train.causal_lm import CausalLM
from greenformers.train.classification import ImageClassification, TextClassification, TextRegression
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.replaced_token_detection import ReplacedTokenDetection
from greenformers.train.schedule import Schedule
from greenformers.train.seq2seq import Seq2Seq
from greenformers.train.stream import generator
from greenformers.train.task import objective_name, texts_of
from greenformers.train.text import encoded

PAIRS = Pairs(
    "written", "en", "de",
    [("a dog", "ein hund"), ("two big dogs run", "zwei hunde"), ("no", "nein nein nein nein"), ("cat", "katze")],
    [("a cat", "eine katze"), ("dogs", "hunde"), ("two", "zwei grosse")], [],
)  # fmt: skip


@pytest.mark.parametrize("kind", [MaskedLM, CausalLM, Seq2Seq])
def test_the_loss_of_a_split_is_the_mean_over_its_labels_whatever_the_batches(kind) -> None:
    data = PAIRS if kind is Seq2Seq else TEXT
    texts = [text for pair in PAIRS.train for text in pair] if kind is Seq2Seq else TEXT.train
    objective = kind(data, characters(texts), 13)
    model = build(objective)
    expected = by_hand(model, objective, "valid")
    model.train()
    for size in (1, 2, 5, 1000):
        scores = objective.evaluate(model, "valid", size)
        assert scores == {
            "loss": pytest.approx(expected, rel=1e-5),
            "perplexity": pytest.approx(math.exp(expected), rel=1e-4),
        }
    assert model.training  # left as it was
    assert expected > 1


def test_a_hopeless_model_has_a_perplexity_all_the_same() -> None:
    objective = CausalLM(TEXT, characters(), 16)
    model = build(objective)
    with torch.no_grad():
        model.score.weight.mul_(1e5)
    scores = objective.evaluate(model, "valid", 8)
    assert scores["loss"] > 700
    assert scores["perplexity"] == pytest.approx(math.exp(700))


# Running text.


def test_a_long_text_is_tokenized_some_lines_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, asked = characters("ab\ncd\n"), []

    def spied(lines, **options):
        asked.append(len(lines))
        return tokenizer(lines, **options)

    monkeypatch.setattr("greenformers.train.text.AT_ONCE", 3)
    text = "ab\ncd\n" * 4
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    assert encoded(spied, text).tolist() == ids  # type: ignore[arg-type]
    assert asked == [3, 3, 2]
    assert encoded(tokenizer, "").tolist() == []


def test_blocks_tile_the_text() -> None:
    tokenizer = characters()
    causal, masked = CausalLM(TEXT, tokenizer, 11), MaskedLM(TEXT, tokenizer, 13)
    ids = tokenizer(TEXT.train, add_special_tokens=False, verbose=False)["input_ids"]
    whole = len(ids) // 11 * 11
    assert len(ids) - whole > 0
    assert causal.size("train") == len(ids) // 11
    for objective in (causal, masked):
        assert objective.blocks("train").flatten().tolist() == ids[:whole]
    example = causal.example("train", 3, generator(0))
    assert example["input_ids"].tolist() == example["labels"].tolist() == ids[33:44]
    batch = causal.collate([example, example])
    assert batch["input_ids"].shape == (2, 11)
    assert causal.scored(batch) == 20
    assert causal.config(**SIZES).max_position_embeddings == 11
    assert tokenizer.decode(masked.blocks("test")[0]) == TEXT.test[:11]


def test_a_block_longer_than_the_text_is_refused() -> None:
    tokenizer = characters()
    short = Text("written", TEXT.train, "to be", "")
    with pytest.raises(ValueError, match=r"^length must be at most 5, the valid tokens, got 6$"):
        CausalLM(short, tokenizer, 6).size("valid")
    assert CausalLM(short, tokenizer, 5).size("valid") == 1
    with pytest.raises(ValueError, match=r"^length must be at most 7, the valid tokens, got 8$"):
        MaskedLM(short, tokenizer, 8).size("valid")
    with pytest.raises(ValueError, match=r"^written has no test split in the folder or dataset given$"):
        CausalLM(short, tokenizer, 5).size("test")
    for kind, least in ((CausalLM, 2), (MaskedLM, 4), (ReplacedTokenDetection, 4)):
        with pytest.raises(ValueError, match=f"^length must be at least {least}, got {least - 1}$"):
            kind(TEXT, tokenizer, least - 1)


def test_masks_have_devlins_shares() -> None:
    objective = MaskedLM(TEXT, characters(), 42)
    mask, size = objective.tokenizer.mask_token_id, len(objective.tokenizer)
    text = objective.blocks("train")[2].long()
    examples = [objective.example("train", 2, generator(n)) for n in range(1500)]
    hidden, labels = (torch.stack([example[name] for example in examples]) for name in ("input_ids", "labels"))
    assert (hidden[:, 0] == objective.tokenizer.cls_token_id).all()
    assert (hidden[:, -1] == objective.tokenizer.sep_token_id).all()
    asked = labels != -100
    assert not asked[:, 0].any()
    assert not asked[:, -1].any()
    hidden, labels, asked = hidden[:, 1:-1], labels[:, 1:-1], asked[:, 1:-1]
    original = text.expand_as(hidden)
    assert torch.equal(labels[asked], original[asked])
    assert torch.equal(hidden[~asked], original[~asked])
    n, count = asked.numel(), int(asked.sum())  # 60,000 and 9,000

    def near(observed: float, share: float, of: int) -> bool:
        return abs(observed - share) < 4 * math.sqrt(share * (1 - share) / of)

    assert near(count / n, 0.15, n)
    assert near((hidden[asked] == mask).float().mean(), 0.8 + 0.1 / size, count)
    # A random token is the original one time in `size`, and counts as kept then.
    assert near((hidden == original)[asked].float().mean(), 0.1 + 0.1 / size, count)
    others = hidden[asked & (hidden != mask) & (hidden != original)]
    assert set(others.tolist()) == set(range(size)) - {mask}
    # Every place is asked for alike.
    assert chisquare(asked.sum(0)).pvalue > 1e-3
    assert len({tuple(row) for row in asked.tolist()}) > 1490


def test_every_block_has_the_same_number_of_labels() -> None:
    for length, expected in ((4, 1), (22, 3), (42, 6)):  # 15 % of what is text, at least one
        objective = MaskedLM(TEXT, characters(), length)
        labels = torch.stack([objective.example("train", 0, generator(n))["labels"] for n in range(50)])
        assert (labels != -100).sum(1).tolist() == [expected] * 50


# Pairs.


def pairs(length: int) -> Seq2Seq:
    return Seq2Seq(PAIRS, characters([text for pair in PAIRS.train for text in pair]), length)


def test_sources_and_targets() -> None:
    objective = pairs(30)
    tokenizer = objective.tokenizer
    example = objective.example("train", 0, generator(0))
    assert tokenizer.convert_ids_to_tokens(example["input_ids"]) == ["[CLS]", *"a dog", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(example["labels"]) == [*"ein hund", "[SEP]"]
    assert objective.lengths.tolist() == [9, 18, 20, 6]
    batch = objective.collate([objective.example("train", i, generator(0)) for i in (0, 3)])
    pad = tokenizer.pad_token_id
    assert batch["input_ids"][1].tolist() == [*tokenizer("cat")["input_ids"], pad, pad]
    assert batch["attention_mask"].tolist() == [[1] * 7, [1] * 5 + [0] * 2]
    assert batch["labels"][1, 5:].tolist() == [tokenizer.sep_token_id, -100, -100, -100]
    assert objective.scored(batch) == 9 + 6
    config = objective.config(**SIZES)
    assert (config.decoder_layers, config.max_position_embeddings) == (1, 30)
    assert config.decoder_start_token_id == tokenizer.cls_token_id
    assert objective.config(**SIZES | {"decoder_layers": 2}).decoder_layers == 2


def test_targets_may_be_shorter_than_sources() -> None:
    objective = Seq2Seq(PAIRS, characters([text for pair in PAIRS.train for text in pair]), 30, 4)
    example = objective.example("train", 0, generator(0))
    assert objective.tokenizer.convert_ids_to_tokens(example["input_ids"]) == ["[CLS]", *"a dog", "[SEP]"]
    assert objective.tokenizer.convert_ids_to_tokens(example["labels"]) == [*"ein", "[SEP]"]
    for length in (1, 31):
        with pytest.raises(ValueError, match=rf"^target_length must be in 2\.\.30, the length, got {length}$"):
            Seq2Seq(PAIRS, objective.tokenizer, 30, length)


def test_the_first_summary_of_a_document_is_its_target() -> None:
    papers = [Document("a dog", "it ran", ("dog ran", "ran")), Document("", "it sat", ("sat",))]
    data = Summaries("written", papers, papers[1:], [])
    assert [*texts_of(data)] == ["a dog | it ran", "dog ran", "ran", "it sat", "sat"]
    assert objective_name(None, data, "written") == "seq2seq"
    objective = Seq2Seq(data, characters([*texts_of(data)]), 30)
    assert objective.texts("train") == [("a dog | it ran", "dog ran"), ("it sat", "sat")]
    example = objective.example("train", 0, generator(0))
    assert objective.tokenizer.convert_ids_to_tokens(example["labels"]) == [*"dog ran", "[SEP]"]
    assert objective.size("valid") == 1


def test_long_pairs_are_cut() -> None:
    objective = pairs(7)
    example = objective.example("train", 1, generator(0))
    assert objective.tokenizer.convert_ids_to_tokens(example["input_ids"]) == ["[CLS]", *"two b", "[SEP]"]
    # Behind the start token the decoder reads 7, and the last it writes is the end.
    assert objective.tokenizer.convert_ids_to_tokens(example["labels"]) == [*"zwei h", "[SEP]"]
    assert objective.lengths.tolist() == [7, 7, 7, 6]
    with pytest.raises(ValueError, match=r"^length must be at least 4, got 3$"):
        pairs(3)


# Labelled texts.


def labelled(kind=TextClassification, length: int = 20, train: bool = True, classes=("yes", "no")):
    rows = [("is it?", "it is."), ("a question of some length", "an answer"), ("who", "me"), ("x", "y")]
    examples = Examples(rows, [0, 1, 1, 0] if classes else [0.5, 5.0, 2.5, 1.0])
    data = Labelled("written", classes, examples if train else Examples(), examples, Examples())
    return kind(data, characters([text for row in rows for text in row]), length)


def test_two_segments_and_their_cut() -> None:
    objective = labelled()
    words = objective.tokenizer.convert_ids_to_tokens
    assert words(objective.rows("train")[0]) == ["[CLS]", *"is it?", "[SEP]", *"it is.", "[SEP]"]
    # Both are cut to share the room: 9 and 8.
    assert words(objective.rows("train")[1]) == ["[CLS]", *"a questio", "[SEP]", *"an answe", "[SEP]"]
    assert objective.lengths.tolist() == [15, 20, 8, 5]
    batch = objective.collate([objective.example("train", i, generator(0)) for i in (2, 3)])
    assert batch["labels"].tolist() == [1, 0]
    assert batch["attention_mask"].tolist() == [[1] * 8, [1] * 5 + [0] * 3]
    assert batch["input_ids"][1, 5:].tolist() == [objective.tokenizer.pad_token_id] * 3
    assert objective.config(**SIZES).num_labels == 2
    with pytest.raises(ValueError, match=r"^length must be at least 4, got 3$"):
        labelled(length=3)


def test_accuracy_is_of_every_text() -> None:
    objective = labelled()
    model = build(objective)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
    assert objective.evaluate(model, "valid", 3) == {"accuracy": 50.0}
    # Padding has no part in it: alone or in a batch, the same answer.
    model = build(objective, seed=1)
    alone = torch.cat([model(**batch).logits for batch in batches(objective, "valid", 1)])
    (together,) = batches(objective, "valid", 4)
    torch.testing.assert_close(model(**together).logits, alone, rtol=1e-4, atol=1e-5)


def test_without_a_training_split_it_can_be_scored_but_not_trained_on() -> None:
    objective = labelled(train=False)
    assert objective.lengths is None
    assert 0 <= objective.evaluate(build(objective), "valid", 4)["accuracy"] <= 100
    with pytest.raises(ValueError, match=r"^written has no train split in the folder or dataset given$"):
        Schedule(batch_size=2).stream(objective)


def test_scores_of_numbers() -> None:
    objective = labelled(TextRegression, classes=None)
    assert objective.config(**SIZES).num_labels == 1
    model = build(objective)
    told = iter([1.0, 2.0, 4.0, 3.0])  # wanted: 0.5, 5, 2.5, 1

    def answer(_module, _given, output):
        output.logits = torch.tensor([[next(told)] for _ in output.logits])
        return output

    model.register_forward_hook(answer)
    scores = objective.evaluate(model, "valid", 3)
    # Ranks 1 2 4 3 and 1 4 3 2: 1 - 6 (0 + 4 + 1 + 1) / (4 x 15).
    assert scores["spearman"] == pytest.approx(40)
    # Deviations from the means, 2.5 and 2.25.
    x, y = torch.tensor([-1.5, -0.5, 1.5, 0.5]), torch.tensor([-1.75, 2.75, 0.25, -1.25])
    assert scores["pearson"] == pytest.approx(100 * float(x @ y / (x @ x * (y @ y)).sqrt()), abs=1e-4)
    assert scores["rmse"] == pytest.approx(math.sqrt((0.25 + 9 + 2.25 + 4) / 4))


def test_images_are_scored_on_the_split_asked_for() -> None:
    data = load("digits", limit=30, pool=4)
    objective = ImageClassification(data)
    assert (objective.size("train"), objective.size("valid"), objective.size("test")) == (30, 30, 30)
    model = build(objective)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(F.one_hot(torch.tensor(3), 10))
    for split, part in (("train", data.train), ("valid", data.test), ("test", data.test)):
        share = 100 * (part.labels == 3).double().mean().item()
        assert objective.evaluate(model, split, 7) == {"accuracy": pytest.approx(share)}
    with pytest.raises(ValueError, match=r"^split must be one of train, valid, test, got 'dev'$"):
        objective.evaluate(model, "dev", 7)
