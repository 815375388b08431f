"""The figures of a grid as records: accuracy of every seed and over seeds, curves, costs, and the trivial baselines."""

from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from statistics import mean, stdev
from typing import Any

import torch

from greenformers.arena.cell import PRETRAINING, TRAINING, Cell, Result, result_of
from greenformers.arena.grid import Plan, baselines_of
from greenformers.arena.speed import BENCHMARK, speed_of
from greenformers.arena.variants import BASELINE
from greenformers.measure.intervals import mean_interval
from greenformers.measure.quality import paired_difference
from greenformers.measure.record import Record, with_ratios
from greenformers.train import run


@dataclass(frozen=True)
class Scores:
    """The test scores of a variant on a task, by seed.

    Attributes:
        task: Name of the task.
        variant: Name of the variant.
        pretrained: Whether it was pretrained.
        setting: Setting of its records, but for the seed.
        results: Results, by seed.
    """

    task: str
    variant: str
    pretrained: bool
    setting: dict[str, Any]
    results: dict[int, Result]

    @property
    def accuracies(self) -> list[float]:
        """Accuracy of each seed in percent."""
        return [result.accuracy for result in self.results.values()]


def records_of(plan: Plan, about: dict[str, Any]) -> list[Record]:
    """The records of all parts that are done.

    A `test_accuracy` with "seed" in its setting is that of one network, one with "draws" the mean over so many seeds.
    The interval of the one is the paired one of the difference to dense attention from the same seed; that of the other
    is Student's over the differences of the seeds.

    Args:
        plan: The plan.
        about: Context of the records.
    """
    every = scores_of(plan)
    dense = {(own.task, own.pretrained): own for own in every if own.variant == BASELINE}
    compared, others = [], []
    for own in every:
        compared += _accuracies(own, dense.get((own.task, own.pretrained)), about)
        others += _curves(own, plan, about)
    for task in plan.grid.tasks:
        others += _baselines(task, plan, about)
        for variant in plan.trained(task):
            # They are told by this run of the command as all others are: of a file the newest run is shown.
            now = {name: about[name] for name in ("command", "time") if name in about}
            speeds = speed_of(task, variant, plan.out) or []
            others += [replace(record, context=record.context | now) for record in speeds]
            compared.append(_flops(task, variant, plan, about))
    return [*with_ratios(compared, to=BASELINE), *others]


def scores_of(plan: Plan) -> list[Scores]:
    """Test scores of every variant and task that has any."""
    every: dict[tuple[str, str, bool], Scores] = {}
    for cell in plan.cells:
        result = result_of(cell, plan.out)
        if result is not None:
            key = cell.task, cell.variant, cell.pretrained
            own = every.setdefault(key, Scores(*key, _setting(cell, result, plan), {}))
            own.results[cell.seed] = result
    return list(every.values())


def _setting(cell: Cell, result: Result, plan: Plan) -> dict[str, Any]:
    size = cell.size(plan.grid)
    before, after = result.steps
    return {
        "task": cell.task, "size": plan.grid.size, "length": size.length, "batch": plan.grid.batch or size.batch,
        "hidden": size.hidden, "layers": size.layers, "pretraining_steps": before, "training_steps": after,
        "test": len(result.right),
    }  # fmt: skip


def _accuracies(own: Scores, dense: Scores | None, about: dict[str, Any]) -> list[Record]:
    record = partial(Record.of, "test_accuracy", benchmark=BENCHMARK, variant=own.variant)
    seeds = sorted(set(own.results) & set(dense.results if dense else ()))
    compared = dense is not None and own.variant != BASELINE
    records, differences = [], []
    for seed, result in own.results.items():
        interval = None
        if dense is not None and compared and seed in seeds:
            base = dense.results[seed]
            _, low, high = paired_difference(result.right, base.right)
            interval = [low, high]
            differences.append(result.accuracy - base.accuracy)
        to = BASELINE if interval else None
        context = about | {"seed": seed}
        records.append(
            record(result.accuracy, setting=own.setting | {"seed": seed}, interval=interval, to=to, context=context)
        )
    if len(own.results) > 1:
        interval = list(mean_interval(differences)) if len(differences) > 1 else None
        records.append(
            record(
                mean(own.accuracies), setting=own.setting | {"draws": len(own.results)}, spread=stdev(own.accuracies),
                interval=interval, to=BASELINE if interval else None, context=about,
            )
        )  # fmt: skip
    return records


def _curves(own: Scores, plan: Plan, about: dict[str, Any]) -> list[Record]:
    """Validation accuracy by step, and the loss of restoring before it, of every seed."""
    records = []
    for seed in own.results:
        folder = Cell(own.task, own.variant, seed, own.pretrained).folder(plan.out)
        for name, metric, key in (
            (PRETRAINING, "loss", "eval_loss"),
            (TRAINING, "accuracy", "eval_accuracy"),
            (TRAINING, "train_loss", "loss"),
        ):
            if not (folder / name / run.METRICS).is_file():
                continue
            for entry in run.metrics_of(folder / name):
                # The curve of a training that diverged ends where its loss is no number.
                if key in entry and isfinite(entry[key]):
                    setting = own.setting | {"split": "train" if key == "loss" else "valid", "seed": seed}
                    records.append(
                        Record.of(
                            metric, entry[key], benchmark=BENCHMARK, variant=own.variant,
                            setting=setting | {"step": int(entry["step"])}, context=about | {"seed": seed},
                        )
                    )  # fmt: skip
    return records


def _baselines(task: str, plan: Plan, about: dict[str, Any]) -> list[Record]:
    return [
        Record.of(
            "test_accuracy", 100 * torch.tensor(right).double().mean().item(), benchmark=BENCHMARK, variant=name,
            setting={"task": task, "size": plan.grid.size, "at": "baseline", "test": len(right)}, context=about,
        )
        for name, right in baselines_of(task, plan.out).items()
    ]  # fmt: skip


def _flops(task: str, variant: str, plan: Plan, about: dict[str, Any]) -> Record:
    length = Cell(task, variant, 0).size(plan.grid).length
    return Record.of(
        "flops", plan.probes.flops(task, variant) / 1e9, benchmark=BENCHMARK, variant=variant, source="counted",
        setting={"task": task, "size": plan.grid.size, "at": "step", "length": length, "batch": 1}, context=about,
    )  # fmt: skip
