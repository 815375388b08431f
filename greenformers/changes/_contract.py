"""The contract of a change of a trained network: a frozen dataclass whose fields are the options of the change.

A change is one file of this folder with one public class, named as the file is: `low_rank.py` holds `LowRank`. Fields
are plain JSON values, each with a default that works; their metadata hold `help`, and `flag` where the command line has
a short form. The file imports torch and transformers inside its methods, so that `--help` can read the fields at once.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from greenformers.changes._measured import Measured
from greenformers.changes._report import Report

if TYPE_CHECKING:
    from torch import nn

    from greenformers.data._rows import Rows

T = TypeVar("T")

Need = Literal["calibration", "training", "teacher", "example"]
"""Examples to calibrate with, examples to learn from, the network to learn from, a batch to measure costs on."""

NEEDED: dict[Need, str] = {
    "calibration": "examples to calibrate with (--texts or --calibrate)",
    "training": "examples to learn from (--texts or --heal-texts)",
    "teacher": "a teacher",
    "example": "an example batch",
}


def option(default: Any, about: str, flag: str | None = None) -> Any:
    """A field of a change: its default, its help text, and its short form on the command line."""
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata={"help": about, "flag": flag})
    return field(default=default, metadata={"help": about, "flag": flag})


@dataclass(frozen=True)
class Given:
    """What a change may use besides the network.

    Attributes:
        calibration: Batches to calibrate with: mappings of keyword arguments, sequences of positional ones, or tensors.
        original: For a part of a network, the same batches as the whole network gives them where nothing has been
            changed; those of `calibration` come from the parts before, as changed. None where there are no others.
        together: Whether all processes apply a change that `shares` its calibration: each has all batches here, and
            makes use of its share of them.
        outputs: For a part of a network, what this part of the network as it was gives, (B, N, d) for each of these
            batches; None where no change learns from it.
        part: Whether the network is a part of a larger one, in which there may be nothing to change.
        training: Examples to learn from, as the network reads them; only those for a decoder have labels.
        teacher: Network to learn from; as a rule the original.
        example: A batch on which costs are counted or measured; by default the first of `calibration`.
        loss: Loss of the network on a batch, for changes that use gradients; by default the network's own, or how
            far its outputs move.
        following: Changes that come later in the recipe.
        folder: Folder for checkpoints of training; without it none are written.
        teacher_cache: Folder that keeps what the teacher gives to examples; without it the teacher is asked again.
        taught: What the teacher gave to these examples in trainings before, where several recipes for this network are
            made; else None.
        memory: Bytes of statistics that may be held at once.
        seed: Seed of random numbers and of the order of the texts.
        mask_token: Token that stands for a masked one, None where there is none.
        measured: What changes have measured of this network before, where several recipes for it are made; else None.
        progress: Function that is called with the name of a step and the share of it that is done.
    """

    calibration: Sequence[Any] | None = None
    original: Sequence[Any] | None = None
    together: bool = False
    outputs: Sequence[Any] | None = None
    part: bool = False
    training: "Rows | None" = None
    teacher: "nn.Module | None" = None
    example: Any = None
    loss: Callable[..., Any] | None = None
    following: "tuple[Change, ...]" = ()
    folder: Path | None = None
    teacher_cache: Path | None = None
    taught: dict[Hashable, Any] | None = None
    memory: float = 2**30
    seed: int = 0
    mask_token: int | None = None
    measured: Measured | None = None
    progress: Callable[[str, float], None] = lambda *_: None

    def once(self, key: Hashable, measure: Callable[[], T]) -> T:
        """What was measured under this key of this network before; measured now where it was not."""
        return measure() if self.measured is None else self.measured.once(key, measure)

    @property
    def batch(self) -> Any:
        """A batch to see what a network does: the example, or the first to calibrate with; None where there is none."""
        return self.calibration[0] if self.example is None and self.calibration else self.example

    def has(self, need: Need) -> bool:
        """Whether this need of a change is met."""
        if need == "training":
            return bool(self.training)
        if need == "example":
            return self.example is not None or bool(self.calibration)
        return bool(self.calibration) if need == "calibration" else self.teacher is not None


@dataclass(frozen=True)
class Change:
    """Base of every change; the fields of a subclass are its options.

    A change overrides the methods that concern it; the others keep the answers given here.
    """

    order: ClassVar[int] = 50
    """Rank among the changes of a command line, which applies low ones first: another attention first, int8 last."""

    flag: ClassVar[str | None] = None
    """Short form on the command line of the change with its defaults, such as "--int8"."""

    share: ClassVar[str | None] = None
    """The field that a bare number sets, in `compress(model, 0.5)`; only one change has such a field."""

    trains: ClassVar[bool] = False
    """Whether it trains, and so can be stopped and resumed."""

    freezes: ClassVar[bool] = False
    """Whether weights are rounded afterwards, to numbers that no other change should read or train."""

    codes: ClassVar[bool] = False
    """Whether it rounds or codes weights of linear layers and embeddings, of which some must be left."""

    codes_all: ClassVar[bool] = False
    """Whether it leaves none of them."""

    reads_weights: ClassVar[bool] = False
    """Whether it reads or trains weights, and so cannot follow a change that freezes them."""

    factorises: ClassVar[bool] = False
    """Whether linear layers hold no dense weight afterwards."""

    reads_dense: ClassVar[bool] = False
    """Whether it takes dense linear layers apart, and so cannot follow a change that factorises them."""

    sparsifies: ClassVar[bool] = False
    """Whether weights of linear layers are 0 afterwards, and stay so in training."""

    fixes_heads: ClassVar[bool] = False
    """Whether modules are made for the number of attention heads that there is."""

    removes_heads: ClassVar[bool] = False
    """Whether it removes attention heads, and so cannot follow a change that fixes their number."""

    built_by_the_class: ClassVar[bool] = False
    """Whether the class of a network builds the changed network from its configuration: fewer of its own layers."""

    builds_anew: ClassVar[bool] = False
    """Whether it has the class build the network anew, and so cannot follow a change that makes it another one."""

    needs_healing: ClassVar[bool] = False
    """Whether it leaves a network that is of use only once it is healed: a search without training does not try it."""

    in_torch: ClassVar[bool] = False
    """Whether it is of use in torch alone: other runtimes choose by themselves what they compute in."""

    by_input: ClassVar[bool] = False
    """Whether inputs decide afterwards, by thresholds chosen for the network as it is, what is computed of them: no
    other change can follow, and there is no program of it to export."""

    from_disk: ClassVar[bool] = False
    """Whether `stream` can apply it weight by weight, from disk to disk."""

    by_block: ClassVar[bool] = False
    """Whether `apply` can change a network one block after the other, from disk to disk: see `in_block`."""

    @classmethod
    def name(cls) -> str:
        """Name of the change: that of its file."""
        return cls.__module__.rpartition(".")[2]

    @property
    def label(self) -> str:
        """Short name for tables: "low rank 0.5"."""
        return self.name().replace("_", " ")

    @property
    def needs(self) -> frozenset[Need]:
        """The needs without which it cannot be applied."""
        return frozenset()

    @property
    def uses(self) -> frozenset[Need]:
        """The needs of which it makes use where they are met: all that it has, and perhaps more."""
        return self.needs

    @property
    def shares(self) -> bool:
        """Whether several processes can apply it together: of what it calibrates with it makes sums over batches alone.

        Each of them then has a share of the batches, see `greenformers.solve.share`.
        """
        return False

    @property
    def same_costs(self) -> bool:
        """Whether a network costs afterwards what it did before: that of a change that trains and adds nothing."""
        return False

    @property
    def traces(self) -> "Sequence[type[Change]]":
        """The kinds of changes that later ones find in the network: its own, and those whose work it does too."""
        return (type(self),)

    @property
    def reach(self) -> int | None:
        """The longest input, in tokens, that a network takes afterwards; None where the change leaves it as it is."""
        return None

    def check(self, model: "nn.Module", before: "Sequence[type[Change]]", given: Given) -> None:
        """Check, before any work begins, whether the change can be applied to this network after other changes.

        Raises:
            ValueError: It cannot follow a change in `before`, or is not given what it needs.
        """
        for need in sorted(self.needs):
            if not given.has(need):
                raise ValueError(f"{self.label} needs {NEEDED[need]}")
        self.check_order(before)

    def check_order(self, before: "Sequence[type[Change]]") -> None:
        """Check whether the change can follow others.

        Raises:
            ValueError: It cannot follow a change in `before`.
        """
        frozen = next((kind for kind in before if kind.freezes), None)
        if self.reads_weights and frozen is not None:
            both = self.freezes and frozen.reads_weights
            way_out = "use one of the two" if both else f"put {self.name()} before it"
            raise ValueError(f"{self.name()} cannot follow {frozen.name()}, which leaves rounded weights: {way_out}")
        factorising = next((kind for kind in before if kind.factorises), None)
        if self.reads_dense and factorising is not None:
            raise ValueError(
                f"{self.name()} cannot follow {factorising.name()}, which leaves no dense weights: "
                f"put {self.name()} before it"
            )
        sparsifying = next((kind for kind in before if kind.sparsifies), None)
        if (self.reads_dense or self.factorises) and sparsifying is not None:
            raise ValueError(
                f"{self.name()} cannot follow {sparsifying.name()}, whose zeros it would fill: "
                f"put {self.name()} before it"
            )
        other = next((kind for kind in before if not kind.built_by_the_class), None)
        if self.builds_anew and other is not None:
            raise ValueError(
                f"{self.name()} cannot follow {other.name()}, which makes another network than its class builds: "
                f"put {self.name()} before it"
            )
        deciding = next((kind for kind in before if kind.by_input), None)
        if deciding is not None:
            raise ValueError(
                f"{self.name()} cannot follow {deciding.name()}, whose thresholds are chosen for the network as it is: "
                f"put {self.name()} before it"
            )
        coding = next((kind for kind in before if kind.codes_all), None)
        if self.codes and coding is not None:
            raise ValueError(
                f"{self.name()} cannot follow {coding.name()} of all layers, which leaves no other: select some of them"
            )
        fixing = next((kind for kind in before if kind.fixes_heads), None)
        if self.removes_heads and fixing is not None:
            raise ValueError(
                f"{self.name()} cannot follow {fixing.name()}, which is made for a number of heads: "
                f"put {self.name()} before it"
            )

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Change a network in place; nothing is changed if this raises.

        Raises:
            ValueError: The change cannot be applied to this network, or with what is given.
        """
        raise NotImplementedError

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Where the network differs from its class because of this change, as JSON; None where it does not."""
        return None

    @classmethod
    def described_by(cls) -> "Sequence[str]":
        """Names of the changes that describe where the network differs because of this one, in order."""
        return (cls.name(),)

    @classmethod
    def shows(cls, model: "nn.Module") -> bool:
        """Whether a network shows that this change was applied to it, also where there is nothing to describe."""
        return bool(cls.describe(model))

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty modules, as a description says, into a network of its class, on the device of its weights.

        Returns:
            The paths of the description that the network does not have.

        Raises:
            ValueError: It is not a description of this change, or does not fit the network.
        """
        raise ValueError(f"{cls.name()} leaves nothing to describe, got {description!r}")

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the modules that stand in place of those that the network's class builds."""
        return ()

    @classmethod
    def ties(cls, model: "nn.Module") -> Iterable[tuple[str, str]]:
        """Parameters of this change with several names: (name, name under which it is saved)."""
        return ()

    @classmethod
    def settle(cls, model: "nn.Module") -> None:
        """Prepare a network that was read from a checkpoint for use."""

    @classmethod
    def revert(cls, model: "nn.Module") -> int:
        """Undo the change in place. The number of parts that it was undone in; 0 for a change that stays.

        Raises:
            ValueError: It cannot be undone, and must not stay either.
        """
        return 0

    def rounding(self, model: "nn.Module", *, share: float = 1.0) -> AbstractContextManager[None] | None:
        """A `with` block in which a network is trained as this change will round it; None where it rounds nothing.

        Each step rounds a `share` of the weights, drawn at random; evaluation rounds all.
        """
        return None

    @classmethod
    def jittered(cls, model: "nn.Module", seed: int) -> AbstractContextManager[None] | None:
        """A `with` block in which values on the edge are rounded the other way; None where nothing is rounded."""
        return None

    @classmethod
    def searched(cls, model: "nn.Module", *, length: int, causal: bool, heals: bool) -> "Sequence[Self]":
        """Settings that a search may try, the mildest first.

        They say what is left of a network before any training. None by default: what is not faster, or is one part of
        what another change does, need not be tried.

        Args:
            model: The network.
            length: Tokens of its texts.
            causal: Whether it is a decoder.
            heals: Whether what was changed will be healed.
        """
        return []

    def products_left(self, model: "nn.Module") -> float:
        """About the share of the work of matrix products that is left by this setting, as far as its options say it.

        A search foresees speeds by it. 1 where they say nothing of it; `model` is the network before the change.
        """
        return 1.0

    def fitted(self, model: "nn.Module", length: int) -> Self:
        """The same change, for texts of `length` tokens."""
        return self

    @classmethod
    def suited(cls, *, texts: int, before: "Sequence[Change]", following: "Sequence[Change]") -> Self:
        """Settings of a change that trains, for this number of texts, at its place between changes of a recipe."""
        return cls()

    def in_block(self, part: "nn.Module") -> Self | None:
        """The same change for one block of a network, as `apply` is to make it there; None where it leaves it as it is.

        Raises:
            ValueError: With these options it looks at all blocks at once.
        """
        raise ValueError(f"{self.name()} looks at a whole network: it cannot be applied block by block, from disk")

    def around_blocks(self, part: "nn.Module") -> Self | None:
        """The same for what stands before and behind the blocks: embeddings and output layers."""
        return self.in_block(part)

    @property
    def reads_original(self) -> bool:
        """Whether it looks at the inputs that layers have in the network as it was: see `Given.original`."""
        return False

    @property
    def squares(self) -> int:
        """How many matrices (n, n) in float64 it holds at once, of a linear layer with n inputs."""
        return 0

    @property
    def copies(self) -> int:
        """How many bytes it holds beside a linear layer, at most, for each number of its weight."""
        return 32

    def stream(self, model: "nn.Module", given: Given) -> Any:
        """The change applied weight by weight; see `greenformers.solve.stream`."""
        raise ValueError(f"{self.name()} cannot be applied from disk")

    def streamed(self, stream: Any) -> Report:
        """The report of a stream that has been read to its end."""
        raise ValueError(f"{self.name()} cannot be applied from disk")

    def but(self, **options: Any) -> Self:
        """The same change with other options."""
        return replace(self, **options)
