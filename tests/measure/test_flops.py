import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from greenformers.changes._int8 import Int8Linear
from greenformers.measure.flops import flops

B, H, N, M, D, DV = 2, 3, 5, 7, 8, 16
ATTENTION = 2 * B * H * N * M * (D + D)


def qkv(heads=H, width=D, **options):
    return (
        torch.randn(B, heads, N, D, **options),
        torch.randn(B, H, M, D, **options),
        torch.randn(B, H, M, width, **options),
    )


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_linear_is_two_for_each_weight_and_position(mode):
    layer, x = nn.Linear(7, 11), torch.randn(3, 5, 7)
    with mode():
        assert flops(lambda: layer(x)) == 2 * 3 * 5 * 7 * 11
        assert flops(lambda: layer(x[0, 0])) == 2 * 7 * 11


def test_a_module_may_be_given_a_parameter_in_inference():
    layer, queries = nn.Linear(7, 11), nn.Parameter(torch.randn(5, 7))
    with torch.inference_mode():
        assert flops(lambda: layer(queries[None])) == 2 * 5 * 7 * 11


def test_backward_counts_a_product_for_the_weight_and_one_for_the_input():
    layer, x = nn.Linear(7, 11), torch.randn(3, 5, 7)
    forward = 2 * 3 * 5 * 7 * 11
    assert flops(lambda: layer(x).sum().backward()) == 2 * forward
    x.requires_grad_()
    assert flops(lambda: layer(x).sum().backward()) == 3 * forward


def test_a_shared_layer_counts_each_time_it_runs():
    layer, x = nn.Linear(7, 7), torch.randn(5, 7)
    assert flops(lambda: nn.Sequential(layer, nn.ReLU(), layer)(x)) == 2 * 2 * 5 * 7 * 7


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_fused_attention_on_the_cpu(mode):
    q, k, v = qkv()
    mask = torch.ones(N, M, dtype=torch.bool).tril()
    with mode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert flops(lambda: F.scaled_dot_product_attention(q, k, v)) == ATTENTION
        assert flops(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)) == ATTENTION
        assert flops(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)) == ATTENTION


def test_fused_attention_with_fewer_key_heads_counts_every_query_head():
    q, k, v = qkv(heads=2 * H)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert flops(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)) == 2 * ATTENTION


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_plain_attention_with_a_mask_and_wider_values(mode):
    q, k, v = qkv(width=DV)
    mask = torch.ones(N, M, dtype=torch.bool).tril()
    with mode(), sdpa_kernel(SDPBackend.MATH):
        assert flops(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)) == 2 * B * H * N * M * (D + DV)


@pytest.mark.parametrize(("backend", "products"), [(SDPBackend.FLASH_ATTENTION, 5), (SDPBackend.MATH, 4)])
def test_backward_of_attention(backend, products):
    q, k, v = qkv(requires_grad=True)
    with sdpa_kernel(backend):
        counted = flops(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward())
    assert counted == 2 * B * H * N * M * D * (2 + products)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_products_with_vectors(mode):
    matrix, vector, bias = torch.randn(5, 7), torch.randn(7), torch.randn(5)
    with mode():
        assert flops(lambda: matrix @ vector) == 2 * 5 * 7
        assert flops(lambda: torch.addmv(bias, matrix, vector)) == 2 * 5 * 7
        assert flops(lambda: vector @ vector) == 2 * 7


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_torchs_own_encoder_layer_counts_in_inference(mode):
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    projections, attention, feed_forward = 4 * 8 * 8, 2 * 5 * 8, 2 * 8 * 16
    with mode():
        assert flops(lambda: layer(x)) == 2 * 3 * 5 * (projections + attention + feed_forward)
    assert torch.backends.mha.get_fastpath_enabled()


def test_convolution():
    layer, x = nn.Conv1d(5, 4, kernel_size=3), torch.randn(2, 5, 11)
    assert flops(lambda: layer(x)) == 2 * 2 * 9 * 4 * 5 * 3


@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_each_gradient_of_a_convolution_has_the_products_of_the_forward_pass(kind, groups):
    """Torch counts those of the weight as often as there are groups: of a depthwise one as if it were dense."""
    layer, x = kind(6, 12, kernel_size=5, groups=groups), torch.randn(2, 6, 11)
    forward = flops(lambda: layer(x))
    assert forward == 2 * 2 * (7 if kind is nn.Conv1d else 11) * 5 * 6 * 12 // groups
    assert flops(lambda: layer(x).sum().backward()) == 2 * forward
    assert flops(lambda: layer(x.requires_grad_()).sum().backward()) == 3 * forward


def test_what_cannot_be_counted_is_an_error_and_not_zero():
    with pytest.raises(ValueError, match="mkldnn_rnn_layer cannot be counted"):
        flops(lambda: nn.LSTM(7, 5)(torch.randn(3, 7)))


def test_products_of_integers_count_as_those_of_floats():
    a, b = torch.ones(32, 32, dtype=torch.int8), torch.ones(32, 32, dtype=torch.int8)
    assert flops(lambda: torch._int_mm(a, b)) == 2 * 32**3
    layer, x = Int8Linear(7, 5), torch.randn(2, 3, 7)
    assert flops(lambda: layer(x)) == 2 * 2 * 3 * 7 * 5


def test_products_in_place_count_as_those_that_are_not() -> None:
    a, b, c = torch.randn(3, 5), torch.randn(5, 7), torch.randn(3, 7)
    assert flops(lambda: c.addmm_(a, b)) == flops(lambda: torch.addmm(c, a, b)) == 2 * 3 * 5 * 7
    a, b, c = torch.randn(2, 3, 5), torch.randn(2, 5, 7), torch.randn(2, 3, 7)
    assert flops(lambda: c.baddbmm_(a, b)) == flops(lambda: torch.baddbmm(c, a, b)) == 2 * 2 * 3 * 5 * 7


def test_products_of_rows_by_group_count_each_row_once():
    """Experts counted as 0, and their factors as dearer than they."""
    rows, experts, n, m = 20, 3, 8, 12
    x, weights = torch.randn(rows, n, requires_grad=True), torch.randn(experts, n, m, requires_grad=True)
    offsets = torch.tensor([4, 4, rows], dtype=torch.int32)
    product, target = torch.nn.functional.grouped_mm, torch.ones(rows, m)
    assert flops(lambda: product(x, weights, offs=offsets)) == 2 * rows * n * m
    assert flops(lambda: product(x, weights, offs=offsets).backward(target)) == 3 * 2 * rows * n * m
