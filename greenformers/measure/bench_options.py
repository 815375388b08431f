"""Options of the efficiency study: the network that all cells share, and the way in which cells are measured."""

from dataclasses import dataclass, field
from typing import Any

MODES = ("inference", "training")
PRECISIONS = ("fp32", "bf16", "fp16")

SLOTS: dict[str, type] = {
    **dict.fromkeys(("residual", "norm", "feed_forward", "position", "block", "hidden_act"), str),
    **dict.fromkeys(("bias", "qk_norm", "rank_per_head"), bool),
    "num_key_value_heads": int, "attention_dropout": float, "layer_norm_eps": float,
    **dict.fromkeys(("feed_forward_options", "position_options", "block_options"), dict),
}  # fmt: skip
"""Other parts of the layers, with the kinds of their values: names of `GreenformerConfig`. The variant is attention and
rank, and sizes have options of their own."""


def option(default: Any, about: str, flag: str | None = None) -> Any:
    """An option with its default, its help text, and its flag where the flag has another name."""
    return field(default=default, metadata={"help": about, "flag": flag})


@dataclass(frozen=True)
class Network:
    """Network of all cells, by default two layers of BERT-base's size. The help text of each field documents it."""

    hidden: int = option(768, "Width d of the network.")
    heads: int = option(12, "Number of heads, a divisor of the width.")
    feed_forward: int = option(3072, "Width f of the feed-forward blocks.")
    layers: int = option(2, "Number of layers.")
    causal: bool = option(False, "Causal attention: a position sees itself and those before it.", "--causal")
    slots: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "Another part of the network, such as residual=pre; may be repeated.", "flag": "--slot"},
    )

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "feed_forward", "layers"):
            if (size := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        for name, value in self.slots.items():
            kind = SLOTS.get(name)
            if kind is None:
                raise ValueError(f"slot must be one of {', '.join(SLOTS)}; got {name!r}")
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if not fits or (isinstance(value, bool) and kind is not bool):
                named = {str: "a name", bool: "true or false", int: "an integer", float: "a number", dict: "options"}
                raise ValueError(f"slot {name} must be {named[kind]}, got {value!r}")


@dataclass(frozen=True)
class How:
    """The way in which cells are measured. Where a field has a help text, that documents it.

    Attributes:
        memory: Bytes of memory that the largest batch has to fit into; None: the largest batch is not looked for.
        country: Country of the electricity, a 3-letter ISO code; None: energy is not measured.

    Raises:
        ValueError: Raised where a value is out of range.
    """

    modes: tuple[str, ...] = option(MODES, "Modes to measure: inference, training, or both with a comma between.")
    tokens: int = option(4096, "Tokens in a batch: the number of sequences is this over the length, at least 1.")
    memory: float | None = None
    repeats: int = option(7, "Timed runs of each variant, length and rank.")
    country: str | None = None
    device: str = option("cpu", "Device to measure on: cpu, cuda or cuda:1.")
    precision: str = option("fp32", "Precision of weights and inputs: fp32, bf16 or fp16.")
    compiled: bool = option(False, "Compile the networks by torch.compile before they are timed.", "--compile")
    seed: int = option(0, "Seed of weights and inputs.")

    def __post_init__(self) -> None:
        # Inside, as they take seconds: the command line reads this file for its help.
        from greenformers.measure.carbon import grid_intensity
        from greenformers.measure.device import device_of

        if unknown := [mode for mode in self.modes or ("",) if mode not in MODES]:
            raise ValueError(f"mode must be of {', '.join(MODES)}; got {unknown[0]!r}")
        if self.tokens < 1 or self.repeats < 1:
            raise ValueError(f"tokens and repeats must be at least 1, got {self.tokens} and {self.repeats}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in 0..{2**32 - 1}, got {self.seed}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}")
        device_of(self.device)
        if self.country is not None:
            grid_intensity(self.country)
        if self.memory is not None and not self.memory > 0:
            raise ValueError(f"memory must be positive, got {self.memory / 2**30:g} GiB")
