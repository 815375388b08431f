"""Names of variants: entries of slots, joined by "+".

"lrt" is the Low-Rank Transformer (Winata 2020): rank; the name of a mechanism is that of attention; the name of a
block replaces layers of attention.
"""

from typing import Any

from greenformers.attention import attention_class, names
from greenformers.model.config import choices


def slots(
    variant: str, *, rank: int, attention_size: int | None = None, options: dict[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The slots of a `GreenformerConfig` for the name of a variant.

    Args:
        variant: "transformer", "lrt", a mechanism of `greenformers.names()`, a block, or "lrt+" and one of these.
        rank: LED rank of "lrt".
        attention_size: Value of the option that sets how much of full attention is kept (`rank_option`), for instance k
            of linformer; None: its default.
        options: Options by name of mechanism or block, {"linformer": {"k": 128}}.

    Raises:
        ValueError: There is no such variant.
    """
    parts = variant.split("+")
    layers = choices("block")[1:]
    choice = [part for part in parts if part in names() or part in layers]
    valid = len(parts) == len(set(parts)) and set(parts) <= {"transformer", "lrt", *choice}
    if not valid or len(choice) > 1 or ("transformer" in parts and len(parts) > 1):
        allowed = ", ".join(["transformer", "lrt", *names(), *layers])
        raise ValueError(f"variant must be one of {allowed}, or lrt+ and an attention or block; got {variant!r}")
    name = choice[0] if choice else "full"
    slot = "block" if name in layers else "attention"
    chosen_options = (options or {}).get(name)
    if attention_size is not None and slot == "attention" and (option := attention_class(name).rank_option):
        chosen_options = {option: attention_size} | (chosen_options or {})
    return {
        "rank": rank if "lrt" in parts else None,
        slot: name,
        f"{slot}_options": chosen_options,
    }


def rank_option(variant: str) -> str | None:
    """Name of the option of the mechanism of a variant that sets how much of full attention is kept, or None.

    Raises:
        ValueError: There is no such variant.
    """
    name = slots(variant, rank=1).get("attention")
    return None if name is None else attention_class(name).rank_option
