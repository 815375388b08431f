"""The commands that train on genomes, as a user meets them: learnt by heart, fine-tuned, explained, and refused."""

import json
import re
import shutil
import signal
from itertools import chain, combinations
from pathlib import Path

import pytest
from command_line import run
from genome.made import bases, vcf
from genome.training import (
    NETWORK,
    PEOPLE,
    PLANTED,
    SEQUENCE,
    SITES,
    refusal,
    shown,
    state,
    stopped,
    told,
    weights,
)
from safetensors.torch import load
from transformers import AutoTokenizer

from greenformers import GreenformerForMaskedLM
from greenformers.genome import encoded_file
from greenformers.genome.settings import Finetuning, Pretraining
from greenformers.measure.record import read
from greenformers.train import run as runs

pytest.importorskip("pysam", reason="the genome extra is not installed")
pytest.importorskip("sentencepiece", reason="the genome extra is not installed")

pytestmark = pytest.mark.usefixtures("drafts")

PRETRAIN = f"pretrain --steps 4 --batch 4 --learning-rate 0.01 {NETWORK}"
GENOME = f"{PRETRAIN} --tokens tokens --reference ref.fa --starts 3 "
FINETUNE = f"finetune --epochs 2 --batch 8 --learning-rate 0.01 {NETWORK}"
RISK = f"{FINETUNE} --tokens tokens --sequences people.tsv --splits 2 "


def fragments(folder: Path, name: str, split: str, kind: type = Pretraining) -> list[str]:
    """The text that the network of a run meets, as far as it hangs together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        objective = runs.settings_of(Path(name), kind).task().objective
        rows = objective.blocks(split) if kind is Pretraining else objective.rows(split)
    return [part for row in rows for part in re.split(r"\[\w+\]", objective.tokenizer.decode(row)) if part]


@pytest.fixture(scope="module")
def there(tmp_path_factory, people) -> Path:
    return shutil.copytree(people, tmp_path_factory.mktemp("training") / "there")


@pytest.fixture(scope="module")
def before(there) -> Path:
    shown(there, f"{GENOME} --out before")
    return there / "before"


@pytest.fixture(scope="module")
def risk(there) -> tuple[Path, str]:
    """Runs of two draws, and what was printed."""
    return there / "risk", shown(there, f"{RISK} --out risk --known {PLANTED} --results records/risk.jsonl")


@pytest.fixture
def place(there, risk, tmp_path) -> Path:  # noqa: ARG001
    """A copy that a test may change."""
    return shutil.copytree(there, tmp_path / "place")


def test_pretrain_leaves_a_model_that_loads(before):
    names = ["curves.png", "metrics.jsonl", "model", "run.json", "scores.json"]
    assert sorted(path.name for path in before.iterdir()) == names
    model = GreenformerForMaskedLM.from_pretrained(before / "model")
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (16, 1)
    tokenizer = AutoTokenizer.from_pretrained(before / "model")
    assert len(tokenizer) == model.config.vocab_size == 120
    assert list(json.loads((before / "scores.json").read_text())) == ["loss", "perplexity"]
    assert model(**tokenizer(SEQUENCE[:40], return_tensors="pt", return_token_type_ids=False)).logits.isfinite().all()


@pytest.mark.usefixtures("before")
def test_text_of_a_genome_is_in_one_split(there):
    for split, low, high in (("train", 0, 36_000), ("valid", 36_000, 38_000), ("test", 38_000, 40_000)):
        pieces = fragments(there, "before", split)
        long = [piece for piece in pieces if len(piece) >= 15]  # shorter ones may be anywhere by chance
        assert long
        assert all(piece in SEQUENCE[low:high] for piece in pieces)
        assert not any(piece in SEQUENCE[:low] + "-" + SEQUENCE[high:] for piece in long)


@pytest.mark.usefixtures("before")
def test_common_sites_are_in_what_is_learnt(monkeypatch, there):
    monkeypatch.chdir(there)
    shown(there, f"{GENOME} --sites sites.vcf --out common")
    for name, places in (("before", []), ("common", [10, 150])):  # the second of three sites is rare
        whole = runs.settings_of(there / name, Pretraining).task().objective.data.sequences["train"][0]
        assert [at for at, symbol in enumerate(whole, 1) if symbol != SEQUENCE[at - 1]] == places
    assert not set(whole[9] + whole[149]) & set("ACGT")


@pytest.mark.slow
def test_haplotypes_of_other_lengths_share_no_text(place):
    text = vcf(place / "long.vcf", [(100, SEQUENCE[99:3100], SEQUENCE[99])], ()).read_text()
    (place / "long.vcf").write_text(text.removesuffix(".\n") + "AF=0.4\n")
    shown(place, f"{GENOME} --mode haplotype --sites long.vcf --starts 9 --seed 27 --out new")
    whole = [fragments(place, "new", split) for split in ("train", "valid")]
    train, valid = ({part[at : at + 15] for part in parts for at in range(len(part) - 14)} for parts in whole)
    assert not train & valid


def test_people_are_in_one_split_of_text(there):
    """Of every 20 people the last but one is for validation, the last for the test."""
    about, _ = (there / "people.tsv").read_text().split("\n", 1)
    own = [bases(900, 50 + number) for number in range(20)]
    rows = [f"{name}\t{sequence}\n" for name, sequence in zip(PEOPLE, own, strict=False)]
    (there / "apart.tsv").write_text(f"{about}\nperson\tsequence\n" + "".join(rows))
    shown(there, f"{PRETRAIN} --tokens tokens --sequences apart.tsv --length 8 --out apart")
    for split, whose in (("train", range(18)), ("valid", [18]), ("test", [19])):
        numbers = {number for part in fragments(there, "apart", split) if len(part) > 12
                 for number, sequence in enumerate(own) if part in sequence}  # fmt: skip
        assert numbers
        assert numbers <= set(whose)


@pytest.mark.slow
def test_pretraining_that_was_stopped_ends_the_same(there, before):
    with stopped("stopped"):
        code, out, _ = told(there, f"{GENOME} --out stopped")
    assert code == 128 + signal.SIGTERM
    assert "stopped after step 2 of 4; go on with --resume" in out
    assert not (there / "stopped" / "scores.json").exists()
    assert refusal(there, f"{GENOME} --out stopped").startswith("out must be a new or empty folder, got 'stopped'")
    assert refusal(there, f"{GENOME} --out stopped --resume --k 5") == "k of this run is 4 and cannot be changed; got 5"
    shown(there, "pretrain --out stopped --resume")
    assert weights(there / "stopped") == weights(before)
    shown(there, f"{GENOME} --out other --seed 1")
    assert weights(there / "other") != weights(before)


def test_finetune_leaves_a_run_a_draw(risk):
    folder, out = risk
    assert sorted(path.name for path in folder.iterdir()) == ["split0", "split1"]
    rows = re.findall(r"(?m)^│ (.+?) +│ (\d+\.\d\d) \(s\.d\. \d+\.\d\d\) +│ (\d+\.\d\d) \(s", out)
    models = ("known variants", "all variants", "6-mers")
    assert [name for name, *_ in rows] == ["linformer", *(f"logistic regression, {features}" for features in models)]
    # Who is ill has the planted variant, and nobody else has it.
    assert rows[1][1:] == ("100.00", "100.00")
    assert "region 19:301-360, people 40, draws 2" in out


@pytest.mark.usefixtures("risk")
def test_a_person_is_in_one_split(there):
    everybody = [row["sequence"] for row in encoded_file.load(there / "people.tsv")]
    draws = []
    for number in range(2):
        parts = [fragments(there, f"risk/split{number}", name, Finetuning) for name in ("train", "valid", "test")]
        assert [len(part) for part in parts] == [28, 4, 8]
        assert all(not set(first) & set(second) for first, second in combinations(parts, 2))
        assert sorted(chain(*parts)) == sorted(everybody)
        draws.append(set(parts[2]))
    assert draws[0] != draws[1]


def test_records_are_for_the_report(monkeypatch, capsys, there, risk):
    records = read(there / "records" / "risk.jsonl")
    assert [(record.benchmark, record.metric) for record in records] == [
        ("genome_risk", "auc"),
        ("genome_risk", "f1"),
    ] * 4
    for record in records:
        assert f"{record.value:.2f} (s.d. {record.spread:.2f})" in risk[1]
        assert record.context["command"].endswith("--results records/risk.jsonl")
    monkeypatch.chdir(there)
    assert run(monkeypatch, "report", "records/risk.jsonl", "--markdown") == 0
    assert "logistic regression, known variants" in capsys.readouterr().out


def test_finetuning_starts_from_what_was_pretrained(there, before):
    words = f"{FINETUNE} --sequences people.tsv --splits 1 --epochs 1 --learning-rate 1e-12"
    # The sizes are those of the run; they need not be given.
    shown(there, f"{words.replace(NETWORK, '')} --init before --out after")
    own = runs.settings_of(there / "after" / "split0", Finetuning)
    assert (own.hidden, own.layers, own.heads, own.feed_forward, own.k, own.length) == (16, 1, 2, 16, 4, 64)
    shown(there, f"{words} --tokens tokens --out scratch")
    after, scratch, stored = (
        load(weights(folder)) for folder in (there / "after/split0", there / "scratch/split0", before)
    )
    body = [name for name in stored if name.startswith("encoder.") and name in after]
    assert len(body) > 8
    assert any(scratch[name].ne(stored[name]).any() for name in body)
    for name in body:
        assert after[name].sub(stored[name]).abs().max() < 1e-6
    assert len({(folder / "model" / "tokenizer.json").read_text() for folder in (there / "after/split0", before)}) == 1


def test_finetuning_that_was_stopped_goes_on(there, risk):
    with stopped("split1"):
        code, *_ = told(there, f"{RISK} --out halted")
    assert code != 0
    assert not (there / "halted" / "split1" / "scores.json").exists()
    first = state(there / "halted" / "split0")
    assert refusal(there, f"{RISK} --out halted") == "halted is there already; --resume goes on with it"
    assert "split0 holds a run with other settings" in refusal(there, f"{RISK} --out halted --resume --feed-forward 8")
    table = shown(there, f"{RISK} --out halted --resume --known {PLANTED}")
    assert state(there / "halted" / "split0") == first
    for number in range(2):
        assert weights(there / "halted" / f"split{number}") == weights(risk[0] / f"split{number}")
    assert table.splitlines()[-6:] == risk[1].splitlines()[-6:]
    both = state(there / "halted")
    assert "draws 3" in shown(there, f"{RISK} --out halted --resume --splits 3")
    assert {name: when for name, when in state(there / "halted").items() if name in both} == both


def test_a_signal_tells_how_to_go_on(place):
    with stopped("split0"):
        code, out, err = told(place, f"{RISK} --out new")
    assert code == 128 + signal.SIGTERM
    assert "go on with --resume" in out + err


@pytest.mark.usefixtures("risk")
def test_explain_a_run(there):
    out = shown(there, "explain risk/split0 --names names.vcf --out shown --steps 4 --people 5 --shown 3")
    assert (there / "shown" / "track.png").read_bytes()[:4] == b"\x89PNG"
    head, *rows = [line.split("\t") for line in (there / "shown" / "variants.tsv").read_text().splitlines()]
    assert head == ["position", "name", "importance"]
    assert sorted(int(position) for position, *_ in rows) == list(SITES)
    assert {position: name for position, name, _ in rows if name} == {str(PLANTED): "rs77"}
    scores = [float(score) for *_, score in rows]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0
    table = re.findall(r"(?m)^│ (\d+) +│ (\w*) +│ (\d\.\d+) +│$", out)
    assert table == [(position, name, f"{float(score):.4f}") for position, name, score in rows[:3]]
    assert "5 test people, 19:301-360" in out
    before = state(there / "risk")
    shown(there, "explain risk/split0 --out bare --steps 2")
    assert "rs77" not in (there / "bare" / "variants.tsv").read_text()
    assert state(there / "risk") == before


def test_a_run_is_the_beginning_of_its_own_split(place):
    words = "finetune --epochs 1 --batch 8 --sequences people.tsv --init risk/split1 --splits 1 --split 1 --out again"
    assert "draws 1" in shown(place, words)


@pytest.mark.parametrize("words", ["explain risk/split0 --out tokens", f"{RISK} --out risk --resume --splits 3"])
def test_other_people_than_were_trained_on(place, words):
    lines = (place / "people.tsv").read_text().splitlines(keepends=True)
    (place / "people.tsv").write_text("".join(lines[:-4]))
    assert "people.tsv" in refusal(place, words)


@pytest.fixture(scope="module")
def faulty(there, before, risk, tmp_path_factory) -> Path:  # noqa: ARG001
    """Beside what is fit for it: files that are not, and runs that are not finished or whose people are gone."""
    folder = shutil.copytree(there, tmp_path_factory.mktemp("faulty") / "place")
    text = (folder / "people.tsv").read_text()
    head, columns, *lines = text.splitlines(keepends=True)
    for name, content in {
        "three.tsv": text.replace("\till\t", "\tworse\t", 1),
        "bare.tsv": head + columns.replace("phenotype\t", "") + re.sub("\t(ill|healthy)", "", "".join(lines)),
        "sides.tsv": text.replace('"mode": "diplotype"', '"mode": "haplotype"'),
        "twice.tsv": text + lines[0],
        "short.tsv": text[:-20] + "\n",
        "mark.tsv": head + columns + "".join(line[:-20] + "!" + line[-19:] for line in lines),
        "cut.tsv": text[:-20],
        "wrong.toml": "hiden = 3\n",
        "memory.toml": "memory = 8\n",
    }.items():
        (folder / name).write_text(content)
    shown(folder, "tokenize --reference ref.fa --mode haplotype --size 60 --starts 2 --out bases")
    shutil.rmtree(shutil.copytree(folder / "risk" / "split0", folder / "unfinished") / "model")
    lost = shutil.copytree(folder / "risk" / "split0", folder / "lost") / "run.json"
    lost.write_text(lost.read_text().replace("people.tsv", "gone.tsv"))
    return folder


START = {"pretrain": PRETRAIN, "genome": GENOME, "finetune": FINETUNE, "risk": RISK, "explain": "explain"}
START["people"] = f"{PRETRAIN} --tokens tokens --length 8"
REFUSED = {
    "pretrain --tokens tokens": "name a reference or sequences, one of them",
    "pretrain --reference ref.fa --tokens gone": "tokens must be a folder of `genome tokenize`.*got 'gone'",
    "genome --steps 0": "steps must be at least 1, got 0",
    "genome memory.toml": "memory has no use here: it must be left out, got 8",
    "genome --dropout nan": r"dropout must be in \[0, 1\), got nan",
    "genome --k 65": r"k must be in 1\.\.64 \(the longest sequence\), got 65",
    "genome --alphabet greek": "alphabet must be one of iupac, thesis; got 'greek'",
    "genome --region 19:39990-50000": r"ref\.fa: has 19:1-40000; 19:39990-50000 is not within",
    "pretrain wrong.toml": r"wrong\.toml: no setting 'hiden'; did you mean 'hidden'\?",
    "finetune --sequences people.tsv --init risk/split0": "init must not have learnt from people who are tested: .*",
    "finetune --sequences people.tsv --init risk/split1 --splits 1": ".*: risk/split1 was fine-tuned on split 1 of .*",
    "risk --splits 0": "splits must be at least 1, got 0",
    "risk --valid-share 0": r"valid and test must be above 0 and below 1 together, got 0\.0 and 0\.2",
    "risk --test-share 0.001": r"20 and 20 people are too few for splits of 0\.1 and 0\.001",
    "risk --region 19:290-340": r"people\.tsv: has 19:301-360; 19:290-340 is not within",
    "risk --length 9": "length must be at least 3., the tokens of the longest sequence, got 9",
    "risk --known 320,x": "known must be whole numbers from 1 on, with commas between; got '320,x'",
    "finetune --sequences people.tsv --init before --heads 8": "heads must be 2, that of the run in init, .*",
    "explain risk": "risk holds a run for each split; name one: risk/split0, risk/split1",
    "finetune --sequences people.tsv --init risk": "tokens must be a folder .* got 'risk/model'",
    "risk --sequences three.tsv": r"three\.tsv: must have two phenotypes, has 3",
    "risk --sequences bare.tsv": r"bare\.tsv: has no phenotypes; encode with --cohort",
    "risk --sequences sides.tsv": r"sides\.tsv: must hold diplotypes, holds haplotypes",
    "risk --sequences mark.tsv": r".*character \d+ must be of the alphabet iupac, got U\+0021",
    "explain gone --out tokens": r"gone/run\.json: No such file or directory",
    "explain before --out tokens": "before is a run of another command: it has no setting 'disease'",
    "explain unfinished --out tokens": r"unfinished has no model yet: .*goes on with --resume",
    "explain lost --out tokens": r"gone\.tsv: no such file",
    "explain risk/split0 --names gone.vcf --out tokens": r"gone\.vcf: no such file",
    "explain risk/split0 --people 0 --out tokens": "people must be at least 2, got 0",
    "risk --known 305": "positions must have variants, none of 305 has",
    "risk --region 19:301-309": "region must have variants, at 19:301-309 nobody differs",
    "risk --region 19:309-312": "region must have at least 6 positions, 19:309-312 has 4",
    "explain gone": r"gone/run\.json: No such file or directory",
    "genome --mode haplotype --alphabet greek": "alphabet must be one of iupac, thesis; got 'greek'",
    "genome --seed -1": r"seed must be in 0\.\.4294967295, got -1",
    "genome --tokens bases --starts 50 --sites sites.vcf": "tokens of bases do not have all characters of .*",
    "people --sequences people.tsv --sites sites.vcf": "sites is for a reference; .* got 'sites.vcf'",
    "people --sequences people.tsv --region 19:310-320": "region is for a reference; .* got '19:310-320'",
    "people --sequences mark.tsv": "tokens of tokens do not have all characters of the sequences",
    "risk --tokens bases": "tokens of bases do not have all characters of the sequences",
    "risk --region 20:301-340": r"people\.tsv: has 19:301-360; 20:301-340 is not within",
    "risk --sequences twice.tsv": r"twice\.tsv: line 43 is of a person who is there already",
    "risk --sequences short.tsv": r"short\.tsv: line 42 must have the 60 positions of 19:301-360",
    "risk --sequences cut.tsv": r"cut\.tsv: line 42 has no end: the file was cut",
    "risk --length 9 --results fresh/risk.jsonl": "length must be at least .*, got 9",
    "finetune --tokens tokens": "sequences must be a file that `genome encode` wrote, got none",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_wrong_is_named(faulty, words):
    start, more = words.split(" ", 1)
    try:
        line = refusal(faulty, f"{START[start]} --out new {more}")
    finally:
        for name in ("new", "fresh"):
            shutil.rmtree(faulty / name, ignore_errors=True)
    assert re.fullmatch(REFUSED[words], line)


def test_a_flag_that_is_none_is_named(faulty):
    code, _, err = told(faulty, "finetune --hiden 3 --out new")
    assert (code, "--hidden" in err, (faulty / "new").exists()) == (2, True, False)
