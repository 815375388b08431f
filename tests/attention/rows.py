"""One row a mechanism (and variant of it): all that the tests of this folder need to hold it to the contract.

To add a mechanism, append its rows to ROWS. Its formula is `reference` in its own file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from greenformers.attention import Attention, Shape, build

# Sizes of the tests: every dimension has a prime of its own.
HEADS, DIM, MAX_LEN = 3, 5, 13
LAYERS = 2


@dataclass(frozen=True)
class Row:
    """A mechanism as the tests build it, and what it claims.

    Attributes:
        name: of the mechanism, the stem of its file.
        options: keyword arguments of the mechanism. Blocks, windows and the like: above 1, below MAX_LEN, and
            no divisor of it. They fit a network of LAYERS layers.
        layer: the layer of it, from 0.
        causal: a causal form exists; otherwise Shape(causal=True) raises.
        cross: queries and keys may differ in number; otherwise Shape(cross=True) raises.
        time: the claimed exponent of time (and FLOPs) in N; None claims nothing.
        memory: the claimed exponent of memory in N; None claims nothing.
        large: the options at N = 1K to 16K, where the exponents are measured. None: those of `options`.
        compiles: torch.compile makes one graph of it.
        alike: of the same code as a row before, with other numbers: exactness, visibility and reload are tested of
            it, and not again what one row of a code tells.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    layer: int = 0
    causal: bool = False
    cross: bool = True
    time: float | None = None
    memory: float | None = None
    large: Mapping[str, Any] | None = None
    compiles: bool = True
    alike: bool = False

    def __str__(self) -> str:
        settings = {**self.options, "layer": self.layer} if self.layer else self.options
        return "-".join([self.name, *(f"{name}={value}" for name, value in settings.items())])

    @property
    def reference(self) -> Callable[..., Tensor]:
        """The formula: (mechanism, q, k, v, key_mask) -> out."""
        return reference(self.name)

    def build(self, options: Mapping[str, Any] | None = None, **shape: Any) -> Attention:
        """The mechanism with parameters drawn from one seed; with other options or another Shape where given."""
        torch.manual_seed(0)
        sizes = {"heads": HEADS, "head_dim": DIM, "max_len": MAX_LEN, "layer": self.layer, "layers": LAYERS}
        return build(self.name, Shape(**sizes | shape), **{**self.options, **(options or {})})

    def build_large(self, max_len: int) -> Attention:
        """The mechanism at the size at which growth is measured."""
        shape = Shape(heads=2, head_dim=32, max_len=max_len)
        return build(self.name, shape, **self.options if self.large is None else self.large)


def reference(name: str) -> Callable[..., Tensor]:
    """The formula in a mechanism's file."""
    return import_module(f"greenformers.attention.{name}").reference


def synthesizer(name: str, *others: Mapping[str, Any], memory: float | None = None) -> list[Row]:
    """Plain, which alone is measured; mixed with dot products; and with other options."""
    plain = Row(name, causal=True, memory=memory)
    return [plain, *(Row(name, options, causal=True) for options in ({"mixed": True}, *others))]


def kernelized(name: str, option: str, choices: Sequence[str]) -> list[Row]:
    """One row a feature map; growth is measured with the first alone."""
    first, *others = (Row(name, {option: choice, "chunk": 4}, causal=True) for choice in choices)
    return [replace(first, large={option: choices[0]}, **LINEAR), *others]


def patterns(name: str, *options: Mapping[str, Any], causal: bool = False, **claims: Any) -> list[Row]:
    """One row for each setting; growth is measured with the first alone."""
    first, *others = options
    rows = [Row(name, first, causal=causal, cross=False, **claims)]
    return rows + [Row(name, other, causal=causal, cross=False) for other in others]


def sinkhorn(*options: Mapping[str, Any], causal: bool = False) -> list[Row]:
    """One row for each setting, without noise; memory is measured with the first one's, in blocks of 64."""
    quiet = [{**setting, "noise": False} for setting in options]
    large = {**quiet[0], "block": 64}
    rows = [Row("sinkhorn", setting, causal=causal, cross=False) for setting in quiet]
    return [replace(rows[0], memory=1.0, large=large), *rows[1:]]


LINEAR: Mapping[str, Any] = {"time": 1.0, "memory": 1.0}

# Of N sqrt(N) pairs.
ROOT: Mapping[str, Any] = {"time": 1.5, "memory": 1.0, "large": {}}

ROWS = (
    Row("full", causal=True),
    # Who shares E and F.
    Row("linformer", {"k": 5}, large={"k": 128}, **LINEAR),
    Row("linformer", {"k": 5, "sharing": "none"}),
    Row("linformer", {"k": 5, "sharing": "key_value"}, alike=True),
    Row("linformer", {"k": 5, "sharing": "layerwise"}, alike=True),
    # k a layer, and a layer and head.
    Row("linformer", {"k": (7, 3)}, layer=1, alike=True),
    Row("linformer", {"k": (3, 7), "sharing": "layerwise"}, alike=True),
    Row("linformer", {"k": (7, (5, 2, 3))}, layer=1),
    Row("linformer", {"k": ((5, 2, 3), 7), "sharing": "none"}, alike=True),
    Row("linformer", {"k": ((5, 2, 3), 7), "sharing": "key_value"}, alike=True),
    Row("linformer", {"k": (7, (2, 5, 3)), "sharing": "layerwise"}, layer=1, alike=True),
    # The other projections. Windows of ceil(13 / 5) = 3 positions, or ceil(13 / 2) = 7.
    Row("linformer", {"k": 5, "projection": "mean"}, large={"projection": "mean"}, **LINEAR),
    Row("linformer", {"k": (5, 2), "projection": "mean"}, layer=1, alike=True),
    Row("linformer", {"k": 5, "projection": "max"}, large={"projection": "max"}, **LINEAR),
    Row("linformer", {"k": 5, "projection": "convolution"}, large={"projection": "convolution"}, **LINEAR),
    Row("linformer", {"k": 5, "projection": "convolution", "sharing": "none"}, alike=True),
    Row("linformer", {"k": 5, "projection": "convolution", "sharing": "key_value"}, alike=True),
    Row("linformer", {"k": 5, "projection": "convolution", "sharing": "layerwise"}, alike=True),
    # Landmarks.
    Row("nystromformer", {"landmarks": 5}, large={"landmarks": 64}, **LINEAR),
    Row("nystromformer", {"landmarks": 5, "convolution": 3}, cross=False),
    # Scores that are no products of queries and keys.
    *synthesizer("synthesizer_dense", memory=1.0),
    *synthesizer("synthesizer_factorized_dense"),
    *synthesizer("synthesizer_random", {"trained": False}),
    *synthesizer("synthesizer_factorized_random", {"trained": False}, memory=1.0),
    # Feature maps, of the past in chunks of 4.
    *kernelized("linear_transformer", "feature_map", ("elu", "exp")),
    *kernelized("performer", "kernel", ("softmax", "hyperbolic", "relu")),
    # Chunks of 3 and 2 positions by hash, and of 5 in their order.
    Row(
        "reformer",
        {"chunk": 3, "n_buckets": 4},
        causal=True,
        cross=False,
        large={"n_buckets": 64},
        **LINEAR,
    ),
    Row("reformer", {"chunk": 2, "n_buckets": 6, "rounds": 3}, causal=True, cross=False, alike=True),
    Row("reformer", {"chunk": 5, "n_buckets": 1}, causal=True, cross=False),
    Row("reformer", {"chunk": 2, "n_buckets": 8, "rounds": 1, "scale": 2.0}, causal=True, cross=False, alike=True),
    Row("reformer", {"chunk": 3, "n_buckets": 4, "across_buckets": True}, cross=False),
    Row("reformer", {"chunk": 5, "n_buckets": 1, "across_buckets": True}, cross=False, alike=True),
    # Clusters, blocks that are sorted, spans, and keys read until it is enough.
    Row("routing", {"clusters": 3}, causal=True, cross=False, large={}, time=1.5, memory=1.5),
    Row("routing", {"clusters": 4, "window": 3}, causal=True, cross=False, alike=True),
    Row("routing", {"clusters": 3, "every_query": False}, cross=False),
    *sinkhorn({"block": 4}, {"block": 5, "iterations": 2, "sort": "products"}, causal=True),
    *sinkhorn({"block": 4, "cut": 2}),
    Row(
        "adaptive_span",
        {"span": 7, "ramp": 3, "init": 0.3},
        causal=True,
        cross=False,
        large={"span": 64},
        **LINEAR,
    ),
    Row(
        "adaptive_span",
        {"span": 7, "ramp": 3, "init": 0.3, "position_term": False, "include_self": True},
        causal=True,
        cross=False,
        alike=True,
    ),
    Row(
        "adaptive_span",
        {"ramp": 5, "dynamic": True},
        causal=True,
        cross=False,
    ),
    Row("dacs", causal=True),
    Row("dacs", {"look_ahead": 3}, causal=True),
    Row("dacs", {"threshold": 2.5, "synchronous": True}, causal=True, alike=True),
    # Distances.
    Row("transformer_xl", causal=True, cross=False),
    Row("compressive", {"ratio": 3, "compressed": 5}, causal=True, cross=False),
    # Patterns.
    *patterns(
        "sliding_window",
        {"window": 3},
        {"window": 2, "dilation": (1, 3, 2)},
        causal=True,
        large={"window": 64},
        **LINEAR,
    ),
    *patterns("cascade", {"base": 3}, causal=True, large={"base": 64}, **LINEAR),
    Row("cascade", {"base": 2}, layer=1, causal=True, cross=False, alike=True),
    *patterns("local_blocks", {"block": 4}, {"block": 8}, causal=True, large={"block": 64}, **LINEAR),
    *patterns("sparse_strided", {"stride": 4}, causal=True, **ROOT),
    *patterns("sparse_fixed", {"stride": 4}, {"stride": 5, "summary": 2}, causal=True, **ROOT),
    *patterns("blockwise", {"blocks": 2}, {"blocks": 5}, memory=1.0),
    *patterns("longformer", {"window": 3}, {"window": 2, "globals": 4}, large={"window": 64}, **LINEAR),
    *(
        replace(row, compiles=False)
        for row in patterns(
            "bigbird", {"block": 2, "random": 2}, {"block": 2, "extra_globals": 3}, large={"block": 32}, **LINEAR
        )
    ),
    *patterns(
        "etc", {"globals": 3, "radius": 2, "clip": 1}, {"globals": 2, "radius": 3, "clip": None}, large={}, **LINEAR
    ),
)
