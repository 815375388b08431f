"""A run folder: what it holds, what may be done with it, and starting from another one."""

import json
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tiny import QUIET, SMALL, alike, captions, reviews, verses, written
from transformers import AutoTokenizer, TrainerControl, TrainerState, TrainingArguments

from greenformers import GreenformerForMaskedLM, GreenformerForSeq2SeqLM
from greenformers.genome.settings import Finetuning, Pretraining
from greenformers.model import GreenformerForCausalLM, GreenformerForTokenClassification
from greenformers.train import callbacks, run, shard
from greenformers.train.callbacks import Interruption
from greenformers.train.evaluate import evaluate
from greenformers.train.generation import GREEDY
from greenformers.train.settings import Settings


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One finished run of each objective of text."""
    top = tmp_path_factory.mktemp("runs")
    settings = {
        "masked_lm": {"data": "tinyshakespeare", "folder": verses(top / "verses"), "objective": "masked_lm"},
        "replaced_token_detection": {
            "data": "tinyshakespeare", "folder": verses(top / "verses"), "objective": "replaced_token_detection",
        },
        "causal_lm": {"data": "tinyshakespeare", "folder": verses(top / "verses")},
        "seq2seq": {"data": "multi30k", "folder": captions(top / "captions")},
    }  # fmt: skip
    for name, given in settings.items():
        run.start(top / name, Settings(**SMALL | given), QUIET)
    return {name: top / name for name in settings}


KINDS = {
    "masked_lm": GreenformerForMaskedLM,
    "replaced_token_detection": GreenformerForTokenClassification,
    "causal_lm": GreenformerForCausalLM,
    "seq2seq": GreenformerForSeq2SeqLM,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_run_leaves_settings_metrics_scores_and_a_model_that_loads(runs, name: str) -> None:
    folder = runs[name]
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.jsonl", "model", "run.json", "scores.json"]
    files = sorted(path.name for path in (folder / "model").iterdir())
    assert files[0] == "config.json"
    assert "model.safetensors" in files
    assert len({path.stat().st_mode for path in (folder / "model").iterdir()}) == 1
    model = KINDS[name].from_pretrained(folder / "model")
    assert type(run.trained(folder)) is KINDS[name]
    assert model.config.sparse_prediction is False
    assert model.config.hidden_size == 12
    assert not any(key.startswith("generator") for key in load_file(folder / "model" / "model.safetensors"))
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    text = "ein hund 3" if name == "seq2seq" else "to be or not"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert len(tokenizer) == model.config.vocab_size
    scores = json.loads((folder / "scores.json").read_text())
    names = ["loss", "detection"] if name == "replaced_token_detection" else ["loss", "perplexity"]
    assert list(scores) == names
    last = run.metrics_of(folder)[-1]
    assert {key: last[f"eval_{key}"] for key in names} == pytest.approx(scores, rel=1e-5)
    assert run.metrics_of(folder)[-2]["step"] == 3
    assert run.metrics_of(folder)[-2]["loss"] > 0


def test_the_log_is_written_whole_once_and_then_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written whole at every entry, which of 10,000 entries takes longer than a step."""
    whole, replace_file = [], run.checkpoint.replace
    monkeypatch.setattr(run.checkpoint, "replace", lambda *given: whole.append(given) or replace_file(*given))
    metrics, state = run._Metrics(tmp_path / "metrics.jsonl"), TrainerState()
    entries = [{"loss": 1 / step, "step": step} for step in range(1, 6)]
    for length, last in ((1, 5), (3, 4)):  # a run, and what goes on from a checkpoint of its third step
        state.log_history = entries[: length - 1]
        metrics.on_train_begin(None, state, None)
        for entry in entries[length - 1 : last]:
            state.log_history.append(entry)
            metrics.on_log(None, state, None)
        state.log_history.append({"train_runtime": 1.0})
        metrics.on_log(None, state, None)
        metrics.on_train_end(None, state, None)
        assert run.metrics_of(tmp_path) == entries[:last]
    assert len(whole) == 2


@pytest.mark.parametrize("name", ["masked_lm", "causal_lm", "seq2seq"])
def test_the_model_that_is_left_has_the_scores_that_were_told(runs, name: str) -> None:
    writing = GREEDY if name == "seq2seq" else None
    evaluation = evaluate(runs[name], "valid", batch_size=3, writing=writing)
    told = json.loads((runs[name] / "scores.json").read_text())
    assert {key: evaluation.scores[key] for key in told} == pytest.approx(told, rel=1e-4)
    assert len(evaluation.texts) == len(evaluation.written) == (3 if name == "seq2seq" else 0)
    assert (evaluation.intervals, evaluation.baselines, evaluation.differences) == ({}, {}, {})


def test_what_dacs_reads_is_told(tmp_path: Path) -> None:
    settings = {"data": "tinyshakespeare", "folder": verses(tmp_path / "verses"), "variant": "dacs"}
    run.start(tmp_path / "run", Settings(**SMALL | settings), QUIET)
    scores = evaluate(tmp_path / "run", "valid", batch_size=3).scores
    assert list(scores) == ["loss", "perplexity", "keys_read"]
    assert 10 < scores["keys_read"] < 60  # of up to 16 keys about two, whose weights are near a half


def test_a_way_of_writing_is_refused_where_nothing_is_written(runs) -> None:
    with pytest.raises(
        ValueError, match=r"^options of writing are for seq2seq, the run is of \w+, without texts to write$"
    ):
        evaluate(runs["causal_lm"], "valid", writing=GREEDY)


def test_replaced_token_detection_is_not_evaluated(runs) -> None:
    with pytest.raises(ValueError, match=r"^a run of replaced_token_detection leaves an encoder: fine-tune it"):
        evaluate(runs["replaced_token_detection"], "test")


def test_ensure_starts_once_and_then_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(**SMALL | {"data": "sst2", "folder": reviews(tmp_path / "data")})
    folder = tmp_path / "run"
    scores = run.ensure(folder, settings, QUIET)
    assert list(scores) == ["accuracy"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    monkeypatch.setattr(run, "fit", lambda *_, **__: pytest.fail("it trained again"))
    assert run.ensure(folder, settings, QUIET) == scores
    for name, value in {"seed": 1, "optimizer": "adamw"}.items():
        with pytest.raises(ValueError, match=f"^run holds a run with other settings than these: {name}$"):
            run.ensure(folder, replace(settings, **{name: value}), QUIET)
    with pytest.raises(ValueError, match=r"^run has nothing to resume: it ran to its end$"):
        run.resume(folder, QUIET)
    with pytest.raises(ValueError, match=r"^out must be a new or empty folder, got '.*run', which is neither"):
        run.start(folder, settings, QUIET)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_run_keeps_its_optimiser_wherever_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(**SMALL | {"data": "sst2", "folder": reviews(tmp_path / "data"), "steps": 2})
    with monkeypatch.context() as patched:
        patched.setattr(shard, "is_sharded", lambda _: True)  # as `accelerate launch --use_fsdp` asks for
        run.ensure(tmp_path / "run", settings, QUIET)
    (tmp_path / "run" / "scores.json").unlink()
    assert run.settings_of(tmp_path / "run", Settings).optimizer == "adamw"
    run.resume(tmp_path / "run", QUIET)
    assert settings.schedule.optimizer == "muon"


def test_ensure_goes_on_where_a_signal_ended_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(**SMALL | {"data": "sst2", "folder": reviews(tmp_path / "data"), "steps": 4, "batch": 2})
    whole = run.ensure(tmp_path / "whole", settings, QUIET)
    plain = run.fit

    def interrupted(*given, **options):
        class Signal(run.TrainerCallback):
            def on_step_begin(self, args, state, control, **_):
                if state.global_step == 1:
                    import os

                    os.kill(os.getpid(), signal.SIGTERM)

        return plain(*given, **options | {"callbacks": (*options["callbacks"], Signal())})

    monkeypatch.setattr(run, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.ensure(tmp_path / "run", settings, QUIET)
    assert not (tmp_path / "run" / "scores.json").exists()
    began = []

    def resumed(*given, **options):
        class Begun(run.TrainerCallback):
            def on_train_begin(self, args, state, control, **_):
                began.append(state.global_step)

        return plain(*given, **options | {"callbacks": (*options["callbacks"], Begun())})

    monkeypatch.setattr(run, "fit", resumed)
    assert run.ensure(tmp_path / "run", settings, QUIET) == whole
    assert began == [2]
    expected, actual = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(tensor, actual[name]) for name, tensor in expected.items())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "metrics.jsonl", "model", "run.json", "scores.json",
    ]  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
def test_a_signal_that_comes_after_the_last_step_is_not_lost(last: bool) -> None:
    """It was noted, and the end of the training forgot it: a search went on with its next recipe."""
    interruption, control = Interruption(), TrainerControl()
    arguments, state = TrainingArguments(report_to="none"), TrainerState(global_step=9 + last, max_steps=10)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) if last else nullcontext(), interruption.listening():
        signal.raise_signal(signal.SIGINT)
        interruption.on_step_end(arguments, state, control)
    assert control.should_training_stop is not last
    assert signal.getsignal(signal.SIGINT) is before


def test_in_a_thread_signals_are_left_to_the_main_one() -> None:
    def work() -> None:
        with Interruption().listening():
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def test_a_signal_to_another_process_ends_this_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "_anywhere", lambda _: True)
    settings = Settings(**SMALL | {"data": "sst2", "folder": reviews(tmp_path / "data")})
    with pytest.raises(run.Stopped) as stopped:
        run.ensure(tmp_path / "run", settings, QUIET)
    assert stopped.value.signal == signal.SIGTERM
    assert not (tmp_path / "run" / "scores.json").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch": 9}, "batch must be at most 8, the training examples, got 9"),
        ({"variant": "foo"}, "variant must be one of .*; got 'foo'"),
        ({"variant": "linformer", "k": 0}, r"k must be in 1\.\.16 \(the longest sequence\), got 0"),
        ({"k": 4}, "k is for an attention that keeps a part of full attention, the variant is 'transformer'; got 4"),
        ({"option": {"k": 4}}, "option is for an attention, the variant is 'transformer'; got k"),
        ({"objective": "masked_lm"}, "objective must be one of classification for sst2, got 'masked_lm'"),
        ({"length": 3}, "length must be at least 4, got 3"),
        ({"length": 1}, "length must be at least 4, got 1"),
        ({"tokenizer": "bpe", "vocabulary": 5}, "vocabulary must be at least 261 for bpe, got 5"),
        (
            {"tokenizer": "syllables"},
            "tokenizer must be one of characters, bytes, words, bpe or the folder of a finished run on text, got "
            "'syllables'",
        ),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"precision": "half"}, "precision must be one of fp32, bf16, fp16; got 'half'"),
        ({"pool": 2}, "pool is for images, sst2 is text: pool must be 1, got 2"),
    ],
)
def test_refused_settings_leave_no_folder(tmp_path: Path, changed, message: str) -> None:
    data = reviews(tmp_path / "data")
    with pytest.raises(ValueError, match=f"^{message}$"):
        run.start(tmp_path / "run", Settings(**SMALL | {"data": "sst2", "folder": data} | changed), QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_memory_or_a_depth_that_processes_cannot_share_leaves_no_folder(tmp_path: Path, monkeypatch) -> None:
    """Both were refused when training began, behind run.json."""
    data = {"data": "tinyshakespeare", "folder": verses(tmp_path / "data")}
    parts = Settings(**SMALL | data | {"variant": "transformer_xl", "memory": 8, "accumulate": 2})
    with pytest.raises(ValueError, match=r"^memory needs one process and accumulate 1"):
        run.start(tmp_path / "run", parts, QUIET)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"^shard must be off: processes would call the layers of this depth"):
        run.start(tmp_path / "run", Settings(**SMALL | data | {"shard": True, "depth": "universal"}), QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_missing_validation_split_is_found_before_the_work(tmp_path: Path) -> None:
    reviews(tmp_path / "data")
    (tmp_path / "data" / "dev.tsv").unlink()
    settings = Settings(**SMALL | {"data": "sst2", "folder": str(tmp_path / "data")})
    with pytest.raises(ValueError, match=r"^sst2 has no valid split in the folder or dataset given$"):
        run.start(tmp_path / "run", settings, QUIET)
    assert not (tmp_path / "run").exists()
    with pytest.raises(
        FileNotFoundError, match="sst2 needs the folder that holds its files, 'nowhere' is not a folder"
    ):
        run.start(tmp_path / "run", replace(settings, folder="nowhere"), QUIET)
    with pytest.raises(FileNotFoundError):
        run.resume(tmp_path / "run", QUIET)


# Starting from another run.


def fresh(settings: Settings):
    return replace(settings, init=None).task().network()


@pytest.mark.parametrize("source", ["masked_lm", "replaced_token_detection"])
@pytest.mark.parametrize("data", ["stsb", "sst2"])
def test_a_classifier_starts_with_the_encoder_and_a_new_head(runs, tmp_path: Path, source: str, data: str) -> None:
    folder = {"sst2": reviews, "stsb": alike}[data](tmp_path / "data")
    settings = Settings(**SMALL | {"data": data, "folder": folder, "init": str(runs[source])})
    task = settings.task()
    assert task.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(runs[source] / "model").get_vocab()
    model = task.network()
    stored = load_file(runs[source] / "model" / "model.safetensors")
    for name, tensor in model.encoder.state_dict().items():
        assert torch.equal(tensor, stored[f"encoder.{name}"]), name
    # The head is as it would have been without: even the discriminator's two labels are not these.
    assert model.classifier.bias.abs().max() == 0
    assert model.classifier.weight.shape == ({"sst2": 2, "stsb": 1}[data], 12)
    if source == "replaced_token_detection" and data == "sst2":
        assert not torch.equal(model.classifier.weight, stored["classifier.weight"])
    assert run.start(tmp_path / "run", settings, QUIET).steps == 3


def test_more_of_the_same_starts_with_the_head_too(runs) -> None:
    for name in ("masked_lm", "causal_lm", "seq2seq"):
        settings = replace(run.settings_of(runs[name], Settings), init=str(runs[name]), seed=7)
        state, expected = settings.task().network().state_dict(), run.trained(runs[name]).state_dict()
        assert state.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in state.items())


def test_init_of_other_sizes_is_refused(runs, tmp_path: Path) -> None:
    settings = Settings(
        **SMALL | {"data": "sst2", "folder": reviews(tmp_path / "data"), "init": str(runs["masked_lm"])}
    )
    for changed, message in (
        (
            {"hidden": 8},
            r"init must have the sizes of this network: encoder\..* is \(\d+, 12\) there and \(\d+, 8\) here",
        ),
        (
            {"length": 20},
            r"init must have the sizes of this network: encoder\.embedding\.position\S* is \(16, 12\) there",
        ),
        ({"layers": 2}, r"init must be a network of the same slots as this one: it has no encoder\.layers\.1"),
        ({"variant": "lrt"}, r"init must be a network of the same slots as this one: it has no encoder\.layers\.0"),
        (
            {"init": str(runs["causal_lm"])},
            "init must be a run with the encoder of a GreenformerForSequenceClassification, it is one of a "
            "GreenformerForCausalLM",
        ),
        (
            {"heads": 6},
            r"init must be a network of .*: its num_attention_heads is \d, that of this one 6",
        ),
        ({"share": "all"}, "init must be a network of .*: its depth is stacked, that of this one shared"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            replace(settings, **changed).task().network()
    # Nothing is looked for elsewhere under that name.
    with pytest.raises(ValueError, match=r"^init must be the folder of a finished run on text, got 'nowhere'$"):
        replace(settings, init="nowhere").task()


def test_init_of_other_slots_is_refused_but_for_the_pooling(runs, tmp_path: Path) -> None:
    before = run.settings_of(runs["masked_lm"], Settings)
    run.start(tmp_path / "gated", replace(before, feed_forward_kind="gated", pooling="pma"), QUIET)
    after = Settings(**SMALL | {"data": "sst2", "folder": reviews(tmp_path / "data"), "init": str(tmp_path / "gated")})
    message = (
        r"^init must be a network of the same slots as this one: it alone has encoder\.layers\.0\.feed_forward\.gate\."
    )
    with pytest.raises(ValueError, match=message):
        after.task().network()
    model = replace(after, feed_forward_kind="gated").task().network()
    stored = load_file(tmp_path / "gated" / "model" / "model.safetensors")
    assert any(name.startswith("encoder.pool.") for name in stored)
    assert all(torch.equal(tensor, stored[f"encoder.{name}"]) for name, tensor in model.encoder.state_dict().items())


def test_the_seed_of_a_run_decides_its_weights(tmp_path: Path) -> None:
    settings = Settings(**SMALL | {"data": "sst2", "folder": reviews(tmp_path / "data")})
    model, same, other = fresh(settings), fresh(settings), fresh(replace(settings, seed=1))
    assert torch.equal(model.classifier.weight, same.classifier.weight)
    assert not torch.equal(model.classifier.weight, other.classifier.weight)


def test_nothing_of_the_data_is_printed(tmp_path: Path) -> None:
    secret = "a line of its own"
    folder = written(tmp_path / "data", train__tsv=f"{secret}\t0\nx\t1\n" * 4, dev__tsv=f"{secret}\t0\n")
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115
    run.start(tmp_path / "run", Settings(**SMALL | {"data": "sst2", "folder": folder}), console)
    console.file.close()
    assert "3/3 steps" in console.export_text(clear=False)
    assert secret not in console.export_text()


def test_the_test_images_choose_no_model(tmp_path: Path) -> None:
    settings = Settings(
        data="digits", patience=1, **{name: SMALL[name] for name in ("hidden", "heads") if name in SMALL}
    )
    with pytest.raises(ValueError, match=r"^patience would choose by the test images: digits has no validation split$"):
        run.start(tmp_path / "run", settings, QUIET)
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_another_command_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["GreenformerForSpeechSeq2Seq"]}')
    with pytest.raises(ValueError, match="must be a run of another command: it holds a GreenformerForSpeechSeq2Seq"):
        run.trained(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"model must be a finished run: it has no model/config\.json$"):
        run.trained(tmp_path / "model")
    Settings().write(tmp_path / "run.json")
    for kind in (Finetuning, Pretraining):
        with pytest.raises(ValueError, match=f"^{tmp_path} is a run of another command: it has no setting 'tokens'$"):
            run.settings_of(tmp_path, kind)
    Finetuning(sequences="people.tsv").write(tmp_path / "run.json")
    with pytest.raises(ValueError, match=f"^{tmp_path} is a run of another command: it has no setting 'data'$"):
        run.settings_of(tmp_path, Settings)


@pytest.mark.parametrize("size", [0, 5000])
def test_damaged_weights_are_named(runs, tmp_path: Path, size: int) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["masked_lm"], folder)
    weights = folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    message = rf"^{re.escape(str(weights))} is damaged: "
    with pytest.raises(ValueError, match=message):
        run.trained(folder)
    settings = Settings(**SMALL | {"data": "sst2", "folder": reviews(tmp_path / "data"), "init": str(folder)})
    with pytest.raises(ValueError, match=message):
        settings.task().network()
