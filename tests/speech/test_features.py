"""Features against two other libraries and the definition, on synthetic sound and on real speech; masks by counting."""

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import scipy.stats
import torch
from beartype import beartype
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError, jaxtyped
from torch.testing import assert_close
from transformers import audio_utils

from greenformers.speech.features import Spectrogram, batched, normalised, spec_augment

FLAC = Path(__file__).parents[2].parent / "shared/data/librispeech_excerpt/flac"
EXACT = {"atol": 1e-5, "rtol": 0}
OPTIONS = [
    {},
    {"hop": 73},
    {"n_fft": 512, "window": 400, "hop": 160},
    {"n_fft": 31, "window": 31, "hop": 7, "floor": 1e-3},
    {"n_fft": 31, "window": 20, "hop": 20},
    {"n_fft": 5, "window": 3, "hop": 2},
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def sound(samples, seed=0):
    """A tone, noise 40 dB below, and silence: bins of all loudnesses, down to the floor."""
    time = torch.arange(samples) / 16_000
    wave = 0.5 * torch.sin(2 * math.pi * 440 * time) + 0.005 * torch.randn(samples, generator=generator(seed))
    wave[samples // 2 : 3 * samples // 4] = 0
    return wave


def speech():
    if not FLAC.is_dir():
        pytest.skip("shared/data/librispeech_excerpt is not beside the repository on this machine")
    soundfile = pytest.importorskip("soundfile", reason="the speech extra is not installed")
    paths = sorted(FLAC.glob("*.flac"))[::20]
    assert len(paths) == 3
    return [torch.from_numpy(soundfile.read(path, dtype="float32")[0]) for path in paths]


def of_transformers(wave, spectrogram):
    """The identity as mel filters: without filters there is no floor."""
    n_fft, window, hop = spectrogram.n_fft, spectrogram.window, spectrogram.hop
    features = audio_utils.spectrogram(
        wave.numpy(),
        audio_utils.window_function(window, "hann", periodic=True, frame_length=n_fft),
        frame_length=n_fft,
        hop_length=hop,
        power=2.0,
        mel_filters=np.eye(n_fft // 2 + 1),
        mel_floor=spectrogram.floor,
        log_mel="log",
    )
    return torch.from_numpy(features.T)


def of_scipy(wave, spectrogram):
    n_fft = spectrogram.n_fft
    hann = scipy.signal.get_window("hann", spectrogram.window, fftbins=True)
    left = (n_fft - spectrogram.window) // 2
    hann = np.pad(hann, (left, n_fft - spectrogram.window - left))
    padded = np.pad(wave.double().numpy(), n_fft // 2, mode="reflect")
    overlap = n_fft - spectrogram.hop
    spectrum = scipy.signal.stft(padded, window=hann, nperseg=n_fft, noverlap=overlap, boundary=None, padded=False)[2]
    power = np.abs(spectrum.T * hann.sum()) ** 2  # scipy makes a tone as large as its amplitude
    return torch.from_numpy(np.log(np.maximum(spectrogram.floor, power))).float()


def by_definition(wave, spectrogram):
    """ln max(floor, |sum_m hann(m) x(t hop + m) exp(-2 pi i f m / n_fft)|^2), x reflected at both ends."""
    n_fft, window = spectrogram.n_fft, spectrogram.window
    m = torch.arange(n_fft, dtype=torch.float64)
    left = (n_fft - window) // 2
    hann = torch.sin(math.pi * (m - left) / window).square() if window > 1 else torch.ones_like(m)
    hann = torch.where((m >= left) & (m < left + window), hann, 0.0)
    wave = wave.double()
    half = n_fft // 2
    padded = torch.cat([wave[1 : half + 1].flip(0), wave, wave[len(wave) - half - 1 : -1].flip(0)])
    frames = padded.unfold(0, n_fft, spectrogram.hop) * hann
    f = torch.arange(n_fft // 2 + 1, dtype=torch.float64)
    angle = 2 * math.pi / n_fft * f[:, None] * m
    power = (frames @ angle.cos().T).square() + (frames @ angle.sin().T).square()
    return power.clamp(min=spectrogram.floor).log().float()


@pytest.mark.parametrize("oracle", [of_transformers, of_scipy, by_definition])
@pytest.mark.parametrize("options", OPTIONS)
def test_same_as_others(options, oracle):
    spectrogram = Spectrogram(**options)
    wave = sound(4_001)
    features = spectrogram(wave)
    assert features.shape == (spectrogram.frames(4_001), spectrogram.bins)
    assert features.dtype == torch.float32
    assert features.min().item() == pytest.approx(math.log(spectrogram.floor), abs=1e-5)
    assert_close(features, oracle(wave, spectrogram), **EXACT)


@pytest.mark.parametrize("oracle", [of_transformers, by_definition])
def test_same_as_others_on_speech(oracle):
    for wave in speech():
        assert_close(Spectrogram()(wave), oracle(wave, Spectrogram()), **EXACT)


def test_quiet_bins_beside_a_loud_one():
    """A tone in the middle of a bin: float32 would leave its rounding error, some -25, in bins that have less."""
    time = torch.arange(3_200, dtype=torch.float64) / 16_000
    wave = torch.sin(2 * math.pi * 1_000 * time)
    spectrogram = Spectrogram(floor=1e-20)
    features = spectrogram(wave)[2:-2]
    assert features[:, 40].max() < -40
    assert_close(features[:, 20], torch.full((len(features),), math.log(80**2)), **EXACT)


@pytest.mark.parametrize("hertz", [100, 450, 1_000, 3_650, 7_900])
def test_tone_in_its_bin(hertz):
    time = torch.arange(8_000) / 16_000
    features = Spectrogram()(torch.sin(2 * math.pi * hertz * time + 0.7))
    inner = features[1:-1]  # what is reflected is another tone
    assert inner.argmax(1).eq(hertz // 50).all()
    power = inner.double().exp()
    near = power[:, hertz // 50 - 1 : hertz // 50 + 2].sum(1)
    assert (near / power.sum(1)).min() > 0.9999


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.data())
def test_sizes(n_fft, data):
    window = data.draw(st.integers(1, n_fft))
    hop = data.draw(st.integers(1, window))
    samples = data.draw(st.integers(n_fft // 2 + 1, 200))
    spectrogram = Spectrogram(n_fft=n_fft, window=window, hop=hop)
    features = spectrogram(sound(samples))
    assert features.shape == (spectrogram.frames(samples), n_fft // 2 + 1)
    assert features.isfinite().all()


def test_frame_stands_at_its_hop():
    wave = torch.zeros(3_200)
    wave[1_600] = 1
    power = Spectrogram()(wave).exp().sum(1)
    assert power.argmax() == 10
    assert_close(power[10], torch.tensor(161.0))  # hann(middle) = 1, and a click is as loud in all bins


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0}, "rate must be at least 1 Hz, got 0"),
        ({"n_fft": 1}, "n_fft must be at least 2, got 1"),
        ({"window": 0}, r"window must be in 1\.\.320 \(n_fft\), got 0"),
        ({"window": 321}, r"window must be in 1\.\.320 \(n_fft\), got 321"),
        ({"hop": 0}, r"hop must be in 1\.\.320 \(window\), got 0"),
        ({"hop": 201, "window": 200}, r"hop must be in 1\.\.200 \(window\), got 201"),
        ({"floor": 0.0}, "floor must be above 0 and finite, got 0.0"),
        ({"floor": math.nan}, "floor must be above 0 and finite, got nan"),
        ({"floor": math.inf}, "floor must be above 0 and finite, got inf"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Spectrogram(**options)


def test_wrong_waveforms():
    spectrogram = Spectrogram()
    assert spectrogram(sound(161)).shape == (2, 161)
    with pytest.raises(ValueError, match=r"at least 161 samples \(n_fft // 2 \+ 1\), got 160"):
        spectrogram(sound(160))
    with pytest.raises(ValueError, match="at least 161"):
        spectrogram.frames(0)
    with pytest.raises(ValueError, match=r"got \(2, 400\) of torch.float32"):
        spectrogram(torch.zeros(2, 400))
    with pytest.raises(ValueError, match=r"got \(400,\) of torch.int16"):
        spectrogram(torch.zeros(400, dtype=torch.int16))


def test_normalised():
    features = Spectrogram()(sound(5_003))
    original = features.clone()
    result = normalised(features)
    assert result.dtype == torch.float32
    assert_close(
        result, torch.from_numpy(scipy.stats.zscore(features.double().numpy(), axis=None)).float(), atol=1e-5, rtol=1e-5
    )
    assert_close(normalised(3 * features - 7), result, atol=1e-5, rtol=1e-5)
    assert_close(features, original, rtol=0, atol=0)


@pytest.mark.parametrize("wave", [torch.zeros(7_919), torch.full((7_919,), 1e-9)])
def test_silence_becomes_zero(wave):
    features = Spectrogram()(wave)
    # Of 8,050 equal numbers neither the mean nor the deviation is exact.
    assert normalised(features).eq(0).all()


def test_normalised_has_gradients():
    features = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(normalised, features)
    silence = torch.ones(5, 7, requires_grad=True)
    normalised(silence).sum().backward()
    assert silence.grad.isfinite().all()


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**32), st.integers(0, 50), st.floats(0, 1))
def test_one_mask_of_each(frames, bins, seed, width, share):
    features = torch.ones(frames, bins)
    masked = spec_augment(
        features,
        generator(seed),
        frequency_masks=1,
        frequency_width=width,
        time_masks=1,
        time_width=width,
        time_share=share,
    )
    assert features.eq(1).all()
    rows, columns = masked.eq(0).all(1), masked.eq(0).all(0)
    assert (masked.eq(0) == (rows[:, None] | columns)).all()
    # A mask as wide as all of one side is one of all of the other too.
    if not columns.all():
        assert rows.sum() <= min(width, share * frames)
        assert rows.int().diff(prepend=torch.zeros(1, dtype=torch.int)).eq(1).sum() <= 1
    if not rows.all():
        assert columns.sum() <= width
        assert columns.int().diff(prepend=torch.zeros(1, dtype=torch.int)).eq(1).sum() <= 1


def test_masks_are_uniform():
    """Widths 0..3 of 7 bins equally often, at every place that they fit; chi-squared, one draw in 10,000 beyond."""
    source, draws, counts = generator(), 4_000, {}
    for _ in range(draws):
        masked = spec_augment(torch.ones(1, 7), source, frequency_masks=1, frequency_width=3, time_masks=0)
        zeros = masked[0].eq(0).nonzero().flatten().tolist()
        key = (len(zeros), zeros[0] if zeros else 0)
        counts[key] = counts.get(key, 0) + 1
    expected = {(0, 0): draws / 4}
    expected |= {(width, place): draws / 4 / (8 - width) for width in (1, 2, 3) for place in range(8 - width)}
    assert counts.keys() == expected.keys()
    statistic = sum((counts[key] - expected[key]) ** 2 / expected[key] for key in counts)
    assert statistic < scipy.stats.chi2.ppf(1 - 1e-4, len(expected) - 1)


def test_time_masks_reach_their_widths():
    """Of 100 frames 20 by the share, and 13 where that is the width."""
    widest = {}
    for width in (13, 40):
        source = generator()
        widest[width] = max(
            int(spec_augment(torch.ones(100, 3), source, frequency_masks=0, time_masks=1, time_width=width).eq(0).sum())
            for _ in range(400)
        )
    assert widest == {13: 13 * 3, 40: 20 * 3}


def test_masks_by_seed():
    features = torch.randn(211, 161, generator=generator())
    once, again, other = (spec_augment(features, generator(seed)) for seed in (5, 5, 6))
    assert_close(once, again, rtol=0, atol=0)
    assert once.ne(other).any()
    source = generator(5)
    assert_close(spec_augment(features, source), once, rtol=0, atol=0)
    assert spec_augment(features, source).ne(once).any()
    unmasked = once.ne(0)
    assert_close(once[unmasked], features[unmasked], rtol=0, atol=0)
    assert_close(spec_augment(features, source, frequency_masks=0, time_masks=0), features, rtol=0, atol=0)
    state = source.get_state()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    spec_augment(features, source)
    assert source.get_state().ne(state).any()
    assert torch.get_rng_state().eq(before).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frequency_masks": -1}, "frequency_masks must be at least 0, got -1"),
        ({"frequency_width": -2}, "frequency_width must be at least 0, got -2"),
        ({"time_masks": -3}, "time_masks must be at least 0, got -3"),
        ({"time_width": -4}, "time_width must be at least 0, got -4"),
        ({"time_share": 1.1}, r"time_share must be in 0\.\.1, got 1.1"),
        ({"time_share": math.nan}, r"time_share must be in 0\.\.1, got nan"),
    ],
)
def test_wrong_masks(options, message):
    with pytest.raises(ValueError, match=message):
        spec_augment(torch.ones(7, 5), generator(), **options)


def test_batched():
    lengths, F = [7, 1, 5], 3
    features = [torch.randn(length, F) for length in lengths]
    padded, mask = batched(features)
    assert padded.shape == (3, 7, F)
    assert mask.dtype == torch.bool
    assert mask.sum(1).tolist() == lengths
    for row, keep, utterance in zip(padded, mask, features, strict=True):
        assert keep[: len(utterance)].all()
        assert_close(row[keep], utterance, rtol=0, atol=0)
        assert row[~keep].eq(0).all()
    for wrong in ([], [torch.ones(3)], [torch.ones(3, 5), torch.ones(3, 7)], [torch.ones(3, 5), torch.ones(5)]):
        with pytest.raises(ValueError, match=r"at least 1 utterance, got 0|\(T, F\) with the same F, got \[\("):
            batched(wrong)


def test_shapes_of_signatures():
    """The jaxtyping shapes, run: right ones pass, wrong ones are found."""

    def checked(function):
        return jaxtyped(typechecker=beartype)(function)

    features = checked(Spectrogram.__call__)(Spectrogram(), sound(480))
    assert checked(normalised)(features).shape == (4, 161)
    assert checked(spec_augment)(features, generator()).shape == (4, 161)
    assert checked(batched)([features, features[:3]])[0].shape == (2, 4, 161)
    for function, wrong in (
        (Spectrogram.__call__, (Spectrogram(), torch.ones(2, 480))),
        (normalised, (features[0],)),
        (spec_augment, (features.long(), generator())),
        (batched, ([features[0]],)),
    ):
        with pytest.raises(TypeCheckError):
            checked(function)(*wrong)
