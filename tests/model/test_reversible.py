"""Reversible stacks against the same layers with everything kept: values, gradients, dropout, memory."""

import pytest
import torch
from torch import nn

from greenformers.measure.memory import peak_memory
from greenformers.model import GreenformerConfig
from greenformers.model.encoder import GreenformerModel
from greenformers.model.heads import GreenformerForCausalLM, GreenformerForMaskedLM
from greenformers.model.reversible import Half, reversible

SIZES = {"vocab_size": 31, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40,
         "num_hidden_layers": 3, "max_position_embeddings": 17}  # fmt: skip


def config(**given) -> GreenformerConfig:
    return GreenformerConfig(**SIZES | {"residual": "reversible", "hidden_dropout_prob": 0.0} | given)


def plain(model: GreenformerModel, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Kitaev 2020, eq. 9: every activation kept, by autograd alone."""
    first = second = model.embedding(ids)
    for layer in model.layers:
        mixed, _ = layer.attention.mix(layer.attention_norm(second), mask)
        first = first + layer.dropout(layer.attention.output(mixed))
        second = second + layer.dropout(layer.feed_forward(layer.feed_forward_norm(first)))
    return model.final_norm((first + second) / 2)


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, 9:] = False
    return torch.randint(31, (2, 13)), mask


@pytest.mark.parametrize("attention", ["full", "linformer", "performer", "longformer", "synthesizer_dense"])
@pytest.mark.parametrize(
    "more", [{}, {"rank": 3}, {"feed_forward": "chunked", "feed_forward_options": {"chunk": 4}}], ids=str
)
def test_equal_to_the_stack_that_keeps_everything(attention, more, given):
    torch.manual_seed(0)
    model = GreenformerModel(config(attention=attention, **more)).double().train()
    ids, mask = given
    out, expected = model(ids, mask).last_hidden_state, plain(model, ids, mask)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    way = torch.randn_like(out)
    leaves = [parameter for parameter in model.parameters() if parameter.requires_grad]
    grads, expected_grads = (torch.autograd.grad(x, leaves, way, allow_unused=True) for x in (out, expected))
    torch.testing.assert_close(grads, expected_grads, atol=1e-9, rtol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(model(ids, mask).last_hidden_state, expected, atol=1e-12, rtol=1e-12)


def test_dropout_is_replayed(given):
    torch.manual_seed(0)
    model = GreenformerModel(config(hidden_dropout_prob=0.3)).double().train()
    ids, mask = given
    results = []
    for run in (lambda: model(ids, mask).last_hidden_state, lambda: plain(model, ids, mask)):
        torch.manual_seed(5)
        out = run()
        after = torch.rand(3)
        results.append((out, torch.autograd.grad(out.square().sum(), list(model.layers.parameters())), after))
        assert torch.rand(()) != after[0]
    torch.testing.assert_close(results[0], results[1], atol=1e-9, rtol=1e-9)


def test_the_generator_goes_on_after_the_backward_pass(given):
    """What is drawn after a backward pass is what would be drawn without it."""
    model = GreenformerModel(config(hidden_dropout_prob=0.3)).train()
    drawn = []
    for back in (False, True):
        torch.manual_seed(5)
        out = model(*given).last_hidden_state
        if back:
            out.sum().backward()
        drawn.append(torch.rand(4))
    assert torch.equal(*drawn)


def test_gradients_of_the_input_and_frozen_layers(given):
    torch.manual_seed(0)
    model = GreenformerModel(config()).double().train()
    for parameter in model.layers[1].parameters():
        parameter.requires_grad_(False)
    model(*given).last_hidden_state.square().sum().backward()
    expected = torch.autograd.grad(plain(model, *given).square().sum(), model.embedding.word.weight)[0]
    torch.testing.assert_close(model.embedding.word.weight.grad, expected, atol=1e-9, rtol=1e-9)
    assert all(parameter.grad is None for parameter in model.layers[1].parameters())
    assert all(parameter.grad is not None for parameter in model.layers[0].parameters())


def test_losses_of_the_halves_are_differentiated():
    projections = [nn.Linear(3, 3, dtype=torch.float64) for _ in range(4)]

    def half(layer):
        return Half(lambda x, _: (layer(x).tanh(), layer(x).square().sum()), list(layer.parameters()))

    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    out, loss = reversible(x, [half(layer) for layer in projections])
    first, second, total = x, x, 0
    for number in (0, 2):
        total = total + projections[number](second).square().sum()
        first = first + projections[number](second).tanh()
        total = total + projections[number + 1](first).square().sum()
        second = second + projections[number + 1](first).tanh()
    leaves = [x, *(parameter for each in projections for parameter in each.parameters())]
    torch.testing.assert_close((out, loss), ((first + second) / 2, total))
    grads = torch.autograd.grad(out.square().sum() + 3 * loss, leaves)
    expected = torch.autograd.grad(((first + second) / 2).square().sum() + 3 * total, leaves)
    torch.testing.assert_close(grads, expected, atol=1e-9, rtol=1e-9)


def test_choices_of_the_forward_pass_are_those_of_the_backward_pass():
    seen = []

    def run(x, choice):
        choice.setdefault("choice", torch.rand(()))
        seen.append(choice["choice"].item())
        return x * choice["choice"], None

    x = torch.randn(1, 2, 3, requires_grad=True)
    reversible(x, [Half(run, []), Half(run, [])])[0].sum().backward()
    assert seen[2:] == seen[1::-1]


def test_under_autocast(given):
    torch.manual_seed(0)
    model = GreenformerModel(config()).train()
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = model(*given).last_hidden_state, plain(model, *given)
    leaves = list(model.layers.parameters())
    grads, expected_grads = (torch.autograd.grad(x.float().square().sum(), leaves) for x in (out, expected))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert (grad - expected_grad).norm() <= 0.05 * expected_grad.norm() + 1e-4


def test_a_decoder_generates_with_its_cache():
    torch.manual_seed(0)
    model = GreenformerForCausalLM(config(pad_token_id=0)).eval()
    ids = torch.randint(1, 31, (2, 5))
    with_cache, without = (
        model.generate(ids, max_new_tokens=6, do_sample=False, use_cache=use, pad_token_id=0) for use in (True, False)
    )
    assert torch.equal(with_cache, without)


def test_saved_and_loaded(tmp_path, given):
    model = GreenformerForMaskedLM(config()).eval()
    model.save_pretrained(tmp_path)
    again = GreenformerForMaskedLM.from_pretrained(tmp_path).eval()
    assert again.config.residual == "reversible"
    assert torch.equal(again(*given).logits, model(*given).logits)


def test_memory_does_not_grow_with_depth():
    """24 layers at N 2K: less than a quarter of the plain stack's activations; of these, what a layer more adds."""
    peaks = {}
    for residual in ("pre", "reversible"):
        for layers in (2, 6):
            sizes = {"num_hidden_layers": layers, "max_position_embeddings": 512, "hidden_size": 64,
                     "num_attention_heads": 4, "intermediate_size": 256}  # fmt: skip
            model = GreenformerModel(config(residual=residual, **sizes)).train()
            ids = torch.randint(31, (1, 512))
            weights = sum(4 * parameter.numel() for parameter in model.parameters())
            model(ids).last_hidden_state.sum().backward()
            model.zero_grad(set_to_none=True)

            def step(model=model, ids=ids):
                model(ids).last_hidden_state.sum().backward()
                model.zero_grad(set_to_none=True)

            peaks[residual, layers] = peak_memory(step) - weights
    # Gradients, which there are of every layer, are taken off.
    assert peaks["reversible", 6] - peaks["reversible", 2] < 0.05 * (peaks["pre", 6] - peaks["pre", 2])


def test_gradients_are_added_up_layer_by_layer():
    """Where gradients are there already, as in accumulation, no second copy of those of all layers is made."""
    peaks = []
    for layers in (2, 6):
        model = GreenformerModel(config(num_hidden_layers=layers, hidden_size=96, intermediate_size=384)).train()
        ids = torch.randint(31, (1, 4))
        model(ids).last_hidden_state.sum().backward()
        peaks.append(peak_memory(lambda m=model, ids=ids: m(ids).last_hidden_state.sum().backward()))
    assert peaks[1] - peaks[0] < 4 * 96 * 384


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"^residual reversible is for a single stack, without decoder_layers$"):
        config(decoder_layers=1)
    model = GreenformerModel(config())
    with pytest.raises(ValueError, match=r"^output_hidden_states must be False: a reversible stack keeps none$"):
        model(torch.zeros(1, 3, dtype=torch.long), output_hidden_states=True)
    with pytest.raises(ValueError, match="a reversible layer has two streams"):
        model.layers[0](torch.zeros(1, 3, 24))
