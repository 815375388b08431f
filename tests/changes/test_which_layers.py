"""Which layers remain: by place, by what they do to texts, and by the loss without them; beside oracles."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from zoo import network

import greenformers
from greenformers.changes import Layers
from greenformers.checkpoint.structure import structure
from greenformers.solve.which_layers import BY_PLACE, BY_TEXTS, without_alternate

COUNT = 6
INSIDE = {"bert": "encoder.layer", "gpt2": "transformer.h", "llama": "model.layers"}
CLASSES = {"bert": ("BertModel", "num_hidden_layers"), "gpt2": (None, "n_layer"), "llama": (None, "num_hidden_layers")}


def lively(name: str) -> PreTrainedModel:
    """A network of six layers that do different things to what passes."""
    cls, count = CLASSES[name]
    model = network(name, cls, **{count: COUNT})
    with torch.no_grad():
        for place, layer in enumerate(model.get_submodule(INSIDE[name]).children()):
            for parameter in layer.parameters():
                parameter.mul_((3, 1, 8, 0.5, 5, 2)[place] if parameter.dim() == 2 else 1)
    return model


def texts(side: str = "right") -> list[dict[str, Tensor]]:
    """Batches with padding on a side; what stands there differs from what the model pads with."""
    draw = torch.Generator().manual_seed(5)
    batches = []
    for length in (5, 9, 7):
        mask = (torch.arange(length) < torch.tensor([length, 3, length - 2])[:, None]).long()
        mask = mask.flip(1) if side == "left" else mask
        batches.append({"input_ids": torch.randint(3, 53, (3, length), generator=draw), "attention_mask": mask})
    return batches


def left(model: PreTrainedModel, by: str, keep: int, batches: Any = None) -> list[int]:
    greenformers.compress(model, Layers(keep, by=by), calibration=batches)
    (places,) = structure(model).changes["layers"].values()
    assert len(places) == keep
    return places


@pytest.mark.parametrize(
    ("by", "keep", "places"),
    [
        ("even", 3, [0, 2, 5]), ("top", 4, [0, 1, 2, 3]), ("bottom", 4, [2, 3, 4, 5]), ("symmetric", 4, [0, 1, 4, 5]),
        ("symmetric", 3, [0, 1, 5]), ("symmetric", 1, [0]), ("alternate", 5, [0, 1, 2, 3, 5]),
        ("alternate", 3, [1, 3, 5]),
    ],
)  # fmt: skip
def test_by_place(by: str, keep: int, places: list[int]) -> None:
    assert BY_PLACE[by](COUNT, keep) == places


@pytest.mark.parametrize(("by", "places"), [("even", [0, 2, 5]), ("alternate", [1, 3, 5])])
def test_a_network_keeps_those(by: str, places: list[int]) -> None:
    assert left(network("bert", num_hidden_layers=COUNT), by, 3) == places


def test_alternate_of_any_number() -> None:
    for count in range(2, 25):
        for keep in range(count - count // 2, count):
            places = without_alternate(count, keep)
            assert len(places) == keep
            assert places[-1] == count - 1
            gone = sorted(set(range(count)) - set(places))
            assert all(second - first == 2 for first, second in pairwise(gone))
    model = network("bert", num_hidden_layers=COUNT)
    with pytest.raises(ValueError, match="alternate drops every other layer at most, and keeps 3 of 6; got 2"):
        greenformers.compress(model, Layers(2, by="alternate"))
    assert len(model.bert.encoder.layer) == COUNT


def cosine(a: Tensor, b: Tensor) -> float:
    return (sum(x * y for x, y in zip(a, b, strict=True)) / (a.square().sum() * b.square().sum()).sqrt()).item()


def influence(model: PreTrainedModel, span: int) -> list[float]:
    """1 - E cos(h_l, h_l+span), token by token, of the states that transformers gives."""
    values: list[list[float]] = [[] for _ in range(COUNT + 1 - span)]
    for batch in texts():
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states
        for row, position in batch["attention_mask"].nonzero().tolist():
            for place in range(COUNT + 1 - span):
                values[place].append(1 - cosine(states[place][row, position], states[place + span][row, position]))
    return [sum(given) / len(given) for given in values]


@pytest.mark.parametrize("keep", [5, 3, 1])
def test_by_influence_and_by_run(keep: int) -> None:
    model = lively("bert")
    least = sorted(range(COUNT), key=influence(model, 1).__getitem__)[: COUNT - keep]
    runs = influence(model, COUNT - keep)
    first = min(range(keep + 1), key=runs.__getitem__)
    assert left(copy.deepcopy(model), "influence", keep, texts()) == sorted(set(range(COUNT)) - set(least))
    gone = range(first, first + COUNT - keep)
    assert left(copy.deepcopy(model), "run", keep, texts()) == sorted(set(range(COUNT)) - set(gone))


def without(model: PreTrainedModel, name: str, gone: set[int]) -> PreTrainedModel:
    """A copy whose layers are taken out of the list."""
    twin = copy.deepcopy(model)
    parent, _, attribute = INSIDE[name].rpartition(".")
    stack: Any = twin.get_submodule(INSIDE[name])
    setattr(twin.get_submodule(parent), attribute, nn.ModuleList(x for at, x in enumerate(stack) if at not in gone))
    twin.config.use_cache = False
    twin.config.num_hidden_layers = COUNT - len(gone)
    return twin.eval()


def distance(model: PreTrainedModel, other: PreTrainedModel) -> float:
    """Squared distance of the sentence embeddings of an encoder."""
    total = 0.0
    for batch in texts():
        mean = []
        for given in (model, other):
            with torch.no_grad():
                states = given(**batch).last_hidden_state
            rows = [row[mask.bool()].mean(0) for row, mask in zip(states, batch["attention_mask"], strict=True)]
            mean.append(nn.functional.normalize(torch.stack(rows), dim=-1))
        total += (mean[0] - mean[1]).square().sum().item()
    return total


def next_tokens(model: PreTrainedModel, side: str) -> float:
    """Cross-entropy of the next tokens that are no padding, summed."""
    total = 0.0
    for batch in texts(side):
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        with torch.no_grad():
            logits = model(**batch).logits
        losses = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        # The mean is over the tokens that follow another one, and counts as often as there are tokens.
        total += losses.item() / (labels[:, 1:] != -100).sum().item() * (labels != -100).sum().item()
    return total


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_by_loss_drops_the_least_one_after_the_other(name: str) -> None:
    model, gone = lively(name), set[int]()
    for _ in range(2):
        costs = {
            place: distance(without(model, name, gone | {place}), model)
            if name == "bert"
            else next_tokens(without(model, name, gone | {place}), "right")
            for place in range(COUNT)
            if place not in gone
        }
        gone.add(min(costs, key=costs.__getitem__))
    assert left(model, "loss", COUNT - 2, texts()) == sorted(set(range(COUNT)) - gone)


def test_a_loss_that_is_given_decides() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(**batch).last_hidden_state.std()

    model = lively("bert")
    costs = [sum(loss(without(model, "bert", {place}), batch).item() for batch in texts()) for place in range(COUNT)]
    greenformers.compress(model, Layers(COUNT - 1, by="loss"), calibration=texts(), loss=loss)
    (places,) = structure(model).changes["layers"].values()
    assert set(range(COUNT)) - set(places) == {min(range(COUNT), key=costs.__getitem__)}


@pytest.mark.parametrize("by", BY_TEXTS)
def test_nothing_depends_on_what_stands_at_the_padding(by: str) -> None:
    batches = texts()
    others = [
        batch | {"input_ids": batch["input_ids"].where(batch["attention_mask"].bool(), torch.tensor(7))}
        for batch in batches
    ]
    alone = [
        {name: value[row : row + 1, : int(batch["attention_mask"][row].sum())] for name, value in batch.items()}
        for batch in batches
        for row in range(3)
    ]
    chosen = [left(lively("bert"), by, 3, given) for given in (batches, others, alone)]
    assert chosen[0] == chosen[1] == chosen[2]


def test_both_stacks_of_an_encoder_decoder() -> None:
    model = network("bart", encoder_layers=3, decoder_layers=4)
    batch = {"input_ids": torch.randint(3, 53, (2, 7)), "decoder_input_ids": torch.randint(3, 53, (2, 5))}
    for by in BY_TEXTS:
        changed = copy.deepcopy(model)
        greenformers.compress(changed, Layers(2, by=by), calibration=[batch])
        assert sorted(map(len, structure(changed).changes["layers"].values())) == [2, 2]
        assert changed(**batch).logits.isfinite().all()


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"layers by must be of even, top, .*, loss; got 'best'"):
        Layers(2, by="best")
    model = network("bert", num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"2 layers by loss needs examples to calibrate with \(--texts"):
        greenformers.compress(model, Layers(2, by="loss"))
    assert len(model.bert.encoder.layer) == 3
