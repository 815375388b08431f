"""Feed-forward layers made experts: exact at the start, of our models and of classes of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from contract import check_same, snapshot
from torch import Tensor, nn
from zoo import difference, inputs, network, outputs

import greenformers
from greenformers.changes import Bits, Given, Int8, LowRank, Upcycle
from greenformers.changes._upcycled import ExpertsDown, ExpertsUp
from greenformers.feed_forward.switch import Switch
from greenformers.lowrank.experts import ExpertsLinear
from greenformers.measure.flops import flops
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerForMaskedLM
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM
from greenformers.solve.feed_forward import feed_forwards

SIZES: dict[str, Any] = {
    "vocab_size": 53, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "num_hidden_layers": 4,
    "max_position_embeddings": 31, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip
OURS: dict[str, tuple[Any, dict[str, Any]]] = {
    "masked": (GreenformerForMaskedLM, {}),
    "causal, gated": (GreenformerForCausalLM, {}),
    "chunked": (GreenformerForMaskedLM, {"feed_forward": "chunked"}),
    "seq2seq": (GreenformerForSeq2SeqLM, {"decoder_layers": 2, "decoder_start_token_id": 1}),
}
IDS = inputs("bert")["input_ids"]


def test_low_rank_blocks_are_refused() -> None:
    torch.manual_seed(0)
    model = GreenformerForMaskedLM(GreenformerConfig(**SIZES, rank=5))
    with pytest.raises(ValueError, match="upcycle cannot follow low_rank, which leaves no dense weights"):
        greenformers.compress(model, [Upcycle()], example={"input_ids": IDS})


@pytest.mark.parametrize("block", ["lite", "evolved", "independent", "bp"])
def test_blocks_which_return_no_loss_are_refused(block: str) -> None:
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 12, "num_attention_heads": 2, "block": block}
    model = GreenformerForMaskedLM(GreenformerConfig(**sizes))
    before = snapshot(model)
    with pytest.raises(ValueError, match=f"block must be standard, whose layers return the loss .*; got {block}"):
        greenformers.compress(model, [Upcycle(experts=2)], example={"input_ids": IDS})
    check_same(before, snapshot(model))


def ours(name: str) -> Any:
    torch.manual_seed(0)
    kind, more = OURS[name]
    return kind(GreenformerConfig(**SIZES | more)).eval()


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        scores: Tensor = model(input_ids=IDS, labels=IDS).logits
    return scores


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("name", OURS)
def test_our_models_compute_what_they_did_and_learn_with_the_loss(name: str, k: int) -> None:
    model = ours(name)
    expected = logits(model)
    task = model(input_ids=IDS, labels=IDS).loss.item()
    report = greenformers.compress(model, [Upcycle(experts=4, k=k)], example={"input_ids": IDS, "labels": IDS})
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    mixtures = [module for module in model.modules() if isinstance(module, Switch)]
    assert len(mixtures) == (3 if name == "seq2seq" else 2)
    assert "feed-forward layers are 4 experts each" in str(report)
    loss = model.train()(input_ids=IDS, labels=IDS).loss
    assert loss.item() > task + 0.009 * len(mixtures)  # balanced or not, at least `balance` a layer
    loss.backward()
    assert all(mixture.router.grad is not None and mixture.router.grad.any() for mixture in mixtures)


@pytest.mark.parametrize("name", ["masked", "causal, gated"])
def test_our_models_are_read_again(name: str, tmp_path: Path) -> None:
    model = ours(name)
    greenformers.compress(model, [Upcycle(experts=3)], example={"input_ids": IDS, "labels": IDS})
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Switch):
                module.up.weight.add_(torch.randn_like(module.up.weight))  # as after training
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again), logits(model))
    assert torch.equal(logits(greenformers.load(tmp_path)), logits(model))
    assert [type(layer.feed_forward) is Switch for layer in again.base_model.layers] == [False, True, False, True]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "albert", "vit"])
@pytest.mark.parametrize("k", [1, 2])
def test_other_classes_compute_what_they_did(name: str, k: int) -> None:
    model, batch = network(name), inputs(name)
    expected = outputs(model, batch)
    greenformers.compress(model, [Upcycle(experts=4, k=k, every=1)], example=batch)
    scale = max(part.abs().max().item() for part in expected)
    assert difference(outputs(model, batch), expected) < 1e-5 * scale
    before = outputs(model, batch)
    with torch.no_grad():  # and experts that differ are told apart
        for module in model.modules():
            if isinstance(module, ExpertsDown):
                module.experts.weight.add_(torch.randn_like(module.experts.weight))
    assert difference(outputs(model, batch), before) > 1e-3 * scale
    model.train()
    sum(part.float().square().sum() for part in model(**batch).to_tuple() if isinstance(part, Tensor)).backward()
    routers = [
        module.router for module in model.modules() if isinstance(module, ExpertsUp) and module.router is not None
    ]
    assert all(router.grad is not None and router.grad.any() for router in routers)


def test_it_is_the_mixture_of_experts() -> None:
    """Beside a loop over positions, with experts that differ."""
    model, batch = network("bert"), inputs("bert")
    greenformers.compress(model, [Upcycle(experts=4, k=2)], example=batch)
    layer = model.bert.encoder.layer[1]
    up, down = layer.intermediate.dense, layer.output.dense
    with torch.no_grad():
        up.router.mul_(100)
        for experts in (up.experts, down.experts):
            experts.weight.add_(torch.randn_like(experts.weight))
            experts.bias.add_(torch.randn_like(experts.bias))
        x = torch.randn(2, 5, 32)
        y = down(layer.intermediate(x))
        for b in range(2):
            for t in range(5):
                p, e = (up.router @ x[b, t]).softmax(0).topk(2)
                expected = torch.zeros(32)
                for g, i in zip(p / p.sum(), e, strict=True):
                    inner = nn.functional.gelu(up.experts.weight[i] @ x[b, t] + up.experts.bias[i])
                    expected += g * (down.experts.weight[i] @ inner + down.experts.bias[i])
                torch.testing.assert_close(y[b, t], expected, rtol=1e-4, atol=1e-4)


def test_an_attention_of_one_small_head_is_no_feed_forward_layer() -> None:
    """All of its neurons together depend on as many queries at their position, as neurons of such a layer would."""
    model = network("bert", hidden_size=8, num_attention_heads=1)
    seconds = [layer.second for layer in feed_forwards(model, inputs("bert"))]
    assert seconds == [f"bert.encoder.layer.{place}.output.dense" for place in range(2)]


@pytest.mark.parametrize(("every", "layers"), [(1, [0, 1, 2, 3]), (2, [1, 3]), (3, [0, 3]), (9, [3])])
def test_which_layers(every: int, layers: list[int]) -> None:
    model = network("bert", num_hidden_layers=4)
    greenformers.compress(model, [Upcycle(experts=2, every=every)], example=inputs("bert"))
    chosen = [place for place, layer in enumerate(model.bert.encoder.layer) if not hasattr(layer.output.dense, "bias")]
    assert chosen == layers


def test_work_is_that_of_k_experts() -> None:
    batch, work = inputs("bert"), []
    for k in (None, 1, 2):
        model = network("bert")
        if k is not None:
            greenformers.compress(model, [Upcycle(experts=3, k=k, every=1)], example=batch)
        work.append(flops(lambda model=model: outputs(model, batch)))  # type: ignore[misc]
    rows, layers = 2 * 7, 2
    router = 2 * 3 * 32 * rows * layers
    assert work[1] == work[0] + router
    assert work[2] == work[1] + 4 * 32 * 44 * rows * layers


@pytest.mark.parametrize(
    "change", [LowRank(keep=0.4, uniform=True, multiple=1), Int8(), Bits(4, by="rounding", group=8)], ids=str
)
@pytest.mark.parametrize("name", ["bert", "ours"])
def test_experts_are_made_smaller(name: str, change: Any, tmp_path: Path) -> None:
    model: Any = ours("masked") if name == "ours" else network(name)
    batch = {"input_ids": IDS}
    greenformers.compress(model, [Upcycle(experts=3), change], example=batch, calibration=[batch])
    dense = [path for path, module in model.named_modules() if type(module) is ExpertsLinear and "coders" not in path]
    assert dense == []
    model.save_pretrained(tmp_path)
    again = greenformers.load(tmp_path)
    assert difference(outputs(again, batch), outputs(model, batch)) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": 0}, "experts must be at least 1, got 0"), ({"k": 9}, r"k must be in 1\.\.8, got 9"),
        ({"k": 0}, r"k must be in 1\.\.8, got 0"), ({"every": 0}, "every must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_what_is_out_of_range(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Upcycle(**options)


def test_a_failure_leaves_the_network_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = network("bert"), inputs("bert")
    before = snapshot(model)
    monkeypatch.setattr(ExpertsDown, "forward", lambda _, x: 2 * x[..., :32])
    with pytest.raises(ValueError, match="BertForMaskedLM does not compute the same with experts"):
        Upcycle().apply(model, Given(example=batch))
    check_same(before, snapshot(model))


def test_layers_out_of_order_are_an_error() -> None:
    model = network("bert")
    greenformers.compress(model, [Upcycle(experts=2)], example=inputs("bert"))
    with pytest.raises(RuntimeError, match="the layer with the router must be called before"):
        model.bert.encoder.layer[1].output.dense(torch.randn(2, 5, 88))
