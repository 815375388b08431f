"""Summaries: a sparse encoder with a full decoder, warm-started from a sentence encoder, beside the first sentences.

    python benchmarks/summaries.py [--quick] [--json results/summaries.jsonl] [--page docs/summaries.md]
    python benchmarks/summaries.py --only baselines [--json results/summaries.jsonl]
    python benchmarks/summaries.py --only scitldr-warm --steps 60 --documents 100 [--json results/summaries.jsonl]
    python benchmarks/summaries.py --time 20

SciTLDR: title and abstract to one sentence, judged on its dev papers, by which nothing was chosen; and articles of
WikiText-2 at 4,096 tokens, their first section from the rest, judged on its test articles. ROUGE-1, 2 and L by
rouge-score, F1 with stems, of the closest reference; beam of 5, length penalty 0.8 (Zaheer 2020), no trigram twice;
95 % intervals by bootstrap over documents.

Beside every system: the first sentences (lead-1, lead-3 and, of articles, lead-10, as long as a first section), the
title, the sentences that MiniLM-L6 embeds closest to the title, and of papers the best sentence, a bound for systems
that choose one. Networks have MiniLM-L6's sizes and tokenizer and 2 decoder layers: "scratch" starts from new weights,
"warm" from MiniLM-L6's, "bigbird" too, with BigBird's attention in the encoder; `--steps` cuts trainings short, and
`--documents` what is judged. Bar: a system above the first sentences in all three scores, by intervals of paired
differences. `--time` trains nothing and says how long a training takes. Stopped at any moment, the same command goes
on.
"""

import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from _harness import KNOWN, RUNS, Benchmark, Option, Run, data, yes
from compress_minilm import minilm
from rich.table import Table
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedTokenizerFast

from greenformers.data import Document, Summaries
from greenformers.data import load as load_data
from greenformers.measure import summaries
from greenformers.measure.device import accelerator
from greenformers.measure.parameters import parameters
from greenformers.measure.record import METRICS, Record
from greenformers.model.warm_start import warm_start_pair
from greenformers.train import checkpoint
from greenformers.train.generation import Writing, translations
from greenformers.train.run import MODEL, ensure, trained
from greenformers.train.save import save
from greenformers.train.settings import Settings

Scores = dict[str, list[float]]

SHAPE: dict[str, Any] = {
    "hidden": 384, "layers": 6, "decoder_layers": 2, "heads": 12, "feed_forward": 1536, "dropout": 0.1,
    "learning_rate": 2e-4, "log_every": 10,
}  # fmt: skip
NETWORKS: dict[str, dict[str, Any]] = {
    "scratch": {"learning_rate": 1e-3, "optimizer": "adamw"},
    "warm": {},
    "bigbird": {"variant": "bigbird"},
}
QUICK: dict[str, Any] = {"limit": 12, "steps": 2, "batch": 4, "length": 96, "target_length": 12, "decoder_layers": 1}
SHOWN = 60  # words of a text on the page


@dataclass(frozen=True)
class Task:
    """A data set and how networks learn it.

    Attributes:
        option: Option with the folder of the data set.
        split: Split that systems are judged on.
        leads: Numbers of sentences of the baselines.
        closest: Number of sentences that are taken for their embeddings.
        settings: Settings of a training on it.
        block: Width of a block of BigBird's attention.
        networks: Names of the networks, of `NETWORKS`.
        published: Published figures, by system: ROUGE-1, 2 and L.
        samples: Number of documents on the page.
    """

    option: str
    split: str
    leads: tuple[int, ...]
    closest: int
    settings: dict[str, Any]
    block: int
    networks: tuple[str, ...]
    published: dict[str, tuple[float, float, float]]
    samples: int


TASKS = {
    "scitldr": Task(
        "papers", "valid", (1, 3), 1,
        {"length": 256, "target_length": 48, "epochs": 6, "batch": 8, "save_every": 20}, 16,
        ("scratch", "warm", "bigbird"),
        # Cachola 2020, table 4, abstracts alone, on the test papers.
        {"PACSUM": (19.3, 4.0, 15.1), "BERTSUMEXT": (38.5, 16.6, 30.5), "BART": (43.3, 20.8, 35.0),
         "CATTS": (43.8, 20.9, 35.5), "best sentences": (47.7, 24.7, 38.5)},
        10,
    ),
    "wikitext_articles": Task(
        "articles", "test", (1, 3, 10), 10,
        {"length": 4096, "target_length": 256, "epochs": 2, "batch": 4, "accumulate": 4, "save_every": 5}, 64,
        ("bigbird",),
        # Zaheer 2020, table 4: papers of arXiv to their abstracts, another task of this kind.
        {"Transformer, arXiv": (28.52, 6.70, 25.58), "BigBird from RoBERTa, arXiv": (41.22, 16.43, 36.96)},
        2,
    ),
}  # fmt: skip
SYSTEMS = [f"{name}-{network}" for name, task in TASKS.items() for network in task.networks]

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="12 documents, 2 steps; the figures mean nothing",
    json=KNOWN,
    threads=1,
    options=(
        data("--papers", "scitldr", "SciTLDR"),
        data("--articles", "wikitext2", "WikiText-2"),
        Option("--only", "one system; 'baselines' for those without training", choices=["baselines", *SYSTEMS]),
        Option("--steps", "steps of each training, in place of its epochs", int),
        Option("--documents", "documents that systems are judged on, the first of the split; by default all", int),
        Option("--time", "steps of each training to time, in place of training", int),
        Option("--runs", "run folders, to go on from", Path, RUNS / "summaries"),
        Option("--page", "Markdown file for the tables and ten summaries", Path),
    ),
)


def main(run: Run) -> bool:
    met, pages = False, [f"# Summaries, sampled\n\nMade by `{run.about['command']}`.\n"]
    for name, task in TASKS.items():
        if run.given.only not in (None, "baselines", *(f"{name}-{network}" for network in task.networks)):
            continue
        study = Study(run, name, task)
        if run.given.time:
            study.time(run.given.time)
            continue
        study.without_training()
        for network in study.networks:
            study.train(network)
            study.write()
        run.show(study.table())
        met |= study.met()
        pages.append(study.page())
    if run.given.page and not run.given.time:
        run.given.page.write_text("\n".join(pages))
    return met or run.quick or bool(run.given.time)


class Study:
    """Systems on one data set.

    Args:
        run: The benchmark that runs.
        name: Name of the data set.
        task: The data set, and how networks learn it.

    Attributes:
        outputs: Summaries of each system, by document.
        scores: ROUGE of these.
        figures: Further figures of trained systems.
    """

    def __init__(self, run: Run, name: str, task: Task) -> None:
        self.run, self.name, self.task = run, name, task
        self.source = str(getattr(run.given, task.option))
        self.folder = run.given.runs / ("quick" if run.quick else "small") / name
        data = load_data(name, self.source, QUICK["limit"] if run.quick else None)
        assert isinstance(data, Summaries)
        self.documents: list[Document] = data.split(task.split)[: run.given.documents]
        self.outputs: dict[str, list[str]] = {}
        self.scores: dict[str, Scores] = {}
        self.figures: dict[str, dict[str, float]] = {}

    @property
    def networks(self) -> list[str]:
        """Names of the networks that are asked for."""
        return [network for network in self.task.networks if self.run.given.only in (None, f"{self.name}-{network}")]

    @property
    def baselines(self) -> list[str]:
        """Names of the first sentences."""
        return [f"lead-{count}" for count in self.task.leads]

    def without_training(self) -> None:
        """Judge what needs no training on the data set, and write its records."""
        for name, count in zip(self.baselines, self.task.leads, strict=True):
            self._judge(name, partial(self._lead, count))
        self._judge("title", lambda: [document.title for document in self.documents])
        self.write()
        self._judge("closest to the title", self._closest)
        if self.task.closest == 1:
            self._judge("best sentence", self._best)
        self.write()

    def _lead(self, count: int) -> list[str]:
        return [summaries.lead(document.text, count) for document in self.documents]

    def _closest(self) -> list[str]:
        model, tokenizer = minilm(self.run)

        def embedded(texts: Sequence[str]) -> torch.Tensor:
            given = tokenizer(list(texts), truncation=True, max_length=128, padding=True, return_tensors="pt")
            with torch.no_grad():
                states = model(**given).last_hidden_state
            mask = given["attention_mask"][..., None]
            return (states * mask).sum(1) / mask.sum(1)

        written = []
        for document in self.documents:
            parts = summaries.sentences(document.text)
            title = embedded([document.title])
            others = torch.cat([embedded(parts[first : first + 32]) for first in range(0, len(parts), 32)])
            near = cosine_similarity(others, title).topk(min(self.task.closest, len(parts))).indices
            written.append(" ".join(parts[place] for place in sorted(near.tolist())))
        return written

    def _best(self) -> list[str]:
        """The sentence of each document with the highest ROUGE-1, which no system could know."""
        written = []
        for document in self.documents:
            parts = summaries.sentences(document.text)
            values = summaries.rouge(parts, [document.summaries] * len(parts))["rouge_1"]
            written.append(parts[values.index(max(values))])
        return written

    def _judge(self, name: str, write: Callable[[], list[str]], suffix: str = "") -> None:
        """Summaries of a system and their scores; computed once."""
        path = self.folder / str(len(self.documents)) / f"{name.replace(' ', '-')}{suffix}.json"
        if not path.exists():
            outputs = write()
            scores = summaries.rouge(outputs, [document.summaries for document in self.documents])
            path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.replace(path, json.dumps({"outputs": outputs, "scores": scores}))
        stored = json.loads(path.read_text())
        self.outputs[name], self.scores[name] = stored["outputs"], stored["scores"]

    def settings(self, network: str) -> Settings:
        """Settings of the training of a network, whose start is written first."""
        options = SHAPE | self.task.settings | NETWORKS[network] | (QUICK | {"accumulate": 1} if self.run.quick else {})
        if self.run.given.steps is not None:
            options["steps"] = self.run.given.steps
        if options.get("variant") == "bigbird":
            options["option"] = {"block": self.task.block, "random": 3, "padding": "batch"}
        start = self.folder / f"start-{options['length']}"
        if not (start / MODEL).exists():
            model, tokenizer = minilm(self.run)
            tokenizer.add_special_tokens({"bos_token": tokenizer.cls_token, "eos_token": tokenizer.sep_token})
            pair = warm_start_pair(
                model, decoder_layers=options["decoder_layers"], length=options["length"],
                start_token_id=tokenizer.bos_token_id, end_token_id=tokenizer.eos_token_id,
            )  # fmt: skip
            save(pair, start / MODEL, cast(PreTrainedTokenizerFast, tokenizer))
        where: dict[str, Any] = {"tokenizer": str(start)} if network == "scratch" else {"init": str(start)}
        return Settings(data=self.name, folder=self.source, **options, **where)

    def train(self, network: str) -> None:
        """Train a network, or go on, and judge it."""
        suffix = "" if self.run.given.steps is None else f"-{self.run.given.steps}"
        runs, settings = self.folder / f"{network}{suffix}", self.settings(network)
        ensure(runs, settings, self.run.console)
        model = trained(runs).to(accelerator())  # type: ignore[arg-type]

        def write() -> list[str]:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(runs / MODEL)
            sources = [document.source for document in self.documents]
            writing = Writing(beams=2 if self.run.quick else 5, length_penalty=0.8, no_repeat=3)
            most = settings.target_length
            return list(translations(model, tokenizer, sources, batch_size=16, max_new_tokens=most, writing=writing))

        self._judge(network, write, suffix)
        self.figures[network] = {"parameters": float(parameters(model))}

    def time(self, steps: int) -> None:
        """Time steps of every training, and say how long it takes."""
        for network in self.networks:
            settings = self.settings(network)
            task, schedule = settings.task(), settings.schedule
            model, stream = task.network().train(), schedule.stream(task.objective)
            optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
            rows = settings.batch // settings.accumulate
            seconds = []
            for step in range(steps):
                begin = time.perf_counter()
                for part in range(settings.accumulate):
                    first = step * settings.batch + part * rows
                    examples = [stream[place] for place in range(first, first + rows)]
                    model(**task.objective.collate(examples)).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                seconds.append(time.perf_counter() - begin)
            minutes = median(seconds) * stream.steps / 60
            print(
                f"{self.name}-{network}: {median(seconds):.2f} s a step of {settings.batch}, {stream.steps} steps, "
                f"{minutes:.0f} min",
                flush=True,
            )

    def differences(self, name: str) -> dict[str, dict[str, list[float]]]:
        """Intervals of the scores of a system less those of each baseline."""
        return {base: summaries.differences(self.scores[name], self.scores[base]) for base in self.baselines}

    def met(self) -> bool:
        """Whether a system that knows no reference is above every baseline in every score."""
        above = []
        for name in self.scores:
            if name in (*self.baselines, "best sentence"):
                continue
            ends = [low for intervals in self.differences(name).values() for low, _ in intervals.values()]
            above += [name] if min(ends) > 0 else []
        bar = f"{self.name}: a system above {', '.join(self.baselines)} in all scores: {yes(bool(above))}"
        print(bar, *above, sep=", ")
        return bool(above)

    def write(self) -> None:
        """Add the records that the file of `--json` lacks."""
        keys = [(record.variant, record.metric, record.setting) for record in self.run.known()]
        new: list[Record] = []
        for name, scores in self.scores.items():
            setting = {"data": self.name, "split": self.task.split, "documents": len(self.documents)}
            if name in self.figures and self.run.given.steps is not None:
                setting["steps"] = self.run.given.steps
            paired = {} if name == "lead-1" else summaries.differences(scores, self.scores["lead-1"])
            for metric, value in (summaries.means(scores) | self.figures.get(name, {})).items():
                to = "lead-1" if metric in paired else None
                new.append(self.run.record(metric, value, name, setting, interval=paired.get(metric), to=to))
        self.run.write([record for record in new if (record.variant, record.metric, record.setting) not in keys])

    def rows(self) -> list[list[str]]:
        """A row a system: its scores with their intervals; then the published ones."""
        shown = []
        for name, scores in self.scores.items():
            cells = []
            for metric, value in summaries.means(scores).items():
                low, high = summaries.interval(scores[metric])
                cells.append(f"{value:.1f} ({low:.1f} to {high:.1f})")
            count = self.figures.get(name, {}).get("parameters")
            shown.append([name, "" if count is None else f"{count / 1e6:.1f}", *cells])
        return shown + [[f"published: {name}", "", *map(str, row)] for name, row in self.task.published.items()]

    def table(self) -> Table:
        """The rows, for the terminal."""
        heads = [METRICS[metric].label for metric in summaries.METRICS]
        title = f"{self.name}, {len(self.documents)} documents of {self.task.split}"
        shown = Table("system", "parameters (M)", *heads, title=title)
        for row in self.rows():
            shown.add_row(*row)
        return shown

    def page(self) -> str:
        """The rows and some documents, as Markdown."""
        heads = ["system", "parameters (M)", *(METRICS[metric].label for metric in summaries.METRICS)]
        lines = [f"## {self.name}", "", f"{len(self.documents)} documents of {self.task.split}.", ""]
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows()]
        chosen = random.Random(0).sample(range(len(self.documents)), min(self.task.samples, len(self.documents)))
        for place in sorted(chosen):
            document = self.documents[place]
            lines += ["", f"**{plain(document.title)}**", ""]
            lines += [f"- reference: {plain(summary)}" for summary in document.summaries]
            shown = {name: texts[place] for name, texts in self.outputs.items() if name != "title"}
            lines += [f"- {name}: {plain(text)}" for name, text in shown.items() if name not in self.baselines[1:]]
        return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """A text in one line of Markdown, cut to `SHOWN` words; what a network writes may itself hold line breaks."""
    words = text.split()
    cut = " ".join(words[:SHOWN]) + (" ..." if len(words) > SHOWN else "")
    return re.sub(r"([\\`*_\[\]<>$|#~])", r"\\\1", cut)


if __name__ == "__main__":
    BENCHMARK.run(main)
