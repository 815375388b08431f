"""Studies of genomes, as a user meets them: surroundings of a gene, pre-training, length; and what is refused."""

import re
import shutil
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from command_line import run
from genome.training import NETWORK, SECRET, refusal, shown, state, stopped, told, weights
from safetensors.torch import load

from greenformers.genome.people import People
from greenformers.genome.settings import Finetuning
from greenformers.measure import record
from greenformers.measure.record import Record, append, read
from greenformers.train import run as runs

pytest.importorskip("pysam", reason="the genome extra is not installed")
pytest.importorskip("sentencepiece", reason="the genome extra is not installed")

pytestmark = pytest.mark.usefixtures("drafts")

LEARN = f"--epochs 1 --batch 8 --learning-rate 0.01 {NETWORK} --sequences people.tsv "
REGION = f"study region {LEARN} --tokens tokens "
GENE = f"{REGION} --region 19:331-340 --splits 2 "
AROUND = f"{GENE} --margins 10,0 --known 331 "
PRETRAIN = f"pretrain --steps 4 --batch 4 --learning-rate 0.01 {NETWORK} --tokens tokens --reference ref.fa --starts 3 "
# So slow that where a network starts is where it ends.
STEPS = f"study steps {LEARN} --learning-rate 1e-12 --splits 1 "
BARE = "study length --sequences people.tsv --hidden 16 --layers 1 --heads 2 --feed-forward 16 --k 64 --batch 2 "
LENGTH = f"{BARE} --tokens tokens "
KINDS = ("one a nucleotide", "subwords")
MODELS = [f"logistic regression, {features}" for features in ("known variants", "all variants", "6-mers")]


def png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def timeless(path: Path) -> list[Record]:
    """Records without when and by which command they were made."""
    return [replace(entry, context={}) for entry in read(path)]


def reported(monkeypatch, capsys, folder: Path, name: str) -> str:
    """What `greenformers report` makes of a file of records, all of one second."""
    monkeypatch.chdir(folder)
    append(folder / "alike.jsonl", timeless(folder / "records" / f"{name}.jsonl"))
    capsys.readouterr()
    assert run(monkeypatch, "report", "alike.jsonl", "--markdown") == 0
    (folder / "alike.jsonl").unlink()
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def there(tmp_path_factory, people) -> Path:
    """Forty people, a pre-training run with snapshots, one without, and tokens that are single letters."""
    folder = shutil.copytree(people, tmp_path_factory.mktemp("study") / "there")
    shown(folder, f"{PRETRAIN} --snapshots 4,2 --out before")
    shutil.rmtree(shutil.copytree(folder / "before", folder / "plain") / "at")
    shown(folder, "tokenize --sequences people.tsv --pattern 1 --size 20 --max-length 64 --out letters")
    shown(folder, f"finetune {LEARN} --tokens tokens --splits 1 --out fine")
    return folder


@pytest.fixture(scope="module")
def around(there) -> str:
    """What the study of surroundings prints."""
    return shown(there, f"{AROUND} --out around --results records/around.jsonl")


@pytest.fixture(scope="module")
def steps(there) -> str:
    """What the study of pre-training prints."""
    return shown(there, f"{STEPS} --init before --out steps --results records/steps.jsonl --known 331")


@pytest.fixture(scope="module")
def eager(there) -> str:
    """What the study of length prints of eager attention, in training."""
    return shown(there, f"{LENGTH} --variants 'transformer (eager)' --out eager --results records/length.jsonl")


# Surroundings of a gene.


@pytest.mark.slow
@pytest.mark.usefixtures("around")
def test_each_margin_is_a_folder_of_runs_of_its_region(there):
    folder = there / "around"
    assert sorted(path.name for path in folder.iterdir()) == ["plus0", "plus10", "study.png"]
    assert png(folder / "study.png")
    for name, region in (("plus0", "19:331-340"), ("plus10", "19:321-350")):
        assert sorted(path.name for path in (folder / name).iterdir()) == ["split0", "split1"]
        own = [runs.settings_of(folder / name / f"split{draw}", Finetuning) for draw in (0, 1)]
        assert [settings.region for settings in own] == [region] * 2
        assert [settings.split for settings in own] == [0, 1]
        assert all(runs.trained(folder / name / f"split{draw}", Finetuning) for draw in (0, 1))


def test_the_table_has_the_baselines_and_the_margins_in_order(there, around):
    table = around[around.index("Positions more on each side") :]
    head, *rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in table.splitlines()
                   if line[0] in "│┃"]  # fmt: skip
    assert head == ["AUC in % (s.d.)", "0", "10"]
    assert [row[0] for row in rows] == ["linformer", *MODELS]
    records = {(entry.variant, entry.setting["margin"]): entry for entry in read(there / "records" / "around.jsonl")
            if entry.metric == "auc"}  # fmt: skip
    for name, *cells in rows:
        own = [records[name, margin] for margin in (0, 10)]
        assert cells == [f"{entry.value:.1f} ({entry.spread:.1f})" for entry in own]
    # The known variant is one that all who are ill have, and nobody else.
    assert rows[1][1:] == ["100.0 (0.0)"] * 2
    assert around.endswith("picture: around/study.png\n")


@pytest.mark.usefixtures("around")
def test_records_have_the_margin_and_are_for_the_report(monkeypatch, capsys, there):
    records = read(there / "records" / "around.jsonl")
    assert [entry.setting["margin"] for entry in records] == [0] * 8 + [10] * 8
    assert {entry.benchmark for entry in records} == {"genome_study"}
    assert not SECRET.search((there / "records" / "around.jsonl").read_text())
    for entry in records:
        assert entry.setting["region"] == {0: "19:331-340", 10: "19:321-350"}[entry.setting["margin"]]
        assert entry.context["command"].endswith("--results records/around.jsonl")
    out = reported(monkeypatch, capsys, there, "around")
    assert all(word in out for word in ("margin", "19:321-350", *MODELS))


@pytest.mark.usefixtures("around")
def test_a_study_that_was_stopped_goes_on(there):
    words = f"{AROUND} --out halted --results halted.jsonl"
    with stopped("plus10/split0"):
        code, out, err = told(there, words)
    assert code == 128 + signal.SIGTERM
    assert "go on with --resume" in out + err
    assert not (there / "halted" / "plus10" / "split0" / "scores.json").exists()
    assert not (there / "halted" / "study.png").exists()
    assert not (there / "halted.jsonl").exists()
    first = state(there / "halted" / "plus0")
    assert "halted is there already" in refusal(there, words)
    shown(there, f"{words} --resume")
    assert state(there / "halted" / "plus0") == first
    assert timeless(there / "halted.jsonl") == timeless(there / "records" / "around.jsonl")
    for point in ("plus0", "plus10"):
        for draw in ("split0", "split1"):
            assert weights(there / "halted" / point / draw) == weights(there / "around" / point / draw)
    assert png(there / "halted" / "study.png")
    (there / "halted.jsonl").unlink()


@pytest.mark.usefixtures("around")
def test_a_study_that_has_ended_only_reads(monkeypatch, there):
    """And all records of a command are of one time."""
    for point in ("plus0", "plus10"):
        shutil.copytree(there / "around" / point, there / "ended" / point)
    before, seconds = state(there / "ended"), count()
    with monkeypatch.context() as patch:
        patch.setattr(record, "context", lambda *_: {"time": str(next(seconds))})
        shown(there, f"{AROUND} --out ended --resume --results ended.jsonl")
    assert {name: when for name, when in state(there / "ended").items() if name in before} == before
    assert timeless(there / "ended.jsonl") == timeless(there / "records" / "around.jsonl")
    assert len({entry.context["time"] for entry in read(there / "ended.jsonl")}) == 1
    (there / "ended.jsonl").unlink()
    other = refusal(there, f"{AROUND} --out ended --resume --feed-forward 8")
    assert other.startswith("split0 holds a run with other settings than these: ")


@pytest.mark.usefixtures("around")
def test_known_variants_may_be_around_the_gene(there):
    for point in ("plus0", "plus10"):
        shutil.copytree(there / "around" / point, there / "outside" / point)
    places = [place for place, _ in People.load(there / "people.tsv", "19:321-350").counts()[1]]
    outside = next(place for place in places if not 331 <= place <= 340)
    words = f"{GENE} --margins 10,0 --known {outside} --out outside --resume --results outside.jsonl"
    shown(there, words)
    records = [entry for entry in read(there / "outside.jsonl") if entry.variant == MODELS[0]]
    assert {entry.setting["margin"] for entry in records} == {10}
    (there / "outside.jsonl").unlink()


# Pre-training.


@pytest.mark.slow
@pytest.mark.usefixtures("steps")
def test_each_number_of_steps_starts_where_pretraining_was(there):
    folder = there / "steps"
    assert sorted(path.name for path in folder.iterdir()) == ["after0", "after2", "after4", "study.png"]
    assert png(folder / "study.png")
    inits = [runs.settings_of(folder / f"after{step}" / "split0", Finetuning).init for step in (0, 2, 4)]
    assert inits == [None, "before/at/2", "before"]
    stored = {2: load(weights(there / "before" / "at" / "2")), 4: load(weights(there / "before"))}
    finetuned = {step: load(weights(folder / f"after{step}" / "split0")) for step in (0, 2, 4)}
    body = [name for name in stored[4] if name.startswith("encoder.") and name in finetuned[4]]
    assert len(body) > 8

    def far(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
        return max(first[name].sub(second[name]).abs().max().item() for name in body)

    assert far(stored[2], stored[4]) > 1e-3
    for step in (2, 4):
        assert far(finetuned[step], stored[step]) < 1e-6
        assert far(finetuned[0], stored[step]) > 1e-2


@pytest.mark.usefixtures("steps")
def test_the_tokens_are_those_of_pretraining(there):
    own = {(there / "steps" / name / "split0" / "model" / "tokenizer.json").read_text()
           for name in ("after0", "after2", "after4")}  # fmt: skip
    assert own == {(there / "before" / "model" / "tokenizer.json").read_text()}


def test_baselines_stand_where_nothing_was_pretrained(monkeypatch, capsys, there, steps):
    records = read(there / "records" / "steps.jsonl")
    points = [(entry.variant, entry.setting["pretraining_steps"]) for entry in records if entry.metric == "auc"]
    assert points == [("linformer", 0), *[(name, 0) for name in MODELS], ("linformer", 2), ("linformer", 4)]
    table = steps[steps.index("Steps of pre-training") :]
    assert re.search(r"┃ AUC in % \(s\.d\.\) +┃ 0 +┃ 2 +┃ 4 +┃", table)
    assert all(f"│ {name}" in table for name in ("linformer", *MODELS))
    out = reported(monkeypatch, capsys, there, "steps")
    assert not [word for word in ("Pretraining steps 2", *MODELS) if word not in out], out


def test_without_snapshots_there_are_beginning_and_end(there):
    (there / "tables").mkdir()
    (there / "tables" / "thesis_table5_2_alzheimer.csv").write_text("model,auc,f1\nTransformer,0.5,0.25\n")
    out = shown(there, f"{STEPS} --init plain --out bare --references tables")
    assert sorted(path.name for path in (there / "bare").iterdir()) == ["after0", "after4", "study.png"]
    assert out.endswith("Cahyawijaya 2021: Transformer: AUC 50.0 %, F1 25.0 %\n")


# Length.


def rows(table: str) -> dict[tuple[str, str], tuple[int, int, str]]:
    """Of a table, by network and kind of tokens: tokens, nucleotides, how many times as many."""
    matches = re.findall(r"(?m)^│ (.+?) +│ ([\d,]+) +│ (one a nucleotide|subwords) +│ ([\d,]+) +│ ([\d.]*) +│", table)
    return {
        (name, kind): (int(tokens.replace(",", "")), int(nucleotides.replace(",", "")), times)
        for name, tokens, kind, nucleotides, times in matches
    }


@pytest.mark.slow
def test_eager_attention_takes_what_the_budget_is_made_of(there, eager):
    lengths = rows(eager)
    names = ["transformer (eager)", "transformer (eager), recomputed"]
    assert list(lengths) == [(name, kind) for name in names for kind in KINDS]
    assert lengths["transformer (eager)", KINDS[0]] == (1026, 1024, "1.0")
    for name, kind in lengths:
        assert lengths[name, kind][0] >= lengths["transformer (eager)", kind][0]
    assert eager.endswith("picture: eager/training.png\n")
    assert [path.name for path in (there / "eager").iterdir()] == ["training.png"]
    assert png(there / "eager" / "training.png")


@pytest.mark.slow
def test_both_kinds_of_tokens_and_all_networks_are_in_the_table(there):
    out = shown(there, f"{LENGTH} --variants 'transformer (eager),linformer' --mode inference --out networks")
    lengths = rows(out)
    names = ["transformer (eager)", "linformer"]
    assert list(lengths) == [(name, kind) for name in names for kind in KINDS]
    assert lengths[names[0], KINDS[0]] == (1026, 1024, "1.0")
    assert lengths[names[1], KINDS[0]][0] > 2 * 1026
    mean = float(re.search(r"batch 2, (\d\.\d\d) characters a subword", out)[1])
    assert mean > 1.5
    for name in names:
        (tokens, letters, _), (subwords, nucleotides, _) = (lengths[name, kind] for kind in KINDS)
        assert letters == tokens - 2
        # A larger vocabulary leaves hardly less room.
        assert 0.95 * tokens <= subwords <= tokens
        assert nucleotides == pytest.approx(mean * (subwords - 2), rel=0.01)
    for _, nucleotides, times in lengths.values():
        assert float(times) == pytest.approx(nucleotides / 1024, abs=0.051)


def test_records_of_length_are_for_the_report(monkeypatch, capsys, there, eager):
    records = read(there / "records" / "length.jsonl")
    lengths = rows(eager)
    assert len(records) == len(lengths) == 4
    for entry in records:
        name = entry.variant + ", recomputed" * entry.setting["recompute"]
        tokens, nucleotides, times = lengths[name, entry.setting["tokens"]]
        assert (entry.setting["token_count"], round(entry.value), f"{entry.ratio:.1f}") == (tokens, nucleotides, times)
        assert (entry.setting["mode"], entry.setting["k"], entry.setting["batch"]) == ("training", 64, 2)
        assert entry.source == "counted"
    out = reported(monkeypatch, capsys, there, "length")
    assert all(word in out for word in ("transformer (eager)", "subwords", "nucleotides"))


@pytest.mark.slow
def test_more_memory_is_a_longer_sequence_in_both_modes(there):
    words = f"{LENGTH} --variants linformer --out both"
    out = shown(there, f"{words} --mode training,inference --memory 0.0005")
    training, inference = (rows(part) for part in out.split("Inference within"))
    assert {name for name, _ in inference} == {"linformer"}
    assert {name for name, _ in training} == {"linformer", "linformer, recomputed"}
    assert not any(times for *_, times in training.values())
    # Nothing is kept for a backward pass.
    assert all(inference[key][0] > training[key][0] > 0 for key in inference)
    more = rows(shown(there, f"{words} --mode inference --memory 0.001"))
    assert all(more[key][0] > inference[key][0] for key in inference)
    assert sorted(path.name for path in (there / "both").iterdir()) == ["inference.png", "training.png"]
    assert all(png(path) for path in (there / "both").iterdir())


@pytest.mark.slow
def test_the_thesis_is_beside_its_rows(there):
    (there / "theirs").mkdir()
    table = "setting,max_nucleotides\nLinformer + subword tokens,77777\n"
    (there / "theirs" / "thesis_table5_3_max_length.csv").write_text(table)
    out = shown(there, f"{LENGTH} --variants linformer --memory 0.0005 --out theirs/new --references theirs")
    marked = [line for line in out.splitlines() if "77,777" in line]
    assert len(marked) == 1
    assert re.match(r"│ linformer +│ [\d,]+ +│ subwords", marked[0])


# What is refused.

START = {"region": REGION, "gene": GENE, "steps": STEPS, "length": LENGTH, "bare": BARE}
WHOLE = "margins must be whole numbers from 0 on, with commas between; got "
REFUSED = {
    "region --margins 0": "region must be the gene, such as .*, got none",
    "gene --margins 0,21": r"margins must be in 0\.\.20, what people\.tsv has on both sides of 19:331-340; got 0, 21",
    "gene": r"margins must be in 0\.\.20, .*; got 0, 1000, 3000, 5000, 10000, 15000",
    "gene --margins -5": f"{WHOLE}'-5'",
    "gene --margins x": f"{WHOLE}'x'",
    "gene --margins 1.5": f"{WHOLE}'1.5'",
    "gene --margins 0 --splits 0": "splits must be at least 1, got 0",
    "gene --margins 0 --known 305": "positions must have variants, none of 305 has",
    "gene --margins 0,10 --length 9": "length must be at least .*, the tokens of the longest sequence, got 9",
    "gene --margins 0 --sequences gone.tsv": r"gone\.tsv: .*",
    "gene --margins 0 --out tokens": "tokens is there already; --resume goes on with it",
    "gene --margins 0 --results tokens": "tokens: Is a directory",
    "gene --margins 0,20 --region 19:332-333": "region must have at least 6 positions, 19:332-333 has 2",
    "gene --margins 0 --region 20:331-340": r"people\.tsv: has 19:301-360; 20:331-340 is not within",
    "gene --margins 0 --region 19:100-200": r"people\.tsv: has 19:301-360; 19:100-200 is not within",
    "gene --margins 99 --results fresh/new.jsonl": "margins must be in .*; got 99",
    "steps": "init must be a run of `genome pretrain`, got none",
    "steps --init before --references gone": "references must be a folder that is there, got gone",
    "length --references gone": "references must be a folder that is there, got gone",
    "steps --init gone": r"gone/metrics\.jsonl: No such file or directory",
    "steps --init fine/split0": "fine/split0 is a run of another command: it has no setting .*",
    "steps --init before --length 9": "length must be at least .*, got 9",
    "steps --init before --known 305": "positions must have variants, none of 305 has",
    "steps --init before --out tokens": "tokens is there already; --resume goes on with it",
    "steps --init before --hidden 8": "hidden must be 16, that of the run in init, or left out; got 8",
    "steps --init gone --results fresh/new.jsonl": r"gone/metrics\.jsonl: No such file or directory",
    "bare --tokens gone": "tokens must be a folder of `genome tokenize`, got 'gone'",
    "bare --tokens letters": r"tokens must be subwords, more than \d+; letters has \d+",
    "length --sequences gone.tsv": r"gone\.tsv: .*",
    "length --sequences table.tsv": r"table\.tsv: .*",
    "length --mode foo": "mode must be of inference, training; got 'foo'",
    "length --mode ,": "there must be at least one of variants and mode, got 3 and 0",
    "length --variants ,": "there must be at least one of variants and mode, got 0 and 1",
    "length --variants foo": "variant must be one of .*; got 'foo'",
    "length --memory 0.0005 --variants linformer,foo": "variant must be one of .*; got 'foo'",
    "length --memory 0": "memory must be above 0 GiB, and finite; got 0",
    "length --memory nan": "memory must be above 0 GiB, and finite; got nan",
    "length --batch 0": "batch must be at least 1, got 0",
    "length --hidden 0": "hidden(_size)? must be at least 1, got 0",
    "length --layers 0": ".*layers must be at least 1, got 0",
    "length --heads 0": ".*heads.* must be .*, got 0",
    "length --feed-forward 0": "(feed_forward|intermediate_size) must be at least 1, got 0",
    "length --dropout 2": ".*dropout.* must be .*, got 2.0",
    "length --results tokens": "tokens: Is a directory",
    "length --memory 0 --results fresh/new.jsonl": "memory must be above 0 GiB, and finite; got 0",
    "length --variants linformer --memory 0.0005 --out people.tsv": "people.tsv is not a folder",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_wrong_is_named_and_nothing_is_left(there, words):
    start, _, more = words.partition(" ")
    try:
        line = refusal(there, f"{START[start]} --out new {more}")
    finally:
        for name in ("new", "fresh"):
            shutil.rmtree(there / name, ignore_errors=True)
    assert re.fullmatch(REFUSED[words], line)


def test_a_pretraining_run_that_has_not_ended_is_refused(there, tmp_path):
    place = shutil.copytree(there, tmp_path / "place")
    shutil.rmtree(place / "before" / "model")
    assert "init a finished run; got 'before/model'" in refusal(place, f"{STEPS} --init before --out new")


def test_so_little_memory_that_nothing_fits_is_an_answer(there):
    code, out, err = told(there, f"{LENGTH} --variants linformer --memory 1e-9 --out nothing")
    assert (code, {row[:2] for row in rows(out).values()}) == (0, {(0, 0)})
    assert "Warning" not in err
