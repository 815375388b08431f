"""Nystromformer. Xiong 2021, arXiv:2102.03902, eq. 13-15: F A^+ (B V), softmax attention through m landmarks.

F = softmax(Q K~^T / sqrt(D)), A = softmax(Q~ K~^T / sqrt(D)), B = softmax(Q~ K^T / sqrt(D)), where Q~ and K~ (m x D)
are means over m consecutive segments. In the fast form F and B V are attention
kernels, whose matrices are never kept. Time O(N m D), memory O(N D). Bidirectional only.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers.attention._aligned import finite, first_of, length_of, text_of
from greenformers.attention._contract import Attention, Shape, accurate, check_fit, exact, full_precision
from greenformers.attention._dense import dense_attention
from greenformers.attention._reference import dot_products, text_by_text


@text_by_text
def reference(
    mechanism: "Nystromformer",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    query_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(q k~^T) softmax(q~ k~^T)^+ softmax(q~ k^T) v, over kept positions and landmarks."""
    keys = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
    if query_mask is None:  # queries and keys are one sequence
        query_mask = keys if q.shape[2] == k.shape[2] else torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)
    examples = []
    for b in range(len(q)):
        q_short = _landmarks(q[b], query_mask[b], mechanism.landmarks)
        k_short = _landmarks(k[b], keys[b], mechanism.landmarks)
        out = torch.zeros_like(q[b])
        if q_short.shape[1] and k_short.shape[1]:
            F, A = dot_products(q[b], k_short).softmax(2), dot_products(q_short, k_short).softmax(2)
            B = dot_products(q_short, k[b, :, keys[b]]).softmax(2)
            out = F @ torch.stack([_inverse(A_h, mechanism.iterations) for A_h in A]) @ B @ v[b, :, keys[b]]
        if mechanism.convolution is not None:
            offset = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] + mechanism.convolution // 2
            inside = (offset >= 0) & (offset < mechanism.convolution) & keys[b]
            out = out + torch.where(inside, mechanism.kernel[:, offset.clamp(0, mechanism.convolution - 1)], 0.0) @ v[b]
        examples.append(out)
    return torch.stack(examples)


def _landmarks(x: Float[Tensor, "H N D"], keep: Bool[Tensor, " N"], m: int) -> Float[Tensor, "H m D"]:
    """The mean of each of m segments that keeps anything; the last N mod m are longer by one."""
    N, m = x.shape[1], min(m, x.shape[1])
    cuts = [segment * (N // m) + max(0, segment - (m - N % m)) for segment in range(m + 1)]
    means = [x[:, a:b][:, keep[a:b]].mean(1) for a, b in pairwise(cuts) if keep[a:b].any()]
    return torch.stack(means, 1) if means else x[:, :0]


def _inverse(A: Float[Tensor, "m n"], iterations: int) -> Float[Tensor, "n m"]:
    """A^+ by eq. 14, from A^T over the product of its norms."""
    Z, eye = A.T / (A.sum(0).max() * A.sum(1).max()), torch.eye(len(A), dtype=A.dtype)
    for _ in range(iterations):
        Z = Z @ (13 * eye - A @ Z @ (15 * eye - A @ Z @ (7 * eye - A @ Z))) / 4
    return Z


class Nystromformer(Attention):
    """Attention of the queries to the landmarks, and of the landmarks to the keys.

    A landmark is the mean over the kept positions of its segment, and is left out where none is kept. Of m segments
    the last N mod m are longer by one position. With m = N and enough iterations this is dense attention.

    N is the length of a text, from its first kept position to its last, and m no more than that. The model of
    `transformers` counts the batch with its padding, so that a text's landmarks change with its neighbours.

    Args:
        shape: Heads, width and length.
        landmarks: Number m of landmarks; by default 64, or `max_len` where that is shorter.
        iterations: Number of steps of the pseudoinverse (eq. 14). At m = 64 six steps leave an error of up to 3e-2,
            twenty an error of 1e-14.
        convolution: Odd width of a depthwise convolution of v over positions, which is added to the output and needs
            N = M (section 3.3). None: no convolution.

    Raises:
        ValueError: The attention is causal, cross-attention has a convolution, or an option is out of range.
    """

    rank_option = "landmarks"
    mixes_queries = True

    def __init__(
        self, shape: Shape, *, landmarks: int | None = None, iterations: int = 6, convolution: int | None = None
    ) -> None:
        super().__init__(shape)
        if shape.causal:
            raise ValueError("nystromformer has no causal form: landmarks are means over all positions")
        landmarks = min(64, shape.max_len) if landmarks is None else landmarks
        if not 1 <= landmarks <= shape.max_len:
            raise ValueError(f"landmarks must be in 1..{shape.max_len} (the longest sequence), got {landmarks}")
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}")
        if convolution is not None and (convolution < 1 or convolution % 2 == 0):
            raise ValueError(f"convolution must be odd and at least 1, got {convolution}")
        if convolution is not None and shape.cross:
            raise ValueError("convolution must be None for cross-attention: it needs a value for every query")
        self.landmarks, self.iterations, self.convolution = landmarks, iterations, convolution
        if convolution is not None:
            self.kernel = nn.Parameter(torch.empty(shape.heads, convolution))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution, normal, so that it keeps the variance of v."""
        if self.convolution is not None:
            nn.init.normal_(self.kernel, std=self.convolution**-0.5)

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        if self.convolution is not None and q.shape[2] != k.shape[2]:
            raise ValueError(f"convolution needs a value for every query, got {k.shape[2]} and {q.shape[2]}")
        q, k, v = finite(q, k, v, key_mask, query_mask, cross=self.shape.cross)
        text = text_of(key_mask, query_mask, cross=self.shape.cross)
        of_queries = query_mask
        if not self.shape.cross and q.shape[2] == k.shape[2]:
            query_mask, of_queries = key_mask if query_mask is None else query_mask, text
        q_short, q_kept = segment_means(q, query_mask, of_queries, self.landmarks)
        k_short, k_kept = segment_means(k, key_mask, text, self.landmarks)
        # B V and F W are computed by attention kernels, and their matrices are never stored.
        values = dense_attention(q_short, k, v, key_mask)
        with full_precision(q):  # the iteration multiplies rounding errors
            inverse = pseudoinverse(_kernel(q_short, k_short, q_kept, k_kept), self.iterations)
            mixed = (inverse @ values.to(inverse.dtype)).to(v.dtype)
        out = dense_attention(q, k_short, mixed, k_kept)
        return out if self.convolution is None else out + self._convolved(v, key_mask)

    def _convolved(self, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """The values of each head convolved over positions, with padding as 0."""
        if key_mask is not None:
            v = v.masked_fill(~key_mask[:, None, :, None], 0.0)
        weight = self.kernel[:, None, :, None].to(v.dtype)  # (H, 1, width, 1)
        return F.conv2d(v, weight, padding=(self.kernel.shape[1] // 2, 0), groups=v.shape[1])


def segment_means(
    x: Float[Tensor, "B H N D"], mask: Bool[Tensor, "B N"] | None, text: Bool[Tensor, "B N"] | None, segments: int
) -> tuple[Float[Tensor, "B H m D"], Bool[Tensor, "B m"] | None]:
    """Means over the kept positions of m = min(segments, N) consecutive segments, and which segments keep any.

    Args:
        x: Vectors to average (B, H, N, D).
        mask: True = keep.
        text: True = in the text (B, N): segments divide the text from its first such position to its last; None: all.
        segments: Number m of segments; N where that is less.
    """
    segments = min(segments, x.shape[2])
    if mask is None:
        return _means(x, segments), None
    text = torch.ones_like(mask) if text is None else text
    batch, heads, length, dim = x.shape
    rows = _segments(text, segments) + segments * torch.arange(batch, device=x.device)[:, None]
    flat = exact(x.masked_fill(~mask[:, None, :, None], 0.0)).transpose(1, 2).reshape(batch * length, heads * dim)
    sums = flat.new_zeros(batch * segments, heads * dim).index_add(0, rows.flatten(), flat)
    count = flat.new_zeros(batch * segments).index_add(0, rows.flatten(), mask.flatten().to(flat.dtype))
    means = (sums / count.clamp(min=1)[:, None]).to(x.dtype)
    return means.view(batch, segments, heads, dim).transpose(1, 2), count.view(batch, segments) > 0


def _means(x: Tensor, m: int) -> Tensor:
    """(B, H, N, D) to (B, H, m, D): means over m segments, the last N mod m of which are longer by one."""
    width, longer = divmod(x.shape[2], m)
    cut = (m - longer) * width
    parts = [x[:, :, :cut].unflatten(2, (m - longer, width))]
    if longer:
        parts.append(x[:, :, cut:].unflatten(2, (longer, width + 1)))
    return torch.cat([part.mean(3) for part in parts], 2)


def _segments(text: Bool[Tensor, "B N"], m: int) -> Int[Tensor, "B N"]:
    """Index of the segment of each position in its text, of at most m; arbitrary outside a text."""
    length = length_of(text)[:, None]
    i = torch.arange(text.shape[1], device=text.device) - first_of(text)[:, None]
    m_ = length.clamp(max=m)
    width, longer = length // m_, length % m_
    cut = (m_ - longer) * width
    segment = torch.where(i < cut, i // width, m_ - longer + (i - cut) // (width + 1))
    return segment.clamp(0, m - 1)


def pseudoinverse(a: Float[Tensor, "... m n"], iterations: int) -> Float[Tensor, "... n m"]:
    """Moore-Penrose inverses of matrices, each by itself (eq. 14), from Z0 = A^T / (largest row x column sum)."""
    sums = a.sum(-1).amax(-1) * a.sum(-2).amax(-1)
    z = a.mT / sums[..., None, None].clamp(min=torch.finfo(a.dtype).tiny)
    eye = torch.eye(a.shape[-2], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z


def _kernel(q: Tensor, k: Tensor, q_kept: Tensor | None, k_kept: Tensor | None) -> Tensor:
    """A = softmax(Q~ K~^T / sqrt(D)) over landmarks, 0 in rows and columns of landmarks left out; at least float32."""
    q, k = (x.to(accurate(x)) for x in (q, k))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if k_kept is not None:
        scores = scores.masked_fill(~k_kept[:, None, None, :], torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if k_kept is not None:
        weights = weights * k_kept[:, None, None, :]
    if q_kept is not None:
        weights = weights * q_kept[:, None, :, None]
    return weights
