"""A text in a batch is what it is alone, whatever padding the others need, in every network."""

import pytest
import torch
from networks import HEAD_DIM, HEADS, MAX_LEN, VOCABULARY, config, stir
from text_networks import PAD, causal, pair, tokens

from greenformers import blocks
from greenformers.attention import Shape, build, names
from greenformers.model import GreenformerForMaskedLM, GreenformerModel

LENGTH = 19
TEXTS = [slice(6, LENGTH), slice(0, 11), slice(5, 14), slice(0, LENGTH), slice(LENGTH - 1, LENGTH)]
"""Where the text of each example stands: behind padding, before it, between, without any, and the shortest."""
AT = torch.arange(LENGTH)
MASK = torch.stack([(text.start <= AT) & (text.stop > AT) for text in TEXTS])
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
NEW = 4

SMALL = {
    "linformer": {"k": 5},
    "nystromformer": {"landmarks": 4, "convolution": 3},
    "sinkhorn": {"block": 4, "noise": False},
    "dacs": {"look_ahead": 2},
    "routing": {"clusters": 3},
    "reformer": {"chunk": 3, "n_buckets": 4},
    "adaptive_span": {"span": 7, "ramp": 3},
    "compressive": {"ratio": 3, "compressed": 5},
    "sliding_window": {"window": 3},
    "cascade": {"base": 2},
    "local_blocks": {"block": 4},
    "sparse_strided": {"stride": 4},
    "sparse_fixed": {"stride": 4, "summary": 1},
    "blockwise": {"blocks": 3},
    "longformer": {"window": 2, "globals": 2},
    "bigbird": {"block": 2, "random": 1},
    "etc": {"globals": 2, "radius": 2, "clip": 2},
}
"""Options that make patterns, blocks and the like narrower than the texts."""


def has_form(name, **form):
    try:
        build(name, Shape(HEADS, HEAD_DIM, MAX_LEN, **form), **SMALL.get(name, {}))
    except ValueError:
        return False
    return True


CAUSAL = [name for name in names() if has_form(name, causal=True)]
BLOCKS = [name for name in blocks.names() if blocks.block_class(name).keeps_length]
CAUSAL_BLOCKS = ["bp", *(name for name in blocks.names() if blocks.block_class(name).keeps_cache)]
CROSS = {
    "full": {},
    "linformer": {"k": 5},
    "performer": {},
    "dacs": {"look_ahead": 2},
}


def attention(name):
    return {"attention": name, "attention_options": SMALL.get(name)}


def of_block(name):
    """Of an even width and number of heads, which some halve."""
    return {"block": name, "hidden_size": 12, "num_attention_heads": 2}


ENCODERS = {
    **{name: attention(name) for name in names()},
    **{f"{name}, a block": of_block(name) for name in BLOCKS},
    "sinusoidal": {"position": "sinusoidal"},
    "mean": {"pooling": "mean"},
    "pma": {"pooling": "pma"},
    "reversible": {"residual": "reversible"} | attention("routing"),
    "linformer, lrt": {"rank": 7} | attention("linformer"),
    "linformer, mean": {"attention": "linformer", "attention_options": {"k": 5, "projection": "mean"}},
}
DECODERS = {
    **{name: attention(name) for name in CAUSAL},
    **{f"{name}, a block": of_block(name) for name in CAUSAL_BLOCKS},
}


def ids():
    return torch.randint(12, VOCABULARY, (len(TEXTS), LENGTH), generator=torch.Generator().manual_seed(1))


def compare(together, alone):
    """What a network makes of the batch and of each text: a tensor with positions, or one without."""
    for b, text in enumerate(TEXTS):
        output = together[b : b + 1, text] if together.dim() > 2 else together[b : b + 1]
        torch.testing.assert_close(output, alone(b, text), **CLOSE)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_an_encoder(name):
    torch.manual_seed(0)
    model, given = stir(GreenformerModel(config(**ENCODERS[name])).double()).eval(), ids()
    out = model(given, MASK)
    compare(out.last_hidden_state, lambda b, text: model(given[b : b + 1, text]).last_hidden_state)
    compare(out.pooler_output, lambda b, text: model(given[b : b + 1, text]).pooler_output)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_a_decoder(name):
    torch.manual_seed(0)
    model, given = causal(**DECODERS[name]), ids()
    compare(model(given, MASK).logits, lambda b, text: model(given[b : b + 1, text]).logits)


PAIRS = {
    **{
        name: attention("local_blocks") | {"cross_attention": name, "cross_attention_options": options}
        for name, options in CROSS.items()
    },
    **{f"{name}, a block": of_block(name) for name in BLOCKS if blocks.block_class(name).crosses},
}


@pytest.mark.parametrize("name", PAIRS)
@torch.no_grad()
def test_an_encoder_decoder(name):
    torch.manual_seed(0)
    model, given, target = pair(**PAIRS[name]), ids(), tokens(len(TEXTS), 7)
    out = model(given, MASK, decoder_input_ids=target).logits
    for b, text in enumerate(TEXTS):
        alone = model(given[b : b + 1, text], decoder_input_ids=target[b : b + 1]).logits
        torch.testing.assert_close(out[b : b + 1], alone, **CLOSE)


ASKING = {
    "dacs": {"cross_attention": "dacs", "cross_attention_options": {"look_ahead": 2}},
    **{
        f"{name}, {block}": {"cross_attention": name, "cross_attention_options": {"mixed": True}} | slots
        for name in ("synthesizer_random", "synthesizer_factorized_random")
        for block, slots in (("standard", {}), ("lite", of_block("lite")), ("evolved", of_block("evolved")))
    },
}
"""Cross-attention in which a query depends on its place among the queries."""


@pytest.mark.parametrize("name", ASKING)
@torch.no_grad()
def test_padding_of_the_target(name):
    torch.manual_seed(0)
    model, target, source = pair(**ASKING[name]), ids(), tokens(len(TEXTS), 7)
    given = {"decoder_input_ids": target, "decoder_attention_mask": MASK, "output_attentions": name == "dacs"}
    out = model(source, **given).logits
    compare(out, lambda b, text: model(source[b : b + 1], decoder_input_ids=target[b : b + 1, text]).logits)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in CAUSAL if name in SMALL or name.startswith("synthesizer")),
        *(f"{name}, a block" for name in CAUSAL_BLOCKS if blocks.block_class(name).keeps_cache),
    ],
)
def test_generation_behind_padding(name):
    """Token for token, with what is kept of earlier positions and without."""
    torch.manual_seed(0)
    model, given = causal(**DECODERS[name]), ids()
    options = {"max_new_tokens": NEW, "pad_token_id": PAD, "eos_token_id": None, "do_sample": False}
    rows = [b for b, text in enumerate(TEXTS) if text.stop == LENGTH]
    for cache in (True, False) if model.decoder.keeps_cache else (False,):
        out = model.generate(given[rows], attention_mask=MASK[rows].long(), use_cache=cache, **options)[:, LENGTH:]
        for b, new in zip(rows, out, strict=True):
            alone = model.generate(given[b : b + 1, TEXTS[b]], use_cache=cache, **options)
            assert torch.equal(alone[0, -NEW:], new)


@torch.no_grad()
def test_padding_of_values_may_be_anything():
    model = stir(GreenformerModel(config(input_features=2, **attention("nystromformer"))).double()).eval()
    values = torch.randn(len(TEXTS), LENGTH, 2, dtype=torch.float64)
    ends = torch.tensor([11, 3, 1, LENGTH, 7])[:, None] > AT
    out = model(input_values=values.masked_fill(~ends[..., None], torch.nan), attention_mask=ends)
    for b, length in enumerate(ends.sum(1).tolist()):
        alone = model(input_values=values[b : b + 1, :length])
        torch.testing.assert_close(out.last_hidden_state[b : b + 1, : length + 1], alone.last_hidden_state, **CLOSE)
        torch.testing.assert_close(out.pooler_output[b : b + 1], alone.pooler_output, **CLOSE)


def test_gradients_of_a_network():
    model, given = stir(GreenformerForMaskedLM(config(**attention("etc"))).double()).eval(), ids()
    labels = given.masked_fill(~MASK, -100)
    together, apart = (
        torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        for loss in (
            model(given, MASK, labels=labels, num_items_in_batch=1).loss,
            sum(
                model(given[b : b + 1, text], labels=given[b : b + 1, text], num_items_in_batch=1).loss
                for b, text in enumerate(TEXTS)
            ),
        )
    )
    torch.testing.assert_close(together, apart, **CLOSE)


def test_padding_of_embeddings_of_a_decoder_may_be_anything():
    network = causal()
    x, mask = torch.randn(1, 9, network.config.hidden_size).double(), (torch.arange(9) > 2)[None]
    given = x.masked_fill(~mask[..., None], torch.nan)
    out = network(inputs_embeds=given, attention_mask=mask, use_cache=True)
    torch.testing.assert_close(out.logits[:, 3:], network(inputs_embeds=x[:, 3:]).logits)
    further = torch.ones(1, 10, dtype=torch.bool).logical_and(torch.arange(10) > 2)
    token = torch.tensor([[12]])
    step = network(token, attention_mask=further, past_key_values=out.past_key_values).logits
    assert step.isfinite().all()
