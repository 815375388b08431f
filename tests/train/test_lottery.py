"""Lottery tickets: which weights go, what the others go back to, and that a stopped run ends where it would have."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import QUIET, SMALL, captions, verses
from torch import Tensor, nn
from torch.func import functional_call
from transformers import TrainerCallback
from typer.testing import CliRunner

from greenformers.cli import application
from greenformers.train import checkpoint, run
from greenformers.train.fit import fit
from greenformers.train.lottery import Lottery, Masked, dropped, everything, linear_weights
from greenformers.train.schedule import Schedule
from greenformers.train.settings import Settings
from greenformers.train.state import optimizer_state, weights

STEPS, K = 6, 2
PLAIN = Settings(
    data="digits", limit=24, pool=4, hidden=8, heads=2, feed_forward=12, layers=1, dropout=0.1, steps=STEPS, batch=8,
    learning_rate=0.05, weight_decay=0.5, save_every=2, evaluate_every=STEPS, optimizer="adamw",
)  # fmt: skip
TICKET = replace(PLAIN, lottery_rounds=2, lottery_drop=0.3, lottery_rewind=K / STEPS)
# 4 projections of 8 x 8, two weights of 8 x 12: 448; 448 - 134 = 314, 314 - 94 = 220.
COUNTS = [448, 314, 220]


class KilledError(Exception):
    pass


@dataclass
class Watcher(TrainerCallback):
    """Notes the state of training where it begins and after step K; kills the training of one round after a step."""

    kill: tuple[int, int] | None = None
    round: int = -1
    begun: list[tuple[int, dict[str, Tensor], dict[str, Tensor]]] = field(default_factory=list)
    after: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = field(default_factory=dict)

    def on_train_begin(self, args, state, control, model, optimizer, **_) -> None:
        self.begun.append((state.global_step, copied(weights(model)), copied(optimizer_state(model, optimizer))))

    def on_step_end(self, args, state, control, model, optimizer, **_) -> None:
        if state.global_step == K:
            self.after[self.round] = copied(weights(model)), copied(optimizer_state(model, optimizer))

    def on_optimizer_step(self, args, state, control, **_) -> None:
        if (self.round, state.global_step) == self.kill:
            raise KilledError


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def watched(start: Callable[[], Any], kill: tuple[int, int] | None = None) -> Watcher:
    """Start or resume a run, and watch the trainings of all rounds; a label tells the number of the round."""
    watcher = Watcher(kill)

    def fit_watched(model, objective, schedule, *, label, callbacks, **options):
        watcher.round = int(label.rpartition(" ")[2])
        return fit(model, objective, schedule, label=label, callbacks=(*callbacks, watcher), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "fit", fit_watched)
        start()
    return watcher


def trained(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def mask(folder: Path, number: int) -> dict[str, Tensor]:
    return load_file(folder / "rounds" / str(number) / "mask.safetensors")


def same(ours: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return ours.keys() == others.keys() and all(torch.equal(ours[name], tensor) for name, tensor in others.items())


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain training, with a snapshot of step K."""
    folder = tmp_path_factory.mktemp("lottery")
    run.start(folder / "plain", replace(PLAIN, snapshots=str(K)), QUIET)
    return folder


@pytest.fixture(scope="module")
def ticket(top: Path) -> tuple[Path, Watcher]:
    """A ticket of two rounds that go back to step K."""
    return top / "ticket", watched(lambda: run.start(top / "ticket", TICKET, QUIET))


def test_the_number_dropped_is_exact_among_equal_weights() -> None:
    torch.manual_seed(0)
    sizes = {"a": (5, 7), "b": (3, 11)}
    layers = {name: torch.randint(-3, 4, size).double() for name, size in sizes.items()}  # seven values, 68 weights
    masks = {name: torch.rand(size) < 0.8 for name, size in sizes.items()}
    cells = [(name, i, j) for name, (m, n) in sizes.items() for i in range(m) for j in range(n)]
    alive = [cell for cell in cells if masks[cell[0]][cell[1:]]]
    for largest in (False, True):
        sign = -1 if largest else 1
        gone = sorted(alive, key=lambda cell: sign * abs(layers[cell[0]][cell[1:]].item()))[:20]  # stable, as ours is
        after = dropped(masks, layers, 20, largest=largest)
        assert [cell for cell in cells if after[cell[0]][cell[1:]]] == [cell for cell in alive if cell not in gone]


def test_counts_are_whole_weights_and_no_rounding_of_floats() -> None:
    # 0.29 * 100 is 28.999999999999996.
    assert Lottery(2, 0.29).counts(100) == [100, 71, 50]
    assert Lottery(8).counts(100_000)[-1] == pytest.approx(100_000 * 0.8**8, abs=3)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"layers": 2}, 2 * 448),
        ({"layers": 2, "share": "all"}, 448),
        ({"layers": 2, "share": "attention"}, 448 + 192),
        # LED of rank 2: 2 (m + n) weights.
        ({"variant": "lrt", "rank": 2}, 4 * 2 * 16 + 2 * 2 * 20),
        ({"residual": "reversible"}, 448),
    ],
    ids=str,
)
def test_weights_of_linear_layers_inside_the_layers(given: dict, count: int) -> None:
    model = replace(PLAIN, **given).task().network()
    assert sum(weight.numel() for weight in linear_weights(model).values()) == count
    assert all(".layers." in name and name.endswith(".weight") for name in linear_weights(model))


def test_of_decoders_and_of_the_network_that_is_saved(tmp_path: Path) -> None:
    plays = {"data": "tinyshakespeare", "folder": verses(tmp_path / "verses")}
    model = Settings(**SMALL | plays, objective="replaced_token_detection").task().network()
    assert {name.split(".")[0] for name in linear_weights(model)} == {"discriminator"}
    model = Settings(**SMALL, data="multi30k", folder=captions(tmp_path / "captions")).task().network()
    halves = {part for name in linear_weights(model) for part in ("encoder.layers", "decoder.layers") if part in name}
    assert halves == {"encoder.layers", "decoder.layers"}
    assert not any("embedding" in name for name in linear_weights(model))


def test_training_is_that_of_the_masked_network() -> None:
    """Beside AdamW written out on m * w: the clipped norm sees no dropped weight, and the others move alike."""
    task = replace(PLAIN, dropout=0.0).task()
    model, twin = task.network(), task.network()
    torch.manual_seed(5)
    masks = {name: torch.rand(full.shape) < 0.4 for name, full in everything(model).items()}
    schedule = Schedule(steps=4, batch_size=8, learning_rate=0.01, warmup=0.0, decay=1.0, weight_decay=0.0, clip=0.3)
    fit(model, task.objective, schedule, label="", console=QUIET, callbacks=(Masked(masks),))

    twin.double()
    parameters = dict(twin.named_parameters())
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.01, weight_decay=0.0)
    stream = schedule.stream(task.objective)
    for step in range(4):
        batch = task.objective.collate([stream[place] for place in range(8 * step, 8 * step + 8)])
        batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
        masked = {name: weight * masks[name] if name in masks else weight for name, weight in parameters.items()}
        optimizer.zero_grad()
        functional_call(twin, masked, kwargs=batch).loss.backward()
        nn.utils.clip_grad_norm_(parameters.values(), 0.3)
        optimizer.step()
    for name, weight in model.named_parameters():
        if name.endswith("projections.k.bias"):
            continue  # softmax does not see it: its gradient is rounding, which AdamW scales up
        expected = parameters[name].detach()
        expected = expected * masks[name] if name in masks else expected
        torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "given",
    [
        {"residual": "reversible"},
        {"layers": 2, "share": "all"},
        {"variant": "lrt", "rank": 2},
        {"accumulate": 2, "precision": "bf16", "recompute": True},
    ],
    ids=str,
)
def test_dropped_weights_end_at_zero(tmp_path: Path, given: dict) -> None:
    settings = replace(PLAIN, **given, steps=3, lottery_rounds=1, lottery_drop=0.5)
    run.start(tmp_path / "run", settings, QUIET)
    model, masks = trained(tmp_path / "run"), mask(tmp_path / "run", 1)
    assert masks
    for name, alive in masks.items():
        assert torch.equal(model[name] != 0, alive)


@pytest.mark.parametrize("objective", ["replaced_token_detection", "causal_lm"])
def test_with_objectives_of_text(tmp_path: Path, objective: str) -> None:
    folder = verses(tmp_path / "verses")
    settings = Settings(**SMALL, data="tinyshakespeare", folder=folder, objective=objective, lottery_rounds=1)
    run.start(tmp_path / "run", settings, QUIET)
    model, masks = trained(tmp_path / "run"), mask(tmp_path / "run", 1)
    assert sum(alive.sum() for alive in masks.values()) == round(0.8 * sum(alive.numel() for alive in masks.values()))
    for name, alive in masks.items():
        assert torch.equal(model[name.removeprefix("discriminator.")] != 0, alive)


def test_every_round_begins_at_the_noted_step_to_the_bit(top: Path, ticket: tuple[Path, Watcher]) -> None:
    folder, watcher = ticket
    noted, moments = watcher.after[0]
    snapshot = load_file(top / "plain" / "at" / str(K) / "model" / "model.safetensors")
    assert same({name: noted[name] for name in snapshot}, snapshot)
    assert [step for step, *_ in watcher.begun] == [0, K, K]
    for number in (1, 2):
        masks = mask(folder, number)
        _, begun, states = watcher.begun[number]
        assert same(begun, {name: tensor * masks.get(name, 1) for name, tensor in noted.items()})
        assert same(
            states, {key: x * masks.get(key.rpartition("/")[0], 1) if x.dim() else x for key, x in moments.items()}
        )


def test_rounds_leave_masks_scores_and_a_network_with_zeros(top: Path, ticket: tuple[Path, Watcher]) -> None:
    folder, _ = ticket
    dense, masks = trained(top / "plain"), [mask(folder, number) for number in (1, 2)]
    assert [sum(int(alive.sum()) for alive in each.values()) for each in masks] == COUNTS[1:]
    sizes = sorted(((dense[name].abs(), masks[0][name]) for name in masks[0]), key=lambda pair: pair[0].numel())
    assert max(size[~alive].max() for size, alive in sizes if not alive.all()) <= min(
        size[alive].min() for size, alive in sizes
    )
    assert not any((masks[1][name] & ~masks[0][name]).any() for name in masks[1])
    model = trained(folder)
    assert sum(int((model[name] == 0).sum()) for name in masks[1]) == COUNTS[0] - COUNTS[2]
    outcome = run.metrics_of(folder / "rounds" / "2")
    assert run.metrics_of(folder) == outcome
    assert min(entry["step"] for entry in outcome) > K
    assert sorted(path.name for path in folder.iterdir()) == [
        "metrics.jsonl",
        "model",
        "rounds",
        "run.json",
        "scores.json",
    ]
    assert run.ensure(folder, TICKET, QUIET) == {"accuracy": outcome[-1]["eval_accuracy"]}


def test_without_rewinding_weights_are_the_initial_or_the_given_ones(top: Path, tmp_path: Path) -> None:
    settings = replace(PLAIN, steps=2, lottery_rounds=1)
    watcher = watched(lambda: run.start(tmp_path / "new", settings, QUIET))
    start = weights(settings.task().network())
    assert same(watcher.begun[1][1], {name: x * mask(tmp_path / "new", 1).get(name, 1) for name, x in start.items()})
    assert not same(watcher.begun[0][1], trained(top / "plain"))


STOPS = [(0, 1), (0, K), (1, 4), (2, 3)]


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path, ticket: tuple[Path, Watcher], stop: tuple) -> None:
    folder, _ = ticket
    with pytest.raises(KilledError):
        watched(lambda: run.start(tmp_path / "run", TICKET, QUIET), stop)
    ended = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "rounds").glob("*/scores.json")}
    assert len(ended) == stop[0]
    watcher = watched(lambda: run.resume(tmp_path / "run", QUIET))
    assert len(watcher.begun) == 3 - stop[0]
    assert all(path.stat().st_mtime_ns == time for path, time in ended.items())
    assert same(trained(tmp_path / "run"), trained(folder))
    for number in range(3):
        path = Path("rounds") / str(number)
        assert run.metrics_of(tmp_path / "run" / path) == run.metrics_of(folder / path)


def test_killed_between_two_rounds(tmp_path: Path, ticket: tuple[Path, Watcher]) -> None:
    """The next round's mask is there already, the scores of the one before are not."""
    folder, _ = ticket
    write = checkpoint.replace

    def killed(path: Path, text: str) -> None:
        if path == tmp_path / "run" / "rounds" / "1" / "scores.json":
            raise KilledError
        write(path, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "replace", killed)
        with pytest.raises(KilledError):
            run.start(tmp_path / "run", TICKET, QUIET)
    assert (tmp_path / "run" / "rounds" / "2" / "mask.safetensors").exists()
    run.resume(tmp_path / "run", QUIET)
    assert same(trained(tmp_path / "run"), trained(folder))


def test_a_random_mask_has_as_many_weights_in_each_layer(tmp_path: Path, ticket: tuple[Path, Watcher]) -> None:
    folder, _ = ticket
    run.start(tmp_path / "run", replace(TICKET, lottery_control="random"), QUIET)
    assert same(mask(tmp_path / "run", 1), mask(folder, 1))
    random, own = mask(tmp_path / "run", 2), mask(folder, 2)
    assert {name: int(x.sum()) for name, x in random.items()} == {name: int(x.sum()) for name, x in own.items()}
    assert not any(torch.equal(random[name], own[name]) for name in own)
    model = trained(tmp_path / "run")
    assert all(torch.equal(model[name] != 0, alive) for name, alive in random.items())


def test_new_weights_have_the_mask_of_the_ticket_and_begin_at_step_0(tmp_path: Path, ticket) -> None:
    folder, watcher = ticket
    new = watched(lambda: run.start(tmp_path / "run", replace(TICKET, lottery_control="reinit"), QUIET))
    assert same(mask(tmp_path / "run", 2), mask(folder, 2))
    assert [step for step, *_ in new.begun] == [0, K, 0]
    (_, initial, _), (_, drawn, _) = watcher.begun[0], new.begun[2]
    for name, alive in mask(folder, 2).items():
        assert torch.equal(drawn[name] != 0, alive)
        assert not (drawn[name] == initial[name]).any()


def test_the_worst_mask_has_the_least_weights_of_the_dense_network(top: Path, tmp_path: Path) -> None:
    outcome = run.start(tmp_path / "run", replace(TICKET, lottery_control="worst"), QUIET)
    assert list(outcome.rounds) == [0, 2]
    assert outcome.rounds[2]["weights_left"] == COUNTS[2] / COUNTS[0]
    dense, masks = trained(top / "plain"), mask(tmp_path / "run", 2)
    sizes = sorted(abs(value) for name in masks for value in dense[name].flatten().tolist())
    for name, alive in masks.items():
        assert torch.equal(alive, dense[name].abs() <= sizes[COUNTS[2] - 1])


def test_the_command_prints_a_table_of_rounds(tmp_path: Path) -> None:
    options = {"data": "digits", "limit": 24, "pool": 4, "hidden": 8, "heads": 2, "feed-forward": 12, "layers": 1}
    options |= {"steps": 2, "batch": 8, "lottery-rounds": 2, "lottery-drop": 0.3, "out": tmp_path / "run"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    result = CliRunner().invoke(application(), ["train", *words])
    assert result.exit_code == 0, result.output
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines() if "│" in line]
    assert [line[:2] for line in lines] == [["0", "100.00"], ["1", "70.09"], ["2", "49.11"]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lottery_rounds": -1}, "lottery_rounds must be at least 1, or 0 for none, got -1"),
        ({"lottery_drop": 0.2}, "lottery_drop is for lottery_rounds of at least 1, got 0.2"),
        ({"lottery_rewind": 0.0}, "lottery_rewind is for lottery_rounds of at least 1, got 0.0"),
        ({"lottery_control": "none"}, "lottery_control is for lottery_rounds of at least 1, got none"),
        ({"lottery_rounds": 1, "lottery_drop": 1.0}, "lottery_drop must be above 0 and below 1, got 1.0"),
        ({"lottery_rounds": 1, "lottery_rewind": 1.0}, "lottery_rewind must be at least 0 and below 1, got 1.0"),
        (
            {"lottery_rounds": 1, "lottery_control": "best"},
            "lottery_control must be one of none, random, reinit, worst; got 'best'",
        ),
        (
            {"lottery_rounds": 1, "lottery_rewind": 0.05},
            "lottery_rewind must be 0, or end in step 1..5 of 6; got 0.05",
        ),
        (
            {"lottery_rounds": 9, "lottery_drop": 0.9},
            "lottery_drop must drop a weight in each round and leave one, of 448 in linear layers; got 0.9 in 9 rounds",
        ),
        (
            {"lottery_rounds": 1, "micro_batches": 2},
            "micro_batches is not for lottery_rounds: must be left out, got 2",
        ),
        ({"lottery_rounds": 1, "shard": True}, "shard must be off with lottery_rounds: masks are of whole weights"),
    ],
    ids=str,
)
def test_refused_settings_leave_no_folder(tmp_path: Path, monkeypatch, given: dict, message: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun says it; it is refused before processes meet
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        run.start(tmp_path / "run", replace(PLAIN, **given), QUIET)
    assert str(caught.value) == message
    assert not list(tmp_path.iterdir())


def test_early_stopping_could_end_before_the_step(tmp_path: Path) -> None:
    tasks = {"data": "tinyshakespeare", "folder": verses(tmp_path / "verses")}
    settings = Settings(**SMALL | tasks, lottery_rounds=1, lottery_rewind=0.5, patience=3)
    message = r"^patience must be left out with lottery_rewind, whose step it could end before; got 3$"
    with pytest.raises(ValueError, match=message):
        run.start(tmp_path / "run", settings, QUIET)
    assert not (tmp_path / "run").exists()
