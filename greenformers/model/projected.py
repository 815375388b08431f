"""The projections around a mechanism of the attention slot. Vaswani 2017, 3.2.2; low-rank: Cahyawijaya 2021, 3.1.1.

A projection is x W, or (x E) D where it is low-rank. Its code is the input of the last factor: x E, or x itself where
it is dense. Keys and values may have fewer heads than queries, each read by several (Ainslie 2023, arXiv:2305.13245);
queries and keys of a head may be normalised (Henry 2020, arXiv:2010.04245).
"""

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers._registry import options_of
from greenformers.attention import Attention, Role, Shape, attention_class, build
from greenformers.lowrank.linear import LinearLayer, decode, encode, linear_layer
from greenformers.model.config import GreenformerConfig


class Projected(nn.Module):
    """A mechanism, the projections it reads, and the projection of its output.

    Args:
        config: Sizes and slots of the network.
        layer: Index of the layer; layers of a decoder count on from the encoder.
        mechanism: Mechanism of the attention slot.
        bias: Whether the projections have a bias.
        prefix: Prefix of the names of these projections in `config.rank`.

    Attributes:
        place: Index in a cache of its keys and values; a stack whose layers have several of them numbers them.
    """

    def __init__(
        self, config: GreenformerConfig, layer: int, mechanism: Attention, *, bias: bool, prefix: str = ""
    ) -> None:
        super().__init__()
        d, D = config.hidden_size, mechanism.shape.head_dim
        self.mechanism, self.place = mechanism, mechanism.shape.layer
        self.key_heads = config.num_key_value_heads or config.num_attention_heads
        self.head_dim, self.shares_keys = D, self.key_heads < mechanism.shape.heads
        if mechanism.shares_qk and self.key_heads != config.num_attention_heads:
            name = type(mechanism).__name__.lower()
            raise ValueError(
                f"num_key_value_heads must be {config.num_attention_heads} for {name}, whose keys are the queries; "
                f"got {self.key_heads}"
            )
        normalised = [name for name in mechanism.projections if name[0] in "qk"] if config.qk_norm else []
        if config.qk_norm and not normalised:
            raise ValueError(f"qk_norm must be False for {type(mechanism).__name__}, which has no queries and keys")
        ranks = {name: config.rank_of(layer, prefix + name) for name in mechanism.projections}
        self.projections = nn.ModuleDict(
            {name: self._projection(config, rank, name, bias=bias) for name, rank in ranks.items()}
        )
        self.output = linear_layer(d, d, config.rank_of(layer, f"{prefix}output"), bias=bias)
        self.normalised = (
            nn.ModuleDict({name: nn.RMSNorm(D, eps=config.layer_norm_eps) for name in normalised})
            if normalised
            else None
        )

    def _projection(self, config: GreenformerConfig, rank: int | None, name: str, *, bias: bool) -> LinearLayer:
        """The projection of this name."""
        heads, D = self.key_heads if name[0] in "kv" else config.num_attention_heads, self.mechanism.shape.head_dim
        own = heads if config.rank_per_head else None
        return linear_layer(config.hidden_size, heads * D, rank, bias=bias, heads=own)

    @property
    def can_reduce(self) -> bool:
        """Whether keys and values may be shortened before they are projected, see `Attention.reduce`."""
        return self.mechanism.can_reduce and self.normalised is None

    def codes(self, x: Float[Tensor, "B N d"], *names: str) -> dict[str, Tensor]:
        """Codes of the named projections; those of all low-rank ones by one product."""
        projections = [cast(LinearLayer, self.projections[name]) for name in names]
        return dict(zip(names, encode(projections, x), strict=True))

    def project(self, name: str, code: Float[Tensor, "B N r"]) -> Float[Tensor, "B h N D"]:
        """Queries, keys or values from their code; h heads, H or fewer for keys and values."""
        x = self.split_heads(decode(cast(LinearLayer, self.projections[name]), code))
        normalised = self.normalised
        return normalised[name](x) if normalised is not None and name in normalised else x

    def for_every_head(self, x: Float[Tensor, "B h N D"]) -> Float[Tensor, "B H N D"]:
        """Keys or values repeated for each head of queries that reads them."""
        H = self.mechanism.shape.heads
        return x if x.shape[1] == H else x.repeat_interleave(H // x.shape[1], 1)

    def reduce(
        self, role: Role, code: Float[Tensor, "B M r"], key_mask: Bool[Tensor, "B M"] | None
    ) -> Float[Tensor, "B h k D"]:
        """Keys or values shortened by the mechanism before the last factor, where that is cheaper."""
        ones = code.new_ones(code.shape[0], code.shape[1], 1)
        short = self.mechanism.reduce(code, key_mask, role=role)
        weights = self.mechanism.reduce(ones, key_mask, role=role)
        return self.split_heads(decode(cast(LinearLayer, self.projections[role]), short, weight_sum=weights))

    def split_heads(self, x: Float[Tensor, "B N hD"]) -> Float[Tensor, "B h N D"]:
        """Split the vector of each position into heads of D numbers."""
        return x.unflatten(2, (-1, self.head_dim)).transpose(1, 2)


def attention_of(
    config: GreenformerConfig, slot: str, layer: int, *, causal: bool = False, cross: bool = False
) -> Attention:
    """The mechanism in an attention slot of one layer.

    Raises:
        ValueError: The mechanism has no causal or no cross-attention form, or cross-attention would need further
            projections.
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
    options = dict(config.per_layer(f"{slot}_options")[layer] or {})
    if config.attention_dropout and "dropout" not in options:
        if "dropout" not in options_of(attention_class(layers[layer])):
            raise ValueError(
                f"attention_dropout must be 0 for {layers[layer]}, which has no attention weights to drop; "
                f"got {config.attention_dropout}"
            )
        options["dropout"] = config.attention_dropout
    mechanism = build(layers[layer], shape, **options)
    if cross and mechanism.projections != ("q", "k", "v"):
        used = ", ".join(mechanism.projections)
        raise ValueError(f"cross-attention needs a mechanism of q, k and v, got {layers[layer]!r}, which uses {used}")
    return mechanism


def constant(module: nn.Module, x: Tensor) -> Tensor:
    """The output of a module for `x`, without a gradient for its parameters."""
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    y: Tensor = torch.func.functional_call(module, parameters, (x,))
    return y
