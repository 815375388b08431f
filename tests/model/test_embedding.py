import math

import pytest
import torch
from networks import MAX_LEN, VOCABULARY, config, d, stir

from greenformers.model.embedding import Embedding
from greenformers.position.sinusoidal import sinusoidal

B, N, C = 3, 7, 2


def embedding(**options):
    return stir(Embedding(config(**options)).double()).eval()


def tokens():
    return torch.randint(VOCABULARY, (B, N))


def values():
    return torch.randn(B, N, C, dtype=torch.float64)


def test_tokens():
    module, ids = embedding(), tokens()
    expected = module.norm(module.word.weight[ids] + module.position.weight[:N])
    torch.testing.assert_close(module(ids), expected, atol=0, rtol=0)


def test_projectedstand_behind_a_learned_cls():
    module, x = embedding(input_features=C), values()
    cls = module.cls.expand(B, 1, d)
    projected = x @ module.value.weight.T + module.value.bias
    expected = module.norm(torch.cat([cls, projected], 1) + module.position.weight[: N + 1])
    torch.testing.assert_close(module(input_values=x), expected, atol=1e-12, rtol=1e-12)


def test_position_none():
    module, ids = embedding(position="none"), tokens()
    assert module.position is None
    torch.testing.assert_close(module(ids), module.norm(module.word(ids)), atol=0, rtol=0)


def test_position_sinusoidal():
    module, ids = embedding(position="sinusoidal"), tokens()
    assert not list(module.position.parameters())
    # Vaswani 2017, 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos of the same.
    table = torch.tensor(
        [
            [(math.sin, math.cos)[c % 2](position / 10000 ** ((c - c % 2) / d)) for c in range(d)]
            for position in range(N)
        ]
    )
    torch.testing.assert_close(sinusoidal(torch.arange(N), d), table, atol=1e-5, rtol=0)
    torch.testing.assert_close(module(ids), module.norm(d**0.5 * module.word(ids) + table), atol=1e-5, rtol=0)


@pytest.mark.parametrize("width", [2, 5, 8])
def test_sinusoidal_of_any_width(width):
    table = sinusoidal(torch.arange(11), width)
    torch.testing.assert_close(table[:, 0], torch.arange(11.0).sin())
    torch.testing.assert_close(table[:, 1], torch.arange(11.0).cos())
    assert table.shape == (11, width)


def test_sinusoidal_far_out_is_as_exact_as_near():
    far = sinusoidal(torch.tensor([65_536]), 6)[-1]
    expected = [(math.sin, math.cos)[c % 2](65_536 / 10000 ** ((c - c % 2) / 6)) for c in range(6)]
    torch.testing.assert_close(far, torch.tensor(expected), atol=1e-2, rtol=0)


def test_dropout_in_training_only():
    module, ids = embedding(hidden_dropout_prob=1.0), tokens()
    assert module(ids).count_nonzero() == B * N * d
    assert module.train()(ids).count_nonzero() == 0


def test_padding_token_gets_no_gradient():
    module = embedding(pad_token_id=5)
    module(torch.full((B, N), 5)).square().sum().backward()
    assert module.word.weight.grad.count_nonzero() == 0


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({}, {}, "this network takes input_ids or inputs_embeds, got nothing"),
        ({}, {"input_values": values()}, "this network takes input_ids or inputs_embeds, got input_values"),
        (
            {}, {"input_ids": tokens(), "input_values": values()},
            "this network takes input_ids or inputs_embeds, got input_ids and input_values",
        ),
        ({"input_features": C}, {}, "this network takes input_values, got nothing"),
        ({"input_features": C}, {"input_ids": tokens()}, "this network takes input_values, got input_ids"),
        ({}, {"input_ids": torch.zeros(2, MAX_LEN + 1).long()}, f"length must be in 1..{MAX_LEN}, got {MAX_LEN + 1}"),
        ({}, {"input_ids": torch.zeros(2, 0).long()}, f"length must be in 1..{MAX_LEN}, got 0"),
        (
            {"input_features": C},
            {"input_values": torch.zeros(2, MAX_LEN, C)},
            f"length must be in 1..{MAX_LEN}, got {MAX_LEN + 1}",
        ),
        ({"position": "none"}, {"input_ids": torch.zeros(2, 0).long()}, "length must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_wrong_input(options, given, message):
    with pytest.raises(ValueError, match=r"takes|length") as caught:
        Embedding(config(**options))(**given)
    assert str(caught.value) == message


def test_the_longest_input():
    module = embedding(input_features=C)
    assert module(input_values=torch.randn(1, MAX_LEN - 1, C, dtype=torch.float64)).shape == (1, MAX_LEN, d)
