"""A mixture of experts in place of the feed-forward block: each position goes through k of E experts.

p = softmax(W_r x) in float32, and y = sum over the k experts e of the largest p_e of g_e FFN_e(x). Switch Transformer,
Fedus 2021, arXiv:2101.03961: k = 1 and g_e = p_e, which is what the router learns from. With k > 1 the gates are
divided by their sum (Shazeer 2017, arXiv:1701.06538; GShard, arXiv:2006.16668).

Time O(N k d f + N d E), parameters 2 E d f: E / k times those of a dense block of as many operations. All of them are
read as soon as N k > E, so that for few positions memory bounds the time. Choices are sorted by expert, so that each
expert computes one product with its own rows, and one without rows none; the one-hot tensor (N, E, C) of the paper's
listing, whose two products take O(k N^2 d), is never made.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers._torch import in_transform
from greenformers.feed_forward._contract import FeedForward, Size
from greenformers.feed_forward._expert_parallel import summed_over, through_owners
from greenformers.lowrank.experts import Routed, draw_experts, draw_truncated, experts_layer

PUBLISHED = (1.25, 2.0)
"""Capacity factors in training and in evaluation. Fedus 2021, 2.2 and table 1."""

Capacity = float | Sequence[float] | Literal["default"] | None


class Routing(NamedTuple):
    """What the router makes of T positions.

    Attributes:
        logits: W_r x (T, E), float32 or wider.
        p: Their softmax (T, E).
        chosen: The k experts of each position (T, k), the likeliest first.
        gates: Weights g of these (T, k).
    """

    logits: Float[Tensor, "T E"]
    p: Float[Tensor, "T E"]
    chosen: Int[Tensor, "T k"]
    gates: Float[Tensor, "T k"]


class Switch(FeedForward):
    """y = sum of g_e down_e(activation(up_e(x))) over the k experts that a router chooses for each position.

    With a capacity factor c, an expert takes C = max(least, ceil(c k n / E)) of the choices of a sequence of n kept
    positions, in the order of position and then of choice; a later one gets 0 from it, and the position passes by the
    residual. So the sequences of a batch do not depend on each other, nor on padding. (As published, groups of the
    flattened batch compete, and all first choices come before any second one, which for k > 1 looks into the future.)

    In a causal stack n is the length of the longest sequence, as the final one is not known; such a block with a
    capacity reads the whole sequence at each step and takes no cache.

    Masked positions are never routed, take no place and are in no mean; their output is 0.

    Args:
        size: Sizes of the network around it. Ranks of its linear layers are those of each expert.
        experts: Number E of experts.
        k: Number of experts of a position, in 1..E.
        capacity: Capacity factor c, above 0, or two: in training and in evaluation. None: every choice is computed
            ("dropless"). "default": 1.25 and 2.0, and dropless in a causal stack.
        least: Least capacity C.
        jitter: In training the router sees x times random numbers from 1 - jitter to 1 + jitter; experts see x.
        balance: Weight a of the loss a E sum_e f_e P_e, with f_e the share of choices of an expert, before capacity,
            and P_e the mean of p_e: a where all experts get as much. Fedus 2021, eq. 4.
        z: Weight of the loss mean(logsumexp(W_r x)^2). ST-MoE, Zoph 2022, arXiv:2202.08906, eq. 5.
        normalised: Whether gates are divided by their sum. None: where k > 1. With k = 1 the gate is then
            p / p.detach(): 1, with the gradient of log p.
        gated: Whether experts are down(activation(gate(x)) * up(x)).
        dropout: Probability of dropout of the inner activation of experts. Fedus 2021, 2.4, fine-tunes with 0.4.
        spread: Weights are drawn with the variance spread / fan_in. Fedus 2021, 2.4, has 0.1.

    Attributes:
        router: W_r (E, d). It is a parameter, not a linear layer: changes that make those smaller leave it as it is.
        gate, up, down: Linear layers of all experts, dense or low-rank; `gate` is None unless experts are gated.
        group: Processes that the experts are spread over, see `greenformers.train.expert_parallel`; None: not spread.

    Raises:
        ValueError: An option is out of range.
    """

    by_position: ClassVar[bool] = False  # all positions at once: each slice of them would read all weights
    chooses: ClassVar[bool] = True

    def __init__(
        self,
        size: Size,
        *,
        experts: int = 8,
        k: int = 1,
        capacity: Capacity = "default",
        least: int = 4,
        jitter: float = 0.01,
        balance: float = 1e-2,
        z: float = 1e-3,
        normalised: bool | None = None,
        gated: bool = False,
        dropout: float = 0.0,
        spread: float = 0.1,
    ) -> None:
        super().__init__(size)
        at_least = {"experts": (experts, 1), "least": (least, 1), "balance": (balance, 0), "z": (z, 0)}
        for name, (value, bound) in at_least.items():
            if value < bound:
                raise ValueError(f"{name} must be at least {bound}, got {value}")
        for name, share in {"jitter": jitter, "dropout": dropout}.items():
            if not 0 <= share < 1:
                raise ValueError(f"{name} must be in [0, 1), got {share}")
        if not 1 <= k <= experts:
            raise ValueError(f"k must be in 1..{experts}, got {k}")
        if not spread > 0:
            raise ValueError(f"spread must be above 0, got {spread}")
        self.experts, self.k, self.least, self.jitter, self.dropout = experts, k, least, jitter, dropout
        self.balance, self.z, self.spread = balance, z, spread
        self.capacity = _factors(capacity, size.causal)
        if self.capacity is not None and size.causal and size.max_len is None:
            raise ValueError(f"capacity must be None in a causal block without a longest length, got {capacity}")
        self.normalised = k > 1 if normalised is None else normalised
        self.has_loss = balance > 0 or z > 0
        self.continues = self.capacity is None or not size.causal
        self.router = nn.Parameter(torch.empty(experts, size.width))
        wide, narrow = size.hidden, size.width
        self.gate = experts_layer(experts, narrow, wide, size.ranks.get("gate"), bias=size.bias) if gated else None
        self.up = experts_layer(experts, narrow, wide, size.ranks.get("up"), bias=size.bias)
        self.activation = size.activation()
        self.down = experts_layer(experts, wide, narrow, size.ranks.get("down"), bias=size.bias)
        self.group: Any = None
        self.reset_parameters()

    @property
    def inner_width(self) -> int:  # noqa: D102
        return self.k * self.size.hidden * (1 if self.gate is None else 2)

    def reset_parameters(self) -> None:
        """Draw the router and all experts anew."""
        draw_truncated(self.router, (self.spread / self.size.width) ** 0.5)
        for layer in (self.gate, self.up):
            if layer is not None:
                draw_experts(layer, (self.spread / self.size.width) ** 0.5)
        draw_experts(self.down, (self.spread / self.size.hidden) ** 0.5)

    def forward(  # noqa: D102
        self,
        x: Float[Tensor, "*B N d"],
        mask: Bool[Tensor, "*B N"] | None = None,
        *,
        choice: dict[str, Tensor] | None = None,
    ) -> Float[Tensor, "*B N d"]:
        return self._mixture(x, mask, self.route(x, choice))

    def forward_with_loss(  # noqa: D102
        self,
        x: Float[Tensor, "*B N d"],
        mask: Bool[Tensor, "*B N"] | None = None,
        *,
        choice: dict[str, Tensor] | None = None,
    ) -> tuple[Float[Tensor, "*B N d"], Float[Tensor, ""]]:
        routing = self.route(x, choice)
        return self._mixture(x, mask, routing), self.loss(routing, mask)

    def route(self, x: Float[Tensor, "*B N d"], choice: dict[str, Tensor] | None = None) -> Routing:
        """What the router makes of the positions of all sequences, masked ones too.

        Args:
            x: Input of the block (B, N, d).
            choice: A choice made before on the same sequences, or an empty dictionary that it is put into.
        """
        seen = x.flatten(0, -2)
        wide = torch.promote_types(x.dtype, torch.float32)
        with _without_autocast(x):
            seen = seen.to(wide)
            if self.training and self.jitter:
                seen = seen * torch.empty_like(seen).uniform_(1 - self.jitter, 1 + self.jitter)
            logits = F.linear(seen, self.router.to(wide))
            p = logits.softmax(-1)
        chosen = p.topk(self.k).indices if not choice else choice["experts"]
        if choice is not None:
            choice["experts"] = chosen
        g = p.gather(-1, chosen)
        if self.normalised:
            g = g / (g.detach() if self.k == 1 else g.sum(-1, keepdim=True))
        return Routing(logits, p, chosen, g)

    def loss(self, routing: Routing, mask: Bool[Tensor, "*B N"] | None = None) -> Float[Tensor, ""]:
        """The loss: balance E sum_e f_e P_e + z mean(logsumexp(W_r x)^2), over the kept positions of all processes."""
        logits, p, chosen, _ = routing
        weight = p.new_ones(len(p)) if mask is None else mask.flatten().to(p.dtype)
        if mask is not None:  # what stands at masked positions may be inf or NaN
            logits, p = (part.masked_fill(~mask.flatten()[:, None], 0.0) for part in (logits, p))
        choices = p.new_zeros(self.experts).index_add(0, chosen.flatten(), weight.repeat_interleave(self.k))
        square = (logits.logsumexp(-1).square() * weight).sum()
        sums = summed_over(torch.cat([choices, p.sum(0), torch.stack([square, weight.sum()])]), self.group)
        n = sums[-1].clamp(min=1)
        f, P = (sums[:-2] / n).split(self.experts)  # f is k where all choose the expert
        return self.balance * self.experts * (f / self.k * P).sum() + self.z * sums[-2] / n

    def held(self, routing: Routing, mask: Bool[Tensor, "*B N"] | None, length: int) -> Int[Tensor, "T k"]:
        """The choices that are computed: those of masked positions, and those over the capacity, become E.

        Args:
            routing: What the router made of the positions.
            mask: True = keep (B, N).
            length: Length N of the sequences.
        """
        held = routing.chosen
        if mask is not None:
            held = held.masked_fill(~mask.flatten()[:, None], self.experts)
        if self.capacity is None or not length:
            return held
        by_sequence = held.view(-1, length * self.k)
        lengths = held.new_full((len(by_sequence),), length) if mask is None else mask.view(-1, length).sum(-1)
        if self.size.causal:
            lengths = torch.full_like(lengths, self.size.max_len or 0)
        factor = self.capacity[0 if self.training else 1] * self.k / self.experts
        # Rounded up, but not for the last digit of a product such as 1.1 * 10.
        # In Python: some accelerators have no float64.
        longest = max(length, self.size.max_len or 0)
        table = [max(self.least, math.ceil(count * factor - 1e-9)) for count in range(longest + 1)]
        most = torch.tensor(table, device=held.device)[lengths.long()]
        over = _places(by_sequence, self.experts) >= most[:, None]
        return by_sequence.masked_fill(over, self.experts).view_as(held)

    def _mixture(self, x: Tensor, mask: Tensor | None, routing: Routing) -> Tensor:
        rows, held = x.flatten(0, -2), self.held(routing, mask, x.shape[-2])
        if torch.compiler.is_compiling() or in_transform():
            if self.group is not None:
                raise ValueError("experts spread over processes can be neither compiled nor transformed")
            return self.reference(rows, held, routing.gates).to(x.dtype).view_as(x)
        routed = Routed.of(held, self.experts)
        y = through_owners(self._experts, rows[routed.tokens], routed, self.group)
        return routed.summed(y, routing.gates).to(x.dtype).view_as(x)

    def reference(
        self, x: Float[Tensor, "T d"], held: Int[Tensor, "T k"], gates: Float[Tensor, "T k"]
    ) -> Float[Tensor, "T d"]:
        """The definition, sum_e g_e FFN_e(x) with g_e = 0 for experts that are not held: all of them are computed.

        Compiled and exported code takes this form, as sizes of tensors cannot depend on numbers there.

        Args:
            x: Positions (T, d).
            held: Experts of each (T, k), E for none.
            gates: Their weights g (T, k).
        """
        of_each = self._experts(x.repeat(self.experts, 1), Routed.all(len(x), self.experts, x.device))
        g = gates.new_zeros(len(x), self.experts + 1).scatter_add(1, held, gates)[:, :-1]
        return torch.einsum("te,etd->td", g, of_each.view(self.experts, len(x), -1).to(g.dtype))

    def _experts(self, rows: Float[Tensor, "S d"], routed: Routed) -> Float[Tensor, "S d"]:
        """Each row through its expert."""
        inner = self.up(rows, routed)
        inner = self.activation(inner) if self.gate is None else self.activation(self.gate(rows, routed)) * inner
        y: Tensor = self.down(F.dropout(inner, self.dropout, self.training), routed)
        return y

    def flat(self) -> Callable[[Tensor], Tensor]:  # noqa: D102
        return self.forward

    def extra_repr(self) -> str:  # noqa: D102
        return f"experts={self.experts}, k={self.k}, capacity={self.capacity}"


def _factors(capacity: Capacity, causal: bool) -> tuple[float, float] | None:
    """The capacity factors in training and in evaluation; None: dropless."""
    if capacity == "default":
        return None if causal else PUBLISHED
    if capacity is None:
        return None
    several = isinstance(capacity, Sequence) and not isinstance(capacity, str)
    factors: Any = capacity if several else (capacity, capacity)
    if len(factors) != 2 or not all(type(c) in (int, float) and c > 0 for c in factors):
        raise ValueError(f'capacity must be a number above 0, two of them, None or "default"; got {capacity!r}')
    return factors[0], factors[1]


def _places(ids: Int[Tensor, "B S"], experts: int) -> Int[Tensor, "B S"]:
    """How many choices before each in its row are of the same expert; numbers up to E."""
    by_row = (ids + torch.arange(len(ids), device=ids.device)[:, None] * (experts + 1)).flatten()
    ordered, order = by_row.sort(stable=True)
    place = torch.arange(len(ordered), device=ids.device) - torch.searchsorted(ordered, ordered)
    return torch.empty_like(place).scatter(0, order, place).view_as(ids)


def _without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A `with` block in which numbers keep their type; there is no autocast for the meta device."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
