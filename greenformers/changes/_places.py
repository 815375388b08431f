"""Put another attention in place of a pretrained model's own; its projections and all other modules stay."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from greenformers.attention import Attention, Shape
from greenformers.changes._attention_interface import Swapped, built, foreign, put, stack_of, use
from greenformers.measure.quality import evaluating
from greenformers.model._transformers import (
    attention_of,
    can_choose_attention,
    plain_attention,
    put_attention_back,
    whole_mask,
)
from greenformers.model.positions import check_extendable, extend, reach

PROBE = "greenformers_probe"


@dataclass(frozen=True)
class Place:
    """A module of a model that calls the attention interface.

    Attributes:
        path: Path of the module.
        stack: The path without its number: "decoder.layers.*.self_attn".
        layer: Position in its stack, from 0.
        heads, head_dim: Number of heads of queries, and their width.
        causal: True where a query sees no later key.
        cross: True where queries and keys are of different sequences.
        refused: Reason why no mechanism can stand there, else None.
    """

    path: str
    stack: str
    layer: int
    heads: int
    head_dim: int
    causal: bool
    cross: bool
    refused: str | None


def swap_attention(
    model: PreTrainedModel,
    attention: str,
    *,
    layers: Sequence[int] | None = None,
    select: str | Sequence[str] | None = None,
    length: int | None = None,
    options: Mapping[str, Any] | None = None,
    example: Mapping[str, Tensor] | None = None,
) -> dict[str, Swapped]:
    """Put a mechanism in place of a pretrained model's attention. Nothing is changed if this raises.

    Queries, keys and values come from the model's own projections, and positions are its own. Parameters of the
    mechanism are in the model and in its checkpoint.

    Args:
        model: A model of `transformers` whose attention can be chosen by name.
        attention: Name of a mechanism.
        layers: Numbers of the layers, from 0, in each stack of an encoder-decoder. All by default.
        select: Patterns of paths of attention modules, such as "encoder.*"; by default all self-attention.
        length: Longest input in tokens; where the model's own positions are fewer, they are continued.
        options: Options of the mechanism's class.
        example: Keyword arguments for one call of the model, of about 8 tokens; by default token ids.

    Returns:
        The mechanism in each place, as data, by path.

    Raises:
        ValueError: The model does not call the interface, or asks more of it than a mechanism can do; there is no such
            mechanism, layer or path; or an option is out of range.
        TypeError: The mechanism does not have such an option.
    """
    swaps, mechanisms = planned(
        model, attention, layers=layers, select=select, length=length, options=options, example=example
    )
    if length is not None and length > (reach(model) or length):
        extend(model, length)
    put(model, swaps, mechanisms)
    use(model)
    return swaps


def planned(
    model: PreTrainedModel,
    attention: str,
    *,
    layers: Sequence[int] | None = None,
    select: str | Sequence[str] | None = None,
    length: int | None = None,
    options: Mapping[str, Any] | None = None,
    example: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Swapped], dict[str, Attention]]:
    """The mechanisms that `swap_attention` would put in each place; nothing is changed.

    Raises:
        ValueError, TypeError: Raised as by `swap_attention`.
    """
    chosen = _chosen(places(model, example), layers, select)
    for place in chosen:
        if place.refused is not None:
            raise ValueError(f"{place.path}: {place.refused}")
    before = reach(model)
    length = before if length is None else length
    if length is None:
        raise ValueError("the configuration of the model names no longest input: give a length")
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    swaps: dict[str, Swapped] = {}
    for place in chosen:
        members = [member for member in chosen if member.stack == place.stack]
        shape = Shape(
            place.heads, place.head_dim, length, causal=place.causal, cross=place.cross,
            layer=members.index(place), layers=len(members),
        )  # fmt: skip
        swaps[place.path] = Swapped(attention, dict(options or {}), asdict(shape))
    if before is not None and length > before:
        check_extendable(model)
    return swaps, {path: mechanism.to(model.device, model.dtype) for path, mechanism in built(swaps).items()}


def places(model: PreTrainedModel, example: Mapping[str, Tensor] | None = None) -> list[Place]:
    """The modules of a model that call the attention interface, in the order of their calls.

    Raises:
        ValueError: There are none.
    """
    calls = _calls(model, example)
    paths = {id(module): path for path, module in model.named_modules()}
    by_path: dict[str, Place] = {}
    count: dict[str, int] = {}
    for module, q, k, mask, further in calls:
        path = paths[id(module)]
        if path in by_path:  # shared by several layers
            continue
        stack = stack_of(path)
        cross = q.shape[2] != k.shape[2]
        causal, refused = _pattern(module, q, k, mask, cross, further)
        by_path[path] = Place(
            path, stack, count.get(stack, 0), q.shape[1], q.shape[3], causal, cross,
            refused or _heads_of(q, k),
        )  # fmt: skip
        count[stack] = count.get(stack, 0) + 1
    return list(by_path.values())


Call = tuple[nn.Module, Tensor, Tensor, Tensor | None, dict[str, Any]]


def _calls(model: PreTrainedModel, example: Mapping[str, Tensor] | None) -> list[Call]:
    kind = type(model).__name__
    if not can_choose_attention(model):
        raise ValueError(
            f"{kind} has an attention of its own and does not call the attention interface of transformers: "
            "no mechanism can take its place"
        )
    if example is None:
        example = _tokens(model)
    seen: list[Call] = []

    def probe(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **further: Any) -> Any:
        seen.append((module, q, k, mask, {**further, "values": v}))
        return plain_attention(module, q, k, v, mask, **further)

    AttentionInterface.register(PROBE, probe)
    AttentionMaskInterface.register(PROBE, whole_mask)
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    before = {key: attention_of(config) for key, config in configs.items()}
    try:
        model.set_attn_implementation(PROBE)
        with evaluating(model), torch.no_grad():
            model(**example, use_cache=False) if _caches(model) else model(**example)
    except (TypeError, RuntimeError, AttributeError, NotImplementedError) as error:
        raise ValueError(f"{kind} cannot be run with an attention of ours: {' '.join(str(error).split())}") from error
    finally:
        for key, config in configs.items():
            put_attention_back(config, before[key])
    if not seen:
        raise ValueError(
            f"{kind} takes the name of an attention and never calls it: its attention is its own, and would stay"
        )
    return seen


def _tokens(model: PreTrainedModel) -> dict[str, Tensor]:
    if model.main_input_name != "input_ids":
        raise ValueError(f"{type(model).__name__} reads {model.main_input_name}: give an example of these")
    ids = torch.zeros(1, 8, dtype=torch.long, device=model.device)
    arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(model.config, "is_encoder_decoder", False):
        arguments["decoder_input_ids"] = ids[:, :5]  # of another length: cross-attention shows
    return arguments


def _caches(model: PreTrainedModel) -> bool:
    return hasattr(model.config, "use_cache")


def _pattern(
    module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, cross: bool, further: Mapping[str, Any]
) -> tuple[bool, str | None]:
    """Whether a call is causal, and why no mechanism can replace it, else None."""
    if (addition := foreign(further)) is not None:
        return False, f"its attention has {addition}, which no mechanism takes into account"
    if further["values"].shape[-1] != q.shape[-1]:
        return False, f"its values are {further['values'].shape[-1]} wide and its queries {q.shape[-1]}"
    if mask is None:
        flag = further.get("is_causal")
        return bool(getattr(module, "is_causal", False) if flag is None else flag) and not cross, None
    if mask.dtype != torch.bool:
        return False, "its mask is a bias, which no mechanism takes into account"
    past = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
    if bool(mask.all()):
        return False, None
    if not cross and bool((mask == past).all()):
        return True, None
    return False, "its mask is neither full nor causal: a pattern of the model's own"


def _heads_of(q: Tensor, k: Tensor) -> str | None:
    return (
        f"its {q.shape[1]} heads of queries do not share {k.shape[1]} heads of keys evenly"
        if q.shape[1] % k.shape[1]
        else None
    )


def _chosen(
    candidates: Sequence[Place], layers: Sequence[int] | None, select: str | Sequence[str] | None
) -> list[Place]:
    if select is None:
        chosen = [place for place in candidates if not place.cross]
    else:
        patterns = [select] if isinstance(select, str) else list(select)
        for pattern in patterns:
            if not any(fnmatchcase(place.path, pattern) for place in candidates):
                raise ValueError(
                    f"the selection {pattern!r} matches none of {', '.join(repr(p.path) for p in candidates)}"
                )
        chosen = [place for place in candidates if any(fnmatchcase(place.path, pattern) for pattern in patterns)]
    if layers is not None:
        last = max(place.layer for place in chosen)
        for layer in layers:
            if not 0 <= layer <= last:
                raise ValueError(f"layers must be in 0..{last}, got {layer}")
        chosen = [place for place in chosen if place.layer in layers]
    if not chosen:
        raise ValueError("no layer is chosen")
    return chosen
