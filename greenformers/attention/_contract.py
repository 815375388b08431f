"""The contract of the attention slot: one shape, one signature, and capabilities the block may ask for."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Integral
from random import Random
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Role = Literal["k", "v"]

Project = Callable[[Tensor, Sequence[str]], list[Tensor]]
"""Function from inputs (B, N, d) of a layer and names of its projections to the projected heads (B, H, N, D) of each.

Its gradient reaches these inputs, and not the parameters of the layer.
"""


@dataclass(frozen=True)
class Shape:
    """Sizes of the network around a mechanism, which it is built with.

    Attributes:
        heads: Number H of heads.
        head_dim: Width D of a head.
        max_len: Length of the longest sequence of keys.
        causal: Whether position i sees only positions up to i.
        cross: Whether queries and keys come from different sequences.
        layer: Index of the layer of the mechanism, from 0.
        layers: Number of layers of the network.

    Raises:
        TypeError: A size is no whole number, or `causal` or `cross` neither true nor false.
        ValueError: A number is out of range.
    """

    heads: int
    head_dim: int
    max_len: int
    causal: bool = False
    cross: bool = False
    layer: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "max_len", "layer", "layers"):
            if not isinstance(size := getattr(self, name), Integral) or isinstance(size, bool):
                raise TypeError(f"{name} must be a whole number, got {size!r}")
        for name in ("causal", "cross"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for name in ("heads", "head_dim", "max_len", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.layer < self.layers:
            raise ValueError(f"layer must be in 0..{self.layers - 1}, got {self.layer}")


class Attention(nn.Module):
    """Base of every mechanism: `forward` is the one signature of the slot; the rest are capabilities.

    A capability is asked for by the block, never looked up by the mechanism's name. A mechanism keeps the
    answers given here for those it lacks.
    """

    projections: tuple[str, ...] = ("q", "k", "v")
    """Names of the projections that the block owns for this mechanism; q and v where queries are the keys too."""

    shares_qk: bool = False
    """Whether queries are the keys too: the block then passes them as both, and a bare call reads q alone."""

    takes_global_mask: ClassVar[bool] = False
    """Whether `forward` takes `global_mask` (B, N): True at positions that see all and are seen by all."""

    takes_pairs: ClassVar[bool] = False
    """Whether `forward` takes `pairs` (B, 1 or H, N, M): which keys each query sees, True = sees, in place of the
    causal mask of the shape; or, as floats, a bias of the scores."""

    queries_apart: bool = False
    """Whether in cross-attention the output of a query depends on no other query: beams may share encoder output."""

    only_masks: ClassVar[bool] = False
    """Whether it is plain softmax attention to visible keys: a beam search can select keys by a mask."""

    rank_option: ClassVar[str | None] = None
    """Name of the option that sets how much of full attention is kept; studies put their rank there."""

    has_loss: ClassVar[bool] = False
    """Whether `forward_with_loss` gives a loss to train with."""

    chooses: ClassVar[bool] = False
    """Whether it chooses keys by a step that rounding can change: `choose` returns the choice, `forward` takes it."""

    positions: Literal["model", "own"] = "model"
    """What encodes positions: the model, in its embedding, or the mechanism itself, for any number of keys."""

    takes_inputs: bool = False
    """Whether `forward` takes `inputs` (B, N, H D): the inputs of the layer at the queries; a bare call reads the
    queries of all heads in their place."""

    @property
    def reach(self) -> int | None:
        """Distance of the farthest earlier position that a query may see; None: it may see all."""
        return None

    @classmethod
    def positions_with(cls, **options: Any) -> Literal["model", "own"]:
        """`positions` of an instance with these options."""
        del options
        return cls.positions

    takes_rotation: ClassVar[bool] = False
    """Whether rotary positions may rotate queries and keys before the call: it reads only their products."""

    adds_to_scores: Literal["nothing", "distances", "all"] = "nothing"
    """Which relative positions `forward` takes as `relative`: none, those with a bias by head and distance
    (`distances`), or also those whose bias depends on the query or that add to values (`all`)."""

    bounded: bool = False
    """Whether it has parameters of `max_len` positions, and takes no more keys; else `max_len` only sets defaults."""

    compresses: ClassVar[bool] = False
    """Whether the segment memory is compressed before it is dropped: `compress` does it."""

    compressed: int = 0
    """Number of compressed positions that are kept."""

    compress_multiple: int = 1
    """Factor of the number of positions that `compress` takes."""

    last_shares_keys: bool = False
    """Whether `last` takes keys that several heads share as they are."""

    mixes_queries: ClassVar[bool] = False
    """Whether the output of a query depends on all others, also later ones: not for cross-attention of a decoder."""

    continues: bool = True
    """Whether the outputs of further positions on top of a cache are those of the whole sequence."""

    summed: ClassVar[tuple[str, ...]] = ()
    """Names of buffers that hold sums over the examples of a step, for `update_`."""

    shared_parameters: tuple[str, ...] = ()
    """Names of the parameters that `shared` took from layer 0: one tensor under several names in a checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        """Mix the values `v` for every query.

        Args:
            q: Queries (B, H, N, D).
            k: Keys (B, H, M, D).
            v: Values (B, H, M, D).
            key_mask: True = keep (B, M). A query that may see no key gets 0. A text goes from its first kept position
                to its last: its outputs do not depend on the number of masked positions before and behind it, and
                positions are counted from its first. Masked positions within it count as positions without content.
            query_mask: True = keep (B, N); defaults to `key_mask` where N = M, except in cross-attention. Outputs
                of masked queries mean nothing, and are finite where masked inputs are. Outputs of kept queries do
                not depend on masked inputs, even on NaN where N >= M and nothing is traced.

        Returns:
            Output of each query (B, H, N, D), a mixture of values.
        """
        raise NotImplementedError

    def forward_with_loss(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B H N D"], Float[Tensor, ""]]:
        """`forward`, and a weighted loss to be added to that of the task; nothing is stored on the module."""
        raise NotImplementedError(f"{type(self).__name__} has no loss of its own")

    def weights(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        **further: Any,
    ) -> tuple[dict[str, Float[Tensor, "B H N M"]], Float[Tensor, "B H N D"]]:
        """The attention weights W and the offset c of out = W v + c, by `forward` of unit vectors, D at a time.

        Slow, and quadratic in memory for every mechanism. Computed as in evaluation, without dropout and random draws.

        Args:
            q: Queries (B, H, N, D).
            k: Keys (B, H, M, D).
            key_mask: True = keep (B, M).
            **further: Other arguments of `forward`; further kinds of values (`v_global`) are not read.

        Returns:
            Weights W (B, H, N, M) by name of the kind of values, `v` first; and c (B, H, N, D), which depends on no
            values: it is 0 except for vectors of positions.

        Raises:
            ValueError: The output is no weighted sum of values.
        """
        training, (B, H, M, D) = self.training, k.shape
        units = torch.eye(M, M + -M % D, dtype=k.dtype, device=k.device)
        none = {name: k.new_zeros(B, H, M, D) for name in ("v", *(name for name in further if name[0] == "v"))}

        def mixed(**values: Float[Tensor, "B H M D"]) -> Tensor:
            out: Tensor = self(q=q, k=k, key_mask=key_mask, **further | none | values)
            return out

        self.eval()
        try:
            added = mixed()
            parts = {
                name: [mixed(**{name: unit.expand(B, H, M, D).contiguous()}) - added for unit in units.split(D, 1)]
                for name in none
            }
        finally:
            self.train(training)
        return {name: torch.cat(columns, -1)[..., :M] for name, columns in parts.items()}, added

    def choose(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Tensor:
        """The choice that `forward` would make, to be passed as `choice` with inputs that differ only by rounding."""
        raise NotImplementedError(f"{type(self).__name__} chooses nothing")

    @property
    def can_reduce(self) -> bool:
        """Whether `reduce` and `attend` are exact for this instance."""
        return False

    def reduce(
        self,
        x: Float[Tensor, "B M C"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        role: Role,
    ) -> Float[Tensor, "B L C"]:
        """Shorten a sequence of keys or values by a linear projection over positions.

        The block may apply it before the (second factor of the) key or value projection, where it is
        cheaper: reduce(x) W = reduce(x W).
        """
        raise NotImplementedError(f"{type(self).__name__} has no linear reduction over positions")

    def attend(
        self, q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H L D"], v: Float[Tensor, "B H L D"]
    ) -> Float[Tensor, "B H N D"]:
        """Attention to keys and values that were already reduced."""
        raise NotImplementedError(f"{type(self).__name__} has no linear reduction over positions")

    def last(
        self,
        q: Float[Tensor, "B H 1 D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
    ) -> Float[Tensor, "B H 1 D"]:
        """`forward` of the last position alone, without checks and outside training.

        With `last_shares_keys`, and under a mask `last_shares_masked`, keys and values may have fewer heads, which
        queries share in order.
        """
        return self.forward(q, k, v, key_mask)

    @property
    def last_shares_masked(self) -> bool:
        """Whether `last` takes keys that several heads share as they are, under a mask too."""
        return False

    @property
    def can_step(self) -> bool:
        """Whether `step` is exact for this instance."""
        return False

    def step(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H N D"],
        v: Float[Tensor, "B H N D"],
        state: tuple[Tensor, ...] | None,
        key_mask: Bool[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B H N D"], tuple[Tensor, ...]]:
        """Causal attention of the next N positions, given a state of fixed size in place of all earlier keys.

        Args:
            q: Queries (B, H, N, D); with fewer queries than keys, those of the last positions.
            k: Keys (B, H, N, D).
            v: Values (B, H, N, D).
            state: State after the positions before, tensors (B, ...); None at the start.
            key_mask: True = keep (B, N), for these positions.

        Returns:
            Outputs (B, H, N, D), and the state after these positions.
        """
        raise NotImplementedError(f"{type(self).__name__} has no state to decode with")

    def compress(
        self,
        x: Float[Tensor, "B N d"],
        old: Float[Tensor, "B n d"],
        mask: Bool[Tensor, "B n"] | None,
        project: Project,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None, Float[Tensor, ""] | None]:
        """Compress the positions that leave the segment memory.

        Args:
            x: Inputs (B, N, d) of the layer, which attend the memory.
            old: Earlier inputs (B, n, d) of the layer, n a multiple of `compress_multiple`.
            mask: True = keep (B, n), for `old`.
            project: Projections of the layer, see `Project`.
            query_mask: True = keep (B, N), for `x`.

        Returns:
            The compressed positions (B, m, d), without a gradient; their mask (B, m), True where any of the positions
            was kept; and in training the loss of the compression, where it has parameters.
        """
        raise NotImplementedError(f"{type(self).__name__} has no memory to compress")

    def update_(self) -> None:
        """Change statistics that are no parameters (none here); to be called once a training step.

        Where several processes have examples of a step, `summed` is to be added up over them before.
        """

    def shared(self, first: "Attention") -> None:
        """Take from `first`, the same mechanism in layer 0, the parameters all layers share (none here)."""

    def reset_parameters(self) -> None:
        """Draw the mechanism's own parameters anew (none here)."""


def check_lengths(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, shape: Shape, query_mask: Tensor | None = None
) -> None:
    """Raise ValueError as `check_fit`, and where there are more keys than `max_len`: for `bounded` mechanisms."""
    check_fit(q, k, v, key_mask, shape, query_mask)
    if k.shape[2] > shape.max_len:
        raise ValueError(f"the number of keys must be in 1..{shape.max_len}, got {k.shape[2]}")


def check_fit(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, shape: Shape, query_mask: Tensor | None = None
) -> None:
    """Raise ValueError where q, k, v and the masks do not fit each other or the shape."""
    batch, heads, queries, dim = q.shape
    keys = k.shape[2]
    if (heads, dim) != (shape.heads, shape.head_dim):
        raise ValueError(f"q must have {shape.heads} heads of {shape.head_dim}, got {heads} of {dim}")
    if k.shape != (batch, heads, keys, dim) or v.shape != k.shape:
        raise ValueError(f"k and v must be ({batch}, {heads}, M, {dim}), got {tuple(k.shape)} and {tuple(v.shape)}")
    if keys < 1:
        raise ValueError(f"the number of keys must be at least 1, got {keys}")
    for name, mask, length in (("key_mask", key_mask, keys), ("query_mask", query_mask, queries)):
        if mask is not None and (mask.shape != (batch, length) or mask.dtype != torch.bool):
            raise ValueError(f"{name} must be a bool tensor ({batch}, {length}), got {mask.dtype} {tuple(mask.shape)}")
    if shape.causal and keys < queries:
        raise ValueError(f"causal attention needs at least as many keys as queries, got {keys} and {queries}")


def drawn_by(seed: int, shape: Shape, step: int = 0) -> torch.Generator:
    """A generator of the random numbers of a layer: the same for the same seed, layer and training step."""
    # torch's generator reads 32 bits of a seed; Python's random reads a whole string.
    return torch.Generator().manual_seed(Random(f"{seed} {shape.layer} {step}").getrandbits(32))


def on_gpu(x: Tensor) -> bool:
    """Whether few large operations are faster than many that fit a cache."""
    return x.is_cuda


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """A `with` block in which autocast does not change the dtypes of products."""
    # There is no autocast for the meta device, on which operations are counted; and a program of torch.export with a
    # block that has no effect cannot be read again.
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def accurate(x: Tensor) -> torch.dtype:
    """The dtype in which sums over inputs of the dtype of `x` are computed: at least float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def exact(x: Tensor) -> Tensor:
    """`x` in the dtype that `accurate` gives."""
    return x.to(accurate(x))
