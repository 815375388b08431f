"""Table I of the survey: students of a classifier, as DistilBERT, MiniBERT and TinyBERT are made of theirs.

    python benchmarks/students_sst2.py [--quick] [--json results/students_sst2.jsonl]

The teacher is MiniLM-L6, a BERT of six layers, trained on SST-2 for three epochs. Its students learn what it says to
sentences without labels, and see no label themselves:

- as DistilBERT (Sanh 2019, arXiv:1910.01108): half of the layers, logits and hidden states;
- as MiniBERT (Tsai 2019, arXiv:1909.00100): three narrow layers, logits alone;
- as TinyBERT (Jiao 2020, arXiv:1909.10351): four narrow layers with as many heads as the teacher, first hidden states
  and attention on general sentences, then logits on those of the task, of which others are made by replacing tokens.

The widths are those at which the published ratios of parameters are met. Accuracy on dev and test of SST-2, with 95 %
intervals of the difference; parameters with and without embeddings; time in torch of 8 texts of 64 tokens, in turns.
Published beside (survey, table I). The weights of MiniLM come with the extra `minilm`; stopped, it goes on.
"""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _corpus import SOURCES, corpus
from _harness import REFERENCE, RUNS, Benchmark, Option, Run, data, told
from compress_minilm import model_folder
from prune_sst2 import train
from rich.table import Table
from transformers import AutoTokenizer, BertForSequenceClassification

import greenformers
from greenformers import compress
from greenformers.changes import Change, Heal, Layers, Narrow
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.data.sst2 import load
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record, with_ratios

LENGTH, SENTENCES, ROUNDS = 64, 40_000, 20
GENERAL, TASK = 2000, 1000
"""Steps of 64 sentences in general, and of the task."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--pairs", "stsb_open", "STS-B, of which sentences are taken"),
        *SOURCES,
        Option("--references", "published tables", Path, REFERENCE),
        Option("--runs", "folder of teacher and students", Path, RUNS / "students_sst2"),
    ),
)


def students(steps: tuple[int, int]) -> dict[str, tuple[list[Change], list[Change]]]:
    """What is done to the teacher, by name: with general sentences, then with those of the task."""
    general, task = steps

    def heal(count: int, rate: float, augment: float | None = None, **weights: float) -> Heal:
        return Heal(count, learning_rate=rate, weights=weights, augment=augment)

    return {
        "as DistilBERT": (
            [Layers(3), heal(general, 3e-4, logits=1.0, hidden=1.0)],
            [heal(task, 2e-4, logits=1.0, hidden=1.0)],
        ),
        "as MiniBERT": ([Narrow(108, layers=3), heal(general, 1e-3, logits=1.0)], [heal(task, 5e-4, logits=1.0)]),
        "as TinyBERT": (
            [Narrow(84, layers=4, heads=12), heal(general, 1e-3, hidden=1.0, attention=1.0)],
            [heal(task, 5e-4, 0.2, logits=1.0)],
        ),
    }


def main(run: Run) -> bool:
    folder = model_folder() or run.skip("it needs the extra minilm")
    given, texts = run.given, load(run.given.phrases)
    runs = given.runs / "quick" if run.quick else given.runs
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not (runs / "teacher" / "config.json").is_file():
        torch.manual_seed(0)
        teacher = BertForSequenceClassification.from_pretrained(folder, num_labels=2)
        train(teacher, tokenizer, texts.train, 0, steps=4 if run.quick else -1)
        teacher.save_pretrained(runs / "teacher")
    dense: Any = BertForSequenceClassification.from_pretrained(runs / "teacher")
    sentences = corpus(given.pairs, given.wikitext, given.reviews, given.phrases, given.captions)
    sets = (sentences[: 400 if run.quick else SENTENCES], [text for (text,) in texts.train.texts])
    models = {"dense": dense}
    for name, recipes in students((8, 8) if run.quick else (GENERAL, TASK)).items():
        home = runs / name.replace(" ", "-")
        if not (home / "config.json").is_file():
            small = copy.deepcopy(dense)
            for number, (recipe, unlabelled) in enumerate(zip(recipes, sets, strict=True)):
                stage = home.with_name(f"{home.name}.{number}")
                if (stage / "config.json").is_file():
                    small = greenformers.load(stage)
                    continue
                compress(
                    small, recipe, texts=unlabelled, tokenizer=tokenizer, length=LENGTH, teacher=dense, progress=told,
                    folder=home.with_name(f"{home.name}.{number}.steps"),
                )  # fmt: skip
                greenformers.save(small, stage, tokenizer=tokenizer)
            greenformers.save(small, home, tokenizer=tokenizer)
        models[name] = greenformers.load(home)
    scored: list[Record] = []
    for split in ("valid", "test"):
        part = getattr(texts, split)
        judged = Texts(f"sst2 {split}", list(part.texts), [float(label) for label in part.labels])
        scored += run.scores(judge(models, judged, Reader.of(dense, tokenizer, LENGTH)), {"texts": judged.name})
    for name, model in models.items():
        size = parameters(model)
        inner = size - parameters(model.get_input_embeddings())
        scored += [
            run.record("parameters", count, name, {"embeddings": whole}, source="counted")
            for whole, count in ((True, size), (False, inner))
        ]
    ids = torch.randint(1000, 20_000, (8, LENGTH), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.inference_mode():
        times = run.times({name: partial(model, **batch) for name, model in models.items()}, ROUNDS, 2)
    scored += [run.record("latency", time, name) for name, time in times.items()]
    records = with_ratios(scored, to="dense")
    run.show(shown(records))
    run.write(records)
    run.published("survey_table1_distillation")
    return True


def shown(records: list[Record]) -> Table:
    table = Table(
        "model", "parameters", "smaller", "without embeddings", "faster", "accuracy, dev", "kept", "test", "kept",
        "difference on test",
    )  # fmt: skip
    for name in dict.fromkeys(record.variant for record in records if record.metric == "latency"):
        mine = [record for record in records if record.variant == name]
        whole, inner = (record for record in mine if record.metric == "parameters")
        (fast,) = (record for record in mine if record.metric == "latency")
        dev, test = (record for record in mine if record.metric == "accuracy")
        low, high = test.interval or (0.0, 0.0)
        table.add_row(
            name, f"{whole.value / 1e6:.2f} M", f"{whole.ratio or 1:.1f}x", f"{inner.ratio or 1:.1f}x",
            f"{fast.ratio or 1:.1f}x", f"{dev.value:.2f}", f"{dev.ratio or 1:.1%}", f"{test.value:.2f}",
            f"{test.ratio or 1:.1%}", f"{low:+.2f} to {high:+.2f}" if test.interval else "",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
