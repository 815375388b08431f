"""The contract of a change: what is done to a trained network, as a frozen dataclass whose fields are its options.

A change is one file of this folder with one public class, named as the file is: `low_rank.py` holds `LowRank`. Fields
are plain JSON values, each with a default that works; their metadata hold `help`, and `flag` where the command line has
a short form. The file imports torch and transformers inside its methods, so that `--help` can read the fields at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

if TYPE_CHECKING:
    from torch import nn

    from greenformers.data._rows import Rows

Need = Literal["calibration", "training", "teacher", "example"]
"""Examples to look at, examples to learn from, the network to learn from, and a batch on which costs are measured."""

NEEDED: dict[Need, str] = {
    "calibration": "examples to calibrate with (--texts or --calibrate)",
    "training": "examples to learn from (--texts or --heal-texts)",
    "teacher": "a teacher",
    "example": "an example batch",
}


def option(default: Any, about: str, flag: str | None = None) -> Any:
    """A field of a change: its default, what is said about it, and its short form on the command line."""
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata={"help": about, "flag": flag})
    return field(default=default, metadata={"help": about, "flag": flag})


@dataclass(frozen=True)
class Given:
    """What a change may use besides the network.

    Attributes:
        calibration: Batches to look at: mappings of keyword arguments, sequences of positional ones, or tensors.
        training: Examples to learn from, as the network reads them, with the labels that a decoder needs alone.
        teacher: The network to learn from: as a rule the original.
        example: A batch on which costs are counted or measured; by default the first of `calibration`.
        loss: Loss of the network on a batch, for changes that look at gradients; by default the network's own, or how
            far its outputs move.
        following: Changes that come later in the recipe.
        folder: Where checkpoints of training go; none are written without it.
        memory: Bytes of statistics that may be held at once.
        seed: Seed of what is drawn, and of the order of texts.
        progress: Called with what is being done and the share of it that is.
    """

    calibration: Sequence[Any] | None = None
    training: "Rows | None" = None
    teacher: "nn.Module | None" = None
    example: Any = None
    loss: Callable[..., Any] | None = None
    following: "tuple[Change, ...]" = ()
    folder: Path | None = None
    memory: float = 2**30
    seed: int = 0
    progress: Callable[[str, float], None] = lambda *_: None

    def has(self, need: Need) -> bool:
        """Whether something that a change needs is there."""
        if need == "training":
            return bool(self.training)
        if need == "example":
            return self.example is not None or bool(self.calibration)
        return bool(self.calibration) if need == "calibration" else self.teacher is not None


@dataclass(frozen=True)
class UnitReport:
    """What became of one part of a network.

    Attributes:
        path: Where it stands; `tied` are further places of the same weight.
        form: What it is now: "rank 64", "dense", "int8".
        before, after: Bytes of its weights.
        predicted: Relative error that was expected, None where nothing predicts it.
        lost: Relative error of what is there now, in the norm that the change works with; None where it has none.
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
        summary: One line for people.
        units: The parts that it looked at.
        log: What was logged in training, by step.
    """

    change: dict[str, Any]
    summary: str
    units: Sequence[UnitReport] = ()
    log: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Change:
    """Base of every change; the fields of a subclass are its options.

    Of the class methods those that a change has no use for keep the answers given here.
    """

    order: ClassVar[int] = 50
    """Place among the changes of a command line: another attention first, int8 last."""

    flag: ClassVar[str | None] = None
    """Short form on the command line of the change with its defaults, such as "--int8"."""

    share: ClassVar[str | None] = None
    """The field that a bare number stands for; of one change alone: `compress(model, 0.5)`."""

    trains: ClassVar[bool] = False
    """Whether it has steps, and can be stopped and resumed; what a network costs is then as before."""

    freezes: ClassVar[bool] = False
    """Whether weights are no longer floating point afterwards."""

    reads_weights: ClassVar[bool] = False
    """Whether it reads or trains weights, and so cannot follow a change that freezes them."""

    built_by_the_class: ClassVar[bool] = False
    """Whether the class of a network builds, from its configuration, what it is afterwards: fewer of its own layers."""

    from_disk: ClassVar[bool] = False
    """Whether `stream` can make it weight by weight, from disk to disk."""

    @classmethod
    def name(cls) -> str:
        """Name of the change: its file's."""
        return cls.__module__.rpartition(".")[2]

    @property
    def label(self) -> str:
        """Short name for tables: "low rank 0.5"."""
        return self.name().replace("_", " ")

    @property
    def needs(self) -> frozenset[Need]:
        """What it must be given."""
        return frozenset()

    @property
    def uses(self) -> frozenset[Need]:
        """What it makes use of where it is given; all that it needs, at least."""
        return self.needs

    @property
    def reach(self) -> int | None:
        """The longest input, in tokens, that a network takes afterwards; None where that stays as it is."""
        return None

    def check(self, model: "nn.Module", before: "Sequence[type[Change]]", given: Given) -> None:
        """See, before any work begins, whether the change can be made of this network after other changes.

        Raises:
            ValueError: it cannot follow one of those before it, or is not given what it needs.
        """
        for need in sorted(self.needs):
            if not given.has(need):
                raise ValueError(f"{self.label} needs {NEEDED[need]}")
        frozen = next((kind for kind in before if kind.freezes), None)
        if self.reads_weights and frozen is not None:
            raise ValueError(
                f"{self.name()} cannot follow {frozen.name()}, after which weights are no floating-point numbers: "
                f"put {self.name()} before it"
            )

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Change a network in place; nothing is changed if this raises.

        Raises:
            ValueError: the network, or what is given, does not serve.
        """
        raise NotImplementedError

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Where the network differs because of this change, as JSON; None where it does not."""
        return None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put the empty skeleton of a description into a network that lacks it, on the device of its weights.

        Returns:
            The paths of the description that the network does not have.

        Raises:
            ValueError: not a description of this change, or one that does not fit the network.
        """
        raise ValueError(f"{cls.name()} leaves nothing to describe, got {description!r}")

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the modules that stand in the place of what the network's class builds."""
        return ()

    @classmethod
    def ties(cls, model: "nn.Module") -> Iterable[tuple[str, str]]:
        """Parameters of this change with several names: (name, name under which it is saved)."""
        return ()

    @classmethod
    def settle(cls, model: "nn.Module") -> None:
        """Do what a network that was read anew needs before it is used."""

    @classmethod
    def revert(cls, model: "nn.Module") -> int:
        """Undo the change in place, and say of how many parts; of a change that stays, none.

        Raises:
            ValueError: it cannot be undone, and must not stay either.
        """
        return 0

    def rounding(self, model: "nn.Module") -> AbstractContextManager[None] | None:
        """A block in which a network is trained as rounded by this change; None where it rounds nothing."""
        return None

    @classmethod
    def jittered(cls, model: "nn.Module", seed: int) -> AbstractContextManager[None] | None:
        """A block in which the network's own rounding falls differently; None where it does not decide anything."""
        return None

    @classmethod
    def suggested(cls, *, length: int, causal: bool) -> Sequence[Self]:
        """Settings worth trying on texts of so many tokens, the favourite last; the recommender tries these."""
        return [cls()]

    def fitted(self, model: "nn.Module", length: int) -> Self:
        """The same change, for texts of so many tokens."""
        return self

    @classmethod
    def suited(cls, *, texts: int, following: "Sequence[Change]") -> Self:
        """Settings of a change that trains for so many texts, before other changes of a recipe."""
        return cls()

    def stream(self, model: "nn.Module", given: Given) -> Any:
        """The change weight by weight; see `greenformers.solve.stream`."""
        raise ValueError(f"{self.name()} cannot be made from disk")

    def streamed(self, stream: Any) -> Report:
        """What a stream that has been read to its end did."""
        raise ValueError(f"{self.name()} cannot be made from disk")

    def but(self, **options: Any) -> Self:
        """The same change with other options."""
        return replace(self, **options)
