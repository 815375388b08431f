"""What is not finite decides nothing, and leaves a network as it was."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from greenformers.solve import unit_curves
from greenformers.solve.coupled import Coupled, check_removed
from greenformers.solve.factorise import factorise
from greenformers.solve.gates import gate_gradients
from greenformers.solve.imitate import Imitate
from greenformers.solve.refit import moments
from greenformers.solve.replay import Replay
from greenformers.solve.rotation import directions
from greenformers.solve.seen import Seen
from greenformers.solve.unchanged import check_whole
from greenformers.solve.which_layers import by_influence, by_loss
from greenformers.static.table import directions as of_texts

PATHS = ["layers.0", "layers.1", "layers.2"]


class Times(nn.Module):
    """A layer that multiplies what passes by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Stack(nn.Module):
    """Such layers, one after the other."""

    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(Times, factors))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def logarithm(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).log().sum()


def test_a_layer_without_which_the_loss_is_no_number_is_kept() -> None:
    model, batches = Stack(-1.0, -1.0, 2.0), [torch.ones(2, 3, 5)]
    assert by_loss(model, PATHS, 2, batches, lambda _: None, logarithm) == [0, 1]
    with pytest.raises(ValueError, match="without one of its layers is not finite on these texts"):
        by_loss(model, PATHS, 1, batches, lambda _: None, logarithm)


def test_hidden_states_that_are_no_numbers_have_no_influence() -> None:
    with pytest.raises(ValueError, match="the hidden states of the network are not finite on these texts"):
        by_influence(Stack(1.0, float("inf"), 1.0), PATHS, 2, [torch.ones(2, 3, 5)], lambda _: None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_trial_whose_outputs_are_no_numbers_is_no_success(value: float) -> None:
    with pytest.raises(ValueError, match="the outputs of the network are not finite"):
        unit_curves.total(lambda _: value, Replay(nn.Identity(), [], 2, 0.0))


def test_a_trial_that_is_stopped_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    units = torch.arange(4)[:, None]

    def stopped(layer: nn.Linear, *_: object) -> None:
        layer.weight.zero_()
        raise KeyboardInterrupt

    monkeypatch.setattr(unit_curves, "fit", stopped)
    neurons = Coupled("neurons", {"0": units}, "1", units, 1)
    with pytest.raises(KeyboardInterrupt), torch.no_grad(), unit_curves._left(model, neurons, units[:2, 0], None):
        pass
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_gradients_in_an_embedding_that_are_no_numbers_are_refused() -> None:
    def steep(model: nn.Module, batch: Tensor) -> Tensor:
        given = model(batch)
        return (given - given.detach()).abs().sqrt().sum()  # 0, with a slope that is none

    model = nn.Sequential(nn.Embedding(60, 32), nn.Linear(32, 32))
    batches = [torch.arange(36).view(4, 9)]
    with pytest.raises(ValueError, match="the gradients in '0' are not finite on the calibration data"):
        factorise(model, solver="loss", select="embedding", calibration=batches, loss=steep)


class Normed(nn.Sequential):
    """A network of a layer and a norm."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), nn.LayerNorm(8))


def test_units_are_not_chosen_by_gradients_that_are_no_numbers() -> None:
    batches = [torch.ones(2, 3, 8), torch.full((2, 3, 8), torch.inf)]
    with pytest.raises(ValueError, match="the gradients at '0' are not finite on batch 1 of the examples"):
        gate_gradients(Normed(), ["0"], batches, lambda model, batch: model(batch).sum())


@pytest.mark.parametrize("fitted", ["0", "1"])
def test_nothing_is_fitted_to_what_is_no_number(fitted: str) -> None:
    model, batches = Normed(), [torch.full((2, 3, 8), torch.inf)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fitting = Imitate(model, Normed(), batches, 0.0)
    with pytest.raises(ValueError, match=f"what '{fitted}' is given, or gave before, is not finite on the examples"):
        fitting.fit("0", 1) if fitted == "0" else fitting.fit_norm("1", 1, torch.eye(8).double())
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="the inputs of '0' are not finite on the examples"):
        moments(Seen(model, batches, 0.0), "0", 1)


def test_no_direction_is_found_in_what_is_no_number() -> None:
    width = SimpleNamespace(size=8, norms=("1",))
    with pytest.raises(ValueError, match="the hidden states of the network are not finite on the examples"):
        directions(Normed(), width, [torch.full((2, 3, 8), torch.inf)], centred=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="what the teacher gives to the texts is not finite"):
        of_texts(torch.full((4, 3), torch.nan), 2)


def test_outputs_that_are_no_numbers_are_told_as_what_they_are() -> None:
    broken = torch.full((2, 3), torch.nan)
    with pytest.raises(ValueError, match="what Normed gives with heads at 0 is not finite"):
        check_removed(Normed(), "heads", broken, torch.ones(2, 3, 8))
    with pytest.raises(ValueError, match="what Normed gives is not finite"):
        check_whole(Normed(), None, None, broken, torch.full((2, 3, 8), torch.inf))  # type: ignore[arg-type]
