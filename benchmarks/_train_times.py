"""The time of training of networks, by turns, and the bar of low rank beside the dense network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Any

from _harness import Run, yes
from _study import Study, Values
from _ways import DENSE, all_ways
from filelock import FileLock, Timeout
from torch import nn
from torch.optim import AdamW, Optimizer

from greenformers.measure.device import accelerator
from greenformers.measure.latency import interleaved
from greenformers.measure.record import METRICS, Record
from greenformers.train.bf16 import products
from greenformers.train.low_rank import DENSE_SHARE
from greenformers.train.optimizer import muon_and_adamw
from greenformers.train.settings import Training
from greenformers.train.task import Task

STEPS, ROUNDS = 4, 9
"""Steps that are timed, and how often."""
STILL = 1e-7
"""A rate at which weights stay as they are while steps are timed."""


def train_times(run: Run, ran: Study, setting: Mapping[str, Any]) -> dict[str, Record]:
    """The time of all steps of each way, from a few steps of all of them by turns, on the same batches.

    What a run itself took depends on what else the machine did that hour. The ratio to the dense network is the median
    of the rounds' ratios, and a time is the dense network's median by that ratio. Of several processes of a study the
    first that comes here goes on; the others end, as they would disturb it.
    """
    try:
        with FileLock(ran.best[DENSE][0].folder.parent / "times.lock", blocking=False):
            return _timed(run, ran, setting)
    except Timeout:
        print("another process of this study times its networks, and shows its tables")
        raise SystemExit(0) from None


def _timed(run: Run, ran: Study, setting: Mapping[str, Any]) -> dict[str, Record]:
    settings = {name: own[0].settings for name, own in ran.best.items()}
    first = next(iter(settings.values()))
    task, device, count = first.task(), accelerator(), 1 if run.quick else STEPS
    stream = first.schedule.stream(task.objective)
    batches = []
    for step in range(count):
        examples = [stream[place] for place in range(step * stream.batch, (step + 1) * stream.batch)]
        batches.append({name: x.to(device) for name, x in task.objective.collate(examples).items()})

    def steps(own: Training) -> Callable[[], None]:
        model: Any = Task(task.objective, task.tokenizer, own.start()).network()
        model.to(device).train()
        optimizer, precision = _optimizer(model, own), own.schedule.precision

        def call() -> None:
            for batch in batches:
                with products(precision, device):
                    loss = model(**batch).loss
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), own.clip)
                optimizer.step()
                optimizer.zero_grad()

        return call

    calls = {name: steps(own) for name, own in settings.items()}
    timings = interleaved(calls, repeats=15 if run.quick else ROUNDS, warmup=3, device=device)
    whole, records = timings[DENSE].median / count * stream.steps, {}
    for name, timing in timings.items():
        # The share of the steps that are those of the dense network.
        share = DENSE_SHARE if settings[name].low_rank_training == "dense_first" else 0.0
        ratio = median(
            dense / (share * dense + (1 - share) * own)
            for dense, own in zip(timings[DENSE].samples, timing.samples, strict=True)
        )
        records[name] = run.record(
            "train_time", whole / ratio, name, {**setting, "timed_steps": count}, ratio=ratio, to=DENSE
        )
    return records


def _optimizer(model: nn.Module, settings: Training) -> Optimizer:
    """The optimiser of a run, at a rate at which it changes nothing."""
    if settings.muon_rate is None:
        return AdamW(model.parameters(), lr=STILL, weight_decay=settings.weight_decay, fused=True)
    decayed = {name for name, _ in model.named_parameters()}
    return muon_and_adamw(
        model, decayed, muon_rate=STILL, learning_rate=STILL, weight_decay=settings.weight_decay,
        bf16=settings.schedule.precision == "bf16",
    )  # fmt: skip


def bar(
    ran: Study, metric: str, values: Values, times: Mapping[str, Record], low_rank: str, most: float
) -> bool:  # fmt: skip
    """Whether low rank loses at most so much of a metric beside the dense network, in no more time; and say so.

    Both are trained in the way that was best on the validation set.
    """
    dense, low = ([name for name in all_ways(own) if name in values] for own in (DENSE, low_rank))
    if not low:
        print(f"without {low_rank} there is no bar")
        return True
    other, best = ran.leader(dense), ran.leader(low)
    sign = 1 if METRICS[metric].less_is_better else -1
    lost = sign * (fmean(values[best]) - fmean(values[other]))
    share = (times[other].ratio or 1) / (times[best].ratio or 1)  # of the rounds' ratios, as in the table
    met = lost <= most and share <= 1
    print(
        f"{best} beside {other}: {METRICS[metric].label} {lost:+.2f} worse, {share:.2f} of the training time; "
        f"at most {most:g} worse in no more time: {yes(met)}"
    )
    return met
