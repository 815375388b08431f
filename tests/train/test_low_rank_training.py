"""Ways to train low-rank layers: what each one starts with and changes, and that a stopped run goes on to the bit."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import QUIET, SIZES, SMALL, TEXT, characters, verses
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed

from greenformers.lowrank.experts import ExpertsLED
from greenformers.lowrank.linear import LED
from greenformers.train import callbacks, run
from greenformers.train import fit as fit_module
from greenformers.train.callbacks import ProductDecay
from greenformers.train.causal_lm import CausalLM
from greenformers.train.fit import History, fit
from greenformers.train.low_rank import WAYS, begin_spectral, carried, check, decay_products, factors, nearest
from greenformers.train.schedule import OPTIMIZERS, Schedule
from greenformers.train.settings import Settings
from greenformers.train.state import MODEL, OPTIMIZER
from greenformers.train.stream import generator

RANK, STEPS, DENSE = 3, 8, 2
"""A quarter of the steps is dense."""


def network(rank: int | None = RANK, **sizes: Any) -> tuple[CausalLM, PreTrainedModel]:
    task = CausalLM(TEXT, characters(), 16)
    set_seed(0)
    return task, task.build(task.config(**SIZES | sizes, rank=rank))


def trained(
    way: str | None, folder: Path | None = None, *, rank: int | None = RANK, resume: bool = False,
    callbacks: tuple[TrainerCallback, ...] = (), sizes: dict[str, Any] | None = None, **options: Any,
) -> tuple[dict[str, Tensor], History]:  # fmt: skip
    task, model = network(rank, **sizes or {})
    options = {"steps": STEPS, "log_every": 1} | options
    schedule = Schedule(batch_size=8, learning_rate=0.01, low_rank_training=way, **options)
    history = fit(model, task, schedule, label="", console=QUIET, folder=folder, resume=resume, callbacks=callbacks)
    return {name: x.detach().clone() for name, x in model.named_parameters()}, history


def pair_of(weights: dict[str, Tensor], layer: str) -> tuple[Tensor, Tensor]:
    return weights[f"{layer}.decoder.weight"], weights[f"{layer}.encoder.weight"]


def truncated(weight: Tensor) -> Tensor:
    U, S, V = torch.linalg.svd(weight.double(), full_matrices=False)
    return (U[..., :RANK] * S[..., None, :RANK]) @ V[..., :RANK, :]


def both_kinds() -> nn.ModuleDict:
    torch.manual_seed(0)
    model = nn.ModuleDict({"led": LED(7, 5, RANK), "experts": ExpertsLED(2, 7, 5, RANK)})
    for parameter in model["experts"].parameters():
        nn.init.normal_(parameter)
    return model


# The parts, beside their definitions.


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (2, 7, 5)])
def test_the_nearest_matrix_has_the_first_singular_values_in_both_factors(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    D, E = nearest(weight, RANK)
    torch.testing.assert_close((D @ E).double(), truncated(weight), atol=1e-4, rtol=1e-3)
    roots = torch.linalg.svdvals(weight)[..., :RANK].sqrt()
    for factor in (D, E):
        torch.testing.assert_close(torch.linalg.svdvals(factor), roots, atol=1e-4, rtol=1e-3)


def test_a_spectral_start_is_a_truncated_dense_one() -> None:
    model = both_kinds()
    deviations = {name: (D @ E).std() for name, (D, E) in factors(model).items()}
    begin_spectral(model, generator(0))
    source = generator(0)
    for name, (D, E) in factors(model).items():
        dense = torch.randn(*D.shape[:-1], E.shape[-1], generator=source) * deviations[name]
        torch.testing.assert_close((D @ E).detach().double(), truncated(dense), atol=1e-3, rtol=1e-3)


def test_a_product_decays_along_the_gradient_of_its_norm() -> None:
    model = both_kinds()
    every = [factor for pair in factors(model).values() for factor in pair]
    assert len(every) == 4
    half_norms = torch.stack([(D @ E).square().sum() / 2 for D, E in factors(model).values()])
    gradients = torch.autograd.grad(half_norms.sum(), every)
    expected = [factor.detach() - 0.01 * gradient for factor, gradient in zip(every, gradients, strict=True)]
    decay_products(model, 0.01)
    for factor, other in zip(every, expected, strict=True):
        torch.testing.assert_close(factor.detach(), other)


@pytest.mark.parametrize("skipped", [True, False])
def test_nothing_decays_where_an_update_was_left_out(skipped: bool) -> None:
    """As gradients of fp16 were not finite."""
    model = both_kinds()
    before = [factor.detach().clone() for pair in factors(model).values() for factor in pair]
    optimizer = SimpleNamespace(step_was_skipped=skipped, param_groups=[{"lr": 0.1}])
    arguments = TrainingArguments(weight_decay=0.5, report_to="none")
    ProductDecay().on_optimizer_step(arguments, TrainerState(), TrainerControl(), model=model, optimizer=optimizer)
    after = [factor for pair in factors(model).values() for factor in pair]
    assert all(torch.equal(x, y) is skipped for x, y in zip(before, after, strict=True))


def test_a_product_that_layers_share_decays_once() -> None:
    first, second = LED(7, 5, RANK), LED(7, 5, RANK)
    second.encoder.weight, second.decoder.weight = first.encoder.weight, first.decoder.weight
    assert list(factors(nn.ModuleList([first, second]))) == ["0"]


def test_what_an_optimiser_knows_is_carried_over_as_gradients_are() -> None:
    source = torch.Generator().manual_seed(0)
    D, E = torch.randn(7, RANK, generator=source), torch.randn(RANK, 5, generator=source)
    S = torch.rand(7, 5, generator=source) + 0.1
    G = torch.randn(20_000, 7, 5, generator=source) * S.sqrt()
    d, e = D.clone().requires_grad_(), E.clone().requires_grad_()
    gradients = torch.autograd.grad((G[0] * (d @ e)).sum(), (d, e))
    for kind in ("exp_avg", "momentum_buffer"):
        for state, gradient in zip(carried(kind, G[0], D, E), gradients, strict=True):
            torch.testing.assert_close(state, gradient)
    squares = (G @ E.T).square().mean(0), (D.T @ G).square().mean(0)
    for state, square in zip(carried("exp_avg_sq", S, D, E), squares, strict=True):
        torch.testing.assert_close(state, square, atol=0.02, rtol=0.1)
    assert [state.item() for state in carried("step", torch.tensor(4.0), D, E)] == [4.0, 4.0]


# The ways.


def test_spectral_starts_so_and_decays_products_in_place_of_factors() -> None:
    model = network()[1]
    begin_spectral(model, generator(0, 7))
    still, _ = trained("spectral", steps=1, clip=1e-30, weight_decay=0.0)
    for name, x in model.named_parameters():
        torch.testing.assert_close(still[name], x.detach(), rtol=0, atol=1e-20)
    free, _ = trained("spectral", steps=1, warmup=0.0, weight_decay=0.0)
    decayed, _ = trained("spectral", steps=1, warmup=0.0, weight_decay=0.5)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(free[name])
    decay_products(model, 0.01 * 0.5)
    layers = list(factors(model))
    assert any("feed_forward" in layer for layer in layers)
    for layer in layers:
        for factor, own in zip(factors(model)[layer], pair_of(decayed, layer), strict=True):
            torch.testing.assert_close(own, factor.detach())
    assert not torch.equal(pair_of(free, layers[0])[0], pair_of(decayed, layers[0])[0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_dense_first_is_the_dense_network_and_then_its_truncation(tmp_path: Path, optimizer: str) -> None:
    weights, history = trained("dense_first", tmp_path, optimizer=optimizer)
    _, dense = trained(None, rank=None, optimizer=optimizer)
    losses = history.curve("loss")
    assert [step for step, _ in losses] == list(range(1, STEPS + 1))
    assert losses[:DENSE] == dense.curve("loss")[:DENSE]
    assert losses[DENSE:] != dense.curve("loss")[DENSE:]
    wide, low = (tmp_path / "dense" / f"step-{DENSE}", tmp_path / f"step-{DENSE}")
    before, after = load_file(wide / MODEL), load_file(low / MODEL)
    assert after.keys() >= weights.keys()
    layers = list(factors(network()[1]))
    assert len(layers) > 4
    assert all(torch.equal(before[name], x) for name, x in after.items() if name in before)
    states = load_file(wide / OPTIMIZER), load_file(low / OPTIMIZER)
    for layer in layers:
        D, E = pair_of(after, layer)
        torch.testing.assert_close((D @ E).double(), truncated(before[f"{layer}.weight"]), atol=1e-3, rtol=1e-3)
        kind = "exp_avg" if optimizer == "adamw" else "momentum_buffer"
        dense_state = states[0][f"{layer}.weight/{kind}"]
        torch.testing.assert_close(states[1][f"{layer}.decoder.weight/{kind}"], dense_state @ E.T)
        torch.testing.assert_close(states[1][f"{layer}.encoder.weight/{kind}"], D.T @ dense_state)


@pytest.mark.parametrize(
    "sizes", [{"feed_forward": "switch", "feed_forward_options": {"experts": 2}}, {"depth": "shared"}], ids=str
)
def test_experts_and_shared_layers_are_truncated_too(sizes: dict[str, Any]) -> None:
    weights, history = trained("dense_first", steps=2, sizes=sizes | {"num_hidden_layers": 2})
    assert [step for step, _ in history.curve("loss")] == [1, 2]
    assert all(x.isfinite().all() for x in weights.values())


# Stopped runs.


class KilledError(Exception):
    pass


class StopAt(TrainerCallback):
    """What kill -9 leaves: nothing of the step under way."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_optimizer_step(self, args, state, control, **_):
        if state.global_step == self.step:
            raise KilledError


@pytest.mark.parametrize(("way", "stops"), [("spectral", (3,)), ("dense_first", (1, 5))])
def test_to_the_bit(way: str, stops: tuple[int, ...], tmp_path: Path) -> None:
    expected, history = trained(way, tmp_path / "whole", save_every=1)
    for stop in stops:
        with pytest.raises(KilledError):
            trained(way, tmp_path / "stopped", save_every=1, resume=True, callbacks=(StopAt(stop),))
    began = []

    class Begun(TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            began.append(state.global_step)

    if way == "dense_first":  # killed as the truncated checkpoint was not yet written
        shutil.copytree(tmp_path / "whole" / "dense", tmp_path / "between" / "dense")
    for place in ("stopped", "between") if way == "dense_first" else ("stopped",):
        weights, resumed = trained(way, tmp_path / place, save_every=1, resume=True, callbacks=(Begun(),))
        assert all(torch.equal(x, weights[name]) for name, x in expected.items())
        assert resumed.log == history.log
    assert began
    assert min(began) > 0


def test_a_run_that_a_signal_stopped_while_dense_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"data": "tinyshakespeare", "folder": verses(tmp_path / "data"), "variant": "lrt", "steps": STEPS}
    settings = Settings(**SMALL | given, low_rank_training="dense_first", snapshots="3", log_every=1)
    whole = run.start(tmp_path / "whole", settings, QUIET)
    plain = run.fit

    class Signal(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 0:
                os.kill(os.getpid(), signal.SIGTERM)

    def interrupted(*arguments, **options):
        return plain(*arguments, **options | {"callbacks": (*options["callbacks"], Signal())})

    with monkeypatch.context() as patched:
        patched.setattr(run, "fit", interrupted)
        stopped = run.start(tmp_path / "run", settings, QUIET)
    assert (stopped.history.stopped, stopped.history.steps) == (signal.SIGTERM, 1)
    assert run.resume(tmp_path / "run", QUIET).scores == whole.scores
    assert run.metrics_of(tmp_path / "run") == run.metrics_of(tmp_path / "whole")
    for place in ("model", "at/3/model"):
        expected, actual = (load_file(tmp_path / name / place / MODEL) for name in ("whole", "run"))
        assert expected.keys() == actual.keys()
        assert all(torch.equal(x, actual[name]) for name, x in expected.items())
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_nothing_is_written_before_every_process_has_looked_at_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("dense_first", tmp_path / "whole", save_every=1)
    shutil.copytree(tmp_path / "whole" / "dense", tmp_path / "between" / "dense")
    events: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: (events.append(name), function(*given, **options))[1]

    for name in ("newest", "write"):
        monkeypatch.setattr(fit_module.checkpoint, name, noted(name, getattr(fit_module.checkpoint, name)))
    monkeypatch.setattr(fit_module, "wait", noted("wait", lambda: None))
    monkeypatch.setattr(fit_module, "_fit", lambda *_, **__: History(0.0, [], 1, STEPS))
    trained("dense_first", tmp_path / "between", resume=True)
    assert events == ["newest", "newest", "wait", "write", "wait"]


def test_a_signal_to_another_process_ends_the_dense_steps_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "_anywhere", lambda _: True)
    _, history = trained("dense_first", tmp_path)
    assert (history.steps, history.stopped) == (1, signal.SIGTERM)


# Refusals.


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"low_rank_training": "sgd"},
            "low_rank_training must be one of spectral, dense_first; got 'sgd'",
        ),
        (
            {"low_rank_training": "spectral", "variant": "transformer"},
            "low_rank_training spectral is for low-rank layers, and GreenformerForCausalLM has none",
        ),
        (
            {"low_rank_training": "spectral", "muon_rate": 0.1},
            "optimizer must be adamw with low_rank_training spectral, as Muon decays single factors",
        ),
        (
            {"low_rank_training": "dense_first", "patience": 1},
            "patience must be left out with low_rank_training dense_first, whose layers it could leave dense; got 1",
        ),
        (
            {"low_rank_training": "dense_first", "steps": 1},
            "steps must be at least 2 with low_rank_training dense_first, got 1",
        ),
        (
            {"low_rank_training": "dense_first", "snapshots": "2,5"},
            r"snapshots must be in 3\.\.8, where layers are of low rank, got 2,5",
        ),
        (
            {"low_rank_training": "dense_first", "lottery_rounds": 1},
            "low_rank_training must be left out with lottery_rounds, as its ways move dropped weights too; "
            "got 'dense_first'",
        ),
    ],
)
def test_what_has_no_effect_or_cannot_be_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    given = {"data": "tinyshakespeare", "folder": verses(tmp_path / "data"), "variant": "lrt", "steps": STEPS}
    with pytest.raises(ValueError, match=f"^{message}$"):
        run.start(tmp_path / "run", Settings(**SMALL | given | changed), QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_sharded_weights_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^shard must be off with low_rank_training dense_first, which works on whole weights$"
    ):
        _ = Settings(low_rank_training="dense_first", shard=True).schedule


def test_a_start_of_its_own_excludes_that_of_a_run(tmp_path: Path) -> None:
    given = {"data": "tinyshakespeare", "folder": verses(tmp_path / "data"), "variant": "lrt"}
    run.start(tmp_path / "first", Settings(**SMALL | given), QUIET)
    for way in WAYS:
        settings = Settings(**SMALL | given, low_rank_training=way, init=str(tmp_path / "first"))
        with pytest.raises(ValueError, match=f"^init must be left out with low_rank_training {way}, which starts anew"):
            run.start(tmp_path / "second", settings, QUIET)
    assert not (tmp_path / "second").exists()


def test_factors_of_single_heads_are_refused() -> None:
    model = network(rank_per_head=True)[1]
    check(model, None, STEPS)
    for way in WAYS:
        with pytest.raises(ValueError, match=f"^rank_per_head must be off with low_rank_training {way}, which is for"):
            check(model, way, STEPS)
