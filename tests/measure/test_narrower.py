"""The control of low rank: as wide as it can be at the cost of the network with ranks."""

from typing import Any

import pytest
import torch
from torch import nn

from greenformers.measure.flops import flops
from greenformers.measure.grid import Cell, Network, Stack
from greenformers.measure.narrower import controlled
from greenformers.measure.parameters import parameters
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerForSeq2SeqLM
from greenformers.speech.config import SpeechConfig
from greenformers.speech.model import GreenformerForSpeechSeq2Seq

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "num_hidden_layers": 2,
    "max_position_embeddings": 32, "rank": 8, "pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1,
}  # fmt: skip


def call(model: nn.Module, _: GreenformerConfig) -> object:
    ids = torch.ones(1, 32, dtype=torch.long)
    return model(input_ids=ids, labels=ids)


@pytest.mark.parametrize("kind", [GreenformerForCausalLM, GreenformerForSeq2SeqLM])
@pytest.mark.parametrize("variant", ["narrow", "narrow_flops"])
def test_the_next_wider_network_costs_more(variant: str, kind: Any) -> None:
    config = GreenformerConfig(**SIZES, decoder_layers=2 if kind is GreenformerForSeq2SeqLM else None)

    def cost(config: GreenformerConfig) -> float:
        model = kind(config).eval()
        return parameters(model) if variant == "narrow" else flops(lambda: call(model, config))

    narrow = controlled(variant, config, kind, call)
    d = narrow.hidden_size
    assert narrow.rank is None
    assert d < 64
    assert narrow.intermediate_size == 4 * d
    wider = GreenformerConfig(
        **SIZES | {"rank": None, "hidden_size": d + 8, "intermediate_size": 4 * d + 32},
        decoder_layers=config.decoder_layers,
    )
    assert cost(narrow) <= cost(config) < cost(wider)
    assert config.rank == 8
    assert config.hidden_size == 64


def test_the_front_end_of_a_recogniser_is_dense_too() -> None:
    config = SpeechConfig(
        **SIZES, input_rank=4, n_fft=16, window=16, hop=8, channels=2, decoder_layers=1, eos_token_id=2
    )
    kind: Any = GreenformerForSpeechSeq2Seq
    narrow: Any = controlled("narrow", config, kind, call)
    assert (narrow.rank, narrow.input_rank) == (None, None)
    assert narrow.hidden_size < 64
    assert parameters(kind(narrow)) <= parameters(kind(config))
    assert (config.rank, config.input_rank) == (8, 4)


def test_other_variants_stay_as_they_are() -> None:
    config = GreenformerConfig(**SIZES)
    assert controlled("lrt", config, GreenformerForCausalLM, call) is config


def test_refusals() -> None:
    with pytest.raises(ValueError, match="a rank, which is None"):
        controlled("narrow", GreenformerConfig(**SIZES | {"rank": None}), GreenformerForCausalLM, call)
    with pytest.raises(ValueError, match="no dense network of 32 heads costs as little as that of width 64 with the r"):
        controlled(
            "narrow", GreenformerConfig(**SIZES | {"rank": 1, "num_attention_heads": 32}), GreenformerForCausalLM, call
        )


def test_a_stack_of_the_grid_reads_as_many_coordinates() -> None:
    network = Network(hidden=64, heads=4, feed_forward=256, layers=2)
    dense, low, narrow, as_fast = (
        Stack(network, Cell(variant, rank, 128)).eval()
        for variant, rank in (("transformer", None), ("lrt", 8), ("narrow", 8), ("narrow_flops", 8))
    )
    assert parameters(narrow) <= parameters(low) < parameters(dense)
    assert narrow.width < as_fast.width < 64
    x = torch.randn(1, 128, 64)
    assert narrow(x).shape == (1, 128, narrow.width)
    counts = [flops(lambda stack=stack: stack(x)) for stack in (as_fast, low)]
    assert counts[0] <= counts[1]
