"""Names of variants: what stands in the slots, joined by "+". "lrt" is rank; any mechanism's name is attention."""

from typing import Any

from greenformers.attention import names


def slots(variant: str, *, rank: int, options: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """The slots of a `GreenformerConfig` that a variant's name stands for.

    Args:
        variant: "transformer", "lrt", a mechanism of `greenformers.names()`, or "lrt+" and a mechanism.
        rank: LED rank of "lrt".
        options: mechanism to its options, {"linformer": {"k": 128}}.

    Raises:
        ValueError: no such variant.
    """
    parts = variant.split("+")
    attention = [part for part in parts if part in names()]
    known = len(parts) == len(set(parts)) and set(parts) <= {"transformer", "lrt", *attention}
    if not known or len(attention) > 1 or ("transformer" in parts and len(parts) > 1):
        allowed = ", ".join(["transformer", "lrt", *names()])
        raise ValueError(f"variant must be one of {allowed}, or lrt+ and an attention; got {variant!r}")
    name = attention[0] if attention else "full"
    return {
        "rank": rank if "lrt" in parts else None,
        "attention": name,
        "attention_options": (options or {}).get(name),
    }
