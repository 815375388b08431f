"""Parameters and FLOPs of one layer against closed forms. A multiply-add is 2 FLOPs; B sequences of N positions.

A dense map n -> m costs 2 m n a position, an LED 2 r (m + n); attention over M keys 2 x 2 N M D a head.
"""

import pytest
import torch
from networks import FOUR, HEAD_DIM, HEADS, MAX_LEN, RANK, K, d, f, layer

from greenformers.measure.flops import flops
from greenformers.measure.parameters import parameters
from greenformers.model.block import EncoderLayer
from greenformers.model.config import GreenformerConfig

B, N = 3, 17


def dense(n, m):
    return 2 * m * n


def led(n, m, r=RANK):
    return 2 * r * (m + n)


def attention(M):
    return 2 * 2 * B * HEADS * N * M * HEAD_DIM


def shortened(width):
    """E and F applied to codes of keys and of values, and to the ones that count how often a bias is kept."""
    return 2 * B * 2 * K * N * (width + 1)


INFERENCE = {
    "transformer": B * N * (4 * dense(d, d) + dense(d, f) + dense(f, d)) + attention(N),
    "lrt": B * N * (4 * led(d, d) + led(d, f) + led(f, d)) + attention(N),
    # Keys and values are projected after E and F, for K positions instead of N.
    "linformer": B * N * (2 * dense(d, d) + dense(d, f) + dense(f, d))
    + shortened(d)
    + B * 2 * K * dense(d, d)
    + attention(K),
    # First factors see all N positions; E and F apply to codes; second factors of k and v see K positions.
    "lrt+linformer": B * N * (2 * led(d, d) + 2 * dense(d, RANK) + led(d, f) + led(f, d))
    + shortened(RANK)
    + B * 2 * K * dense(RANK, d)
    + attention(K),
}


@pytest.mark.parametrize("name", FOUR)
def test_flops_of_inference(name):
    block, x = layer(name, torch.float32), torch.randn(B, N, d)
    with torch.no_grad():
        assert flops(lambda: block(x)) == INFERENCE[name]
    assert flops(lambda: block(x)) == INFERENCE[name]  # with gradients, without slices


def test_slices_cost_no_flops():
    block = layer("lrt+linformer", torch.float32, max_position_embeddings=601)
    x = torch.randn(B, 601, d)
    with torch.no_grad():
        sliced = flops(lambda: block(x))
    assert sliced == flops(lambda: block(x))


# The backward pass takes a product for the input's gradient and one for the weight's, and fused attention 5 for its 2.
MAPS = {
    "transformer": B * N * (4 * dense(d, d) + dense(d, f) + dense(f, d)),
    "lrt": B * N * (4 * led(d, d) + led(d, f) + led(f, d)),
}
RECOMPUTED = {"transformer": 0, "lrt": B * N * dense(RANK, f)}  # the wide activation, made again from its code


@pytest.mark.parametrize("name", ["transformer", "lrt"])
def test_flops_of_training(name):
    block, x = layer(name, torch.float32), torch.randn(B, N, d, requires_grad=True)
    counted = flops(lambda: block.train()(x).sum().backward())
    assert counted == 3 * MAPS[name] + attention(N) * 7 // 2 + RECOMPUTED[name]


VECTORS = 4 * d + f + d + 4 * d  # biases of four linear layers, of up and of down; weight and bias of two norms
MATRICES = {
    "transformer": 4 * d * d + 2 * d * f,
    "lrt": 4 * RANK * (d + d) + 2 * RANK * (d + f),
}


@pytest.mark.parametrize("name", FOUR)
def test_parameters(name):
    projections = MATRICES["lrt" if "lrt" in name else "transformer"]
    expected = projections + VECTORS + (2 * K * MAX_LEN if "linformer" in name else 0)  # E and F
    assert parameters(layer(name)) == expected


def test_rank_64_makes_a_base_layer_eight_times_smaller():
    def matrices(rank):
        with torch.device("meta"):
            block = EncoderLayer(GreenformerConfig(rank=rank), 0)
        return sum(parameter.numel() for parameter in block.parameters() if parameter.ndim == 2)

    assert matrices(None) == 4 * 768**2 + 2 * 768 * 3072
    assert matrices(64) == 4 * 64 * (768 + 768) + 2 * 64 * (768 + 3072)
    assert matrices(None) == 8 * matrices(64)
