"""Every architecture people may bring, changed: what comes back is what was saved, or the refusal says why.

    python benchmarks/zoo.py --json results/zoo.jsonl --page docs/architectures.md [--names bert,t5]

Small networks drawn at random (`_architectures.py`), each with five recipes. A refusal comes before any work, in one
line, and leaves the network as it was. What is made is saved, read again in a process of its own by its plain class,
and must say the same to the bit; then it is copied, saved once more, halved, written with and trained, as far as the
dense network can be. Bar: no failure.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _architectures import ARCHITECTURES, network
from _harness import Benchmark, Option, Run
from _zoo_pipelines import piped
from _zoo_reader import Batch, aligned, outputs, quiet
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

import greenformers
from greenformers.changes import Change, Heal, Int8, Layers, LowRank
from greenformers.data._tasks import kind_of_input, task_of
from greenformers.lowrank.linear import LED
from greenformers.model.example import example_of
from greenformers.model.experts import RoutedExperts

LOW = LowRank(keep=0.5, multiple=1)
RECIPES: dict[str, list[Change]] = {
    "low rank": [LOW],
    "int8": [Int8()],
    "both": [LOW, Int8()],
    "half the layers": [Layers()],
    "healed": [LOW, Heal(2, batch_size=4)],
}
BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="five architectures",
    options=(
        Option("--names", "architectures, separated by commas; all if not given"),
        Option("--page", "Markdown file for the table", Path),
    ),
    threads=1,  # sums over another number of threads round otherwise
)
QUICK = ("bert", "gpt2", "t5", "vit", "whisper")
TEXTS = [f"{word} {number}" for number, word in enumerate(["red", "green", "blue", "pale"] * 16)]


class Letters:
    """A tokenizer with one id a character."""

    pad_token_id = 0

    def __call__(self, text: str | None = None, text_target: str = "", **given: Any) -> dict[str, list[int]]:
        """Its ids."""
        text = text_target if text is None else text
        return {"input_ids": [4 + ord(letter) % 90 for letter in text][: given.get("max_length", 999)]}


def same(model: nn.Module, other: nn.Module, batch: Batch) -> None:
    """See that two networks say the same, to the bit."""
    for x, y in zip(outputs(model, batch), outputs(other, batch), strict=True):
        if not torch.equal(x, y):
            raise AssertionError(f"outputs differ by {(x - y).abs().max():.2g}")


def copied(model: Any, batch: Batch, _: Path) -> None:
    """A copy says the same."""
    same(model, copy.deepcopy(model), batch)


def saved_again(model: Any, batch: Batch, folder: Path) -> None:
    """What transformers itself saves is read again."""
    model.save_pretrained(folder)
    same(model, aligned(type(model).from_pretrained(folder, device_map="cpu").eval()), batch)


def halved(model: Any, batch: Batch, _: Path, *, dtype: torch.dtype) -> None:
    """In half precision it still computes."""
    half = {name: x.to(dtype) if x.is_floating_point() else x for name, x in batch.items()}
    tensors = outputs(copy.deepcopy(model).to(dtype), half)
    if not all(x.isfinite().all() for x in tensors[:1]):
        raise AssertionError(f"not finite in {dtype}")


def in_pipeline(model: Any, _: Batch, folder: Path) -> None:
    """A pipeline of transformers says the same of the network and of what was saved of it."""
    said = piped(model)
    if said is None:
        return
    model.save_pretrained(folder)
    again = piped(aligned(type(model).from_pretrained(folder).eval()))  # type: ignore[arg-type]
    if again is None or len(said) != len(again) or any(not x.equal(y) for x, y in zip(said, again, strict=True)):
        raise AssertionError("what was saved says something else in a pipeline")


def written_with(model: Any, batch: Batch, _: Path) -> None:
    """It writes four tokens."""
    if not model.can_generate() or not isinstance(batch.get(model.main_input_name), Tensor):
        return
    given = {name: x for name, x in batch.items() if not name.startswith("decoder")}
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": 4, "min_new_tokens": 4}
    model.generate(**given, **options)


class Squares(Trainer):
    """Trains any network: its outputs towards zero."""

    def compute_loss(self, model: nn.Module, inputs: Batch, *_: Any, **__: Any) -> Tensor:
        """The mean square of its first output."""
        first = next(x for x in model(**inputs).to_tuple() if isinstance(x, Tensor) and x.is_floating_point())
        return first.float().square().mean()


def trained(model: Any, batch: Batch, folder: Path) -> None:
    """The Trainer trains it for three steps."""
    learner = copy.deepcopy(model)
    if not any(parameter.requires_grad for parameter in learner.parameters()):
        return
    rows = [{name: x[place] for name, x in batch.items()} for place in (0, 1)] * 3
    arguments = TrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=2, learning_rate=1e-3, use_cpu=True, report_to="none",
        save_strategy="no", disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = Squares(learner, arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def linear_layers(model: nn.Module) -> str | list[str]:
    """What PEFT is asked to adapt: all linear layers.

    Of some mixtures of experts it takes from "all-linear" no more than the last names of layers, and a name may be that
    of a dense layer here and of a low-rank one, which is no linear layer, there: the factors are named then.
    """
    kinds = {type(part) for part in model.modules()}
    return ["encoder", "decoder"] if {RoutedExperts, LED} <= kinds else "all-linear"


def adapted(model: Any, batch: Batch, folder: Path) -> None:
    """LoRA of PEFT trains beside it for three steps, and is read again."""
    peft = __import__("peft")
    learner = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(r=2, target_modules=linear_layers(model)))
    optimizer = torch.optim.AdamW([x for x in learner.parameters() if x.requires_grad], 1e-3)
    for _ in range(3):
        first = next(x for x in learner(**batch).to_tuple() if isinstance(x, Tensor) and x.is_floating_point())
        first.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    learner.eval().save_pretrained(folder)
    same(learner, peft.PeftModel.from_pretrained(copy.deepcopy(model), folder).eval(), batch)


CHECKS: dict[str, Callable[[Any, Batch, Path], None]] = {
    "copied": copied, "saved again": saved_again, "bfloat16": partial(halved, dtype=torch.bfloat16),
    "float16": partial(halved, dtype=torch.float16), "pipeline": in_pipeline, "generate": written_with,
    "Trainer": trained, "PEFT": adapted,
}  # fmt: skip
BEFORE_CHECKS = {"refused", "compress", "save"}
"""Faults behind which no check is made, see `changed`."""


def failing(model: PreTrainedModel, batch: Batch) -> dict[str, str]:
    """The checks that a network fails, and how."""
    failures = {}
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(model, batch, Path(folder))
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return failures


def examples_of(model: PreTrainedModel) -> dict[str, Any]:
    """What a network is calibrated and healed with: texts, pairs of them, or what it reads in their place."""
    if kind_of_input(model) == "text":
        pairs = task_of(model) == "seq2seq"
        return {"texts": list(zip(TEXTS, reversed(TEXTS), strict=True)) if pairs else TEXTS, "tokenizer": Letters()}
    batch = example_of(model, batch=16)
    if "decoder_input_ids" in batch:
        batch["labels"] = batch["decoder_input_ids"]
    return {"examples": [{name: x[place] for name, x in batch.items()} for place in range(16)]}


def changed(name: str, recipe: Sequence[Change], folder: Path) -> tuple[str | None, dict[str, str]]:
    """Why a recipe was refused, None where it was not; and what failed."""
    model = network(name)
    batch = example_of(model)
    before = {key: x.clone() for key, x in model.state_dict().items()}
    try:
        shown = examples_of(model) if any(isinstance(change, Heal) for change in recipe) else {}
        greenformers.compress(model, recipe, length=8, **shown)
    except ValueError as error:
        if any(not x.equal(model.state_dict()[key]) for key, x in before.items()):
            return None, {"refused": "and changed the network"}
        return " ".join(str(error).split()), {}
    except Exception as error:
        return None, {"compress": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    try:
        greenformers.save(model, folder)
        expected = {f"out.{place}": x.contiguous() for place, x in enumerate(outputs(model, batch))}
        given = {f"in.{key}": x.contiguous() for key, x in batch.items()}
        save_file(given | expected, folder / "expected.safetensors")
    except Exception as error:
        return None, {"save": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    return None, failing(model, batch)


def read_again(root: Path) -> dict[str, str]:
    """What a process of its own finds wrong with the folders."""
    reader = Path(__file__).with_name("_zoo_reader.py")
    shown = subprocess.run(
        [sys.executable, str(reader), str(root)], capture_output=True, text=True, check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if shown.returncode:
        return {path.name: f"the process ended: {shown.stderr[-200:]}" for path in root.iterdir()}
    faults: dict[str, str] = json.loads(shown.stdout.splitlines()[-1])
    return faults


def main(run: Run) -> bool:
    quiet()
    given = run.given.names
    names = list(QUICK) if run.quick else list(ARCHITECTURES) if given is None else given.split(",")
    refusals: dict[tuple[str, str], str] = {}
    faults: dict[tuple[str, str], dict[str, str]] = {}
    dense: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            model = network(name)
            dense[name] = failing(model, example_of(model))
            for recipe, changes in RECIPES.items():
                why, wrong = changed(name, changes, Path(place) / f"{name}-{recipe}")
                faults[name, recipe] = {check: how for check, how in wrong.items() if check not in dense[name]}
                if why is not None:
                    refusals[name, recipe] = why
        for folder, how in read_again(Path(place)).items():
            name, _, recipe = folder.partition("-")
            faults[name, recipe]["a process of its own"] = how
    table = Table("architecture", *RECIPES, "the dense network cannot")
    for name in names:
        cells = [cell(name, recipe, refusals, faults) for recipe in RECIPES]
        table.add_row(name, *cells, ", ".join(dense[name]))
        for recipe in RECIPES:
            setting, wrong = {"recipe": recipe}, faults[name, recipe]
            begun = (name, recipe) not in refusals and not wrong.keys() & BEFORE_CHECKS
            done = len(CHECKS) + 1 - len(dense[name]) - len(wrong) if begun else 0
            run.write([run.record("checks", done, name, setting), run.record("failures", len(wrong), name, setting)])
    run.console.print(table)
    for (name, recipe), wrong in faults.items():
        for check, how in wrong.items():
            run.console.print(f"{name}, {recipe}, {check}: {how}")
    failures = sum(map(len, faults.values()))
    run.console.print(
        f"{len(names)} architectures, {len(names) * len(RECIPES)} results: {len(refusals)} refused, {failures} failures"
    )
    if run.given.page is not None:
        run.given.page.write_text(page(names, refusals, faults, dense))
    return not failures


def cell(name: str, recipe: str, refusals: Mapping[Any, str], faults: Mapping[Any, Mapping[str, str]]) -> str:
    """What one recipe gave."""
    if faults[name, recipe]:
        return f"fails: {', '.join(faults[name, recipe])}"
    return "refused" if (name, recipe) in refusals else "yes"


def page(
    names: Sequence[str], refusals: Mapping[Any, str], faults: Mapping[Any, Mapping[str, str]],
    dense: Mapping[str, Mapping[str, str]],
) -> str:  # fmt: skip
    """The table as Markdown, and the reasons of the refusals."""
    intro, _, rest = (__doc__ or "").partition("\n\n")
    lines = ["# Architectures", "", "<!-- Written by benchmarks/zoo.py. -->", "", intro, ""]
    lines += ["```sh", rest.partition("\n\n")[0].strip(), "```", "", rest.partition("\n\n")[2].strip(), ""]
    lines += [f"| class | {' | '.join(RECIPES)} | the dense network cannot |", "|---|" + "---|" * (len(RECIPES) + 1)]
    for name in names:
        cells = [cell(name, recipe, refusals, faults) for recipe in RECIPES]
        lines.append(f"| {ARCHITECTURES[name][0]} | {' | '.join(cells)} | {', '.join(dense[name])} |")
    reasons: dict[str, list[str]] = {}
    for (_, recipe), why in refusals.items():
        reasons.setdefault(why, []).append(recipe)
    lines += ["", "## Why recipes were refused", ""]
    lines += [f"- {', '.join(dict.fromkeys(recipes))}: {why}" for why, recipes in reasons.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    BENCHMARK.run(main)
