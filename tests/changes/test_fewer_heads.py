"""Fewer heads: found by what they compute, gone for good, on one budget with neurons; beside oracles."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from test_neurons import lively, texts
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
)
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes import Heads, Prune
from greenformers.measure.flops import flops
from greenformers.measure.latency import Timing
from greenformers.solve import linear_time, unit_cost
from greenformers.solve.coupled import Coupled
from greenformers.solve.feed_forward import feed_forwards
from greenformers.solve.heads import heads
from greenformers.solve.unit_cost import cost_of

TINY = {"vocab_size": 53, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 44}
OUT = {"bert": "bert.encoder.layer.{}.attention.output.dense", "gpt2": "transformer.h.{}.attn.c_proj",
       "llama": "model.layers.{}.self_attn.o_proj", "neox": "gpt_neox.layers.{}.attention.dense",
       "mixtral": "model.layers.{}.self_attn.o_proj"}  # fmt: skip
WIDTH = {"bert": 4, "gpt2": 4, "llama": 8, "neox": 8, "mixtral": 16}
"""Columns of a unit: a head of 4, one of 4, a group of two heads of 4, a head of 8, and a group of two heads of 8."""


def tiny_model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if name == "neox":  # queries, keys and values head by head in one layer
        return GPTNeoXForCausalLM(GPTNeoXConfig(**TINY)).double().eval()
    if name == "mixtral":
        more: Any = {"num_key_value_heads": 2, "num_local_experts": 2}
        return MixtralForCausalLM(MixtralConfig(**TINY, **more)).eval()
    more = {"bert": {"num_attention_heads": 8}, "gpt2": {"n_head": 8},
            "llama": {"num_attention_heads": 8, "num_key_value_heads": 4}}.get(name, {})  # fmt: skip
    return lively(name, **more)


@pytest.mark.parametrize("name", OUT)
def test_heads_that_are_gone_are_heads_of_zero(name: str) -> None:
    model, batches = tiny_model(name), texts(2)
    masked, layers = copy.deepcopy(model), heads(model, batches[0])
    assert [layer.second for layer in layers] == [OUT[name].format(place) for place in range(2)]
    width = WIDTH[name]
    assert all(layer.columns.shape[1] == width for layer in layers)
    greenformers.compress(model, Heads(0.5, by="fisher", refit=False), calibration=batches)
    total = 0
    for layer in layers:
        narrow: Any = model.get_submodule(layer.second)
        whole: Any = masked.get_submodule(layer.second)
        left, blocks = (
            (at.weight if name == "gpt2" else at.weight.T).unflatten(0, (-1, width)) for at in (narrow, whole)
        )
        total += len(left)
        with torch.no_grad():
            for block in blocks:
                if not any(block.equal(other) for other in left):
                    block.zero_()
    assert total == sum(layer.count for layer in layers) // 2
    torch.testing.assert_close(outputs(model, batches[0]), outputs(masked, batches[0]), rtol=1e-5, atol=1e-5)
    assert model.num_parameters() < masked.num_parameters()
    if name != "bert":
        ids = texts(1)[0]["input_ids"]
        more: Any = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": 6}
        assert model.generate(ids, **more, max_new_tokens=6).equal(
            model.generate(ids, **more, max_new_tokens=6, use_cache=False)
        )


def test_what_counts_heads_counts_those_that_are_left() -> None:
    model = tiny_model("gpt2")
    greenformers.compress(model, Heads(0.5), calibration=texts(2))
    for block in model.transformer.h:
        left = block.attn.c_attn.weight.shape[1] // 12
        assert (block.attn.num_heads, block.attn.split_size) == (left, 4 * left)
    assert model.num_parameters() == sum(x.numel() for x in model.parameters())


class Small(nn.Module):
    """Attention by hand, of four heads of three columns; `cross` mixes the heads' outputs."""

    def __init__(self, *, cross: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(*sizes) for sizes in ((8, 12), (8, 12), (8, 12), (12, 8)))
        self.cross = cross

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, 3)).transpose(1, 2) for project in (self.q, self.k, self.v))
        out = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.o(nn.functional.layer_norm(out, (12,)) if self.cross else out)


def test_heads_are_found_by_what_they_compute() -> None:
    torch.manual_seed(0)
    (layer,) = heads(Small(), torch.randn(2, 5, 8))
    blocks = torch.arange(12).unflatten(0, (4, 3))
    assert (list(layer.first), layer.second, layer.calls) == (["q", "k", "v"], "o", 1)
    assert all(rows.equal(blocks) for rows in (*layer.first.values(), layer.columns))
    with pytest.raises(ValueError, match="Small has no attention of several heads between its linear layers"):
        heads(Small(cross=True), torch.randn(2, 5, 8))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    model, batch = tiny_model(name), texts(1)[0]
    layers = heads(model, batch)
    cost = cost_of(model, layers, "flops", batch)
    whole = flops(lambda: outputs(model, batch))
    greenformers.compress(model, Heads(0.75, by="fisher", refit=False), calibration=[batch])
    layers_now = heads(model, batch)
    gone = sum(cost(layer, layer.count) - cost(layer, now.count) for layer, now in zip(layers, layers_now, strict=True))
    assert gone == pytest.approx(whole - flops(lambda: outputs(model, batch)), rel=1e-6)


def by_flops(calls: Mapping[str, Callable[[], object]], **_: Any) -> dict[str, Timing]:
    """Times as a machine has them that does nothing but arithmetic, the same each time."""
    seconds = {name: 1e-6 + 1e-9 * flops(call) for name, call in calls.items()}
    return {name: Timing(x, x, x, (x,)) for name, x in seconds.items()}


@pytest.mark.parametrize("of", ["flops", "parameters", "latency"])
def test_heads_and_neurons_share_a_budget(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (unit_cost, linear_time):
        monkeypatch.setattr(module, "interleaved", by_flops)
    model, batches = tiny_model("bert"), texts(2)
    layers = [*heads(model, batches[0]), *feed_forwards(model, batches[0])]
    cost = cost_of(model, layers, of, batches[0])
    before = sum(x.numel() for x in model.parameters())
    done = greenformers.compress(model, Prune(0.6, of=of, multiple=2), calibration=batches)
    left = {unit.path: int(unit.form.split()[0]) for unit in done.steps[0].report.units}
    spent = sum(cost(layer, left.get(layer.second, layer.count)) for layer in layers)
    whole = sum(cost(layer, layer.count) for layer in layers)
    assert 0.45 * whole < spent <= 0.6 * whole
    if of == "parameters":
        gone = before - sum(x.numel() for x in model.parameters())
        assert whole - spent == pytest.approx(gone)


def test_refusals() -> None:
    batches = texts(1)
    for keep in (0, 1):
        with pytest.raises(ValueError, match=r"heads to keep must be a share in \(0, 1\), got"):
            Heads(keep)
    with pytest.raises(ValueError, match=r"of must be of flops, parameters, latency; got 'time'"):
        Prune(0.5, of="time")
    with pytest.raises(ValueError, match=r"at least 0.125, 1 head in each layer; got 0.1"):
        greenformers.compress(tiny_model("bert"), Heads(0.1), calibration=batches)
    config = BloomConfig(vocab_size=53, hidden_size=32, n_layer=1, n_head=4)
    with pytest.raises(ValueError, match=r"BloomForCausalLM reads its heads elsewhere too: \w+"):
        greenformers.compress(BloomForCausalLM(config).eval(), Heads(0.5), calibration=batches)
    with pytest.raises(ValueError, match=r"T5ForConditionalGeneration reads its heads elsewhere too: \w+"):
        greenformers.compress(network("t5"), Heads(0.5), calibration=[inputs("t5")])


def test_layers_of_all_kinds_in_one_list_keep_their_order() -> None:
    layer = Coupled("heads", {"a.b.q": torch.zeros(2, 3), "a.b.k": torch.zeros(2, 3)}, "a.o", torch.zeros(2, 3), 1)
    assert (layer.around, layer.count, layer.paths) == ("a.b", 2, ["a.b.q", "a.b.k", "a.o"])
    values = torch.arange(6.0)[None]
    columns = Coupled("heads", {}, "o", torch.tensor([[0, 2], [1, 5]]), 1)
    assert columns.of_units(values).tolist() == [[2.0, 6.0]]
