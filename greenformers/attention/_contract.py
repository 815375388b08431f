"""The contract of the attention slot: one shape, one signature, and capabilities the block may ask for."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers._torch import is_fake

Role = Literal["k", "v"]

Project = Callable[[Tensor, Sequence[str]], list[Tensor]]
"""The block's projections of inputs of its layer: (B, N, d), and names of projections, to (B, H, N, D) for each.

They have a gradient for these inputs, and none for the parameters of the block.
"""


@dataclass(frozen=True)
class Shape:
    """What a mechanism needs to know of the network around it.

    Attributes:
        heads: number of heads H.
        head_dim: width of one head D.
        max_len: the longest sequence of keys that it is made for.
        causal: position i sees only positions up to i.
        cross: queries and keys come from different sequences.
        layer: index of the layer the mechanism stands in, from 0.
        layers: number of layers of the network.

    Raises:
        ValueError: a number is out of range.
    """

    heads: int
    head_dim: int
    max_len: int
    causal: bool = False
    cross: bool = False
    layer: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "max_len", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.layer < self.layers:
            raise ValueError(f"layer must be in 0..{self.layers - 1}, got {self.layer}")


class Attention(nn.Module):
    """Base of every mechanism: `forward` is the one signature of the slot; the rest are capabilities.

    A capability is asked for by the block, never looked up by the mechanism's name. Those a mechanism
    lacks keep the answers given here.
    """

    projections: tuple[str, ...] = ("q", "k", "v")
    """Which projections of its input the block owns for this mechanism; of one that shares q and k, q and v."""

    shares_qk: bool = False
    """Whether queries are the keys too: the block then gives them as both, and a bare call reads q alone."""

    takes_global_mask: ClassVar[bool] = False
    """Whether `forward` takes `global_mask` (B, N), the positions that see all and are seen by all."""

    takes_pairs: ClassVar[bool] = False
    """Whether `forward` takes `pairs` (B, 1 or H, N, M): which keys each query sees, True = sees, in place of all that
    the shape says; or, of floats, what is added to their scores."""

    queries_apart: bool = False
    """Whether in cross-attention what a query gets depends on no other query: beams can share a memory then."""

    only_masks: ClassVar[bool] = False
    """Whether it is softmax attention to visible keys and nothing else: a beam search can say by a mask which are."""

    rank_option: ClassVar[str | None] = None
    """The option that says how much of full attention is kept, a number of its own kind: a study's ranks go there."""

    has_loss: ClassVar[bool] = False
    """Whether `forward_with_loss` gives a loss that belongs to the training."""

    chooses: ClassVar[bool] = False
    """Whether it chooses keys by a step that rounding can change: `choose` does, and `forward` takes `choice`."""

    positions: ClassVar[Literal["model", "own"]] = "model"
    """Who says where tokens stand: the model, by its embedding; or the mechanism itself, for any number of keys."""

    takes_rotation: ClassVar[bool] = False
    """Whether rotary positions may turn queries and keys before they are given: it reads their products alone."""

    adds_to_scores: Literal["nothing", "distances", "all"] = "nothing"
    """What of relative positions `forward` takes as `relative`: none; those that add a number for a head and a distance
    (`distances`); or also those that ask the query and mix vectors (`all`)."""

    bounded: ClassVar[bool] = False
    """Whether it has parameters of `max_len` positions, and attends no more keys; else it sets defaults by it."""

    compresses: ClassVar[bool] = False
    """Whether it has a memory that is shortened before it is forgotten: `compress` shortens it."""

    compressed: int = 0
    """How many positions are kept of what `compress` gave."""

    compress_multiple: int = 1
    """Of how many positions `compress` takes a multiple."""

    shared_parameters: tuple[str, ...] = ()
    """Parameters that `shared` took from layer 0: one tensor under several names in a checkpoint."""

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
            q: queries (B, H, N, D).
            k: keys (B, H, M, D).
            v: values (B, H, M, D).
            key_mask: True = keep (B, M). A query that may see no key gets 0. A text goes from its first kept position
                to its last: what it gets does not depend on how much is masked before and behind it, and positions
                are counted from its first. What is masked between them is a position without content.
            query_mask: True = keep (B, N); defaults to `key_mask` where N = M, except in cross-attention. Outputs
                of masked queries are finite and mean nothing, where what is masked is finite; where it is not (NaN
                say), N >= M and nothing is traced, outputs of kept queries are as if it were.

        Returns:
            One mixture of values a query (B, H, N, D).
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
        """`forward`, and a loss to be added to that of the task, already weighted; nothing is kept on the module."""
        raise NotImplementedError(f"{type(self).__name__} has no loss of its own")

    def weights(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        **further: Any,
    ) -> tuple[dict[str, Float[Tensor, "B H N M"]], Float[Tensor, "B H N D"]]:
        """How much of each value a query gets: W and c of out = W v + c, by `forward` of unit vectors, D at a time.

        Slow, and quadratic in memory whatever the mechanism is. All is as in evaluation: nothing is dropped or drawn.

        Args:
            q: queries (B, H, N, D).
            k: keys (B, H, M, D).
            key_mask: True = keep (B, M).
            **further: what else `forward` takes; values of a kind of their own (`v_global`) are not read.

        Returns:
            W (B, H, N, M) of each kind of values, `v` first, by name; and c (B, H, N, D), what is added without
            reading any: 0 but for vectors of positions.

        Raises:
            ValueError: the output is no weighted sum of values.
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
                name: [mixed(**{name: part.expand(B, H, M, D).contiguous()}) - added for part in units.split(D, 1)]
                for name in none
            }
        finally:
            self.train(training)
        return {name: torch.cat(each, -1)[..., :M] for name, each in parts.items()}, added

    def choose(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Tensor:
        """What `forward` would choose: to be given to it as `choice`, for inputs that are the same but for rounding."""
        raise NotImplementedError(f"{type(self).__name__} chooses nothing")

    @property
    def can_reduce(self) -> bool:
        """True if `reduce` and `attend` are exact for this instance."""
        return False

    def reduce(
        self,
        x: Float[Tensor, "B M C"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        role: Role,
    ) -> Float[Tensor, "B L C"]:
        """Shorten a sequence of keys or values by a map that is linear over positions.

        The block may apply it before the (second factor of the) key or value projection, where it is
        cheaper: reduce(x) W = reduce(x W).
        """
        raise NotImplementedError(f"{type(self).__name__} has no linear reduction over positions")

    def attend(
        self, q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H L D"], v: Float[Tensor, "B H L D"]
    ) -> Float[Tensor, "B H N D"]:
        """Mix values whose keys and values were already reduced."""
        raise NotImplementedError(f"{type(self).__name__} has no linear reduction over positions")

    def last(
        self,
        q: Float[Tensor, "B H 1 D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
    ) -> Float[Tensor, "B H 1 D"]:
        """`forward` of the last position alone, of inputs that are known to fit, outside training."""
        return self.forward(q, k, v, key_mask)

    @property
    def can_step(self) -> bool:
        """True if `step` is exact for this instance."""
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
            q: queries (B, H, N, D); fewer are those of the last positions.
            k: keys (B, H, N, D).
            v: values (B, H, N, D).
            state: what the positions before left, tensors (B, ...); None at the start.
            key_mask: True = keep (B, N), of these positions.

        Returns:
            Mixtures of values (B, H, N, D), and the state with these positions.
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
        """Shorten what leaves the memory.

        Args:
            x: the inputs of the layer that attend it.
            old: inputs of the layer, a multiple of `compress_multiple` positions.
            mask: True = keep, of `old`.
            project: see `Project`.
            query_mask: True = keep, of `x`.

        Returns:
            What stands for `old`, without a gradient; True where that is of any position that is kept; and in
            training the loss of what compresses, where it learns.
        """
        raise NotImplementedError(f"{type(self).__name__} has no memory to compress")

    def update_(self) -> None:
        """Change statistics that are no parameters (none here); to be called once a training step."""

    def shared(self, first: "Attention") -> None:
        """Take from `first`, the same mechanism in layer 0, the parameters all layers share (none here)."""

    def reset_parameters(self) -> None:
        """Draw the mechanism's own parameters anew (none here)."""


def check_lengths(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, shape: Shape) -> None:
    """As `check_fit`, of mechanisms that are `bounded`."""
    check_fit(q, k, v, key_mask, shape)
    if k.shape[2] > shape.max_len:
        raise ValueError(f"the number of keys must be in 1..{shape.max_len}, got {k.shape[2]}")


def check_fit(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, shape: Shape) -> None:
    """Raise ValueError where q, k, v and the mask do not fit each other or the shape."""
    batch, heads, _, dim = q.shape
    keys = k.shape[2]
    if (heads, dim) != (shape.heads, shape.head_dim):
        raise ValueError(f"q must have {shape.heads} heads of {shape.head_dim}, got {heads} of {dim}")
    if k.shape != (batch, heads, keys, dim) or v.shape != k.shape:
        raise ValueError(f"k and v must be ({batch}, {heads}, M, {dim}), got {tuple(k.shape)} and {tuple(v.shape)}")
    if keys < 1:
        raise ValueError(f"the number of keys must be at least 1, got {keys}")
    if key_mask is not None and (key_mask.shape != (batch, keys) or key_mask.dtype != torch.bool):
        raise ValueError(
            f"key_mask must be a bool tensor ({batch}, {keys}), got {key_mask.dtype} {tuple(key_mask.shape)}"
        )
    if shape.causal and keys < q.shape[2]:
        raise ValueError(f"causal attention needs at least as many keys as queries, got {keys} and {q.shape[2]}")


def set_(tensor: Tensor, values: Tensor) -> None:
    """Start a parameter or buffer with these values, unless a checkpoint has brought it.

    transformers initialises a module of which a checkpoint lacks something, and meanwhile has the functions of
    `torch.nn.init` leave alone what was loaded: whether they do is asked here, by writing what no tensor starts with.
    """
    if tensor.is_meta or is_fake(tensor):
        return
    nn.init.constant_(tensor, torch.nan)
    with torch.no_grad():
        if bool(tensor.isnan().all()):
            tensor.copy_(values)


def drawn_by(seed: int, shape: Shape, step: int = 0) -> torch.Generator:
    """The source of a layer's random numbers: the same for the same seed, layer and training step."""
    # torch's generator reads 32 bits of a seed; Python's random takes in all of a text.
    return torch.Generator().manual_seed(Random(f"{seed} {shape.layer} {step}").getrandbits(32))


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """A `with` block in which autocast leaves the types of products alone."""
    # There is no autocast for the meta device, on which operations are counted; and a program of torch.export with a
    # block that has no effect cannot be read again.
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def accurate(x: Tensor) -> torch.dtype:
    """The type to sum in for inputs of the type of `x`: at least float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def exact(x: Tensor) -> Tensor:
    """`x` as the type `accurate` gives."""
    return x.to(accurate(x))
