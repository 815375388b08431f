"""The search for a network to be trained: its space, its strategies on known figures, and one network of all."""

import itertools
import json
import random
from dataclasses import replace
from math import exp
from types import SimpleNamespace

import pytest
import torch
from side_by_side import each

from greenformers.measure.record import Record
from greenformers.model import GreenformerConfig, GreenformerForSeq2SeqLM
from greenformers.report.networks import sentence
from greenformers.search.bound import Bound
from greenformers.search.hurdles import FIRST, Hurdles, NetworkPlan, by_chance, by_evolution
from greenformers.search.network_lab import NetworkLab, quality_of, with_validation
from greenformers.search.network_run import Found, NetworkJob, _prepared, again
from greenformers.search.network_space import PARTS, NetworkSpace, part_of, with_part
from greenformers.search.one_shot import Shares, by_one_shot, likeliest, parts_of, stack_of, supernet
from greenformers.search.trials import Trial, Trials
from greenformers.search.tries import Tries
from greenformers.train.others import Others
from greenformers.train.replaced_token_detection import ReplacedTokenDetection
from greenformers.train.run import Stopped
from greenformers.train.settings import Settings

RUNGS = (10, 30, 90)
ATTENTIONS = ("full", "linformer", "performer", "sliding_window")


@pytest.fixture(scope="module")
def digits():
    return with_validation(Settings().task().objective)


@pytest.fixture(scope="module")
def space(digits):
    return NetworkSpace.of(Settings(layers=2), digits, attentions=ATTENTIONS)


def test_every_network_of_it_can_be_and_none_comes_twice(space, digits):
    draw = random.Random(0)
    rows = {space.drawn(draw) for _ in range(6)}
    rows |= {space.mutated(space.start, draw) for _ in range(6)}
    seen = []
    for genes in rows:
        settings = space.settings(genes)
        model = digits.build(digits.config(**settings.sizes()))
        seen.append(str(settings.sizes() | {"position": model.config.position_of()}))
    assert len(set(seen)) == len(rows)
    assert space.settings(space.start) == space.base
    assert space.words(space.start) == "as it is"


def test_of_a_block_without_feed_forward_there_is_one_network_whatever_its_width(digits):
    space = NetworkSpace.of(Settings(), digits, vary=("attention", "feed_forward"), attentions=("full", "star"))
    (full, star), widths = space.values["attention"], range(len(space.values["feed_forward"]))
    assert (full, star) == ("full", "star")
    assert [space.legal((1, width)) for width in widths] == [width == space.start[1] for width in widths]
    assert all(space.legal((0, width)) for width in widths)


def test_a_child_differs_in_one_part_or_two_and_sizes_go_step_by_step(space):
    draw = random.Random(1)
    genes, steps = space.drawn(draw), []
    for _ in range(20):
        child = space.mutated(genes, draw)
        changed = [at for at in range(len(child)) if child[at] != genes[at]]
        assert 1 <= len(changed) <= 2
        named = [list(space.values)[at] in ("attention", "position") for at in changed]
        steps += [abs(child[at] - genes[at]) for name, at in zip(named, changed, strict=True) if not name]
        genes = child
    assert steps.count(1) > 0.7 * len(steps)


@pytest.mark.parametrize(
    ("variant", "part", "value", "then"),
    [("transformer", "rank", 8, "lrt"), ("lrt", "rank", None, "transformer"), ("lrt", "attention", "performer",
      "lrt+performer"), ("lrt+linformer", "rank", None, "linformer"), ("linformer", "attention", "full", "transformer"),
     ("transformer", "attention", "star", "star")],
)  # fmt: skip
def test_attention_and_rank_are_the_name_of_a_variant(variant, part, value, then):
    settings = with_part(Settings(variant=variant), part, value)
    assert settings.variant == then
    assert part_of(settings, part) == value


def test_a_network_without_low_rank_layers_names_no_rank():
    dense = with_part(Settings(variant="lrt", rank=8), "rank", None)
    assert dense == Settings()
    assert with_part(dense, "rank", 8) == Settings(variant="lrt", rank=8)


def test_what_keeps_nothing_has_no_k():
    settings = with_part(Settings(variant="linformer", k=32), "attention", "full")
    assert settings.k is None
    settings.sizes()  # which refuses a k without effect


def test_a_way_to_train_low_rank_layers_goes_with_them():
    settings = Settings(variant="lrt", low_rank_training="spectral")
    assert with_part(settings, "rank", 8).low_rank_training == "spectral"
    assert with_part(settings, "rank", None).low_rank_training is None


def test_the_first_trainings_have_steps_for_dense_layers_and_low_rank_ones(tmp_path):
    job = NetworkJob(Bound(lose=0.03), vary=("rank",), attentions=("full",))
    for way, rungs in ((None, (1, 5)), ("dense_first", (2, 5))):
        base = Settings(variant="lrt", low_rank_training=way, steps=5, limit=200, layers=1)
        assert _prepared(base, tmp_path, job, lambda *_: None, Others())[0].plan.rungs == rungs


@pytest.mark.parametrize(
    ("given", "said"),
    [({"vary": ["width"]}, "vary must be of attention"), ({"attentions": ["linformr"]}, "attentions must be of"),
     ({"vary": ["attention"], "attentions": ["full"]}, "nothing varies")],
)  # fmt: skip
def test_what_cannot_vary_is_refused(digits, given, said):
    with pytest.raises(ValueError, match=said):
        NetworkSpace.of(Settings(), digits, **given)


KNOWN = NetworkSpace(
    Settings(),
    {part: (part_of(Settings(), part), 1001, 1002, 1003, 1004, 1005) for part in PARTS[1:7]},
    lambda genes: genes != (5,) * 6,
)


class KnownLab:
    """Speed and loss by a formula in which two parts need each other; after few steps the loss is another's in part."""

    refused, least = (1, 0, 0, 0, 0, 0), 1.0

    def __init__(self, least=1.0):
        self.timed, self.least = [], least

    def trial(self, genes, steps, turn, speed=None):
        if genes == self.refused:
            return Trial(genes, steps, refused="refused")
        if speed is None:
            self.timed.append(genes)
        else:
            assert speed == self.figures(genes)[0]
        speed, lost = self.figures(genes, steps)
        if speed < self.least and any(genes):
            return Trial(genes, steps, speed, refused="too slow")
        return Trial(genes, steps, turn(lambda: speed), lost, smaller=1.0)

    def base(self, steps):
        """What is compared with needs no training here."""

    @staticmethod
    def figures(genes, steps=RUNGS[-1]):
        speed = exp(sum(0.12 * gene for gene in genes))
        a, b, *rest = genes
        lost = 0.02 * (a - b) ** 2 + 0.002 * sum(gene**2 for gene in rest)
        wrong = 0.05 * random.Random(str(genes)).random()
        return speed, lost + wrong * (1 - steps / RUNGS[-1])


def hurdles(folder, bound, seed=0, told=lambda _: None, seconds=120.0, others=None):
    clock = itertools.count()
    trials = Trials(folder / "trials.jsonl", 0 if others is None else others.rank)
    tries = Tries(trials, told, clock=lambda: float(next(clock)), others=others)
    search = Hurdles(KNOWN, KnownLab(bound.faster or 1.0), NetworkPlan(bound, RUNGS, seconds, seed), tries)
    search.begin()
    return search


def test_what_diverged_is_no_parent(tmp_path):
    search, genes = hurdles(tmp_path, Bound(faster=2.0)), (1, 1, 1, 1, 1, 1)
    search.tries.trials.add(Trial(genes, RUNGS[0], 3.0, -0.05, 1.0))
    assert search.fitness(genes) > (0, 0.0)
    search.tries.trials.add(Trial(genes, RUNGS[1], refused="its accuracy is no number"))
    assert search.fitness(genes) < min(search.fitness(search.space.start), (0, 0.0))


def test_what_a_hurdle_held_back_is_no_better_than_what_it_let_pass(tmp_path):
    """After more steps the network of the settings is harder to equal."""
    search, passed, held = hurdles(tmp_path, Bound(faster=2.0)), (1, 1, 1, 1, 1, 1), (2, 1, 1, 1, 1, 1)
    for genes, steps, lost in ((passed, RUNGS[0], 0.05), (held, RUNGS[0], 0.1), (passed, RUNGS[1], 0.2)):
        search.tries.trials.add(Trial(genes, steps, 3.0, lost, 1.0))
    assert search.fitness(passed) > search.fitness(held)
    search.tries.trials.add(Trial(held, RUNGS[1], 3.0, 0.15, 1.0))
    assert search.fitness(passed) < search.fitness(held)


def test_one_shot_ends_where_nothing_is_fast_enough(tmp_path, monkeypatch):
    slow = lambda _lab, genes, steps, _turn, _speed=None: Trial(genes, steps, 1.0, refused="too slow")  # noqa: E731
    monkeypatch.setattr(KnownLab, "trial", slow)
    search = hurdles(tmp_path, Bound(faster=9.0), seconds=20.0)
    rows = [(*row, 0, 0, 0) for row in itertools.product(range(4), repeat=3)]
    (tmp_path / "one-shot.json").write_text(json.dumps(rows))
    by_one_shot(search, tmp_path)
    assert 20 < search.tries.trials.seconds < 30


def test_a_search_that_goes_on_does_not_train_the_base_again(tmp_path, monkeypatch):
    trained = []

    def noted(lab, genes, steps, _split="valid"):
        trained.append((genes, steps))
        return lab.network(genes), 50.0

    monkeypatch.setattr(NetworkLab, "speed_up", lambda *_: 2.0)
    monkeypatch.setattr(NetworkLab, "trained", noted)
    base = Settings(limit=120, layers=4, hidden=32, batch=16, steps=9)
    job = NetworkJob(Bound(lose=0.5), vary=("layers",), attentions=("full",))
    for at in (0, 1):
        search, _ = _prepared(base, tmp_path, job, lambda *_: None, Others())
        search.begin()
        others = [(n,) for n in range(len(search.space.values["layers"])) if (n,) != search.space.start]
        assert search.train(others[at], search.plan.rungs[0]).refused is None
    assert trained.count((search.space.start, search.plan.rungs[0])) == 1


def test_evolution_is_better_than_chance_at_as_many_seconds(tmp_path):
    bound, lost = Bound(faster=2.0), {by_evolution: 0.0, by_chance: 0.0}
    for strategy, seed in itertools.product(lost, range(6)):
        search = hurdles(tmp_path / f"{strategy.__name__}{seed}", bound, seed, seconds=240.0)
        strategy(search)
        best = bound.nearest(search.tries.trials.done(RUNGS[-1]))
        assert best.speed >= 2
        lost[strategy] += best.lost / 6
    assert lost[by_evolution] < 0.7 * lost[by_chance]


@pytest.mark.parametrize("strategy", [by_evolution, by_chance])
@pytest.mark.parametrize("bound", [Bound(lose=0.03), Bound(faster=2.0)])  # the network of the settings is too slow
def test_only_what_is_above_the_mean_of_its_equals_is_trained_for_more(bound, strategy, tmp_path):
    search = hurdles(tmp_path, bound)
    strategy(search)
    trials = search.tries.trials
    counts = [len(trials.done(steps)) for steps in RUNGS]
    assert counts[0] > 1.2 * counts[1] > 1.2 * counts[2] > FIRST
    assert len(set(search.lab.timed)) == len(search.lab.timed), "each is timed once, and not at every hurdle"
    assert [trial.genes for trial in trials.seen if trial.refused == "refused"] in ([], [KnownLab.refused])
    for lower, upper in itertools.pairwise(RUNGS):
        went, stayed = [], []
        for trial in trials.done(lower)[1:]:
            (went if trials.of(trial.genes, upper) else stayed).append(search.merit(trial))
        assert sum(went) / len(went) > sum(stayed) / len(stayed)


@pytest.mark.parametrize("strategy", [by_evolution, by_chance])
def test_the_best_are_trained_in_full_where_hardly_any_are_fast_enough_for_hurdles(strategy, tmp_path, monkeypatch):
    two = dict(itertools.islice(KNOWN.values.items(), 2))
    monkeypatch.setitem(hurdles.__globals__, "KNOWN", replace(KNOWN, values=two))
    search = hurdles(tmp_path, Bound(faster=2.9))
    strategy(search)
    assert {trial.genes for trial in search.tries.trials.done(RUNGS[-1])} == {(0, 0), (4, 5), (5, 4), (5, 5)}


@pytest.mark.parametrize("strategy", [by_evolution, by_chance])
def test_one_that_was_stopped_ends_with_the_same_trials(strategy, tmp_path, monkeypatch):
    bound = Bound(faster=1.5)
    whole = hurdles(tmp_path / "whole", bound)
    strategy(whole)
    calls, trial = [], KnownLab.trial

    def counted(lab, genes, steps, *given, **options):
        calls.append((genes, steps))
        return trial(lab, genes, steps, *given, **options)

    monkeypatch.setattr(KnownLab, "trial", counted)
    for stop_at in (5, 20, 1000):
        counter = itertools.count()

        def told(_, counter=counter, stop_at=stop_at):
            if next(counter) == stop_at:
                raise Stopped(15)

        try:
            again = hurdles(tmp_path / "stopped", bound, told=told)
            strategy(again)
        except Stopped:
            continue
    assert list(map(str, again.tries.trials.seen)) == list(map(str, whole.tries.trials.seen))
    assert len(calls) == len(whole.tries.trials.seen), "what is known is not made again"


@pytest.mark.parametrize("strategy", [by_evolution, by_chance])
def test_processes_try_networks_together(strategy, tmp_path):
    def work(others):
        search = hurdles(tmp_path, Bound(faster=1.5), others=others)
        strategy(search)
        return list(map(str, search.tries.trials.seen))

    first, second = each(work, 2)
    assert first == second
    alone = hurdles(tmp_path / "alone", Bound(faster=1.5))
    strategy(alone)
    assert len(first) > 1.5 * len(alone.tries.trials.seen)
    assert each(work, 2) == [first, first], "what is on disk is not made again"


@pytest.mark.parametrize(("metric", "greater", "score", "quality"), [("accuracy", True, 90.0, 90.0),
                         ("perplexity", False, 4.0, 0.25), ("loss", False, 0.0, 1.0)])  # fmt: skip
def test_more_quality_is_better(metric, greater, score, quality):
    class Judge:
        pass

    judge = Judge()
    judge.metric, judge.greater_is_better = metric, greater
    assert quality_of(judge, score) == pytest.approx(quality)


def test_images_are_judged_by_some_of_the_training_images(digits):
    whole = Settings().task().objective
    assert digits.size("train") + digits.size("valid") == whole.size("train")
    rows = torch.cat([digits.data.train.pixels, digits.data.test.pixels])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, whole.data.train.pixels.tolist()))


def test_what_is_slower_than_asked_for_is_not_trained(monkeypatch, tmp_path):
    few = with_validation(Settings(limit=120).task().objective)
    space = NetworkSpace.of(Settings(layers=4, hidden=64, batch=16, epochs=1), few, ("layers",), ("full",))
    lab = NetworkLab(space, few, 0, least=2.0)
    depths = {space.settings((at,)).layers: (at,) for at in range(len(space.values["layers"]))}
    fewest, most = depths[min(depths)], depths[max(depths)]
    trained = []
    monkeypatch.setattr(lab, "speed_up", lambda _, model: 4 / model.config.num_hidden_layers)  # as by a steady clock
    monkeypatch.setattr(lab, "trained", lambda genes, *_: (trained.append(genes), (lab.network(genes), 50.0))[1])
    assert lab.trial(fewest, 3).refused is None
    assert "as fast, of at least 2x: not trained" in lab.trial(most, 3).refused
    assert trained == [space.start, fewest]
    search = Hurdles(
        space, lab, NetworkPlan(Bound(faster=2.0), (3,), 60.0, 0), Tries(Trials(tmp_path / "trials.jsonl"))
    )
    for genes in depths.values():
        search.train(genes, 3)
    # Of those that are too slow the faster are the better parents, and all are worse than what is fast enough.
    assert sorted(depths.values(), key=search.fitness) == [depths[depth] for depth in sorted(depths, reverse=True)]


def test_a_decoder_is_timed_by_what_it_is_to_write():
    network = GreenformerForSeq2SeqLM(
        GreenformerConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0,
                          intermediate_size=16, decoder_start_token_id=1, max_position_embeddings=8, decoder_layers=1)
    )  # fmt: skip
    labels = torch.tensor([[5, 6, 2], [7, 2, -100]])
    translating = SimpleNamespace(
        size=lambda _: 2,
        example=lambda _, at, __: at,
        collate=lambda _: {"input_ids": labels.abs() % 20, "labels": labels},
    )
    lab = NetworkLab(SimpleNamespace(base=SimpleNamespace(batch=2)), translating, 0)
    batch = lab.batch(network)
    assert batch.keys() == {"input_ids", "decoder_input_ids"}
    torch.testing.assert_close(
        network.eval()(**batch).logits, network(input_ids=batch["input_ids"], labels=labels).logits
    )
    assert lab.speed_up(network, network) > 0


def test_one_network_of_all_finds_another_than_that_of_the_settings(tmp_path):
    search = hurdles(tmp_path, Bound(faster=1.01))
    other = (1, 1, 0, 0, 0, 0)
    (tmp_path / "one-shot.json").write_text(json.dumps([KNOWN.start, KnownLab.refused, other]))
    by_one_shot(search, tmp_path)
    assert search.tries.trials.of(other, RUNGS[-1]).refused is None


def test_what_fails_when_it_is_trained_once_more_is_not_the_best(tmp_path, monkeypatch):
    search = hurdles(tmp_path, Bound(lose=0.5))
    fails, stays = (0, 0, 1, 0, 0, 0), (0, 0, 0, 0, 0, 1)
    for genes in (fails, stays):
        for steps in RUNGS:
            search.train(genes, steps)

    class Other(KnownLab):
        refused = fails

        def __init__(self, *_, **__):
            pass

        def trial(self, genes, steps, turn, speed=None):
            return super().trial(genes, steps, turn, self.figures(genes)[0])

    search.lab.objective, search.lab.seed = None, 0
    monkeypatch.setattr("greenformers.search.network_run.NetworkLab", Other)
    assert again(search, tmp_path).genes == stays


def test_what_has_no_score_cannot_be_searched(tmp_path, monkeypatch):
    objective = ReplacedTokenDetection.__new__(ReplacedTokenDetection)
    monkeypatch.setattr(Settings, "task", lambda _: SimpleNamespace(objective=objective))
    with pytest.raises(ValueError, match="a search judges networks by a score"):
        _prepared(Settings(), tmp_path, NetworkJob(Bound(lose=0.03)), lambda *_: None, Others())


def test_what_has_no_loss_any_more_is_refused(monkeypatch):
    few = with_validation(Settings(limit=120).task().objective)
    space = NetworkSpace.of(Settings(layers=4, hidden=64, batch=16, epochs=1), few, ("layers",), ("full",))
    lab = NetworkLab(space, few, 0)
    other = next((at,) for at in range(len(space.values["layers"])) if (at,) != space.start)
    monkeypatch.setattr(lab, "speed_up", lambda *_: 2.0)
    quality = {space.start: 50.0, other: float("nan")}
    monkeypatch.setattr(lab, "trained", lambda genes, *_: (lab.network(genes), quality[genes]))
    assert "is no number after 3 steps" in lab.trial(other, 3).refused


@pytest.mark.parametrize(
    ("bound", "speed", "after", "own", "said"),
    [
        (Bound(faster=2.0), 1.9, 90.0, 2.1, "Timed again it is slower than the 2.00x asked for. 2 layers: 1.90x"),
        (Bound(faster=2.0), 2.05, 80.0, 2.1, "2 layers: 2.05x as fast"),
        (Bound(faster=2.0), 2.05, 90.0, 1.9, "2 layers: 2.05x as fast"),
        (Bound(faster=2.0), 1.9, 90.0, 1.95, "Nothing that was tried keeps to 2.00x; this is the nearest. 2 layers"),
        (Bound(lose=0.01), 2.0, 88.2, 2.0, "On the test split it keeps 98.00%, less than the 99.00% asked for. 2"),
        (Bound(lose=0.01), 2.0, 89.9, 2.0, "2 layers: 2.00x as fast"),
        (Bound(lose=0.001), 2.0, 88.2, 2.0, "Nothing that was tried keeps to 0.10% of loss; this is the nearest. 2"),
    ],
)
def test_the_bound_is_checked_by_what_is_printed(bound, speed, after, own, said):
    objective = SimpleNamespace(metric="accuracy", greater_is_better=True)
    search = SimpleNamespace(
        space=SimpleNamespace(words=lambda _: "2 layers"), lab=SimpleNamespace(objective=objective)
    )
    rows = (("accuracy", "base", 90.0), ("accuracy", "best", after), ("speed", "best", speed))
    records = [Record.of(metric, value, benchmark="search", variant=name) for metric, name, value in rows]
    best = Trial((1,), RUNGS[-1], own, 0.005, smaller=1.5)
    assert sentence(Found(search, best, Settings(), records), bound).startswith(said)


# One network of all choices.


@pytest.fixture(scope="module")
def choices(digits):
    return NetworkSpace.of(Settings(layers=2, batch=16, epochs=1), digits, ("attention", "rank", "layers"),
                           ("full", "linformer"))  # fmt: skip


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("combination", [0, 3, 7])
def test_with_all_the_share_of_one_network_it_is_that_network(choices, digits, depth, combination):
    lab = NetworkLab(choices, digits, 0)
    shares = Shares({part: len(values) for part, values in choices.values.items()})
    model, mixed = supernet(choices, lab, shares)
    genes = (*divmod(combination, len(choices.values["rank"])), depth)
    for part, gene in zip(choices.values, genes, strict=True):
        shares.alphas[part].data.fill_(-1e4)[gene] = 1e4
    alone = lab.network(genes)
    stack = stack_of(alone)
    for at, layer in enumerate(stack.layers):
        layer.load_state_dict(mixed[at].choices[combination].state_dict())
    alone.load_state_dict({name: x for name, x in model.state_dict().items() if ".layers." not in name}, strict=False)
    batch = lab.batch(alone)
    torch.testing.assert_close(model.eval()(**batch).logits, alone.eval()(**batch).logits, rtol=1e-5, atol=1e-5)


def test_likeliest_are_the_first(choices):
    shares = Shares({part: len(values) for part, values in choices.values.items()})
    shares.alphas["rank"].data[2] = 1
    shares.alphas["layers"].data[0] = 2
    assert likeliest(choices, shares)[0] == (0, 2, 0)


def test_where_all_are_as_good_what_is_too_slow_loses_its_share(choices, monkeypatch, tmp_path):
    tries = Tries(Trials(tmp_path / "trials.jsonl"))
    few = with_validation(Settings(limit=120).task().objective)
    space = NetworkSpace.of(replace(choices.base, layers=3, hidden=32), few, ("layers",), ("full",))
    lab = NetworkLab(space, few, 0)
    monkeypatch.setattr(lab, "trained", lambda genes, *_: (lab.network(genes), 50.0))  # judged elsewhere
    monkeypatch.setattr(lab, "speed_up", lambda *_: 3.0)  # of the likeliest one, which a busy machine may find too slow
    search = Hurdles(space, lab, NetworkPlan(Bound(faster=3.0), (30,), 60.0, 0), tries)
    by_one_shot(search, tmp_path)
    (trial,) = tries.trials.seen
    assert space.settings(trial.genes).layers < 3
    candidates = json.loads((tmp_path / "one-shot.json").read_text())
    assert candidates[0] == list(trial.genes)
    assert len(candidates) == 6


@pytest.mark.parametrize(("vary", "said"), [(("hidden", "layers"), "several values of hidden"), (("attention", "rank",
                         "heads"), "got 64|got [0-9]{3}")])  # fmt: skip
def test_what_one_network_cannot_hold_is_refused(digits, vary, said):
    with pytest.raises(ValueError, match=said):
        parts_of(NetworkSpace.of(Settings(), digits, vary))


def test_data_without_a_test_split_are_refused_before_the_search(tmp_path):
    for part in ("train", "dev"):
        (tmp_path / f"{part}.tsv").write_text("sentence\tlabel\n" + "good film\t1\nbad film\t0\n" * 20)
    base = Settings(data="sst2", folder=str(tmp_path), tokenizer="words", steps=5, batch=8, layers=1)
    job = NetworkJob(Bound(lose=0.03), vary=("layers",), attentions=("full",))
    with pytest.raises(ValueError, match="no test split"):
        _prepared(base, tmp_path / "out", job, lambda *_: None, Others())


def test_more_quality_than_before_counts(tmp_path):
    search = hurdles(tmp_path, Bound(faster=2.0))
    little, much = (Trial((0,) * 6, RUNGS[-1], 2.5, lost) for lost in (-0.001, -0.05))
    assert search.merit(much) > search.merit(little) > search.merit(replace(little, lost=0.0))


def test_a_part_without_effect_takes_no_share(digits):
    space = NetworkSpace.of(Settings(variant="linformer"), digits, ("attention", "k"), ("linformer", "full"))
    shares = Shares({part: len(values) for part, values in space.values.items()})
    full, k = space.values["attention"].index("full"), list(space.values).index("k")
    other = next(at for at in range(len(space.values["k"])) if at != space.start[k])
    with torch.no_grad():
        shares.alphas["attention"][full] = 0.4  # likelier than linformer
        shares.alphas["k"][other] = 1.0
    best = next(row for row in likeliest(space, shares) if space.legal(row))
    assert space.settings(best).variant == "transformer"


def test_one_network_of_all_leaves_out_what_cannot_be():
    base = Settings(pool=2, limit=120, layers=1, batch=16)
    small = with_validation(base.task().objective)
    space = NetworkSpace.of(base, small, ("attention", "k"), ("full", "linformer"))
    shares = Shares({part: len(values) for part, values in space.values.items()})
    lab = NetworkLab(space, small, 0)
    model, _ = supernet(space, lab, shares)
    assert not shares.possible.all(), "17 positions have no 32 projected ones"
    parts = [part for part in ("attention", "k") if part in space.values]
    assert shares.combined(parts).sum().item() == pytest.approx(1)
    assert model(**lab.batch(model)).logits.isfinite().all()
