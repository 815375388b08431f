"""Recomputed activations and half precision of decoders and encoder-decoders."""

import pytest
import torch
from networks import padding
from text_networks import causal, left, pair, tokens

from greenformers.model import GreenformerConfig, GreenformerForCausalLM

B, M, N = 3, 17, 13
MAKERS = {
    "causal": lambda dtype, **options: causal("lrt", dtype, **options),
    "pair": lambda dtype, **options: pair("lrt", dtype, **options),
    "pair, linformer": lambda dtype, **options: pair("lrt+linformer", dtype, **options),
}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("residual", ["post", "pre"])
@pytest.mark.parametrize("name", MAKERS)
def test_recomputed_activations_give_the_same_gradients(name, residual, reentrant):
    network = MAKERS[name](torch.float64, residual=residual).train()
    ids, mask = tokens(B, N), padding(B, N)
    network(ids, mask, labels=ids).loss.backward()
    expected = {key: parameter.grad for key, parameter in network.named_parameters()}
    network.zero_grad()
    calls = []
    for key, module in network.named_modules():
        if key.endswith("feed_forward"):
            module.register_forward_pre_hook(lambda *_, key=key: calls.append(key))
    network.activation_checkpointing_enable({"use_reentrant": reentrant})
    network(ids, mask, labels=ids, use_cache=False).loss.backward()
    grads = {key: parameter.grad for key, parameter in network.named_parameters()}
    torch.testing.assert_close(grads, expected, atol=1e-12, rtol=1e-12)
    layers = 2 if name == "causal" else 5
    assert sorted(calls) == sorted(2 * list(set(calls)))  # forward, and forward again
    assert len(calls) == 2 * layers


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_bfloat16_is_near_float32(name, grad):
    network, ids, mask = MAKERS[name](torch.float32, residual="pre"), tokens(B, N), left(padding(B, N))
    given = {"labels": ids}
    with torch.set_grad_enabled(grad):
        expected = network(ids, mask, **given).logits
        scale = expected.std()
        with torch.autocast("cpu", torch.bfloat16):
            cast = network(ids, mask, **given).logits
        out = network.to(torch.bfloat16)(ids, mask, **given)
    assert out.logits.dtype == torch.bfloat16
    assert out.loss.isfinite()
    torch.testing.assert_close(cast.float() / scale, expected / scale, rtol=0.1, atol=0.15)
    torch.testing.assert_close(out.logits.float() / scale, expected / scale, rtol=0.2, atol=0.25)


@pytest.mark.parametrize("name", MAKERS)
def test_a_cache_in_bfloat16(name):
    network, ids = MAKERS[name](torch.bfloat16), tokens(B, 5)
    how = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    cached = network.generate(ids, pad_token_id=5, **how)
    target = cached.sequences[:, :-1]
    source = () if name == "causal" else (ids, None)
    whole = network(*source, target).logits[:, -5:]
    assert cached.past_key_values is not None
    logits = torch.stack(cached.logits, 1)  # float32, as generate gives them
    torch.testing.assert_close(logits, whole.float(), atol=0.3, rtol=0.1)


def test_a_text_may_begin_with_the_padding_token():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 128}
    model = GreenformerForCausalLM(GreenformerConfig(vocab_size=50, pad_token_id=0, eos_token_id=0, **sizes)).train()
    ids = torch.tensor([[0, 7, 8, 9]])
    model(ids, labels=ids).loss.backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(grads) > 12
    assert all(grad.norm() < 1e3 for grad in grads)
