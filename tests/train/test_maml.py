"""MAML against autograd through an unrolled loop in float64; that it learns; and what episodes are drawn."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from greenformers.data import Split, load
from greenformers.model import GreenformerConfig, GreenformerForImageClassification
from greenformers.train.episodes import Episode, Episodes
from greenformers.train.maml import Maml, adapted, few_shot_accuracies, meta_gradient, meta_train, task_gradient

SIZES = {
    "image_size": 8, "patch_size": 4, "num_channels": 1, "input_features": 16, "vocab_size": None, "num_labels": 5,
    "max_position_embeddings": 5, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 20,
    "num_hidden_layers": 2, "hidden_dropout_prob": 0.0, "initializer_range": 0.3,
}  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(1), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 5))


def normed() -> nn.Module:
    norm = nn.BatchNorm2d(3, track_running_stats=False)
    return nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.Tanh(), nn.Flatten(1), nn.Linear(108, 5))


MODELS = {
    "perceptron": perceptron,
    "convolutions": normed,
    "transformer": lambda: GreenformerForImageClassification(GreenformerConfig(**SIZES)),
    "low rank": lambda: GreenformerForImageClassification(GreenformerConfig(**SIZES, rank=3, residual="pre")),
}


def model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().double().eval()


def tasks(count: int = 3, shots: int = 2) -> Episode:
    episodes = Episodes(load("digits").train, shots=shots, queries=3)
    drawn = episodes.draw(torch.Generator().manual_seed(0), count)
    return Episode(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in drawn))


def task(number: int) -> Episode:
    return Episode(*(tensor[number] for tensor in tasks()))


def unrolled(network: nn.Module, given: Episode, steps: int, rate: float, first_order: bool) -> list[torch.Tensor]:
    """The meta-gradient by the definition: weights are set one after another, and autograd goes through all of it."""
    before = [parameter.detach().clone().requires_grad_() for parameter in network.parameters()]
    names = [name for name, _ in network.named_parameters()]

    def loss(weights: list[torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        out = torch.func.functional_call(network, dict(zip(names, weights, strict=True)), (images,))
        scores = (out if isinstance(out, torch.Tensor) else out.logits).log_softmax(-1)
        return -torch.stack([scores[row, label] for row, label in enumerate(labels)]).mean()

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        after = before
        for _ in range(steps):
            slopes = torch.autograd.grad(
                loss(after, given.support, given.support_labels), after, create_graph=not first_order
            )
            after = [weight - rate * slope for weight, slope in zip(after, slopes, strict=True)]
        return list(torch.autograd.grad(loss(after, given.queries, given.query_labels), before))


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_through_the_unrolled_steps(name: str, first_order: bool) -> None:
    network = model(name)
    options = {"steps": 3, "rate": 0.3, "first_order": first_order}
    for number in range(2):
        weights = dict(network.named_parameters())
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            slopes, _ = task_gradient(network, weights, task(number), **options)
        for (key, slope), expected in zip(
            slopes.items(), unrolled(network, task(number), *options.values()), strict=True
        ):
            assert_close(slope, expected, msg=lambda text, key=key: f"{key}: {text}")


def test_first_order_is_the_gradient_where_learning_ends() -> None:
    """And not that of the second order, which is found by differences of the loss."""
    network = model("perceptron")
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    given, options = task(0), {"steps": 2, "rate": 0.5}
    after = {
        name: value.requires_grad_()
        for name, value in adapted(network, weights, given.support, given.support_labels, **options).items()
    }
    F.cross_entropy(torch.func.functional_call(network, after, (given.queries,)), given.query_labels).backward()
    first, _ = task_gradient(network, weights, given, **options, first_order=True)
    second, loss = task_gradient(network, weights, given, **options, first_order=False)
    for name, value in after.items():
        assert_close(first[name], value.grad)
        assert not torch.allclose(first[name], second[name], rtol=1e-2)

    def along(name: str, step: float) -> float:
        moved = {key: value + step * second[key] * (key == name) for key, value in weights.items()}
        return float(task_gradient(network, moved, given, **options, first_order=True)[1])

    assert along("1.weight", 0.0) == pytest.approx(float(loss), abs=1e-12)
    for name in weights:
        slope = (along(name, 1e-4) - along(name, -1e-4)) / 2e-4
        assert slope == pytest.approx(float(second[name].square().sum()), rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_tasks_at_once_are_tasks_one_by_one(name: str) -> None:
    for first_order in (False, True):
        ways = [
            meta_gradient(model(name), tasks(), Maml(first_order=first_order, at_once=at_once))
            for at_once in (False, True)
        ]
        assert_close(*(loss for _, loss in ways))
        for key in ways[0][0]:
            assert_close(*(slopes[key] for slopes, _ in ways), msg=lambda text, key=key: f"{key}: {text}")


def test_the_mean_is_over_tasks() -> None:
    network = model("perceptron")
    weights = dict(network.named_parameters())
    slopes, loss = meta_gradient(network, tasks(), Maml(rate=0.3))
    alone = [task_gradient(network, weights, task(i), steps=1, rate=0.3, first_order=False) for i in range(3)]
    assert_close(loss, sum(each for _, each in alone) / 3)
    for name in slopes:
        assert_close(slopes[name], sum(each[name] for each, _ in alone) / 3)


def test_it_learns_to_learn() -> None:
    """Five of ten digits, 1 shot: better than from weights that are not trained."""
    episodes, judged = (Episodes(part, shots=1, queries=5) for part in (load("digits").train, load("digits").test))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(1), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))
    before = few_shot_accuracies(network, judged, 40, steps=3, rate=0.5)
    meta_train(network, episodes, Maml(rate=0.5, tasks=4, meta_rate=1e-2), 40)
    after = few_shot_accuracies(network, judged, 40, steps=3, rate=0.5)
    assert after.mean() > before.mean() + 5
    assert after.min() >= 0
    assert after.max() <= 100


def test_stopped_it_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    episodes, steps = Episodes(load("digits").train, queries=2), list[int]()

    def said(step: int, _: float) -> None:
        steps.append(step)
        if steps == [1, 2, 3]:
            raise KeyboardInterrupt

    def trained(folder: Path | None) -> nn.Module:
        torch.manual_seed(0)
        network = perceptron()
        meta_train(network, episodes, Maml(tasks=2), 5, folder and said, folder=folder, save_every=2)
        return network

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "at")
    whole, resumed = trained(None), trained(tmp_path / "at")
    assert steps == [1, 2, 3, 3, 4, 5]
    assert all(own.equal(other) for own, other in zip(resumed.parameters(), whole.parameters(), strict=True))
    with pytest.raises(ValueError, match="holds checkpoints of other options than"):
        meta_train(perceptron(), episodes, Maml(tasks=3), 5, folder=tmp_path / "at")


def test_the_same_seed_learns_the_same() -> None:
    episodes = Episodes(load("digits").train, queries=2)
    networks, losses = [], []
    for _ in range(2):
        torch.manual_seed(0)
        network = perceptron().train()
        meta_train(network, episodes, Maml(tasks=2), 3, lambda step, loss: losses.append((step, loss)))
        assert network.training
        networks.append(network)
    assert [step for step, _ in losses] == [1, 2, 3, 1, 2, 3]
    assert losses[:3] == losses[3:]
    for own, other in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert_close(own, other, atol=0, rtol=0)
        assert own.grad is None


def test_episodes_are_of_their_classes() -> None:
    """Pixels tell the class and the image: each class once, no image twice, and support and queries apart."""
    labels = torch.randperm(7 * 6, generator=torch.Generator().manual_seed(1)) % 7
    rank = torch.stack([(labels[:place] == label).sum() for place, label in enumerate(labels)])
    pixels = torch.stack([labels, rank, torch.zeros(42), torch.zeros(42)], 1).to(torch.uint8)
    episodes = Episodes(Split(pixels, labels, 1), ways=3, shots=2, queries=4)
    drawn = episodes.draw(torch.Generator().manual_seed(0), 5)
    assert [tuple(tensor.shape) for tensor in drawn] == [(5, 6, 1, 2, 2), (5, 6), (5, 12, 1, 2, 2), (5, 12)]
    for support, support_labels, queries, query_labels in zip(*drawn, strict=True):
        assert support_labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert query_labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        images = torch.cat([support, queries]).flatten(1).long()
        assert len(images.unique(dim=0)) == 18
        classes = {
            label: images[torch.cat([support_labels, query_labels]) == label, 0].unique().tolist() for label in range(3)
        }
        assert all(len(own) == 1 for own in classes.values())
        assert len({own[0] for own in classes.values()}) == 3
    assert not torch.equal(drawn.support[0], drawn.support[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ways": 1}, r"^ways must be in 2\.\.10, the classes, got 1$"),
        ({"ways": 11}, r"^ways must be in 2\.\.10, the classes, got 11$"),
        ({"shots": 0}, r"^shots must be at least 1, got 0$"),
        ({"shots": 30, "queries": 15}, r"^shots \+ queries must be at most 35, the images of a class, got 30 \+ 15$"),
    ],
)
def test_episodes_out_of_range(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Episodes(load("digits").test, **options)


def test_options_out_of_range() -> None:
    for name, value, least in (("steps", 0, "at least 1"), ("tasks", 0, "at least 1"), ("rate", 0.0, "above 0")):
        with pytest.raises(ValueError, match=rf"^{name} must be {least}, got {value}$"):
            Maml(**{name: value})
    with pytest.raises(ValueError, match=r"^steps must be at least 1, got 0$"):
        meta_train(perceptron(), Episodes(load("digits").train), Maml(), 0)
