"""What is Reformer's own: its hashes, its rounds, its padding; and the peer."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from cases import draw, holes, unmasked
from torch import nn

from greenformers.attention import Shape, _hashed, build

SHAPE = Shape(heads=3, head_dim=5, max_len=64)
EXACT = {"rtol": 1e-10, "atol": 1e-12}
SMALL = {"chunk": 4, "n_buckets": 6}


def make(*, causal=False, **options):
    torch.manual_seed(0)
    return build("reformer", replace(SHAPE, causal=causal), **SMALL | options)


# A pair counts once; the own token only where nothing else is seen.


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("n_buckets", [1, 6])
def test_in_one_chunk_it_is_softmax_over_the_others(masked, scale, n_buckets):
    q, k, v = draw(11, 11)
    mask = holes(11) if masked else None
    scores = (5**-0.5 if scale is None else scale) * q @ F.normalize(q, dim=-1).mT
    scores = scores.masked_fill(torch.eye(11, dtype=torch.bool), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    module = make(n_buckets=n_buckets, chunk=11, scale=scale, across_buckets=n_buckets > 1)
    out = module.double()(q, k, v, mask)
    torch.testing.assert_close(unmasked(out, mask), unmasked(scores.softmax(-1) @ v, mask), **EXACT)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_weights_sum_to_one(masked, rounds):
    q, k, v = draw(37, 37)
    mask = holes(37) if masked else None
    out = unmasked(make(rounds=rounds).double()(q, k, torch.ones_like(v), mask), mask)
    torch.testing.assert_close(out, torch.ones_like(out), **EXACT)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_rounds_that_are_alike_are_one(masked):
    tensors = draw(37, 37)
    mask = holes(37) if masked else None
    single_round, three_rounds = make(rounds=1).double(), make(rounds=3).double()
    three_rounds.rotations.copy_(single_round.rotations.expand(3, -1, -1, -1))
    torch.testing.assert_close(three_rounds(*tensors, mask), single_round(*tensors, mask), **EXACT)


def test_more_rounds_see_more():
    q, k, v = draw(37, 37)
    seen = []
    for rounds in (1, 2, 8):
        values = v.clone().requires_grad_()
        make(rounds=rounds).double()(q, k, values)[0, 0, 5].sum().backward()
        seen.append(values.grad[0, 0].any(-1).sum().item())
    assert 0 < seen[0] < seen[1] < seen[2] <= 36
    assert seen[0] <= 7  # its chunk and the one before


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_own_token_is_seen_only_where_nothing_else_is(rounds):
    q, k, v = draw(37, 37)
    v.requires_grad_()
    module = make(rounds=rounds).double()
    for i in (0, 17, 36):
        (grad,) = torch.autograd.grad(module(q, k, v)[:, :, i].sum(), v)
        itself = grad[:, :, i].any(-1)
        grad[:, :, i] = 0
        assert torch.equal(itself, ~grad.any(-1).any(-1))
        assert itself.any() < itself.numel() / 2
    alone = torch.arange(37).expand(2, -1) == 17
    out = module(q, k, v, alone)
    torch.testing.assert_close(out[:, :, 17], v[:, :, 17], **EXACT)
    torch.testing.assert_close(module(q[:, :, :1], k[:, :, :1], v[:, :, :1]), v[:, :, :1], **EXACT)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_only_positions_of_the_same_hash_are_seen(rounds, causal):
    """Equation 5; in 474 of 960 pairs that the public implementations see hashes differ."""
    module, (q, k, _) = make(rounds=rounds, causal=causal).double(), draw(37, 37)
    weights = module.weights(q, k)[0]["v"].masked_fill(torch.eye(37, dtype=torch.bool), 0.0)
    buckets = module.buckets(q)
    alike = (buckets[..., None] == buckets[..., None, :]).any(2)
    assert weights.any()
    assert not weights[~alike].any()
    across = make(rounds=rounds, across_buckets=True).double()
    assert across.weights(q, k)[0]["v"][~alike].any()


def test_all_of_the_same_hash_are_seen_where_a_chunk_holds_them():
    module, (q, k, _) = make(rounds=3, chunk=37).double(), draw(37, 37)
    buckets = module.buckets(q)
    alike = (buckets[..., None] == buckets[..., None, :]).any(2) & ~torch.eye(37, dtype=torch.bool)
    assert torch.equal(module.weights(q, k)[0]["v"].masked_fill(torch.eye(37, dtype=torch.bool), 0.0) > 0, alike)


def test_keys_are_not_read():
    module, (q, k, v) = make(), draw(37, 37, dtype=torch.float32)
    assert module.projections == ("q", "v")
    assert torch.equal(module(q, torch.full_like(k, torch.nan), v), module(q, k, v))


# Padding: reformer-pytorch lets it take places in the chunks, and hashes that see the whole batch.


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("count", [1, 3, 4, 7, 8, 13, 22])
def test_padding_anywhere_changes_nothing(rounds, count):
    """The kept positions of a row get what they get alone, in a shorter sequence."""
    module = make(rounds=rounds).double()
    q, k, v = draw(37, 37)
    generator = torch.Generator().manual_seed(count)
    mask = torch.rand(2, 37, generator=generator).argsort(1) < torch.tensor([[count], [37]])
    out = module(q, k, v, mask)
    some = mask[0]
    alone = module(*(x[:1, :, some] for x in (q, k, v)))
    torch.testing.assert_close(out[:1, :, some], alone, **EXACT)
    torch.testing.assert_close(out[1:], module(*(x[1:] for x in (q, k, v))), **EXACT)


@pytest.mark.parametrize("content", [torch.nan, torch.inf, 1e30])
def test_padding_may_hold_anything(content):
    module, (q, k, v) = make(), draw(37, 37, dtype=torch.float32)
    mask = holes(37)
    others = [x.masked_fill(~mask[:, None, :, None], content) for x in (q, k, v)]
    assert torch.equal(module(*others, mask), module(q, k, v, mask))


def test_a_position_takes_part_if_both_masks_keep_it():
    module, tensors = make().double(), draw(37, 37)
    queries, keys = holes(37), torch.arange(37).expand(2, -1) % 5 != 1
    out = module(*tensors, keys, query_mask=queries)
    torch.testing.assert_close(out, module(*tensors, keys & queries), **EXACT)
    torch.testing.assert_close(module(*tensors, query_mask=queries), module(*tensors, queries), **EXACT)
    assert not out.transpose(1, 2)[~(keys & queries)].any()


# Causal: the past alone decides who sees whom.


@pytest.mark.parametrize("rounds", [1, 3])
def test_later_positions_do_not_change_what_is_seen_as_they_do_in_the_one_of_transformers(rounds):
    peer, ours, _ = peer_and_ours(rounds, causal=True)
    x = torch.randn(2, 24, 15)
    later = torch.cat([x[:, :-1], torch.randn(2, 1, 15)], 1)
    assert torch.equal(ours(x)[0][:, :-1], ours(later)[0][:, :-1])
    changed = []
    for each in (x, later):
        torch.manual_seed(0)
        changed.append(peer(each).hidden_states[:, :-1])
    assert (changed[0] - changed[1]).abs().amax(-1).count_nonzero() > 2


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("queries", [1, 5, 30])
def test_queries_behind_a_cache_get_what_they_get_in_the_whole(queries, masked, rounds):
    module, (q, _, v) = make(rounds=rounds, causal=True).double(), draw(37, 37)
    mask = holes(37) if masked else None
    whole = module(q, q, v, mask)
    last = module(q[:, :, -queries:], q, v, mask)
    torch.testing.assert_close(last, whole[:, :, -queries:], **EXACT)


def test_a_causal_form_across_buckets_is_refused():
    with pytest.raises(ValueError, match="reformer has no causal form across buckets: later positions would move"):
        make(causal=True, across_buckets=True)


# Hashes.


def test_buckets_are_those_of_the_largest_projection():
    module, (q, _, _) = make(rounds=2, n_buckets=12).double(), draw(37, 37)
    buckets = module.buckets(q)
    assert buckets.shape == (2, 3, 2, 37)
    assert buckets.dtype == torch.long
    for r in range(2):
        x = q @ module.rotations[r]
        assert torch.equal(buckets[:, :, r], torch.cat([x, -x], -1).argmax(-1))
    assert torch.equal(module.buckets(3 * q), buckets)
    assert torch.equal(module.buckets(-q), (buckets + 6) % 12)
    assert torch.equal(module.buckets(q, holes(37)) == 12, ~holes(37)[:, None, None].expand_as(buckets))
    assert not build("reformer", SHAPE, n_buckets=1).buckets(q).any()


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_a_layer_can_be_computed_again_with_its_buckets(masked):
    module, (q, k, v) = make(redraw=1), draw(37, 37, dtype=torch.float32)
    mask = holes(37) if masked else None
    out, buckets = module(q, k, v, mask), module.buckets(q, mask)
    module.update_()
    assert not torch.equal(module(q, k, v, mask), out)
    assert torch.equal(module(q, k, v, mask, choice=buckets), out)


def test_rotations_are_drawn_again_after_so_many_steps_alike_in_all_processes():
    module, never = make(redraw=3), make()
    loaded = build("reformer", SHAPE, **SMALL, redraw=3)
    loaded.load_state_dict(module.state_dict())
    drawn = [module.rotations.clone()]
    for _ in range(6):
        torch.manual_seed(torch.seed())
        for each in (module, loaded, never):
            each.update_()
        drawn.append(module.rotations.clone())
        assert torch.equal(loaded.rotations, module.rotations)
    changed = [not torch.equal(before, after) for before, after in pairwise(drawn)]
    assert changed == [False, False, True, False, False, True]
    assert torch.equal(never.rotations, drawn[0])


def test_a_loaded_module_hashes_alike():
    module, other = make(), build("reformer", SHAPE, **SMALL, seed=1)
    q, _, _ = draw(37, 37)
    assert not torch.equal(other.buckets(q), module.buckets(q))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.buckets(q), module.buckets(q))


def test_made_on_the_meta_device_it_is_filled_afterwards():
    with torch.device("meta"):
        module = build("reformer", SHAPE, **SMALL)
    assert module(*(x.to("meta") for x in draw(37, 37)), holes(37).to("meta")).shape == (2, 3, 37, 5)
    module.to_empty(device="cpu")
    module.reset_parameters()
    assert module.rotations.std().item() == pytest.approx(1, rel=0.3)
    assert module.steps == 0
    assert module(*draw(37, 37)).isfinite().all()


@pytest.mark.parametrize(
    ("max_len", "chunk", "n_buckets"),
    [(1, 64, 2), (64, 64, 2), (200, 64, 6), (1024, 64, 32), (1024, 16, 128), (2**16, 64, 128)],
)
def test_there_are_two_buckets_a_chunk_up_to_a_limit(max_len, chunk, n_buckets):
    assert build("reformer", Shape(1, 2, max_len), chunk=chunk).n_buckets == n_buckets


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_buckets": 0}, "n_buckets must be 1 or even, got 0"),
        ({"n_buckets": 3}, "n_buckets must be 1 or even, got 3"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"scale": float("nan")}, "scale must be a finite number, got nan"),
        ({"redraw": 0}, "redraw must be at least 1 step, got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build("reformer", SHAPE, **options)


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="reformer needs as many keys as queries, got 11 and 7"):
        make()(*draw(7, 11))
    with pytest.raises(ValueError, match=r"choice must be \(2, 3, 2, 11\), got \(2, 3, 1, 11\)"):
        make()(*draw(11, 11), choice=torch.zeros(2, 3, 1, 11, dtype=torch.long))


# What the formula does not reach.


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_nothing_depends_on_how_many_tiles_are_taken_at_a_time(masked, monkeypatch):
    module, tensors = make(rounds=3).double(), [x.requires_grad_() for x in draw(37, 37)]
    mask = holes(37) if masked else None
    results = []
    for scores in (2**20, 100, 1):
        monkeypatch.setattr(_hashed, "SLICE", scores)
        out = module(*tensors, mask)
        results.append((out, *torch.autograd.grad(out.square().sum(), (tensors[0], tensors[2]))))
    for each in results[1:]:
        torch.testing.assert_close(each, results[0], **EXACT)


def test_with_dropout_the_backward_pass_drops_the_same_weights(monkeypatch):
    monkeypatch.setattr(_hashed, "SLICE", 100)
    module, (q, k, v) = make(dropout=0.3).double(), draw(17, 17)

    def outputs(q, v):
        torch.manual_seed(0)
        return module(q, k, v)

    assert not torch.equal(outputs(q, v), module(q, k, v))
    assert torch.autograd.gradcheck(outputs, [x.requires_grad_() for x in (q, v)], fast_mode=True)


def test_many_chunks_do_not_overflow():
    module = build("reformer", Shape(1, 2, 20011), chunk=2).eval()
    q, k, v = (torch.randn(1, 1, 20011, 2) for _ in range(3))
    out = module(q, k, torch.ones_like(v))
    torch.testing.assert_close(out, torch.ones_like(out))


# The peer.


def peer_and_ours(rounds, n_buckets=6, chunk=4, causal=False):
    """The attention of transformers, and ours with its scale between its projections."""
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    torch.manual_seed(0)
    config = ReformerConfig(
        hidden_size=15,
        num_attention_heads=3,
        attention_head_size=5,
        num_hashes=rounds,
        num_buckets=n_buckets,
        lsh_attn_chunk_length=chunk,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=causal,
    )
    peer = LSHSelfAttention(config).eval()
    for projection in (peer.query_key, peer.value):
        nn.init.normal_(projection.weight, std=0.5)
    module = make(rounds=rounds, n_buckets=n_buckets, chunk=chunk, scale=1.0, across_buckets=not causal, causal=causal)

    def ours(x, mask=None, buckets=None):
        q, v = (each(x).unflatten(2, (3, 5)).transpose(1, 2) for each in (peer.query_key, peer.value))
        return module(q, q, v, mask, choice=buckets).transpose(1, 2).flatten(2), module.buckets(q)

    return peer, ours, module


def with_rotations(monkeypatch, module):
    """What the peer draws is (H, D, rounds, n_buckets / 2)."""
    monkeypatch.setattr(torch, "randn", lambda *_, **__: module.rotations.permute(1, 2, 0, 3))


CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("length", [24, 4])
def test_equals_the_one_of_transformers_with_its_rotations(masked, length, monkeypatch):
    peer, ours, module = peer_and_ours(rounds=1)
    x = torch.randn(2, length, 15)
    # Whole chunks of padding would be looked back to there by the first chunk.
    mask = torch.arange(length).expand(2, -1) % 11 != 3 if masked else None
    with_rotations(monkeypatch, module)
    expected = peer(x, attention_mask=mask)
    out, buckets = ours(x, mask)
    torch.testing.assert_close(*(y if mask is None else y[mask] for y in (out, expected.hidden_states)), **CLOSE)
    if length > 4 and not masked:
        assert torch.equal(buckets, expected.buckets)


def buckets_where_no_pair_meets_twice():
    """Of 64 positions in two rounds: chunks of 2 neighbours, and of 2 that are 7 apart."""
    place = torch.arange(64) * 9 % 64
    return torch.stack([torch.arange(64) // 2, place // 2]).expand(2, 3, -1, -1)


def test_equals_the_one_of_transformers_in_several_rounds():
    peer, ours, _ = peer_and_ours(rounds=2, n_buckets=32, chunk=2)
    x = torch.randn(2, 64, 15)
    buckets = buckets_where_no_pair_meets_twice()
    of_rounds = buckets + torch.tensor([[0], [32]])
    # There the first chunk of a round looks back to the last one of the round before, and not of its own.
    inner = (buckets[0, 0] > 0).all(0)
    assert inner.sum() >= 60
    out, expected = ours(x, buckets=buckets)[0], peer(x, buckets=of_rounds).hidden_states
    torch.testing.assert_close(out[:, inner], expected[:, inner], **CLOSE)


def test_the_one_of_transformers_counts_a_pair_as_often_as_it_meets(monkeypatch):
    """Which the paper does not (appendix A)."""
    peer, ours, module = peer_and_ours(rounds=4)
    x = torch.randn(2, 24, 15)
    with_rotations(monkeypatch, module)
    assert (ours(x)[0] - peer(x).hidden_states).abs().max() > 1e-2


def test_chunks_that_float32_would_mix_up_are_refused():
    module, x = (
        build("reformer", Shape(1, 4, 16384, causal=True), chunk=2, n_buckets=4096, rounds=1),
        torch.randn(1, 1, 16384, 4),
    )
    with pytest.raises(ValueError, match=r"n_buckets times chunks must be below 2\^24"):
        module(x, x, x)
    routing = build("routing", Shape(1, 4, 256, causal=True), clusters=2**20, window=16)
    with pytest.raises(ValueError, match=r"clusters times chunks must be below 2\^24"):
        routing(x[:, :, :256], x[:, :, :256], x[:, :, :256])
    across = build("reformer", Shape(1, 4, 64), chunk=2, n_buckets=2**19, rounds=1, across_buckets=True)
    assert across(x[:, :, :64], x[:, :, :64], x[:, :, :64]).isfinite().all()  # which numbers chunks alone
