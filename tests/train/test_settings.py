"""Settings in files: read, checked, written and read back."""

import json
import re
from dataclasses import asdict, fields

import pytest
from tiny import verses

from greenformers import attention
from greenformers.train.save import check_new
from greenformers.train.schedule import Schedule
from greenformers.train.setting import value_of
from greenformers.train.settings import Settings
from greenformers.train.settings_file import read

TOML = """
data = "multi30k"
folder = "data/multi30k"
length = 32
learning_rate = 1
warmup = 0.5
shard = true
[option]
sharing = "none"
k = 8
"""
GIVEN = {
    "data": "multi30k", "folder": "data/multi30k", "length": 32, "learning_rate": 1, "warmup": 0.5, "shard": True,
    "option": {"sharing": "none", "k": 8},
}  # fmt: skip


def test_toml_and_json_read_alike(tmp_path) -> None:
    (tmp_path / "run.toml").write_text(TOML)
    (tmp_path / "run.json").write_text(json.dumps(GIVEN | {"limit": None}))
    assert read(tmp_path / "run.toml") == GIVEN
    assert read(tmp_path / "run.json") == GIVEN | {"limit": None}
    assert Settings(**read(tmp_path / "run.toml")) == Settings(**read(tmp_path / "run.json"))


@pytest.mark.parametrize("settings", [Settings(), Settings(**GIVEN), Settings(steps=7, clip=0.1 + 0.2, patience=2)])
def test_what_is_written_reads_back(tmp_path, settings: Settings) -> None:
    settings.write(tmp_path / "run.json")
    assert Settings(**read(tmp_path / "run.json")) == settings
    assert json.loads((tmp_path / "run.json").read_text()) == asdict(settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat = 1.0", "a.toml: no setting 'learning_rat'; did you mean 'learning_rate'?"),
        ("zzzzzz = 1", "a.toml: no setting 'zzzzzz'"),
        ("batch-size = 8", "a.toml: no setting 'batch-size'"),
        ('epochs = "3"', "a.toml: epochs must be int, got '3'"),
        ("epochs = 3.5", "a.toml: epochs must be int, got 3.5"),
        ("epochs = true", "a.toml: epochs must be int, got True"),
        ("learning_rate = true", "a.toml: learning_rate must be float, got True"),
        ("shard = 1", "a.toml: shard must be bool, got 1"),
        ("folder = 3", "a.toml: folder must be str, got 3"),
        ('option = "k=8"', "a.toml: option must be dict, got 'k=8'"),
        ("[train]\nepochs = 3", "a.toml: settings stand in no table, got [train]"),
        ("data = [", "a.toml is not TOML: "),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, text: str, message: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        read(tmp_path / "a.toml")
    error = str(caught.value)
    assert "\n" not in error
    if message.endswith(" ") or "zzz" in message or "batch-size" in message:
        assert error.startswith(message)
    else:
        assert error == message


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    def killed(_path):
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr("greenformers.train.checkpoint.sync", killed)
        with pytest.raises(SystemExit):
            Settings().write(tmp_path / "run.json")
    assert not (tmp_path / "run.json").exists()
    check_new(tmp_path)  # what was being written is in nobody's way
    Settings().write(tmp_path / "run.json")
    assert Settings(**read(tmp_path / "run.json")) == Settings()
    with pytest.raises(ValueError, match="new or empty folder"):
        check_new(tmp_path)


def test_json_must_hold_settings_by_name(tmp_path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"^a\.json must hold settings by name, got a list$"):
        read(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match=r"^a\.json is not JSON: "):
        read(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"epochs": null}')
    with pytest.raises(ValueError, match=r"^a\.json: epochs must be int, got None$"):
        read(tmp_path / "a.json")


def test_every_setting_of_the_schedule_reaches_it() -> None:
    assert Settings().schedule == Schedule(epochs=Settings().epochs, optimizer="muon")
    shared = {entry.name for entry in fields(Schedule)} & {entry.name for entry in fields(Settings)}
    assert {entry.name for entry in fields(Schedule)} - shared == {"batch_size"}
    changed = {
        "epochs": 3, "steps": 5, "accumulate": 2, "learning_rate": 0.5, "warmup": 0.25, "decay": 0.75,
        "weight_decay": 0.125,
        "clip": 2.0, "seed": 9, "precision": "bf16", "shard": True, "recompute": True, "evaluate_every": 11,
        "log_every": 12, "save_every": 13, "keep": 4, "patience": 6,
    }  # fmt: skip
    assert {*changed, "optimizer", "muon_rate", "low_rank_training"} == shared
    assert Settings(optimizer="muon").schedule.optimizer == "muon"  # which shard excludes, as it does these
    assert Settings(muon_rate=0.25).schedule.muon_rate == 0.25
    assert Settings(low_rank_training="spectral").schedule.low_rank_training == "spectral"
    assert Settings(batch=34, **changed).schedule == Schedule(batch_size=34, **changed)
    with pytest.raises(ValueError, match=r"^epochs must be at least 1, got 0$"):
        _ = Settings(epochs=0).schedule


def test_the_help_of_memory_names_every_attention_that_takes_one() -> None:
    (about,) = (entry.metadata["help"] for entry in fields(Settings) if entry.name == "memory")
    names = {name for name in attention.names() if attention.attention_class(name).positions == "own"}
    assert names == {name for name in attention.names() if re.search(rf"\b{name}\b", about)}


def test_values_as_typed() -> None:
    typed = {"8": 8, "0.5": 0.5, "true": True, "[1, 2]": [1, 2], "none": "none", "": "", "null": None}
    for text, value in typed.items():
        assert value_of(text) == value
        assert type(value_of(text)) is type(value)


def test_layers_of_a_decoder_need_one(tmp_path) -> None:
    with pytest.raises(ValueError, match="decoder_layers is for seq2seq, the data are images; got 2"):
        Settings(data="digits", decoder_layers=2).task()
    given = Settings(data="tinyshakespeare", folder=verses(tmp_path), decoder_layers=2)
    with pytest.raises(ValueError, match="decoder_layers is for seq2seq, the objective is causal_lm; got 2"):
        given.task()


def test_a_vocabulary_that_is_not_made_has_no_size(tmp_path) -> None:
    with pytest.raises(ValueError, match="vocabulary is of texts, the data are images; got 300"):
        Settings(data="digits", vocabulary=300).task()
    given = Settings(data="tinyshakespeare", folder=verses(tmp_path), tokenizer="runs/there", vocabulary=300)
    with pytest.raises(ValueError, match="vocabulary is that of the run in tokenizer, runs/there; got 300"):
        given.task()
