"""What is BigBird's own: its random blocks, and that with those of transformers it is what transformers computes."""

from copy import deepcopy

import pytest
import torch
from transformers import BigBirdConfig
from transformers.models.big_bird import modeling_big_bird

from greenformers.attention import Shape, build

HEADS, DIM = 3, 5
CPU = torch.device("cpu")
SIZES = [(9, 0, None), (9, 2, None), (40, 3, None), (4, 3, None), (3, 3, None), (9, 2, 4), (40, 3, 4), (5, 3, 4)]
"""Blocks that are not global, random ones of each, extra globals."""

each_size = pytest.mark.parametrize(("blocks", "random", "extra"), SIZES)


def mechanism(layer=0, heads=HEADS, **options):
    return build("bigbird", Shape(heads=heads, head_dim=DIM, max_len=4096, layer=layer, layers=3), **options)


def theirs_and_plan(monkeypatch, **options):
    """The attention of transformers, and a list that its random blocks (H, T, r) go to."""
    config = BigBirdConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, max_position_embeddings=4096, use_bias=True, **options
    )
    theirs = modeling_big_bird.BigBirdBlockSparseAttention(config, seed=7).train()
    plans, masked = [], theirs._create_rand_mask_from_inputs

    def remember(from_mask, to_mask, plan, *sizes):
        plans.append(plan[0])
        return masked(from_mask, to_mask, plan, *sizes)

    monkeypatch.setattr(theirs, "_create_rand_mask_from_inputs", remember)
    return theirs, plans


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize(("length", "block", "random"), [(44, 4, 2), (60, 4, 3), (26, 2, 3), (832, 64, 3)])
def test_equals_that_of_transformers(length, block, random, padded, monkeypatch):
    torch.manual_seed(0)
    theirs, plans = theirs_and_plan(monkeypatch, block_size=block, num_random_blocks=random)
    hidden = torch.randn(2, length, HEADS * DIM)
    mask = torch.arange(length) < torch.tensor([length, length - length // 3 if padded else length])[:, None]
    blocked, band, queries, keys = modeling_big_bird.BigBirdModel.create_masks_for_block_sparse_attn(
        mask.float(), block
    )
    with torch.no_grad():
        expected = theirs(hidden, band, queries, keys, blocked, blocked)[0]
        q, k, v = (
            project(hidden).unflatten(2, (HEADS, -1)).transpose(1, 2)
            for project in (theirs.query, theirs.key, theirs.value)
        )
        module = mechanism(block=block, random=random, padding="batch")
        # Blocks are counted from the first in transformers, here from the first that is not global.
        module.extra_blocks = lambda *_: plans[-1] - 1
        out = module(q, k, v, mask).transpose(1, 2).flatten(2)
    assert plans[-1].shape == (HEADS, length // block - 2, random)
    assert plans[-1].unique().numel() > random
    torch.testing.assert_close(out[mask], expected[mask], rtol=0, atol=1e-5)


@each_size
def test_random_blocks_are_outside_the_window_and_each_once(blocks, random, extra):
    table = mechanism(random=random, extra_globals=extra).extra_blocks(blocks, CPU)
    whole = blocks if extra is None else blocks - 1  # the last of them may be short
    if min(random, whole - 3) < 1:
        assert table is None
        return
    assert table.shape == (HEADS, blocks, min(random, whole - 3))
    assert table.min() >= 0
    assert table.max() < whole
    assert ((table - torch.arange(blocks)[:, None]).abs() > 1).all()
    ordered = table.sort(-1).values
    assert (ordered[..., 1:] > ordered[..., :-1]).all()


def test_a_table_as_large_as_can_be_has_all_blocks_outside_the_window():
    table = mechanism(random=99).extra_blocks(9, CPU)
    for tile in range(1, 8):
        others = [block for block in range(9) if abs(block - tile) > 1]
        assert table[0, tile].sort().values.tolist() == others


def test_random_blocks_differ_between_heads_layers_and_seeds():
    table = mechanism().extra_blocks(40, CPU)
    assert not torch.equal(table[0], table[1])
    assert not torch.equal(mechanism(layer=1).extra_blocks(40, CPU), table)
    assert not torch.equal(mechanism(seed=1).extra_blocks(40, CPU), table)


def test_random_blocks_stay_the_same_from_call_to_call_and_in_a_copy():
    module = mechanism()
    table = module.extra_blocks(40, CPU)
    torch.manual_seed(1)
    assert torch.equal(module.extra_blocks(40, CPU), table)
    assert torch.equal(deepcopy(module).extra_blocks(40, CPU), table)
    assert torch.equal(mechanism().extra_blocks(40, CPU), table)


@pytest.mark.parametrize("slot", range(3))
def test_each_block_outside_the_window_is_as_likely(slot):
    """Chi-squared of 9 blocks less 3, over 4000 heads: below its 99.9% point of 5 degrees of freedom, 20.5."""
    table = mechanism(heads=4000).extra_blocks(9, CPU)[:, 4, slot]
    counts = table.bincount(minlength=9).double()
    counts = counts[[block for block in range(9) if abs(block - 4) > 1]]
    expected = 4000 / 6
    assert ((counts - expected).square() / expected).sum() < 20.5
    assert counts.sum() == 4000
