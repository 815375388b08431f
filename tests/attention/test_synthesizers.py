"""What is the Synthesizers' own: whose scores belong to positions, and what they read."""

import math

import pytest
import torch
from cases import draw, holes
from rows import reference

from greenformers.attention import Shape, build

SHAPE = Shape(heads=3, head_dim=5, max_len=13)
CAUSAL = Shape(heads=3, head_dim=5, max_len=13, causal=True)
DENSE = ("synthesizer_dense", "synthesizer_factorized_dense")
RANDOM = ("synthesizer_random", "synthesizer_factorized_random")
NAMES = (*DENSE, *RANDOM)
EXACT = {"rtol": 1e-12, "atol": 1e-12}
each_kind = pytest.mark.parametrize("name", NAMES)


def make(name, shape=SHAPE, **options):
    """The mechanism in float64, of parameters drawn from one seed."""
    torch.manual_seed(0)
    return build(name, shape, **options).double()


@pytest.mark.parametrize("name", DENSE)
def test_the_dense_ones_read_no_keys(name):
    assert make(name).projections == ("q", "v")
    assert make(name, mixed=True).projections == ("q", "k", "v", "hidden")


@pytest.mark.parametrize("name", RANDOM)
def test_the_random_ones_read_values_alone(name):
    assert make(name).projections == ("v",)
    assert make(name, mixed=True).projections == ("q", "k", "v")


@each_kind
def test_what_is_no_projection_changes_nothing(name):
    module, (q, k, v), (other_q, other_k, _) = make(name), draw(11, 11), draw(11, 11, seed=2)
    unread = {"q": other_q, "k": other_k}
    given = {"q": q, "k": k} | {name: x for name, x in unread.items() if name not in module.projections}
    assert torch.equal(module(v=v, **given), module(q, k, v))


@each_kind
@pytest.mark.parametrize("shape", [SHAPE, CAUSAL], ids=["", "causal"])
@pytest.mark.parametrize("mixed", [False, True], ids=["", "mixed"])
def test_weights_sum_to_one(name, shape, mixed):
    q, k, v = draw(7, 11)
    out = make(name, shape, mixed=mixed)(q, k, torch.ones_like(v), holes(11))
    seen = holes(11)[:, None, :, None].expand(2, 3, -1, 1)
    if shape.causal:
        seen = seen.cumsum(2)[:, :, 4:] > 0
    torch.testing.assert_close(out, torch.ones_like(out) * (seen if shape.causal else seen.any(2, keepdim=True)))


@each_kind
@pytest.mark.parametrize("mixed", [False, True], ids=["", "mixed"])
def test_padding_on_the_left_changes_nothing_in_the_causal_form(name, mixed):
    module, tensors = make(name, CAUSAL, mixed=mixed), draw(11, 11)
    mask = (torch.arange(11) >= 4).expand(2, -1)
    alone = module(*(x[:, :, 4:] for x in tensors))
    torch.testing.assert_close(module(*tensors, mask)[:, :, 4:], alone, **EXACT)


@each_kind
def test_queries_are_at_the_last_positions_in_the_causal_form(name):
    module, (q, k, v) = make(name, CAUSAL), draw(11, 11)
    torch.testing.assert_close(module(q[:, :, 8:], k, v), module(q, k, v)[:, :, 8:], **EXACT)
    mask = holes(11)
    torch.testing.assert_close(module(q[:, :, 8:], k, v, mask), module(q, k, v, mask)[:, :, 8:], **EXACT)


@each_kind
def test_either_kind_of_scores_alone(name):
    module, (q, k, v) = make(name, mixed=True), draw(7, 11)
    hidden = {"hidden": draw(7, 11, seed=2)[0]} if "hidden" in module.projections else {}
    with torch.no_grad():
        module.mix.copy_(torch.tensor([50.0, -50.0]))
    torch.testing.assert_close(module(q, k, v, **hidden), build("full", SHAPE)(q, k, v), **EXACT)
    with torch.no_grad():
        module.mix.neg_()
    plain = make(name)
    plain.load_state_dict({key: x for key, x in module.state_dict().items() if key != "mix"})
    torch.testing.assert_close(module(q, k, v, **hidden), plain(hidden.get("hidden", q), k, v), **EXACT)


@pytest.mark.parametrize("name", DENSE)
def test_a_hidden_projection_of_its_own_is_read_as_in_the_formula(name):
    module, tensors, (hidden, *_) = make(name, mixed=True), draw(7, 11), draw(7, 11, seed=2)
    expected = reference(name)(module, *tensors, holes(11), hidden=hidden)
    torch.testing.assert_close(module(*tensors, holes(11), hidden=hidden), expected, **EXACT)


@each_kind
def test_a_mixture_starts_with_equal_shares_and_learns_them(name):
    module = make(name, mixed=True)
    assert module.mix.tolist() == [0, 0]
    module(*draw(7, 11)).square().sum().backward()
    assert module.mix.grad.any()


@pytest.mark.parametrize("name", RANDOM)
def test_fixed_scores_are_saved_and_no_parameters(name):
    fixed, trained = make(name, trained=False), make(name)
    assert not list(fixed.parameters())
    assert dict(trained.named_parameters()).keys() == fixed.state_dict().keys() == trained.state_dict().keys()
    assert torch.equal(fixed(*draw(7, 11)), trained(*draw(7, 11)))


def test_a_random_one_of_the_product_is_the_factorized_one():
    factorized, module = make("synthesizer_factorized_random", rank=3), make("synthesizer_random")
    with torch.no_grad():
        module.R.copy_(factorized.R1 @ factorized.R2.mT)
    torch.testing.assert_close(module(*draw(7, 11)), factorized(*draw(7, 11)), **EXACT)


@pytest.mark.parametrize("rank", [1, 8, 64])
def test_random_scores_start_with_variance_1(rank):
    shape = Shape(heads=2, head_dim=5, max_len=256)
    torch.manual_seed(0)
    module = build("synthesizer_factorized_random", shape, rank=rank)
    assert (module.R1 @ module.R2.mT).var().item() == pytest.approx(1, rel=0.2)
    assert build("synthesizer_random", shape).R.var().item() == pytest.approx(1, rel=0.02)


def test_the_rank_is_8_unless_the_sequence_is_shorter():
    ranks = [build("synthesizer_factorized_random", Shape(3, 5, length)).R1.shape[2] for length in (7, 8, 9)]
    assert ranks == [7, 8, 8]


@pytest.mark.parametrize("max_len", [1, 2, 3, 4, 5, 12, 13, 16, 17, 1000])
def test_the_two_factors_of_a_length(max_len):
    module = build("synthesizer_factorized_dense", Shape(3, 5, max_len))
    a, b = module.W_A.shape[2], module.W_B.shape[2]
    assert a == math.ceil(math.sqrt(max_len))
    assert b == math.ceil(max_len / a)


@pytest.mark.parametrize("rank", [0, 14])
def test_a_rank_out_of_range_is_refused(rank):
    with pytest.raises(ValueError, match=rf"rank must be in 1\.\.13 \(the longest sequence\), got {rank}"):
        build("synthesizer_factorized_random", SHAPE, rank=rank)


@each_kind
def test_more_queries_than_positions_are_refused(name):
    with pytest.raises(ValueError, match=r"number of queries must be in 1\.\.13, got 14"):
        make(name)(*draw(14, 11))


@pytest.mark.parametrize("name", ["synthesizer_dense", "synthesizer_factorized_dense"])
def test_a_hidden_state_of_one_query_on_top_of_masked_keys(name):
    """A number that is not finite takes the way of a GPU."""
    module = build(name, Shape(2, 4, 8, causal=True), mixed=True)
    (k, v), q = torch.randn(2, 1, 2, 6, 4), torch.randn(1, 2, 1, 4)
    hidden = q.clone()
    hidden[..., 0] = float("inf")
    assert module(q, k, v, torch.ones(1, 6, dtype=torch.bool), hidden=hidden).shape == q.shape
