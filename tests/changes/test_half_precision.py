"""Networks as they are loaded today, in half precision: changed, run, healed, saved and read again."""

from pathlib import Path

import pytest
import torch
import transformers
from models import sentences, tokenizer
from zoo import inputs, network

import greenformers
from greenformers.changes import Bits, Change, Heads, Heal, Int8, Layers, LowRank, Neurons, Product, Sparse, Width
from greenformers.changes._int8_linear import quantised
from greenformers.checkpoint.structure import structure
from greenformers.measure.parameters import bytes_of

CODED = [Int8(), Bits(4, by="rounding", group=16), Bits(4, by="awq"), Product(4, 16, by="kmeans")]
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("change", CODED, ids=[change.label for change in CODED])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_rounded_it_runs_and_is_read_again(name: str, dtype: torch.dtype, change: Change, tmp_path: Path) -> None:
    model, batch = network(name).to(dtype).eval(), inputs(name)
    batch = {key: x.to(dtype) if x.is_floating_point() else x for key, x in batch.items()}
    with torch.no_grad():
        before = model(**batch).logits.float()
        greenformers.compress(model, change, calibration=[batch])
        after = model(**batch).logits
        assert after.dtype == dtype
        assert (after.float() - before).norm() < 0.7 * before.norm()
        greenformers.save(model, tmp_path / "small", example=batch)
        again = greenformers.load(tmp_path / "small")
        assert again.dtype == dtype
        assert again(**batch).logits.equal(after)


@pytest.mark.parametrize("dtype", HALVES)
def test_it_is_healed_in_float32(dtype: torch.dtype) -> None:
    model = network("bert", hidden_size=256, num_attention_heads=4).to(dtype)
    seen = set()  # of the student alone: the teacher is never in training
    model.register_forward_hook(lambda part, *_: seen.add(next(part.parameters()).dtype) if part.training else None)
    greenformers.compress(
        model, [Layers(1), Heal(steps=5, batch_size=8)], texts=sentences(100), tokenizer=tokenizer("bert")
    )
    assert seen == {torch.float32}
    assert {x.dtype for x in model.parameters()} == {dtype}
    assert all(x.isfinite().all() for x in model.parameters())


@pytest.mark.parametrize("name", ["vit", "whisper", "wav2vec2"])
def test_what_reads_numbers_is_healed_too(name: str) -> None:
    model = network(name).to(torch.bfloat16)
    batch = inputs(name, batch=8)
    rows = [
        {key: (x.to(torch.bfloat16) if x.is_floating_point() else x)[at] for key, x in batch.items()} for at in range(8)
    ]
    if name == "whisper":
        rows = [row | {"labels": row["decoder_input_ids"]} for row in rows]
    greenformers.compress(model, [LowRank(keep=0.5, solver="svd"), Heal(steps=2, batch_size=4)], examples=rows)
    assert {x.dtype for x in model.parameters()} == {torch.bfloat16}


def test_scales_of_small_rows_are_fine_in_float16() -> None:
    weight = 1e-3 * torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    q, scale = quantised(weight.half())
    assert scale.dtype == torch.float16
    assert (q.float() * scale.float()[:, None] - weight).abs().max() < 0.02 * weight.abs().max()


@pytest.mark.parametrize("change", [Width(), Neurons(), Heads()], ids=["width", "neurons", "heads"])
def test_what_goes_is_told_from_what_is_rounded(change: Change) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    greenformers.compress(model, change, calibration=[{"input_ids": torch.randint(3, 1000, (8, 32))}])
    assert structure(model).order == [change.name()]


def test_zeros_are_not_filled_by_updates_of_whole_matrices() -> None:
    with pytest.raises(ValueError, match="muon_rate cannot follow sparse"):
        greenformers.compress(
            network("bert"), [Sparse(by="magnitude"), Heal(steps=20, batch_size=8, muon_rate=1e-3)],
            texts=sentences(100), tokenizer=tokenizer("bert"),
        )  # fmt: skip


def test_a_head_that_shares_an_embedding_of_another_class_stays() -> None:
    config = transformers.Gemma3TextConfig(
        vocab_size=20000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32,
    )  # fmt: skip
    model = transformers.Gemma3ForCausalLM(config).eval()
    before = bytes_of(model)
    greenformers.compress(model, Int8())
    assert bytes_of(model) < before
    assert type(model.lm_head) is torch.nn.Linear


def test_stochastic_depth_is_no_reason_to_refuse() -> None:
    config = transformers.BeitConfig(
        image_size=32, patch_size=8, hidden_size=32, num_attention_heads=2, intermediate_size=64, num_hidden_layers=4
    )
    model = transformers.BeitForImageClassification(config).eval()
    greenformers.compress(model, Layers(2))
    assert model.config.num_hidden_layers == 2
