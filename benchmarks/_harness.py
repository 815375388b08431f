"""What all benchmarks share: arguments, timing, records, trainings that go on, peers and progress.

A script declares a `Benchmark` with the options that are its own, and ends in

    if __name__ == "__main__":
        BENCHMARK.run(main)

`main` is given a `Run`, and returns whether every bar was met: where it returns False, the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from rich.console import Console
from rich.table import Table

from greenformers.measure.record import Record, append, context, read

if TYPE_CHECKING:
    from greenformers.measure.latency import Timing
    from greenformers.train.fit import History

T = TypeVar("T")

DATA, REFERENCE, RUNS = Path("../shared/data"), Path("../shared/reference"), Path("runs")
"""Where data sets, published figures and the folders of trainings are by default."""


@dataclass(frozen=True)
class Option:
    """An option of one benchmark.

    Attributes:
        name: as typed, "--picture".
        help: what it is.
        type: of its value; of `bool` it is a switch, which has none.
        default: its value where it is not given.
        choices: the values allowed; None for any.
        needs: files or folders below its value without which the benchmark is skipped; "." is the value itself.
        least: of a number, the least that is not refused.
    """

    name: str
    help: str
    type: Callable[[str], Any] = str
    default: Any = None
    choices: Collection[Any] | None = None
    needs: tuple[str, ...] = ()
    least: int = 1

    @property
    def key(self) -> str:
        """The name of its value among the arguments."""
        return self.name.removeprefix("--").replace("-", "_")

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Declare it."""
        if self.type is bool:
            parser.add_argument(self.name, action="store_true", help=self.help)
        else:
            # A range or a table of bars is longer than its help.
            meta = None if self.choices is None else self.key.upper()
            kind = self._number if self.type is int else self.type
            parser.add_argument(
                self.name, type=kind, default=self.default, choices=self.choices, help=self.help, metavar=meta
            )

    def _number(self, word: str) -> int:
        number = int(word) if re.fullmatch(r"[+-]?\d+", word) else None
        if number is None or number < self.least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {self.least}, got {word!r}")
        return number


PEERS = Option("--peers", "folder the peers are installed in, beside what is installed", Path)
KNOWN = "file the records are added to, and known trainings are read from"
"""What `--json` does where trainings go on."""
SEED = Option("--seed", "one seed; by default 0 and 1", int, least=0)


def data(name: str, folder: str, about: str, *needs: str) -> Option:
    """The option of a folder of data, without which, or without the parts named, the benchmark is skipped."""
    return Option(name, about, Path, DATA / folder, needs=needs or (".",))


@dataclass(frozen=True)
class Benchmark:
    """A script of this folder.

    Attributes:
        file: its `__file__`.
        doc: its docstring, which `--help` shows.
        quick: what `--quick` does.
        options: those of its own.
        json: what `--json` does, where that is more than writing.
        seed: the seed it has where it takes none.
        threads: the number of torch's threads where `--threads` is not given; None for torch's own choice.
    """

    file: str
    doc: str | None
    quick: str
    options: tuple[Option, ...] = ()
    json: str = "file the records are added to"
    seed: int = 0
    threads: int | None = None

    @property
    def name(self) -> str:
        """The name of its records."""
        return Path(self.file).stem

    def parser(self) -> argparse.ArgumentParser:
        """The one parser of all benchmarks."""
        parser = argparse.ArgumentParser(
            prog=f"{self.name}.py", description=self.doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for option in (*self.options, *self._shared()):
            option.add(parser)
        return parser

    def _shared(self) -> tuple[Option, ...]:
        return (
            Option("--quick", self.quick, bool, default=False),
            Option("--json", self.json, Path),
            Option("--threads", "number of torch's threads", int, self.threads),
        )

    def command(self, given: argparse.Namespace) -> str:
        """What records say they were made by: all options but paths, for records travel."""
        words = []
        for option in (*self.options, *self._shared()):
            value = getattr(given, option.key)
            if value is None or value is False or value == option.default or option.type is Path:
                words += ["--peers", "PEERS"] if option is PEERS and value else []
            else:
                words += [option.name] if option.type is bool else [option.name, shlex.quote(str(value))]
        return " ".join([f"python benchmarks/{self.name}.py", *words])

    def run(self, main: Callable[[Run], bool | None], arguments: Sequence[str] | None = None) -> NoReturn:
        """Parse the arguments, run the benchmark, and exit: with 1 where it missed a bar, or was stopped."""
        parser = self.parser()
        run = Run(self, parser.parse_args(arguments), parser)
        run.prepare()
        try:
            sys.exit(0 if main(run) in (None, True) else 1)
        except KeyboardInterrupt:
            print("stopped; trainings go on by the same command")
            sys.exit(1)


class Run:
    """A benchmark that runs.

    Attributes:
        benchmark: what runs.
        given: the values of its options.
        quick: whether figures need not mean much.
        console: where tables are printed.
    """

    def __init__(self, benchmark: Benchmark, given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
        self.benchmark, self.given, self._parser = benchmark, given, parser
        self.quick: bool = given.quick
        self.console = Console(width=140)
        self._written: list[Record] = []

    @cached_property
    def about(self) -> dict[str, Any]:
        """Context of the records; one time for all."""
        seed = getattr(self.given, "seed", None)
        return context(self.benchmark.command(self.given), self.benchmark.seed if seed is None else seed)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of `SEED`."""
        return (0, 1) if self.given.seed is None else (self.given.seed,)

    def prepare(self) -> None:
        """Find out what is missing before the work begins, set threads and peers, and leave the terminal to us."""
        from greenformers.cli._terminal import check_writable, quiet

        given = self.given
        for path in filter(None, (getattr(given, name, None) for name in ("json", "picture"))):
            try:
                check_writable(path)
            except OSError as error:
                self.refuse(f"{path} cannot be written: {error.strerror}")
            except ValueError as error:
                self.refuse(str(error))
        for option in self.benchmark.options:
            self.need(option.name, *(getattr(given, option.key) / part for part in option.needs))
        if getattr(given, "peers", None):
            sys.path.append(str(given.peers))
        quiet()
        if given.threads is not None:
            import torch

            torch.set_num_threads(given.threads)

    def need(self, option: str, *paths: Path) -> None:
        """End without an error where a file or folder is missing that an option names."""
        for path in paths:
            if not path.exists():
                self.skip(f"{path} is not there; name its folder with {option}")

    def skip(self, why: str) -> NoReturn:
        """End without an error: something is not installed, or not there."""
        self._parser.exit(message=f"skipped: {why}\n")

    def refuse(self, why: str) -> NoReturn:
        """End with a message on the arguments, and exit status 2."""
        self._parser.error(why)

    def record(
        self,
        metric: str,
        value: float | Timing,
        variant: str,
        setting: Mapping[str, Any] | None = None,
        *,
        spread: float | None = None,
        ratio: float | None = None,
        to: str | None = None,
        interval: Sequence[float] | None = None,
        source: str = "measured",
        seed: int | None = None,
    ) -> Record:
        """A record of this benchmark. A timing is its median in milliseconds, with the range of its quartiles."""
        from greenformers.measure.latency import Timing

        if isinstance(value, Timing):
            spread = 1e3 * (value.q3 - value.q1)
            value = 1e3 * value.median
        return Record.of(
            metric, value, benchmark=self.benchmark.name, variant=variant, setting=setting, spread=spread,
            ratio=ratio, to=to, interval=interval, source=source,
            context=self.about if seed is None else self.about | {"seed": seed},
        )  # fmt: skip

    def scores(
        self,
        scores: Mapping[str, Mapping[str, tuple[float, list[float] | None]]],
        setting: Mapping[str, Any],
        to: str = "dense",
    ) -> list[Record]:
        """Records of what `greenformers.compress.quality.judge` found; the intervals are of the difference to one."""
        return [
            self.record(metric, value, name, setting, interval=interval, to=to if interval else None)
            for name, metrics in scores.items()
            for metric, (value, interval) in metrics.items()
        ]

    def write(self, records: Iterable[Record]) -> None:
        """Add records to the file of `--json`, where one is given."""
        records = list(records)
        self._written += records
        if self.given.json:
            append(self.given.json, records)

    def known(self) -> list[Record]:
        """The records that the file of `--json` holds; where none is given, those of this run."""
        if not self.given.json:
            return list(self._written)
        return read(self.given.json) if self.given.json.exists() else []

    def remembered(self, metric: str, variant: str, setting: Mapping[str, Any]) -> Record | None:
        """The newest known record of a figure in a setting, which may say more than this; None where there is none."""
        own = (
            record
            for record in reversed(self.known())
            if (record.benchmark, record.metric, record.variant) == (self.benchmark.name, metric, variant)
        )
        return next((record for record in own if record.setting.items() >= setting.items()), None)

    def show(self, *tables: Table) -> None:
        """Print tables."""
        for table in tables:
            self.console.print(table)

    def times(
        self, calls: Mapping[str, Callable[[], object]], repeats: int, quick: int | None = None, *, warmup: int = 1
    ) -> dict[str, Timing]:
        """Time calls, interleaved, for so many rounds, or those of a quick run."""
        from greenformers.measure.latency import interleaved

        rounds = quick if self.quick and quick is not None else repeats
        return interleaved(calls, repeats=rounds, warmup=warmup)

    def trainings(
        self,
        trainings: Sequence[T],
        at: Callable[[T], tuple[str, Mapping[str, Any]]],
        train: Callable[[T], list[Record]],
        said: Callable[[list[Record]], str],
    ) -> list[Record]:
        """The records known from the file of `--json`, and those of the trainings that are not among them.

        Args:
            trainings: all of them, in their order.
            at: variant and setting of a training: a record that has them, and maybe more settings, tells of its end.
            train: trains one; its records are written as it ends.
            said: what of these is printed then.

        Raises:
            KeyboardInterrupt: a signal ended a training early.
        """
        records = self.known()

        def ended(training: T) -> bool:
            variant, setting = at(training)
            return any(record.variant == variant and record.setting.items() >= setting.items() for record in records)

        left = [training for training in trainings if not ended(training)]
        print(f"{len(trainings) - len(left)} of {len(trainings)} trainings are known", flush=True)
        start = time.monotonic()
        for done, training in enumerate(left, start=1):
            new = train(training)
            self.write(new)
            records += new
            variant, setting = at(training)
            minutes = (time.monotonic() - start) / done * (len(left) - done) / 60
            where = f"{done}/{len(left)} {variant}, seed {setting['seed']}"
            print(f"{where}: {said(new)}; about {minutes:.0f} min left", flush=True)
        return records

    def published(self, *names: str) -> None:
        """Print published tables, those that are in the folder of `--references`."""
        for path in [self.given.references / f"{name}.csv" for name in names]:
            if path.is_file():
                self.console.print(f"published: {path.stem}", path.read_text(), sep="\n")


def fitted(model: Any, objective: Any, schedule: Any, label: str, *callbacks: Any) -> History:
    """Train a network quietly, with further callbacks of the training.

    Raises:
        KeyboardInterrupt: a signal ended it early.
    """
    from greenformers.train.fit import fit

    history = fit(model, objective, schedule, label=label, console=Console(quiet=True), callbacks=callbacks)
    if history.stopped is not None:
        raise KeyboardInterrupt
    return history


@cache
def installed(*packages: str) -> bool:
    """Whether all of these can be imported; what cannot be is said, once, and its side left out."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        print(f"left out: {', '.join(missing)} cannot be imported", file=sys.stderr, flush=True)
    return not missing


def told(task: str, share: float) -> None:
    """Progress in a log: a line every tenth."""
    if abs(10 * share - round(10 * share)) < 1e-9:
        print(f"{task}: {100 * share:.0f} %", file=sys.stderr, flush=True)


def with_threads() -> dict[str, str]:
    """The variables of a command that is to have as many threads as torch has here."""
    import torch

    count = str(torch.get_num_threads())
    return os.environ | {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}


def growth(values: Mapping[int, float]) -> float:
    """The exponent e of value ~ N^e, between the shortest and the longest length; 0 of a single one."""
    low, high = min(values), max(values)
    return math.log(values[high] / values[low]) / math.log(high / low) if high > low else 0.0


def yes(met: bool) -> str:
    """The answer to a bar."""
    return "yes" if met else "no"
