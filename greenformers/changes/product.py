"""Product quantisation: vectors of neighbouring weights are entries of a codebook, a byte each.

By weights alone (k-means), by k-means that weighs what vectors do to the output (iPQ, Stock 2020, arXiv:1907.05686), or
so that later vectors make up for earlier ones (GPTVQ, van Baalen 2024, arXiv:2402.15319). Codebooks can be trained
afterwards, by healing, as iPQ does between the kinds of layers.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._coding import Coding
from greenformers.changes._contract import Change, Given, option

if TYPE_CHECKING:
    from torch import Tensor, nn

    from greenformers.changes._coded import Layer
    from greenformers.changes._product_layers import Codes
    from greenformers.solve.layer_by_layer import Inputs

BY = ("gptvq", "ipq", "kmeans")


@dataclass(frozen=True)
class Product(Coding):
    """Weights of linear layers and embeddings as entries of codebooks: a bit a weight and less."""

    block: int = option(8, "Neighbouring inputs of a row that have one code of a byte.", "--product")
    centroids: int = option(256, "Entries of the codebook of a weight, from 2 to 256.", "--product-centroids")
    by: str = option(
        "gptvq",
        "How entries are chosen. With texts: gptvq, where later vectors make up for earlier ones, or ipq, by what "
        "each does to the output; by weights alone: kmeans. Embeddings are always coded by weights alone.",
        "--product-by",
    )
    select: tuple[str, ...] | None = option(
        None, "Layers to code: patterns of paths such as '*.query'; by default all linear layers and embeddings."
    )

    order: ClassVar[int] = 84
    factorises: ClassVar[bool] = True

    def __post_init__(self) -> None:
        from greenformers.changes._product_layers import MOST

        if self.block < 1:
            raise ValueError(f"product block must be at least 1 input, got {self.block}")
        if not 2 <= self.centroids <= MOST:
            raise ValueError(f"product centroids must be from 2 to {MOST}, got {self.centroids}")
        if self.by not in BY:
            raise ValueError(f"product by must be of {', '.join(BY)}; got {self.by!r}")

    @property
    def label(self) -> str:
        """The vectors and the way, as in "product 8" or "product 4 by ipq"."""
        return f"product {self.block}" + ("" if self.by == "gptvq" else f" by {self.by}")

    @property
    def traces(self) -> "Sequence[type[Change]]":
        """That of all layers is another kind: nothing is left to be rounded or coded."""
        return (Product if self.select is not None else _OfAll,)

    @property
    def patterns(self) -> tuple[str, ...] | None:
        """Patterns of the paths of weights that get codes."""
        return self.select

    @property
    def looks(self) -> bool:
        """Whether it looks at inputs: all ways but plain k-means do."""
        return self.by != "kmeans"

    def by_weights(self, W: "Tensor", given: Given) -> "Codes":
        """The codes of a weight by plain k-means."""
        from greenformers.changes._product_layers import Codes
        from greenformers.solve.codebook import blocks, kmeans, nearest

        w = blocks(W, self.block)
        centroids = kmeans(w, self.centroids, seed=given.seed)
        return Codes.of(nearest(w, centroids), centroids, W.shape[1])

    def by_inputs(self, W: "Tensor", inputs: "Inputs", given: Given) -> "Codes":
        """The codes of a weight by GPTVQ or iPQ."""
        from greenformers.changes._product_layers import Codes
        from greenformers.solve.product_quantization import second_order, weighted

        solve = second_order if self.by == "gptvq" else weighted
        return Codes.of(*solve(W, inputs.C, self.block, self.centroids, seed=given.seed), W.shape[1])

    @classmethod
    def weights(cls) -> "type[Codes]":
        """The class of weights with codes."""
        from greenformers.changes._product_layers import Codes

        return Codes

    @classmethod
    def empty(cls, path: str, m: int, n: int, described: Any) -> "Codes":
        """A weight without codes."""
        from greenformers.changes._product_layers import Codes, checked

        return Codes(m, n, *checked(path, described))

    @classmethod
    def layer(cls, module: Any, held: Any) -> "Layer":
        """The layer with codes in place of a linear layer, an embedding or experts."""
        from torch import nn

        from greenformers.changes._coded import CodedEmbedding, CodedExperts, CodedLinear
        from greenformers.lowrank.experts import ExpertsLinear
        from greenformers.model._transformers import TransposedLinear

        if isinstance(module, nn.Embedding):
            return CodedEmbedding(held, module.padding_idx)
        if isinstance(module, ExpertsLinear):
            return CodedExperts(held, module)
        return CodedLinear(held, module.bias, turned=isinstance(module, TransposedLinear))

    @classmethod
    def revert(cls, model: "nn.Module") -> int:
        """Put dense layers, of the centroids of their codes, in place of all coded ones. The number of weights."""
        from greenformers.changes._coded import opened

        return opened(model, cls.weights())

    def rounding(self, model: "nn.Module", *, share: float = 1.0) -> AbstractContextManager[None]:
        """A `with` block for training in which weights, or a share of them, are entries of a codebook."""
        from greenformers.changes._product_aware import aware

        return aware(model, self.select, self.block, self.centroids, share)


class _OfAll(Product):
    """Codes of all linear layers and embeddings."""

    codes_all: ClassVar[bool] = True
