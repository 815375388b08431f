"""Back to dense: every map the product of its factors."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from greenformers.compress.quantizer import LowRankConfig, LowRankQuantizer
from greenformers.compress.walk import dense, put, units


def merge(model: nn.Module) -> int:
    """Make every low-rank unit dense again, in place: each map is the product of its factors. How many there were.

    Weights that were tied are tied again.
    """
    found = list(units(model))
    made: dict[int, nn.Module] = {}
    weights: dict[int, nn.Parameter] = {}
    for path, module in found:
        full = made.setdefault(id(module), dense(module))
        weight: Any = full.weight
        full.weight = weights.setdefault(id(module.decoder), weight)
        put(model, path, full)
    if isinstance(model, PreTrainedModel):
        for part in model.modules():
            if isinstance(part, PreTrainedModel) and "_tied_weights_keys" in vars(part):
                del part._tied_weights_keys
        model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
        if isinstance(getattr(model.config, "quantization_config", None), LowRankConfig):
            del model.config.quantization_config
        if isinstance(getattr(model, "hf_quantizer", None), LowRankQuantizer):
            del model.hf_quantizer
    return len(found)
