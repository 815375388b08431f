from copy import deepcopy

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped
from torch import nn

from greenformers.lowrank.embedding import LowRankEmbedding
from greenformers.lowrank.linear import LED
from greenformers.measure.parameters import parameters

V, d, r = 17, 11, 3
CLOSE = {
    torch.float64: {"atol": 1e-10, "rtol": 1e-10},
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.bfloat16: {"atol": 0.1, "rtol": 0.1},
    torch.float16: {"atol": 0.02, "rtol": 0.02},
}


def low_rank(rank=r, dtype=torch.float64, **options):
    return LowRankEmbedding(V, d, rank, dtype=dtype, **options)


def tokens(*shape):
    return torch.randint(V, shape)


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("shape", [(), (7,), (2, 7), (2, 0), (2, 3, 5)])
def test_equals_the_dense_table_of_its_weight(shape, index):
    unit, x = low_rank(), tokens(*shape).to(index)
    out, expected = unit(x), unit.weight[x]
    assert out.shape == (*shape, d)
    torch.testing.assert_close(out, expected, **CLOSE[torch.float64])
    leaves, g = [unit.decoder, unit.encoder], torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, leaves, g), torch.autograd.grad(expected, leaves, g), **CLOSE[torch.float64]
    )


@pytest.mark.parametrize("dtype", CLOSE)
def test_full_rank_equals_the_table_it_replaces(dtype):
    table, x = nn.Embedding(V, d, dtype=dtype), tokens(2, 7)
    unit = LowRankEmbedding.like(table, d)
    with torch.no_grad():
        unit.decoder.copy_(table.weight)
        unit.encoder.copy_(torch.eye(d))
    out = unit(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out, table(x), **CLOSE[dtype])
    out.sum().backward()
    assert unit.decoder.grad.dtype == unit.encoder.grad.dtype == dtype


@pytest.mark.parametrize("padding_idx", [0, 5, V - 1, -1, -V])
def test_padding(padding_idx):
    unit = low_rank(padding_idx=padding_idx)
    table = nn.Embedding(V, d, padding_idx=padding_idx, dtype=torch.float64)
    assert unit.padding_idx == table.padding_idx
    row = unit.padding_idx
    assert unit(torch.tensor(row)).count_nonzero() == 0

    x = torch.tensor([row, (row + 3) % V, row, (row + 5) % V])
    unit(x).backward(torch.randn(4, d, dtype=torch.float64))
    assert unit.decoder.grad[row].count_nonzero() == 0
    assert unit.decoder.grad[x[1::2]].count_nonzero() == 2 * r
    before = unit.decoder.detach().clone()
    torch.optim.SGD(unit.parameters(), lr=0.1).step()
    torch.testing.assert_close(unit.decoder[row], before[row], atol=0, rtol=0)
    assert unit(torch.tensor(row)).count_nonzero() == 0


def test_one_pair_of_factors_serves_the_input_and_the_output():
    embedding, output = low_rank(), LED(d, V, r, bias=False)
    output.encoder.weight, output.decoder.weight = embedding.encoder, embedding.decoder
    model = nn.Sequential(embedding, output)
    assert parameters(model) == r * (V + d)
    torch.testing.assert_close(output.weight, embedding.weight, atol=0, rtol=0)

    x, weight = tokens(2, 7), embedding.weight.detach().requires_grad_()
    out, expected = model(x), nn.functional.embedding(x, weight) @ weight.T
    torch.testing.assert_close(out, expected, **CLOSE[torch.float64])
    g = torch.randn_like(out)
    (dense,) = torch.autograd.grad(expected, weight, g)
    grads = torch.autograd.grad(out, [embedding.decoder, embedding.encoder], g)
    chain = (dense @ embedding.encoder.T, embedding.decoder.T @ dense)
    torch.testing.assert_close(grads, chain, **CLOSE[torch.float64])


def test_sparse_gradients_of_the_decoder():
    unit, plain, x = low_rank(sparse=True), low_rank(), tokens(2, 7)
    plain.load_state_dict(unit.state_dict())
    for module in (unit, plain):
        module(x).square().sum().backward()
    assert unit.decoder.grad.is_sparse
    torch.testing.assert_close(unit.decoder.grad.to_dense(), plain.decoder.grad, **CLOSE[torch.float64])
    torch.testing.assert_close(unit.encoder.grad, plain.encoder.grad, **CLOSE[torch.float64])


def test_gradients_scaled_by_frequency():
    x = torch.tensor([1, 2, 2, 3, 3, 3])
    unit, g = low_rank(scale_grad_by_freq=True), torch.randn(6, d, dtype=torch.float64)
    table = nn.Embedding(V, d, scale_grad_by_freq=True, _weight=unit.weight.detach())
    (expected,) = torch.autograd.grad(table(x), table.weight, g)
    (grad,) = torch.autograd.grad(unit(x), unit.decoder, g)
    torch.testing.assert_close(grad, expected @ unit.encoder.T, **CLOSE[torch.float64])


@pytest.mark.parametrize("options", [{}, {"padding_idx": 5}, {"sparse": True, "scale_grad_by_freq": True}])
def test_there_and_back(options):
    table = nn.Embedding(V, d, dtype=torch.bfloat16, **options).eval()
    unit = LowRankEmbedding.like(table, r)
    unit.reset_parameters()
    assert (unit.num_embeddings, unit.embedding_dim, unit.rank, unit.training) == (V, d, r, False)
    dense, x = unit.to_dense(), tokens(2, 7)
    assert type(dense) is nn.Embedding
    assert repr(dense) == repr(table)
    assert (dense.weight.dtype, dense.weight.requires_grad, dense.training) == (torch.bfloat16, True, False)
    assert dense.weight.is_leaf
    torch.testing.assert_close(dense(x), unit(x), **CLOSE[torch.bfloat16])
    assert not unit.requires_grad_(False).to_dense().weight.requires_grad


def test_like_draws_nothing():
    table, state = nn.Embedding(V, d), torch.get_rng_state()
    LowRankEmbedding.like(table, r)
    assert torch.equal(torch.get_rng_state(), state)


def test_on_the_meta_device():
    table = nn.Embedding(V, d)
    with torch.device("meta"):
        real, taken = LowRankEmbedding.like(table, r), LowRankEmbedding.like(nn.Embedding(V, d, padding_idx=5), r)
        inside = LowRankEmbedding(V, d, r)
    for unit in (inside, taken, LowRankEmbedding(V, d, r, padding_idx=5, device="meta")):
        assert all(parameter.is_meta for parameter in unit.parameters())
        assert unit(torch.empty(2, 7, device="meta", dtype=torch.long)).shape == (2, 7, d)
    assert taken.to_dense().weight.is_meta
    assert not real.decoder.is_meta


def test_parameters_and_state_dict():
    first, second = low_rank(), low_rank()
    assert parameters(first) == r * (V + d)
    assert {name: tuple(x.shape) for name, x in first.state_dict().items()} == {"decoder": (V, r), "encoder": (r, d)}
    second.load_state_dict(first.state_dict())
    x = tokens(2, 7)
    torch.testing.assert_close(second(x), first(x), atol=0, rtol=0)


def test_deepcopy_is_equal_and_apart():
    unit, x = low_rank(), tokens(2, 7)
    before = unit(x)
    copy = deepcopy(unit)
    torch.testing.assert_close(copy(x), before, atol=0, rtol=0)
    with torch.no_grad():
        copy.decoder.zero_()
    torch.testing.assert_close(unit(x), before, atol=0, rtol=0)


def test_rows_vary_as_those_of_nn_embedding():
    unit = LowRankEmbedding(1009, 509, 251, padding_idx=7)
    rows = torch.cat([unit.weight[:7], unit.weight[8:]])
    torch.testing.assert_close(rows.std(), torch.tensor(1.0), atol=0, rtol=0.02)
    unit.reset_parameters(std=0.02)
    torch.testing.assert_close(unit.weight.std(), torch.tensor(0.02), atol=0, rtol=0.02)
    assert unit.weight[7].count_nonzero() == 0


def test_export():
    unit, x = low_rank(padding_idx=5), tokens(2, 7)
    exported = torch.export.export(unit, (x,), dynamic_shapes=({1: torch.export.Dim("N", min=2)},))
    longer = tokens(2, 13)
    torch.testing.assert_close(exported.module()(longer), unit(longer), atol=0, rtol=0)


def test_the_signature():
    checked, unit = jaxtyped(typechecker=beartype), low_rank()
    assert checked(LowRankEmbedding.forward)(unit, tokens(2, 7)).shape == (2, 7, d)
    assert checked(LowRankEmbedding.weight.fget)(unit).shape == (V, d)
    with pytest.raises(TypeCheckError):
        checked(LowRankEmbedding.forward)(unit, tokens(2, 7).float())


@pytest.mark.parametrize(("sizes", "limit"), [((V, d), d), ((d, V), d)])
def test_rank_out_of_range(sizes, limit):
    LowRankEmbedding(*sizes, limit)
    for rank in (-1, 0, limit + 1):
        with pytest.raises(ValueError, match="rank must be") as caught:
            LowRankEmbedding(*sizes, rank)
        assert str(caught.value) == f"rank must be in 1..{limit} for a {sizes[0]} x {sizes[1]} embedding, got {rank}"


@pytest.mark.parametrize("padding_idx", [V, -V - 1])
def test_padding_out_of_range(padding_idx):
    with pytest.raises(ValueError, match=rf"padding_idx must be in -17\.\.16, got {padding_idx}"):
        low_rank(padding_idx=padding_idx)


class Scaled(nn.Embedding):
    def forward(self, x):
        return 2 * super().forward(x)


def test_what_cannot_be_expressed():
    with pytest.raises(ValueError, match=r"max_norm must be None in a low-rank embedding, got 1\.5"):
        LowRankEmbedding.like(nn.Embedding(V, d, max_norm=1.5), r)
    for module in (Scaled(V, d), nn.EmbeddingBag(V, d)):
        with pytest.raises(TypeError, match=f"embedding must be an nn.Embedding, got {type(module).__name__}"):
            LowRankEmbedding.like(module, r)


def test_repr():
    assert repr(low_rank(padding_idx=-1)) == "LowRankEmbedding(17, 11, rank=3, padding_idx=16)"
