"""Mechanisms of ours in pretrained models, through the attention interface of `transformers`.

A module of such a model that holds a mechanism, as its submodule `mechanism`, attends by it; the others attend by
`scaled_dot_product_attention`, as before. A mechanism gets its mask as the keys that are kept, (B, M), so that no
quadratic mask is built.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import EncoderDecoderCache

from greenformers.attention import Attention, Shape, build
from greenformers.model._transformers import (
    can_choose_attention,
    for_every_head,
    kept_keys,
    plain_attention,
    sees_all,
    sees_past,
    whole_mask,
)
from greenformers.model.cache import StateLayer

NAME = "greenformers"
SLOT = "mechanism"
SWAP, HELD = "_swapped", "_held"
FOREIGN = {"softcap": "a soft cap", "s_aux": "sinks", "position_bias": "a position bias", "sliding_window": "a window"}
"""Additions to attention that no mechanism has, by the keyword that a model passes for them."""


class Keep(NamedTuple):
    """A mask: the keys that are kept (B, M), None for all; and whether queries see no later keys."""

    key_mask: Tensor | None
    causal: bool


class PassingLayer(StateLayer):
    """A layer of a cache that keeps a state, and passes keys and values through."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The keys and values as given: only the state, which is computed from them, is kept."""
        return key_states, value_states


def register() -> None:
    """Register our attention and its mask with `transformers` by name."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, keep)


def keep(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = sees_past,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Keep | Tensor | None:
    """The mask of a model: None where every query sees every key, a `Keep`, or for other patterns (B, 1, N, M)."""
    causal = mask_function is sees_past
    aligned = not isinstance(q_offset, Tensor) and q_offset + q_length == kv_offset + kv_length
    if (not causal and mask_function is not sees_all) or (causal and not aligned):
        return whole_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **options
        )
    key_mask = kept_keys(attention_mask, kv_length, kv_offset)
    # A graph cannot ask what a mask holds; otherwise a mechanism that gets none is faster.
    if key_mask is not None and not torch.compiler.is_compiling() and bool(key_mask.all()):
        key_mask = None
    return Keep(key_mask, causal) if causal or key_mask is not None else None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Keep | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """The attention of a module by its mechanism: query (B, H, N, D), key and value (B, H', M, D), to (B, N, H, D).

    Raises:
        ValueError: The model asks for something that the mechanism cannot do.
    """
    mechanism = getattr(module, SLOT, None)
    if mechanism is None:
        mask = attention_mask
        if isinstance(mask, Keep):
            is_causal = mask.causal
            mask = dense(mask, query.shape[2], key)
        return plain_attention(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **further
        )
    key_mask = _key_mask(module, mechanism, attention_mask, is_causal)
    if (addition := foreign(further)) is not None:
        raise ValueError(f"{type(mechanism).__name__} cannot attend with {addition}, which the model asks for")
    groups = query.shape[1] // key.shape[1]
    key, value = for_every_head(key, groups), for_every_head(value, groups)
    if scaling is not None and scaling != query.shape[-1] ** -0.5:
        query = query * (scaling * query.shape[-1] ** 0.5)
    held = getattr(module, HELD, None)
    if held is None:
        out = mechanism(query, key, value, key_mask)
    else:
        mask = None if key_mask is None else key_mask[:, -key.shape[2] :]
        out = held.attend(mechanism, query, key, value, mask)
    return out.transpose(1, 2).contiguous(), None


def foreign(further: Mapping[str, Any]) -> str | None:
    """The addition among the keywords of a model's attention that no mechanism has; None without one."""
    return next((label for name, label in FOREIGN.items() if further.get(name) is not None), None)


def dense(mask: Keep, count: int, key: Tensor) -> Tensor | None:
    """The mask (B, 1, N, M), of which dimensions may be 1, for queries at the last `count` positions of the keys."""
    keys = key.shape[2]
    visible = None if mask.key_mask is None else mask.key_mask[:, None, None, :]
    # Without a mask SDPA is told by a flag what is causal, for as many queries as keys, or one.
    if mask.causal and count > 1 and (visible is not None or count != keys):
        past = torch.ones(count, keys, dtype=torch.bool, device=key.device).tril(keys - count)
        visible = past[None, None] if visible is None else visible & past
    return visible


def _key_mask(
    module: nn.Module, mechanism: Attention, mask: Keep | Tensor | None, is_causal: bool | None
) -> Tensor | None:
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    key_mask = None
    if isinstance(mask, Keep):
        key_mask, causal = mask
    elif mask is not None:
        if mask.shape[-2] != 1 or mask.shape[1] != 1 or mask.dtype != torch.bool:
            raise ValueError(
                f"{type(mechanism).__name__} takes no mask {tuple(mask.shape)} of {mask.dtype}: a window, packed "
                "texts, a bias or a static cache of the model; only which keys are kept, (B, 1, 1, M)"
            )
        key_mask, causal = mask[:, 0, 0], False
    if causal != mechanism.shape.causal and not mechanism.shape.cross:
        kinds = {True: "causal", False: "bidirectional"}
        raise ValueError(
            f"{type(mechanism).__name__} was made {kinds[mechanism.shape.causal]} and is used {kinds[bool(causal)]}"
        )
    return key_mask


@dataclass(frozen=True)
class Swapped:
    """A mechanism in place of a module's attention, as data from which it can be built again.

    Attributes:
        name: Name of the mechanism.
        options: Options of its class.
        shape: Fields of its `Shape`.
    """

    name: str
    options: dict[str, Any]
    shape: dict[str, Any]


def stack_of(path: str) -> str:
    """The path of a module with "*" for numbers, which the modules of one stack have in common."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def built(swaps: Mapping[str, Swapped]) -> dict[str, Attention]:
    """The mechanisms by path; those of a stack share the parameters that layers share with the first of it.

    Raises:
        ValueError: A mechanism has no form for a place, or needs what a pretrained model does not give it.
        TypeError: A mechanism does not have such an option.
    """
    first: dict[str, Attention] = {}
    mechanisms = {}
    for path, swap in swaps.items():
        mechanism = build(swap.name, Shape(**swap.shape), **swap.options)
        if mechanism.has_loss or mechanism.compresses:
            needs = "has a loss of its own" if mechanism.has_loss else "needs a segment memory"
            raise ValueError(f"{swap.name} {needs}, for which a model of transformers has no place")
        if (leader := first.setdefault(stack_of(path), mechanism)) is not mechanism:
            mechanism.shared(leader)
        mechanisms[path] = mechanism
    return mechanisms


def put(model: nn.Module, swaps: Mapping[str, Swapped], mechanisms: Mapping[str, Attention]) -> None:
    """Put mechanisms into modules, in place of any that were there."""
    for path, mechanism in mechanisms.items():
        module = model.get_submodule(path)
        if not hasattr(module, SWAP):
            module.register_forward_pre_hook(_hold, with_kwargs=True)
            module.register_forward_hook(_release, always_call=True)
        setattr(module, SLOT, mechanism.train(module.training))
        setattr(module, SWAP, swaps[path])


def _hold(module: nn.Module, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Find the state by which a mechanism decodes in the cache, before the module asks the cache for its keys."""
    cache = kwargs.get("past_key_values")
    mechanism: Any = getattr(module, SLOT)
    if cache is None or mechanism.shape.cross or not mechanism.can_step:
        return
    cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    layer: Any = module.layer_idx
    setattr(module, HELD, PassingLayer.of(cache, layer))


def _release(module: nn.Module, *_: Any) -> None:
    vars(module).pop(HELD, None)


def swapped(model: nn.Module) -> Iterator[tuple[str, Swapped, Attention]]:
    """The mechanisms in place of a pretrained model's attention, by path, each with the data that describe it."""
    for path, module in model.named_modules():
        if (swap := getattr(module, SWAP, None)) is not None:
            yield path, swap, getattr(module, SLOT)


def shared(model: nn.Module) -> Iterable[tuple[str, str]]:
    """Parameters that a mechanism shares with the first of its stack: (name, name under which it is saved)."""
    first: dict[str, str] = {}
    for path, _, mechanism in swapped(model):
        leader = first.setdefault(stack_of(path), path)
        for name in mechanism.shared_parameters:
            yield f"{path}.{SLOT}.{name}", f"{leader}.{SLOT}.{name}"


def use(model: PreTrainedModel) -> None:
    """Have a model call the attention interface.

    Raises:
        ValueError: The attention of its class cannot be chosen by name.
    """
    register()
    if not can_choose_attention(model):
        raise ValueError(
            f"{type(model).__name__} has an attention of its own: it does not call the attention interface of "
            "transformers, so that no mechanism can take its place"
        )
    model.set_attn_implementation(NAME)
