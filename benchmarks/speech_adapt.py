"""A recogniser of spoken digits meets a new speaker: what some seconds to some minutes of that voice teach it.

    python benchmarks/speech_adapt.py [--quick] [--seed N] [--runs FOLDER] [--json results/speech_adapt.jsonl]

The recogniser of speech_augment.py that was trained with all augmentations on five speakers goes on, by AdamW and
otherwise with the same settings, on strings of the sixth alone, of takes 8 to 49; all are judged on takes of which
nothing is learnt: of this speaker 0 to 4, and of the five others, which it may forget, 5 to 7, by which they were
evaluated in training and nothing was chosen. Steps and learning rate are chosen by nobody: 100 steps at a third of the
rate of AdamW that it was trained with. Trainings go on where they were stopped.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data
from rich.table import Table
from speech_augment import Training
from speech_digits import BATCH, HELD_OUT

from greenformers.measure.recognition import scores
from greenformers.measure.record import Record
from greenformers.speech import spoken_digits
from greenformers.speech.recognise import Recogniser, recognised
from greenformers.speech.settings import SpeechSettings
from greenformers.train.run import ensure
from greenformers.train.stream import generator

STRINGS, JUDGED, STEPS, SLOWER, TURNS = (5, 20, 100), 300, 100, 3.0, 5
OTHERS = "the other speakers"

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training, 4 strings; the figures mean nothing",
    options=(
        data("--data", "fsdd", "folder of the clips"),
        Option("--runs", "folder of the run folders, also of speech_augment.py", Path, RUNS),
        Option("--seed", "seed of the strings to learn from", int, 0, least=0),
    ),
)

Strings = list[tuple[torch.Tensor, str]]


def main(run: Run) -> None:
    given = run.given
    runs = given.runs / "speech_adapt" / ("quick" if run.quick else "full")
    training = Training(held_out=HELD_OUT)
    base, start = training.settings(run), training.trained(run, given.runs / "speech_augment")
    judged = {
        HELD_OUT: said_by(given.data, "test", 4 if run.quick else JUDGED, own=True),
        OTHERS: said_by(given.data, "valid", 4 if run.quick else JUDGED, own=False),
    }
    folders = {0: start}
    for count in STRINGS[:1] if run.quick else STRINGS:
        folders[count] = runs / f"{count}-{given.seed}"
        manifest = runs / f"strings-{count}-{given.seed}" / "strings.tsv"
        seconds = write(manifest, said_by(given.data, "train", count, own=True, seed=given.seed))
        run.console.print(f"{count} strings of {HELD_OUT}: {seconds:.0f} s of speech")
        ensure(folders[count], adapting(base, manifest, start, count, run.quick), run.console)
    records: list[Record] = []
    table = Table("strings", *judged, title="characters wrong (%)")
    for count, folder in folders.items():
        recogniser = Recogniser.load(folder)
        cells = []
        for name, strings in judged.items():
            hypotheses = recognised(recogniser, [wave for wave, _ in strings], batch=BATCH, progress=lambda _: None)
            rates = scores(hypotheses, [text for _, text in strings])
            setting = {"test": name, "learnt": count, "strings": len(strings), "seed": given.seed}
            setting |= {"steps": (base.steps if run.quick else STEPS) if count else 0}
            records += [run.record(metric, rates[metric], "adapted", setting) for metric in ("cer", "wer")]
            cells.append(f"{rates['cer']:.2f}")
        table.add_row(str(count), *cells)
    run.show(table)
    run.write(records)


def said_by(folder: Path, split: str, count: int, *, own: bool, seed: int = 0) -> Strings:
    """Strings by the new speaker or by the others; all speakers have takes in every split here.

    Where the new speaker was held out, the others' takes that are "test" here were learnt, but none that are "valid".
    Strings to learn from are drawn anew at each turn through the split; those to be judged by are the same ever after.
    """
    digits = spoken_digits.load(folder, valid_strings=20 * JUDGED, test_strings=20 * JUDGED)
    size, strings = digits.size(split), Strings()
    for index in range(size * TURNS if split == "train" else size):
        wave, text, about = digits.string(split, index % size, generator(seed, 7, index))
        if (about["speaker"] == HELD_OUT) == own:
            strings.append((wave, text))
        if len(strings) == count:
            return strings
    raise ValueError(f"{split} has {len(strings)} such strings, {count} are needed")


def write(manifest: Path, strings: Strings) -> float:
    """A manifest and its files, and how many seconds they last."""
    import soundfile

    manifest.parent.mkdir(parents=True, exist_ok=True)
    rows = ["path\ttext"]
    for number, (wave, text) in enumerate(strings):
        soundfile.write(manifest.parent / f"{number}.wav", wave.numpy(), spoken_digits.RATE)
        rows.append(f"{number}.wav\t{text}")
    manifest.write_text("\n".join(rows) + "\n")
    return sum(len(wave) for wave, _ in strings) / spoken_digits.RATE


def adapting(base: SpeechSettings, manifest: Path, start: Path, count: int, quick: bool) -> SpeechSettings:
    """The settings of going on, on the strings of one speaker."""
    steps: dict[str, Any] = {} if quick else {"steps": STEPS, "evaluate_every": STEPS, "save_every": STEPS}
    return replace(
        base, corpus=str(manifest), valid=str(manifest), layout=None, held_out=None, init=str(start),
        optimizer="adamw", learning_rate=base.learning_rate / SLOWER, batch=min(base.batch, count),
        valid_transcripts=2, **steps,
    )  # fmt: skip


if __name__ == "__main__":
    BENCHMARK.run(main)
