"""Beam search: against all transcripts there are, against greedy generation, alone and in batches."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from greenformers.speech import search as source
from greenformers.speech.config import SpeechConfig
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.search import Hypothesis, Search, beam_search

PAD, SOS, EOS, SPACE, BINS, LONGEST = 0, 1, 2, 3, 9, 19
SIZES = {
    "n_fft": 16,
    "window": 16,
    "hop": 8,
    "channels": 2,
    "hidden_size": 10,
    "num_attention_heads": 2,
    "intermediate_size": 17,
    "max_position_embeddings": LONGEST,
    "num_hidden_layers": 1,
    "decoder_layers": 2,
    "hidden_dropout_prob": 0.0,
    "pad_token_id": PAD,
    "bos_token_id": SOS,
    "decoder_start_token_id": SOS,
    "eos_token_id": EOS,
    "position": "learned",
}
VARIANTS = {
    "dense": {},
    "lrt": {"rank": 5, "input_rank": 3, "decoder_layers": 1, "position": "sinusoidal"},
    "linear decoder": {"decoder_attention": "linear_transformer"},
    "performer decoder": {"decoder_attention": "performer", "cross_attention": "performer"},
    "linformer": {
        "attention": "linformer",
        "attention_options": {"k": 5},
        "cross_attention": "linformer",
        "cross_attention_options": {"k": 3},
    },
    "lite": {"block": "lite", "hidden_size": 12},
    "evolved": {"block": "evolved", "hidden_size": 12},
    "mixed decoder": {"decoder_attention": ["full", "linear_transformer"], "cross_attention": "linear_transformer"},
    "adaptive": {"depth": "adaptive", "depth_options": {"threshold": 0.3}},
    "distances": {"position": "shaw"},
}
SEEDS = (2, 4)
LOOKING_AHEAD = {"cross_attention": "dacs", "cross_attention_options": {"look_ahead": 3}}


def network(seed=0, name="dense", vocabulary=11, spread=1.0, end=0.0, **options):
    """A decoder of strong opinions, which change from place to place; `end` is added to the end's score."""
    torch.manual_seed(seed)
    config = SpeechConfig(vocab_size=vocabulary, **SIZES | VARIANTS.get(name, {}) | options)
    model = GreenformerForSpeechSeq2Seq(config).double().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim > 1:
                large = 4 if "decoder.embedding" in key else 2 if "decoder.layers" in key else 1
                parameter.normal_(std=large * parameter[0].numel() ** -0.5)
            else:
                parameter.add_(0.05 * torch.randn_like(parameter))
        # One part of all vectors is 1, and makes scores as different from place to place as from token to token.
        layer, norm = model.decoder.layers[-1], model.decoder.final_norm
        if not isinstance(norm, torch.nn.LayerNorm):
            norm = getattr(layer, "block", layer).feed_forward_norm
        for last in [norm] if model.decoder.depth is None else model.decoder.depth.norms:
            last.weight[0], last.bias[0] = 0, 1
        model.score.weight[:, 0] = 0
        ids = torch.randint(3, vocabulary, (8, LONGEST))
        logits = model(torch.randn(8, 31, BINS).double(), decoder_input_ids=ids).logits
        model.score.weight.div_(logits.std((0, 1))[:, None])
        model.score.weight[:, 0] = -(logits.mean((0, 1)) / logits.std((0, 1)))
        model.score.weight.mul_(spread)
        model.score.weight[EOS, 0] += end
    return model


def sound(*lengths, seed=0):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    noise = torch.randn(len(lengths), max(lengths), BINS, generator=torch.Generator().manual_seed(seed)).double()
    return noise, mask


def words_of(tokens, space):
    """Runs of characters between spaces."""
    if space is None:
        return len(tokens)
    return len("".join(" " if token == space else "x" for token in tokens).split())


@torch.no_grad()
def log_probabilities(model, features, transcripts, share=0.0):
    """Of transcripts of one length with their ends, with teacher forcing; without padding. Share of CTC as given."""
    ids = torch.tensor([[SOS, *tokens, EOS] for tokens in transcripts])
    memory = model.encoder(features).last_hidden_state.expand(len(ids), -1, -1)
    scores = model(encoder_outputs=(memory,), decoder_input_ids=ids[:, :-1]).logits.log_softmax(2)
    attention = scores.gather(2, ids[:, 1:, None]).sum((1, 2))
    if not share:
        return attention.tolist()
    lengths = [torch.full((len(ids),), count) for count in (memory.shape[1], ids.shape[1] - 2)]
    by_position = model.ctc(memory).log_softmax(2).transpose(0, 1)
    ctc = -F.ctc_loss(by_position, ids[:, 1:-1], *lengths, blank=PAD, reduction="none")
    return ((1 - share) * attention + share * ctc).tolist()


def check(model, features, hypotheses, search, space=None, share=0.0):
    """What holds for every list of hypotheses."""
    assert hypotheses
    assert [hypothesis.score for hypothesis in hypotheses] == sorted(
        (hypothesis.score for hypothesis in hypotheses), reverse=True
    )
    assert len({hypothesis.tokens for hypothesis in hypotheses}) == len(hypotheses)
    for hypothesis in hypotheses:
        assert isinstance(hypothesis, Hypothesis)
        assert not set(hypothesis.tokens) & {PAD, SOS, EOS}
        assert search.shortest <= len(hypothesis.tokens)
        expected = log_probabilities(model, features, [hypothesis.tokens], share)[0]
        assert hypothesis.log_probability == pytest.approx(expected, abs=1e-4)
        words = words_of(hypothesis.tokens, space)
        length = (len(hypothesis.tokens) + 1) ** search.length_power
        score = search.alpha * hypothesis.log_probability / length + search.gamma * words**0.5
        assert hypothesis.score == pytest.approx(score, abs=1e-5)


def same(actual, expected):
    assert [[hypothesis.tokens for hypothesis in row] for row in actual] == [
        [hypothesis.tokens for hypothesis in row] for row in expected
    ]
    for name in ("score", "log_probability"):
        ours, theirs = (
            [getattr(hypothesis, name) for row in side for hypothesis in row] for side in (actual, expected)
        )
        assert ours == pytest.approx(theirs, abs=1e-4, rel=1e-5)


def all_transcripts(model, features, search, letters, space, share=0.0):
    """Every transcript and its score."""
    scores = {}
    for length in range(search.shortest, search.longest + 1):
        some = list(product(letters, repeat=length))
        for tokens, log_p in zip(some, log_probabilities(model, features, some, share), strict=True):
            normalised = log_p / (length + 1) ** search.length_power
            scores[tokens] = search.alpha * normalised + search.gamma * words_of(tokens, space) ** 0.5
    return scores


@pytest.mark.parametrize(
    ("space", "alpha", "gamma"),
    [(None, 1.0, 0.0), (None, 1.0, 0.1), (None, 0.4, 3.0), (SPACE, 1.0, 0.1), (SPACE, 0.4, 4.0)],
)
@pytest.mark.parametrize("seed", range(2))
def test_wide_beams_find_the_best_of_all(seed, space, alpha, gamma):
    """Letters 3, 4 and 5, up to 3 of them: 27 hypotheses at most go on at once."""
    model, (x, mask) = network(seed, vocabulary=6, spread=1.5, end=-0.5 * seed), sound(19, 13, seed=seed)
    search = Search(width=41, alpha=alpha, gamma=gamma, longest=3, shortest=seed % 2)
    beams = beam_search(model, x, mask, space=space, search=search)
    for row, frames in enumerate((19, 13)):
        features = x[row : row + 1, :frames]
        expected = all_transcripts(model, features, search, (3, 4, 5), space)
        check(model, features, beams[row], search, space)
        best = max(expected, key=expected.get)
        assert beams[row][0].tokens == best
        assert beams[row][0].score == pytest.approx(expected[best], abs=1e-4)
        for hypothesis in beams[row]:
            assert hypothesis.score == pytest.approx(expected[hypothesis.tokens], abs=1e-4)


@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_wide_beams_find_the_best_of_all_with_length_normalisation(power, share):
    model, (x, mask) = network(1, vocabulary=6, spread=1.5, ctc_weight=0.3), sound(19, 13, seed=1)
    search = Search(width=41, longest=3, length_power=power, ctc_weight=share)
    beams = beam_search(model, x, mask, search=search)
    for row, frames in enumerate((19, 13)):
        features = x[row : row + 1, :frames]
        expected = all_transcripts(model, features, search, (3, 4, 5), None, share)
        check(model, features, beams[row], search, share=share)
        assert beams[row][0].tokens == max(expected, key=expected.get)


def test_length_normalisation_makes_transcripts_no_shorter():
    lengths = []
    for power in (0.0, 1.0):
        x, mask = sound(61, 43, seed=3)
        batches = [
            beam_search(network(seed, end=0.5), x, mask, search=Search(width=4, length_power=power)) for seed in SEEDS
        ]
        lengths.append(sum(len(row[0].tokens) for rows in batches for row in rows))
    assert lengths[0] < lengths[1]


@pytest.mark.parametrize("threshold", [0.2, 1.5])
def test_the_end_waits_until_it_is_likely_enough(threshold):
    """By teacher forcing: each transcript's end passes, and by greedy search no earlier end does."""
    for seed in SEEDS:
        model, (x, mask) = network(seed, end=-0.3), sound(61, 43, seed=seed)
        beams = beam_search(model, x, mask, search=Search(width=1, gamma=0, end_threshold=threshold))
        for row, frames in enumerate((61, 43)):
            features, tokens = x[row : row + 1, :frames], beams[row][0].tokens
            ids = torch.tensor([[SOS, *tokens]])
            with torch.no_grad():
                scores = model(features, decoder_input_ids=ids).logits[0].log_softmax(1)
            ends, rest = scores[:, EOS].clone(), scores[:, 3:].amax(1)
            passes = ends > threshold * rest
            chosen = ends > rest
            assert not (passes & chosen)[:-1].any()
            assert len(tokens) == min(frames // 4, LONGEST - 1) or bool(passes[-1])


def test_the_models_of_these_tests_write_something():
    """Else much of this file would be about empty transcripts, or about the limit."""
    x, mask = sound(71, 61, 43, 30)
    search = Search(width=3, length_power=0.0)
    batches = [beam_search(network(seed, end=-0.6), x, mask, search=search) for seed in (0, 2, 4)]
    lengths = [[len(row[0].tokens) for row in rows] for rows in batches]
    assert len({length for row in lengths for length in row} - {0, 17, 15, 10, 7}) > 1
    assert len({row[0].tokens for rows in batches for row in rows}) > 6


@pytest.mark.parametrize("name", VARIANTS)
def test_alone_in_a_batch_and_without_a_cache(name):
    lengths = (61, 43, 6, 30)
    for seed, space in zip(SEEDS, (None, SPACE), strict=True):
        model, (x, mask) = network(seed, name, end=-0.6), sound(*lengths, seed=seed)
        search = Search(width=3, gamma=0.5, length_power=0.0 if space is None else 1.0)
        together = beam_search(model, x, mask, space=space, search=search)
        assert len(together) == len(lengths)
        plain = beam_search(model, x, mask, space=space, search=replace(search, cached=False))
        same(together, plain)
        for row, frames in enumerate(lengths):
            features = x[row : row + 1, :frames]
            check(model, features, together[row], search, space)
            assert max(len(hypothesis.tokens) for hypothesis in together[row]) <= min(frames // 4, LONGEST - 1)
            same([together[row]], beam_search(model, features, space=space, search=search))


def test_attention_that_reads_whole_sequences():
    """Its queries depend on those before: in a batch as alone, step by step, and without a cache."""
    lengths = (61, 43, 18, 30)
    for seed in SEEDS[:1]:
        model, (x, mask) = network(seed, end=-0.6, **LOOKING_AHEAD), sound(*lengths, seed=seed)
        for cached in (True, False):
            search = Search(width=3, cached=cached)
            together = beam_search(model, x, mask, search=search)
            same(together, beam_search(model, x, mask.long(), search=search))
            for row in range(4):
                alone = beam_search(model, x[row : row + 1], mask[row : row + 1], search=search)
                same([together[row]], alone)
        greedy = beam_search(model, x, mask, search=Search(width=1, gamma=0, longest=7))
        written = model.generate(x, attention_mask=mask, max_new_tokens=7, do_sample=False, suppress_tokens=[PAD, SOS])
        assert [beam[0].tokens for beam in greedy] == [until_end(row) for row in written]


def until_end(row):
    tokens = row[1:].tolist()
    return tuple(tokens[: tokens.index(EOS)] if EOS in tokens else tokens)


@pytest.mark.parametrize("name", VARIANTS)
def test_one_beam_is_greedy(name):
    model, (x, mask) = network(4, name, end=-0.5), sound(61, 43, 18, seed=4)
    beams = beam_search(model, x, mask, search=Search(width=1, gamma=0, longest=9))
    written = model.generate(x, attention_mask=mask, max_new_tokens=9, do_sample=False, suppress_tokens=[PAD, SOS])
    assert [beam[0].tokens for beam in beams] == [until_end(row) for row in written]
    assert all(len(beam) == 1 for beam in beams)


def test_wider_is_mostly_no_worse_than_greedy():
    better, worse = 0, 0
    for seed in range(6):
        model, x = network(seed, end=-0.6), sound(31, seed=seed)[0]
        narrow, wide = (beam_search(model, x, search=Search(width=w, gamma=0))[0][0].score for w in (1, 8))
        better, worse = better + (wide > narrow + 1e-4), worse + (wide < narrow - 1e-4)
    assert better > 1
    assert worse <= 1


@pytest.mark.parametrize("width", [1, 4])
def test_longest(width):
    """A model that never wants to end."""
    model, (x, mask) = network(spread=2, end=-60), sound(61, 43, 18, 5)

    def written(**options):
        beams = beam_search(model, x, mask, search=Search(width=width, **options))
        assert all(len({len(hypothesis.tokens) for hypothesis in row}) == 1 for row in beams)
        return [len(row[0].tokens) for row in beams]

    assert written() == [15, 10, 4, 1]
    assert written(longest=6) == [6, 6, 6, 6]
    assert written(longest=1) == [1, 1, 1, 1]
    assert written(longest=500) == [LONGEST - 1] * 4
    beams = beam_search(model, x[:1], search=Search(width=width))
    assert len(beams[0][0].tokens) == 15


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("width", [1, 4])
def test_shortest(width, cached):
    """A model that wants to end at once."""
    model, (x, mask) = network(spread=2, end=20), sound(61, 43)
    for shortest in (0, 1, 5):
        search = Search(width=width, shortest=shortest, cached=cached)
        for row, hypotheses in enumerate(beam_search(model, x, mask, search=search)):
            check(model, x[row : row + 1, : (61, 43)[row]], hypotheses, search)
            assert len(hypotheses[0].tokens) == shortest
    search = Search(width=width, shortest=4, longest=4, cached=cached)
    assert {
        len(hypothesis.tokens) for hypotheses in beam_search(model, x, mask, search=search) for hypothesis in hypotheses
    } == {4}


def test_no_more_hypotheses_than_the_width():
    """Also where one has ended before and all others end at the limit."""
    for seed in SEEDS:
        model, (x, mask) = network(seed, end=-0.6), sound(61, 43, 6, 30, seed=seed)
        assert all(
            1 <= len(hypotheses) <= 3 for hypotheses in beam_search(model, x, mask, search=Search(width=3, gamma=0.5))
        )


def test_shortest_beyond_an_utterances_own_length():
    """Of 4 positions and 1, and 5 characters at least: there is a transcript all the same."""
    model, (x, mask) = network(spread=2, end=-3), sound(61, 18, 5)
    beams = beam_search(model, x, mask, search=Search(width=3, shortest=5))
    assert all(beams)
    beams = beam_search(model, x, mask, search=Search(width=3, shortest=LONGEST + 7))
    assert all(beams)


def test_an_utterance_of_no_position():
    model, (x, mask) = network(spread=2, end=-3), sound(30, 3)
    beams = beam_search(model, x, mask, search=Search(width=3))
    assert [hypothesis.tokens for hypothesis in beams[1]] == [()]
    same([beams[0]], beam_search(model, x[:1], search=Search(width=3)))


def test_marks_are_never_written():
    """Also where they are what the model wants most."""
    model, (x, mask) = network(spread=2, end=-3), sound(61, 43)
    with torch.no_grad():
        model.score.weight[[PAD, SOS], 0] += 9
    for width in (1, 5, 40):
        search = Search(width=width, longest=5)
        for row, hypotheses in enumerate(beam_search(model, x, mask, search=search)):
            check(model, x[row : row + 1, : (61, 43)[row]], hypotheses, search)


def test_a_vocabulary_smaller_than_the_beam():
    """One letter: at every step one hypothesis goes on."""
    model, (x, mask) = network(vocabulary=4), sound(31, 17)
    search = Search(width=9, longest=5)
    for row, hypotheses in enumerate(beam_search(model, x, mask, search=search)):
        check(model, x[row : row + 1, : (31, 17)[row]], hypotheses, search)
        assert {hypothesis.tokens for hypothesis in hypotheses} <= {(3,) * length for length in range(6)}


@pytest.mark.parametrize("name", ["dense", "mixed decoder"])
def test_utterances_leave_at_different_times(name, monkeypatch):
    """Rows of the decoder's batch: never more than before, and fewer in the end."""
    model, (x, mask) = network(4, name, end=-0.6), sound(71, 61, 43, 30, 5, seed=4)
    rows, forward = [], model.decoder.forward

    def counted(ids, *given, **options):
        rows.append((len(ids), len(given[1])))
        return forward(ids, *given, **options)

    monkeypatch.setattr(model.decoder, "forward", counted)
    hypotheses = beam_search(model, x, mask, search=Search(width=3, gamma=0.5))
    assert rows[0] == (15, 5)
    assert all(beams == 3 * memories for beams, memories in rows)
    assert rows == sorted(rows, reverse=True)
    assert len(set(rows)) >= 3
    assert len({len(row[0].tokens) for row in hypotheses}) >= 3


def test_the_end_comes_when_nothing_better_can():
    """The best is never missed by stopping: without the bound the best is the same."""
    for seed in SEEDS:
        model, (x, mask) = network(seed, end=-0.6), sound(43, 31, seed=seed)
        search = Search(width=5, gamma=1.0)
        stopped = beam_search(model, x, mask, search=search)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source.Tensor, "amax", lambda t, dim: t.max(dim).values + 1e9)
            on = beam_search(model, x, mask, search=search)
        for short, long in zip(stopped, on, strict=True):
            assert len(long) >= len(short)
            assert short[0].score == pytest.approx(long[0].score, abs=1e-4)


def test_without_options_it_is_the_thesis_search_normalised_by_length():
    thesis = Search(width=8, alpha=1.0, gamma=0.1, ctc_weight=None, longest=None, shortest=0, cached=True)
    assert Search() == replace(thesis, length_power=1.0, end_threshold=None)
    model, x = network(end=-3), sound(31)[0]
    assert beam_search(model, x) == beam_search(model, x, search=Search())


def test_float32_is_enough():
    model, (x, mask) = network(1, spread=2, end=-5), sound(61, 43, 18)
    search = Search(width=4)
    expected = beam_search(model, x, mask, search=search)
    beams = beam_search(model.float(), x.float(), mask, search=search)
    same([row[:1] for row in beams], [row[:1] for row in expected])


def test_gradients_are_not_kept_and_weights_stay():
    model, x = network(end=-3), sound(31)[0]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    beam_search(model, x)
    assert torch.is_grad_enabled()
    assert_close(dict(model.state_dict()), before, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be in 1..1000, got 0"),
        ({"alpha": 0.0}, "alpha must be above 0 and at most 1000, got 0.0"),
        ({"alpha": math.nan}, "alpha must be above 0 and at most 1000, got nan"),
        ({"alpha": math.inf}, "alpha must be above 0 and at most 1000, got inf"),
        ({"gamma": -0.1}, r"gamma must be in 0\.\.1000, got -0.1"),
        ({"gamma": math.nan}, r"gamma must be in 0\.\.1000, got nan"),
        ({"gamma": 1e39}, r"gamma must be in 0\.\.1000, got 1e\+39"),
        ({"length_power": 1.1}, r"length_power must be in 0\.\.1, got 1.1"),
        ({"length_power": float("nan")}, r"length_power must be in 0\.\.1, got nan"),
        ({"end_threshold": 0.0}, "end_threshold must be above 0 and finite, got 0.0"),
        ({"end_threshold": math.inf}, "end_threshold must be above 0 and finite, got inf"),
        ({"ctc_weight": -0.1}, r"ctc_weight must be in 0\.\.1, got -0.1"),
        ({"ctc_weight": 1.1}, r"ctc_weight must be in 0\.\.1, got 1.1"),
        ({"ctc_weight": float("nan")}, r"ctc_weight must be in 0\.\.1, got nan"),
        ({"shortest": -1}, "shortest must be at least 0, got -1"),
        ({"longest": 0}, "longest must be at least 1, got 0"),
        ({"longest": 4, "shortest": 5}, "longest must be at least 5, got 4"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Search(**options)


def test_in_half_precision():
    x, mask = sound(43, 31)
    beams = beam_search(network(2).bfloat16(), x.bfloat16(), mask, search=Search(width=3, longest=20))
    assert all(rows and all(math.isfinite(hypothesis.score) for hypothesis in rows) for rows in beams)


# With a share of CTC.

SHARES = (0.3, 0.8, 1.0)


@pytest.mark.parametrize(("space", "alpha", "gamma"), [(None, 1.0, 0.0), (SPACE, 0.4, 4.0)])
@pytest.mark.parametrize("share", SHARES)
def test_wide_beams_find_the_best_of_all_with_ctc(share, space, alpha, gamma):
    """Of 40 transcripts, some of which have no alignment with the 4 and 3 positions."""
    lengths = (19, 13)
    model, (x, mask) = network(1, vocabulary=6, end=-0.5, ctc_weight=0.3), sound(*lengths, seed=1)
    search = Search(width=41, alpha=alpha, gamma=gamma, longest=3, ctc_weight=share)
    beams = beam_search(model, x, mask, space=space, search=search)
    for row, frames in enumerate(lengths):
        features = x[row : row + 1, :frames]
        expected = all_transcripts(model, features, search, (3, 4, 5), space, share)
        check(model, features, beams[row], search, space, share)
        best = max(expected, key=expected.get)
        assert beams[row][0].tokens == best
        assert beams[row][0].score == pytest.approx(expected[best], abs=1e-4)


@pytest.mark.parametrize("name", ["dense", "lrt", "mixed decoder"])
@pytest.mark.parametrize("share", SHARES)
def test_alone_in_a_batch_and_without_a_cache_with_ctc(name, share):
    lengths = (61, 43, 6, 30)
    model, (x, mask) = network(2, name, end=-0.6, ctc_weight=0.5), sound(*lengths, seed=2)
    search = Search(width=3, gamma=0.5, ctc_weight=share)
    together = beam_search(model, x, mask, space=SPACE, search=search)
    plain = beam_search(model, x, mask, space=SPACE, search=replace(search, cached=False))
    same(together, plain)
    for row, frames in enumerate(lengths):
        features = x[row : row + 1, :frames]
        check(model, features, together[row], search, SPACE, share)
        same([together[row]], beam_search(model, features, space=SPACE, search=search))


def test_the_share_is_that_of_the_training_unless_another_is_given():
    model, (x, mask) = network(2, end=-0.6, ctc_weight=0.4), sound(61, 43)
    by_training = beam_search(model, x, mask, search=Search(width=3))
    assert by_training == beam_search(model, x, mask, search=Search(width=3, ctc_weight=0.4))
    without = beam_search(model, x, mask, search=Search(width=3, ctc_weight=0.0))
    assert [row[0].score for row in without] != [row[0].score for row in by_training]
    for row, frames in enumerate((61, 43)):
        check(model, x[row : row + 1, :frames], without[row], Search(width=3))


def test_ctc_alone_leaves_the_decoder_out(monkeypatch):
    model, (x, mask) = network(2, ctc_weight=0.4), sound(61, 43)
    expected = beam_search(model, x, mask, search=Search(width=3, ctc_weight=1.0))
    monkeypatch.setattr(model, "decoder", None)
    assert beam_search(model, x, mask, search=Search(width=3, ctc_weight=1.0)) == expected


def test_a_network_without_ctc_refuses_a_share():
    model, x = network(), sound(31)[0]
    for share in (0.3, 1.0):
        message = rf"^ctc_weight must be 0 for a network that was trained without CTC, got {share}$"
        with pytest.raises(ValueError, match=message):
            beam_search(model, x, search=Search(ctc_weight=share))
    assert beam_search(model, x, search=Search(ctc_weight=0.0)) == beam_search(model, x)


@pytest.mark.parametrize("share", SHARES)
def test_no_longer_than_ctc_has_room_for(share):
    """Of one letter 4 positions hold two at most, with a blank between; one position holds one."""
    lengths = (19, 5, 3)
    model, (x, mask) = network(vocabulary=4, end=-60, ctc_weight=0.3), sound(*lengths)
    for options in ({"shortest": 3}, {"longest": 9, "shortest": 9}):
        search = Search(width=3, ctc_weight=share, **options)
        beams = beam_search(model, x, mask, search=search)
        assert [max(len(hypothesis.tokens) for hypothesis in row) for row in beams] == [2, 1, 0]
        for row, frames in enumerate(lengths[:2]):
            assert all(math.isfinite(hypothesis.score) for hypothesis in beams[row])
            check(model, x[row : row + 1, :frames], beams[row], replace(search, shortest=0), None, share)


def test_ctc_in_other_types():
    model, (x, mask) = network(1, spread=2, end=-5, ctc_weight=0.3), sound(61, 43, 18)
    search = Search(width=4)
    expected = beam_search(model, x, mask, search=search)
    beams = beam_search(model.float(), x.float(), mask, search=search)
    same([row[:1] for row in beams], [row[:1] for row in expected])
    beams = beam_search(model.bfloat16(), x.bfloat16(), mask, search=search)
    assert all(rows and all(math.isfinite(hypothesis.score) for hypothesis in rows) for rows in beams)
