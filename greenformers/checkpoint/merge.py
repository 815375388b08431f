"""Back to dense: every map the product of its factors."""

from torch import nn
from transformers import PreTrainedModel

from greenformers.changes.int8 import is_quantised
from greenformers.checkpoint.plugin import Structure, StructureQuantizer
from greenformers.checkpoint.structure import mark, structure
from greenformers.lowrank.multihead import LowRankMultihead
from greenformers.solve.walk import expand, put, units


def merge(model: nn.Module) -> int:
    """Make every low-rank unit dense again, in place: each map is the product of its factors. How many there were.

    Weights that were tied are tied again.

    Raises:
        ValueError: weights are of 8 bits.
    """
    if is_quantised(model):
        raise ValueError("weights of 8 bits do not become dense again: merge before they are quantised")
    found = list(units(model))
    expand(model, found)
    _pack(model)
    if isinstance(model, PreTrainedModel):
        for part in model.modules():
            if isinstance(part, PreTrainedModel) and "_tied_weights_keys" in vars(part):
                del part._tied_weights_keys
        model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
        if not structure(model).empty:  # fewer layers, or another attention: these stay
            mark(model)
            return len(found)
        if isinstance(getattr(model.config, "quantization_config", None), Structure):
            del model.config.quantization_config
        if isinstance(getattr(model, "hf_quantizer", None), StructureQuantizer):
            del model.hf_quantizer
    return len(found)


def _pack(model: nn.Module) -> None:
    made: dict[int, nn.Module] = {}
    for path, attention in list(model.named_modules(remove_duplicate=False)):
        if path and isinstance(attention, LowRankMultihead):
            if id(attention) not in made:
                made[id(attention)] = attention.to_dense()
            put(model, path, made[id(attention)])
