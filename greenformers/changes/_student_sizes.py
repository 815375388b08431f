"""The sizes of a student of a network's own class: those that are asked for, and those that follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from greenformers.changes import _class_sizes as classes
from greenformers.changes._paths import check_keys
from greenformers.solve.coupled import Coupled
from greenformers.solve.feed_forward import feed_forwards
from greenformers.solve.heads import heads as attention_heads
from greenformers.solve.hidden_width import HiddenWidth

MULTIPLE = 8
"""Sizes that are not given are multiples of this number."""


@dataclass(frozen=True)
class Sizes:
    """Sizes before and now.

    Attributes:
        hidden: Hidden coordinates.
        heads: Attention heads of a layer.
        head_dim: Coordinates of a head.
        neurons: Neurons of a feed-forward layer.
        layers: Numbers of the layers that are left, by the path of their stack; None where all are.
    """

    hidden: tuple[int, int]
    heads: tuple[int, int]
    head_dim: tuple[int, int]
    neurons: tuple[int, int]
    layers: dict[str, list[int]] | None = None


def units_of(model: nn.Module, batch: Any) -> dict[str, list[Coupled]]:
    """The attention heads and neurons of a network, by kind; none of a kind that it has not."""
    units: dict[str, list[Coupled]] = {}
    for kind, find in (("heads", attention_heads), ("neurons", feed_forwards)):
        try:
            units[kind] = find(model, batch)
        except ValueError:  # there are none
            units[kind] = []
    return units


def _at_most(label: str, given: int | None, most: int, usual: int) -> int:
    if given is not None and given > most:
        raise ValueError(f"{label} of a student must be in 1..{most}, those that there are; got {given}")
    return usual if given is None else given


def _rounded(size: int, share: float) -> int:
    return min(size, max(1, round(size * share / MULTIPLE)) * MULTIPLE)


def sizes_of(
    model: Any, width: HiddenWidth, units: Mapping[str, list[Coupled]], left: dict[str, list[int]] | None, *,
    hidden: int | None, heads: int | None, neurons: int | None,
) -> Sizes:  # fmt: skip
    """The sizes of a network, and of the student that is asked for.

    Args:
        model: The network, without the layers that go.
        width: Its hidden width.
        units: Its attention heads and neurons, see `units_of`.
        left: Numbers of the layers that are left, by the path of their stack; None where all are.
        hidden: Hidden coordinates of the student; by default half of them.
        heads: Its attention heads; by default as many as leave their coordinates.
        neurons: Its neurons; by default as many for each hidden coordinate.

    Raises:
        ValueError: One is out of range, or layers differ in them.
    """
    name = type(model).__name__
    narrow = _at_most("hidden coordinates", hidden, width.size, _rounded(width.size, 0.5))
    counts = {kind: {layer.count for layer in layers} for kind, layers in units.items()}
    for kind, several in counts.items():
        if len(several) > 1:
            raise ValueError(f"the layers of {name} differ in their {kind}: its class builds no student of it")
    had = max(counts["neurons"], default=0)
    fewer = _at_most("neurons", neurons, had, _rounded(had, narrow / width.size) if had else 0)
    groups = max(counts["heads"], default=0)
    config_heads = next((h for n in classes.HEADS if (h := getattr(model.config, n, None)) is not None), groups)
    if not groups or config_heads % groups:
        if heads is not None:
            raise ValueError(f"{name} has no attention heads that could go: leave heads out")
        return Sizes((width.size, narrow), (config_heads,) * 2, (1, 1), (had, fewer), left)
    dim = units["heads"][0].columns.shape[1] * groups // config_heads
    now, narrow_dim = _heads(model, heads, narrow, config_heads, groups, dim)
    return Sizes((width.size, narrow), (config_heads, now), (dim, narrow_dim), (had, fewer), left)


def _heads(model: Any, count: int | None, hidden: int, had: int, groups: int, dim: int) -> tuple[int, int]:
    """The number of heads, and of the coordinates of each."""
    shared = had // groups
    if classes.own_head_dim(model.config):
        heads, now = _at_most("heads", count, had, had), dim
    else:
        fitting = [n for n in range(shared, had + 1, shared) if hidden % n == 0 and hidden // n <= dim]
        if not fitting:
            raise ValueError(
                f"hidden coordinates of a student must be divided by its heads, up to {dim} for each of {shared} to"
                f" {had}; got {hidden}"
            )
        heads = _at_most("heads", count, had, fitting[0])
        if heads not in fitting:
            raise ValueError(
                f"heads must be of {', '.join(map(str, fitting))} for {hidden} hidden coordinates; got {heads}"
            )
        now = hidden // heads
    if heads % shared:
        raise ValueError(f"heads must be a multiple of {shared}, which share keys and values; got {heads}")
    if now != dim and getattr(model.config, "rope_parameters", None) is not None:
        raise ValueError(
            f"the heads of {type(model).__name__} turn with their positions, so each keeps its {dim} coordinates: "
            f"{hidden} hidden coordinates need {hidden / dim:g} heads"
        )
    return heads, now


def checked(description: Any) -> dict[str, Any]:
    """The sizes of a description from an untrusted file.

    Raises:
        ValueError: The description is not of this form.
    """
    check_keys("the sizes of a student", description, ("hidden", "heads", "head_dim", "neurons", "layers"))
    layers = description["layers"]
    whole = layers is None or (
        isinstance(layers, dict)
        and all(
            isinstance(places, list) and places and all(type(place) is int and place >= 0 for place in places)
            for places in layers.values()
        )
    )
    if not whole:
        raise ValueError(f"the layers of a student must be lists of whole numbers by path, or none; got {layers!r}")
    sizes = {name: given for name, given in description.items() if name != "layers"}
    for name, given in sizes.items():
        pair = list(given) if isinstance(given, list | tuple) else []
        if len(pair) != 2 or not all(type(size) is int and size >= 0 for size in pair):
            raise ValueError(f"the {name} of a student must be two whole numbers; got {given!r}")
    return {name: tuple(given) for name, given in sizes.items()} | {"layers": layers}
