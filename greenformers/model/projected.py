"""The projections around a mechanism of the attention slot. Vaswani 2017, 3.2.2; low-rank: Cahyawijaya 2021, 3.1.1.

A projection is x W, or (x E) D where it is low-rank. Its code is what is left of it before the last factor: x E, or x
itself where it is dense.
"""

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention import Attention, Role, Shape, build
from greenformers.lowrank.linear import LinearMap, decode, encode, linear_map
from greenformers.model.config import GreenformerConfig


class Projected(nn.Module):
    """A mechanism, the projections it reads, and the one of its output.

    Args:
        config: sizes and slots.
        layer: index of the layer, a decoder's counted on from the encoder's.
        mechanism: what mixes the positions.
        prefix: of the names that `config.rank` has for these projections.
    """

    def __init__(self, config: GreenformerConfig, layer: int, mechanism: Attention, prefix: str = "") -> None:
        super().__init__()
        d = config.hidden_size
        self.mechanism = mechanism
        self.maps = nn.ModuleDict(
            {name: linear_map(d, d, config.rank_of(layer, prefix + name)) for name in mechanism.projections}
        )
        self.output = linear_map(d, d, config.rank_of(layer, f"{prefix}output"))

    def codes(self, x: Float[Tensor, "B N d"], *names: str) -> dict[str, Tensor]:
        """Codes of the named projections, those of all low-rank ones by one product."""
        projections = [cast(LinearMap, self.maps[name]) for name in names]
        return dict(zip(names, encode(projections, x), strict=True))

    def project(self, name: str, code: Float[Tensor, "B N r"]) -> Float[Tensor, "B H N D"]:
        """Queries, keys or values from their code."""
        return self.split_heads(decode(cast(LinearMap, self.maps[name]), code))

    def reduce(
        self, role: Role, code: Float[Tensor, "B M r"], key_mask: Bool[Tensor, "B M"] | None
    ) -> Float[Tensor, "B H k D"]:
        """Keys or values of a mechanism that shortens them, shortened before the last factor, where it is cheaper."""
        ones = code.new_ones(code.shape[0], code.shape[1], 1)
        short = self.mechanism.reduce(code, key_mask, role=role)
        weights = self.mechanism.reduce(ones, key_mask, role=role)
        return self.split_heads(decode(cast(LinearMap, self.maps[role]), short, kept=weights))

    def split_heads(self, x: Float[Tensor, "B N d"]) -> Float[Tensor, "B H N D"]:
        """One vector of a position as H of D = d / H numbers."""
        return x.unflatten(2, (self.mechanism.shape.heads, -1)).transpose(1, 2)


def attention_of(
    config: GreenformerConfig, slot: str, layer: int, *, causal: bool = False, cross: bool = False
) -> Attention:
    """The mechanism in an attention slot of one layer.

    Raises:
        ValueError: it has no causal or no cross form, or needs more than queries, keys and values for one.
    """
    layers = config.per_layer(slot)
    shape = Shape(
        config.num_attention_heads,
        config.hidden_size // config.num_attention_heads,
        config.max_position_embeddings,
        causal=causal,
        cross=cross,
        layer=layer,
        layers=len(layers),
    )
    mechanism = build(layers[layer], shape, **(config.per_layer(f"{slot}_options")[layer] or {}))
    if cross and mechanism.projections != ("q", "k", "v"):
        used = ", ".join(mechanism.projections)
        raise ValueError(f"cross-attention needs a mechanism of q, k and v, got {layers[layer]!r}, which uses {used}")
    return mechanism


def constant(module: nn.Module, x: Tensor) -> Tensor:
    """A module of `x`, without a gradient for its parameters."""
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    y: Tensor = torch.func.functional_call(module, parameters, (x,))
    return y
