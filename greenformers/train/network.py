"""Settings of a training that are of its network: kind, sizes and slots.

Modules that are slow to import are imported when they are needed, as the command line reads this file for its help.
"""

from dataclasses import dataclass
from typing import Any

from greenformers.train.setting import setting

KEPT = 16
"""Default of `k`, the size of what a mechanism keeps of full attention; small, as networks are by default."""


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of a network. The help text of each documents it."""

    variant: str = setting(
        "transformer",
        "Variant of the network: transformer, lrt, an attention or a block, or lrt+ and one of these; in place of lrt "
        "narrow or narrow_flops, a dense network of smaller width with as many parameters or FLOPs as lrt.",
    )
    rank: int = setting(16, "Rank of the low-rank linear layers of lrt.")
    k: int | None = setting(
        None, "Size of what is kept of full attention: k of linformer, window of sliding_window, ...; 16 if not given."
    )
    option: dict[str, Any] | None = setting(None, "Option of the attention as name=value; may be repeated.")  # noqa: RUF009
    hidden: int = setting(64, "Width d of the network.")
    layers: int = setting(2, "Number of layers; of the encoder, where there is a decoder too.")
    decoder_layers: int | None = setting(None, "seq2seq: layers of the decoder; by default as many as the encoder's.")
    heads: int = setting(4, "Number of heads, a divisor of the width.")
    feed_forward: int = setting(256, "Width f of the feed-forward blocks.")
    residual: str | None = setting(
        None,
        "Residual connections: post or pre, by the place of layer norm; or reversible, which takes fewer bytes of "
        "memory, as activations are recomputed; by default pre in a causal network, else post.",
    )
    chunk: int | None = setting(
        None, "Positions that a feed-forward block computes at once; fewer take fewer bytes of memory."
    )
    feed_forward_kind: str | None = setting(
        None,
        "Kind of the feed-forward blocks, a file of greenformers/feed_forward: dense, gated, chunked, or switch, a "
        "mixture of experts; by default gated in a causal network, else dense.",
    )
    feed_forward_option: dict[str, Any] | None = setting(  # noqa: RUF009
        None, "Option of that kind as name=value, such as experts=8; may be repeated."
    )
    share: str | None = setting(None, "Parameters that all layers share: all, attention or feed_forward.")
    depth: str | None = setting(
        None,
        "Number of layers that each position goes through, a file of greenformers/depth: universal, one layer as often "
        "as a position needs; adaptive, a decoder with an exit after each layer; by default all layers.",
    )
    depth_option: dict[str, Any] | None = setting(None, "Option of the depth as name=value; may be repeated.")  # noqa: RUF009
    position: str | None = setting(
        None,
        "Position encoding, a file of greenformers/position: learned, sinusoidal, rotary, alibi, t5, shaw or huang; or "
        "none; by default rotary in a causal network whose attention takes it, else learned.",
    )
    pooling: str = setting("cls", "Pooling of a sequence into one vector: cls, mean or pma.")
    dropout: float = setting(0.0, "Dropout after the embedding and each block.")

    def sizes(self) -> dict[str, Any]:
        """Arguments of the network's configuration, by name.

        Raises:
            ValueError: A setting is out of range, or settings exclude each other.
        """
        for name in ("hidden", "layers", "heads", "feed_forward"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        attention = _attention(self)
        sizes: dict[str, Any] = {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feed_forward,
            "hidden_dropout_prob": self.dropout,
            "residual": self.residual,
            "position": self.position,
            "pooling": self.pooling,
        }
        sizes |= _feed_forward(self) | _depth(self)
        if self.decoder_layers is not None:
            sizes["decoder_layers"] = self.decoder_layers
        return sizes | attention


def _attention(network: NetworkSettings) -> dict[str, Any]:
    """The slots of the variant: rank, attention or block, and their options."""
    from greenformers.model.variant import NARROW, rank_option, slots

    variant, k, options = network.variant, network.k, dict(network.option or {})
    attention, keeping = variant.split("+")[-1], rank_option(variant)
    if k is not None and keeping is None:
        raise ValueError(
            f"k is for an attention that keeps a part of full attention, the variant is {variant!r}; got {k}"
        )
    if k is not None and keeping in options:
        raise ValueError(f"k and option {keeping} exclude each other, got {k} and {options[keeping]}")
    if options and attention in ("transformer", "lrt", *NARROW):
        raise ValueError(f"option is for an attention, the variant is {variant!r}; got {', '.join(options)}")
    return slots(
        variant,
        rank=network.rank,
        attention_size=KEPT if k is None else k,
        options={attention: options} if options else None,
        narrow=True,
    )


def _feed_forward(network: NetworkSettings) -> dict[str, Any]:
    """The slot of the feed-forward blocks; none where they are as usual."""
    from greenformers._registry import check_options
    from greenformers.feed_forward import feed_forward_class, names

    kind, options, chunk = network.feed_forward_kind, network.feed_forward_option or {}, network.chunk
    if kind is None:
        if options:
            raise ValueError(f"feed_forward_option is for a feed_forward_kind, got {', '.join(options)}")
        return {} if chunk is None else {"feed_forward": "chunked", "feed_forward_options": {"chunk": chunk}}
    if kind not in names():
        raise ValueError(f"feed_forward_kind must be one of {', '.join(names())}; got {kind!r}")
    if chunk is not None:
        raise ValueError(f"chunk must be left out with feed_forward_kind, got {chunk} and {kind!r}")
    try:
        check_options(kind, feed_forward_class(kind), options)
    except TypeError as error:
        raise ValueError(f"feed_forward_option: {error}") from None
    return {"feed_forward": kind, "feed_forward_options": options or None}


def _depth(network: NetworkSettings) -> dict[str, Any]:
    """The slot of depth; none where layers are stacked."""
    from greenformers._registry import check_options
    from greenformers.depth import depth_class, names
    from greenformers.model.slots import SHARED

    kind, options, share = network.depth, network.depth_option, network.share
    if kind is None and options:
        raise ValueError(f"depth_option is for a depth, got {', '.join(options)}")
    if share is not None:
        if kind is not None:
            raise ValueError(f"share must be left out with depth, got {share!r} and {kind!r}")
        if share not in SHARED:
            raise ValueError(f"share must be one of {', '.join(SHARED)}; got {share!r}")
        return {"depth": "shared", "shared": share}
    if kind is None:
        return {}
    if kind in names():  # of others the configuration tells what is wrong
        try:
            check_options(kind, depth_class(kind), options or {})
        except TypeError as error:
            raise ValueError(f"depth_option: {error}") from None
    return {"depth": kind, "depth_options": options}
