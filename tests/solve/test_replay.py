"""Sequential solvers go on from the last finished layer, to the bit as if every pass had begun at the beginning."""

from typing import Any

import pytest
import torch
from mixed import all_of
from torch import Tensor, nn
from zoo import inputs, network

from greenformers import Budget
from greenformers.solve.replay import Replay, layers
from greenformers.solve.watch import call

HALF = Budget(0.5, "uniform")
DEEP = {
    "bert": {"num_hidden_layers": 4},
    "gpt2": {"n_layer": 4},
    "llama": {"num_hidden_layers": 4},
    "t5": {"num_layers": 2, "num_decoder_layers": 2},
    "bart": {"encoder_layers": 3, "decoder_layers": 2},
    "albert": {"num_hidden_layers": 4},
}


class Skips(nn.Module):
    """Layers of which the last reads what the first gave, as in a U-net."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.layers[0](x).tanh()
        for layer in self.layers[1:3]:
            x = layer(x).tanh()
        return self.layers[3](x + first)


class InPlace(nn.Module):
    """What follows a layer changes what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh_()
        return x


class Boxed(nn.Module):
    """Layers that give an object of their own."""

    class Box:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    class Layer(nn.Linear):
        def forward(self, x: Any) -> Any:
            return Boxed.Box(super().forward(x.x).tanh())

    def __init__(self) -> None:
        super().__init__()
        self.linear_layers = nn.ModuleList(nn.ModuleDict({"map": nn.Linear(12, 12)}) for _ in range(4))
        for layer in self.linear_layers:
            layer.forward = lambda box, layer=layer: Boxed.Box(layer["map"](box.x).tanh())

    def forward(self, x: Tensor) -> Tensor:
        box = Boxed.Box(x)
        for layer in self.linear_layers:
            box = layer(box)
        return box.x


def factors(make: Any, batches: list[Any], solver: str) -> dict[str, Tensor]:
    model = make()
    all_of(model, HALF, solver=solver, calibration=batches)
    assert not any("forward" in vars(part) for part in model.modules() if not isinstance(model, Boxed))
    return model.state_dict()


def equal(make: Any, batches: list[Any], solver: str = "sequential") -> None:
    replayed = factors(make, batches, solver)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replay, "advance", lambda *_: None)
        full = factors(make, batches, solver)
    assert replayed.keys() == full.keys()
    assert any(name.endswith("encoder.weight") for name in replayed)
    for name, value in replayed.items():
        assert value.equal(full[name]), name


@pytest.mark.parametrize(
    ("name", "solver"),
    [(name, "sequential_loss" if name == "t5" else "sequential") for name in DEEP],
)
def test_the_same_factors(name: str, solver: str) -> None:
    batches = [inputs(name, batch=2 + part, length=7 + part) for part in range(2)]

    def make() -> nn.Module:
        torch.manual_seed(0)
        return network(name, **DEEP[name])

    equal(make, batches, solver)


@pytest.mark.parametrize("kind", [Skips, InPlace, Boxed])
def test_the_same_factors_of_networks_that_are_no_chain(kind: type[nn.Module]) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return kind()

    equal(make, [torch.randn(30, 12) for _ in range(2)])


def counted(model: nn.Module, path: str) -> list[int]:
    calls: list[int] = []
    model.get_submodule(path).register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_finished_layers_do_not_run_again() -> None:
    runs = []
    for memory in (2**30, 0):
        model = network("bert", num_hidden_layers=6)
        inside = counted(model, "bert.encoder.layer.0.intermediate.intermediate_act_fn")
        all_of(model, HALF, solver="sequential", calibration=[inputs("bert")], memory=memory)
        runs.append(len(inside))
    assert runs[0] < 10 < 30 < runs[1]


def test_layers_are_those_that_run_once() -> None:
    for name, expected in {
        "bert": [f"bert.encoder.layer.{place}" for place in range(4)],
        "albert": [],  # one layer, four times
        "t5": [f"{side}.block.{place}" for side in ("encoder", "decoder") for place in range(2)],
    }.items():
        model = network(name, **DEEP[name]).eval()
        with torch.no_grad():
            assert layers(model, lambda model=model, name=name: call(model, inputs(name))) == expected


def test_nothing_is_kept_beyond_the_memory() -> None:
    model, x = Skips().eval(), torch.randn(5, 12)
    replay = Replay(model, [f"layers.{place}" for place in range(4)], 1, 5 * 12 * 4 - 1)
    replay.advance("layers.0.map", lambda _: model(x))
    assert not replay.off
    replay.advance("layers.1.map", lambda _: model(x))
    assert replay.off
    assert replay.outputs == [{}]


def test_a_layer_before_the_last_one_answers_with_nan() -> None:
    model, x = Skips().eval(), torch.randn(5, 12)
    expected = model(x)
    replay = Replay(model, [f"layers.{place}" for place in range(4)], 1, 1e9)
    with torch.no_grad():
        replay.advance("layers.1.map", lambda _: model(x))
        with replay.resumed(0):
            assert model(x).equal(expected)
        replay.advance("layers.3.map", lambda _: model(x))
        with replay.resumed(0):
            assert model(x).isnan().all()
        assert model(x).equal(expected)
