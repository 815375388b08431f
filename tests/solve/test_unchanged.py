"""Whatever raises, and whenever: the network is as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mixed import all_of, mixed, rows, tokens
from torch import Tensor, nn
from zoo import inputs, network, outputs

import greenformers
from greenformers import Budget
from greenformers.lowrank.factorize import CALIBRATED, SOLVERS
from greenformers.solve.factorise import factorise

UNIFORM = Budget(0.6, "uniform")
PLAIN = (bool, int, float, str, type(None))


class Snapshot:
    """All that can be seen of a network: modules by identity, plain attributes, hooks, weights bit by bit, outputs."""

    def __init__(self, model: nn.Module, run: Callable[[], Tensor]) -> None:
        self.model, self.run = model, run
        self.state = {key: value.clone() for key, value in model.state_dict().items()}
        self.facts, self.out = self._facts(), run().clone()

    def _facts(self) -> dict[str, Any]:
        return {
            "modules": [(path, id(part)) for path, part in self.model.named_modules(remove_duplicate=False)],
            "plain": {
                (path, name): value
                for path, part in self.model.named_modules()
                for name, value in vars(part).items()
                if isinstance(value, PLAIN)
            },
            "parameters": [
                (name, id(parameter), parameter.requires_grad, parameter.grad is None)
                for name, parameter in self.model.named_parameters(remove_duplicate=False)
            ],
            "hooks": [
                len(part._forward_hooks) + len(part._forward_pre_hooks) + len(part._backward_hooks)
                for part in self.model.modules()
            ],
            "printed": repr(self.model),
        }

    def check(self) -> None:
        assert self._facts() == self.facts
        state = self.model.state_dict()
        assert list(state) == list(self.state)
        assert all(value.equal(self.state[key]) for key, value in state.items())
        assert self.run().equal(self.out)


def snapshot(model: nn.Module) -> Snapshot:
    def run() -> Tensor:
        # The fast path of torch's encoder, which an LED in it forbids, included.
        before = model.training
        model.eval()
        with torch.no_grad():
            out = model(tokens()[0])
        model.train(before)
        return out

    return Snapshot(model, run)


class Stop:
    """Raises at the n-th call."""

    def __init__(self, at: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.at, self.error, self.calls = at, error, 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error


@pytest.mark.parametrize("solver", ["svd", "random", *CALIBRATED])
def test_stopped_in_any_step(solver: str) -> None:
    options: dict[str, Any] = {"solver": solver, "calibration": tokens(2), "memory": 0}
    count = Stop(10**9)
    all_of(mixed(), UNIFORM, progress=count, **options)
    assert count.calls >= 9
    model = mixed().train()
    before = snapshot(model)
    for at in {*range(1, count.calls, max(1, count.calls // 4)), count.calls}:
        with pytest.raises(KeyboardInterrupt):
            all_of(model, UNIFORM, progress=Stop(at), **options)
        before.check()
    assert all(part.training for part in model.modules())
    # And after all that it can be compressed.
    assert all_of(model, UNIFORM, **options).parameter_share < 0.7


@pytest.mark.parametrize("solver", CALIBRATED)
@pytest.mark.parametrize("point", ["forward", "factorize", "filled"])
def test_broken_off_inside(solver: str, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mixed()
    before = snapshot(model)
    for at in range(1, 40, 3):
        stop = Stop(at, RuntimeError)
        with monkeypatch.context() as patch:
            if point == "forward":
                handle = model.head.register_forward_pre_hook(stop)
            elif point == "factorize":
                patch.setattr("greenformers.solve.solve.factorize", _before("solve", "factorize", stop))
            else:
                home = "sequential" if "sequential" in solver else "factorise"
                patch.setattr(f"greenformers.solve.{home}.filled", _before(home, "filled", stop))
            try:
                all_of(model, UNIFORM, solver=solver, calibration=tokens(2), memory=0)
            except RuntimeError:
                pass
            else:
                assert stop.calls < at
                assert at > 1
                break
            finally:
                if point == "forward":
                    handle.remove()
        before.check()


def _before(home: str, name: str, stop: Stop) -> Callable[..., Any]:
    """A function of a file of ours, with a step before it."""
    from importlib import import_module

    plain = getattr(import_module(f"greenformers.solve.{home}"), name)

    def call(*args: Any, **kwargs: Any) -> Any:
        stop()
        return plain(*args, **kwargs)

    return call


@pytest.mark.parametrize("solver", SOLVERS)
def test_weights_that_are_not_finite(solver: str) -> None:
    model = mixed()
    with torch.no_grad():
        model.head.weight[2, 3] = float("inf" if solver in CALIBRATED else "nan")
    before = snapshot(model)
    with pytest.raises(ValueError, match="head: the weight holds"):
        all_of(model, UNIFORM, solver=solver, calibration=tokens())
    assert before._facts() == before.facts
    assert not any(isinstance(value, Tensor) and value.grad is not None for value in model.parameters())


@pytest.mark.parametrize("solver", CALIBRATED)
def test_data_that_is_not_finite(solver: str) -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(24, 2, 36, batch_first=True).eval(), nn.Linear(24, 12))
    good = [x.view(1, 41, 24) for x in rows(24)]
    before = Snapshot(model, lambda: model(good[0]).detach())
    bad = [good[0], good[1].clone()]
    bad[1][0, 3] = float("nan")
    with pytest.raises(ValueError, match=r"not finite|is nan"):
        all_of(model, UNIFORM, solver=solver, calibration=bad)
    before.check()


def test_other_refusals_leave_no_trace() -> None:
    model = mixed()
    before = snapshot(model)
    for options, message in [
        ({"select": "nothing"}, "matches none"),
        ({"budget": 1e-4}, "the budget must be at least"),
        ({"budget": Budget(0.5, of="flops")}, "need an example"),
        ({"solver": "activation", "calibration": [torch.randn(2, 3)]}, "integer|indices|LongTensor"),
        ({"solver": "loss", "calibration": tokens(), "loss": lambda *_: torch.tensor(float("nan"))}, "is nan"),
    ]:
        with pytest.raises((ValueError, RuntimeError), match=message):
            all_of(model, **{"budget": 0.5} | options)
        before.check()


def test_attentions_of_which_no_map_was_chosen_are_those_that_were_there() -> None:
    model = mixed()
    attention = model.body.layers[0].self_attn
    factorise(model, UNIFORM, select="head")
    assert model.body.layers[0].self_attn is attention
    # And where one module stands at two places, it does so afterwards.
    shared = nn.MultiheadAttention(20, 2)
    pair = nn.ModuleDict({"a": nn.ModuleDict({"it": shared}), "b": nn.ModuleDict({"it": shared})})
    factorise(pair, UNIFORM, multiple=1)
    assert pair["a"]["it"] is pair["b"]["it"]
    assert pair["a"]["it"] is not shared
    greenformers.merge(pair)
    assert pair["a"]["it"] is pair["b"]["it"]
    assert type(pair["a"]["it"]) is nn.MultiheadAttention


@pytest.mark.parametrize("solver", ["svd", "sequential"])
def test_a_network_of_transformers(solver: str) -> None:
    model, batch = network("gpt2"), inputs("gpt2")
    before = Snapshot(model, lambda: outputs(model, batch)[0])
    for at in (1, 3, 8):
        with pytest.raises(KeyboardInterrupt):
            factorise(model, solver=solver, calibration=[batch], select="linear", progress=Stop(at))
        before.check()
    assert getattr(model.config, "quantization_config", None) is None
    assert "_tied_weights_keys" not in vars(model)
