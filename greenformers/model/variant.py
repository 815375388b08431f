"""Names of variants: what stands in the slots, joined by "+".

"lrt" is rank; any mechanism's name is attention; any block's name is what stands in place of attention layers.
"""

from typing import Any

from greenformers.attention import attention_class, names
from greenformers.model.config import choices


def slots(
    variant: str, *, rank: int, kept: int | None = None, options: dict[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The slots of a `GreenformerConfig` that a variant's name stands for.

    Args:
        variant: "transformer", "lrt", a mechanism of `greenformers.names()`, a block, or "lrt+" and one of these.
        rank: LED rank of "lrt".
        kept: how much of full attention is kept: the option of a mechanism that has one for it (`rank_option`), k of
            linformer say; None for its default.
        options: mechanism or block to its options, {"linformer": {"k": 128}}.

    Raises:
        ValueError: no such variant.
    """
    parts = variant.split("+")
    layers = choices("block")[1:]
    choice = [part for part in parts if part in names() or part in layers]
    known = len(parts) == len(set(parts)) and set(parts) <= {"transformer", "lrt", *choice}
    if not known or len(choice) > 1 or ("transformer" in parts and len(parts) > 1):
        allowed = ", ".join(["transformer", "lrt", *names(), *layers])
        raise ValueError(f"variant must be one of {allowed}, or lrt+ and an attention or block; got {variant!r}")
    name = choice[0] if choice else "full"
    slot = "block" if name in layers else "attention"
    own = (options or {}).get(name)
    if kept is not None and slot == "attention" and (option := attention_class(name).rank_option):
        own = {option: kept} | (own or {})
    return {
        "rank": rank if "lrt" in parts else None,
        slot: name,
        f"{slot}_options": own,
    }


def rank_option(variant: str) -> str | None:
    """The option of a variant's mechanism that says how much of full attention is kept; None where it has none.

    Raises:
        ValueError: no such variant.
    """
    name = slots(variant, rank=1).get("attention")
    return None if name is None else attention_class(name).rank_option
