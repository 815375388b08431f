"""What the functions of the walls give, whichever name of a library they stand on."""

import copy
import importlib

import pytest
import torch
import transformers
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from greenformers import _torch as wall
from greenformers.model import _transformers as models


def bert(**options: object) -> transformers.BertModel:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=11, hidden_size=6, num_attention_heads=2, num_hidden_layers=3,
        intermediate_size=7, max_position_embeddings=13, **options)  # fmt: skip
    return transformers.BertModel(config)


def test_the_gradient_of_a_softmax() -> None:
    scores, gradient = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.randn(3, 5).double()
    weights = scores.softmax(-1)
    weights.backward(gradient)
    torch.testing.assert_close(wall.softmax_gradient(gradient, weights.detach()), scores.grad)


def test_the_product_of_int8_matrices() -> None:
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((17, 8), (8, 16)))
    torch.testing.assert_close(wall.int8_matmul(a, b), (a.long() @ b.long()).int())
    for N, n, m in ((1, 8, 8), (16, 13, 5), (17, 16, 3)):  # sizes that a GPU does not take
        a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((N, n), (n, m)))
        torch.testing.assert_close(wall.padded_matmul(a, b), (a.long() @ b.long()).int())


@pytest.mark.parametrize("biased", [True, False])
def test_an_int8_linear_layer(biased: bool) -> None:
    x, weight = torch.randn(2, 3, 7), torch.randint(-127, 128, (5, 7), dtype=torch.int8)
    scale, bias = torch.rand(5) / 127, torch.randn(5) if biased else None
    expected = nn.functional.linear(x, weight * scale[:, None], bias)
    out = wall.int8_linear(x, wall.pack_int8(weight, scale, bias))
    # Int8 inputs, or of 7 bits on a processor without VNNI, are off by half a step at most.
    step = (x.max().clamp(min=0) - x.min().clamp(max=0)) / 127
    bound = step / 2 * (weight.abs() * scale[:, None]).sum(1).max()
    assert (out - expected).abs().max() < 1.5 * bound
    assert out.shape == (2, 3, 5)


def test_packing_does_not_warn_and_leaves_the_bias_as_it_is() -> None:
    bias = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    packed = wall.pack_int8(torch.ones(5, 7, dtype=torch.int8), torch.ones(5), bias)
    assert wall.int8_linear(torch.ones(1, 7), packed).shape == (1, 5)
    assert bias.dtype == torch.float64
    assert bias.requires_grad


def test_tensors_without_content_are_told_from_those_with() -> None:
    with wall.fake_tensors():
        assert wall.is_fake(torch.zeros(3))
    assert not wall.is_fake(torch.zeros(3))


def test_a_watch_sees_each_operator_after_it_ran() -> None:
    class Watch(wall.OperatorWatch):
        def saw(self, operator, arguments, result):
            seen.append((operator.overloadpacket, arguments[0].shape, result.shape))

    seen: list[object] = []
    x = torch.ones(3, 5)
    with Watch():
        x.exp().sum(1)
    assert seen == [(torch.ops.aten.exp, (3, 5), (3, 5)), (torch.ops.aten.sum, (3, 5), (3,))]


def test_leaves_of_outputs_of_models() -> None:
    tree = {"a": [1, (2, 3)], "b": BaseModelOutput(last_hidden_state=torch.ones(1), hidden_states=(torch.zeros(1),))}
    assert wall.leaves(tree)[:3] == [1, 2, 3]
    assert len(wall.leaves(tree)) == 5
    doubled = wall.map_leaves(lambda leaf: 2 * leaf, tree)
    assert doubled["a"] == [2, (4, 6)]
    assert doubled["b"].last_hidden_state.item() == 2


def test_changes_in_place_are_counted() -> None:
    x = torch.zeros(3)
    before = wall.version(x)
    x.add_(1)
    assert wall.version(x) == before + 1


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_on_calls_are_seen(kind: str) -> None:
    layer = nn.Linear(3, 5)
    assert not wall.has_forward_hooks(layer)
    handle = getattr(layer, kind)(lambda *_: None)
    assert wall.has_forward_hooks(layer)
    handle.remove()
    assert not wall.has_forward_hooks(layer)


@pytest.mark.parametrize(("padding", "expected"), [((3, 2), [2, 2, 3, 3]), ("same", [1, 2, 1, 1]), ("valid", [0] * 4)])
def test_the_padding_of_a_convolution(padding: str | tuple[int, int], expected: list[int]) -> None:
    assert wall.padding_of(nn.Conv2d(3, 5, (3, 4), padding=padding, padding_mode="reflect")) == expected


def test_allocations_on_the_cpu_with_those_within_operators(capfd: pytest.CaptureFixture[str]) -> None:
    del capfd  # the profiler writes to stderr
    tensors = []
    sizes = wall.cpu_allocations(lambda: tensors.append(torch.zeros(1024).exp()))
    assert sum(sizes) == 4096
    assert sizes.count(4096) == 2


def test_an_attention_is_chosen_and_put_back() -> None:
    model = bert(attn_implementation="eager")
    assert models.can_choose_attention(model)
    assert models.attention_of(model.config) == "eager"
    model.set_attn_implementation("sdpa")
    models.put_attention_back(model.config, "eager")
    assert models.attention_of(model.config) == "eager"


def test_masks_are_whole_also_where_nothing_is_hidden() -> None:
    keep = torch.ones(2, 5, dtype=torch.bool)
    past, everything = (
        models.whole_mask(2, 5, 5, mask_function=pattern, attention_mask=keep)
        for pattern in (models.sees_past, models.sees_all)
    )
    assert past is not None
    assert everything is not None
    torch.testing.assert_close(past, torch.ones(2, 1, 5, 5, dtype=torch.bool).tril())
    assert everything.shape == (2, 1, 5, 5)
    assert everything.all()


def test_keys_that_are_yet_to_come_are_not_kept() -> None:
    keep = torch.tensor([[True, False, True]])
    assert models.kept_keys(None, 5, 0) is None
    torch.testing.assert_close(models.kept_keys(keep, 5, 0), torch.tensor([[True, False, True, False, False]]))
    torch.testing.assert_close(models.kept_keys(keep, 2, 1), torch.tensor([[False, True]]))


def test_keys_are_there_for_every_head() -> None:
    k = torch.randn(2, 3, 5, 7)
    torch.testing.assert_close(models.for_every_head(k, 2), k.repeat_interleave(2, 1))


def test_plain_attention_is_that_of_torch() -> None:
    q, k, v = (torch.randn(2, 3, 5, 7) for _ in range(3))
    out, _ = models.plain_attention(nn.Identity(), q, k, v, None, is_causal=True)
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out, expected.transpose(1, 2))


def test_ties_of_one_model_are_set_and_set_back() -> None:
    config = bert().config
    config.tie_word_embeddings = True
    model, other = (transformers.BertForMaskedLM(copy.deepcopy(config)) for _ in range(2))
    before = models.tied_weights(model)
    assert before
    ties = {"bert.pooler.weight": "bert.embeddings.word_embeddings.weight"}
    models.set_tied_weights(model, ties)
    models.refresh_ties(model)
    assert models.tied_weights(model) == ties
    assert model.all_tied_weights_keys == models.all_ties(model) == ties
    assert models.tied_weights(other) == before
    models.set_tied_weights(model, before)
    models.refresh_ties(model)
    assert models.tied_weights(model) == before
    assert model.all_tied_weights_keys == other.all_tied_weights_keys


def test_a_model_from_its_configuration() -> None:
    with torch.device("meta"):
        model = models.model_from_config(transformers.BertModel, bert().config)
    assert isinstance(model, transformers.BertModel)
    assert model.device.type == "meta"


def test_a_loaded_model_may_be_trained_and_halved() -> None:
    model = bert()
    model.is_quantized = True
    model.config._is_quantized = True
    with pytest.raises(ValueError, match="quantized"):
        model.half()
    models.allow_training(model)
    assert model.half().dtype == torch.float16
    assert not model.config._is_quantized


def test_the_layers_of_a_model_stay_whole() -> None:
    assert [type(layer).__name__ for layer in models.whole_layers(bert())].count("BertLayer") == 3


def test_a_sharded_model_is_not_wrapped_again() -> None:
    from transformers.distributed.fsdp import is_fsdp_managed_module

    model = bert()
    assert not is_fsdp_managed_module(model)
    models.mark_as_sharded(model)
    assert is_fsdp_managed_module(model)
    assert model.is_distributed_loading_by_transformers
    holder = nn.ModuleList([bert()])
    models.mark_as_sharded(holder)
    assert is_fsdp_managed_module(holder)
    assert holder.is_distributed_loading_by_transformers
    assert len(models.whole_layers(holder)) == len(models.whole_layers(bert()))


def test_parameters_outside_of_layers() -> None:
    names = models.parameters_outside(bert(), [nn.LayerNorm], ["bias"])
    assert "encoder.layer.0.output.dense.weight" in names
    assert not [name for name in names if "LayerNorm" in name or "bias" in name]


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss", "nemotron_h"])
def test_experts_by_their_form(kind: str) -> None:
    """One expert by hand, of a class with a gate, with biases and a transposed weight, and without a gate."""
    torch.manual_seed(0)
    name, config_name, sizes = {
        "mixtral": ("MixtralExperts", "MixtralConfig", {"num_local_experts": 3, "intermediate_size": 7}),
        "gpt_oss": ("GptOssExperts", "GptOssConfig", {"num_local_experts": 3, "intermediate_size": 7}),
        "nemotron_h": ("NemotronHExperts", "NemotronHConfig", {"n_routed_experts": 3, "moe_intermediate_size": 7}),
    }[kind]
    config = getattr(transformers, config_name)(hidden_size=5, **sizes)
    modeling = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    experts = getattr(modeling, name)(config)
    config._experts_implementation = "eager"
    for parameter in experts.parameters():
        nn.init.normal_(parameter)
    form = models.experts_form(experts)
    assert form is not None
    assert (form.experts, form.transposed) == (3, kind == "gpt_oss")
    assert models.experts_form(nn.Linear(2, 2)) is None
    x = torch.randn(4, 5)

    def times(rows: torch.Tensor, weight: str, bias: str) -> torch.Tensor:
        W, b = getattr(experts, weight)[1], getattr(experts, bias, None)
        return rows @ (W if form.transposed else W.mT) + (0 if b is None else b[1])

    rows = models.gated(experts, times(x, form.up, form.up_bias))
    output = models.normed(experts, times(rows, form.down, form.down_bias))
    only = torch.ones(4, 1)
    torch.testing.assert_close(output, experts(x, only.long(), only), atol=1e-5, rtol=1e-5)
    bare = wall.without_parameters(experts)
    assert not list(bare.parameters(recurse=False))
    assert len(list(experts.parameters(recurse=False))) >= 2
