"""MAB, the block the Set Transformer is made of. Lee 2019, arXiv:1810.00825, eq. 6: LN(H + rFF(H)).

H = LN(X W_q + multi-head(X W_q, Y W_k, Y W_v)), rFF(H) = ReLU(H W_o). Three things are as in the authors' code: the
scores are divided by sqrt(d) of the full width d, not of a head's; the residual is the projected query, not X; and
the heads' outputs are not projected again. Time O(N M d + (N + M) d^2), memory O((N + M) d).
"""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._dense import dense_attention
from greenformers.blocks._contract import Size


class MAB(nn.Module):
    """Multi-head attention from X to Y, then a position-wise linear layer, residuals and norms included.

    Args:
        size: Sizes of the network around it. Width, heads, dropout (of rFF), norm, epsilon, bias and the ranks of
            q, k, v and output are read; its feed-forward block is not used.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.scale = size.heads, size.width**-0.5
        self.q, self.k, self.v, self.output = (size.linear_layer(name) for name in ("q", "k", "v", "output"))
        self.attention_norm = size.make_norm()
        self.feed_forward_norm = size.make_norm()
        self.dropout = nn.Dropout(size.dropout)

    def forward(
        self, x: Float[Tensor, "b N d"], y: Float[Tensor, "B M d"], key_mask: Bool[Tensor, "B M"] | None = None
    ) -> Float[Tensor, "B N d"]:
        """MAB(X, Y).

        Args:
            x: Queries (b, N, d); with b = 1 the same for all examples, projected once.
            y: Keys and values (B, M, d).
            key_mask: True = keep (B, M); where no key is kept the attention is 0.
        """
        query = self.q(x).expand(len(y), -1, -1)
        q, k, v = (z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in (query, self.k(y), self.v(y)))
        attended = dense_attention(q, k, v, key_mask, scale=self.scale).transpose(1, 2).flatten(2)  # (B, N, d)
        h = self.attention_norm(query + attended)
        return self.feed_forward_norm(h + self.dropout(F.relu(self.output(h))))
