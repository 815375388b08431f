"""From people to who has the disease: tokens, network, baselines, and what the network looks at."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made import bases, fasta, vcf
from rich.console import Console

from greenformers.genome import baselines, explain
from greenformers.genome.diplotype import Haplotype, diplotype, encoded, text
from greenformers.genome.encode import Encoding
from greenformers.genome.files import Region
from greenformers.genome.finetune import finetune
from greenformers.genome.judge import difference, features, records, summary, table
from greenformers.genome.people import People
from greenformers.genome.risk import Chances, best_threshold, scores
from greenformers.genome.settings import Finetuning, Pretraining, inherited
from greenformers.genome.tokenizer import kmer_tokens
from greenformers.train import run

pytest.importorskip("sentencepiece", reason="the genome extra is not installed")

SITES, PLANTED = (20, 45, 70), 45
QUIET = Console(quiet=True)


def cohort(folder: Path, people: int, effect: float) -> Path:
    """People of 90 positions with three variants, of which one raises the odds for each copy."""
    source = np.random.default_rng(0)
    reference = "".join("ACGT"[base] for base in source.integers(0, 4, 90))
    rows = []
    for number in range(people):
        both, copies = [], 0
        for _ in range(2):
            haplotype = Haplotype(encoded(reference))
            for site in SITES:
                if source.random() < 0.4:
                    haplotype.substitute(site - 1, {"A": "C", "C": "A", "G": "T", "T": "G"}[reference[site - 1]])
                    copies += site == PLANTED
            both.append(haplotype)
        ill = source.random() < 1 / (1 + math.exp(-effect * (copies - 0.8)))
        rows.append(f"p{number}\t{int(ill)}\t{text(diplotype(*both))}")
    head = json.dumps(Encoding(Path("a.fa"), Region("1", 0, 90)).settings())
    path = folder / "people.tsv"
    path.write_text("\n".join([f"#{head}", "person\tphenotype\tsequence", *rows, ""]))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    from greenformers.genome import corpus
    from greenformers.genome.tokenizer import base_tokens, subwords

    root = tmp_path_factory.mktemp("risk")
    path = cohort(root, 600, 1.2)
    sentences = list(corpus.sentences_of(path, 0, count=300))
    subwords(sentences, size=120, characters=base_tokens("iupac"), max_length=64).save_pretrained(root / "tokens")
    return root


def settings(folder: Path, **more) -> Finetuning:
    small = {"hidden": 24, "layers": 1, "heads": 2, "feed_forward": 32, "dropout": 0.0, "k": 8, "length": 64}
    learning = {"batch": 20, "learning_rate": 1e-2, "decay": 0.998, "epochs": 8, "residual": "pre", "pooling": "mean"}
    given = {"sequences": str(folder / "people.tsv"), "tokens": str(folder / "tokens")}
    return Finetuning(**small | learning | given | more)


@pytest.fixture(scope="module")
def first(folder) -> list[Chances]:
    """The first of two draws."""
    return finetune(settings(folder), folder / "runs", 1, QUIET)


@pytest.fixture(scope="module")
def tuned(folder) -> list[Chances]:
    """Both draws; the first is not made again."""
    return finetune(settings(folder), folder / "runs", 2, QUIET)


@pytest.mark.slow
def test_the_network_is_as_good_as_the_right_baseline(folder, tuned):
    people = People.load(folder / "people.tsv")
    entries = records(settings(folder), tuned, features(people, [PLANTED]), people)
    auc = {record.variant: record.value for record in entries if record.metric == "auc"}
    baseline = auc["logistic regression, known variants"]
    assert baseline > 65
    assert auc["linformer"] > baseline - 5
    assert table(entries).row_count == len(auc) == 4
    assert {record.setting["draws"] for record in entries} == {2}


def test_what_is_done_is_not_done_again(folder, tuned):
    before = {path: path.stat().st_mtime for path in (folder / "runs").rglob("*") if path.is_file()}
    again = finetune(settings(folder), folder / "runs", 2, QUIET)
    assert [draw.scores() for draw in again] == [draw.scores() for draw in tuned]
    assert {path: path.stat().st_mtime for path in (folder / "runs").rglob("*") if path.is_file()} == before
    draws = [run.settings_of(folder / "runs" / f"split{number}", Finetuning) for number in range(2)]
    assert [(draw.split, draw.seed) for draw in draws] == [(0, 0), (1, 1)]


@pytest.mark.usefixtures("first")
def test_the_planted_variant_is_ranked_first(folder):
    explanation = explain.explained(folder / "runs" / "split0", people=60, steps=16, progress=lambda _: None)
    assert explanation.ranked[0][0] == PLANTED
    assert sorted(position for position, _ in explanation.ranked) == list(SITES)
    assert explanation.values.shape == (90,)


@pytest.mark.usefixtures("first")
def test_attributions_add_up_to_the_logit(folder):
    task = replace(settings(folder), init=str(folder / "runs" / "split0"), tokens=None).task()
    model = run.trained(folder / "runs" / "split0", Finetuning)
    ids = task.objective.example("test", 0, torch.Generator())["input_ids"]
    special_ids = [task.tokenizer.cls_token_id, task.tokenizer.sep_token_id]
    errors = [
        abs(explain.integrated_gradients(model, ids, special_ids, task.tokenizer.mask_token_id, steps=steps)[1])
        for steps in (2, 64)
    ]
    assert errors[1] < 1e-3
    assert errors[1] <= errors[0]
    tokens, _ = explain.integrated_gradients(model, ids, special_ids, task.tokenizer.mask_token_id)
    assert tokens[0] == tokens[-1] == 0


def test_no_effect_is_not_found(folder, tmp_path):
    path = cohort(tmp_path, 300, 0.0)
    draws = finetune(settings(folder, sequences=str(path), epochs=2), tmp_path / "runs", 2, QUIET)
    mean, deviation = summary([draw.scores()["auc"] for draw in draws])
    assert abs(mean - 50) < 15
    assert 0 < deviation < 15


def test_pretraining_is_where_finetuning_starts(folder, tmp_path):
    given = {name: getattr(settings(folder), name) for name in ("hidden", "layers", "heads", "feed_forward", "k")}
    given |= {"sequences": str(folder / "people.tsv"), "tokens": str(folder / "tokens"), "residual": "pre"}
    before = Pretraining(**given, length=64, batch=8, steps=3, sentences=200)
    run.start(tmp_path / "before", before, QUIET)
    after = settings(folder, init=str(tmp_path / "before"), tokens=None).task()
    stored = run.trained(tmp_path / "before", Pretraining).state_dict()
    shared = [name for name in after.network().state_dict() if name in stored and "head" not in name]
    assert len(shared) > 8
    for name in shared:
        assert torch.equal(after.network().state_dict()[name], stored[name])


def test_sites_that_are_left_out_are_told_of(folder, tmp_path, monkeypatch):
    pytest.importorskip("pysam", reason="the genome extra is not installed")
    sequence = bases(200, 7)
    records = [(11, sequence[10], "<DEL>"), (51, sequence[50], "<DEL>"), (91, sequence[90], "N")]
    sites = vcf(tmp_path / "sites.vcf", records, (), infos=["AF=0.4;END=30", "AF=0.001;END=60", "AF=0.3"])
    reference = fasta(tmp_path / "ref.fa", **{"19": sequence})
    given = Pretraining(reference=str(reference), sites=str(sites), tokens=str(folder / "tokens"), length=16)
    said = r"^left out: 1 site of structural variants, whose bases are not known; the reference stands there$"
    with pytest.warns(UserWarning, match=said):
        given.task()
    monkeypatch.setenv("RANK", "1")
    given.task()


def test_the_kind_of_a_run_is_told_by_its_settings(tmp_path):
    Finetuning(sequences="restarts/people.tsv", layers=3).write(tmp_path / "run.json")
    assert inherited({"init": str(tmp_path)})["layers"] == 3
    Pretraining(layers=5).write(tmp_path / "run.json")
    assert inherited({"init": str(tmp_path)})["layers"] == 5
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is not JSON: "):
        inherited({"init": str(tmp_path)})
    for content, kind in (("null", "NoneType"), ("5", "int")):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(ValueError, match=rf"^run\.json must hold settings by name, got a {kind}$"):
            inherited({"init": str(tmp_path)})


def test_the_slots_of_a_run_are_inherited(tmp_path):
    slots = {
        "feed_forward_kind": "switch", "feed_forward_option": {"experts": 3}, "depth": "universal",
        "depth_option": {"tau": 0.1},
    }  # fmt: skip
    Pretraining(**slots).write(tmp_path / "run.json")
    settings = inherited({"init": str(tmp_path)})
    assert {name: settings[name] for name in slots} == slots
    for name, value in (("feed_forward_kind", "gated"), ("depth", "adaptive")):
        with pytest.raises(
            ValueError, match=f"^{name} must be {slots[name]}, that of the run in init, or left out; got"
        ):
            inherited({"init": str(tmp_path), name: value})


def test_the_optimiser_is_that_of_the_thesis_unless_another_is_asked_for():
    for kind in (Pretraining, Finetuning):
        assert kind().schedule.highest_muon_rate(torch.nn.Linear(2, 2)) is None
        assert kind(optimizer="muon", learning_rate=0.1).schedule.highest_muon_rate(torch.nn.Linear(2, 2)) == 0.5


def test_layers_that_are_dense_first_are_trained_without_early_stopping():
    given = {"variant": "lrt", "low_rank_training": "dense_first"}
    assert Finetuning(**inherited(given)).schedule.patience is None
    assert Finetuning(**inherited({"variant": "lrt"})).schedule.patience == 5
    with pytest.raises(ValueError, match=r"^patience must be left out with low_rank_training dense_first, .* got 3$"):
        _ = Finetuning(**inherited(given | {"patience": 3})).schedule


def test_a_sequence_that_would_be_cut_is_refused(folder):
    with pytest.raises(ValueError, match=r"^length must be at least \d+, the tokens of the longest sequence, got 8$"):
        settings(folder, length=8).task()


def test_the_odds_ratio_is_recovered(folder):
    people = People.load(folder / "people.tsv")
    features, names = baselines.at_positions(people, SITES)
    for odds in baselines.odds_ratios(features, names, people.labels):
        expected = math.exp(1.2) if odds.position == PLANTED else 1.0
        # The feature is the rarer or the other symbol's count; both are the same up to the sign.
        ends = sorted((odds.low, odds.high)) if odds.ratio >= 1 else sorted((1 / odds.low, 1 / odds.high))
        assert ends[0] * 0.85 < expected < ends[1] * 1.15
    with pytest.raises(ValueError, match=r"^positions must have variants, none of 1, 2 has$"):
        baselines.at_positions(people, [1, 2])


def test_known_variants_that_are_none_are_told_of(folder):
    people = People.load(folder / "people.tsv")
    with pytest.warns(UserWarning, match="nobody differs at 2, or they are not in it: the known variants are without"):
        assert [position for position, _ in baselines.at_positions(people, [PLANTED, 2])[1]] == [PLANTED]


def test_other_processes_than_the_first_only_train(folder, tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr("greenformers.genome.finetune.first_process", lambda: False)
    monkeypatch.setattr("greenformers.genome.finetune.wait", lambda: waited.append(True))
    monkeypatch.setattr("greenformers.train.run.ensure", lambda *_: {})
    assert finetune(settings(folder), tmp_path / "runs", 2, QUIET) == []
    assert waited == [True, True]


def test_scores():
    chances, labels = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])
    assert scores(chances, labels) == pytest.approx({"auc": 75.0, "f1": 200 / 3})
    assert scores(chances, labels, best_threshold(chances, labels))["f1"] == pytest.approx(80.0)
    assert summary([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert summary([1.0]) == (1.0, None)


def test_the_interval_of_a_difference():
    """Against the areas of people drawn again one by one; with ties."""

    def area(said, labels):
        """How often an ill person is above a healthy one, a tie half."""
        apart = said[labels == 1][:, None] - said[labels == 0]
        return 100 * ((apart > 0) + (apart == 0) / 2).mean()

    source = np.random.default_rng(0)
    labels = source.integers(0, 2, 300)
    good, poor = (np.round(labels + source.normal(0, spread, 300), 1) for spread in (0.8, 1.6))
    good_chances, poor_chances = (Chances(said, labels, said, labels) for said in (good, poor))
    drawn = [source.integers(0, 300, 300) for _ in range(300)]
    apart = [area(good[some], labels[some]) - area(poor[some], labels[some]) for some in drawn]
    people = range(300)
    alone = difference([good_chances], [poor_chances], [people])
    assert alone == pytest.approx(np.quantile(apart, [0.025, 0.975]), abs=1.0)
    assert difference([good_chances], [good_chances], [people]) == (0.0, 0.0)
    same = difference([good_chances, good_chances], [poor_chances, poor_chances], [people, people])
    assert same == pytest.approx(alone), "the same people twice say no more"
    low, high = difference([good_chances, good_chances], [poor_chances, poor_chances], [people, range(300, 600)])
    assert high - low < 0.8 * (alone[1] - alone[0]), "other people do"


def test_draws_begin_with_the_split_and_the_seed_that_are_given(folder, tmp_path, monkeypatch):
    draws = []
    monkeypatch.setattr("greenformers.genome.finetune.first_process", lambda: False)
    monkeypatch.setattr("greenformers.train.run.ensure", lambda _, settings, __: draws.append(settings))
    finetune(settings(folder, split=3, seed=5), tmp_path / "runs", 2, QUIET)
    assert [(draw.split, draw.seed) for draw in draws] == [(3, 5), (4, 6)]


def test_kmers_are_tokens_too(folder, tmp_path):
    people = People.load(folder / "people.tsv")
    texts = [people.text(number) for number in range(len(people.names))]
    kmer_tokens(texts, pattern="111", size=400, max_length=128).save_pretrained(tmp_path / "tokens")
    given = settings(folder, tokens=str(tmp_path / "tokens"), length=128, steps=3)
    objective = given.task().objective
    unknown = objective.tokenizer.unk_token_id
    row = objective.rows("train")[0]
    assert len(row) == len(people.region) - 2 + 2
    assert unknown not in row
    finetune(given, tmp_path / "runs", 1, QUIET)
    with pytest.raises(ValueError, match=r"split0: its tokens are k-mers, which overlap; explain needs subwords$"):
        explain.explained(tmp_path / "runs" / "split0", people=5, steps=2, progress=lambda _: None)
