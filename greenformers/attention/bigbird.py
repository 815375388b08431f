"""BigBird. Zaheer 2020, arXiv:2007.14062, 2 and appendix D: a window, global and random blocks.

Time O(N b (3 + r) D), memory O(N D). Bidirectional only.
The fast form takes queries in tiles, each beside the keys they may see (`_block_sparse.py`).
"""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers._torch import in_transform
from greenformers.attention._aligned import finite, first_of, is_traced, length_of, text_of
from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._flex import LENGTHS
from greenformers.attention._reference import over_pairs
from greenformers.attention._tiles import Tiling


def formula(mechanism: "Bigbird", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j: neighbouring blocks, global blocks, and the random blocks that the mechanism drew."""
    b = mechanism.block
    front = b if mechanism.extra_globals is None else mechanism.extra_globals
    back = 0 if mechanism.extra_globals is not None or length <= b else (length - 1) % b + 1
    query_block, key_block = (i - front) // b, (j - front) // b
    if min(i, j) < front or max(i, j) >= length - back or abs(query_block - key_block) <= 1:
        return True
    drawn = mechanism.extra_blocks(math.ceil((length - front - back) / b), torch.device("cpu"))
    return drawn is not None and key_block in drawn[head, query_block].tolist()


reference = over_pairs(formula)

Padding = Literal["own", "batch"]


class Bigbird(BlockSparse):
    """i sees its own block of b positions, those beside it and r random ones; and any pair with i or j global.

    The first and the last block are global (ITC), or with `extra_globals` that number of first positions, which a
    caller puts in front and blocks begin after (ETC). Random blocks differ between heads and layers, stay the same
    from call to call, and are none of the other blocks; a sequence too short for r of them has fewer.

    Blocks are counted and drawn from the first kept position of a text to its last: texts of each length are computed
    separately. The published model counts the batch with its padding, so that a text's last global
    block and its random ones change with its neighbours: `padding="batch"` does the same.

    Args:
        shape: Heads, width, length and layer.
        block: Number b of positions of a block.
        random: Number r of random blocks for each block of queries.
        extra_globals: Number of global positions of ETC; None: ITC.
        seed: Seed of the random blocks, with layer and head.
        padding: Length that blocks are counted by. "own": the length of each text; "batch": that of the batch, padding
            included, which alone can be traced with a mask, and on a GPU is one kernel for texts of any lengths.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is causal or cross-attention, or an option is out of range.
    """

    rank_option = "block"

    def __init__(
        self,
        shape: Shape,
        *,
        block: int = 64,
        random: int = 3,
        extra_globals: int | None = None,
        seed: int = 0,
        padding: Padding = "own",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape, dropout=dropout)
        self.refuse_causal("its global blocks see all")
        for name, value, least in (("block", block, 1), ("random", random, 0), ("extra_globals", extra_globals, 1)):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if padding not in get_args(Padding):
            raise ValueError(f"padding must be one of {', '.join(get_args(Padding))}; got {padding!r}")
        self.block, self.random, self.extra_globals, self.seed = block, random, extra_globals, seed
        self.padding = padding
        self._prepared: dict[tuple[int, torch.device], Tensor | None] = {}

    def forward(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        """Mix the values for every query, see `Attention.forward`.

        Raises:
            ValueError: The inputs do not fit each other; or the call is traced with a mask and `padding` is "own".
        """
        self.check(q, k, v, key_mask, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask)
        text = text_of(key_mask, query_mask)
        traced = torch.compiler.is_compiling() or in_transform()
        if traced and key_mask is not None and self.padding == "own":
            raise ValueError("padding must be 'batch' where bigbird is traced with a mask, got 'own'")
        # Where operations are counted, texts count as long as the batch.
        if key_mask is None or text is None or not len(q) or self.padding == "batch" or is_traced(q):
            return self.from_the_front(q, k, v, key_mask)
        texts: dict[tuple[int, int], list[int]] = {}  # the rows of each first position and length
        for row, text_at in enumerate(zip(first_of(text).tolist(), length_of(text).tolist(), strict=True)):
            texts.setdefault(text_at, []).append(row)
        if len(texts) == 1 and (0, k.shape[2]) in texts:
            return self.from_the_front(q, k, v, key_mask)
        # Example by example: the gradient of an index of both dimensions would be as large as the batch.
        examples: list[tuple[Tensor, ...]] = [x.unbind() for x in (q, k, v)]
        outputs: dict[int, Tensor] = {}
        for (first, length), rows in texts.items():
            here = slice(first, first + length)
            queries, keys, values = (torch.stack([x[row][:, here] for row in rows]) for x in examples)
            out = self.from_the_front(queries, keys, values, key_mask[rows, here])
            padded = F.pad(out, (0, 0, first, q.shape[2] - first - length))
            outputs |= dict(zip(rows, padded.unbind(), strict=True))
        return torch.stack([outputs[row] for row in range(len(q))])

    def ends(self, length: int) -> tuple[int, int]:  # noqa: D102
        if self.extra_globals is not None:
            return min(self.extra_globals, length), 0
        return min(self.block, length), (length - 1) % self.block + 1 if length > self.block else 0

    def visible(  # noqa: D102
        self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int
    ) -> Tensor:
        front, back = self.ends(length)
        tiles = -(-(length - front - back) // self.block)
        query_block, key_block = (i - front) // self.block, (j - front) // self.block
        seen = ((query_block - key_block).abs() <= 1) | is_global[i] | is_global[j]
        drawn = self._prepared.get((tiles, i.device)) if tiles > 0 else None
        if drawn is None and (tiles < 1 or (drawn := self.extra_blocks(tiles, i.device)) is None):
            return seen
        inside = query_block.clamp(0, tiles - 1)  # positions outside are global
        for slot in range(drawn.shape[2]):  # one by one: in a compiled mask, torch computes `any` wrongly
            seen = seen | (drawn[head, inside, slot] == key_block)
        return seen

    def tilings(self, length: int) -> tuple[Tiling, ...]:  # noqa: D102
        return (Tiling(self.block, self.block, self.block),)

    def prepare(self, keys: int, device: torch.device) -> None:  # noqa: D102
        tiles = -(-keys // self.block)
        if len(self._prepared) >= LENGTHS:
            self._prepared.pop(next(iter(self._prepared)))  # the oldest
        self._prepared[tiles, device] = self.extra_blocks(tiles, device)

    def extra_blocks(self, tiles: int, device: torch.device) -> Tensor | None:
        """Random blocks (H, T, r) for T blocks that are not global: outside the window, each at most once."""
        # The last block of ETC may be short, and is never drawn.
        whole = tiles if self.extra_globals is None else tiles - 1
        count = min(self.random, whole - 3)
        if count < 1:
            return None
        tile = torch.arange(tiles, device=device)
        low, high = (tile - 1).clamp(min=0), (tile + 1).clamp(max=whole - 1)
        left = whole - (high - low + 1).clamp(min=0)[None]  # number of blocks outside the window
        chosen: list[Tensor] = []
        for slot in range(count):
            block = self._drawn(slot, tiles, device) % (left - slot)
            for taken in torch.stack(chosen, 2).sort(2).values.unbind(2) if chosen else ():
                block = block + (block >= taken)
            chosen.append(block)
        drawn = torch.stack(chosen, 2)
        return drawn + (whole - left[..., None]) * (drawn >= low[:, None])

    def _drawn(self, slot: int, tiles: int, device: torch.device) -> Tensor:
        """Numbers below 2^32 (H, T), from seed, layer, slot, head and tile alone, so that no state is stored."""
        head = torch.arange(self.shape.heads, device=device)[:, None]
        mixed = torch.zeros((), dtype=torch.long, device=device)
        for part in (self.seed, self.shape.layer, slot, head, torch.arange(tiles, device=device)):
            mixed = mixed ^ part
            for _ in range(2):  # 32-bit mixing in products below 2^63
                mixed = ((mixed >> 16) ^ mixed) * 0x45D9F3B & 0xFFFFFFFF
            mixed = (mixed >> 16) ^ mixed
        return mixed
