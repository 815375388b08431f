"""Input to a stack: its content, tokens or values, plus positions. Vaswani 2017, arXiv:1706.03762, 3.4-3.5."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers.attention._aligned import is_traced, left_padding
from greenformers.model._transformers import was_loaded
from greenformers.model.config import GreenformerConfig
from greenformers.model.norm import norm_of


class Placed(nn.Module):
    """The sum of content and positions, as vectors of width d."""

    def __init__(self, config: GreenformerConfig, *, causal: bool = False) -> None:
        super().__init__()
        self.config = config
        d = config.embedding_size or config.hidden_size
        self.make_content(config, d)
        if config.type_vocab_size:
            self.token_type = nn.Embedding(config.type_vocab_size, d)
        self.position = config.make_position("embedding", causal=causal)
        word: Any = getattr(self, "word", None)
        if word is not None:
            word.is_scaled = self.scales_tokens  # its vectors start as large as the positions that are added to them
        self.norm = norm_of(config, d) if config.resolved("embedding_norm", causal=causal) else nn.Identity()
        if word is not None and isinstance(self.norm, nn.Identity):
            # A row of zeros would go through pre-norms as it is, each of which multiplies its gradient by eps^-1/2: a
            # text may begin with the token, where that also ends texts.
            word.padding_idx = None
        self.widen = nn.Linear(d, config.hidden_size) if d != config.hidden_size else nn.Identity()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    @property
    def scales_tokens(self) -> bool:
        """Whether positions require content to be multiplied by the root of its width."""
        if self.config.placed_in_depth or (self.position is None and self.config.coded_by_depth):
            return True
        return self.position is not None and self.position.scales_tokens

    def make_content(self, config: GreenformerConfig, width: int) -> None:
        """Make the modules that content comes from."""
        raise NotImplementedError

    def place(
        self,
        x: Float[Tensor, "B N e"],
        positions: Int[Tensor, "b N"] | None = None,
        types: Int[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B N d"]:
        """Content (B, N, e) at positions from 0, by default 0 to N - 1, and of types, by default 0.

        Raises:
            ValueError: The content is empty or longer than the learned positions, or a type is out of range.
        """
        self.check_length(x.shape[1])
        self._check_types(types, x)
        if self.config.type_vocab_size:
            x = x + (self.token_type.weight[0] if types is None else self.token_type(types))
        if self.position is not None:
            x = self.position.embed(x, positions)
        return self.dropout(self.widen(self.norm(x)))

    def check_length(self, length: int) -> None:
        """Raise ValueError for a length without positions; only learned positions are bounded."""
        longest = self.config.max_position_embeddings
        if self.position is not None and self.position.bounded and not 1 <= length <= longest:
            raise ValueError(f"length must be in 1..{longest}, got {length}")
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")

    def _check_types(self, types: Tensor | None, x: Tensor) -> None:
        if types is None:
            return
        if types.shape != x.shape[:2]:
            raise ValueError(f"token_type_ids must be {tuple(x.shape[:2])}, got {tuple(types.shape)}")
        number = self.config.type_vocab_size or 1  # without types all are 0, as tokenizers return them
        if not is_traced(types) and (others := types[(types < 0) | (types >= number)]).numel():
            raise ValueError(f"token_type_ids must be in 0..{number - 1} (type_vocab_size), got {others[0].item()}")

    def _check_tokens(self, ids: Tensor) -> None:
        if ids.dim() != 2 or ids.is_floating_point():
            raise ValueError(f"input_ids must be whole numbers (B, N), got {ids.dtype} {tuple(ids.shape)}")
        number = self.config.vocab_size or 1
        # One further token comes from the network itself; on a GPU it takes a wait to know.
        if ids.shape[1] == 1 or ids.device.type != "cpu" or is_traced(ids):
            return
        if (others := ids[(ids < 0) | (ids >= number)]).numel():
            raise ValueError(f"input_ids must be in 0..{number - 1} (vocab_size), got {others[0].item()}")


class Embedding(Placed):
    """Tokens, or values behind a learned [CLS]."""

    def make_content(self, config: GreenformerConfig, width: int) -> None:  # noqa: D102
        if config.vocab_size is not None:
            self.word = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        else:
            self.value = nn.Linear(config.input_features or 1, width)
            self.cls = nn.Parameter(torch.zeros(width))

    def forward(
        self,
        input_ids: Int[Tensor, "B N"] | None = None,
        input_values: Float[Tensor, "B n C"] | None = None,
        positions: Int[Tensor, "b N"] | None = None,
        *,
        inputs_embeds: Float[Tensor, "B N e"] | None = None,
        types: Int[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B N d"]:
        """Embed tokens (B, N), or values (B, n, C) to (B, n + 1, d).

        Args:
            input_ids: Tokens (B, N).
            input_values: Values (B, n, C), for networks of values.
            positions: Positions, as in `place`.
            inputs_embeds: Embeddings of tokens (B, N, e), in place of tokens.
            types: Token types, as in `place`.

        Raises:
            ValueError: The input is of a kind the network does not take, too long, or has tokens out of range.
        """
        accepted = ["input_ids", "inputs_embeds"] if self.config.vocab_size is not None else ["input_values"]
        inputs = {"input_ids": input_ids, "input_values": input_values, "inputs_embeds": inputs_embeds}
        given = [name for name, x in inputs.items() if x is not None]
        if len(given) != 1 or given[0] not in accepted:
            raise ValueError(f"this network takes {' or '.join(accepted)}, got {' and '.join(given) or 'nothing'}")
        if inputs_embeds is not None:
            x = inputs_embeds
        elif input_ids is not None:
            self._check_tokens(input_ids)
            x = self.word(input_ids)
        else:
            values = self.value(input_values)
            x = torch.cat([self.cls.expand(values.shape[0], 1, -1), values], dim=1)
        if self.scales_tokens:
            # Vaswani 2017, 3.4: without the factor, tokens would be small beside positions of amplitude 1.
            x = x * x.shape[2] ** 0.5
        return self.place(x, positions, types)


def checked(positions: Int[Tensor, "b N"], length: int, longest: int | None) -> Int[Tensor, "b N"]:
    """Check positions given by a user, and return them.

    Raises:
        ValueError: The positions are not (1 or B, `length`), or not below `longest`.
    """
    if positions.dim() != 2 or positions.shape[1] != length:
        raise ValueError(f"position_ids must be (B, {length}), got {tuple(positions.shape)}")
    if not is_traced(positions):
        least, most = int(positions.min()), int(positions.max())
        if least < 0 or (longest is not None and most >= longest):
            limit = "at least 0" if longest is None else f"in 0..{longest - 1}"
            raise ValueError(f"position_ids must be {limit}, got {least if least < 0 else most}")
    return positions


def counted(key_mask: Bool[Tensor, "B N"] | None) -> Int[Tensor, "B N"] | None:
    """Positions counted from the first kept one, with padding before it at 0; None where they are 0 to N - 1."""
    if key_mask is None or (padding := left_padding(key_mask)) is None:
        return None
    return (torch.arange(key_mask.shape[1], device=key_mask.device) - padding[:, None]).clamp(min=0)


@torch.no_grad()
def draw_embeddings(word: nn.Embedding, std: float) -> None:
    """Draw embeddings, with 0 for padding; weights loaded from a checkpoint stay as they are."""
    nn.init.normal_(word.weight, std=std)
    if word.padding_idx is not None and not was_loaded(word.weight):
        nn.init.zeros_(word.weight[word.padding_idx])


def without_padding(embeds: Float[Tensor, "B N e"], mask: Bool[Tensor, "B M"] | None) -> Float[Tensor, "B N e"]:
    """Embeddings with 0 at padding, which may hold anything, NaN too.

    Args:
        embeds: Embeddings of the last N positions.
        mask: True = keep, of all positions; None where all are kept.
    """
    return embeds if mask is None else embeds.masked_fill(~mask[:, -embeds.shape[1] :, None], 0.0)
