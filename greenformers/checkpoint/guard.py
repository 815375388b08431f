"""Guards: weights with an additional dimension, by which loading without greenformers fails.

For a process in which greenformers was not imported, a changed checkpoint lacks weights: it would warn, draw them at
random and continue. What makes `from_pretrained` fail for every class and caller is a weight of another shape. So one
small weight of each model is written with a first dimension of 1, which the plug-in expects and removes.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.changes._paths import located

HOOKED = "_takes_guards"


def guards_of(model: PreTrainedModel, replaced: Iterable[str] = ()) -> list[str]:
    """Names of the guards: the first weight vector of a model, and of each model in it.

    Args:
        model: A model of transformers.
        replaced: Paths of modules that changes have put in place, which the class does not have.
    """
    changed = tuple(f"{path}." for path in replaced)
    # transformers cuts the bias beside a weight that it ties, also that of the layer it takes it from, to its first
    # dimension.
    tied = {*model.all_tied_weights_keys, *model.all_tied_weights_keys.values()}
    guards: dict[str, None] = {}
    for path, part in model.named_modules():
        if isinstance(part, PreTrainedModel):
            stem = f"{path}." if path else ""
            names = (stem + name for name, x in part.named_parameters() if x.dim() == 1 and name.endswith("weight"))
            if first := next((name for name in names if not name.startswith(changed) and name not in tied), None):
                guards[first] = None
    return list(guards)


def expect(model: nn.Module, guards: Iterable[str]) -> None:
    """Add the dimension that guards have in the file to those of an empty network on the meta device."""
    for module, name in _holders(model, guards):
        weight = getattr(module, name)
        setattr(module, name, nn.Parameter(weight.data[None], weight.requires_grad))


def take_away(model: nn.Module, guards: Iterable[str]) -> None:
    """Remove the additional dimension from guards that were read."""
    for module, name in _holders(model, guards):
        weight = getattr(module, name)
        weight.data = weight.data[0]


def guarded(state: dict[str, Tensor], guards: Iterable[str]) -> dict[str, Tensor]:
    """The weights as they are written, guards with their additional dimension."""
    return state | {name: state[name][None] for name in guards if name in state}


def accept_guards(model: nn.Module) -> None:
    """Have `load_state_dict` accept guards as they are written, too: the Trainer reads checkpoints with it."""
    if not hasattr(model, HOOKED):
        model.register_load_state_dict_pre_hook(_unguard)
        setattr(model, HOOKED, True)


def _unguard(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, own in model.named_parameters():
        given = state.get(prefix + name)
        if isinstance(given, Tensor) and own.dim() == 1 and given.shape == (1, *own.shape):
            state[prefix + name] = given[0]


def _holders(model: nn.Module, guards: Iterable[str]) -> Iterator[tuple[Any, str]]:
    paths = {guard: guard.rpartition(".") for guard in guards}
    at = located(model, [path for path, _, _ in paths.values()])
    for path, _, name in paths.values():
        module = model.get_submodule(at[path]) if path in at else None
        if isinstance(getattr(module, name, None), torch.Tensor):
            yield module, name
