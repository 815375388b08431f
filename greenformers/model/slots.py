"""The slots of a network: names of their entries, and what None stands for in them."""

from typing import Any

from greenformers import blocks, feed_forward
from greenformers import depth as depths
from greenformers import position as positions
from greenformers.attention import names

SLOTS: dict[str, tuple[str, ...]] = {
    "residual": ("post", "pre", "reversible"),
    "depth": ("stacked", "shared"),
    "position": ("none",),
    "norm": ("layer", "rms"),
    "block": ("standard",),
    "pooling": ("cls", "mean"),
}
"""Entries of slots that are no file of a folder, defaults first. `rank` takes any LED rank."""

SHARED = {
    "all": ("attention", "cross_attention", "feed_forward"),
    "attention": ("attention", "cross_attention"),
    "feed_forward": ("feed_forward",),
}
"""Parts of a layer that share their parameters, each with its layer norm."""

PROJECTIONS = (
    "q", "k", "v", "output", "hidden", "q_global", "k_global", "v_global", "up", "gate", "down",
    "cross_q", "cross_k", "cross_v", "cross_output",
)  # fmt: skip
"""The linear layers of a layer: self-attention's (`hidden` and the global ones of some mechanisms only), those of the
feed-forward block (`gate` of a gated one), and four of cross-attention."""


def choices(slot: str) -> list[str]:
    """Names of the entries of a slot; the files of its folder, where it has one.

    `block` takes the blocks that keep the length, `pooling` those that do not.
    """
    if slot == "feed_forward":
        return feed_forward.names()
    if slot.endswith("attention"):
        return names()
    if slot == "position":
        return [*positions.names(), *SLOTS[slot]]
    if slot == "depth":
        return [*SLOTS[slot], *depths.names()]
    files = blocks.names() if slot in ("block", "pooling") else []
    keeps = slot == "block"
    return [*SLOTS[slot], *(name for name in files if blocks.block_class(name).keeps_length == keeps)]


SHAPES: dict[str, dict[str, Any]] = {
    "bert": {
        "residual": "post", "position": "learned", "feed_forward": "dense", "bias": True, "embedding_norm": True,
        "hidden_dropout_prob": 0.1, "initializer_range": 0.02,
    },
    "gpt2": {
        "residual": "pre", "position": "learned", "embedding_norm": False, "feed_forward": "dense",
        "hidden_act": "gelu_new", "bias": True,
        "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "vocab_size": 50257,
        "max_position_embeddings": 1024,
    },
    "llama": {
        "residual": "pre", "position": "rotary", "embedding_norm": False, "norm": "rms", "layer_norm_eps": 1e-6,
        "feed_forward": "gated", "hidden_act": "silu", "bias": False, "initializer_range": 0.02,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Slots of the layers of well-known networks, and sizes where they differ from those of BERT-base."""


DEFAULTS: dict[str, tuple[Any, Any]] = {
    "residual": ("post", "pre"),
    "feed_forward": ("dense", "gated"),
    "bias": (True, False),
    "embedding_norm": (True, False),
}
"""Values that None stands for: in general, and in a causal stack alone, whose layers are those of language models."""
