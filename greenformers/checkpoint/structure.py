"""Where a network differs from the one its class builds: collected from every change, and written into the network."""

import copy
from collections.abc import Mapping, Sequence

from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers import AutoHfQuantizer

from greenformers.changes import Change, kind, kinds
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.guard import accept_guards, guards_of
from greenformers.model._transformers import refresh_ties, set_tied_weights, tied_weights

ORDER = "_changes_in_order"
TIES = "_ties_of_its_class"
SHARED = "_shared"
"""Attribute of our own networks: the weights that layers share, which are tied whatever their configuration says."""
CHANGED = "_was_changed"


def structure(model: nn.Module) -> Description:
    """Where a network differs from the one its class builds, by change, in the order in which they were applied."""
    applied = getattr(model, ORDER, [])
    ordered = [*map(kind, applied), *(change for change in kinds() if change.name() not in applied)]
    described = {change.name(): change.describe(model) for change in ordered}
    differences = Description({name: description for name, description in described.items() if description})
    if isinstance(model, PreTrainedModel) and not all(kind(name).built_by_the_class for name in differences.order):
        replaced = [path for name in differences.order for path in kind(name).replaced(model)]
        differences.guards = guards_of(model, replaced)
    return differences


def changes_of(model: nn.Module) -> list[type[Change]]:
    """The changes that were applied to a network and that it still shows, in order."""
    return [kind(name) for name in structure(model).order]


def mark(model: nn.Module, applied: Sequence[str] = ()) -> Description:
    """Write into a network, and into the configuration of a model of `transformers`, where it differs from its class.

    Args:
        model: Any network.
        applied: Names of the changes that were applied since it was marked last.
    """
    if applied:
        setattr(model, CHANGED, True)
    setattr(model, ORDER, list(dict.fromkeys([*getattr(model, ORDER, []), *applied])))
    described = structure(model)
    setattr(model, ORDER, described.order)
    if isinstance(model, PreTrainedModel):
        _configure(model, described)
        tie(model)
    return described


def _configure(model: PreTrainedModel, described: Description) -> None:
    before = getattr(model.config, "quantization_config", None)
    if described.empty and not isinstance(before, Description):
        return
    # A configuration of its own, since a dense network may use the same object.
    shared, own = model.config, copy.copy(model.config)
    if described.empty:
        del own.quantization_config
    else:
        own.quantization_config = described
        vars(model).setdefault("hf_quantizer", AutoHfQuantizer.from_config(described))  # by which it is written
        accept_guards(model)
    for part in model.modules():
        if vars(part).get("config") is shared:
            vars(part)["config"] = own


def tie(model: PreTrainedModel) -> None:
    """Register with `transformers` which parameters changes have tied, and which of the class are no longer tied.

    The first parameter of a group is the one that is saved.
    """
    changes = changes_of(model)
    replaced = {path for change in changes for path in change.replaced(model)}
    parts = {
        path: part for path, part in model.named_modules(remove_duplicate=False) if isinstance(part, PreTrainedModel)
    }
    of_changes: dict[str, dict[str, str]] = {}
    for pair in (pair for change in changes for pair in change.ties(model)):
        prefix = _tying(parts, pair)
        name, saved = (name[len(prefix) + bool(prefix) :] for name in pair)
        of_changes.setdefault(prefix, {})[name] = saved
    for prefix, part in parts.items():
        of_class = vars(part).setdefault(TIES, tied_weights(part))
        stem = f"{prefix}." if prefix else ""
        ties = {
            target: origin
            for target, origin in of_class.items()
            if not {stem + name.removesuffix(".weight") for name in (target, origin)} & replaced
        }
        ties |= of_changes.get(prefix, {})
        if ties != tied_weights(part):
            set_tied_weights(part, ties)
        if isinstance(getattr(part, SHARED, None), dict):
            shared = vars(part).setdefault(f"{TIES}{SHARED}", getattr(part, SHARED))
            left = {name: saved for name, saved in shared.items() if name in ties}
            setattr(part, SHARED, left | of_changes.get(prefix, {}))
    refresh_ties(model)


def _tying(parts: Mapping[str, PreTrainedModel], names: Sequence[str]) -> str:
    """The path of the smallest model with both names whose configuration ties weights, else that of the whole."""
    around = [path for path in parts if path and all(name.startswith(f"{path}.") for name in names)]
    tying = [path for path in around if getattr(parts[path].config, "tie_word_embeddings", False)]
    return max(tying, key=len, default="")
