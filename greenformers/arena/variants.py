"""Names of variants of a grid, and the slots of a network that they stand for.

transformer                         dense attention
linformer, star, lrt+linformer      an attention, a block, or low rank and one of these
sliding_window:window=5             with an option of the attention or block; several follow one another
transformer:position=rotary         with another position encoding
sliding_window/transformer          two attentions or more in turn, layer by layer
"""

from dataclasses import dataclass
from typing import Any

from greenformers import blocks
from greenformers._registry import options_of
from greenformers.attention import attention_class, names
from greenformers.model.slots import choices
from greenformers.model.variant import slots
from greenformers.train.setting import value_of

BASELINE = "transformer"
ALL = "all"
WINDOW = "sliding_window:window={}"
"""Name of a local window of so many neighbours on either side."""


def every() -> list[str]:
    """The baseline, and every attention and block that keeps the length."""
    return list(dict.fromkeys([BASELINE, *(name for name in names() if name != "full"), *choices("block")[1:]]))


@dataclass(frozen=True)
class Variant:
    """A variant, taken apart.

    Attributes:
        parts: Name and options of each attention or block, which layers take in turn.
        position: Position encoding; None for that of the task.
    """

    parts: tuple[tuple[str, dict[str, Any]], ...]
    position: str | None

    @classmethod
    def of(cls, text: str) -> "Variant":
        """The variant of a name.

        Raises:
            ValueError: An option has no value, or there is no such variant.
        """
        parts, position = [], None
        for part in text.split("/"):
            name, *options = part.split(":")
            given = {}
            for option in options:
                key, equals, value = option.partition("=")
                if not equals:
                    raise ValueError(f"an option of a variant must be NAME=VALUE, got {option!r} in {text!r}")
                given[key] = value_of(value)
            position = given.pop("position", position)
            parts.append((name, given))
        variant = cls(tuple(parts), position)
        variant.slots(layers=len(parts), rank=1, keeps=None)
        return variant

    @property
    def options(self) -> tuple[str, ...]:
        """Names of all options that are given."""
        return tuple(option for _, options in self.parts for option in options)

    def slots(self, *, layers: int, rank: int, keeps: int | None) -> dict[str, Any]:
        """Arguments of the configuration of a network.

        Args:
            layers: Number of layers.
            rank: LED rank of "lrt".
            keeps: What attentions keep of full attention, where no option says otherwise; None for their defaults.

        Raises:
            ValueError: There is no such variant, or a block is to take turns.
        """
        each = [_slots(name, options, rank, keeps) for name, options in self.parts]
        if len(each) == 1:
            chosen = each[0]
        else:
            if any("block" in one_of for one_of in each):
                called = "/".join(name for name, _ in self.parts)
                raise ValueError(f"only attentions can take turns, a block is all layers; got {called!r}")
            turns = [each[layer % len(each)] for layer in range(layers)]
            chosen = {slot: [turn[slot] for turn in turns] for slot in ("rank", "attention", "attention_options")}
        chosen["residual"] = "post" if "block" in chosen else "pre"
        return chosen if self.position is None else chosen | {"position": self.position}


def _slots(name: str, options: dict[str, Any], rank: int, keeps: int | None) -> dict[str, Any]:
    own = name.split("+")[-1]
    chosen = slots(name, rank=rank, attention_size=keeps, options={own: options} if options else None)
    if options and f"{'block' if 'block' in chosen else 'attention'}_options" in chosen:
        _check(own, options, chosen)
    return chosen


def _check(name: str, options: dict[str, Any], chosen: dict[str, Any]) -> None:
    """Raise ValueError for options of a variant that names neither an attention nor a block, which take them."""
    if chosen.get("block", chosen.get("attention")) != name:
        raise ValueError(f"{name} takes no option but position, got {', '.join(options)}; name an attention or a block")
    kind = blocks.block_class(name) if "block" in chosen else attention_class(name)
    takes = options_of(kind)
    if unknown := [option for option in options if option not in takes]:
        raise ValueError(f"options of {name} must be of {', '.join(takes) or 'none'}; got {', '.join(unknown)}")
