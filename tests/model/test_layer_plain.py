"""The layer with and without gradients (where it runs in slices) against its plain form."""

import pytest
import torch
from networks import NETWORKS, RANK, d, layer, padding
from plain_layer import plain

SLICE = 256  # tokens, by conftest.py

CLOSE = {torch.float64: {"atol": 1e-12, "rtol": 1e-12}, torch.float32: {"atol": 1e-5, "rtol": 1e-5}}
SIZES = [
    (1, 1),
    (1, SLICE - 1),
    (1, SLICE),
    (1, SLICE + 1),
    (3, SLICE + 1),
    (2, SLICE // 2),
    (3, SLICE // 2),
    (3, SLICE // 2 + 1),
    (7, 101),
    (SLICE + 1, 1),
    (1, 2 * SLICE + 3),
    (0, 7),
]


def compare(block, x, key_mask, close):
    expected = plain(block, x, key_mask)
    assert expected.requires_grad
    torch.testing.assert_close(block(x, key_mask), expected, **close)
    with torch.no_grad():
        torch.testing.assert_close(block(x, key_mask), expected.detach(), **close)
    with torch.inference_mode():
        torch.testing.assert_close(block(x, key_mask), expected.detach(), **close)


def fresh(name, dtype=torch.float64, **options):
    return layer(name, dtype, max_position_embeddings=3 * SLICE, **options)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_size_around_the_slice(name, dtype, masked):
    block = fresh(name, dtype)
    for B, N in SIZES:
        compare(block, torch.randn(B, N, d, dtype=dtype), padding(B, N) if masked else None, CLOSE[dtype])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_pre_norm(name, masked):
    block = fresh(name, residual="pre")
    for B, N in [(3, SLICE + 1), (7, 101)]:
        x = torch.randn(B, N, d, dtype=torch.float64)
        compare(block, x, padding(B, N) if masked else None, CLOSE[torch.float64])


@pytest.mark.parametrize("name", NETWORKS)
def test_non_contiguous_input(name):
    block, B, N = fresh(name), 3, SLICE + 1
    for x in (
        torch.randn(N, B, d, dtype=torch.float64).transpose(0, 1),
        torch.randn(B, d, N, dtype=torch.float64).mT,
        torch.randn(2 * B, N, d, dtype=torch.float64)[::2],
        torch.randn(B, 1, d, dtype=torch.float64).expand(B, N, d),
    ):
        assert not x.is_contiguous()
        compare(block, x, padding(B, N), CLOSE[torch.float64])


@pytest.mark.parametrize("residual", ["post", "pre"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients(name, residual):
    block, (B, N) = fresh(name, residual=residual), (3, SLICE + 1)
    x = torch.randn(B, N, d, dtype=torch.float64, requires_grad=True)
    leaves, g, mask = [x, *block.parameters()], torch.randn(B, N, d, dtype=torch.float64), padding(B, N)
    grads = torch.autograd.grad(block(x, mask), leaves, g)
    expected = torch.autograd.grad(plain(block, x, mask), leaves, g)
    torch.testing.assert_close(grads, expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("name", ["transformer", "lrt", "lrt+linformer"])
def test_the_input_is_left_alone(name):
    block, x = fresh(name), torch.randn(3, SLICE + 1, d, dtype=torch.float64)
    before = x.clone()
    with torch.no_grad():
        out = block(x)
    torch.testing.assert_close(x, before, atol=0, rtol=0)
    assert out.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("name", ["prelu", "relu", "silu"])
def test_any_activation_of_the_feed_forward_block(name):
    block = fresh("lrt", hidden_act=name)
    x = torch.randn(2, 101, d, dtype=torch.float64, requires_grad=True)
    leaves, g = [x, *block.parameters()], torch.randn(2, 101, d, dtype=torch.float64)
    grads = torch.autograd.grad(block(x), leaves, g)
    torch.testing.assert_close(grads, torch.autograd.grad(plain(block, x), leaves, g), atol=1e-11, rtol=1e-11)
    compare(block, x.detach(), None, CLOSE[torch.float64])


@pytest.mark.parametrize("residual", ["post", "pre"])
def test_dropout_acts_after_each_block_in_training_only(residual):
    block = fresh("lrt", hidden_dropout_prob=1.0, residual=residual)
    x = torch.randn(2, 101, d, dtype=torch.float64)
    compare(block, x, None, CLOSE[torch.float64])
    # All dropped: what is left of a post-norm layer are its two norms, of a pre-norm layer nothing.
    expected = x if residual == "pre" else block.feed_forward_norm(block.attention_norm(x))
    torch.testing.assert_close(block.train()(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(block(x), expected)


def test_the_ranks_are_where_the_configuration_puts_them():
    block = fresh("mixed ranks")
    assert {name for name, module in block.named_modules() if hasattr(module, "encoder")} == {
        "attention.projections.v",
        "attention.output",
        "feed_forward.up",
    }
    assert (block.attention.projections["v"].rank, block.attention.output.rank, block.feed_forward.up.rank) == (
        3,
        RANK,
        5,
    )
