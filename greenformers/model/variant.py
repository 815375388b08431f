"""Names of variants: what stands in the slots, joined by "+".

"lrt" is rank; any mechanism's name is attention; any block's name is what stands in place of attention layers.
"""

from typing import Any

from greenformers.attention import names
from greenformers.model.config import SLOTS

BLOCKS = SLOTS["block"][1:]


def slots(variant: str, *, rank: int, options: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """The slots of a `GreenformerConfig` that a variant's name stands for.

    Args:
        variant: "transformer", "lrt", a mechanism of `greenformers.names()`, a block, or "lrt+" and one of these.
        rank: LED rank of "lrt".
        options: mechanism or block to its options, {"linformer": {"k": 128}}.

    Raises:
        ValueError: no such variant.
    """
    parts = variant.split("+")
    choice = [part for part in parts if part in names() or part in BLOCKS]
    known = len(parts) == len(set(parts)) and set(parts) <= {"transformer", "lrt", *choice}
    if not known or len(choice) > 1 or ("transformer" in parts and len(parts) > 1):
        allowed = ", ".join(["transformer", "lrt", *names(), *BLOCKS])
        raise ValueError(f"variant must be one of {allowed}, or lrt+ and an attention or block; got {variant!r}")
    name = choice[0] if choice else "full"
    slot = "block" if name in BLOCKS else "attention"
    return {
        "rank": rank if "lrt" in parts else None,
        slot: name,
        f"{slot}_options": (options or {}).get(name),
    }
