"""The norm around blocks: layer norm (Ba 2016, arXiv:1607.06450), or RMS norm (Zhang 2019, arXiv:1910.07467)."""

from torch import nn

from greenformers.model.config import GreenformerConfig


def norm_of(config: GreenformerConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """A norm of the kind in the slot, over d numbers or `width`."""
    kind = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
    return kind(config.hidden_size if width is None else width, eps=config.layer_norm_eps)
