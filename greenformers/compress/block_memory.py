"""What a way through a network by sections takes: memory at most, and disk for what blocks are called with; bytes."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from greenformers._torch import leaves
from greenformers.changes import Change
from greenformers.compress.blocks import Blocks, Embed, Section
from greenformers.solve.walk import sites

STATISTICS = 2**28
"""Bytes of statistics that are held at once, beyond those of one group of layers."""
IDS = "input_ids"
"""Argument with the tokens of a batch (B, N)."""


def working(
    blocks: Blocks, changes: Sequence[Change], batches: Sequence[Mapping[str, Tensor]], block: Section, width: int
) -> int:
    """Most bytes that a section takes, or what is around the blocks, beyond what the process holds before.

    Args:
        blocks: The blocks of the network.
        changes: What is done to each section.
        batches: The batches, in parts.
        block: A section.
        width: Width of the hidden states.
    """
    stack = f"{blocks.path}."
    layers = [(site.m, site.n) for site in sites(block, "linear", factors=True)]
    around = [tuple(x.shape) for name, x in blocks.model.named_parameters() if not name.startswith(stack)]
    tokens = max(batch[IDS].numel() for batch in batches)
    length = max(batch[IDS].shape[1] for batch in batches)
    heads = getattr(blocks.model.config.get_text_config(), "num_attention_heads", None) or 1
    # What a pass computes for a batch, in float32 twice; scores of attention are held in full by some blocks.
    passed = 8 * tokens * (sum(m + n for m, n in layers) + 10 * width) + 16 * tokens * length * heads
    largest = max(map(blocks.bytes, range(blocks.count)))
    most = max(
        # Tensors before and after, and those of the next block.
        3 * largest + _solving(changes, layers, passed),
        3 * blocks.bytes(None) + _solving(changes, [shape for shape in around if len(shape) == 2], 0),
        3 * largest + _learning(changes, block, passed),
    )
    return int(most + 2 * STATISTICS)


def called(embed: Embed, batches: Sequence[Mapping[str, Tensor]], masks: Sequence[Tensor | None]) -> int:
    """Bytes of what blocks are called with for all batches, of which the first of each shape is embedded."""
    sizes: dict[tuple[torch.Size, bool], int] = {}
    size = 0
    for batch, mask in zip(batches, masks, strict=True):
        # A mask of pairs of positions may be missing where nothing is padding.
        form = (batch[IDS].shape, mask is None or bool(mask.all()))
        if form not in sizes:
            _, arguments = embed(batch)
            tensors = {id(leaf): leaf for leaf in leaves(arguments) if isinstance(leaf, Tensor)}
            sizes[form] = sum(x.numel() * x.element_size() for x in tensors.values())
        size += sizes[form]
    return size


def _solving(changes: Sequence[Change], weights: Sequence[tuple[int, ...]], passed: int) -> int:
    """Most bytes that solvers hold of one of these weights (m, n).

    First the sums over its inputs are made, beside a pass over a batch; then they are inverted or decomposed, with
    copies of the weight beside them.
    """
    squares = max(change.squares for change in changes)
    inputs = max((8 * n * n for _, n in weights), default=0) if squares else 0
    copies = max(change.copies for change in changes) * max((m * n for m, n in weights), default=0)
    return max(squares * inputs + copies, 2 * inputs + max(passed, copies))


def _learning(changes: Sequence[Change], block: Section, passed: int) -> int:
    """Most bytes of a section that learns: weights in float32 twice, gradients and two averages; and a pass."""
    learns = any(change.trains for change in changes)
    return (20 * sum(x.numel() for x in block.parameters()) + 3 * passed) if learns else 0
