"""Patterns pair by pair: whom `sees` shows, and dense attention over that; and drawn ones, with tiles of any size."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from rows import reference
from torch import Tensor

from greenformers.attention import Attention, Shape, _tiled, _tiles, build, sparse_strided

CPU = torch.device("cpu")


def seen(module: Any, queries: int, keys: int) -> Tensor:
    """Who sees whom (1, H, N, M) by `sees`."""
    i, j, at = torch.arange(keys - queries, keys)[:, None], torch.arange(keys), module.is_global(keys, CPU)
    heads = range(module.shape.heads)
    return torch.stack([module.sees(i, j, head, at, keys) for head in heads]).expand(1, -1, queries, -1)


def dense(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Attention as the reference computes it, over whom `sees` shows; in float64."""
    return reference(module.name)(module, *(x.double() for x in (q, k, v)), key_mask, visible=partial(seen, module))


def met(module: Attention, queries: int, keys: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Weights (1, H, N, M) that attention really gives to every key where all scores are equal. Of head width M."""
    heads = module.shape.heads
    q, k = (torch.zeros(1, heads, length, keys, dtype=dtype) for length in (queries, keys))
    return module.to(dtype)(q, k, torch.eye(keys, dtype=dtype).expand(1, heads, -1, -1))


def met_if(visible: Tensor) -> Tensor:
    """What `met` is where each visible pair is met once."""
    return visible / visible.sum(-1, keepdim=True).clamp(min=1).double()


@contextmanager
def tiles(rows: int, size: int) -> Iterator[None]:
    """The engine with tiles of other heights, and slices of other sizes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (_tiles, sparse_strided):
            patch.setattr(module, "ROWS", rows)
        for module in (_tiles, _tiled):
            patch.setattr(module, "SLICE", size)
        yield


few = st.integers(1, 12)


def several(heads: int) -> st.SearchStrategy[Any]:
    """A dilation, or one for each head."""
    return st.integers(1, 5) | st.tuples(*[st.integers(1, 4)] * heads)


def fixed(stride: int) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries({"stride": st.just(stride), "summary": st.integers(1, stride)})


def choices(name: str, heads: int, length: int) -> st.SearchStrategy[Mapping[str, Any]]:
    """The options of a pattern."""
    if name == "sparse_fixed":
        return st.integers(1, 20).flatmap(fixed)
    each: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "sliding_window": {"window": few | st.integers(1, 2 * length), "dilation": several(heads)},
        "cascade": {"base": few, "cardinal": st.integers(1, 3)},
        "local_blocks": {"block": few | st.integers(1, 2 * length)},
        "sparse_strided": {"stride": few | st.integers(1, 2 * length)},
        "blockwise": {"blocks": few | st.integers(1, 2 * length)},
        "longformer": {"window": few, "dilation": several(heads), "globals": st.integers(0, 9)},
        "bigbird": {
            "block": st.integers(1, 9),
            "random": st.integers(0, 4),
            "extra_globals": st.none() | st.integers(1, 9),
            "seed": st.integers(0, 99),
        },
        "etc": {
            "globals": st.integers(0, min(9, length)),
            "radius": few,
            "clip": st.none() | st.integers(0, 6),
        },
    }
    return st.fixed_dictionaries(each[name])


PATTERNS = (
    "sliding_window", "cascade", "local_blocks", "sparse_strided", "sparse_fixed", "blockwise", "longformer", "bigbird",
    "etc",
)  # fmt: skip
CAUSAL = PATTERNS[:5]
FORMS = [(name, False) for name in PATTERNS] + [(name, True) for name in CAUSAL]

each_pattern = pytest.mark.parametrize(
    ("name", "causal"), FORMS, ids=[f"{name}-causal" if causal else name for name, causal in FORMS]
)


@dataclass(frozen=True)
class Run:
    """A pattern, and the sizes of what it is given.

    Attributes:
        name: of the mechanism.
        options: of it.
        shape: heads, head width, layer.
        batch: B.
        queries: N.
        keys: M.
        padding: "none", "end", "holes" or "all", of an example.
        layout: of q, k and v in memory: "plain", or heads "inside" positions as a projection leaves them.
        rows: of a tile.
        size: of a slice.
        seed: of contents.
    """

    name: str
    options: Mapping[str, Any]
    shape: Mapping[str, Any]
    batch: int
    queries: int
    keys: int
    padding: str
    layout: str
    rows: int
    size: int
    seed: int

    def build(self, **options: Any) -> Attention:
        torch.manual_seed(self.seed)
        return build(self.name, Shape(**self.shape), **self.options, **options)

    def tensors(self) -> list[Tensor]:
        """q, k and v in float64, leaves."""
        generator = torch.Generator().manual_seed(self.seed)
        heads, dim = self.shape["heads"], self.shape["head_dim"]
        leaves = []
        for length in (self.queries, self.keys, self.keys):
            sizes = (self.batch, length, heads, dim) if self.layout == "inside" else (self.batch, heads, length, dim)
            x = torch.randn(sizes, generator=generator, dtype=torch.float64)
            leaves.append(x.transpose(1, 2) if self.layout == "inside" else x)
        return [x.requires_grad_() for x in leaves]

    def key_mask(self) -> Tensor | None:
        """True = keep (B, M)."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.padding == "none":
            return None
        if self.padding == "all":
            return torch.arange(self.batch)[:, None].expand(-1, self.keys) > 0
        if self.padding == "end":
            ends = torch.randint(1, self.keys + 1, (self.batch, 1), generator=generator)
            return torch.arange(self.keys) < ends
        return torch.rand(self.batch, self.keys, generator=generator) < 0.6


@st.composite
def runs(
    draw: st.DrawFn, name: str, *, causal: bool, longest: int = 150, decoding: bool = False, one_hot: bool = False
) -> Run:
    """Any of a pattern; `decoding`: with fewer queries than keys; `one_hot`: of head width M."""
    keys = draw(st.integers(1, 30) | st.integers(1, longest))
    heads, layer = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    return Run(
        name=name,
        options=draw(choices(name, heads, keys)),
        shape={
            "heads": heads,
            "head_dim": keys if one_hot else draw(st.integers(1, 9)),
            "max_len": keys + draw(st.sampled_from((0, 1, 40))),
            "causal": causal,
            "layer": layer,
            "layers": 3,
        },
        batch=draw(st.integers(1, 2)),
        queries=draw(st.integers(1, keys)) if decoding else keys,
        keys=keys,
        padding=draw(st.sampled_from(("none", "end", "holes", "all"))),
        layout=draw(st.sampled_from(("plain", "inside"))),
        rows=draw(st.sampled_from((2, 4, 6, 16, 64))),
        size=draw(st.sampled_from((60, 700, 2**19))),
        seed=draw(st.integers(0, 2**31)),
    )
