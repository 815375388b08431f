"""Early exits: texts leave where an oracle says, alone as beside others, and lose no more than is allowed."""

import copy
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models import folder, sentences, tokenizer
from torch import Tensor
from transformers import PreTrainedModel
from typer.testing import CliRunner
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes import Exits, Given
from greenformers.changes._exit_check import fitting
from greenformers.changes._exit_modules import EncoderExit, Rule
from greenformers.changes._exit_passes import Scripted, named, selected
from greenformers.changes._exit_threshold import choose, enough, left_by, upper
from greenformers.changes._exit_training import parted
from greenformers.changes._exits import EarlyExits, exits_in, put
from greenformers.checkpoint.structure import structure
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.export.write import write
from greenformers.measure.flops import flops
from greenformers.model import GreenformerConfig, GreenformerModel
from greenformers.position import Rotation
from greenformers.train.run import Stopped

LAYERS, ROWS, LONGEST = 5, 11, 13
KINDS = {
    "bert classifier": ("bert", "BertForSequenceClassification", {"num_labels": 3, "num_hidden_layers": LAYERS}),
    "distilbert classifier": ("distilbert", "DistilBertForSequenceClassification", {"n_layers": LAYERS}),
    "roberta classifier": ("roberta", "RobertaForSequenceClassification", {"num_hidden_layers": LAYERS}),
    "bert encoder": ("bert", "BertModel", {"num_hidden_layers": LAYERS}),
    "bert masked": ("bert", "BertForMaskedLM", {"num_hidden_layers": LAYERS}),
}
BY = [("bert classifier", "confidence"), ("bert classifier", "entropy"), ("bert encoder", "error"),
      ("bert encoder", "saturation")]  # fmt: skip


def built(kind: str, by: str | None = None, patience: int = 1) -> tuple[PreTrainedModel, EarlyExits]:
    """A network with exits that are drawn at random, by which texts leave after different layers."""
    name, cls, more = KINDS[kind]
    model = network(name, cls, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() == 2 else 1)
    fit = fitting(model, None, by)
    exits = fit.exits(patience, 0)
    source = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in exits.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=source))
    put(model, fit.path, exits)
    exits.rule = Rule(fit.by, middle(model, exits), patience)
    return model.eval(), exits


def middle(model: PreTrainedModel, exits: EarlyExits) -> float:
    """The threshold, not near to any score, by which texts leave after as many layers as possible."""
    scores = torch.tensor(by_hand(model, exits, padded(), math.inf)[1])
    values = scores.flatten().sort().values
    between = [(a + b) / 2 for a, b in zip(values[:-1].tolist(), values[1:].tolist(), strict=True) if b - a > 1e-3]
    same = torch.zeros_like(scores)
    return max(
        between, key=lambda value: len(set(left_by(Rule("", value, exits.rule.patience), scores, same).tolist()))
    )


def padded(length: int = LONGEST) -> dict[str, Tensor]:
    """Texts of 3 to 13 tokens."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 53, (ROWS, length), generator=draw)
    ids[:, :LONGEST] = torch.randint(3, 53, (ROWS, LONGEST), generator=draw.manual_seed(4))
    mask = (torch.arange(length) < torch.arange(3, 3 + ROWS)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def by_hand(
    model: PreTrainedModel, exits: EarlyExits, batch: dict[str, Tensor], threshold: float | None = None
) -> tuple[list[int], list[list[float]], list[Tensor]]:
    """Where texts leave, all scores, and logits or states: all layers are run, then texts are read one by one."""
    threshold = exits.rule.threshold if threshold is None else threshold
    with torch.no_grad():
        out = model(**batch, output_hidden_states=True)
    places, all_scores, said = [], [], []
    for row, mask in enumerate(batch["attention_mask"].bool()):
        h = [states[row][mask].double() for states in out.hidden_states]
        place, streak, before, class_before = LAYERS - 1, 0, h[0].mean(0), None
        answer = out.logits[row] if exits.classes else out.hidden_states[-1][row]
        scores = []
        for layer in range(LAYERS - 1):
            weights = {name: x.detach().double() for name, x in exits.by_layer[layer].named_parameters()}
            c, m = h[layer + 1][0], h[layer + 1].mean(0)
            z, given, score, told = spoken(weights, c, m, h[layer + 1], before, exits)
            scores.append(score)
            same = class_before in (None, told)
            streak = 0 if score <= threshold else streak + 1 if same else 1
            before, class_before = z, told
            if streak >= exits.rule.patience and place == LAYERS - 1:
                place, answer = layer, given
        places.append(place)
        all_scores.append(scores)
        said.append(answer.double())
    return places, all_scores, said


def spoken(
    weights: dict[str, Tensor], c: Tensor, m: Tensor, h: Tensor, before: Tensor, exits: EarlyExits
) -> tuple[Tensor, Tensor, float, int]:
    """What an exit says of a text, what it gives in place of the network, how sure it is, and the class."""
    if exits.classes:
        hidden = (weights["hidden.weight"] @ torch.cat([c, m]) + weights["hidden.bias"]).tanh()
        z = weights["logits.weight"] @ hidden + weights["logits.bias"]
        p = (z.exp() / z.exp().sum()).sort(descending=True).values.tolist()
        entropy = -sum(x * math.log(x) for x in p)
        score = p[0] - p[1] if exits.rule.by == "confidence" else 1 - entropy / math.log(len(p))
        return z, z, score, int(z.argmax())
    W, b = weights["map.weight"], weights["map.bias"]
    g = torch.stack([x + W @ x + b for x in h])
    z = m + W @ m + b
    foretold = (weights["error.weight"] @ (z / z.norm()) + weights["error.bias"]).exp()
    cosine = z @ before / (z.norm() * before.norm())
    return z, g, float(1 - foretold if exits.rule.by == "error" else cosine), 0


def answers(model: PreTrainedModel, batch: dict[str, Tensor]) -> list[Tensor]:
    """Logits of each text of a classifier, else the output for its tokens."""
    first, mask = outputs(model, batch)[0], batch["attention_mask"].bool()
    return [x if x.dim() == 1 else x[keep] for x, keep in zip(first, mask, strict=True)]


def places(model: PreTrainedModel, exits: EarlyExits, batch: dict[str, Tensor]) -> list[int]:
    """The layers after which texts leave."""
    way = exits.early(batch["attention_mask"].bool())
    with torch.no_grad(), exits.going(way):
        model(**batch)
    assert way.places is not None
    return list(way.places.tolist())


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.parametrize(("kind", "by"), BY)
def test_texts_leave_where_the_oracle_says_with_what_it_says(kind: str, by: str, patience: int) -> None:
    model, exits = built(kind, by, patience)
    batch = padded()
    expected, _, said = by_hand(model, exits, batch)
    assert len(set(expected)) >= 2
    assert places(model, exits, batch) == expected
    mask = batch["attention_mask"].bool()
    for row, (x, y) in enumerate(zip(answers(model, batch), said, strict=True)):
        y = y if y.dim() == 1 or len(y) == len(x) else y[mask[row]]
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_alone_is_a_text_beside_others_however_padded(kind: str) -> None:
    model, exits = built(kind)
    batch = padded()
    assert len(set(places(model, exits, batch))) >= 2
    together, farther = answers(model, batch), answers(model, padded(LONGEST + 4))
    for row in range(ROWS):
        count = int(batch["attention_mask"][row].sum())
        alone = answers(model, {name: x[row : row + 1, :count] for name, x in batch.items()})[0]
        torch.testing.assert_close(together[row], alone, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(farther[row], alone, rtol=1e-4, atol=1e-4)


def test_the_output_is_whole_in_any_form_and_the_loss_is_of_what_is_said() -> None:
    model, _ = built("bert classifier")
    batch, labels = padded(), torch.arange(ROWS) % 3
    with torch.no_grad():
        out = model(**batch, labels=labels)
        loss, logits = model(**batch, labels=labels, return_dict=False)
        positional = model(batch["input_ids"], batch["attention_mask"])
    assert out.logits.equal(logits)
    assert positional.logits.equal(logits)
    assert loss.item() == out.loss.item() == pytest.approx(F.cross_entropy(logits, labels).item())
    encoder, _ = built("bert encoder")
    with torch.no_grad():
        assert encoder(**batch).pooler_output.equal(encoder.pooler(encoder(**batch).last_hidden_state))


def test_whoever_asks_for_gradients_or_states_gets_the_whole_network() -> None:
    model, exits = built("bert classifier")
    batch = padded()
    whole = copy.deepcopy(model)
    assert Exits.revert(whole) == LAYERS - 1
    assert structure(whole).empty
    expected = outputs(whole, batch)[0]
    assert not outputs(model, batch)[0].equal(expected)
    assert model(**batch).logits.equal(expected)
    with torch.no_grad():
        assert model(**batch, output_hidden_states=True).logits.equal(expected)
        assert len({len(x) for x in model(**batch, output_hidden_states=True).hidden_states}) == 1
        model.train()
        assert model(**batch).logits.shape == expected.shape
        assert exits.way is None
    model.eval()
    model(**batch).logits.sum().backward()
    assert model.bert.encoder.layer[LAYERS - 1].output.dense.weight.grad.abs().sum() > 0
    # A mask of every pair of positions does not tell what is padding: nobody leaves.
    pairs = batch["attention_mask"][:, None, None, :].expand(-1, 1, LONGEST, -1).bool()
    with torch.no_grad():
        torch.testing.assert_close(model(batch["input_ids"], pairs).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert classifier", "bert encoder"])
def test_never_and_always(kind: str) -> None:
    model, exits = built(kind)
    whole = copy.deepcopy(model)
    Exits.revert(whole)
    batch = padded()
    exits.rule = Rule(exits.rule.by, 1.0)
    assert outputs(model, batch)[0].equal(outputs(whole, batch)[0])
    exits.rule = Rule(exits.rule.by, -math.inf)
    for count in (1, ROWS):
        part = {name: x[:count] for name, x in batch.items()}
        ran: list[int] = []
        handles = [
            layer.attention.register_forward_hook(lambda *_, ran=ran, place=place: ran.append(place))
            for place, layer in enumerate(model.base_model.encoder.layer)
        ]
        assert places(model, exits, part) == [0] * count
        for handle in handles:
            handle.remove()
        assert ran == [0]
    with torch.no_grad():
        cost, full_cost = flops(lambda: model(**batch)), flops(lambda: whole(**batch))
    assert cost < full_cost / (LAYERS - 1)


@pytest.mark.parametrize(("count", "leave", "running"), [(16, 1, 16), (16, 2, 14), (8, 1, 7), (5, 5, None)])
def test_texts_that_have_left_are_taken_out_once_they_are_an_eighth(
    count: int, leave: int, running: int | None
) -> None:
    model, exits = built("bert classifier")
    batch, seen = inputs("bert", count), []
    whole = model(**batch).logits
    model.bert.encoder.layer[1].attention.register_forward_hook(lambda _, __, output: seen.append(len(output[0])))
    way = exits.early(None, Scripted)
    assert isinstance(way, Scripted)
    way.named = tuple(range(leave))
    with torch.no_grad(), exits.going(way):
        logits = model(**batch).logits
    assert seen == ([] if running is None else [running])
    torch.testing.assert_close(logits[leave:], whole[leave:])
    assert not torch.isclose(logits[:leave], whole[:leave]).all(-1).any()


def test_what_texts_share_is_not_selected() -> None:
    rows, table, mask = torch.tensor([0, 2]), torch.randn(3, 5), torch.randn(3, 1)
    given = ([mask, (table, mask)], {"table": table, "mask": mask, "flag": True, "none": None, "one": torch.ones(1, 3)})
    args, options = selected(given, 3, rows, (".0.1.0", ".1.table"))
    assert args[0].equal(mask[rows])
    assert args[1][0] is options["table"] is table
    assert args[1][1].equal(options["mask"])
    assert options["mask"].equal(mask[rows])
    assert options["one"].shape == (1, 3)


def test_angles_of_rotary_positions_are_those_of_the_texts_that_go_on() -> None:
    """Behind padding each text has angles of its own, in a named tuple."""
    rows, angles = torch.tensor([0, 2]), Rotation(torch.randn(3, 1, 5, 4), torch.randn(3, 1, 5, 4))
    own = selected({"rotation": angles}, 3, rows)["rotation"]
    assert isinstance(own, Rotation)
    assert own.cos.equal(angles.cos[rows])
    assert own.sin.equal(angles.sin[rows])
    assert [name for name, _ in named({"rotation": angles})] == [".rotation.0", ".rotation.1"]

    torch.manual_seed(0)
    model = GreenformerModel(
        GreenformerConfig(
            vocab_size=53, hidden_size=16, num_attention_heads=2, intermediate_size=24, num_hidden_layers=3,
            max_position_embeddings=31, position="rotary", initializer_range=0.3,
        )
    ).eval()  # fmt: skip
    fit = fitting(model, None, None)
    exits = fit.exits(1, 0)
    put(model, fit.path, exits)
    batch = {name: x.flip(1) for name, x in padded().items()}
    mask = batch["attention_mask"].bool()
    way = exits.early(mask, Scripted)
    assert isinstance(way, Scripted)
    way.named = (0, 3, 4)
    with torch.no_grad():
        whole = model(**batch).last_hidden_state
        with exits.going(way):
            some = model(**batch).last_hidden_state
    for row in set(range(ROWS)) - set(way.named):
        torch.testing.assert_close(some[row][mask[row]], whole[row][mask[row]])


def test_copies_have_exits_of_their_own() -> None:
    model, exits = built("bert encoder")
    copied = copy.deepcopy(model)
    (other,) = exits_in(copied).values()
    other.rule = Rule(other.rule.by, 1.0)
    assert outputs(copied, padded())[0].equal(model(**padded()).last_hidden_state)
    assert len(set(places(model, exits, padded()))) >= 3
    assert other is not exits


# The threshold.


def test_bounds_are_those_of_their_definitions() -> None:
    assert enough(0.01) == 299
    assert upper(torch.zeros(299)) == pytest.approx(1 - 0.05 ** (1 / 299), abs=1e-6)
    for count, lost in ((50, 3), (7, 7), (200, 1)):
        losses = torch.zeros(count)
        losses[:lost] = 1
        share = upper(losses)
        if lost == count:
            assert share == pytest.approx(1)
            continue
        tail = sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(lost + 1))
        assert tail == pytest.approx(0.05, rel=1e-4)


def test_a_bound_of_distances_holds_in_nineteen_draws_of_twenty_and_tightens() -> None:
    source = torch.Generator().manual_seed(0)
    # A tenth of the texts loses up to a fifth: 0.01 on average.
    losses = 0.2 * torch.rand(60, 400, generator=source) * (torch.rand(60, 400, generator=source) < 0.1)
    shares = torch.tensor([upper(row) for row in losses])
    assert (shares < 0.01).double().mean() <= 0.05
    assert 0.01 < shares.median() < 0.03
    assert upper(losses.flatten()[:4000]) < shares.median()


def test_the_lowest_threshold_that_is_shown_to_do_is_chosen() -> None:
    def losses(threshold: float) -> Tensor:
        lost = torch.zeros(1000)
        lost[: round(100 * (1 - threshold))] = 1
        return lost

    threshold = choose(losses, 0.02)
    assert threshold is not None
    steps = [1 - 2 ** (-k / 4) for k in range(65)]
    assert threshold == min(step for step in steps if upper(losses(step)) <= 0.02)
    assert choose(lambda _: torch.ones(1000), 0.5) is None


def test_the_distance_foretold_is_fitted_to_logarithms() -> None:
    exit_, source = EncoderExit(7), torch.Generator().manual_seed(0)
    z, u = torch.randn(4000, 7, generator=source), torch.randn(7, generator=source)
    distances = (F.normalize(z, dim=-1) @ u - 3).exp()
    exit_.fit_error(z, distances)
    torch.testing.assert_close(exit_.log_error(z), distances.log(), rtol=0, atol=0.02)


def test_patience_counts_exits_in_a_row_of_one_class() -> None:
    scores = torch.tensor([[0.9, 0.9, 0.1, 0.9], [0.9, 0.1, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]])
    classes = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    assert left_by(Rule("confidence", 0.5, 2), scores, classes).tolist() == [1, 3, 3, 4]
    assert left_by(Rule("confidence", 0.5, 1), scores, classes).tolist() == [0, 0, 0, 4]


# The change.

TEXTS = 160


def compressed(kind: str, **options: Any) -> tuple[PreTrainedModel, PreTrainedModel, Any]:
    """A network before and after, and the report."""
    name, cls, more = KINDS[kind]
    model = network(name, cls, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() == 2 and "classifier" in kind else 1)
    before = copy.deepcopy(model)
    change = Exits(**{"steps": 12, "batch_size": 16, "lose": 0.3, **options})
    report = greenformers.compress(model, change, texts=sentences(TEXTS), tokenizer=tokenizer(name), length=11)
    return before, model, report


@pytest.mark.parametrize("kind", ["bert classifier", "bert encoder"])
def test_no_more_is_lost_than_is_allowed_and_the_layers_stay(kind: str) -> None:
    before, model, report = compressed(kind)
    (exits,) = exits_in(model).values()
    own = before.state_dict()
    after = {name: x for name, x in model.state_dict().items() if "early_exits" not in name}
    assert after.keys() == own.keys()
    assert all(x.equal(own[name]) for name, x in after.items())
    assert all(x.requires_grad for x in model.parameters())
    assert model(**padded()).to_tuple()[0].equal(before(**padded()).to_tuple()[0])
    reader = Reader.of(before, tokenizer("bert"), 11)
    _, held = parted(reader.rows(Texts("texts", [(text,) for text in sentences(TEXTS)])))
    assert len(held) == TEXTS / 4
    batch = held.collate(list(held))
    whole, early = outputs(before, batch)[0], outputs(model, batch)[0]
    if exits.classes:
        lost = (whole.argmax(-1) != early.argmax(-1)).float()
    else:
        weight = batch["attention_mask"][..., None].float()
        vectors = [(x * weight).sum(1) / weight.sum(1) for x in (whole, early)]
        lost = 1 - F.cosine_similarity(*vectors)
    assert upper(lost) <= 0.3
    left = sum(place < LAYERS - 1 for place in places(model, exits, batch))
    (said,) = report.summary()
    assert left > 0
    assert "texts held out" in said
    assert f"at {exits.rule.by} above" in said
    assert len(report.units) == LAYERS - 1
    losses = [entry["eval_distance"] for entry in report.steps[0].report.log if "eval_distance" in entry]
    assert losses[-1] < losses[0]


def test_a_signal_ends_the_training_of_exits_and_there_are_none() -> None:
    """The signal was lost, and exits of a few steps were taken for those of all."""
    model = network("bert", "BertForSequenceClassification", num_labels=3, num_hidden_layers=LAYERS)

    def told(step: str, share: float) -> None:
        if step == "training exits" and share == 0.25:
            signal.raise_signal(signal.SIGTERM)

    rows = Reader.of(model, tokenizer("bert"), 11).rows(Texts("texts", [(text,) for text in sentences(TEXTS)]))
    with pytest.raises(Stopped):
        Exits(4, 16, lose=0.3).apply(model, Given(training=rows, progress=told))
    assert not exits_in(model)


def test_layers_learn_too_where_they_are_asked_to() -> None:
    before, model, _ = compressed("bert classifier", joint=True, steps=2)
    moved = [name for name, x in before.state_dict().items() if not x.equal(model.state_dict()[name])]
    assert any("encoder.layer.0" in name for name in moved)
    assert all(x.requires_grad for x in model.parameters())


def test_exits_stand_after_the_layers_named() -> None:
    _, model, _ = compressed("bert classifier", after=(1, 3), steps=1)
    (described,) = structure(model).changes["exits"].values()
    assert described["after"] == [1, 3]
    assert described["head"] == "classifier"
    assert sorted(exits_in(model)["bert.encoder.layer"].by_layer) == [1, 3]


@pytest.mark.parametrize(
    ("name", "cls", "more", "options", "message"),
    [
        ("gpt2", None, {}, {}, "of encoders and classifiers of texts, and GPT2LMHeadModel is none"),
        ("gpt2", "GPT2Model", {}, {}, "the layers of GPT2Model keep keys and values"),
        ("bart", None, {"encoder_layers": 2, "decoder_layers": 2}, {}, "and BartForConditionalGeneration is none"),
        ("vit", None, {"num_hidden_layers": 3}, {}, "of texts, and ViTForImageClassification is none"),
        ("albert", None, {}, {}, "has no stack of layers"),
        ("bert", "BertForSequenceClassification", {"num_labels": 1}, {}, "tell two classes or more .* has 1 labels"),
        (
            "bert", "BertForSequenceClassification", {"problem_type": "multi_label_classification"}, {},
            r"one a text; .* \(multi_label_classification\)",
        ),
        ("bert", None, {}, {"by": "entropy"}, "go by error or saturation, got 'entropy'"),
        ("bert", "BertForSequenceClassification", {}, {"by": "error"}, "go by confidence or entropy, got 'error'"),
        ("bert", None, {}, {"after": (1,)}, r"after layers in 0\.\.0, got 1"),
        ("bert", None, {}, {"lose": 0.01}, "takes 299 texts held out, and of 40 there are 10"),
        ("bert", None, {}, {"batch_size": 100}, "100"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_before_work(
    name: str, cls: str | None, more: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    model = network(name, cls, **more)
    texts: list[Any] = sentences(40)
    given = {"texts": [*zip(texts, texts, strict=True)] if name == "bart" else texts, "tokenizer": tokenizer(name)}
    if name == "vit":
        given = {"examples": [{"pixel_values": torch.randn(3, 20, 20)} for _ in range(40)]}
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        greenformers.compress(model, Exits(**{"lose": 0.5, "batch_size": 2, **options}), length=9, **given)
    assert list(model.state_dict()) == keys
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0 and finite, got 0"),
        ({"after": (2, 1)}, "after must be ascending numbers of layers, got 2, 1"),
        ({"lose": 1.0}, r"lose must be a share in \(0, 1\), got 1"),
        ({"by": "luck"}, "by must be of confidence, entropy, error, saturation; got 'luck'"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Exits(**options)


def test_there_is_no_program_of_a_network_that_inputs_decide_in(tmp_path: Path) -> None:
    model, _ = built("bert classifier")
    with pytest.raises(ValueError, match="inputs decide what a network with exits computes"):
        write(model, tmp_path / "out")


def test_the_command(tmp_path: Path) -> None:
    from greenformers.cli import application

    model = folder(tmp_path, "bert", "BertForSequenceClassification")
    texts = tmp_path / "texts.tsv"
    rows = [f"{text}\t{len(text) % 2}\n" for text in sentences(60)]
    texts.write_text("sentence\tlabel\n" + "".join(rows))
    words = ["compress", model, "--exits", "2", "--exits-batch", "8", "--exits-lose", "0.3", "--texts", texts]
    done = CliRunner().invoke(
        application(), [str(word) for word in [*words, "--lengths", "", "--out", tmp_path / "small"]]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    assert isinstance(next(iter(exits_in(greenformers.load(tmp_path / "small")).values())), EarlyExits)
