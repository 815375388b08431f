"""Factorised embedding table. Lan 2019 (ALBERT), arXiv:1909.11942, section 3.1: V x d -> V x r, r x d.

Parameters r (V + d) instead of V d; a token costs a lookup and r d multiply-adds. The two factors are those of
LED(d -> V), so that one pair serves the input and a tied output map.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class LowRankEmbedding(nn.Module):
    """A table of rank at most r, in place of nn.Embedding.

    As in nn.Embedding, the padding row gets no gradient; but what it stands for changes with the encoder, unless the
    row is zero, as it is drawn. scale_grad_by_freq scales gradients of the decoder only.

    Args:
        num_embeddings: number of rows V.
        embedding_dim: width d of the output.
        rank: r, in 1..min(V, d).
        padding_idx: row that gets no gradient, negative to count from the end.
        scale_grad_by_freq: divide a row's gradient by how often it was looked up.
        sparse: sparse gradients of the decoder.
        device: of the parameters.
        dtype: of the parameters.

    Attributes:
        decoder: (V, r), as LED's of d -> V.
        encoder: (r, d), as LED's of d -> V.

    Raises:
        ValueError: rank or padding_idx out of range.
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
            raise ValueError(f"rank must be in 1..{limit} for a {V} x {embedding_dim} table, got {rank}")
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
        """A unit of the sizes, options, dtype and device of a dense table, its numbers yet to be set.

        Raises:
            TypeError: not an nn.Embedding, or one that computes something else, as scaled ones do.
            ValueError: rank out of range; max_norm is set: it changes rows of the dense table as they are read.
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
        """The dense table the factors stand for, as nn.Embedding holds it."""
        return self.decoder @ self.encoder

    def to_dense(self) -> nn.Embedding:
        """The dense table, trainable where a factor is."""
        dense = nn.Embedding.from_pretrained(
            self.weight.detach(),
            freeze=not (self.decoder.requires_grad or self.encoder.requires_grad),
            padding_idx=self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
        )
        return dense.train(self.training)

    def reset_parameters(self, std: float = 1.0) -> None:
        """Draw the factors so that rows vary as those of the dense table, and zero the padding row, as nn.Embedding.

        Args:
            std: of the dense table; by default that of nn.Embedding.
        """
        nn.init.normal_(self.encoder, std=self.embedding_dim**-0.5)
        nn.init.normal_(self.decoder, std=std * (self.embedding_dim / self.rank) ** 0.5)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.decoder[self.padding_idx].zero_()

    def forward(self, x: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Look rows up, through the rank."""
        code = F.embedding(
            x, self.decoder, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq, sparse=self.sparse
        )
        return code @ self.encoder

    def extra_repr(self) -> str:  # noqa: D102
        return f"{self.num_embeddings}, {self.embedding_dim}, rank={self.rank}, padding_idx={self.padding_idx}"
