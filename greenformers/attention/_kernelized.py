"""Engine of out_i = phi(q_i) (sum_j phi(k_j) v_j^T) / (phi(q_i) sum_j phi(k_j)).

Katharopoulos 2020, arXiv:2006.16236, eq. 5, 8-10, 18-20.

Time O(N F D) for F features, bidirectional and causal; decoding keeps a state of F (D + 1) numbers.
Positions are taken in chunks. The backward pass computes the features of a chunk again, so that features and
running sums of N positions never exist at once: memory O(N D), as of q, k and v, forward and backward.
On a GPU all chunks are computed side by side, in operations that torch differentiates: memory O(N F).

Features may come with a factor exp(shift_j) for each key. Only its ratio to exp(m_i) enters, where m_i is the largest
shift a query may see: as in softmax it cancels, nothing overflows, and no query depends on keys it does not see.
"""

from functools import partial

from jaxtyping import Bool, Float
from torch import Tensor

from greenformers._torch import in_transform
from greenformers.attention._aligned import finite_queries, is_traced, zeroed
from greenformers.attention._contract import Attention, Shape, check_fit, full_precision, on_gpu
from greenformers.attention._feature_map import Exponential, FeatureMap
from greenformers.attention._kernel_bidirectional import Bidirectional, plain
from greenformers.attention._kernel_causal import Causal, plain_causal, stepped
from greenformers.attention._kernel_sums import State, empty, numbers
from greenformers.attention._through_features import CHUNK, ThroughFeatures


class Kernelized(Attention):
    """Base of the mechanisms with a feature map: they define `phi`, and attention is computed here.

    Args:
        shape: Heads, width and length.
        chunk: Number of positions taken at a time. By default 128 where causal, whose cost within a chunk is quadratic;
            otherwise as many as make 2^18 numbers of features and values.

    Raises:
        ValueError: `chunk` is below 1.
    """

    queries_apart = True

    def __init__(self, shape: Shape, *, chunk: int | None) -> None:
        super().__init__(shape)
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self.chunk = chunk

    @property
    def phi(self) -> FeatureMap:
        """The feature map phi."""
        raise NotImplementedError

    @property
    def can_step(self) -> bool:
        """Whether the attention is causal."""
        return self.shape.causal

    def forward(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        q = finite_queries(q, key_mask, query_mask, cross=self.shape.cross)
        function = Causal if self.shape.causal else Bidirectional
        phi = self.phi
        given = q, k, v, key_mask, phi, self._positions(q, phi)
        if in_transform() or on_gpu(q):
            return (plain_causal if self.shape.causal else plain)(*given)
        if isinstance(phi, Exponential) and phi.rows is not None and _fits_fused(q, k) and not self.shape.causal:
            twice = partial(plain, features=phi, chunk=given[-1])
            fused: Tensor = ThroughFeatures.apply(q, k, v, key_mask, phi, self.chunk or CHUNK, twice)
            return fused
        out: Tensor = function.apply(*given)
        return out

    def _positions(self, q: Tensor, phi: FeatureMap) -> int:
        """Number of positions of a chunk: few enough for a cache, enough that work outweighs the cost of calls."""
        if self.chunk is not None:
            return self.chunk
        if self.shape.causal:
            return 128
        batch, heads, count, dim = q.shape
        most = max(64, numbers(q) // max(1, batch * heads * (phi.width + dim)))
        return -(-count // -(-count // most)) if count else most  # a last chunk of a few costs as many calls

    def step(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H N D"],
        v: Float[Tensor, "B H N D"],
        state: tuple[Tensor, ...] | None,
        key_mask: Bool[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B H N D"], State]:
        mask = None if key_mask is None else key_mask[:, key_mask.shape[1] - q.shape[2] :]
        q, features = zeroed(q, mask), self.phi
        with full_precision(q):
            before = empty(k, features) if state is None else State(*state)
            return stepped(q, k, v, key_mask, features, self._positions(q, features), before)


def _fits_fused(q: Tensor, k: Tensor) -> bool:
    """Whether torch's fused attention takes these: there are queries and keys, and nothing is traced."""
    return bool(q.shape[2] and k.shape[2]) and not is_traced(q)
