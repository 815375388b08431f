"""Augmentation of recordings: speeds, noise and silence, drawn from the generator of the example alone."""

import math

import pytest
import torch
from speech.tones import corpus, finished, settings
from torch.testing import assert_close

from greenformers.speech.augment import LEVELS, SNR, Augmentation, coloured_noise, nothing_said, sped, with_noise

pytest.importorskip("scipy", reason="the speech extra is not installed")

EXACT = {"atol": 0, "rtol": 0}
LONG = 10**9


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def tone(hertz, samples=4_000, rate=4_000):
    return (2 * math.pi * hertz * torch.arange(samples) / rate).sin()


@pytest.mark.parametrize("tenths", [9, 11])
def test_speed_is_that_of_the_definition(tenths):
    """x(a t): a tone of 300 Hz at 1.1 times its speed is one of 330 Hz, and is shorter; filters cost both ends."""
    changed = sped(tone(300), tenths)
    assert len(changed) == math.ceil(10 * 4_000 / tenths)
    expected = tone(30 * tenths, len(changed))
    assert_close(changed[200:-200], expected[200:-200], atol=2e-3, rtol=0)
    assert sped(tone(300), 10).equal(tone(300))


def test_noise_has_its_ratio_and_its_colour():
    sound, noise = tone(300), coloured_noise(4_000, source(1))
    added = with_noise(sound, noise, 20.0) - sound
    assert 10 * torch.log10(sound.square().mean() / added.square().mean()).item() == pytest.approx(20, abs=0.01)
    assert with_noise(torch.zeros(50), noise[:50], 5.0).equal(torch.zeros(50))
    slopes = []
    for seed in range(30):
        noise = coloured_noise(2**14, source(seed)).double()
        assert noise.square().mean().item() == pytest.approx(1, abs=1e-4)
        power = torch.fft.rfft(noise).abs().square()
        # From 2^6 to 2^12: six octaves, of 0, 3 and 6 decibels.
        octaves = torch.stack([power[2**place : 2 ** (place + 1)].mean().log2() for place in (6, 12)])
        slopes.append(round((octaves[0] - octaves[1]).item() / 6))
    assert set(slopes) == {0, 1, 2}


def test_nothing_said_is_silence_or_noise_within_the_levels():
    sounds = [nothing_said(2_000, source(seed)) for seed in range(40)]
    silent = [sound for sound in sounds if not sound.any()]
    assert 3 < len(silent) < 20
    for sound in sounds:
        assert sound.shape == (2_000,)
        assert sound.abs().max() <= 1
        if sound.any():
            assert 10 * sound.square().mean().log10().item() < LEVELS[1] + 0.1
    assert nothing_said(1, source(3)).shape == (1,)


def test_each_is_off_or_on_by_itself():
    sound = tone(300)
    generator = source()
    before = generator.get_state()
    assert Augmentation()(sound, "ab", generator, most=LONG) == (sound, "ab")
    assert generator.get_state().equal(before)  # a run without them is what it was before there were any
    lengths = {len(Augmentation(speed=True)(sound, "ab", source(seed), most=LONG)[0]) for seed in range(20)}
    assert lengths == {3_637, 4_000, 4_445}
    assert {len(Augmentation(speed=True)(sound, "ab", source(seed), most=4_100)[0]) for seed in range(20)} == {
        3_637, 4_000,
    }  # fmt: skip
    ratios = []
    for seed in range(30):
        noisy, text = Augmentation(noise=True)(sound, "ab", source(seed), most=LONG)
        assert text == "ab"
        if not noisy.equal(sound):
            power = (noisy - sound).double().square().mean()
            ratios.append(10 * torch.log10(sound.double().square().mean() / power).item())
    assert 8 < len(ratios) < 22
    assert SNR[0] - 0.01 < min(ratios) < 12
    assert 22 < max(ratios) < SNR[1] + 0.01
    texts = [Augmentation(speechless=0.3)(sound, "ab", source(seed), most=LONG)[1] for seed in range(60)]
    assert 8 < texts.count("") < 30
    assert set(texts) == {"", "ab"}


def test_a_recording_is_changed_by_its_generator_alone():
    every = Augmentation(speed=True, noise=True, speechless=0.2)
    sound = tone(300)
    runs = [[every(sound, "ab", source(seed), most=LONG) for seed in range(8)] for _ in range(2)]
    for (first, text), (second, same) in zip(*runs, strict=True):
        assert_close(first, second, **EXACT)
        assert text == same
    assert len({first.sum().item() for first, _ in runs[0]}) > 4


def test_validation_is_heard_as_it_is(tmp_path):
    folder = corpus(tmp_path / "tones")
    plain = settings(folder).task().objective
    changed = settings(folder, speed=True, noise=True, speechless=0.5).task().objective
    for index in range(5):
        examples = [objective.example("valid", index, source()) for objective in (plain, changed)]
        assert_close(examples[0], examples[1], **EXACT)
    labels = [changed.example("train", 3, source(seed))["labels"].tolist() for seed in range(20)]
    assert labels.count([2]) > 3
    assert labels.count([7, 4, 5, 2]) > 3


def test_a_run_with_all_of_them_learns_from_empty_texts_too(tmp_path):
    """CTC and decoder, with batches in which every text is empty."""
    out = finished(
        tmp_path / "run", corpus(tmp_path / "tones"), speed=True, noise=True, speechless=0.9, augment=True,
        ctc_weight=0.3, batch=2, steps=4, log_every=1,
    )  # fmt: skip
    assert (out / "scores.json").exists()


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range(share):
    with pytest.raises(ValueError, match=rf"^speechless must be in \[0, 1\), got {share}$"):
        Augmentation(speechless=share)
