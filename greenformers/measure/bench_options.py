"""What the efficiency study asks for: the network that all cells share, and how they are measured."""

from dataclasses import dataclass, field
from typing import Any

MODES = ("inference", "training")


def option(default: Any, about: str, flag: str | None = None) -> Any:
    """An option with its default, what is said about it, and its flag where that is not called as the option."""
    return field(default=default, metadata={"help": about, "flag": flag})


@dataclass(frozen=True)
class Network:
    """What is the same in all cells; by default two layers of BERT-base's size. The help text documents each field."""

    hidden: int = option(768, "Width d of the network.")
    heads: int = option(12, "Number of heads, a divisor of the width.")
    feed_forward: int = option(3072, "Width f of the feed-forward blocks.")
    layers: int = option(2, "Number of layers.")
    causal: bool = option(False, "A position sees only those before it.", "--causal")
    slots: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "Another slot of the network, as residual=pre; may be repeated.", "flag": "--slot"},
    )


@dataclass(frozen=True)
class How:
    """How cells are measured. Where there is a help text, it documents the field.

    Attributes:
        memory: bytes, of which the largest batch is found that fits; None: it is not looked for.
        country: whose electricity, for energy; None: no energy.

    Raises:
        ValueError: a value out of range.
    """

    modes: tuple[str, ...] = option(MODES, "inference, training or both, with a comma.")
    tokens: int = option(4096, "Tokens of a batch: its size is this over the length.")
    memory: float | None = None
    repeats: int = option(7, "Timed runs of each cell.")
    country: str | None = None
    device: str = option("cpu", "cpu, cuda or cuda:1.")
    compiled: bool = option(False, "By torch.compile.", "--compile")
    seed: int = option(0, "Of weights and inputs.")

    def __post_init__(self) -> None:
        from greenformers.measure.device import (
            device_of,  # takes seconds: the command line reads this file for its help
        )

        if unknown := [mode for mode in self.modes or ("",) if mode not in MODES]:
            raise ValueError(f"mode must be of {', '.join(MODES)}; got {unknown[0]!r}")
        if self.tokens < 1 or self.repeats < 1:
            raise ValueError(f"tokens and repeats must be at least 1, got {self.tokens} and {self.repeats}")
        device_of(self.device)
        if self.memory is not None and not self.memory > 0:
            raise ValueError(f"memory must be positive, got {self.memory / 2**30:g} GiB")
