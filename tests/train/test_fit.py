"""Training: deterministic by its seed, the same in parts as at once, honest about what it did, and it learns."""

import io
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from tiny import QUIET, SIZES, TEXT, characters

from greenformers.attention import Shape, build
from greenformers.data import Examples, Labelled, Sentences, Splits, Tagged, load
from greenformers.measure.quality import accuracy, predict
from greenformers.model.block import EncoderLayer
from greenformers.train import run
from greenformers.train.callbacks import DivergedError, Update
from greenformers.train.causal_lm import CausalLM
from greenformers.train.classification import ImageClassification, TextClassification, TextRegression
from greenformers.train.fit import History, _has_idle_parameters, fit, per_process
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.objective import Objective
from greenformers.train.replaced_token_detection import ReplacedTokenDetection
from greenformers.train.schedule import Schedule
from greenformers.train.settings import Settings
from greenformers.train.shard import ASKED, is_sharded
from greenformers.train.state import OPTIMIZER, load_optimizer
from greenformers.train.stream import generator
from greenformers.train.tagging import Tagging


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load("digits", limit=200, pool=2)


def texts() -> TextClassification:
    rows = [(" ".join(TEXT.train.split()[: 1 + i % 7]),) for i in range(24)]
    train = Examples(rows, [i % 3 for i in range(24)])
    data = Labelled("written", ("a", "b", "c"), train, train, Examples())
    return TextClassification(data, characters(), 16)


OBJECTIVES = {
    "classification": texts,
    "masked_lm": lambda: MaskedLM(TEXT, characters(), 16),
    "causal_lm": lambda: CausalLM(TEXT, characters(), 16),
}


def trained(objective, schedule: Schedule, dtype=torch.float32, **sizes):
    torch.manual_seed(schedule.seed)
    model = objective.build(objective.config(**SIZES | sizes)).to(dtype)
    return model, fit(model, objective, schedule, label="tiny", console=QUIET)


def assert_same(model, expected, **tolerance) -> None:
    for (name, a), b in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


def test_it_learns_and_tells_how(digits: Splits) -> None:
    schedule = Schedule(epochs=20, batch_size=40, learning_rate=1e-2)
    objective = ImageClassification(digits)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "hidden_dropout_prob": 0.1}
    model, history = trained(objective, schedule, **sizes, initializer_range=0.2)
    loss, scores = history.curve("loss"), history.curve("eval_accuracy")
    assert [step for step, _ in loss] == [step for step, _ in scores] == [5 * epoch for epoch in range(1, 21)]
    assert (history.steps_an_epoch, history.steps, history.stopped) == (5, 100, None)
    assert loss[-1][1] < 0.6 * loss[0][1]
    assert scores[-1][1] > 50  # ten classes: chance is 10
    assert scores[-1][1] == pytest.approx(accuracy(*predict(model, digits.test)))
    assert 0 < history.seconds < 60
    assert [entry["epoch"] for entry in history.log if "loss" in entry] == list(range(1, 21))


def test_the_progress_bar_says_what_it_knows(digits: Splits) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    objective = ImageClassification(digits)
    model = objective.build(objective.config(**SIZES))
    history = fit(model, objective, Schedule(steps=3, batch_size=10), label="my run", console=console)
    last = [line for line in console.file.getvalue().splitlines() if "my run" in line][-1]
    assert "3/3 steps" in last
    assert f"accuracy {history.curve('eval_accuracy')[-1][1]:.4g}" in last


def test_a_training_that_diverges_ends_and_takes_its_progress_bar_with_it(digits: Splits) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    objective = ImageClassification(digits)
    model = objective.build(objective.config(**SIZES))
    said = "training diverged at a learning rate of 1e+30: the loss is nan after 5 steps; try a lower rate"
    with pytest.raises(DivergedError, match=re.escape(said)):
        fit(
            model,
            objective,
            Schedule(steps=10, batch_size=40, learning_rate=1e30, warmup=0.0),
            label="run",
            console=console,
        )
    before = console.file.getvalue()
    time.sleep(0.15)  # the bar is drawn ten times a second
    assert console.file.getvalue() == before


def numbers() -> TextRegression:
    rows = Examples([(text,) for text in TEXT.train.splitlines()[:8]], [0.5 * i for i in range(8)])
    return TextRegression(Labelled("written", None, rows, rows, Examples()), characters(), 16)


def tags() -> Tagging:
    words = [text.split() for text in TEXT.train.splitlines()[:8]]
    rows = Sentences(words, [[i % 2 for i in range(len(each))] for each in words])
    return Tagging(Tagged("written", ("O", "B-x"), rows, rows, Sentences()), characters(), 16)


@pytest.mark.parametrize(
    "objective",
    [*OBJECTIVES.values(), numbers, tags, lambda: ReplacedTokenDetection(TEXT, characters(), 16)],
    ids=[*OBJECTIVES, "regression", "tagging", "replaced_token_detection"],
)
def test_a_last_step_that_leaves_no_numbers_is_no_success(objective: Callable[[], Objective]) -> None:
    """Its loss is that of the weights before: only the scores show it, and of most objectives they were nan."""
    schedule = Schedule(steps=1, batch_size=4, learning_rate=1e30, warmup=0.0)
    with pytest.raises(DivergedError, match=r"at a learning rate of 1e\+30: outputs are nan after 1 steps"):
        trained(objective(), schedule)


def test_a_training_that_diverges_names_both_rates_and_leaves_nothing(tmp_path: Path) -> None:
    settings = Settings(limit=60, steps=10, batch=20, hidden=8, layers=1, muon_rate=1e30, warmup=0.0, log_every=1)
    said = "training diverged at a learning rate of 0.002, 1e+30 of Muon: "
    with pytest.raises(DivergedError, match=f"^{re.escape(said)}"):
        run.start(tmp_path / "run", settings, QUIET)
    assert not (tmp_path / "run").exists()


def test_the_same_seed_gives_the_same_model(digits: Splits) -> None:
    objective = ImageClassification(digits)
    schedule = Schedule(epochs=1, batch_size=32, seed=5)
    (model, history), (twin, _) = (trained(objective, schedule, hidden_dropout_prob=0.1) for _ in range(2))
    assert history.steps == 200 // 32
    assert_same(model, twin, rtol=0, atol=0)
    other, _ = trained(objective, Schedule(epochs=1, batch_size=32, seed=6), hidden_dropout_prob=0.1)
    assert not torch.equal(other.classifier.weight, model.classifier.weight)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_in_parts_teaches_what_it_teaches_at_once(name: str) -> None:
    objective = OBJECTIVES[name]()
    options = {"steps": 4, "batch_size": 6, "warmup": 0.0, "learning_rate": 1e-2, "log_every": 1}
    # In float64 what remains between the two is rounding, not chance.
    whole, curve = trained(objective, Schedule(**options), torch.float64)
    parts, other = trained(objective, Schedule(**options, accumulate=3), torch.float64)
    assert_same(parts, whole, rtol=0, atol=1e-9)
    losses, expected = ([value for _, value in history.curve("loss")] for history in (other, curve))
    assert len(losses) == 4
    assert losses == pytest.approx(expected, abs=1e-6)  # they are logged in float32


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_logged_loss_is_the_mean_of_a_label(name: str) -> None:
    objective = OBJECTIVES[name]()
    schedule = Schedule(steps=1, batch_size=5, log_every=1)
    torch.manual_seed(0)
    model = objective.build(objective.config(**SIZES | {"sparse_prediction": False}))
    stream = schedule.stream(objective)
    batch = objective.collate([stream[n] for n in range(5)])
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = model(**batch).logits.log_softmax(-1)
    if name == "causal_lm":
        logits, labels = logits[:, :-1], labels[:, 1:]
    asked = labels != -100
    by_hand = -logits[asked].gather(-1, labels[asked][:, None]).mean().item()
    history = fit(model, objective, schedule, label="", console=QUIET)
    assert history.curve("loss") == [(1, pytest.approx(by_hand, rel=1e-5))]


def test_the_rate_rises_and_falls() -> None:
    _, history = trained(OBJECTIVES["classification"](), Schedule(steps=10, batch_size=4, warmup=0.2, log_every=1))
    rates = [rate for _, rate in history.curve("learning_rate")]
    assert len(rates) == 10

    def rate(step: int) -> float:
        return 2e-3 * (step / 2 if step < 2 else 0.5 * (1 + math.cos(math.pi * (step - 2) / 8)))

    assert rates == pytest.approx([rate(step) for step in range(10)])


def test_bfloat16_stays_close(digits: Splits) -> None:
    objective = ImageClassification(digits)
    options = {"steps": 30, "batch_size": 20, "log_every": 5}
    _, expected = trained(objective, Schedule(**options))
    model, history = trained(objective, Schedule(**options, precision="bf16"))
    losses, expected_losses = ([value for _, value in each.curve("loss")] for each in (history, expected))
    assert losses == pytest.approx(expected_losses, rel=0.03)
    assert losses != pytest.approx(expected_losses, rel=1e-6)  # it was another precision
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert expected_losses[-1] < expected_losses[0]


def test_recomputing_changes_nothing_but_the_work() -> None:
    objective = OBJECTIVES["masked_lm"]()
    calls = 0

    def count(*_) -> None:
        nonlocal calls
        calls += torch.is_grad_enabled()  # not in evaluation

    results = []
    for recompute in (False, True):
        calls = 0
        torch.manual_seed(0)
        # With dropout: the second pass must draw what the first drew.
        model = objective.build(objective.config(**SIZES | {"hidden_dropout_prob": 0.2}))
        layer = next(module for module in model.modules() if isinstance(module, EncoderLayer))
        layer.feed_forward.up.register_forward_pre_hook(count)
        fit(model, objective, Schedule(steps=3, batch_size=4, recompute=recompute), label="", console=QUIET)
        results.append((model, calls))
    assert [calls for _, calls in results] == [3, 6]
    assert_same(results[0][0], results[1][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("greater_is_better", [True, False])
def test_patience_stops_early_and_brings_the_best_back(digits: Splits, greater_is_better: bool) -> None:
    script = [10.0, 30.0, 30.0, 20.0, 29.0, 50.0]

    class Scripted(ImageClassification):
        def evaluate(self, model, split, batch_size):
            assert split == "valid"
            seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            sign = 1 if greater_is_better else -1
            return {"accuracy": sign * script[len(seen) - 1]}

    Scripted.greater_is_better = greater_is_better
    seen: list[dict[str, torch.Tensor]] = []
    schedule = Schedule(steps=12, batch_size=8, evaluate_every=2, patience=3)
    model, history = trained(Scripted(digits), schedule)
    assert history.steps == 10
    assert [step for step, _ in history.curve("eval_accuracy")] == [2, 4, 6, 8, 10]
    assert history.stopped is None
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, seen[1][name])
    assert not torch.equal(model.classifier.weight, seen[4]["classifier.weight"])


def test_a_run_that_patience_ended_ends_there_again(digits: Splits, tmp_path) -> None:
    class Scripted(ImageClassification):
        def evaluate(self, model, split, batch_size):
            return {"accuracy": next(script)}

    objective = Scripted(digits)
    schedule = Schedule(steps=20, batch_size=8, evaluate_every=2, save_every=2, patience=1)
    for resume, given in ((False, [50.0, 40.0, 90.0]), (True, [40.0, 90.0, 40.0])):
        script, model = iter(given), objective.build(objective.config(**SIZES))
        history = fit(model, objective, schedule, label="", console=QUIET, folder=tmp_path, resume=resume)
        assert history.steps == 4
        assert history.curve("eval_accuracy") == [(2, 50.0), (4, 40.0)]


def test_the_best_weights_are_those_of_the_scores_that_count(digits: Splits, tmp_path) -> None:
    """A run is killed behind its last checkpoint, and scores otherwise when it goes on from there."""
    seen: dict[int, Any] = {}

    class Killed(BaseException):
        pass

    class Scripted(ImageClassification):
        def evaluate(self, model, split, batch_size):
            seen[len(seen)] = {name: x.clone() for name, x in model.state_dict().items()}
            score = next(script)
            if score is None:
                raise Killed
            return {"accuracy": score}

    objective = Scripted(digits)
    schedule = Schedule(steps=8, batch_size=8, evaluate_every=2, save_every=4, patience=3)
    script, model = iter([50.0, 40.0, 51.0, None]), objective.build(objective.config(**SIZES))
    with pytest.raises(Killed):
        fit(model, objective, schedule, label="", console=QUIET, folder=tmp_path)
    script, model = iter([49.0, 48.0]), objective.build(objective.config(**SIZES))
    history = fit(model, objective, schedule, label="", console=QUIET, folder=tmp_path, resume=True)
    assert [score for _, score in history.curve("eval_accuracy")] == [50.0, 40.0, 49.0, 48.0]
    assert all(x.equal(seen[0][name]) for name, x in model.state_dict().items()), "of step 2, and not of 6"


def test_a_precision_is_that_of_its_training_alone(digits: Splits) -> None:
    objective = ImageClassification(digits)
    model = objective.build(objective.config(**SIZES))
    fit(model, objective, Schedule(steps=1, batch_size=20, precision="bf16"), label="", console=QUIET)
    fresh = objective.build(objective.config(**SIZES))
    fresh.load_state_dict(model.state_dict())
    batch = objective.collate([objective.example("test", 0, generator(0))])
    with torch.no_grad():
        assert model.eval()(**batch).logits.equal(fresh.eval()(**batch).logits)


@pytest.mark.parametrize(
    ("attention", "options"),
    [("full", {}), ("compressive", {}), ("longformer", {}), ("etc", {"globals": 0})],
)
def test_what_gets_no_gradient_is_known(attention: str, options: dict[str, Any]) -> None:
    """Of several processes each would wait for it."""
    objective = MaskedLM(TEXT, characters(), 16)
    model = objective.build(objective.config(**SIZES, attention=attention, attention_options=options)).train()
    model(**objective.collate([objective.example("train", 0, generator(0))])).loss.backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not idle or any(map(_has_idle_parameters, model.modules())), idle


def test_a_single_step_learns(digits: Splits) -> None:
    objective = ImageClassification(digits)
    model = objective.build(objective.config(**SIZES))
    before = {name: x.clone() for name, x in model.state_dict().items()}
    fit(model, objective, Schedule(steps=1, batch_size=20), label="", console=QUIET)
    assert any(not x.equal(before[name]) for name, x in model.state_dict().items())


def test_sums_over_the_examples_of_a_step_are_added_up_over_processes(monkeypatch) -> None:
    told = []

    def all_reduce(x, group=None):
        told.append((x.clone(), group))
        x.mul_(2)

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    routing = build("routing", Shape(2, 4, 16), clusters=3).train()
    x = torch.randn(2, 2, 16, 4)
    routing(x, x, x)
    before, sums, counts = routing.centroids.clone(), routing.sums.clone(), routing.counts.clone()
    Update(group="some").on_step_end(None, None, None, model=routing)
    assert [group for _, group in told] == ["some", "some"]
    assert told[0][0].equal(sums)
    assert told[1][0].equal(counts)
    seen = counts > 0
    means = (sums / counts.clamp(min=1)[..., None])[seen]
    expected = 0.999 * before[seen] + 0.001 * means
    torch.testing.assert_close(routing.centroids[seen], expected)


def test_what_accelerate_asks_for_holds_for_every_training(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(ASKED, "before")  # so that it is as it was afterwards
    monkeypatch.delenv(ASKED)
    assert is_sharded(True)
    assert "ACCELERATE_USE_FSDP" not in os.environ
    assert is_sharded(False)
    assert is_sharded(False)
    with monkeypatch.context() as apart:
        apart.setenv("WORLD_SIZE", "1")
        assert not is_sharded(False)
    del os.environ[ASKED]
    assert not is_sharded(False)


@pytest.mark.parametrize(("asked", "precision"), [("bf16", "fp32"), ("fp16", "bf16"), ("fp8", "fp32")])
def test_another_precision_of_accelerate_is_refused(monkeypatch, asked: str, precision: str) -> None:
    """The Trainer takes it from the environment where it is told none: a run of float32 would be one of bf16."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", asked)
    said = f"^mixed_precision of accelerate must be no, or {precision}, the precision of the training; got {asked}$"
    with pytest.raises(ValueError, match=said):
        per_process(Schedule(precision=precision))


@pytest.mark.parametrize(("asked", "precision"), [("no", "fp32"), ("no", "bf16"), ("bf16", "bf16"), ("BF16", "bf16")])
def test_the_same_precision_or_none_of_accelerate_is_taken(monkeypatch, asked: str, precision: str) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", asked)
    assert per_process(Schedule(precision=precision)) >= 1


@pytest.mark.parametrize("fused", [True, False])
def test_counters_of_fused_updates_are_where_the_weights_are(fused: bool, tmp_path) -> None:
    parameter = torch.nn.Parameter(torch.randn(3, device="meta"))
    held = {"a/step": torch.tensor(7.0), "a/exp_avg": torch.zeros(3), "a/exp_avg_sq": torch.zeros(3)}
    save_file(held, tmp_path / OPTIMIZER)
    optimizer = torch.optim.AdamW([parameter])
    optimizer.param_groups[0]["fused"] = fused
    load_optimizer(tmp_path, {"a": parameter}, optimizer)
    assert optimizer.state[parameter]["step"].device.type == ("meta" if fused else "cpu")
    assert optimizer.state[parameter]["exp_avg"].device.type == "meta"


def test_a_run_that_gets_better_to_the_end_is_not_stopped(digits: Splits) -> None:
    class Rising(ImageClassification):
        count = 0

        def evaluate(self, model, split, batch_size):
            self.count += 1
            return {"accuracy": float(self.count)}

    _, history = trained(Rising(digits), Schedule(steps=4, batch_size=8, evaluate_every=1, patience=1))
    assert history.steps == 4


def test_clipping_bounds_the_gradient() -> None:
    objective = OBJECTIVES["classification"]()
    options = {"steps": 4, "batch_size": 4, "weight_decay": 0.0, "warmup": 0.0}
    start, _ = trained(objective, Schedule(**options, learning_rate=1e-30))
    free, _ = trained(objective, Schedule(**options, clip=0.0))
    loose, _ = trained(objective, Schedule(**options, clip=1e9))
    tight, _ = trained(objective, Schedule(**options, clip=1e-12))
    assert_same(free, loose, rtol=0, atol=0)

    def moved(model) -> float:
        return max((a - b).abs().max().item() for a, b in zip(model.parameters(), start.parameters(), strict=True))

    # AdamW divides by the gradient's size plus 1e-8, so only a norm far below shows in the weights.
    assert moved(free) > 4e-3
    assert moved(tight) < 4 * 2e-3 * 1e-3


def test_replaced_token_detection_learns_with_one_optimiser() -> None:
    objective = ReplacedTokenDetection(TEXT, characters(), 16)
    schedule = Schedule(steps=40, batch_size=8, learning_rate=1e-2, log_every=10)
    torch.manual_seed(0)
    model = objective.build(objective.config(**SIZES))
    history = fit(model, objective, schedule, label="", console=QUIET)
    losses = [value for _, value in history.curve("loss")]
    assert losses[-1] < 0.8 * losses[0]
    assert model.generator.decoder.weight is model.discriminator.encoder.embedding.word.weight


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({name: value}, f"{name.removesuffix('_size')} must be at least 1, got {value}")
            for name in ("epochs", "steps", "batch_size", "accumulate", "evaluate_every", "log_every", "save_every")
            for value in (0, -3)
        ),
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"batch_size": 10, "accumulate": 4}, "accumulate must divide the batch, 10, got 4"),
        ({"learning_rate": 0.0}, r"learning_rate must be above 0 and finite, got 0\.0"),
        ({"learning_rate": math.nan}, "learning_rate must be above 0 and finite, got nan"),
        ({"learning_rate": math.inf}, "learning_rate must be above 0 and finite, got inf"),
        ({"optimizer": "muon", "muon_rate": math.inf}, "muon_rate must be above 0 and finite, got inf"),
        ({"weight_decay": math.inf}, "weight_decay must be at least 0 and finite, got inf"),
        ({"warmup": 1.5}, r"warmup must be in 0\.\.1, got 1\.5"),
        ({"warmup": -0.1}, r"warmup must be in 0\.\.1, got -0\.1"),
        ({"decay": 0.0}, r"decay must be above 0 and at most 1, got 0\.0"),
        ({"decay": 1.1}, r"decay must be above 0 and at most 1, got 1\.1"),
        ({"weight_decay": -1.0}, r"weight_decay must be at least 0 and finite, got -1\.0"),
        ({"clip": -0.5}, r"clip must be at least 0, got -0\.5"),
        ({"clip": math.nan}, "clip must be at least 0, got nan"),
        ({"precision": "half"}, "precision must be one of fp32, bf16, fp16; got 'half'"),
    ],
)
def test_a_schedule_out_of_range_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Schedule(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_half_precision_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match=r"^precision must be fp32 or bf16 where there is no GPU, got 'fp16'$"):
        Schedule(precision="fp16")


def test_a_batch_larger_than_the_training_set_is_refused(digits: Splits) -> None:
    with pytest.raises(ValueError, match=r"^batch must be at most 200, the training examples, got 201$"):
        trained(ImageClassification(digits), Schedule(batch_size=201))


def test_the_curve_is_by_name() -> None:
    log = [{"step": 2, "loss": 0.5, "epoch": 0.1}, {"step": 2, "eval_loss": 0.4}, {"step": 4, "loss": 0.25}]
    history = History(1.0, log, steps_an_epoch=20, steps=4)
    assert history.curve("loss") == [(2, 0.5), (4, 0.25)]
    assert history.curve("eval_loss") == [(2, 0.4)]
    assert history.curve("nothing") == []
