"""What every mechanism loses as a small language model, for advice: greenformers/advise/known.json.

    python benchmarks/known_losses.py [--quick] [--records results/language_models.jsonl]

From the records of `language_models.py`, the last training of each mechanism, task and seed: its last validation loss
less that of dense attention with the same seed, the mean, least and greatest of the seeds. Of each task they are those
of the setting with the most trainings; how many of others are left out is said. Which mechanisms are blind, with scores
that compare no two tokens, is tried out.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path

import torch
from _harness import Benchmark, Option, Run
from rich.table import Table

from greenformers import advise
from greenformers.advise.known import RANKED
from greenformers.attention import Shape, build, names
from greenformers.measure.record import Record, read

FILE = Path(advise.__file__).with_name("known.json")
TASKS = {"causal_lm": "causal", "masked_lm": "masked"}
OF_ONE_TRAINING = ("options", "seed", "step")
"""What of a setting may differ between trainings that are compared."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="nothing is written",
    options=(Option("--records", "of language_models.py", Path, Path("results/language_models.jsonl")),),
    json="refused: what is written is known.json",
)


def main(run: Run) -> None:
    if run.given.json:
        run.refuse(f"--json is of no use: {FILE.name} is written, and no records")
    by_task, unseeing = losses(read(run.given.records)), blind()
    table = Table("task", "variant", "difference", "least", "greatest", "seeds")
    for task in TASKS.values():
        for name, (difference, low, high, seeds) in by_task[task].items():
            table.add_row(task, name, f"{difference:+.3f}", f"{low:+.3f}", f"{high:+.3f}", str(seeds))
    run.show(table)
    print(f"blind: {', '.join(unseeing)}")
    if not run.quick:
        FILE.write_text(json.dumps(by_task | {"blind": unseeing}, indent=1) + "\n")


def losses(records: list[Record]) -> dict[str, dict[str, tuple[float, float, float, int]]]:
    """Differences to dense attention by task and variant: mean, least, greatest, and the number of seeds."""
    ends = [
        record for record in records if record.metric == "loss" and record.setting["step"] == record.setting["steps"]
    ]
    by_task: dict[str, dict[str, tuple[float, float, float, int]]] = {name: {} for name in TASKS.values()}
    for task, name in TASKS.items():
        last: dict[str, dict[int, float]] = defaultdict(dict)
        for record in of_one_setting([record for record in ends if record.setting["task"] == task], name):
            last[record.variant][record.setting["seed"]] = record.value
        dense = last.pop("full", {})
        for variant, by_seed in sorted(last.items()):
            apart = [by_seed[seed] - dense[seed] for seed in sorted(by_seed.keys() & dense.keys())]
            own = variant in names() or variant.split()[0] in RANKED
            if own and apart:
                mean, low, high = (round(figure, 4) for figure in (sum(apart) / len(apart), min(apart), max(apart)))
                by_task[name][variant] = (mean, low, high, len(apart))
    return by_task


def of_one_setting(records: list[Record], name: str) -> list[Record]:
    """Those of the setting with the most trainings; how many others there are is said, with this name."""
    settings = [
        json.dumps({key: value for key, value in record.setting.items() if key not in OF_ONE_TRAINING}, sort_keys=True)
        for record in records
    ]
    ((usual, count),) = Counter(settings).most_common(1) or [("", 0)]
    if count < len(records):
        print(f"{name}: {len(records) - count} of {len(records)} trainings are left out, of other settings")
    return [record for record, setting in zip(records, settings, strict=True) if setting == usual]


def blind() -> list[str]:
    """Mechanisms whose scores compare no two tokens."""
    return [name for name in names() if is_blind(name)]


@torch.no_grad()
def is_blind(name: str) -> bool:
    """Whether the outputs at every second position are the same for other keys, and other queries between them.

    Other keys alone would not do: where queries are taken for keys, no output depends on those given.
    """
    torch.manual_seed(0)
    mechanism = build(name, Shape(heads=2, head_dim=8, max_len=32)).eval()
    q, k, v, other_q, other_k = torch.randn(5, 1, 2, 32, 8)
    other_q[:, :, ::2] = q[:, :, ::2]
    return torch.equal(mechanism(q, k, v)[:, :, ::2], mechanism(other_q, other_k, v)[:, :, ::2])


if __name__ == "__main__":
    BENCHMARK.run(main)
