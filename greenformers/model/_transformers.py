"""The wall to transformers: everything undocumented that this package calls of it stands here, and only here.

Each function says what it does, which name of transformers it stands on, and what would take its place if that name
went; `tests/packaging/test_walls.py` checks every name, so that an upgrade which drops one shows what it breaks. Names
that our subclasses define because a class of transformers calls them stay there; the same test lists them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D
from transformers.trainer_pt_utils import get_parameter_names

Model = TypeVar("Model", bound=PreTrainedModel)

TransposedLinear = Conv1D
"""The linear layer of GPT-2, whose weight is (in, out); it stands on `transformers.pytorch_utils.Conv1D`."""

sees_past = causal_mask_function
"""The mask function of transformers for "no later key"; `masking_utils.causal_mask_function`."""

sees_all = bidirectional_mask_function
"""The mask function of transformers for "every key"; `masking_utils.bidirectional_mask_function`."""

HEAD_SIZES = (
    "num_heads", "num_attention_heads", "n_heads", "n_head", "num_key_value_heads",
    "all_head_size", "inner_dim", "split_size",
)  # fmt: skip
"""Attributes by which attention modules of transformers know the number of their heads, or the width of all.

Where one is missing here, a network without some of its heads does not compute what it did with these at 0, which
`greenformers.solve.coupled.check_removed` sees, and refuses.
"""


# Attention that is chosen by name.


def can_choose_attention(model: PreTrainedModel) -> bool:
    """Whether a model has its attention chosen by name, through the attention interface.

    It stands on `PreTrainedModel._can_set_attn_implementation`. Setting a name, calling the model once and seeing
    whether the function of that name was called would take its place.
    """
    return model._can_set_attn_implementation()


def attention_of(config: PreTrainedConfig) -> str:
    """The name of the attention that a configuration has chosen.

    It stands on `PreTrainedConfig._attn_implementation`. There is no other way to read it; the code that sets it could
    remember it.
    """
    name: Any = config._attn_implementation
    return name


def put_attention_back(config: PreTrainedConfig, name: str) -> None:
    """Choose the attention of a configuration as `attention_of` said it was, without the checks of a first choice.

    It stands on `PreTrainedConfig._attn_implementation_internal`: the public `set_attn_implementation` of
    models checks the name again, and sets the configurations of all parts.
    """
    config._attn_implementation_internal = name


def plain_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention by torch's `scaled_dot_product_attention`, as the interface calls it: (B, H, N, D) to (B, N, H, D).

    It stands on `transformers.integrations.sdpa_attention.sdpa_attention_forward`, which is also what
    `AttentionInterface` holds as "sdpa".
    """
    return sdpa_attention_forward(module, q, k, v, mask, **options)


def for_every_head(x: Tensor, groups: int) -> Tensor:
    """Keys or values (B, H', M, D) once for each of the `groups` query heads that share them: (B, H' groups, M, D).

    It stands on `transformers.integrations.sdpa_attention.repeat_kv`; `repeat_interleave` gives the same.
    """
    return repeat_kv(x, groups)


def whole_mask(*arguments: Any, **options: Any) -> Tensor | None:
    """A model's mask (B, 1, N, M) in full, True where a query sees a key, with the arguments of the mask interface.

    It stands on `transformers.masking_utils.sdpa_mask`, which otherwise leaves out a mask that a flag can stand for.
    """
    return sdpa_mask(*arguments, **options | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def kept_keys(attention_mask: Tensor | None, length: int, offset: int) -> Tensor | None:
    """Mask of the keys (B, length) from `offset` on: kept ones, without places of a cache that are still empty.

    It stands on `transformers.masking_utils.prepare_padding_mask`; `torch.nn.functional.pad` gives the same.
    """
    mask = prepare_padding_mask(attention_mask, length, offset)
    return None if mask is None else mask[:, offset : offset + length]


# Weights with several names.


def tied_weights(model: PreTrainedModel) -> dict[str, str]:
    """The tied weights of a model, or of one of the models within it: from each name to the name that is saved.

    It stands on `PreTrainedModel._tied_weights_keys`. The names under which one tensor is found would take its place.
    """
    ties: Any = model._tied_weights_keys
    return dict(ties or {})


def set_tied_weights(model: PreTrainedModel, ties: Mapping[str, str]) -> None:
    """Set the tied weights of one model, not of its class; call `refresh_ties` of the whole model afterwards.

    It stands on `PreTrainedModel._tied_weights_keys`, which `save_pretrained` and `from_pretrained` go by. A method
    `get_expanded_tied_weights_keys` of its own, as our models have, would take its place.
    """
    model._tied_weights_keys = dict(ties)


def all_ties(model: PreTrainedModel) -> dict[str, str]:
    """The tied weights of a model and all models within it, with patterns expanded.

    It stands on `PreTrainedModel.get_expanded_tied_weights_keys`, public by spelling and not documented.
    """
    return model.get_expanded_tied_weights_keys(all_submodels=True)


def is_left_over(model: PreTrainedModel, key: str) -> bool:
    """Whether a tensor of a checkpoint is one that a version before saved and none reads: masks, numbers of positions.

    It stands on `PreTrainedModel._keys_to_ignore_on_load_unexpected`; without it such checkpoints would be refused.
    """
    if key in model.state_dict():
        return False
    patterns = model._keys_to_ignore_on_load_unexpected or []
    return key in dict(model.named_buffers()) or any(re.search(pattern, key) for pattern in patterns)


def refresh_ties(model: PreTrainedModel) -> None:
    """Make a model save, load and tie weights by the current `tied_weights` of it and of the models within it.

    It stands on `PreTrainedModel.all_tied_weights_keys`, which transformers fills once, as a model is made.
    """
    model.all_tied_weights_keys = all_ties(model)


# Experts.


class ExpertsForm(NamedTuple):
    """How a mixture of experts holds its weights: names of parameters, with E experts first.

    Attributes:
        experts: Number E of experts.
        up: Name of the first weight (E, m, n), with m = 2 I where there is a gate.
        down: Name of the second weight (E, n, I).
        up_bias: Name of the first bias (E, m).
        down_bias: Name of the second bias (E, n).
        transposed: Whether weights are (E, n, m) and (E, I, n).
    """

    experts: int
    up: str
    down: str
    up_bias: str
    down_bias: str
    transposed: bool


def experts_form(module: nn.Module) -> ExpertsForm | None:
    """The form in which a module holds the weights of its experts; None where it has none, or another form.

    It stands on what `transformers.integrations.moe.use_experts_implementation` leaves in the classes it decorates,
    whose experts can be computed in several ways: `has_gate`, `has_bias`, `is_transposed`, and a `forward` around
    another. A list of the classes would take its place.
    """
    decorated: Any = module
    if not hasattr(type(module).forward, "__wrapped__") or not hasattr(module, "is_transposed"):
        return None
    up, up_bias = ("gate_up_proj", "gate_up_proj_bias") if decorated.has_gate else ("up_proj", "up_proj_bias")
    form = ExpertsForm(decorated.num_experts, up, "down_proj", up_bias, "down_proj_bias", decorated.is_transposed)
    expected = {form.up: 3, form.down: 3} | ({form.up_bias: 2, form.down_bias: 2} if decorated.has_bias else {})
    held = dict(module.named_parameters(recurse=False))
    fits = {name: x.dim() for name, x in held.items()} == expected
    return form if fits and all(len(x) == form.experts and x.is_floating_point() for x in held.values()) else None


def gated(experts: nn.Module, rows: Tensor) -> Tensor:
    """The activation of the experts of a class, with its gate: from outputs (S, m) of their first weights to (S, I).

    It stands on `_apply_gate` of such classes, or `act_fn` where they have no gate.
    """
    untyped: Any = experts
    return untyped._apply_gate(rows) if untyped.has_gate else untyped.act_fn(rows)


def normed(experts: nn.Module, rows: Tensor) -> Tensor:
    """The outputs (S, n) of the second weights of experts, after the norm that some classes have.

    It stands on `has_post_expert_norm` of such classes.
    """
    untyped: Any = experts
    return untyped.post_expert_norm(rows) if untyped.has_post_expert_norm else rows


# Loading and spreading.


def model_from_config(model_class: type[Model], config: PreTrainedConfig) -> Model:
    """A model of a class with initial weights, from a configuration.

    It stands on `PreTrainedModel._from_config`, which chooses attention and number format as `from_pretrained` does.
    The class itself, called with the configuration, would take its place.
    """
    return model_class._from_config(config)


def was_loaded(parameter: Tensor) -> bool:
    """Whether a parameter was loaded from a checkpoint, and must not be initialised again.

    It stands on the mark `_is_hf_initialized` of tensors, which the `torch.nn.init` of transformers reads too; it
    holds for whole tensors only. Initialising before loading, not after it, would take its place.
    """
    return bool(getattr(parameter, "_is_hf_initialized", False))


def leave_as_made(module: nn.Module) -> None:
    """Keep `_init_weights` of transformers from a linear layer that has no weight to initialise.

    It stands on the mark `_is_hf_initialized` of modules. To be no nn.Linear would take its place, and PEFT would not
    know the layer.
    """
    module._is_hf_initialized = True  # type: ignore[assignment]


def allow_training(model: PreTrainedModel) -> None:
    """Remove the mark of a quantised model, which forbids `.half()`, moving and training.

    It stands on `PreTrainedModel.is_quantized` and `PreTrainedConfig._is_quantized`, which `from_pretrained` sets where
    a configuration has a `quantization_config`.
    """
    marks: Any = model
    marks.is_quantized = False
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_is_quantized"):
            config._is_quantized = False


def whole_layers(model: nn.Module) -> list[nn.Module]:
    """The modules of a model, or of models that it holds, that must stay on one device each: their layers.

    It stands on `PreTrainedModel._no_split_modules`. The members of its module lists would take its place.
    """
    models = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    names = {name for part in models for name in part._no_split_modules or ()}
    return [module for module in model.modules() if type(module).__name__ in names]


def mark_as_sharded(model: nn.Module) -> None:
    """Mark a model, or a module that holds models, as sharded over processes, so that the Trainer does not wrap it.

    It stands on `_is_distributed_loading_by_transformers` and `_is_fsdp_managed_module` of models. Sharding by
    accelerate, on GPUs alone, would take its place.
    """
    marks: Any = model
    if isinstance(model, PreTrainedModel):
        marks._is_distributed_loading_by_transformers = True
    else:  # of a model it is a property, which reads the other
        marks.is_distributed_loading_by_transformers = True
    marks._is_fsdp_managed_module = True


def parameters_outside(model: nn.Module, layers: Sequence[type[nn.Module]], patterns: Sequence[str]) -> list[str]:
    """Names of parameters that are in no layer of these types and match none of these patterns.

    It stands on `transformers.trainer_pt_utils.get_parameter_names`, by which the Trainer finds the parameters of
    weight decay. A walk over `named_modules` would take its place.
    """
    return get_parameter_names(model, list(layers), list(patterns))


# Names by which the Trainer knows kinds of models.


def shift_labels_of(model_type: str, model_class: type[PreTrainedModel]) -> None:
    """Make the label smoothing of the Trainer compare each score of a causal model with the next token.

    It stands on `transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES`, which `AutoModel.register`
    leaves as it is. Smoothing in the model itself would take its place.
    """
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] = model_class.__name__
