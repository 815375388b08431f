"""LRMHA as the thesis prints it, eq. 3.2: each head has two factors of its own, without bias."""

import pytest
import torch
from torch import Tensor

from greenformers.lowrank.linear import HeadLED
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerModel

SIZES = {
    "vocab_size": 50, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": 16, "rank_per_head": True,
}  # fmt: skip


def drawn(kind: type = GreenformerModel, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(GreenformerConfig(**SIZES | {"rank": 2} | options)).double().eval()


def head_by_head(projection: HeadLED, x: Tensor) -> Tensor:
    heads = zip(projection.encoder.weight.chunk(projection.heads), projection.decoder, strict=True)
    return torch.cat([x @ E.T @ D.T for E, D in heads], -1)


def test_each_head_has_its_factors() -> None:
    projections, x = drawn().layers[0].attention.projections, torch.randn(2, 7, 12, dtype=torch.float64)
    for name in "qkv":
        projection = projections[name]
        torch.testing.assert_close(projection(x), head_by_head(projection, x))
        torch.testing.assert_close(x @ projection.weight.T, head_by_head(projection, x))
        # H r (d + d_k) weights, and no bias.
        assert sum(parameter.numel() for parameter in projection.parameters()) == 3 * 2 * (12 + 4)


def test_weights_of_bert_base_as_counted() -> None:
    """The d 768, H 12 and r 64 of BERT-base: more than the dense projection has; it pays below 59."""
    with torch.device("meta"):
        assert sum(x.numel() for x in HeadLED(768, 768, 64, 12).parameters()) == 638_976
        smaller = [r for r in range(1, 65) if sum(x.numel() for x in HeadLED(768, 768, r, 12).parameters()) < 768**2]
    assert max(smaller) == 59


@pytest.mark.parametrize("options", [{}, {"attention": "linformer", "attention_options": {"k": 4}}])
def test_a_network_equals_the_dense_one_it_stands_for(options: dict[str, object]) -> None:
    network, ids = drawn(**options), torch.randint(50, (2, 7))
    dense = drawn(rank=None, rank_per_head=False, **options)
    state = network.state_dict()
    for layer in range(2):
        for name in "qkv":
            place = f"layers.{layer}.attention.projections.{name}"
            state[f"{place}.weight"] = network.get_submodule(place).weight
            state[f"{place}.bias"] = torch.zeros(12, dtype=torch.float64)
        others = ("attention.output", "feed_forward.up", "feed_forward.down")
        for place in (f"layers.{layer}.{other}" for other in others):
            state[f"{place}.weight"] = network.get_submodule(place).weight
    dense.load_state_dict({name: value for name, value in state.items() if name in dense.state_dict()})
    torch.testing.assert_close(network(ids)[0], dense(ids)[0])


def test_fewer_key_heads_caches_and_reload(tmp_path: object) -> None:
    network, ids = drawn(GreenformerForCausalLM, num_key_value_heads=1), torch.randint(50, (2, 7))
    assert network.decoder.layers[0].attention.projections["k"].heads == 1
    past = network(ids[:, :4], use_cache=True).past_key_values
    torch.testing.assert_close(network(ids[:, 4:], past_key_values=past).logits, network(ids).logits[:, 4:])
    network.float().save_pretrained(tmp_path)
    again = GreenformerForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(again(ids).logits, network(ids).logits, atol=0, rtol=0)


def test_ranks_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"^rank must be in 1\.\.4 for heads of 12 x 4, got 5$"):
        drawn(rank=5)
    with pytest.raises(ValueError, match=r"^rank_per_head needs ranks of q, k and v, rank is None$"):
        drawn(rank=None)
