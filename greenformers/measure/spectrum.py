"""The spectrum of attention over real text: how low is its rank? Linformer, Wang 2020, arXiv:2006.04768, figure 1.

P = softmax(Q K^T / sqrt(D)) is the (N, N) matrix of attention weights of one head. Its singular values, largest first,
added up and divided by their sum, make a curve that ends at 1; the faster it rises, the smaller a k can serve.

P of a decoder is lower triangular. Its curve says as much about its singular values, but Linformer has no causal form,
so that a k read from it describes the decoder and cannot be put to use.
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

MULTIPLE = 8  # a k is rounded up to this, so that matrix products stay fast


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Normalised cumulative singular values of attention, averaged over blocks of text.

    Attributes:
        cumulative: (L, H, N), by layer, head and number of singular values; the last of each curve is 1.
        blocks: how many blocks of N tokens were seen.
        causal: every P was lower triangular, as a decoder's is.
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
            ValueError: `index` is not in 1..N.
        """
        if not 1 <= index <= self.length:
            raise ValueError(f"index must be in 1..{self.length}, got {index}")
        return self.cumulative[:, :, index - 1]

    def ranks(self, share: float) -> Tensor:
        """By layer and head (L, H), how many singular values hold that share of the sum.

        Raises:
            ValueError: `share` is not in (0, 1].
        """
        return _first(self.cumulative, share)

    def suggested_k(self, share: float) -> list[int]:
        """By layer, the smallest k whose curve, the mean of the layer's heads, reaches the share. Linformer, section 4.

        Rounded up to a multiple of 8, at most N. It is what the best approximation of rank k needs; Linformer's, which
        is learned and fixed, may need more.

        Raises:
            ValueError: `share` is not in (0, 1].
        """
        exact = _first(self.cumulative.mean(1), share).tolist()
        return [min(self.length, -(-k // MULTIPLE) * MULTIPLE) for k in exact]


def _first(curves: Tensor, share: float) -> Tensor:
    """Where curves (..., N) first reach a share, counted from 1."""
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    return (curves < share).sum(-1) + 1


def attention_spectrum(model: PreTrainedModel, batches: Iterable[Tensor]) -> Spectrum:
    """Measure the attention of every layer and head; of an encoder-decoder, that of its encoder.

    Takes one batch at a time and keeps only the sum of the curves: memory is that of one batch, L B H N^2 weights.
    Time O(L B H N^3) a batch, for the singular values.

    Args:
        model: of `transformers`, or one of ours with any mechanism. It is left as it was.
        batches: token ids (B, N), without padding, all of one N; see `blocks`.

    Raises:
        ValueError: no batches or of different N, more tokens than the model has positions for, or a model that gives no
            weights (N, N), or nan.
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
    """Singular values of matrices (..., N, N), largest first, added up and divided by their sum: (..., N), float64."""
    # As roots of the eigenvalues of P P^T, 1.4 times faster than by svdvals at N 512. Only in double precision: the
    # root enlarges the error of each of the many near zero. On a trained model the curves are 1e-9 apart, else 4e-3.
    double = weights.double()
    squares = torch.linalg.eigvalsh(double @ double.mT).clamp(min=0)  # smallest first
    sums = squares.sqrt().flip(-1).cumsum(-1)
    return sums / sums[..., -1:]


def blocks(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int) -> Iterator[Tensor]:
    """Running text as blocks (1, N) of exactly `length` tokens; what is left at the end is dropped.

    Each block begins and ends with the special tokens that the tokenizer puts around a text, for the model was trained
    with them and attends to them much.

    Raises:
        ValueError: too little text for one block, or no room in it beside the special tokens.
    """
    before, after = _frame(tokenizer)
    room = length - len(before) - len(after)
    if room < 1:
        raise ValueError(f"length must be above {length - room}, the special tokens around a text; got {length}")
    waiting: list[int] = []
    made = 0
    for text in texts:
        waiting += tokenizer(text + "\n", add_special_tokens=False, verbose=False)["input_ids"]
        while len(waiting) >= room:
            yield torch.tensor([[*before, *waiting[:room], *after]])
            del waiting[:room]
            made += 1
    if not made:
        raise ValueError(f"the text has {len(waiting)} tokens; one block of length {length} takes {room}")


def _frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The tokens put before and after every text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    return whole[:start], whole[start + len(bare) :]


def records(
    found: Spectrum, model: str, texts: str, *, index: int, share: float, about: dict[str, Any]
) -> list[Record]:
    """Of each layer, numbered from 1, the mean of its heads at an index, and the suggested k.

    Args:
        found: what was measured.
        model: name of the model.
        texts: name of the texts.
        index: how many singular values.
        share: what the k is to keep of their sum.
        about: context of the records.
    """
    rows = zip(found.at(index).mean(1).tolist(), found.suggested_k(share), strict=True)
    setting = {"texts": texts, "blocks": found.blocks, "length": found.length, "index": index, "share": share}
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
    """Attention that makes its weights in a `with` block; afterwards what it was."""
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
        # A mask of ones, or else some models take tokens that happen to be the padding's for padding.
        return _encoder(model)(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    except Exception as error:  # whatever networks raise that take no tokens, or fewer
        raise ValueError(f"the model cannot be run on {ids.shape[1]} tokens: {' '.join(str(error).split())}") from error


def _weights(model: PreTrainedModel, ids: Tensor) -> Sequence[Tensor]:
    """Attention weights (B, H, N, N) of every layer."""
    layers = getattr(_run(model, ids, output_attentions=True), "attentions", None)
    wanted = (ids.shape[1], ids.shape[1])
    if not layers or any(layer is None or layer.shape[2:] != wanted for layer in layers):
        raise ValueError(f"{type(model).__name__} gives no attention weights (N, N) of its layers")
    return cast(Sequence[Tensor], layers)
