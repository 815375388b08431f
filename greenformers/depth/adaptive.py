"""Depth-Adaptive Transformer. Elbayad 2019, arXiv:1910.10073: an exit with scores of tokens after each decoder layer.

Exit n scores C_n(h_n) = score(norm_n(h_n)), h_n the state after layer n; norms are those of exits, the linear layer to
tokens is shared. A token leaves at the first n that its halting takes; above it layers read its state as it left, so
that later tokens find keys and values of every layer. Halting, with L layers and h_n behind its norm:

    confidence   max softmax C_n(h_n) > threshold_n; nothing is trained for it
    geometric    c_n = sigmoid(w_n h_n + b_n) > 0.5, q(n) = c_n prod_{m<n} (1 - c_m)
    multinomial  argmax_n q(n), q = softmax(W h_1 + b)
    sequence     argmax_n q(n), q = softmax(W m + b), m the mean of the encoder output: one exit for all tokens
    fixed        one exit for all

Trained halting learns an oracle q*: the n of largest LL_n - lambda n, LL_n the log-likelihood of the label at exit n,
or 1 and 0 for whether it is right: loss + alpha CE(q*, q).

Time: n layers at a token in place of L; of the others keys and values alone. Confidence takes a product with the
vocabulary at each exit on the way.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers.attention._aligned import is_traced
from greenformers.depth._contract import Depth, Exits, Gone, Size, Step
from greenformers.depth._running import Running

HALTINGS = ("confidence", "geometric", "multinomial", "sequence", "fixed")
TRAININGS = ("aligned", "mixed")
ORACLES = ("likelihood", "correctness")


class Adaptive(Depth):
    """The layers of a decoder, with an exit after each.

    In training every exit learns. "aligned": all tokens go through all layers, and the loss is the weighted mean of
    those of all exits. "mixed": each token leaves at an exit drawn at random, its state is copied above it, as in use,
    and the loss is the mean over `paths` such draws; halting that is trained needs the losses of all exits, and so
    "aligned".

    Args:
        size: Sizes of the network around it.
        halting: How tokens leave outside training, see above.
        threshold: Of confidence, in [0, 1], or one for each exit but the last; at 1 tokens go through all layers.
        exit: The exit of "fixed", in 1..L; None: the last.
        train: "aligned" or "mixed".
        paths: Number of draws of a step of "mixed".
        by_depth: Whether exit n of "aligned" weighs n; otherwise all weigh the same.
        oracle: What the oracle goes by: "likelihood" or "correctness".
        cost: lambda, what a layer costs the oracle, at least 0.
        smooth: sigma, by which likelihoods of the tokens around one count with exp(-|t - t'|^2 / sigma); 0: its own.
        alpha: Weight of the loss of halting.

    Attributes:
        norms: The norm of each exit.
        weight, bias: w_n and b_n of "geometric" (L - 1, d) and (L - 1,), W and b of the two that choose, (L, d) and
            (L,); None where nothing is trained.

    Raises:
        ValueError: An option is out of range or of no effect, or trained halting or `by_depth` is asked for with
            "mixed".
    """

    exits = True

    def __init__(
        self,
        size: Size,
        *,
        halting: str = "confidence",
        threshold: float | Sequence[float] = 0.9,
        exit: int | None = None,  # noqa: A002 - what it is
        train: str = "aligned",
        paths: int = 1,
        by_depth: bool = False,
        oracle: str = "likelihood",
        cost: float = 0.1,
        smooth: float = 0.0,
        alpha: float = 0.1,
    ) -> None:
        super().__init__(size)
        for name, value, choices in (
            ("halting", halting, HALTINGS),
            ("train", train, TRAININGS),
            ("oracle", oracle, ORACLES),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
        for name, least, number in (("paths", 1, paths), ("cost", 0, cost), ("smooth", 0, smooth), ("alpha", 0, alpha)):
            if number < least:
                raise ValueError(f"{name} must be at least {least}, got {number}")
        L = size.steps
        if exit is not None and not 1 <= exit <= L:
            raise ValueError(f"exit must be in 1..{L}, got {exit}")
        self.halting, self.exit, self.training_by, self.paths, self.by_depth = halting, exit, train, paths, by_depth
        self.oracle, self.cost, self.smooth, self.alpha = oracle, cost, smooth, alpha
        self.thresholds = _thresholds(threshold, L)
        self.learns = halting in ("geometric", "multinomial", "sequence")
        if self.learns and train == "mixed":
            raise ValueError(
                f"train must be aligned where halting is {halting}, whose oracle reads all exits; got 'mixed'"
            )
        if by_depth and train == "mixed":
            raise ValueError("by_depth must be False where train is mixed, whose draws have no order; got True")
        # What is given beside the default must be of effect.
        oracles = (
            ("oracle", oracle, "likelihood"),
            ("cost", cost, 0.1),
            ("smooth", smooth, 0.0),
            ("alpha", alpha, 0.1),
        )
        for name, value, default, acts, where in (
            ("threshold", threshold, 0.9, halting == "confidence", "halting is confidence"),
            ("exit", exit, None, halting == "fixed", "halting is fixed"),
            ("paths", paths, 1, train == "mixed", "train is mixed"),
            *((*row, self.learns, "halting is geometric, multinomial or sequence") for row in oracles),
            ("smooth", smooth, 0.0, halting != "sequence", "tokens leave one by one, not where halting is sequence"),
        ):
            if not acts and value != default:
                raise ValueError(f"{name} has an effect only where {where}; got {value!r}")
        self.norms = nn.ModuleList(size.norm() for _ in range(L))
        rows = L - 1 if halting == "geometric" else L
        self.weight = nn.Parameter(torch.empty(rows, size.width)) if self.learns else None
        self.bias = nn.Parameter(torch.empty(rows)) if self.learns else None
        self.reset_parameters()

    @property
    def scores(self) -> bool:
        """Whether tokens are scored to tell whether they leave."""
        return self.halting == "confidence"

    def reset_parameters(self) -> None:
        """Set W or w_n, and their biases, to 0: every exit is as likely, or as c_n = 0.5 leaves it."""
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                nn.init.zeros_(parameter)

    def forward(  # noqa: D102
        self,
        x: Float[Tensor, "B N d"],
        step: Step,
        *,
        mask: Bool[Tensor, "B N"] | None = None,
        positions: Int[Tensor, "b N"] | None = None,
        keeps: bool = False,
        score: Callable[[Tensor], Tensor] | None = None,
        context: Float[Tensor, "B d"] | None = None,
    ) -> Gone:
        del positions
        is_token = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        if self.training:
            return (
                self._aligned(x, step, is_token, context)
                if self.training_by == "aligned"
                else self._mixed(x, step, is_token)
            )
        leaving = self._halting(score, context, is_token)
        y, steps = self._through(x, step, is_token, leaving, keeps=keeps)
        return Gone(y, steps, None)

    def _through(
        self, x: Tensor, step: Step, is_token: Tensor, leaving: Callable[[int, Tensor, Tensor], Tensor], *, keeps: bool
    ) -> tuple[Float[Tensor, "B N d"], Int[Tensor, "B N"]]:
        """The state of each token at its exit, behind its norm, and the number of layers it went through.

        Args:
            x: Input (B, N, d).
            step: Function that computes a layer.
            is_token: True = a token (B, N).
            leaving: Function of the number of a layer from 0, the states of tokens behind its norm (..., d) and their
                indices in the batch (...): which leave.
            keeps: Whether keys and values of every layer are needed.
        """
        s, active = x.masked_fill(~is_token[..., None], 0.0), is_token
        y, steps, traced = torch.zeros_like(s), is_token.long() * 0, is_traced(x)
        places = torch.arange(is_token.numel(), device=x.device).view_as(is_token)
        for n, norm in enumerate(self.norms):
            if not (keeps or traced or bool(active.any())):
                break
            steps = steps + active.long()
            last = n + 1 == self.size.steps
            if traced or torch.equal(active, is_token):
                s = torch.where(active[..., None], step(n, s, None).to(s.dtype), s)
                h = norm(s)
                leaves = active if last else active & leaving(n, h, places)
                y = torch.where(leaves[..., None], h.to(y.dtype), y)
            else:
                running = Running.of(active)
                new = step(n, s, running)
                s, h = running.put(s, new), norm(new).to(y.dtype)
                own = running.mask if last or running.is_empty else leaving(n, h, running.take(places))
                y = running.put(y, torch.where(own[..., None], h, running.take(y)))
                leaves = running.put(torch.zeros_like(active), own)
            active = active & ~leaves
        return y, steps

    def _halting(
        self, score: Callable[[Tensor], Tensor] | None, context: Tensor | None, is_token: Tensor
    ) -> Callable[[int, Tensor, Tensor], Tensor]:
        """The function `leaving` of `_through`, outside training."""
        if self.halting == "confidence":
            if score is None:
                raise ValueError("halting by confidence needs the scores of tokens: call the model with its head")
            return lambda n, h, _: score(h).softmax(-1).amax(-1) > self.thresholds[n]
        if self.halting == "geometric":
            return lambda n, h, _: self._linear(h)[..., n] > 0
        if self.halting == "fixed":
            return lambda n, h, _: h.new_full(h.shape[:-1], n + 1 >= (self.exit or self.size.steps), dtype=torch.bool)
        chosen = torch.zeros_like(is_token, dtype=torch.long).flatten()
        if self.halting == "sequence":
            best = self._linear(self._checked(context)).argmax(-1)
            times = len(is_token) // max(1, len(best))  # a batch of nothing has no encoder output
            chosen = best.repeat_interleave(times)[:, None].expand_as(is_token).flatten()

        def leaving(n: int, h: Tensor, places: Tensor) -> Tensor:
            nonlocal chosen
            if self.halting == "multinomial" and n == 0:  # all tokens are here: none has left yet
                chosen = self._linear(h).argmax(-1).flatten()
            return chosen[places] <= n

        return leaving

    def _aligned(self, x: Tensor, step: Step, is_token: Tensor, context: Tensor | None) -> Gone:
        states = []
        for n, norm in enumerate(self.norms):
            x = step(n, x, None)
            states.append(norm(x))
        return Gone(states[-1], is_token.long() * self.size.steps, None, Exits(tuple(states), context))

    def _mixed(self, x: Tensor, step: Step, is_token: Tensor) -> Gone:
        states = []
        for _ in range(self.paths):
            drawn = torch.randint(self.size.steps, (is_token.numel(),), device=x.device)
            y, steps = self._through(x, step, is_token, _at(drawn), keeps=False)
            states.append(y)
        return Gone(states[-1], steps, None, Exits(tuple(states), None), self.paths)

    def loss_of(
        self,
        exits: Exits,
        labels: Int[Tensor, "B N"],
        labelled: Bool[Tensor, "B N"],
        score: Callable[[Tensor], Tensor],
        items: Tensor | int | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of all exits in nats a label, and of halting.

        Args:
            exits: States at exits, from a call in training.
            labels: Right tokens (B, N), read where labelled.
            labelled: True = has a label.
            score: Function from states behind their norm (..., d) to scores of tokens (..., V).
            items: Divisor of the sum; by default the number of labels.
        """
        right, divisor = labels[labelled], labelled.sum().clamp(min=1) if items is None else items
        likelihoods, hits = [], []
        for state in exits.states:
            logits = score(state[labelled])
            logits = logits.float() if logits.element_size() < 4 else logits
            likelihoods.append(-F.cross_entropy(logits, right, reduction="none"))
            hits.append((logits.argmax(-1) == right).to(logits.dtype))
        LL = torch.stack(likelihoods)  # (n, T)
        w = LL.new_tensor(range(1, len(LL) + 1)) if self.by_depth else LL.new_ones(len(LL))
        loss = -(w[:, None] * LL).sum() / w.sum() / divisor
        if not (self.learns and self.alpha):
            return loss
        target = self.target(LL.detach() if self.oracle == "likelihood" else torch.stack(hits), labelled)
        logs = self.log_q(exits)
        logs = logs[:, None].expand(*labelled.shape, -1) if logs.dim() == 2 else logs
        halting = F.nll_loss(logs[labelled], target[labelled], reduction="sum") / divisor
        return loss + self.alpha * halting

    def target(self, gains: Float[Tensor, "L T"], labelled: Bool[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """The exit q* of the oracle, from 0, of every position of a batch.

        Args:
            gains: LL_n of each label, or 1 where exit n is right and else 0.
            labelled: The positions that have a label.
        """
        whole = gains.new_zeros(*labelled.shape, len(gains))
        whole[labelled] = gains.mT
        if self.halting == "sequence":
            count = labelled.sum(1)[:, None, None].clamp(min=1)
            whole = (whole.sum(1, keepdim=True) / count).expand_as(whole)
        elif self.smooth:
            t = torch.arange(labelled.shape[1], device=gains.device, dtype=gains.dtype)
            whole = (-(t[:, None] - t).square() / self.smooth).exp() @ whole
        layers = torch.arange(1, len(gains) + 1, device=gains.device, dtype=gains.dtype)
        return (whole - self.cost * layers).argmax(-1)

    def log_q(self, exits: Exits) -> Float[Tensor, "B N L"] | Float[Tensor, "B L"]:
        """Log q(n) of every token, or of every sequence."""
        if self.halting == "sequence":
            return self._linear(self._checked(exits.context)).log_softmax(-1)
        if self.halting == "multinomial":
            return self._linear(exits.states[0]).log_softmax(-1)
        assert self.weight is not None
        assert self.bias is not None
        wide = torch.promote_types(exits.states[0].dtype, torch.float32)
        h = torch.stack(exits.states, -2)[..., :-1, :].to(wide)  # so that a single exit has a shape, too
        c = (h * self.weight.to(wide)).sum(-1) + self.bias.to(wide)  # (B, N, L - 1)
        none_before = F.pad(F.logsigmoid(-c).cumsum(-1), (1, 0))
        return none_before + F.pad(F.logsigmoid(c), (0, 1))

    def _linear(self, h: Tensor) -> Tensor:
        assert self.weight is not None
        assert self.bias is not None
        wide = torch.promote_types(h.dtype, torch.float32)
        return F.linear(h.to(wide), self.weight.to(wide), self.bias.to(wide))

    def _checked(self, context: Tensor | None) -> Tensor:
        if context is None:
            raise ValueError("halting by sequence reads an encoder: halting must be another where there is none")
        return context

    def extra_repr(self) -> str:  # noqa: D102
        return f"layers={self.size.steps}, halting={self.halting}, train={self.training_by}"


def _at(drawn: Int[Tensor, " T"]) -> Callable[[int, Tensor, Tensor], Tensor]:
    """The function `leaving` of `_through` with which each token of a batch leaves at an exit drawn before."""
    return lambda n, _, places: drawn[places] == n


def _thresholds(threshold: float | Sequence[float], layers: int) -> list[float]:
    """A threshold for each exit but the last."""
    several = [threshold] * (layers - 1) if isinstance(threshold, int | float) else list(threshold)
    if len(several) != layers - 1:
        raise ValueError(f"threshold must have one entry an exit but the last, {layers - 1}, got {len(several)}")
    for value in several:
        if not 0 <= value <= 1:
            raise ValueError(f"threshold must be in [0, 1], got {value}")
    return several
