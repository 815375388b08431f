"""Reports: of a part of a network, of a change, and of a recipe step by step and in total."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class UnitReport:
    """What a change did to one part of a network.

    Attributes:
        path: Path of the part; `tied` are further paths of the same weight.
        form: Form that it has now: "rank 64", "dense", "int8".
        before, after: Bytes of its weights.
        predicted: Relative error that was predicted, None without a prediction.
        lost: Relative error that was measured, in the norm that the change minimises; None where it has no norm.
    """

    path: str
    form: str
    before: int
    after: int
    predicted: float | None = None
    lost: float | None = None
    tied: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What one change did.

    Attributes:
        change: The change, as `as_dict` gives it.
        summary: One line for people to read.
        units: Reports of the parts that it considered.
        log: Values that were logged in training, by step.
    """

    change: dict[str, Any]
    summary: str
    units: Sequence[UnitReport] = ()
    log: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Step:
    """One change of a recipe.

    Attributes:
        report: Report of the change.
        parameters: Number of parameters of the whole network afterwards.
        size: Bytes of the whole network afterwards.
        seconds: Seconds that the change took.
    """

    report: Report
    parameters: int
    size: int
    seconds: float


@dataclass(frozen=True)
class CompressionReport:
    """The report of `compress`.

    Attributes:
        steps: The changes in order.
        parameters: Number of parameters of the whole network before.
        size: Bytes of the whole network before.
    """

    steps: Sequence[Step]
    parameters: int
    size: int

    @classmethod
    def of(cls, described: dict[str, Any]) -> Self:
        """The report that `as_dict` described, after it has been through JSON."""
        steps = []
        for step in described["steps"]:
            units = [UnitReport(**unit | {"tied": tuple(unit["tied"])}) for unit in step["report"]["units"]]
            steps.append(Step(**step | {"report": Report(**step["report"] | {"units": units})}))
        return cls(steps, described["parameters"], described["size"])

    @property
    def units(self) -> list[UnitReport]:
        """The parts that the first change considered."""
        return list(self.steps[0].report.units)

    @property
    def size_share(self) -> float:
        """Bytes of the whole network afterwards, as a share of those before."""
        return self.steps[-1].size / self.size

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        return asdict(self) | {"kept": self.size_share}

    def summary(self) -> list[str]:
        """One line for each step."""
        return [f"{step.report.change['name']}: {step.report.summary} ({step.seconds:.1f} s)" for step in self.steps]

    def markdown(self) -> str:
        """A list of the steps, and a table for each step that reports on parts of the network."""
        last = self.steps[-1]
        parts = [
            f"{self.parameters:,} -> {last.parameters:,} parameters, {self.size / 2**20:.1f} -> "
            f"{last.size / 2**20:.1f} MiB ({100 * self.size_share:.1f} %).",
            "\n".join(f"{number}. {line}" for number, line in enumerate(self.summary(), 1)),
        ]
        for step in self.steps:
            if step.report.units:
                parts += [f"### {step.report.change['name']}", _table(step.report.units)]
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return self.markdown()


def _table(units: Sequence[UnitReport]) -> str:
    lines = ["| part | now | bytes before | after | predicted error | error |", "|---|---|---:|---:|---:|---:|"]
    for unit in units:
        name = f"`{unit.path}`" + "".join(f" = `{path}`" for path in unit.tied)
        errors = ("-" if error is None else f"{error:.4f}" for error in (unit.predicted, unit.lost))
        lines.append(f"| {name} | {unit.form} | {unit.before:,} | {unit.after:,} | {' | '.join(errors)} |")
    return "\n".join(lines)
