"""A text is what it is alone, whatever padding stands before and behind it, and whatever the padding holds."""

import pytest
import torch
from cases import FIRST, draw, each_form, form, noise, unmasked
from rows import MAX_LEN, ROWS

from greenformers.attention import Shape, build
from greenformers.attention._aligned import text_of

TEXTS = [slice(4, MAX_LEN), slice(0, 7), slice(3, 8), slice(0, MAX_LEN), slice(12, MAX_LEN)]
"""Where the text of each example stands: behind padding, before it, between, without any, and the shortest."""
MASK = torch.stack([torch.arange(MAX_LEN).ge(text.start) & torch.arange(MAX_LEN).lt(text.stop) for text in TEXTS])
LAST = 3
BIGBIRD = FIRST["bigbird", False]
EXACT = {"rtol": 1e-9, "atol": 1e-9}

has_states = pytest.mark.parametrize("row", [row for row in ROWS if row.causal and row.build(causal=True).can_step])
causal_form = pytest.mark.parametrize(("row", "causal"), [form(row, True) for row in ROWS if row.causal])
with_loss = pytest.mark.parametrize("row", [row for row in ROWS if row.build().has_loss], ids=str)


def no_numbers(x):
    """NaN, and infinity in every second place."""
    return torch.full_like(x, torch.nan).masked_fill(torch.arange(x.shape[-1]) % 2 == 0, torch.inf)


each_fill = pytest.mark.parametrize("fill", [noise, no_numbers])


def inputs(module, fill=noise):
    """What the module takes by name, (B, H, N, D), with padding of other contents; leaves."""
    names = ["q", "k", "v", *(name for name in module.projections if name not in ("q", "k", "v"))]
    tensors = [x for seed in (1, 2) for x in draw(MAX_LEN, MAX_LEN, batch=len(TEXTS), seed=seed)][: len(names)]
    there = MASK[:, None, :, None]
    return {
        name: torch.where(there, x, fill(x)).requires_grad_() for name, x in zip(names, tensors, strict=True)
    }  # fmt: skip


def alone(given, b, text=None):
    """The same of one text."""
    return {name: x[b : b + 1, :, TEXTS[b] if text is None else text] for name, x in given.items()}


def gradients(out, everything):
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad((weights * out).sum(), everything, materialize_grads=True)


@each_form
@each_fill
def test_a_text_among_padding_is_the_text_alone(row, causal, fill):
    """Outputs and gradients, and those of the parameters; the padding gets none."""
    module = row.build(causal=causal).double()
    given = inputs(module, fill)
    together = module(**given, key_mask=MASK)
    everything = [*given.values(), *module.parameters()]
    texts = [together[b : b + 1, :, text] for b, text in enumerate(TEXTS)]
    by_themselves = [module(**alone(given, b)) for b in range(len(TEXTS))]
    torch.testing.assert_close(texts, by_themselves, **EXACT)
    together, apart = (torch.cat([out.flatten() for out in outs]) for outs in (texts, by_themselves))
    of_texts, expected = (gradients(out, everything) for out in (together, apart))
    torch.testing.assert_close(of_texts, expected, **EXACT)


@causal_form
def test_last_positions_behind_padding_are_those_of_the_text_alone(row, causal):
    """Where a cache holds the positions before."""
    module = row.build(causal=causal).double()
    given, at = inputs(module), slice(-LAST, None)
    queries = {name: x[:, :, at] for name, x in given.items() if name in ("q", "hidden")}
    rows = [b for b, text in enumerate(TEXTS) if text.stop == MAX_LEN]
    together = module(**{**given, **queries}, key_mask=MASK)
    for b in rows:
        count = min(LAST, TEXTS[b].stop - TEXTS[b].start)
        own = alone(queries, b, slice(LAST - count, None))
        expected = module(**{**alone(given, b), **own})
        torch.testing.assert_close(together[b : b + 1, :, LAST - count :], expected, **EXACT)


@has_states
def test_a_state_of_a_padded_text_is_that_of_the_text_alone(row):
    module = row.build(causal=True).double()
    given = inputs(module)
    out, state = module.step(**given, state=None, key_mask=MASK)
    for b, text in enumerate(TEXTS):
        expected, of_text = module.step(**alone(given, b), state=None)
        torch.testing.assert_close(out[b : b + 1, :, text], expected, **EXACT)
        torch.testing.assert_close([x[b : b + 1] for x in state], list(of_text), **EXACT)


@with_loss
@each_fill
def test_a_loss_is_that_of_the_text_alone(row, fill):
    module = row.build().double().eval()
    given = inputs(module, fill)
    for b in range(len(TEXTS)):
        _, loss = module.forward_with_loss(**alone(given, b, slice(None)), key_mask=MASK[b : b + 1])
        _, expected = module.forward_with_loss(**alone(given, b))
        torch.testing.assert_close(loss, expected, **EXACT)


def test_bigbird_counts_the_batch_where_it_is_told_to():
    """As it must be to be traced with a mask."""
    options = {"block": 2, "random": 2}
    own, whole = (BIGBIRD.build({**options, "padding": padding}) for padding in ("own", "batch"))
    q, k, v = draw(MAX_LEN, MAX_LEN, batch=len(TEXTS), dtype=torch.float32)
    torch.testing.assert_close(whole(q, k, v, MASK)[3], own(q, k, v, MASK)[3])
    assert not torch.allclose(whole(q, k, v, MASK)[0, :, 4:], own(q, k, v, MASK)[0, :, 4:])
    traced = {"backend": "eager", "fullgraph": True}
    compiled = torch.compile(whole, **traced)(q, k, v, MASK)
    torch.testing.assert_close(unmasked(compiled, MASK), unmasked(whole(q, k, v, MASK), MASK))
    torch.testing.assert_close(torch.compile(own, **traced)(q, k, v), own(q, k, v))
    with pytest.raises(Exception, match="padding must be 'batch' where bigbird is traced with a mask, got 'own'"):
        torch.compile(own, **traced)(q, k, v, MASK)
    with pytest.raises(ValueError, match="padding must be one of own, batch; got 'none'"):
        BIGBIRD.build({**options, "padding": "none"})


def test_positions_of_a_sequence_are_kept_by_either_mask():
    keys, queries = torch.tensor([[False, True, False]]), torch.tensor([[True, False, False]])
    assert text_of(keys, queries).tolist() == [[True, True, False]]
    assert text_of(keys, None) is text_of(keys, queries, cross=True) is text_of(keys, queries[:, 1:]) is keys
    assert text_of(None, queries) is None


@pytest.mark.parametrize("name", ["reformer", "routing"])
def test_a_batch_of_padding_alone_is_zeros(name):
    module, x = build(name, Shape(1, 4, 8, causal=True)), torch.randn(1, 1, 8, 4)
    out = module(x, x, x, torch.zeros(1, 8, dtype=torch.bool))
    assert out.equal(torch.zeros_like(out))


def test_what_padding_holds_is_no_part_of_the_loss_of_a_compression():
    """Also where all that is compressed is padding, as a hole in a text is."""
    module = build("compressive", Shape(2, 4, 16, causal=True), ratio=2).train()
    x, old = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    mask = torch.tensor([[True, True, False, True], [False] * 4])

    def project(x, names):
        return [x.unflatten(2, (2, 4)).transpose(1, 2) + len(name) for name in names]

    losses = [module.compress(x, torch.where(mask[..., None], old, fill), mask, project)[2] for fill in (0.0, 5.0)]
    torch.testing.assert_close(*losses)
    alone = module.compress(x[:1], old[:1], mask[:1], project)[2]
    torch.testing.assert_close(losses[0], alone / 2)  # the other text has nothing to reconstruct
