"""The spectrum of attention over real text: how low is its rank? Linformer, Wang 2020, arXiv:2006.04768, figure 1.

P = softmax(Q K^T / sqrt(D)) is the (N, N) matrix of attention weights of one head. Its singular values, largest first,
added up and divided by their sum, make a curve that ends at 1; the faster it rises, the smaller a k is enough.

P of a decoder is lower triangular. Its curve says as much about its singular values, but Linformer has no causal form,
so that a k read from it describes the decoder but cannot be used in it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.measure.quality import evaluating
from greenformers.measure.record import Record
from greenformers.model._transformers import attention_of

MULTIPLE = 8
"""Number of which every suggested k is a multiple, so that matrix products stay fast."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Normalised cumulative singular values of attention, averaged over blocks of text.

    Attributes:
        cumulative: Curves (L, H, N), by layer, head and number of singular values; the last entry of each is 1.
        blocks: Number of blocks of N tokens that were averaged.
        causal: Whether every P was lower triangular, as a decoder's is.
    """

    cumulative: Tensor
    blocks: int
    causal: bool

    @property
    def length(self) -> int:
        """Tokens in a block, N."""
        return self.cumulative.shape[2]

    def at(self, index: int) -> Tensor:
        """Share of the sum that the first `index` singular values hold (L, H); the paper reads 128 of 512.

        Raises:
            ValueError: Raised where `index` is not in 1..N.
        """
        if not 1 <= index <= self.length:
            raise ValueError(f"index must be in 1..{self.length}, got {index}")
        return self.cumulative[:, :, index - 1]

    def ranks(self, share: float) -> Tensor:
        """Number of singular values that hold a share of the sum, by layer and head (L, H).

        Raises:
            ValueError: Raised where `share` is not in (0, 1].
        """
        return _first(self.cumulative, share)

    def suggested_k(self, share: float) -> list[int]:
        """Smallest k at which the mean curve of a layer's heads reaches the share, by layer. Linformer, section 4.

        It is rounded up to a multiple of 8, at most N. The best approximation of rank k holds that share; Linformer's
        projection, which is learned and the same for all texts, may need a larger k.

        Raises:
            ValueError: Raised where `share` is not in (0, 1].
        """
        exact = _first(self.cumulative.mean(1), share).tolist()
        return [min(self.length, -(-k // MULTIPLE) * MULTIPLE) for k in exact]


def _first(curves: Tensor, share: float) -> Tensor:
    """Place, from 1, at which curves (..., N) first reach a share."""
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    return (curves < share).sum(-1) + 1


def attention_spectrum(model: PreTrainedModel, batches: Iterable[Tensor]) -> Spectrum:
    """Measure the attention of every layer and head; in an encoder-decoder, that of its encoder.

    Only the sum of the curves is stored between batches: O(L B H N^2) bytes of memory, and time O(L B H N^3) a batch,
    for the singular values.

    Args:
        model: Model of `transformers` or of greenformers, with any mechanism. It is left as it was.
        batches: Token ids (B, N), without padding, of the same N in all batches; see `blocks`.

    Raises:
        ValueError: Raised where there are no batches, or their lengths differ or exceed the model's positions, or the
            model gives no attention weights (N, N), or some that are no numbers.
    """
    total: Any = 0
    count, length, causal = 0, None, True
    with evaluating(model), _eager(model), torch.no_grad():
        for ids in batches:
            length = length or ids.shape[1]
            _check_length(model, ids.shape[1], length)
            layers = _weights(model, ids.to(model.device))
            if not all(layer.isfinite().all() for layer in layers):
                raise ValueError("attention weights must be numbers, got nan or infinity")
            total = total + torch.stack([cumulative(layer).sum(0).cpu() for layer in layers])
            count += len(ids)
            causal = causal and all(not layer.triu(1).any() for layer in layers)
    if not count:
        raise ValueError("there must be at least one batch of token ids, got none")
    return Spectrum(total / count, count, causal)


def cumulative(weights: Tensor) -> Tensor:
    """Curves of matrices: their singular values, largest first, added up and divided by their sum.

    Args:
        weights: Matrices (..., N, N).

    Returns:
        Curves (..., N), in float64.
    """
    # Roots of the eigenvalues of P P^T are 1.4 times faster than svdvals at N 512. They need double precision, as the
    # root enlarges the errors of the many values near zero: on a trained model the curves are 1e-9 apart, else 4e-3.
    double = weights.double()
    squares = torch.linalg.eigvalsh(double @ double.mT).clamp(min=0)  # smallest first
    sums = squares.sqrt().flip(-1).cumsum(-1)
    return sums / sums[..., -1:]


def blocks(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int) -> Iterator[Tensor]:
    """Running text as blocks (1, N) of exactly `length` tokens; tokens that do not fill a block are dropped.

    Each block begins and ends with the special tokens that the tokenizer puts around a text, as the model was trained
    with them and attends to them much.

    Args:
        texts: Texts, which follow each other without a gap.
        tokenizer: Tokenizer of the model.
        length: Tokens in a block, N, special tokens included.

    Raises:
        ValueError: Raised where the text is too short for one block, or a block has no room beside the special tokens.
    """
    before, after = _frame(tokenizer)
    room = length - len(before) - len(after)
    if room < 1:
        raise ValueError(f"length must be above {length - room}, the special tokens around a text; got {length}")
    waiting: list[int] = []
    count = 0
    for text in texts:
        waiting += tokenizer(text + "\n", add_special_tokens=False, verbose=False)["input_ids"]
        while len(waiting) >= room:
            yield torch.tensor([[*before, *waiting[:room], *after]])
            del waiting[:room]
            count += 1
    if not count:
        raise ValueError(f"the text has {len(waiting)} tokens; one block of length {length} takes {room}")


def _frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Special tokens that the tokenizer puts before and after a text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    return whole[:start], whole[start + len(bare) :]


def records(
    spectrum: Spectrum, model: str, texts: str, *, index: int, share: float, about: dict[str, Any]
) -> list[Record]:
    """Records of each layer, numbered from 1: the mean of its heads' curves at an index, and the suggested k.

    Args:
        spectrum: Spectrum of the model's attention.
        model: Name of the model.
        texts: Name of the texts.
        index: Number of singular values at which the curves are read.
        share: Share of the sum of singular values that the suggested k holds.
        about: Context of the records.

    Raises:
        ValueError: Raised where `index` is not in 1..N, or `share` is not in (0, 1].
    """
    rows = zip(spectrum.at(index).mean(1).tolist(), spectrum.suggested_k(share), strict=True)
    setting = {"texts": texts, "blocks": spectrum.blocks, "length": spectrum.length, "index": index, "share": share}
    return [
        Record.of(
            metric, value, benchmark="spectrum", variant=model, setting={"layer": layer, **setting}, context=about
        )
        for layer, (held, k) in enumerate(rows, start=1)
        for metric, value in (("cumulative_spectrum", held), ("suggested_k", float(k)))
    ]


def _check_length(model: PreTrainedModel, length: int, first: int) -> None:
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise ValueError(f"length must be at most {positions}, the positions of the model; got {length}")
    if length != first:
        raise ValueError(f"all blocks must have the length of the first, {first}, got {length}")


@contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    """In a `with` block, run attention in its eager form, which returns weights; afterwards it is as it was."""
    was = attention_of(model.config)
    try:
        model.set_attn_implementation("eager")
        yield
    finally:
        model.set_attn_implementation(was)


def _encoder(model: PreTrainedModel) -> nn.Module:
    """The model without its head, and without its decoder if it has both."""
    return cast(nn.Module, model.get_encoder() if model.config.is_encoder_decoder else model.base_model)


def _run(model: PreTrainedModel, ids: Tensor, **options: Any) -> Any:
    try:
        # A mask of ones, as some models without a mask take every token with the padding's id for padding.
        return _encoder(model)(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    except Exception as error:  # networks raise anything where they take no tokens, or fewer
        raise ValueError(f"the model cannot be run on {ids.shape[1]} tokens: {' '.join(str(error).split())}") from error


def _weights(model: PreTrainedModel, ids: Tensor) -> Sequence[Tensor]:
    """Attention weights (B, H, N, N) of every layer."""
    layers = getattr(_run(model, ids, output_attentions=True), "attentions", None)
    shape = (ids.shape[1], ids.shape[1])
    if not layers or any(layer is None or layer.shape[2:] != shape for layer in layers):
        raise ValueError(f"{type(model).__name__} gives no attention weights (N, N) of its layers")
    return cast(Sequence[Tensor], layers)
