"""Universal Transformer. Dehghani 2018, arXiv:1807.03819: one layer, as often at each position as that position needs.

Step n reads u = s + P_n, P_n[i] the sinusoid of position i plus that of step n, and makes s <- layer(u). A position
halts by adaptive computation time (Graves 2016, arXiv:1603.08983): p_n = sigmoid(w u + b), N the first n with
p_1 + ... + p_n > 1 - eps, at most n_max; y = sum of w_n s_n with w_n = p_n for n < N and w_N = R = 1 - sum of p_n for
n < N. Loss tau mean(N + R). A halted position keeps its state, which others attend.

Time: N layers at a position in place of n_max. A position that has halted is a key, and no query: of the layer only
its keys and values are computed.
"""

from math import log

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers._initial import set_
from greenformers.attention._aligned import is_traced
from greenformers.attention._contract import accurate, full_precision
from greenformers.depth._contract import Depth, Gone, Size, Step
from greenformers.depth._running import Running
from greenformers.position.sinusoidal import sinusoidal

MIXES = ("sum", "interpolate")
CODES = ("sinusoidal", "learned", "none")


def reference(
    depth: "Universal",
    x: Float[Tensor, "B N d"],
    step: Step,
    mask: Bool[Tensor, "B N"],
    positions: Int[Tensor, "b N"] | None = None,
) -> tuple[Float[Tensor, "B N d"], Int[Tensor, "B N"], Float[Tensor, "B N"]]:
    """The definition: n_max steps of all positions, of which those of halted ones have no effect.

    Compiled and exported code takes this form, as sizes of tensors cannot depend on numbers there.

    Returns:
        y (B, N, d), N (B, N) and R (B, N).
    """
    s, active = x.masked_fill(~mask[..., None], 0.0), mask
    y, N, halting = torch.zeros_like(s), mask.long() * 0, Halting.begin(s)
    for n, P in enumerate(depth.added(s, positions)):
        u = s + P
        weight, halting, going = depth.weigh(u, n, active, halting)
        new = step(n, u, None).to(s.dtype)
        N = N + active.long()
        y = depth.mixed(y, new, weight.to(s.dtype)[..., None])
        s = torch.where((active if depth.mix == "sum" else mask)[..., None], new, s)
        active = going
    return y, N, halting.remainder


class Halting:
    """Sums of adaptive computation time at each position.

    Attributes:
        total: Sum of p_n so far (B, N), of positions that have not halted.
        remainder: R (B, N), 0 before a position halts.
    """

    def __init__(self, total: Float[Tensor, "B N"], remainder: Float[Tensor, "B N"]) -> None:
        self.total, self.remainder = total, remainder

    @classmethod
    def begin(cls, x: Float[Tensor, "B N d"]) -> "Halting":
        """The sums before the first step."""
        zero = x.new_zeros(x.shape[:2], dtype=accurate(x))
        return cls(zero, zero)


class Universal(Depth):
    """One layer for up to n_max steps, with adaptive computation time.

    The number of layers of the network is n_max; with `halts=False`, `codes="none"` and a kind of position named, this
    is depth "shared". Without a kind of position named, sinusoids of positions are added before every step, as in the
    paper, and none to the embedding.

    N is piecewise constant: the loss reaches p through R alone, and where N = 1 the weight is 1 whatever p is, which
    then has no gradient. A network in which that happens everywhere stays at one step for good. With w = 0, b alone
    sets the first number of steps: 1 and 0 make two, -1 four, -2 nine, -3 twenty-one; so b must fit n_max.

    Args:
        size: Sizes of the network around it.
        halts: Whether positions halt; otherwise each goes through n_max steps, whose last state is the output.
        eps: Sum of the p_n above 1 - eps halts, in (0, 1).
        tau: Weight of the loss mean(N + R), at least 0.
        bias: First b; None: -log(k - 1) with k = max(2, n_max / 2) rounded up, so that all positions make k steps.
        mix: "sum" is y as above. "interpolate" is y <- w s + (1 - w) y, from 0, of the papers' released code: weights
            then sum to 1 - prod(1 - w); halted positions go on changing and are seen as they change, so that
            computation stops where all have halted, and on top of a cache never; and what p is left at n_max is lost.
        codes: What step n adds to the state: "sinusoidal", "learned" vectors, which start as the sinusoids, or "none".

    Attributes:
        weight: w (d,). It is a parameter, not a linear layer: changes that make those smaller leave it as it is.
        bias: b (1,).
        code: The learned vectors (n_max, d), or None.

    Raises:
        ValueError: An option is out of range or of no effect.
    """

    shares = True
    positions = "own"

    def __init__(
        self,
        size: Size,
        *,
        halts: bool = True,
        eps: float = 0.01,
        tau: float = 0.01,
        bias: float | None = None,
        mix: str = "sum",
        codes: str = "sinusoidal",
    ) -> None:
        super().__init__(size)
        if not 0 < eps < 1:
            raise ValueError(f"eps must be in (0, 1), got {eps}")
        if tau < 0:
            raise ValueError(f"tau must be at least 0, got {tau}")
        for name, number, default in (("eps", eps, 0.01), ("tau", tau, 0.01), ("bias", bias, None)):
            if not halts and number != default:
                raise ValueError(f"{name} has an effect only where halts is true; got {number}")
        for name, value, choices in (("mix", mix, MIXES), ("codes", codes, CODES)):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
        self.halts, self.eps, self.tau, self.mix, self.codes = halts, eps, tau, mix, codes
        self.first_bias = -log(max(2, -(-size.steps // 2)) - 1 or 1) if bias is None else bias
        self.weight = nn.Parameter(torch.empty(size.width)) if halts else None
        self.bias = nn.Parameter(torch.empty(1)) if halts else None
        self.code = nn.Parameter(torch.empty(size.steps, size.width)) if codes == "learned" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set w to 0, b to its first value and learned codes to the sinusoids."""
        if self.weight is not None and self.bias is not None:
            nn.init.zeros_(self.weight)
            nn.init.constant_(self.bias, self.first_bias)
        if self.code is not None:
            set_(self.code, self._of_steps(self.code))

    def forward(  # noqa: D102
        self,
        x: Float[Tensor, "B N d"],
        step: Step,
        *,
        mask: Bool[Tensor, "B N"] | None = None,
        positions: Int[Tensor, "b N"] | None = None,
        keeps: bool = False,
    ) -> Gone:
        is_token = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        if not self.halts:
            return self._without_halting(x, step, is_token, positions)
        if is_traced(x):
            y, N, R = reference(self, x, step, is_token, positions)
            return Gone(y, N, self.loss(N, R, is_token))
        s, active = x if mask is None else x.masked_fill(~mask[..., None], 0.0), is_token
        y, N, halting = torch.zeros_like(s), torch.zeros_like(is_token, dtype=torch.long), Halting.begin(s)
        whole = self.mix == "interpolate"
        for n, P in enumerate(self.added(s, positions)):
            if not keeps and not bool(active.any()):
                break
            u = s + P
            weight, halting, going = self.weigh(u, n, active, halting)
            N, weight = N + active.long(), weight.to(s.dtype)[..., None]
            if whole or torch.equal(active, is_token):
                new = step(n, u, None).to(s.dtype)
                y = self.mixed(y, new, weight)
                s = new if mask is None else torch.where(mask[..., None], new, s)
            else:
                running = Running.of(active)
                new = step(n, u, running)
                s = running.put(s, new)
                y = running.put(y, self.mixed(running.take(y), new.to(y.dtype), running.take(weight)))
            active = going
        return Gone(y, N, self.loss(N, halting.remainder, is_token))

    def added(
        self, x: Float[Tensor, "B N d"], positions: Int[Tensor, "b N"] | None = None
    ) -> list[Float[Tensor, "#b #N d"]]:
        """P_n of every step, what is added to the states before it, for positions from 0; None: 0 to N - 1."""
        P: list[Tensor] = [x.new_zeros(1, 1, self.size.width)] * self.size.steps
        if self.size.positions:
            places = torch.arange(x.shape[1], device=x.device)[None] if positions is None else positions
            P = [sinusoidal(places, self.size.width, x.dtype)] * self.size.steps
        if self.codes == "none":
            return P
        codes = self._of_steps(x) if self.code is None else self.code
        return [place + code for place, code in zip(P, codes.to(x.dtype), strict=True)]

    def _of_steps(self, like: Tensor) -> Float[Tensor, "n d"]:
        """The sinusoids of steps 1 to n_max."""
        return sinusoidal(torch.arange(1, self.size.steps + 1, device=like.device), self.size.width, like.dtype)

    def weigh(
        self, u: Float[Tensor, "B N d"], n: int, active: Bool[Tensor, "B N"], halting: Halting
    ) -> tuple[Float[Tensor, "B N"], Halting, Bool[Tensor, "B N"]]:
        """What step n counts for, in float32 or wider.

        Args:
            u: Input of the step.
            n: The step, from 0.
            active: True = has not halted.
            halting: Sums before the step.

        Returns:
            The weight w_n of each position, 0 where it has halted before; sums after the step; and the positions that
            go on.
        """
        assert self.weight is not None
        assert self.bias is not None
        wide = accurate(u)
        with full_precision(u):
            p = (u.to(wide) @ self.weight.to(wide) + self.bias.to(wide)).sigmoid()
        left = 1 - halting.total
        halts = active & (halting.total + p > 1 - self.eps)
        if n + 1 == self.size.steps and self.mix == "sum":
            halts = active
        weight = torch.where(halts, left, p).masked_fill(~active, 0.0)
        going = active & ~halts
        total = halting.total + p.masked_fill(~going, 0.0)
        return weight, Halting(total, torch.where(halts, left, halting.remainder)), going

    def mixed(
        self, y: Float[Tensor, "*B d"], s: Float[Tensor, "*B d"], weight: Float[Tensor, "*B 1"]
    ) -> Float[Tensor, "*B d"]:
        """The output after a step with state s of this weight."""
        return weight * s + (y if self.mix == "sum" else (1 - weight) * y)

    def loss(
        self, N: Int[Tensor, "B N"], R: Float[Tensor, "B N"], is_token: Bool[Tensor, "B N"]
    ) -> Float[Tensor, ""] | None:
        """Tau mean(N + R) over the positions of tokens; None outside training and where tau is 0."""
        if not (self.training and self.tau):
            return None
        return self.tau * (N + R).masked_fill(~is_token, 0.0).sum() / is_token.sum().clamp(min=1)

    def _without_halting(self, x: Tensor, step: Step, is_token: Tensor, positions: Tensor | None) -> Gone:
        for n, P in enumerate(self.added(x, positions)):
            x = step(n, x + P, None)
        return Gone(x, is_token.long() * self.size.steps, None)

    def extra_repr(self) -> str:  # noqa: D102
        return f"steps={self.size.steps}, halts={self.halts}, mix={self.mix}"
