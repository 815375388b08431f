"""Prefix probabilities of CTC for all hypotheses of a beam search. Graves 2008; Watanabe 2017, algorithm 2.

Let y_t(c) be the probability of c at position t. All alignments of the first t positions that spell g have the
probability n_t(g) if they end with the last character of g, and b_t(g) if they end with the blank. Then

    phi_t(g, c) = b_{t-1}(g) + n_{t-1}(g) [c is not the last character of g]
    n_t(g c)    = (n_{t-1}(g c) + phi_t(g, c)) y_t(c)
    b_t(g c)    = (b_{t-1}(g c) + n_{t-1}(g c)) y_t(blank)
    P(g c ...)  = sum_t phi_t(g, c) y_t(c)
    P(g)        = n_T(g) + b_T(g)

The sum over t is a matrix product for all characters of all hypotheses. Both recursions are cumulative sums in logs:
with Y_t(c) the sum of log y_1(c) to log y_t(c),

    log n_t(g c) = Y_t(c) + log sum_{s <= t} exp(log phi_s(g, c) - Y_{s-1}(c))

and the same for b_t, so that there is no loop, neither over hypotheses nor over positions. Time O(W T V) and memory
O(T V + W T) a step, for W hypotheses, T positions and V tokens.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class Prefixes:
    """CTC probabilities of W hypotheses for each of B utterances, which begin empty.

    Probabilities of tokens are in the precision of the logits, at least float32, and no less than its least normal
    number; all sums over positions are in float64.

    Args:
        logits: Scores of the tokens at each position (B, T, V), T at least 1.
        lengths: Number of positions of each utterance (B,); those behind it are padding, and change nothing.
        width: Number W of hypotheses.
        blank: The blank.
        end: The token whose column of `next` is for the end.
    """

    def __init__(
        self, logits: Float[Tensor, "B T V"], lengths: Int[Tensor, "B"], width: int, *, blank: int, end: int
    ) -> None:
        self.width, self.blank, self.end, self.lengths = width, blank, end, lengths
        logits = logits if logits.element_size() >= 4 else logits.float()
        self.p = logits.softmax(2).clamp_(min=torch.finfo(logits.dtype).tiny)
        # Of the empty text after t = 0..T positions: blanks alone.
        self.silence = F.pad(self.p[..., blank].double().log().cumsum(1), (1, 0))  # (B, T + 1)
        self.padded = torch.arange(logits.shape[1], device=logits.device) >= lengths[:, None]  # (B, T)
        self.b = self.silence[:, None].expand(-1, width, -1)  # log b_t, (B, W, T + 1)
        self.n = torch.full_like(self.b, -torch.inf)
        # The blank is no character: nothing follows the empty text as a repeat of its last one.
        self.last = torch.full_like(self.b[..., 0], blank, dtype=torch.long)
        self.reached = torch.zeros_like(self.b[..., 0])  # log P(g ...), (B, W)

    def next(self) -> Float[Tensor, "B W V"]:
        """Log-probability of each next character, and of the end, given the hypothesis; -inf where it cannot be."""
        spelt = torch.logaddexp(self.n, self.b)
        phi = spelt[..., :-1].masked_fill(self.padded[:, None], -torch.inf)  # (B, W, T)
        scale = phi.amax(2, keepdim=True).clamp(min=torch.finfo(phi.dtype).min)
        # A hypothesis that cannot be has no character that can.
        before = self.reached.masked_fill(self.reached == -torch.inf, torch.inf)[..., None]
        log_p = ((phi - scale).exp().to(self.p) @ self.p).log_().add_((scale - before).to(self.p))  # (B, W, V)
        # The last character follows itself after a blank only.
        phi = self.b[..., :-1].masked_fill(self.padded[:, None], -torch.inf)
        again = (phi + self._log_p(self.last)).logsumexp(2, keepdim=True)
        log_p.scatter_(2, self.last[..., None], (again - before).to(log_p))
        log_p[..., self.blank] = -torch.inf
        ends = self.lengths[:, None, None].expand(-1, self.width, 1)
        log_p[..., self.end] = (spelt.gather(2, ends) - before)[..., 0].to(log_p)
        self.following = log_p
        return log_p

    def follow(self, parents: Int[Tensor, "B W"], tokens: Int[Tensor, "B W"]) -> None:
        """Continue each hypothesis from its parent with a token; `next` must have been called before."""
        added = self.following.flatten(1).gather(1, parents * self.following.shape[2] + tokens)
        self.reached = self.reached.gather(1, parents) + added
        rows = parents[..., None].expand_as(self.b)
        n, b, last = self.n.gather(1, rows), self.b.gather(1, rows), self.last.gather(1, parents)
        phi = torch.where((tokens == last)[..., None], b, torch.logaddexp(n, b))[..., :-1]
        log_p = self._log_p(tokens)
        path = log_p.cumsum(2)
        self.n = F.pad(path + (phi - (path - log_p)).logcumsumexp(2), (1, 0), value=-torch.inf)
        silence = self.silence[:, None]
        self.b = silence + F.pad((self.n - silence)[..., :-1].logcumsumexp(2), (1, 0), value=-torch.inf)
        self.last = tokens

    def keep(self, utterances: Int[Tensor, "K"]) -> None:
        """Keep only these utterances."""
        for name in ("p", "silence", "padded", "lengths", "n", "b", "last", "reached"):
            setattr(self, name, getattr(self, name)[utterances])

    def _log_p(self, tokens: Tensor) -> Tensor:
        """Log-probability of a token for each hypothesis (B, W) at every position (B, W, T)."""
        columns = tokens[:, None].expand(-1, self.p.shape[1], -1)
        return self.p.gather(2, columns).double().log().transpose(1, 2)
