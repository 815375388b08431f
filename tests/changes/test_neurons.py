"""Fewer neurons: which ones, that they are gone, and that what is left makes up for them; beside oracles."""

import copy
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import FalconConfig, FalconForCausalLM, MixtralConfig, MixtralForCausalLM, PreTrainedModel
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes import Neurons
from greenformers.solve.choose_units import check_budget, chosen
from greenformers.solve.coupled import Coupled
from greenformers.solve.feed_forward import feed_forwards
from greenformers.solve.gates import gate_gradients
from greenformers.solve.loss import default
from greenformers.solve.unit_curves import curves, spread
from greenformers.solve.units import put


def test_what_follows_a_layer_may_change_its_outputs_in_place() -> None:
    config = FalconConfig(vocab_size=53, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    model = FalconForCausalLM(config).eval()
    assert len(feed_forwards(model, {"input_ids": torch.randint(3, 53, (2, 7))})) == 2


SECOND = {"bert": "bert.encoder.layer.{}.output.dense", "gpt2": "transformer.h.{}.mlp.c_proj",
          "llama": "model.layers.{}.mlp.down_proj"}  # fmt: skip


def texts(count: int = 6, length: int = 9, *, garbage: int = 3) -> list[dict[str, Tensor]]:
    """Batches of three texts of several lengths; `garbage` stands at the padding."""
    draw = torch.Generator().manual_seed(5)
    mask = (torch.arange(length) < torch.tensor([length, 3, length - 2])[:, None]).long()
    return [
        {
            "input_ids": torch.randint(3, 53, (3, length), generator=draw).where(mask.bool(), torch.tensor(garbage)),
            "attention_mask": mask,
        }
        for _ in range(count)
    ]


def lively(name: str, dtype: torch.dtype = torch.float64, **more: Any) -> PreTrainedModel:
    model = network(name, **more).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() == 2 else 1)
    return model


@pytest.mark.parametrize("refit", [False, True])
def test_layers_lose_what_is_measured_one_at_a_time(refit: bool) -> None:
    model, batches = lively("bert", cls="BertModel"), texts(2)
    layers = feed_forwards(model, batches[0])

    class Last:
        """The last units stay."""

        def see(self, *_: Any) -> None:
            """Nothing."""

        def left(self, _: Coupled, count: int) -> Tensor:
            return torch.arange(44 - count, 44)

        def lost(self, _: Coupled) -> Tensor:
            return 44 - torch.arange(45.0)

    def each(_: Coupled, left: int) -> float:
        return left

    before = {name: value.clone() for name, value in model.state_dict().items()}
    points = curves(model, layers, Last(), batches, each, multiple=4, refit=refit)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())

    def pooled(other: PreTrainedModel) -> list[Tensor]:
        with torch.no_grad():
            states = [other(**batch).last_hidden_state for batch in batches]
        means = [
            (state * batch["attention_mask"][..., None]).sum(1) / batch["attention_mask"].sum(1, keepdim=True)
            for state, batch in zip(states, batches, strict=True)
        ]
        return [mean / mean.norm(dim=1, keepdim=True) for mean in means]

    whole = pooled(model)
    for layer, row in zip(layers, points, strict=True):
        assert [(point.choice, point.cost) for point in row] == [(count, count) for count in range(4, 45, 4)]
        assert row[-1].error == 0
        losses = {}
        for count in (4, 20, 40):
            changed = copy.deepcopy(model)
            second: Any = changed.get_submodule(layer.second)
            if refit:
                fitted(model, second, layer.second, batches, list(range(44 - count, 44)))
            else:
                second.weight.data[:, : 44 - count] = 0
            far = [(a - b).square().sum().item() for a, b in zip(pooled(changed), whole, strict=True)]
            losses[count] = sum(far)
        got = {point.choice: point.error for point in row}
        assert got[4] == pytest.approx(losses[4], rel=1e-4)
        assert got[20] == pytest.approx(losses[20], rel=1e-3)
        assert got[40] == pytest.approx(losses[40], rel=1e-3)


def fitted(model: PreTrainedModel, second: nn.Linear, path: str, batches: list[dict[str, Tensor]], left: Any) -> None:
    """Fit a copy of a layer of BERT to what it gives, by least squares over rows divided by their length."""
    h, y = seen(model, path, batches)
    root = y.norm(dim=1, keepdim=True).reciprocal()  # of each position's weight, 1 / |y|^2
    total = root.square().sum()
    centre = (root.square() * h).sum(0) / total
    x, target = root * (h - centre), root * ((h - centre) @ second.weight.detach().T)
    damping = 1e-2 * x.square().sum(0).mean()
    rows = torch.cat([x[:, left], damping.sqrt() * torch.eye(len(left)).double()])
    targets = torch.cat([target, damping.sqrt() * second.weight.detach()[:, left].T])
    weight = torch.zeros(h.shape[1], second.out_features, dtype=torch.float64)
    weight[left] = torch.linalg.lstsq(rows, targets).solution
    with torch.no_grad():
        second.bias.copy_((root.square() * (y - h @ weight)).sum(0) / total)
        second.weight.copy_(weight.T)


def seen(model: PreTrainedModel, path: str, batches: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Inputs and outputs of a layer at positions that are no padding."""
    rows: list[tuple[Tensor, Tensor]] = []
    handle = model.get_submodule(path).register_forward_hook(lambda _, args, out: rows.append((args[0], out)))
    with torch.no_grad():
        for batch in batches:
            model(**batch)
    handle.remove()
    masks = [batch["attention_mask"].bool() for batch in batches]
    given, out = (torch.cat([row[at][mask] for row, mask in zip(rows, masks, strict=True)]) for at in (0, 1))
    return given, out


def test_budgets_below_the_least_of_each_layer_are_refused() -> None:
    layers = [Coupled("neurons", {}, name, torch.arange(8)[:, None], 1) for name in "abc"]
    with pytest.raises(ValueError, match=r"share to keep must be at least 0.25, 2 neurons in each layer; got 0.2"):
        check_budget(layers, 0.2, lambda _, left: left, 2)


@pytest.mark.parametrize("keep", [1, 4, 9])
def test_rearranged_as_a_loop_would(keep: int) -> None:
    g = torch.randn(7, 10, generator=torch.Generator().manual_seed(1)).double()
    information = [sum(g[e, n].item() ** 2 for e in range(7)) for n in range(10)]
    order = sorted(range(10), key=lambda n: -information[n])
    neurons, dropped = order[:keep], order[keep:]
    left = []
    for neuron in reversed(neurons):
        dropped.append(neuron)
        sums = {back: sum(sum(g[e, n].item() for n in dropped if n != back) ** 2 for e in range(7)) for back in dropped}
        back = min(dropped, key=sums.__getitem__)
        dropped.remove(back)
        left.append(back)
    assert chosen(g, keep).tolist() == sorted(left)
    assert chosen(g, 10).tolist() == list(range(10))

    def lost(numbers: Any) -> float:
        return g[:, [n for n in range(10) if n not in numbers]].sum(1).square().sum().item()

    assert lost(left) <= lost(order[:keep]) + 1e-9
    assert lost(left) >= min(lost(some) for some in combinations(range(10), keep)) - 1e-9


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_gates_are_felt_text_by_text(name: str) -> None:
    # The output of the encoder is pooled: no probe reads what stands at the padding.
    model, batches = lively(name, **({"cls": "BertModel"} if name == "bert" else {})), texts(2)
    paths = [SECOND[name].format(place).removeprefix("bert.") for place in range(2)]
    got = gate_gradients(model, paths, batches, default(model, batches))
    loss = default(model, batches)
    expected: dict[str, list[Tensor]] = {path: [] for path in paths}
    for batch in batches:  # a gate for each text, so that its gradient is that text's
        gates = [torch.ones(3, 1, 44, dtype=torch.float64, requires_grad=True) for _ in paths]
        handles = [
            model.get_submodule(path).register_forward_pre_hook(lambda _, args, gate=gate: (args[0] * gate,))
            for path, gate in zip(paths, gates, strict=True)
        ]
        value = loss(model, batch)
        for path, slope in zip(paths, torch.autograd.grad(value, gates), strict=True):
            expected[path].append(slope[:, 0])
        for handle in handles:
            handle.remove()
    for path in paths:
        assert got[path].shape == (6, 44)
        torch.testing.assert_close(got[path], torch.cat(expected[path]).float(), rtol=1e-4, atol=1e-5)
        assert got[path].abs().max() > 1e-3


def test_frozen_networks_are_felt_too() -> None:
    model, batches = lively("bert"), texts(1)
    expected = gate_gradients(model, [SECOND["bert"].format(1)], batches, default(model, batches))
    model.requires_grad_(False)
    got = gate_gradients(model, [SECOND["bert"].format(1)], batches, default(model, batches))
    torch.testing.assert_close(got, expected)
    greenformers.compress(model, Neurons(0.5, multiple=2), calibration=batches)
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_neurons_that_are_gone_are_neurons_of_zero(name: str) -> None:
    model, batches = lively(name), texts()
    masked, layers = copy.deepcopy(model), feed_forwards(model, batches[0])
    assert [layer.second for layer in layers] == [SECOND[name].format(place) for place in range(2)]
    greenformers.compress(model, Neurons(0.5, multiple=2, by="fisher", refit=False), calibration=batches)
    total = 0
    for layer in layers:
        narrow: Any = model.get_submodule(layer.second)
        whole: Any = masked.get_submodule(layer.second)
        columns = [at.weight if name == "gpt2" else at.weight.T for at in (narrow, whole)]
        left = {tuple(row.tolist()) for row in columns[0]}
        total += len(left)
        with torch.no_grad():
            for row in columns[1]:
                if tuple(row.tolist()) not in left:
                    row.zero_()
    assert total == sum(layer.count for layer in layers) // 2
    torch.testing.assert_close(outputs(model, batches[0]), outputs(masked, batches[0]), rtol=1e-9, atol=1e-9)
    assert sum(x.numel() for x in model.parameters()) < sum(x.numel() for x in masked.parameters())
    if name != "bert":
        ids = inputs(name)["input_ids"]
        more = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": 6, "max_new_tokens": 6}
        assert model.generate(ids, **more).equal(model.generate(ids, **more, use_cache=False))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_what_reads_them_is_fitted_by_least_squares(name: str) -> None:
    model, batches = lively(name), texts()
    dense = copy.deepcopy(model)
    greenformers.compress(model, Neurons(0.5, multiple=2), calibration=batches)
    for layer in feed_forwards(dense, batches[0]):
        # What the layer gives with all its neurons, on what the changed network gives it.
        hybrid = copy.deepcopy(model)
        for path in layer.paths:
            put(hybrid, path, copy.deepcopy(dense.get_submodule(path)))
        whole: Any = hybrid.get_submodule(layer.second)
        narrow: Any = model.get_submodule(layer.second)
        first: Any = [other.get_submodule(next(iter(layer.first))) for other in (hybrid, model)]
        weights = [at.weight.detach().T if name == "gpt2" else at.weight.detach() for at in first]
        left = [next(n for n in range(len(weights[0])) if weights[0][n].equal(row)) for row in weights[1]]
        h, y = seen(hybrid, layer.second, batches)
        weight, before = (x.weight.detach() if name == "gpt2" else x.weight.detach().T for x in (narrow, whole))
        root = y.norm(dim=1, keepdim=True).reciprocal()  # of each position's weight, 1 / |y|^2
        target = y
        if narrow.bias is not None:
            h_mean, y_mean = ((root.square() * x).sum(0) / root.square().sum() for x in (h, y))
            torch.testing.assert_close(narrow.bias.detach(), y_mean - h_mean[left] @ weight, rtol=1e-6, atol=1e-6)
            h, target = h - h_mean, y - y_mean
        h, target = root * h, root * target
        damping = 1e-2 * h.square().sum(0).mean()
        rows = torch.cat([h[:, left], damping.sqrt() * torch.eye(len(left)).double()])
        targets = torch.cat([target, damping.sqrt() * before[left]])
        torch.testing.assert_close(weight, torch.linalg.lstsq(rows, targets).solution, rtol=1e-4, atol=1e-5)


def test_nothing_depends_on_what_stands_at_the_padding() -> None:
    models = [lively("bert", num_hidden_layers=1) for _ in range(2)]
    for model, garbage in zip(models, (3, 40), strict=True):
        greenformers.compress(model, Neurons(0.5, multiple=2), calibration=texts(garbage=garbage))
    for name, value in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[name], value)


class ReadTwice(nn.Module):
    """A feed-forward layer whose neurons are summed up, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.second(h) + h.mean(-1, keepdim=True)


class Mixed(ReadTwice):
    """One whose neurons a norm mixes."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.layer_norm(self.first(x), (32,)))


def test_neurons_that_are_read_elsewhere_stay() -> None:
    batches = [torch.randn(2, 5, 8)]
    model = ReadTwice()
    (layer,) = feed_forwards(model, batches[0])
    assert (layer.paths, layer.count) == (["first", "second"], 32)
    before, modules = copy.deepcopy(model.state_dict()), dict(model.named_modules())
    with pytest.raises(ValueError, match="ReadTwice reads its neurons elsewhere too"):
        greenformers.compress(model, Neurons(0.5), calibration=batches)
    assert dict(model.named_modules()) == modules
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    with pytest.raises(ValueError, match="Mixed has no feed-forward layers of two or three linear layers"):
        greenformers.compress(Mixed(), Neurons(0.5), calibration=batches)


def test_refusals() -> None:
    for keep in (0, 1, 1.5):
        with pytest.raises(ValueError, match=r"neurons to keep must be a share in \(0, 1\), got"):
            Neurons(keep)
    with pytest.raises(ValueError, match="multiple must be at least 1, got 0"):
        Neurons(0.5, multiple=0)
    with pytest.raises(ValueError, match="neurons by must be of fit, fisher; got 'loss'"):
        Neurons(0.5, by="loss")
    with pytest.raises(ValueError, match='neurons without refit must be by "fisher"; got by "fit"'):
        Neurons(0.5, refit=False)
    with pytest.raises(ValueError, match=r"neurons 0.5 needs examples to calibrate with"):
        greenformers.compress(network("bert"), Neurons(0.5))
    with pytest.raises(ValueError, match=r"at least 0.182, 8 neurons in each layer; got 0.1"):
        greenformers.compress(network("bert"), Neurons(0.1), calibration=texts(1))
    sizes = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MixtralConfig(vocab_size=53, num_key_value_heads=2, num_local_experts=2, **sizes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="MixtralForCausalLM has no feed-forward layers"):
        greenformers.compress(MixtralForCausalLM(config).eval(), Neurons(0.5), calibration=texts(1))


@pytest.mark.parametrize("count", [1, 2, 7, 50])
@pytest.mark.parametrize("examples", [1, 4, 11, 128, 1000])
def test_examples_to_judge_by_are_from_all_over(count: int, examples: int) -> None:
    """Batches of texts are sorted by length: the first ones held the shortest."""
    batches = [torch.full((1 + place % 3, 2), place) for place in range(count)]
    places = [int(batch[0, 0]) for batch in spread(batches, examples)]
    assert places == sorted(set(places))
    total = sum(len(batch) for batch in batches)
    held = sum(len(batches[place]) for place in places)
    assert held >= min(examples, total)
    assert held < examples + total / 2 or len(places) == count
    middle = sum(places) / len(places)
    assert abs(middle - (count - 1) / 2) <= count / 4
