"""Mechanisms of ours in pretrained models, through the attention interface of `transformers`.

A module of such a model that holds a mechanism, as its submodule `mechanism`, attends by it; the others as ever, by
`scaled_dot_product_attention`. The mask stays what it is to a mechanism: which keys are kept, (B, M), so that nothing
quadratic is made of it.
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
MADE, HELD = "_swapped", "_held"
FOREIGN = {"softcap": "a soft cap", "s_aux": "sinks", "position_bias": "a position bias", "sliding_window": "a window"}
"""What a model may add to its attention, by keyword, that no mechanism knows."""


class Keep(NamedTuple):
    """A mask: which keys are kept (B, M), None for all; and whether a query sees no later ones."""

    key_mask: Tensor | None
    causal: bool


class PassingLayer(StateLayer):
    """A layer of a cache that keeps a state, and hands through the keys and values that come."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The keys and values as given: the state, which follows from them, is what is kept."""
        return key_states, value_states


def register() -> None:
    """Make `transformers` know our attention by name."""
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
    """A model's mask: None where all see all, a `Keep`, or for any other pattern the mask (B, 1, N, M) itself."""
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
    """What the interface asks for: query (B, H, N, D), key and value (B, H', M, D), to (B, N, H, D).

    Raises:
        ValueError: a mechanism is asked for what it does not do.
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
    if (what := foreign(further)) is not None:
        raise ValueError(f"{type(mechanism).__name__} cannot attend with {what}, which the model asks for")
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
    """Of the keywords of a model's attention, what no mechanism takes into account."""
    return next((what for name, what in FOREIGN.items() if further.get(name) is not None), None)


def dense(mask: Keep, count: int, key: Tensor) -> Tensor | None:
    """The mask (B, 1, N, M), of which dimensions may be 1, for the last `count` of so many keys."""
    keys = key.shape[2]
    found = None if mask.key_mask is None else mask.key_mask[:, None, None, :]
    # Without a mask SDPA is told by a flag what is causal, for as many queries as keys, or one.
    if mask.causal and count > 1 and (found is not None or count != keys):
        past = torch.ones(count, keys, dtype=torch.bool, device=key.device).tril(keys - count)
        found = past[None, None] if found is None else found & past
    return found


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
    """What stands in the place of a module's attention: enough to build it again.

    Attributes:
        name: of the mechanism.
        options: of its class.
        shape: the numbers of its `Shape`.
    """

    name: str
    options: dict[str, Any]
    shape: dict[str, Any]


def stack_of(path: str) -> str:
    """The path of a module without its numbers: those of one stack have it in common."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def built(made: Mapping[str, Swapped]) -> dict[str, Attention]:
    """The mechanisms, by path; those of a stack share with its first what layers share.

    Raises:
        ValueError: one has no form for a place, or needs what a pretrained model does not give it.
        TypeError: an option that it does not take.
    """
    first: dict[str, Attention] = {}
    found = {}
    for path, what in made.items():
        mechanism = build(what.name, Shape(**what.shape), **what.options)
        if mechanism.has_loss or mechanism.compresses:
            needs = "has a loss of its own" if mechanism.has_loss else "needs a memory of segments"
            raise ValueError(f"{what.name} {needs}, for which a model of transformers has no place")
        if (leader := first.setdefault(stack_of(path), mechanism)) is not mechanism:
            mechanism.shared(leader)
        found[path] = mechanism
    return found


def put(model: nn.Module, made: Mapping[str, Swapped], mechanisms: Mapping[str, Attention]) -> None:
    """Give modules their mechanisms, in place of any that were there."""
    for path, mechanism in mechanisms.items():
        module = model.get_submodule(path)
        if not hasattr(module, MADE):
            module.register_forward_pre_hook(_hold, with_kwargs=True)
            module.register_forward_hook(_release, always_call=True)
        setattr(module, SLOT, mechanism.train(module.training))
        setattr(module, MADE, made[path])


def _hold(module: nn.Module, _: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Where a mechanism decodes by a state, find it in the cache before the module asks that for its keys."""
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
    """What stands in the place of a pretrained model's attention, by path."""
    for path, module in model.named_modules():
        if (made := getattr(module, MADE, None)) is not None:
            yield path, made, getattr(module, SLOT)


def shared(model: nn.Module) -> Iterable[tuple[str, str]]:
    """Parameters of mechanisms that are one with another's: (name, name of the one that is saved)."""
    first: dict[str, str] = {}
    for path, _, mechanism in swapped(model):
        leader = first.setdefault(stack_of(path), path)
        for name in mechanism.shared_parameters:
            yield f"{path}.{SLOT}.{name}", f"{leader}.{SLOT}.{name}"


def use(model: PreTrainedModel) -> None:
    """Have a model call the interface.

    Raises:
        ValueError: its class does not have its attention chosen by name.
    """
    register()
    if not can_choose_attention(model):
        raise ValueError(
            f"{type(model).__name__} has an attention of its own: it does not call the attention interface of "
            "transformers, so that nothing can take its place"
        )
    model.set_attn_implementation(NAME)
