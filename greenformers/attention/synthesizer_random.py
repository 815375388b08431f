"""Random Synthesizer. Tay 2020, arXiv:2005.00743, eq. 4: softmax(R) V, the same R for every input.

The fast form is one product for the values of all examples.
Time O(N M D), memory O(N M) once for a batch, and once an example where keys are masked or weights dropped.
"""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._aligned import finite
from greenformers.attention._contract import Shape, check_lengths
from greenformers.attention._reference import text_by_text
from greenformers.attention._synthesizer import Synthesizer, synthesized


@text_by_text
def reference(
    mechanism: "SynthesizerRandom",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(R) v: the score of position i for position j is R_ij."""
    return synthesized(mechanism, q, k, v, key_mask, lambda i, j: mechanism.R[:, i, j])


class SynthesizerRandom(Synthesizer):
    """Scores of pairs of positions are learned, or random.

    Args:
        shape: Heads, and the length that R is made for.
        trained: Whether R is learned; False: it stays as drawn.
        mixed: Whether scores are mixed with dot products by learned shares.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: An option is out of range.
    """

    R: Tensor

    def __init__(self, shape: Shape, *, trained: bool = True, mixed: bool = False, dropout: float = 0.0) -> None:
        super().__init__(shape, mixed=mixed, dropout=dropout, uses=("v",))
        R = torch.empty(shape.heads, shape.max_len, shape.max_len)
        if trained:
            self.R = nn.Parameter(R)
        else:
            self.register_buffer("R", R)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw R, standard normal; set equal shares in a mixture."""
        super().reset_parameters()
        nn.init.normal_(self.R)

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_lengths(q, k, v, key_mask, self.shape, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask, cross=self.shape.cross)
        rows, columns = self.places(q.shape[2], k.shape[2], key_mask, query_mask)
        if isinstance(rows, slice) and isinstance(columns, slice):
            scores = self.R[None, :, rows, columns]
        else:
            rows, columns = (self._positions(x) for x in (rows, columns))
            scores = self.R[:, rows[:, :, None], columns[:, None, :]].transpose(0, 1)
        return self.by_scores(q, k, v, key_mask, scores)

    def _positions(self, places: Any) -> Tensor:
        """Positions (B or 1, N); those of a slice are the same for all examples."""
        if not isinstance(places, slice):
            return cast(Tensor, places)
        return torch.arange(self.shape.max_len, device=self.R.device)[None, places]
