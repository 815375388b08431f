"""Names of variants: entries of slots, joined by "+".

"lrt" is the Low-Rank Transformer (Winata 2020): rank; the name of a mechanism is that of attention; the name of a
block replaces layers of attention. "narrow" and "narrow_flops" are the controls of lrt: the dense network of smaller
width with as many parameters, or as many FLOPs, see `greenformers.measure.narrower`.
"""

from typing import Any, Literal

from greenformers.attention import attention_class, names
from greenformers.model.slots import choices

Controlled = Literal["parameters", "flops"]
NARROW: dict[str, Controlled] = {"narrow": "parameters", "narrow_flops": "flops"}
"""What the controls of lrt have as much of as lrt, by name."""


def slots(
    variant: str,
    *,
    rank: int,
    attention_size: int | None = None,
    options: dict[str, dict[str, Any]] | None = None,
    narrow: bool = False,
) -> dict[str, Any]:
    """The slots of a `GreenformerConfig` for the name of a variant.

    Args:
        variant: "transformer", "lrt", a mechanism of `greenformers.names()`, a block, or "lrt+" and one of these.
        rank: LED rank of "lrt".
        attention_size: Value of the option that sets how much of full attention is kept (`rank_option`), for instance k
            of linformer; None: its default.
        options: Options by name of mechanism or block, {"linformer": {"k": 128}}.
        narrow: Whether a name of `NARROW` may stand in place of lrt: its slots are those of lrt, and the caller makes a
            narrower network of them, as `control` says.

    Raises:
        ValueError: There is no such variant.
    """
    parts = variant.split("+")
    if narrow and control(variant) is not None:
        parts[0] = "lrt"
    layers = choices("block")[1:]
    choice = [part for part in parts if part in names() or part in layers]
    valid = len(parts) == len(set(parts)) and set(parts) <= {"transformer", "lrt", *choice}
    if not valid or len(choice) > 1 or ("transformer" in parts and len(parts) > 1):
        controls = list(NARROW) if narrow else []
        allowed = ", ".join(["transformer", "lrt", *controls, *names(), *layers])
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


def control(variant: str) -> Controlled | None:
    """What a control of lrt has as much of as lrt, or None for other variants."""
    return NARROW.get(variant.split("+")[0])


def rank_option(variant: str) -> str | None:
    """Name of the option of the mechanism of a variant that sets how much of full attention is kept, or None.

    Raises:
        ValueError: There is no such variant.
    """
    name = slots(variant, rank=1, narrow=True).get("attention")
    return None if name is None else attention_class(name).rank_option
