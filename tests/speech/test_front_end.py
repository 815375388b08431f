"""The front end against a plain loop over one utterance; padding changes nothing, whatever stands in it."""

import pytest
import torch
import torch.nn.functional as F
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped
from torch.testing import assert_close

from greenformers.speech.features import Spectrogram
from greenformers.speech.front_end import VGG, heard, positions, shortened

BINS, CHANNELS = 13, 3  # 13 // 4 = 3 and one left over twice
CLOSE = {"atol": 1e-12, "rtol": 1e-12}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def network(bins=BINS, channels=CHANNELS, dtype=torch.float64):
    """With biases that let most of the channels live, so that no ReLU hides what leaks into an utterance."""
    vgg = VGG(bins, channels).to(dtype)
    with torch.no_grad():
        for convolution in vgg.convolutions:
            fan_in = 9 * convolution.in_channels
            convolution.weight.normal_(std=(2 / fan_in) ** 0.5)
            convolution.bias.normal_(std=0.3)
    return vgg


def plain(net, utterance):
    """(T, F) to (T // 4, (F // 4) 2 c): frequency before channel."""
    x = utterance[None, None].contiguous()
    for layer, convolution in enumerate(net.convolutions):
        x = F.conv2d(x, convolution.weight.contiguous(), convolution.bias, padding=1).clamp(min=0)
        if layer in (1, 3):
            time, frequency = x.shape[2] // 2, x.shape[3] // 2
            x = x[:, :, : 2 * time, : 2 * frequency].unflatten(2, (time, 2)).unflatten(4, (frequency, 2)).amax((3, 5))
    _, channels, time, frequency = x.shape
    return torch.stack([x[0, :, t].T.reshape(channels * frequency) for t in range(time)])


def padded(utterances, longest, fill):
    """A batch (B, T, F) with something in its padding, and its mask."""
    batch = fill(torch.empty(len(utterances), longest, utterances[0].shape[1], dtype=utterances[0].dtype))
    mask = torch.zeros(len(utterances), longest, dtype=torch.bool)
    for row, utterance in enumerate(utterances):
        batch[row, : len(utterance)] = utterance
        mask[row, : len(utterance)] = True
    return batch, mask


FILLS = {
    "zeros": torch.zero_,
    "noise": lambda x: x.normal_(),
    "large": lambda x: x.uniform_(-1e8, 1e8),
}


@pytest.mark.parametrize("bins", [4, 7, 13])
@pytest.mark.parametrize("frames", range(4, 24))
def test_equals_its_plain_form(frames, bins):
    net = network(bins)
    utterance = torch.randn(frames, bins, dtype=torch.float64)
    output = net(utterance[None])
    assert output.shape == (1, frames // 4, bins // 4 * 2 * CHANNELS)
    assert net.width == output.shape[2]
    assert_close(output[0], plain(net, utterance), **CLOSE)
    whole = net(utterance[None], torch.ones(1, frames, dtype=torch.bool))
    assert_close(whole, output, **CLOSE)


def test_every_frame_and_frequency_counts():
    """But for those that pooling leaves over."""
    net = network()
    utterance = torch.randn(1, 23, BINS, dtype=torch.float64, requires_grad=True)
    (reached,) = torch.autograd.grad(net(utterance).sum(), utterance)
    assert reached[0].ne(0).any(1).all()
    assert reached[0].ne(0).any(0).all()


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("frames", range(4, 20))
def test_padding_changes_nothing(frames, fill):
    net = network()
    utterance = torch.randn(frames, BINS, dtype=torch.float64)
    longer = torch.randn(19, BINS, dtype=torch.float64)
    batch, mask = padded([longer, utterance], 19, FILLS[fill])
    output = net(batch, mask)
    short_mask = shortened(mask)
    assert short_mask.sum(1).tolist() == [4, frames // 4]
    assert_close(output[1][short_mask[1]], plain(net, utterance), **CLOSE)
    assert_close(output[0], plain(net, longer), **CLOSE)
    assert output[~short_mask].eq(0).all()


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("lengths", [(17, 4), (13, 7), (19, 18, 5), (11, 6, 9), (8, 12)], ids=str)
def test_padding_changes_no_gradient(lengths, fill):
    net = network()
    utterances = [torch.randn(length, BINS, dtype=torch.float64) for length in lengths]
    batch, mask = padded(utterances, max(lengths) + 3, FILLS[fill])
    given = [torch.randn(length // 4, net.width, dtype=torch.float64) for length in lengths]
    leaves = list(net.parameters())
    together = sum((net(batch, mask)[row, : len(g)] * g).sum() for row, g in enumerate(given))
    alone = sum((plain(net, utterance) * g).sum() for utterance, g in zip(utterances, given, strict=True))
    expected = torch.autograd.grad(alone, leaves)
    assert all(gradient.ne(0).any() for gradient in expected)
    assert_close(torch.autograd.grad(together, leaves), expected, atol=1e-10, rtol=1e-10)


def test_padding_gets_no_gradient_and_input_is_not_written_to():
    net = network()
    batch, mask = padded([torch.randn(n, BINS, dtype=torch.float64) for n in (17, 9)], 19, FILLS["noise"])
    before = batch.clone()
    leaf = batch.requires_grad_()
    (gradient,) = torch.autograd.grad(net(leaf, mask).square().sum(), leaf)
    assert gradient[~mask].eq(0).all()
    assert gradient[mask].ne(0).any()
    assert_close(leaf.detach(), before, atol=0, rtol=0)
    assert mask.sum(1).tolist() == [17, 9]


def test_second_derivatives():
    net = network(bins=5, channels=1)
    batch, mask = padded([torch.randn(n, 5, dtype=torch.float64) for n in (9, 6)], 9, FILLS["zeros"])
    assert torch.autograd.gradcheck(lambda x: net(x, mask), batch.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision(dtype, masked):
    net = network(dtype=torch.float32)
    batch, mask = padded([torch.randn(n, BINS) for n in (17, 9)], 17, FILLS["noise"])
    mask = mask if masked else None
    expected = net(batch, mask)
    tolerance = {"atol": 0.1, "rtol": 0.05} if dtype == torch.bfloat16 else {"atol": 0.02, "rtol": 0.02}
    assert_close(net.to(dtype)(batch.to(dtype), mask).float(), expected, **tolerance)


@pytest.mark.parametrize("masked", [False, True])
def test_autocast(masked):
    net = network(dtype=torch.float32)
    batch, mask = padded([torch.randn(n, BINS) for n in (17, 9)], 17, FILLS["noise"])
    mask = mask if masked else None
    with torch.autocast("cpu", torch.bfloat16):
        output = net(batch, mask)
        output.float().square().sum().backward()
    assert_close(output.float(), net(batch, mask), atol=0.1, rtol=0.05)
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in net.parameters())


def test_shortened_keeps_whole_positions():
    for frames in range(4, 24):
        for length in range(frames + 1):
            mask = torch.arange(frames)[None] < length
            short_mask = shortened(mask)
            assert short_mask.shape == (1, frames // 4)
            assert short_mask.sum() == length // 4


def test_wrong_sizes():
    with pytest.raises(ValueError, match="bins must be at least 4, got 3"):
        VGG(3, 2)
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        VGG(4, 0)


def test_wrong_inputs():
    net = network()
    x = torch.randn(2, 11, BINS, dtype=torch.float64)
    with pytest.raises(ValueError, match="at least 4 frames, got 3"):
        net(x[:, :3])
    with pytest.raises(ValueError, match="must have 13 frequencies, got 12"):
        net(x[..., :12])
    mask = torch.ones(2, 11, dtype=torch.bool)
    for gap in (0, 5, 9):
        wrong = mask.clone()
        wrong[1, gap] = False
        with pytest.raises(ValueError, match="the mask has a gap"):
            net(x, wrong)
    mask[1] = False
    assert net(x, mask)[1].eq(0).all()


@pytest.mark.parametrize("sizes", [(16, 16, 8), (17, 12, 5), (50, 16, 4)], ids=str)
def test_positions_are_counted_before_sound_is_read(sizes):
    n_fft, window, hop = sizes
    spectrogram = Spectrogram(rate=4000, n_fft=n_fft, window=window, hop=hop)
    net = VGG(spectrogram.bins, 1).float()
    for samples in (1, 9, 31, 32, 33, 160, 161, 167, 168):
        features = spectrogram(heard(torch.randn(samples), spectrogram))
        assert net(features[None]).shape[1] == positions(samples, spectrogram)


def test_shapes_of_signatures():
    forward = jaxtyped(typechecker=beartype)(VGG.forward)
    net, x, mask = network(), torch.randn(2, 11, BINS, dtype=torch.float64), torch.ones(2, 11, dtype=torch.bool)
    assert forward(net, x, mask).shape == (2, 2, net.width)
    assert jaxtyped(typechecker=beartype)(shortened)(mask).shape == (2, 2)
    for wrong in ((x[0], None), (x, mask[:1]), (x, mask.long())):
        with pytest.raises(TypeCheckError):
            forward(net, *wrong)
