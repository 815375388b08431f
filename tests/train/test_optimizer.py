"""Muon for the matrices inside layers: beside its formula by a singular value decomposition, and AdamW for the rest."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import QUIET, SIZES, SMALL, TEXT, characters, verses
from torch import Tensor, nn

from greenformers.train import run
from greenformers.train.causal_lm import CausalLM
from greenformers.train.fit import fit
from greenformers.train.optimizer import ITERATIONS, QUINTIC, Muon, is_matrix, muon_and_adamw, orthogonalised
from greenformers.train.schedule import OPTIMIZERS, Schedule
from greenformers.train.settings import Settings

RATES = {"muon_rate": 0.1, "learning_rate": 0.01, "weight_decay": 0.0}


def network(seed: int = 0, **sizes: object) -> nn.Module:
    torch.manual_seed(seed)
    task = CausalLM(TEXT, characters(), 16)
    return task.build(task.config(**SIZES | sizes))


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    ids = torch.arange(2, 18)[None] % 9
    model(input_ids=ids, labels=ids).loss.backward()
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    optimizer.step()
    return {name: x.detach() - before[name] for name, x in model.named_parameters()}


def test_tables_of_biases_are_no_matrices() -> None:
    model = network(position="t5", feed_forward="switch", feed_forward_options={"experts": 2})
    two = {name for name, x in model.named_parameters() if x.ndim == 2 and ".layers." in name}
    tables = {name for name in two if "bias" in name.rpartition(".")[2]}
    assert tables
    assert not tables & {name for name, x in model.named_parameters() if is_matrix(name, x)}


@pytest.mark.parametrize("rank", [None, 3])
def test_matrices_move_alike_in_all_directions_and_the_rest_as_by_adamw(rank: int | None) -> None:
    model, other = network(rank=rank), network(rank=rank)
    moved = stepped(model, muon_and_adamw(model, set(), **RATES))
    by_adamw = stepped(other, torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.0))
    matrices = {name for name, x in model.named_parameters() if is_matrix(name, x)}
    assert any("attention" in name for name in matrices)
    assert not any("embed" in name or "norm" in name for name in matrices)
    for name, x in model.named_parameters():
        if name not in matrices:
            torch.testing.assert_close(moved[name], by_adamw[name], msg=name)
            continue
        U, S, V = torch.linalg.svd(x.grad.double(), full_matrices=False)
        above = 1e-3 * S[0] < S
        expected = -0.1 * 0.2 * max(x.shape) ** 0.5 * (U[:, above] @ V[above])
        # Newton-Schulz makes singular values of 0.7 to 1.2 of all but the least ones.
        cosine = torch.cosine_similarity(moved[name].double().flatten(), expected.flatten(), dim=0)
        assert cosine > 0.95, name
        assert 0.6 < moved[name].norm() / expected.norm() < 1.3, name


@pytest.mark.parametrize("shape", [(6, 6), (12, 4), (4, 12)])
def test_steps_are_those_of_torch(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(shape)) for _ in range(2))
    group = {"weight_decay": 0.1}
    optimizer = Muon([group | {"params": [ours]}], lr=0.1)
    reference = torch.optim.Muon([group | {"params": [theirs]}], lr=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
    moved, expected = ((x - 0.99**3).flatten() for x in (ours, theirs))  # a decay of 1 % a step
    assert torch.cosine_similarity(moved, expected, dim=0) > 0.998, "theirs rounds to bfloat16"
    torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0)


@pytest.mark.parametrize("shape", [(64, 192), (256, 64)])
@pytest.mark.parametrize("least", [1.0, 1e-6])
def test_polynomials_of_the_gram_matrix_are_newton_schulz(shape: tuple[int, int], least: float) -> None:
    torch.manual_seed(0)
    U, _, V = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    matrix = U * torch.logspace(0, math.log10(least), 64) @ V
    x = matrix.double() / matrix.norm()
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        x = a * x + b * (x @ x.T @ x) + c * (x @ x.T @ x @ x.T @ x)
    torch.testing.assert_close(orthogonalised(matrix).double(), x, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(256, 256), (256, 320), (320, 256)])
def test_large_matrices_are_computed_in_bfloat16_where_asked(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    exact, half = orthogonalised(matrix), orthogonalised(matrix, bf16=True)
    assert half.dtype == torch.float32
    assert 0 < (half - exact).norm() < 0.03 * exact.norm()
    small = matrix[:191]
    assert torch.equal(orthogonalised(small, bf16=True), orthogonalised(small))


def test_bfloat16_is_for_processors_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(256, 256)])
    given = {"muon_rate": 0.1, "learning_rate": 0.0, "weight_decay": 0.0}
    gradient = torch.randn(256, 256)
    weights = {}
    for precision in ("fp32", "bf16"):
        monkeypatch.setattr("greenformers.train.optimizer.quickest", lambda own=precision: own)
        for asked in (False, True):
            net = copy.deepcopy(model)
            matrix = net.get_parameter("0.weight")
            matrix.grad = gradient.clone()
            muon_and_adamw(net, set(), **given, bf16=asked).step()
            weights[precision, asked] = matrix.detach()
    assert torch.equal(weights["fp32", False], weights["fp32", True])
    assert torch.equal(weights["fp32", False], weights["bf16", False])
    assert not torch.equal(weights["bf16", False], weights["bf16", True])


def test_a_run_in_bf16_has_an_optimiser_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spied(*args: Any, bf16: bool, **given: Any) -> Any:
        asked.append(bf16)
        return muon_and_adamw(*args, **given)

    monkeypatch.setattr("greenformers.train.trainer.muon_and_adamw", spied)
    for precision in ("fp32", "bf16"):
        task = CausalLM(TEXT, characters(), 16)
        schedule = Schedule(steps=1, batch_size=2, optimizer="muon", precision=precision)
        model = task.build(task.config(**SIZES))
        fit(model, task, schedule, label="", console=QUIET, folder=tmp_path / precision)
    assert asked == [False, True]


def test_a_state_that_is_loaded_is_used() -> None:
    """As whatever wraps an optimiser may do: groups and states are then other objects."""
    model, other = network(rank=3), network(rank=3)
    fresh, reloaded = (muon_and_adamw(net, set(), **RATES) for net in (model, other))
    stepped(model, fresh)
    stepped(other, reloaded)
    reloaded.load_state_dict(reloaded.state_dict())
    for group in (*fresh.param_groups, *reloaded.param_groups):
        group["lr"] = 0.5
    first, second = stepped(model, fresh), stepped(other, reloaded)
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def test_it_learns_more_in_as_many_steps_where_ranks_are_low(tmp_path: Path) -> None:
    losses = []
    for optimizer in OPTIMIZERS:
        task = CausalLM(TEXT, characters(), 16)
        torch.manual_seed(0)
        model = task.build(task.config(**SIZES, rank=3))
        schedule = Schedule(steps=60, batch_size=8, learning_rate=0.02, optimizer=optimizer)
        history = fit(model, task, schedule, label="", console=QUIET, folder=tmp_path / optimizer)
        losses.append(history.curve("eval_loss")[-1][1])
    assert losses[1] < losses[0]


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ({}, 0.5),
        ({"variant": "lrt"}, 0.5),
        ({"muon_rate": 0.25}, 0.25),
        ({"optimizer": "adamw"}, None),
        ({"init": "runs/first"}, None),
        ({"init": "runs/first", "optimizer": "muon"}, 0.5),
        ({"lottery_rounds": 1}, None),
        ({"micro_batches": 2}, None),
        ({"shard": True}, None),
        ({"variant": "lrt", "low_rank_training": "dense_first"}, 0.5),
        ({"variant": "lrt", "low_rank_training": "spectral"}, None),
    ],
)
def test_new_weights_are_trained_by_muon(given: dict[str, Any], rate: float | None) -> None:
    settings = Settings(**{"learning_rate": 0.1} | given)
    assert settings.schedule.highest_muon_rate(nn.Linear(2, 2)) == rate
    assert settings.lottery is None or given == {"lottery_rounds": 1}
    assert Schedule().highest_muon_rate(nn.Linear(2, 2)) is None


def test_low_rank_layers_have_half_of_the_usual_rate() -> None:
    task = CausalLM(TEXT, characters(), 16)
    for rank, rate, way in ((None, 0.1, None), (3, 0.05, None), (3, 0.1, "dense_first")):
        ends = []
        for given in ({}, {"muon_rate": rate}):
            torch.manual_seed(0)
            model = task.build(task.config(**SIZES, rank=rank))
            schedule = Schedule(
                steps=4, batch_size=8, learning_rate=0.02, optimizer="muon", low_rank_training=way, **given
            )
            assert schedule.highest_muon_rate(model) == pytest.approx(rate)
            fit(model, task, schedule, label="", console=QUIET)
            ends.append(model.state_dict())
        assert all(torch.equal(x, ends[1][name]) for name, x in ends[0].items())


def test_the_optimiser_is_that_of_the_run(tmp_path: Path) -> None:
    given = {"data": "tinyshakespeare", "folder": verses(tmp_path / "data"), "steps": 8}
    losses = {}
    for optimizer in (None, *OPTIMIZERS):
        outcome = run.start(tmp_path / str(optimizer), Settings(**SMALL | given, optimizer=optimizer), QUIET)
        losses[optimizer] = outcome.scores["loss"]
    assert losses[None] == losses["muon"] != losses["adamw"]


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"muon_rate is for matrices inside layers, and Linear has none"):
        muon_and_adamw(nn.Linear(3, 3), set(), **RATES)
    with pytest.raises(ValueError, match=r"muon_rate must be above 0 and finite, got 0"):
        Schedule(optimizer="muon", muon_rate=0)
    with pytest.raises(ValueError, match=r"^optimizer must be one of adamw, muon; got 'sgd'$"):
        Schedule(optimizer="sgd")
    with pytest.raises(ValueError, match=r"^muon_rate is for optimizer muon, got 0\.1 with adamw$"):
        _ = Settings(optimizer="adamw", muon_rate=0.1).schedule
    with pytest.raises(ValueError, match=r"^shard must be off with optimizer muon, which makes one update of a whole"):
        Schedule(optimizer="muon", shard=True)
    with pytest.raises(ValueError, match=r"^optimizer must be adamw with lottery_rounds: Muon moves dropped weights"):
        Settings(muon_rate=0.1, lottery_rounds=2).lottery  # noqa: B018
