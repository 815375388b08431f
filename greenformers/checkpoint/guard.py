"""What stops whoever does not know greenformers: a weight with one dimension more than the class expects.

To a process in which greenformers was not imported, a changed checkpoint lacks weights: it would warn, draw them at
random and go on. Of all that it may find in a checkpoint, a weight of another size is what makes `from_pretrained`
fail, whatever the class and whoever calls it. So one small weight of each model is written with a first dimension of 1,
which the plug-in expects and takes away.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.changes._paths import located

HOOKED = "_takes_guards"


def guards_of(model: PreTrainedModel, replaced: Iterable[str] = ()) -> list[str]:
    """Names of the weights that are written so: the first vector of a model, and of each model in it.

    Args:
        model: Of transformers.
        replaced: Paths of modules that changes have put there, which the class does not have.
    """
    changed, tied = tuple(f"{path}." for path in replaced), set(model.all_tied_weights_keys)
    found: dict[str, None] = {}
    for path, part in model.named_modules():
        if isinstance(part, PreTrainedModel):
            stem = f"{path}." if path else ""
            names = (stem + name for name, x in part.named_parameters() if x.dim() == 1 and name.endswith("weight"))
            if first := next((name for name in names if not name.startswith(changed) and name not in tied), None):
                found[first] = None
    return list(found)


def expect(model: nn.Module, guards: Iterable[str]) -> None:
    """Give the weights of a skeleton, on the meta device, the dimension that they have in the file."""
    for module, name in _holders(model, guards):
        weight = getattr(module, name)
        setattr(module, name, nn.Parameter(weight.data[None], weight.requires_grad))


def take_away(model: nn.Module, guards: Iterable[str]) -> None:
    """Take the dimension away from the weights that were read."""
    for module, name in _holders(model, guards):
        weight = getattr(module, name)
        weight.data = weight.data[0]


def guarded(state: dict[str, Tensor], guards: Iterable[str]) -> dict[str, Tensor]:
    """Weights as they are written."""
    return state | {name: state[name][None] for name in guards if name in state}


def accept_guards(model: nn.Module) -> None:
    """Have `load_state_dict` take weights as they are written, too: the Trainer reads checkpoints so."""
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
