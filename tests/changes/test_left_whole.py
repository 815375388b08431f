"""What fails leaves a network as it was, says so before work begins, and no change spoils what another one holds."""

import copy
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedModel
from zoo import network

import greenformers
from greenformers.changes import Attention, Exits, Given, Heads, Heal, Int8, Layers, LowRank, Narrow
from greenformers.checkpoint.structure import structure
from greenformers.data._rows import Rows

GPT2 = {"vocab_size": 53, "n_embd": 32, "n_head": 2, "n_positions": 40}
WHISPER = {
    "vocab_size": 53, "d_model": 32, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44, "num_mel_bins": 16,
    "max_source_positions": 20, "max_target_positions": 24, "pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip


def bert() -> PreTrainedModel:
    return network("bert", "BertModel")


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": torch.randint(3, 53, (7,))} for _ in range(count)]


def test_healing_that_fails_leaves_all_weights() -> None:
    steps: list[int] = []
    counting = register_optimizer_step_post_hook(lambda *_: steps.append(1))
    try:
        for seed in range(3):
            fails_to_heal(seed)
    finally:
        counting.remove()
    assert steps, "in none of them a weight had moved"


def fails_to_heal(seed: int) -> None:
    teacher = bert()
    model = copy.deepcopy(teacher)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    examples = rows(64)
    examples[50] = {"input_ids": torch.full((7,), 99)}  # a token that there is not
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(Exception, match="index out of range"):
        Heal(40, batch_size=8).apply(model, Given(training=Rows(examples), teacher=teacher, seed=seed))
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())
    assert not any(part.training for part in model.modules())


@pytest.mark.parametrize("wrong", [LowRank(select=("*.quary",)), LowRank(solver="nmf", energy=0.5)])
def test_low_rank_is_checked_before_work_begins(wrong: LowRank) -> None:
    model = bert()
    with pytest.raises(ValueError, match=r"quary|nmf"):
        greenformers.compress(model, [Layers(1), wrong])
    assert structure(model).empty


def test_what_cannot_be_merged_stays_whole() -> None:
    model = bert()
    greenformers.compress(model, [Int8(), Exits(2, batch_size=2, lose=0.5)], examples=rows(40))
    with pytest.raises(ValueError, match="int8"):
        greenformers.merge(model)
    assert structure(model).order == ["int8", "exits"]


def test_another_attention_is_drawn_by_the_seed() -> None:
    def drawn(seed: int) -> torch.Tensor:
        model = bert()
        torch.rand(3)
        greenformers.compress(model, Attention("synthesizer_dense", length=16), seed=seed)
        return torch.cat([x.flatten() for name, x in model.state_dict().items() if ".mechanism." in name])

    first = drawn(0)
    torch.manual_seed(7)
    assert first.equal(drawn(0))
    assert not first.equal(drawn(1))


def test_another_network_of_the_same_configuration_keeps_it() -> None:
    config = bert().config
    teacher, student = transformers.BertModel(config).eval(), transformers.BertModel(config).eval()
    greenformers.compress(student, Layers(1))
    assert (student.config.num_hidden_layers, teacher.config.num_hidden_layers) == (1, 2)


def test_layers_that_are_built_by_their_number_are_refused() -> None:
    config = transformers.GPT2Config(**GPT2, n_layer=4, scale_attn_by_inverse_layer_idx=True)
    model = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(ValueError, match=r"scal.* of a layer depends on its number"):
        greenformers.compress(model, Layers(2))
    greenformers.compress(model, Layers(2, by="top"))


def test_the_heads_by_which_words_are_timed_have_their_new_numbers() -> None:
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**WHISPER)).eval()
    model.generation_config.alignment_heads = [[1, 0], [2, 3]]
    greenformers.compress(model, Layers(2))  # 0 and 2
    assert model.generation_config.alignment_heads == [[1, 3]]
    batch = {"input_features": torch.randn(2, 16, 40), "decoder_input_ids": torch.randint(3, 53, (2, 7))}
    greenformers.compress(model, Heads(keep=0.5), calibration=[batch])
    left = getattr(model.generation_config, "alignment_heads", [])
    assert all(layer < 2 and head < 2 for layer, head in left)


def test_a_narrow_gpt2_with_all_its_neurons() -> None:
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, n_layer=2)).eval()
    batch = {"input_ids": torch.randint(3, 53, (4, 7))}
    greenformers.compress(model, Narrow(hidden=16, neurons=128), calibration=[batch])
    assert model.transformer.h[0].mlp.c_fc.weight.shape == (16, 128)


def test_the_card_of_what_its_class_builds(tmp_path: Path) -> None:
    model = bert()
    greenformers.compress(model, Layers(1))
    said = (greenformers.save(model, tmp_path / "fewer") / "README.md").read_text()
    assert "nothing else is needed to load it" in said
    assert "must be installed" not in said
    assert load_file(tmp_path / "fewer" / "model.safetensors")
