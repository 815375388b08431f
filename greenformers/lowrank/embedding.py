"""Factorised embedding. Lan 2019 (ALBERT), arXiv:1909.11942, section 3.1: V x d -> V x r, r x d.

Parameters r (V + d) instead of V d; a token costs a lookup and r d multiply-adds. The two factors are those of
LED(d -> V), so that one pair serves the input and a tied output projection.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class LowRankEmbedding(nn.Module):
    """An embedding of rank at most r, in place of nn.Embedding.

    As in nn.Embedding, the padding row of the decoder gets no gradient; but its product with the encoder changes as the
    encoder does, unless the row is zero, as it is initialised. scale_grad_by_freq scales gradients of the decoder only.

    Args:
        num_embeddings: Number V of rows, the size of the vocabulary.
        embedding_dim: Width d of the output.
        rank: Rank r, in 1..min(V, d).
        padding_idx: Index of the row that gets no gradient; negative indices count from the end.
        scale_grad_by_freq: Whether a row's gradient is divided by how often it was looked up.
        sparse: Whether gradients of the decoder are sparse.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Attributes:
        decoder: First factor of a lookup (V, r), as the decoder of an LED from d to V.
        encoder: Second factor of a lookup (r, d), as the encoder of an LED from d to V.

    Raises:
        ValueError: The rank or padding_idx is out of range.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        rank: int,
        *,
        padding_idx: int | None = None,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        V, limit = num_embeddings, min(num_embeddings, embedding_dim)
        if not 1 <= rank <= limit:
            raise ValueError(f"rank must be in 1..{limit} for a {V} x {embedding_dim} embedding, got {rank}")
        if padding_idx is not None and not -V <= padding_idx < V:
            raise ValueError(f"padding_idx must be in {-V}..{V - 1}, got {padding_idx}")
        self.num_embeddings, self.embedding_dim, self.rank = num_embeddings, embedding_dim, rank
        self.padding_idx = None if padding_idx is None else padding_idx % V
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.decoder = nn.Parameter(torch.empty(num_embeddings, rank, device=device, dtype=dtype))
        self.encoder = nn.Parameter(torch.empty(rank, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    @classmethod
    def like(cls, embedding: nn.Embedding, rank: int) -> "LowRankEmbedding":
        """A unit of the sizes, options, dtype and device of a dense embedding, its parameters not initialised.

        Raises:
            TypeError: The module is no nn.Embedding, or overrides its forward, as scaled embeddings do.
            ValueError: The rank is out of range; or max_norm is set, which changes rows of the weight as they are read.
        """
        if getattr(type(embedding), "forward", None) is not nn.Embedding.forward:
            raise TypeError(f"embedding must be an nn.Embedding, got {type(embedding).__name__}")
        if embedding.max_norm is not None:
            raise ValueError(f"max_norm must be None in a low-rank embedding, got {embedding.max_norm}")
        unit = nn.utils.skip_init(
            cls,
            embedding.num_embeddings,
            embedding.embedding_dim,
            rank,
            padding_idx=embedding.padding_idx,
            scale_grad_by_freq=embedding.scale_grad_by_freq,
            sparse=embedding.sparse,
            device=embedding.weight.device,
            dtype=embedding.weight.dtype,
        )
        return unit.train(embedding.training)

    @property
    def weight(self) -> Float[Tensor, "V d"]:
        """The product of the factors, the dense weight as nn.Embedding holds it."""
        return self.decoder @ self.encoder

    def to_dense(self) -> nn.Embedding:
        """The dense embedding, trainable where a factor is."""
        dense = nn.Embedding.from_pretrained(
            self.weight.detach(),
            freeze=not (self.decoder.requires_grad or self.encoder.requires_grad),
            padding_idx=self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
        )
        return dense.train(self.training)

    def reset_parameters(self, std: float = 1.0) -> None:
        """Draw the factors so that rows vary as those of a dense embedding, and zero the padding row.

        Args:
            std: Standard deviation of the dense weight; by default that of nn.Embedding, 1.
        """
        nn.init.normal_(self.encoder, std=self.embedding_dim**-0.5)
        nn.init.normal_(self.decoder, std=std * (self.embedding_dim / self.rank) ** 0.5)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.decoder[self.padding_idx].zero_()

    def forward(self, x: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Look up rows of the decoder, and multiply them by the encoder."""
        code = F.embedding(
            x, self.decoder, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq, sparse=self.sparse
        )
        return code @ self.encoder

    def extra_repr(self) -> str:  # noqa: D102
        return f"{self.num_embeddings}, {self.embedding_dim}, rank={self.rank}, padding_idx={self.padding_idx}"
