"""One row a mechanism (and variant of it): all that the tests of this folder need to hold it to the contract.

To add a mechanism, write its oracle, a slow plain reading of its formula, and append its rows to ROWS.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import oracles_kernel
import oracles_learned
import oracles_low_rank
import oracles_pattern
import oracles_relative
import oracles_sort
import oracles_span
import oracles_synthesizer
import torch
from torch import Tensor

from greenformers.attention import Attention, Shape, build

# Sizes of the tests: every dimension has a prime of its own.
HEADS, DIM, MAX_LEN = 3, 5, 13
LAYERS = 2

Oracle = Callable[[Any, Tensor, Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Row:
    """A mechanism as the tests build it, and what it claims.

    Attributes:
        name: of the mechanism, the stem of its file.
        oracle: the formula in plain loops, (module, q, k, v, key_mask) -> out, differentiable. It may read the
            module's parameters and options, and must not call its methods.
        options: keyword arguments of the mechanism. Blocks, windows and the like: above 1, below MAX_LEN, and
            no divisor of it. They fit a network of LAYERS layers.
        layer: the layer of it, from 0.
        causal: a causal form exists; otherwise Shape(causal=True) raises.
        cross: queries and keys may differ in number; otherwise Shape(cross=True) raises.
        time: the claimed exponent of time (and FLOPs) in N; None claims nothing.
        memory: the claimed exponent of memory in N; None claims nothing.
        large: the options at N = 1K to 16K, where the exponents are measured. None: those of `options`.
        compiles: torch.compile makes one graph of it.
    """

    name: str
    oracle: Oracle
    options: Mapping[str, Any] = field(default_factory=dict)
    layer: int = 0
    causal: bool = False
    cross: bool = True
    time: float | None = None
    memory: float | None = None
    large: Mapping[str, Any] | None = None
    compiles: bool = True

    def __str__(self) -> str:
        settings = {**self.options, "layer": self.layer} if self.layer else self.options
        return "-".join([self.name, *(f"{name}={value}" for name, value in settings.items())])

    def build(self, options: Mapping[str, Any] | None = None, **shape: Any) -> Attention:
        """The mechanism with parameters drawn from one seed; with other options or another Shape where given."""
        torch.manual_seed(0)
        sizes = {"heads": HEADS, "head_dim": DIM, "max_len": MAX_LEN, "layer": self.layer, "layers": LAYERS}
        return build(self.name, Shape(**sizes | shape), **{**self.options, **(options or {})})

    def build_large(self, max_len: int) -> Attention:
        """The mechanism at the size at which growth is measured."""
        shape = Shape(heads=2, head_dim=32, max_len=max_len)
        return build(self.name, shape, **self.options if self.large is None else self.large)


def softmax_mixture(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """sum_j exp(q k_j / sqrt(D)) v_j / sum_j exp(q k_j / sqrt(D)), of a vector of D and rows of D; 0 without keys."""
    if not len(keys):
        return torch.zeros_like(q)
    weights = torch.exp(keys @ q / math.sqrt(len(q)))
    return weights @ values / weights.sum()


def kept_positions(key_mask: Tensor | None, batch: int, keys: int) -> list[int]:
    return list(range(keys)) if key_mask is None else key_mask[batch].nonzero().flatten().tolist()


def full(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Vaswani 2017, eq. 1, one query at a time. Causal: query i stands at key position i + M - N."""
    queries, keys = q.shape[2], k.shape[2]
    out = []
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        last = i + keys - queries if module.shape.causal else keys
        seen = [j for j in kept_positions(key_mask, b, keys) if j <= last]
        out.append(softmax_mixture(q[b, h, i], k[b, h, seen], v[b, h, seen]))
    return torch.stack(out).view(q.shape)


def linformer(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Wang 2020, eq. 7: each head attends its projected keys, each a sum or maximum over kept positions."""
    out = []
    for b, h in torch.cartesian_prod(*map(torch.arange, q.shape[:2])).tolist():
        kept = kept_positions(key_mask, b, k.shape[2])
        project = (_by_matrix if module.projection == "linear" else _by_windows)(module, h, kept)
        keys, values = project(k[b, h], "E"), project(v[b, h], "F")
        out.extend(softmax_mixture(query, keys, values) for query in q[b, h])
    return torch.stack(out).view(q.shape)


def _matrix(module: Any, name: str, head: int) -> Tensor:
    """E or F of a head: one each a head, one each a layer, or E = F."""
    if module.sharing in ("key_value", "layerwise"):
        name = "E"
    return getattr(module, name)[head if module.sharing == "none" else 0]


def _by_matrix(module: Any, head: int, kept: list[int]) -> Callable[[Tensor, str], Tensor]:
    def project(x: Tensor, name: str) -> Tensor:
        rows = _matrix(module, name, head)[: module.k_per_head[head]]
        return rows[:, kept] @ x[kept]

    return project


def _by_windows(module: Any, head: int, kept: list[int]) -> Callable[[Tensor, str], Tensor]:
    width = math.ceil(module.shape.max_len / module.k_per_head[head])
    windows = [[j for j in kept if j // width == step] for step in range(module.shape.max_len)]

    def project(x: Tensor, name: str) -> Tensor:
        seen = [window for window in windows if window]
        if not seen:
            return x[:0]
        if module.projection == "mean":
            return torch.stack([x[window].sum(0) / len(window) for window in seen])
        if module.projection == "max":
            return torch.stack([x[window].amax(0) for window in seen])
        kernel = _matrix(module, name, head).T  # (width, D)
        return torch.stack([(kernel[[j % width for j in window]] * x[window]).sum(0) for window in seen])

    return project


def synthesizer(name: str, oracle: Oracle, *others: Mapping[str, Any], memory: float | None = None) -> list[Row]:
    """Plain, which alone is measured; mixed with dot products; and with other options."""
    plain = Row(name, oracle, causal=True, memory=memory)
    return [plain, *(Row(name, oracle, options, causal=True) for options in ({"mixed": True}, *others))]


def kernelized(name: str, oracle: Oracle, option: str, choices: Sequence[str]) -> list[Row]:
    """One row a feature map."""
    return [
        Row(name, oracle, {option: choice, "chunk": 4}, causal=True, large={option: choice}, **LINEAR)
        for choice in choices
    ]


def patterns(name: str, *options: Mapping[str, Any], causal: bool = False, **claims: Any) -> list[Row]:
    """One row for each setting; growth is measured with the first alone."""
    oracle = oracles_pattern.pattern(getattr(oracles_pattern, name))
    first, *others = options
    rows = [Row(name, oracle, first, causal=causal, cross=False, **claims)]
    return rows + [Row(name, oracle, other, causal=causal, cross=False) for other in others]


def sinkhorn(*options: Mapping[str, Any], causal: bool = False) -> list[Row]:
    """One row for each setting, without noise; memory is measured with the first one's, in blocks of 64."""
    quiet = [{**one, "noise": False} for one in options]
    large = {**quiet[0], "block": 64}
    rows = [Row("sinkhorn", oracles_sort.sinkhorn, one, causal=causal, cross=False) for one in quiet]
    return [replace(rows[0], memory=1.0, large=large), *rows[1:]]


LINEAR: Mapping[str, Any] = {"time": 1.0, "memory": 1.0}

# Of N sqrt(N) pairs.
ROOT: Mapping[str, Any] = {"time": 1.5, "memory": 1.0, "large": {}}

ROWS = (
    Row("full", full, causal=True),
    # Who shares E and F.
    Row("linformer", linformer, {"k": 5}, large={"k": 128}, **LINEAR),
    Row("linformer", linformer, {"k": 5, "sharing": "none"}, large={"k": 128, "sharing": "none"}, **LINEAR),
    Row("linformer", linformer, {"k": 5, "sharing": "key_value"}, large={"k": 128, "sharing": "key_value"}, **LINEAR),
    Row("linformer", linformer, {"k": 5, "sharing": "layerwise"}, large={"k": 128, "sharing": "layerwise"}, **LINEAR),
    # k a layer, and a layer and head.
    Row("linformer", linformer, {"k": (7, 3)}, layer=1),
    Row("linformer", linformer, {"k": (3, 7), "sharing": "layerwise"}),
    Row("linformer", linformer, {"k": (7, (5, 2, 3))}, layer=1),
    Row("linformer", linformer, {"k": ((5, 2, 3), 7), "sharing": "none"}),
    Row("linformer", linformer, {"k": ((5, 2, 3), 7), "sharing": "key_value"}),
    Row("linformer", linformer, {"k": (7, (2, 5, 3)), "sharing": "layerwise"}, layer=1),
    # The other projections. Windows of ceil(13 / 5) = 3 positions, or ceil(13 / 2) = 7.
    Row("linformer", linformer, {"k": 5, "projection": "mean"}, large={"projection": "mean"}, **LINEAR),
    Row("linformer", linformer, {"k": (5, 2), "projection": "mean"}, layer=1),
    Row("linformer", linformer, {"k": 5, "projection": "max"}, large={"projection": "max"}, **LINEAR),
    Row("linformer", linformer, {"k": 5, "projection": "convolution"}, large={"projection": "convolution"}, **LINEAR),
    Row("linformer", linformer, {"k": 5, "projection": "convolution", "sharing": "none"}),
    Row("linformer", linformer, {"k": 5, "projection": "convolution", "sharing": "key_value"}),
    Row("linformer", linformer, {"k": 5, "projection": "convolution", "sharing": "layerwise"}),
    # Landmarks.
    Row("nystromformer", oracles_low_rank.nystromformer, {"landmarks": 5}, large={"landmarks": 64}, **LINEAR),
    Row("nystromformer", oracles_low_rank.nystromformer, {"landmarks": 5, "convolution": 3}, cross=False),
    # Scores that are no products of queries and keys.
    *synthesizer("synthesizer_dense", oracles_synthesizer.dense, memory=1.0),
    *synthesizer("synthesizer_factorized_dense", oracles_synthesizer.factorized_dense),
    *synthesizer("synthesizer_random", oracles_synthesizer.random, {"trained": False}),
    *synthesizer(
        "synthesizer_factorized_random", oracles_synthesizer.factorized_random, {"trained": False}, memory=1.0
    ),
    # Feature maps, of the past in chunks of 4.
    *kernelized("linear_transformer", oracles_kernel.linear_transformer, "feature_map", ("elu", "exp")),
    *kernelized("performer", oracles_kernel.performer, "kernel", ("softmax", "hyperbolic", "relu")),
    # Chunks of 3 and 2 positions by hash, and of 5 in their order.
    Row(
        "reformer",
        oracles_learned.reformer,
        {"chunk": 3, "n_buckets": 4},
        cross=False,
        large={"n_buckets": 64},
        **LINEAR,
    ),
    Row("reformer", oracles_learned.reformer, {"chunk": 2, "n_buckets": 6, "rounds": 3}, cross=False),
    Row("reformer", oracles_learned.reformer, {"chunk": 5, "n_buckets": 1}, cross=False),
    Row("reformer", oracles_learned.reformer, {"chunk": 2, "n_buckets": 8, "rounds": 1, "scale": 2.0}, cross=False),
    # Clusters, blocks that are sorted, spans, and keys read until it is enough.
    Row("routing", oracles_sort.routing, {"clusters": 3}, cross=False, large={}, time=1.5, memory=1.5),
    Row("routing", oracles_sort.routing, {"clusters": 4, "window": 5}, cross=False),
    *sinkhorn({"block": 4}, {"block": 5, "iterations": 2}, causal=True),
    *sinkhorn({"block": 4, "cut": 2}),
    Row(
        "adaptive_span",
        oracles_span.adaptive_span,
        {"span": 7, "ramp": 3, "init": 0.3},
        causal=True,
        cross=False,
        large={"span": 64},
        compiles=False,
        **LINEAR,
    ),
    Row(
        "adaptive_span",
        oracles_span.adaptive_span,
        {"ramp": 5, "dynamic": True},
        causal=True,
        cross=False,
        compiles=False,
    ),
    Row("dacs", oracles_span.dacs, causal=True),
    Row("dacs", oracles_span.dacs, {"look_ahead": 3}, causal=True),
    # Distances.
    Row("transformer_xl", oracles_relative.relative, causal=True, cross=False),
    Row("compressive", oracles_relative.relative, {"ratio": 3, "compressed": 5}, causal=True, cross=False),
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
    Row("cascade", oracles_pattern.pattern(oracles_pattern.cascade), {"base": 2}, layer=1, causal=True, cross=False),
    *patterns("local_blocks", {"block": 4}, {"block": 8}, causal=True, large={"block": 64}, **LINEAR),
    *patterns("sparse_strided", {"stride": 4}, causal=True, **ROOT),
    *patterns("sparse_fixed", {"stride": 4}, {"stride": 5, "summary": 2}, causal=True, **ROOT),
    *patterns("blockwise", {"blocks": 2}, {"blocks": 5}, memory=1.0),
    *patterns("longformer", {"window": 3}, {"window": 2, "globals": 4}, large={"window": 64}, **LINEAR),
    *patterns("bigbird", {"block": 2, "random": 2}, {"block": 2, "extra_globals": 3}, large={"block": 32}, **LINEAR),
    *patterns(
        "etc", {"globals": 3, "radius": 2, "clip": 1}, {"globals": 2, "radius": 3, "clip": None}, large={}, **LINEAR
    ),
)
