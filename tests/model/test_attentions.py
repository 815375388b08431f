"""`output_attentions`: how much of each position each one gets, of any mechanism, and nothing else changes."""

import pytest
import torch
from torch import Tensor

from greenformers import attention
from greenformers.model import (
    GreenformerConfig,
    GreenformerDecoder,
    GreenformerForCausalLM,
    GreenformerForSeq2SeqLM,
    GreenformerModel,
)

SIZES = {
    "vocab_size": 50, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": 32, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
CLOSE = {"atol": 1e-9, "rtol": 1e-9}
MASK = torch.arange(7) < torch.tensor([[7], [5], [6]])


def drawn(kind: type = GreenformerModel, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(GreenformerConfig(**SIZES | {"initializer_range": 0.5} | options)).double().eval()


def tokens(rows: int = 3, length: int = 7) -> Tensor:
    return torch.randint(3, 50, (rows, length), generator=torch.Generator().manual_seed(1))


def can_be(kind: type, name: str) -> bool:
    try:
        drawn(kind, attention=name)
    except ValueError:
        return False
    return True


FORMS = [
    (kind, name) for kind in (GreenformerModel, GreenformerDecoder) for name in attention.names() if can_be(kind, name)
]


@pytest.mark.parametrize(("kind", "name"), FORMS)
def test_outputs_are_those_without_it(kind: type, name: str) -> None:
    network, ids = drawn(kind, attention=name, attention_dropout=0.0), tokens()
    expected = network(ids, MASK)
    assert expected.attentions is None
    out = network(ids, MASK, output_attentions=True)
    torch.testing.assert_close(out[0][MASK], expected[0][MASK], **CLOSE)
    assert [tuple(each.shape) for each in out.attentions] == [(3, 3, 7, 7)] * 2
    out[0][MASK].sum().backward()


@pytest.mark.parametrize("kind", [GreenformerModel, GreenformerDecoder])
def test_full_attention_by_hand(kind: type) -> None:
    network, ids = drawn(kind), tokens()
    network.set_attn_implementation("eager")  # or else transformers refuses what follows
    network.config.output_attentions = True
    seen: list[Tensor] = []

    def see(_: object, __: object, given: dict[str, Tensor]) -> None:
        scores = given["q"] @ given["k"].mT / 2  # of 4 numbers a head
        scores = scores.masked_fill(~MASK[:, None, None], -torch.inf)
        if kind is GreenformerDecoder:
            scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
        seen.append(scores.softmax(-1))

    for layer in network.layers:
        layer.attention.mechanism.register_forward_pre_hook(see, with_kwargs=True)
    out = network(ids, MASK).attentions
    torch.testing.assert_close(out, tuple(seen[:: len(seen) // 2]), **CLOSE)


@pytest.mark.parametrize("position", ["rotary", "alibi", "t5", "shaw", "huang"])
def test_positions_are_in_the_weights(position: str) -> None:
    for kind in (GreenformerModel, GreenformerDecoder):
        network, ids = drawn(kind, position=position), tokens()
        out, expected = network(ids, MASK, output_attentions=True), network(ids, MASK)
        torch.testing.assert_close(out[0][MASK], expected[0][MASK], **CLOSE)
        torch.testing.assert_close(out.attentions[0].sum(-1)[:, 0][MASK], torch.ones(33 - 15).double(), **CLOSE)


def test_weights_have_a_gradient() -> None:
    out = drawn()(tokens(), output_attentions=True)
    for each in out.attentions:
        each.retain_grad()
    out[0][0, 0, 0].backward()
    assert all(each.grad.abs().sum() > 0 for each in out.attentions)


def test_in_training_weights_are_dropped_after_they_are_given() -> None:
    network, ids = drawn(attention_dropout=0.5, hidden_dropout_prob=0.0).train(), tokens()
    first, second = (network(ids, output_attentions=True) for _ in range(2))
    torch.testing.assert_close(first.attentions[0], second.attentions[0], atol=0, rtol=0)
    assert (first[0] - second[0]).abs().max() > 0.01


def test_generation_gives_the_weights_of_each_token() -> None:
    network, ids = drawn(GreenformerForCausalLM), tokens(2)
    given = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True}
    out = network.generate(ids, output_attentions=True, **given)
    assert out.sequences.equal(network.generate(ids, **given).sequences)
    sizes = [[tuple(layer.shape) for layer in step] for step in out.attentions]
    assert sizes == [[(2, 3, 7, 7)] * 2, [(2, 3, 1, 8)] * 2, [(2, 3, 1, 9)] * 2]


def test_an_encoder_decoder_has_three() -> None:
    options = {"decoder_layers": 2, "decoder_start_token_id": 2}
    network, ids, targets = drawn(GreenformerForSeq2SeqLM, **options), tokens(), tokens(3, 4)
    out = network(ids, MASK, targets, output_attentions=True)
    torch.testing.assert_close(out.logits, network(ids, MASK, targets).logits, **CLOSE)
    sizes = {"encoder": (3, 3, 7, 7), "decoder": (3, 3, 4, 4), "cross": (3, 3, 4, 7)}
    for name, size in sizes.items():
        weights = out["cross_attentions" if name == "cross" else f"{name}_attentions"]
        assert [tuple(each.shape) for each in weights] == [size] * 2
    assert not out.cross_attentions[0].transpose(1, 3)[~MASK].any()
    given = {"max_new_tokens": 3, "num_beams": 2, "return_dict_in_generate": True}
    beams = network.generate(ids, attention_mask=MASK, output_attentions=True, **given)
    assert beams.sequences.equal(network.generate(ids, attention_mask=MASK, **given).sequences)
    assert tuple(beams.cross_attentions[0][0].shape) == (6, 3, 1, 7)


def test_shortened_keys_of_an_encoder() -> None:
    options = {"decoder_layers": 2, "decoder_start_token_id": 2, "cross_attention": "linformer"}
    network = drawn(GreenformerForSeq2SeqLM, cross_attention_options={"k": 3}, **options)
    ids, targets = tokens(), tokens(3, 4)
    out = network(ids, MASK, targets, output_attentions=True)
    torch.testing.assert_close(out.logits, network(ids, MASK, targets).logits, **CLOSE)
    with pytest.raises(ValueError, match="output_attentions must be False where shortened keys and values are kept"):
        network(ids, MASK, targets, output_attentions=True, use_cache=True)


@pytest.mark.parametrize(
    ("kind", "options", "given", "message"),
    [
        (GreenformerModel, {"residual": "reversible"}, {}, "for layers of attention one after the other"),
        (GreenformerModel, {"block": "star"}, {}, "for layers of attention one after the other"),
        (GreenformerModel, {}, {"cu_seq_lens_q": torch.tensor([0, 3, 7, 21])}, "must be False where texts are packed"),
        (GreenformerDecoder, {"attention": "linear_transformer"}, {"use_cache": True}, "on top of a state"),
    ],
)
def test_what_has_no_weights_says_so(kind: type, options: dict, given: dict, message: str) -> None:
    network, ids = drawn(kind, **options), tokens().view(1, -1) if "cu_seq_lens_q" in given else tokens()
    with pytest.raises(ValueError, match=message):
        network(ids, output_attentions=True, **given)
