"""Segment-level memory: a text in segments is as in one piece; what is compressed, learnt, masked and generated."""

import pytest
import torch

from greenformers.model import GreenformerConfig, GreenformerForCausalLM
from greenformers.model.memory import SegmentMemory

LAYERS, WIDTH = 3, 12
FUNCTIONS = ("convolution", "mean", "max", "most_used")


def network(attention="transformer_xl", seed=0, **given):
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 17, "hidden_size": WIDTH, "num_attention_heads": 2, "intermediate_size": 19,
        "num_hidden_layers": LAYERS, "max_position_embeddings": 23, "hidden_dropout_prob": 0.0, "attention": attention,
        "initializer_range": 0.3, "pad_token_id": 0,
    }  # fmt: skip
    return GreenformerForCausalLM(GreenformerConfig(**sizes | given)).double().eval()


def tokens(length, batch=2):
    return torch.randint(1, 17, (batch, length), generator=torch.Generator().manual_seed(1))


def in_segments(model, ids, length, memory, mask=None):
    logits = []
    for start in range(0, ids.shape[1], length):
        part = None if mask is None else mask[:, start : start + length]
        out = model(ids[:, start : start + length], attention_mask=part, memory=memory)
        memory = out.memory
        logits.append(out.logits)
    return torch.cat(logits, 1), memory


@pytest.mark.parametrize("residual", ["post", "pre"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_a_text_in_segments_is_as_in_one_piece(masked, residual):
    """Longer, in all, than what the network was made for."""
    model = network(residual=residual)
    ids = tokens(61)
    mask = torch.ones_like(ids)
    mask[0, :9], mask[1, 30:33] = 0, 0
    model.config.max_position_embeddings = 61  # for the whole at once
    out, memory = in_segments(model, ids, 7, SegmentMemory(100), mask if masked else None)
    whole = model(ids, attention_mask=mask if masked else None).logits
    positions = mask.bool() if masked else torch.ones_like(ids).bool()
    torch.testing.assert_close(out[positions], whole[positions], atol=1e-9, rtol=0)
    assert [x.shape for x in memory.recent] == [(2, 61, WIDTH)] * LAYERS


def test_without_memory_it_is_not():
    model = network()
    ids = tokens(14)
    apart = torch.cat([model(part).logits for part in ids.split(7, 1)], 1)
    assert (apart - model(ids).logits)[:, 7:].abs().max() > 1e-3


def test_memory_reaches_as_far_as_it_is_long_in_every_layer():
    model = network(num_hidden_layers=1)
    ids, changed = tokens(20), tokens(20).clone()
    changed[:, 3] = changed[:, 3] % 16 + 1
    outs = [in_segments(model, each, 5, SegmentMemory(6))[0] for each in (ids, changed)]
    differs = (outs[0] - outs[1]).abs().amax((0, 2)) > 0
    # Of the third segment's memory 4 is the oldest position.
    assert differs.tolist() == [False] * 3 + [True] * 7 + [False] * 10


def test_memory_is_constant_and_weights_are_new():
    """Memories carry no gradient, and current weights make keys and values of them."""
    model = network(residual="pre").train()
    ids = tokens(14)
    memory = model(ids[:, :7], memory=SegmentMemory(7)).memory
    assert all(x.requires_grad is False for x in memory.recent)
    model(ids[:, 7:], memory=memory).logits.square().sum().backward()
    key = model.decoder.layers[0].attention.projections["k"].weight
    grad = key.grad.clone()
    model.zero_grad()
    constant = [x.clone() for x in memory.recent]
    model(
        ids[:, 7:], memory=SegmentMemory(7, tuple(constant), memory.compressed, None, memory.compressed_mask)
    ).logits.square().sum().backward()
    torch.testing.assert_close(key.grad, grad)


def test_what_is_masked_in_memory_changes_nothing():
    model = network()
    ids = tokens(21)
    mask = torch.ones_like(ids)
    mask[:, 3:6] = 0
    other = ids.clone()
    other[:, 3:6] = 5
    outs = [in_segments(model, each, 7, SegmentMemory(14), mask)[0] for each in (ids, other)]
    torch.testing.assert_close(outs[0][:, 6:], outs[1][:, 6:], atol=0, rtol=0)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_what_leaves_the_memory_is_compressed(function, masked):
    model = network("compressive", attention_options={"ratio": 3, "compressed": 4, "function": function})
    ids = tokens(28)
    mask = torch.ones_like(ids)
    mask[0, :7], mask[1, 1:4] = 0, 0
    _, memory = in_segments(model, ids, 7, SegmentMemory(8), mask if masked else None)
    # 28 positions: after 14, 21, 28 there are 6, 7 and 8 too many, of which 6, 6 and 9 are threes.
    assert memory.recent[0].shape == (2, 10, WIDTH)
    assert memory.compressed[0].shape == (2, 4, WIDTH)
    if masked:
        assert memory.compressed_mask[0].shape == (2, 4)
    # A memory that began longer ago says something else.
    longer = in_segments(model, ids[:, 7:], 7, SegmentMemory(8))[1]
    assert (memory.compressed[1] - longer.compressed[1]).abs().max() > 0


def test_means_maxima_and_most_used():
    from greenformers.attention import Shape, build

    old = torch.randn(2, 6, 10, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True, False, True, False, False, False], [True] * 6])
    mechanisms = {name: build("compressive", Shape(2, 5, 7, causal=True), ratio=3, function=name) for name in FUNCTIONS}
    mean, short_mask = mechanisms["mean"].shorten(old, mask, None)
    torch.testing.assert_close(mean[0, 0], old[0, [0, 2]].mean(0))
    torch.testing.assert_close(mean[1, 1], old[1, 3:].mean(0))
    assert short_mask.tolist() == [[True, False], [True, True]]
    torch.testing.assert_close(mechanisms["max"].shorten(old, mask, None)[0][0, 0], old[0, [0, 2]].amax(0))
    usage = torch.tensor([[0.1, 9.0, 0.3, 9.0, 9.0, 9.0], [0.1, 0.9, 0.2, 0.8, 0.0, 0.0]])
    used, short_mask = mechanisms["most_used"].shorten(old, mask, usage)
    torch.testing.assert_close(used, torch.stack([old[0, [0, 2]], old[1, [1, 3]]]))
    assert short_mask.all()
    kernel = mechanisms["convolution"].kernel
    expected = sum(old[1, 3 + c] @ kernel[:, :, c].T for c in range(3))
    torch.testing.assert_close(mechanisms["convolution"].shorten(old, None, None)[0][1, 1], expected)
    with pytest.raises(ValueError, match="a multiple of ratio 3 positions can be compressed, got 5"):
        mechanisms["mean"].shorten(old[:, :5], None, None)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("residual", ["post", "pre"])
def test_reconstruction_trains_the_compressor_and_nothing_else(residual, masked):
    """compressive-transformer-pytorch freezes the projections it detaches, for good: here all go on learning."""
    options = {"ratio": 2, "compressed": 8}
    model = network("compressive", attention_options=options, residual=residual).train()
    ids = tokens(21)
    mask = torch.ones_like(ids)
    mask[:, 2:4] = 0
    given = [None if not masked else mask[:, start : start + 7] for start in (0, 7, 14)]
    memory = model(ids[:, :7], attention_mask=given[0], memory=SegmentMemory(6)).memory
    out = model.decoder(ids[:, 7:14], attention_mask=None, memory=memory)
    out.auxiliary_loss.backward()
    touched = {
        name for name, parameter in model.named_parameters() if parameter.grad is not None and parameter.grad.any()
    }
    assert touched == {f"decoder.layers.{layer}.attention.mechanism.kernel" for layer in range(LAYERS)}
    # A later step: everything learns.
    model.zero_grad()
    out = model(ids[:, 14:], attention_mask=given[2], labels=ids[:, 14:], memory=out.memory)
    out.loss.backward()
    untouched = [
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert [name for name in untouched if not name.endswith("projections.k.bias")] == []


@pytest.mark.slow
def test_a_convolution_learns_to_keep_attention_as_it_was():
    torch.manual_seed(0)
    model = network("compressive", attention_options={"ratio": 2, "compressed": 16}).train()
    kernels = [parameter for name, parameter in model.named_parameters() if name.endswith("kernel")]
    optimizer = torch.optim.Adam(kernels, lr=3e-2)
    losses = []
    for _ in range(60):
        memory = SegmentMemory(8)
        for part in tokens(32).split(8, 1):
            out = model.decoder(part, memory=memory)
            memory = out.memory
            if out.auxiliary_loss is not None:
                out.auxiliary_loss.backward()
                losses.append(out.auxiliary_loss.item())
        optimizer.step()
        optimizer.zero_grad()
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])


@pytest.mark.parametrize(
    ("attention", "options", "length"),
    [("transformer_xl", {}, 30), ("transformer_xl", {}, 0), ("compressive", {"ratio": 2, "compressed": 4}, 30)],
)
def test_generation_goes_on_from_a_memory(attention, options, length):
    model = network(attention, attention_options=options, memory_length=length)
    ids = tokens(21)
    memory = in_segments(model, ids[:, :14], 7, SegmentMemory(9))[1]
    out = model.generate(ids[:, 14:], memory=memory, max_new_tokens=3, do_sample=False)
    expected = ids[:, 14:]
    for _ in range(3):  # nothing is forgotten: it is as without a cache
        logits = model(expected, memory=memory).logits[:, -1]
        expected = torch.cat([expected, logits.argmax(-1, keepdim=True)], 1)
    assert torch.equal(out[:, : expected.shape[1]], expected)
    assert not torch.equal(out, model.generate(ids[:, 14:], max_new_tokens=3, do_sample=False))


def test_generation_goes_on_longer_than_the_network_was_made_for_and_keeps_no_more_than_its_memory():
    model = network(memory_length=5)
    lengths = []
    hook = model.decoder.layers[0].attention.mechanism.register_forward_pre_hook(
        lambda _, __, given: lengths.append(given["k"].shape[2]), with_kwargs=True
    )
    out = model.generate(tokens(11), max_new_tokens=40, do_sample=False, eos_token_id=None)
    hook.remove()
    assert out.shape == (2, 51)
    assert lengths == [11] + [6] * 39


def test_with_all_kept_a_cache_is_as_no_cache():
    model = network()
    ids = tokens(11)
    cached = model.generate(ids, max_new_tokens=9, do_sample=False)
    plain = model.generate(ids, max_new_tokens=9, do_sample=False, use_cache=False)
    assert torch.equal(cached, plain)


def test_padding_on_the_left_changes_nothing_of_what_is_generated():
    model = network(memory_length=6)
    ids = tokens(7)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)
    mask = (torch.arange(10) >= 3).long().expand(2, -1)
    with_padding = model.generate(padded, attention_mask=mask, max_new_tokens=12, do_sample=False)
    assert torch.equal(with_padding[:, 3:], model.generate(ids, max_new_tokens=12, do_sample=False))


def test_memory_can_be_stored():
    model = network("compressive", attention_options={"ratio": 2, "compressed": 4})
    mask = torch.ones(2, 21, dtype=torch.long)
    mask[:, :2] = 0
    memory = in_segments(model, tokens(21), 7, SegmentMemory(6), mask)[1]
    again = SegmentMemory.read(6, memory.tensors())
    for original, copy in zip(memory.tensors().items(), again.tensors().items(), strict=True):
        assert original[0] == copy[0]
        assert torch.equal(original[1], copy[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention": "full", "memory_length": 4}, "memory_length is for a single stack .* got 4 with 'full'"),
        ({"memory_length": -1}, "memory_length must be at least 0, got -1"),
    ],
)
def test_configurations_that_cannot_remember(given, message):
    with pytest.raises(ValueError, match=message):
        network(**given)


def test_what_takes_no_memory():
    ids = tokens(7)
    with pytest.raises(ValueError, match="memory is for a single stack of attention with positions of its own"):
        network("full")(ids, memory=SegmentMemory(4))
    with pytest.raises(ValueError, match="a reversible stack takes no memory"):
        network(residual="reversible")(ids, memory=SegmentMemory(4))
    model = network()
    memory = model(ids, memory=SegmentMemory(4)).memory
    with pytest.raises(ValueError, match="memory must be of 3 layers and 1 sequences, got 3 and 2"):
        model(ids[:1], memory=memory)
    with pytest.raises(ValueError, match="length must be at least 0, got -1"):
        SegmentMemory(-1)


# Of each segment: how long it is in each of three texts, and how much padding is before it there; behind it are others.
SEGMENTS = (((7, 2, 5), (0, 6, 1)), ((4, 9, 3), (5, 0, 4)), ((6, 5, 9), (2, 3, 0)), ((5, 1, 7), (0, 7, 1)))
WIDTHS = (9, 10, 11, 8)


@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("transformer_xl", {}),
        ("adaptive_span", {"dynamic": True, "penalty": 1.0}),
        *[("compressive", {"ratio": 3, "compressed": 4, "function": function}) for function in FUNCTIONS],
    ],
)
def test_padding_of_segments_is_no_part_of_the_memory(attention, options):
    """What is read, remembered and compressed is that of each text alone, and what is learnt where there is one."""
    model, ids = network(attention, attention_options=options).train(), tokens(30, 3)
    together, alone, ended = SegmentMemory(5), [SegmentMemory(5)] * 3, [0] * 3
    for (lengths, paddings), width in zip(SEGMENTS, WIDTHS, strict=True):
        texts = [ids[row : row + 1, ended[row] : ended[row] + length] for row, length in enumerate(lengths)]
        given = torch.zeros(3, width, dtype=torch.long)
        for row, (text, padding) in enumerate(zip(texts, paddings, strict=True)):
            given[row, padding : padding + lengths[row]] = text[0]
            ended[row] += lengths[row]
        mask = given != 0
        out = model.decoder(given, attention_mask=mask, memory=together)
        for row, text in enumerate(texts):
            of_row = model.decoder(given[row : row + 1], attention_mask=mask[row : row + 1], memory=alone[row])
            single = model.decoder(text, memory=alone[row])
            for hidden in (out.last_hidden_state[row], of_row.last_hidden_state[0]):
                torch.testing.assert_close(hidden[mask[row]], single.last_hidden_state[0], atol=1e-9, rtol=0)
            torch.testing.assert_close(of_row.auxiliary_loss, single.auxiliary_loss, atol=1e-12, rtol=1e-9)
            alone[row] = single.memory
        together = out.memory
    if attention == "compressive":
        assert together.compressed[0].shape == (3, 4, WIDTH)


def test_generation_goes_on_from_a_memory_behind_padding():
    model, ids = network(memory_length=9), tokens(14)
    memory = in_segments(model, ids[:, :7], 7, SegmentMemory(9))[1]
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids[:, 7:]], 1)
    given = {"memory": memory, "max_new_tokens": 12, "do_sample": False}
    with_padding = model.generate(padded, attention_mask=(padded != 0).long(), **given)
    assert torch.equal(with_padding[:, 3:], model.generate(ids[:, 7:], **given))
