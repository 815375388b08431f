"""Heads and neurons out of a classifier of SST-2, without any training: what is left of its accuracy at half the FLOPs.

    python benchmarks/prune_sst2.py [--quick] [--json results/prune_sst2.jsonl]

MiniLM-L6, a BERT of six layers, is trained on SST-2 (6,920 sentences) for three epochs. It is pruned with 1,000 of
these without labels, and scored on the 872 and 1,821 sentences of dev and test, with 95 % intervals of the difference.
Published beside: half of BERT-base's FLOPs at less than 1 point lost, in 3 minutes on a GPU (Kwon 2022,
arXiv:2204.09656), 2.1x at 93.0 with training (CoFi, arXiv:2204.00408); of the survey, 20 to 40 % of the heads gone
without loss (Michel 2019) and 40 % of the layers with 97 to 98 % of the quality kept (Sajjad 2020).

Bar: at half the FLOPs of heads and neurons at most 1 point is lost. The weights of MiniLM come with the extra `minilm`.
"""

import copy
import random
import time
from functools import partial
from typing import Any

import torch
from _harness import Benchmark, Option, Run, data, yes
from compress_minilm import model_folder
from rich.table import Table
from transformers import (
    AutoTokenizer,
    BertForSequenceClassification,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

from greenformers import compress
from greenformers.changes import Change, Heads, Layers, Neurons, Prune
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts, batches
from greenformers.data.sst2 import load
from greenformers.measure.flops import flops
from greenformers.measure.record import Record, with_ratios

LENGTH, SENTENCES, EPOCHS, RATE = 64, 1000, 3.0, 5e-5
LOST = 1.0  # points of accuracy
CHANGES: tuple[Change, ...] = (
    Heads(0.8), Heads(0.6), Heads(0.5), Neurons(0.5), Prune(0.75), Prune(0.6), Prune(0.5), Prune(0.4),
    Layers(4, by="influence"),
)  # fmt: skip

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean little",
    options=(
        data("--texts", "sst2", "SST-2"),
        Option("--seed", "seed of the classifier's training and of the sentences drawn", int, default=0, least=0),
    ),
)


def main(run: Run) -> bool:
    folder = model_folder() or run.skip("it needs the extra minilm")
    seed, texts = run.given.seed, load(run.given.texts)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(seed)
    dense = BertForSequenceClassification.from_pretrained(folder, num_labels=2)
    train(dense, tokenizer, texts.train, seed, steps=10 if run.quick else -1)
    sentences = [text for (text,) in texts.train.texts]
    drawn = random.Random(seed).sample(sentences, 50 if run.quick else SENTENCES)
    calibration = batches(drawn, tokenizer, "classifier", LENGTH, 64)
    example = {
        name: value.repeat(8, 1)[:, :LENGTH] for name, value in tokenizer("a " * 100, return_tensors="pt").items()
    }
    records: list[Record] = []
    for change in (*CHANGES[-1:], *CHANGES[6:7]) if run.quick else CHANGES:
        small, start = copy.deepcopy(dense), time.monotonic()
        compress(small, change, calibration=calibration)
        seconds = time.monotonic() - start
        models = {"dense": dense, change.label: small}
        new = [run.record("compression_time", seconds, change.label)]
        new += [
            run.record("flops", flops(partial(model, **example)) / 1e9, name, source="counted")
            for name, model in models.items()
        ]
        for split in ("valid", "test"):
            part = getattr(texts, split)
            judged = Texts(f"sst2 {split}", list(part.texts), [float(label) for label in part.labels])
            new += run.scores(judge(models, judged, Reader.of(dense, tokenizer, LENGTH)), {"texts": judged.name})
        new = with_ratios(new, to="dense")
        records += [record for record in new if record.variant != "dense" or not records]
        print(f"{change.label}: {seconds:.0f} s", flush=True)
    run.show(shown(records))
    run.write(records)
    half = {record.setting["texts"]: record for record in records if record.variant == "prune 0.5" and record.interval}
    whole = {
        record.setting["texts"]: record for record in records if record.variant == "dense" and "texts" in record.setting
    }
    lost = {name: whole[name].value - record.value for name, record in half.items()}
    met = bool(lost) and all(points <= LOST for points in lost.values())
    told = ", ".join(f"{points:.2f} points on {name}" for name, points in lost.items())
    print(f"at half the FLOPs of heads and neurons {told} are lost, at most {LOST:g}: {yes(met)}")
    return met or run.quick


def train(model: Any, tokenizer: PreTrainedTokenizerBase, part: Any, seed: int, steps: int) -> None:
    """Fine-tune a classifier."""
    read = tokenizer([text for (text,) in part.texts], truncation=True, max_length=LENGTH)
    examples = [
        {"input_ids": ids, "attention_mask": mask, "labels": int(label)}
        for ids, mask, label in zip(read["input_ids"], read["attention_mask"], part.labels, strict=True)
    ]
    arguments = TrainingArguments(
        "runs/prune_sst2", num_train_epochs=EPOCHS, max_steps=steps, learning_rate=RATE, warmup_steps=50,
        per_device_train_batch_size=32, seed=seed, report_to=[], save_strategy="no", logging_strategy="no",
        use_cpu=True, train_sampling_strategy="group_by_length",
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=examples, processing_class=tokenizer).train()
    model.eval()


def shown(records: list[Record]) -> Table:
    table = Table("variant", "fewer FLOPs", "accuracy on dev", "difference", "accuracy on test", "difference")
    for variant in dict.fromkeys(record.variant for record in records):
        mine = [record for record in records if record.variant == variant]
        (fewer,) = [record.ratio or 1.0 for record in mine if record.metric == "flops"]
        cells = [variant, f"{fewer:.2f}x"]
        for record in mine:
            if record.metric == "accuracy":
                low, high = record.interval or (0.0, 0.0)
                cells += [f"{record.value:.2f}", f"{low:+.2f} to {high:+.2f}" if record.interval else ""]
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
