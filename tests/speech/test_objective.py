"""What a recogniser learns from, and its runs: started, stopped, gone on with, and refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from speech.tones import POSITIONS, QUIET, RATE, SMALL, TEXTS, corpus, digits, finished, settings, spoken
from torch.testing import assert_close
from transformers import TrainerCallback

from greenformers.measure.recognition import scores as error_rates
from greenformers.speech.features import normalised, spec_augment
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.recognise import Recogniser
from greenformers.speech.search import Search
from greenformers.speech.settings import SpeechSettings
from greenformers.train import run
from greenformers.train.settings import Settings
from greenformers.train.settings_file import read
from greenformers.train.shard import ASKED

pytest.importorskip("soundfile", reason="the speech extra is not installed")
pytest.importorskip("jiwer", reason="the speech extra is not installed")

EXACT = {"atol": 0, "rtol": 0}
EOS, IGNORED = 2, -100
DIGITS = SMALL | {"layout": "spoken_digits", "rate": 16_000, "n_fft": 160, "window": 160, "hop": 160}


def source(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("tones"))


@pytest.fixture(scope="module")
def objective(folder):
    return settings(folder).task().objective


@pytest.fixture(scope="module")
def whole(tmp_path_factory, folder) -> Path:
    return finished(tmp_path_factory.mktemp("runs") / "whole", folder, steps=5, save_every=2, evaluate_every=2)


# Examples.


def test_an_example_is_normalised_features_and_characters(objective):
    example = objective.example("train", 3, source())
    expected = objective.spectrogram(objective.recordings.sound("train", 3, source())[0])
    assert example["input_features"].shape == (1 + len(spoken("dab")) // 40, 33)
    assert_close(example["input_features"], normalised(expected), **EXACT)
    assert abs(example["input_features"].mean()) < 1e-5
    assert abs(example["input_features"].std(correction=0) - 1) < 1e-4
    # Ids are 0, 1 and 2 for the marks, then the space, then letters.
    assert example["labels"].tolist() == [7, 4, 5, EOS]
    assert objective.tokenizer.decode(example["labels"][:-1].tolist()) == "dab"
    assert objective.example("train", 2, source())["labels"].tolist() == [4, 3, 5, EOS]


def test_masks_are_for_training_alone_and_drawn_from_the_source(folder, objective):
    augmenting = settings(folder, augment=True).task().objective
    plain = objective.example("train", 8, source())
    for seed in (1, 2):
        masked = augmenting.example("train", 8, source(seed))
        assert_close(masked["input_features"], spec_augment(plain["input_features"], source(seed)), **EXACT)
        assert not torch.equal(masked["input_features"], plain["input_features"])
        assert torch.equal(masked["labels"], plain["labels"])
    assert not torch.equal(augmenting.example("train", 8, source(1))["input_features"], masked["input_features"])
    for split in ("valid", "test"):
        used = source(1)
        before = used.get_state()
        same = augmenting.example(split, 3, used)["input_features"]
        assert_close(same, objective.example(split, 3, source())["input_features"], **EXACT)
        assert torch.equal(used.get_state(), before)


def test_long_texts_are_cut_and_end(tmp_path):
    corpus(tmp_path, train=["ab", "abcd" * 4], valid=["a"])
    first = settings(tmp_path, longest=2.0, hop=64).task().objective
    positions = int(2.0 * RATE / 64) // 4 + 2
    assert (first.longest, first.config().max_position_embeddings) == (positions, positions)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    rows[0]["text"] = "abcd" * 20
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(UserWarning, match="1 of 2 training texts have more than 32 characters"):
        objective = settings(tmp_path, longest=2.0, hop=64).task().objective
    labels = objective.example("train", 0, source())["labels"]
    assert len(labels) == positions
    assert labels[-1] == EOS
    assert labels[:-1].tolist() == ([3, 4, 5, 6] * 20)[: positions - 1]


def test_characters_that_were_never_learnt_are_left_out(tmp_path):
    corpus(tmp_path, train=["ab"] * 4, valid=["acb"])
    with pytest.warns(UserWarning, match="1 characters of the validation split"):
        objective = settings(tmp_path).task().objective
    assert objective.example("valid", 0, source())["labels"].tolist() == [3, 4, EOS]


def test_a_batch(objective):
    examples = [objective.example("train", index, source()) for index in (8, 0, 2)]  # 5, 2 and 3 letters
    batch = objective.collate(examples)
    lengths = [len(example["input_features"]) for example in examples]
    assert batch["input_features"].shape == (3, max(lengths), 33)
    assert batch["attention_mask"].dtype == torch.bool
    assert batch["attention_mask"].sum(1).tolist() == lengths
    for row, example in enumerate(examples):
        assert_close(batch["input_features"][row, : lengths[row]], example["input_features"], **EXACT)
        assert not batch["input_features"][row, lengths[row] :].any()
        assert batch["attention_mask"][row, : lengths[row]].all()
    assert batch["labels"][0].tolist() == examples[0]["labels"].tolist()
    assert batch["labels"][1].tolist() == [*examples[1]["labels"].tolist(), *[IGNORED] * 3]
    assert objective.scored(batch) == 6 + 3 + 4


def retold(folder: Path, **texts: list[str]) -> Path:
    """The corpus with other texts for the same sounds."""
    for split, written in texts.items():
        path = folder / f"{split}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row | {"text": text} for row, text in zip(rows, written, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_texts_that_ctc_cannot_align_are_told(tmp_path):
    """Sounds of "a", of 3 positions: 13 frames. A text has a position for each character, and one between two alike."""
    corpus(tmp_path, train=["a"] * 6, valid=["a"])
    retold(tmp_path, train=["abc", "aab", "aba", "abcd", "aa", "a"])
    task = settings(tmp_path, ctc_weight=0.3).task()
    message = (
        "^2 of 6 training texts have more characters than their recordings have positions of 40 ms, and a repeated one "
        "counts twice; CTC learns nothing from these$"
    )
    with pytest.warns(UserWarning, match=message):
        model = task.network().train()
    for index, aligned in enumerate((True, False, True, False, True, True)):
        batch = task.objective.collate([task.objective.example("train", index, source())])
        memory = model.encoder(batch["input_features"], batch["attention_mask"]).last_hidden_state
        assert memory.shape[1] == 3
        assert bool(model._ctc_loss(memory, None, batch["labels"], None) > 0) == aligned
        assert model(**batch).loss.isfinite()


def test_no_text_that_ctc_can_align_is_refused(tmp_path):
    place = retold(corpus(tmp_path / "tones", train=["a"] * 4, valid=["a"]), train=["abcd"] * 4)
    message = r"^ctc_weight must be 0, got 0\.3: 4 of 4 training texts have more characters than .* counts twice$"
    with pytest.raises(ValueError, match=message):
        run.start(tmp_path / "run", settings(place, ctc_weight=0.3), QUIET)
    assert not (tmp_path / "run").exists()
    settings(place).task().network()  # without CTC it is no fault


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["tones", "digits"])
def test_of_usual_texts_nothing_is_told(tmp_path, folder, kind):
    given = {} if kind == "tones" else DIGITS | {"corpus": str(digits(tmp_path / "digits"))}
    settings(folder, ctc_weight=0.3, **given).task().network()


def test_lengths_bring_batches_of_like_length(objective):
    assert objective.lengths.tolist() == pytest.approx([0.12 * len(text) for text in TEXTS])
    assert [objective.size(split) for split in ("train", "valid", "test")] == [12, 5, 7]


@pytest.mark.parametrize("given", [{}, {"ctc_weight": 0.3}, {"variant": "lrt"}, {"depth": "adaptive"}], ids=str)
def test_evaluation_is_the_loss_a_character_whatever_the_batch(folder, given):
    task = settings(folder, **given).task()
    model = task.network()
    by_hand = []
    for index in range(5):
        batch = task.objective.collate([task.objective.example("valid", index, source())])
        labels = batch.pop("labels")
        start = torch.tensor([[1]])
        with torch.no_grad():
            logits = model.eval()(**batch, decoder_input_ids=torch.cat([start, labels[:, :-1]], 1)).logits
        by_hand += (-logits.double().log_softmax(-1)[0].gather(1, labels[0, :, None])).flatten().tolist()
    expected = sum(by_hand) / len(by_hand)
    assert len(by_hand) == sum(len(text) + 1 for text in TEXTS[:5])
    recogniser = Recogniser(model, task.tokenizer, Search(width=1))
    pairs = [task.objective.recordings.sound("valid", index, source()) for index in range(5)]
    errors = error_rates([recogniser.texts([waveform])[0] for waveform, _ in pairs], [text for _, text in pairs])
    model.train()
    for batch_size in (2, 5):
        scores = task.objective.evaluate(model, "valid", batch_size)
        rates = {name: scores.pop(name) for name in ("cer", "wer")}
        assert scores == pytest.approx({"loss": expected, "perplexity": math.exp(expected)}, rel=1e-4)
        assert rates == pytest.approx({name: errors[name] for name in rates})
    assert model.training


def test_the_configuration_has_the_sound_and_the_sizes(folder):
    config = settings(folder, variant="lrt", ctc_weight=0.2, dropout=0.0).task().network().config
    sound_settings = {
        name: getattr(config, name) for name in ("rate", "n_fft", "window", "hop", "channels", "ctc_weight")
    }
    assert sound_settings == {name: SMALL[name] for name in ("rate", "n_fft", "window", "hop", "channels")} | {
        "ctc_weight": 0.2
    }
    assert (config.max_position_embeddings, config.vocab_size, config.rank, config.input_rank) == (POSITIONS, 8, 3, 3)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, 2)
    assert settings(folder).task().network().config.input_rank is None
    narrow = settings(folder, variant="narrow").task().network().config
    assert (narrow.rank, narrow.input_rank) == (None, None)


# Runs.


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def test_a_run_leaves_settings_scores_and_a_model_that_loads(whole, folder):
    assert sorted(path.name for path in whole.iterdir()) == ["metrics.jsonl", "model", "run.json", "scores.json"]
    assert run.settings_of(whole, SpeechSettings) == settings(folder, steps=5, save_every=2, evaluate_every=2).settled()
    model = run.trained(whole, SpeechSettings)
    assert type(model) is GreenformerForSpeechSeq2Seq
    assert model.config.sparse_prediction is False
    scores = json.loads((whole / "scores.json").read_text())
    objective = settings(folder).task().objective
    assert objective.evaluate(model, "valid", 3) == pytest.approx(scores, rel=1e-4)
    with pytest.raises(ValueError, match="is a run of another command: it has no setting 'data'"):
        run.settings_of(whole, Settings)


class StopAt(TrainerCallback):
    """What kill -9 leaves: nothing of the step under way."""

    def on_optimizer_step(self, args, state, control, **_):
        if state.global_step == 3:
            raise SystemExit(9)


@pytest.mark.parametrize("kind", ["tones", "augmented", "digits"])
def test_a_run_that_goes_on_has_the_same_weights_to_the_bit(tmp_path, monkeypatch, folder, kind):
    paces = {"steps": 5, "save_every": 2, "evaluate_every": 2, "dropout": 0.1}
    given = {"tones": {}, "augmented": {"augment": True, "ctc_weight": 0.2}, "digits": DIGITS}[kind]
    place = digits(tmp_path / "digits", samples=300) if kind == "digits" else folder
    speech_settings = settings(place, **given | paces)
    if kind == "digits":  # 300 strings to choose by are too many here
        from greenformers.speech import spoken_digits

        plain = spoken_digits.load
        monkeypatch.setattr(spoken_digits, "load", lambda *a, **b: plain(*a, **b, valid_strings=3, test_strings=3))
    expected = run.start(tmp_path / "whole", speech_settings, QUIET)
    fit = run.fit
    monkeypatch.setattr(run, "fit", lambda *a, **b: fit(*a, **b | {"callbacks": (*b["callbacks"], StopAt())}))
    with pytest.raises(SystemExit):
        run.start(tmp_path / "run", speech_settings, QUIET)
    assert not (tmp_path / "run" / "model").exists()
    monkeypatch.setattr(run, "fit", fit)
    torch.manual_seed(17)
    resumed = run.resume(tmp_path / "run", QUIET, SpeechSettings)
    assert resumed.scores == expected.scores
    assert resumed.history.log == expected.history.log
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_more_of_the_same_starts_with_its_weights_and_vocabulary(tmp_path, whole):
    corpus(tmp_path / "other", train=["bc"] * 4, valid=["ad"])
    task = settings(tmp_path / "other", init=str(whole), seed=7).task()
    assert len(task.tokenizer) == 8
    state, stored = task.network().state_dict(), weights(whole)
    assert all(torch.equal(state[name], tensor) for name, tensor in stored.items())
    trained = weights(finished(tmp_path / "run", tmp_path / "other", init=str(whole), steps=2))
    assert any(not torch.equal(trained[name], tensor) for name, tensor in stored.items())
    for init in (str(tmp_path / "other"), "nowhere"):
        with pytest.raises(ValueError, match=rf"^init must be the folder of a finished run, got '{init}'$"):
            settings(tmp_path / "other", init=init).task()


def test_what_a_start_does_not_know_is_told(tmp_path, whole):
    corpus(tmp_path / "other", train=["bc", "bX"], valid=["ad"])
    with pytest.warns(UserWarning, match=r"1 characters of the corpus, 25\.0% of its texts, are left out"):
        settings(tmp_path / "other", init=str(whole)).task()
    corpus(tmp_path / "upper", train=["BC"], valid=["AD"])
    with pytest.raises(
        ValueError, match="the vocabulary of init must have characters of the corpus, it has none of them"
    ):
        settings(tmp_path / "upper", init=str(whole)).task()
    with pytest.raises(ValueError, match="hop must be 40, that of the run in init; got 20"):
        settings(tmp_path / "other", init=str(whole), hop=20).task()


def test_texts_that_the_vocabulary_does_not_spell_are_told(tmp_path):
    corpus(tmp_path / "upper", train=["ab", "cd"], valid=["AB"])
    with pytest.raises(ValueError, match="of training must have characters of the validation split, it has none"):
        settings(tmp_path / "upper").task()
    corpus(tmp_path / "some", train=["ab", "cd"], valid=["ab!"])
    with pytest.warns(UserWarning, match=r"1 characters of the validation split, 33\.3% of its texts, are left out"):
        settings(tmp_path / "some").task()


def test_texts_longer_than_the_positions_are_told(tmp_path):
    folder = corpus(tmp_path / "long", train=["ab"] * 4, valid=["ab"])
    path = folder / "train.jsonl"
    first, *others = path.read_text().splitlines()
    long = json.dumps(json.loads(first) | {"text": "ab" * 40})
    path.write_text("\n".join([long, *others]) + "\n")
    with pytest.warns(UserWarning, match="1 of 4 training texts have more than 51 characters"):
        settings(folder).task()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": 8}, "memory has no use here"),
        ({"patience_by": "cer"}, "patience_by goes"),
        ({"pooling": "pma"}, "pooling has no use here: it must be left out, got pma"),
    ],
)
def test_settings_without_effect_are_refused(folder, given, said):
    with pytest.raises(ValueError, match=said):
        settings(folder, **given).task()


@pytest.mark.slow
def test_a_network_learns_the_tones(tmp_path, folder):
    task = settings(folder, steps=60, learning_rate=0.02, hidden=24, dropout=0.0).task()
    before = task.objective.evaluate(task.network(), "valid", 5)["loss"]
    out = finished(tmp_path / "run", folder, steps=60, learning_rate=0.02, hidden=24, dropout=0.0)
    after = json.loads((out / "scores.json").read_text())["loss"]
    # Letters that are guessed by how often they are come to 1.6 nats.
    assert before > 1.6
    assert after < 1.2


# Refused.


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"micro_batches": 2}, "micro_batches .*"),
        ({"longest": 0.0}, r"longest must be above 0.*got 0\.0"),
        ({"longest": math.nan}, "longest must be above 0.*got nan"),
        ({"longest": math.inf}, "longest must be .*got inf"),
        ({"longest": 0.1}, r"longest must be at least 0\.24 s, got 0\.1"),
        ({"layout": "digits"}, "layout must be one of manifest, .*, spoken_digits; got 'digits'"),
        ({"held_out": "bob"}, "held_out is for spoken_digits, the layout is None; got 'bob'"),
        ({"layout": "manifest", "held_out": "bob"}, "held_out is for spoken_digits, the layout is manifest; got 'bob'"),
        ({"layout": "spoken_digits"}, "rate must be 16000 for spoken_digits, got 4000"),
        ({"valid": "x.tsv"}, "valid and test go with a manifest, .* is a folder and has its own splits"),
        ({"hop": 65}, r"hop must be in 1\.\.64 \(window\), got 65"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"ctc_weight": 1.0}, r"ctc_weight must be in \[0, 1\), got 1\.0"),
        ({"rate": 1000}, r"rate must be in 4000\.\.384000 Hz, got 1000"),
        ({"batch": 13}, "batch must be at most 12, the training examples, got 13"),
        ({"rank": 999, "variant": "lrt"}, "rank must be .*, got 999"),
    ],
)
def test_refused_settings_leave_no_folder(tmp_path, folder, changed, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        run.start(tmp_path / "run", settings(folder, **changed), QUIET)
    assert list(tmp_path.iterdir()) == []


def test_refused_settings_of_spoken_digits(tmp_path):
    digits(tmp_path / "digits")
    base = SpeechSettings(**DIGITS | {"corpus": str(tmp_path / "digits")})
    for changed, message in (
        ({"held_out": "theo"}, "held_out must be one of ann, bob, got 'theo'"),
        ({"rate": 8_000}, "rate must be 16000 for spoken_digits, got 8000"),
        ({"valid": "valid.tsv"}, "valid .*"),  # would be ignored
        ({"test": "test.tsv"}, ".*test .*"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            replace(base, **changed).task()
    assert replace(base, held_out="bob").task().objective.size("train") == 10 * 7 // 5


def test_a_corpus_without_valid_or_train_is_found_before_the_work(tmp_path):
    for split in ("train", "valid"):
        place = corpus(tmp_path / split, **{split: ["ab"] * 4})
        missing = {"train": "valid", "valid": "train"}[split]
        with pytest.raises(ValueError, match=rf"^{split} has no {missing} split$"):
            run.start(tmp_path / "run", settings(place), QUIET)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:.*longer than 0.5 s")
def test_too_long_recordings_to_choose_by_cost_no_epoch(tmp_path):
    corpus(tmp_path / "tones", train=["ab"] * 4, valid=["ab", "abcd" * 3])
    assert run.start(tmp_path / "run", settings(tmp_path / "tones", longest=0.5, steps=1), QUIET).steps == 1


def test_too_long_recordings_to_learn_from_are_told(tmp_path):
    corpus(tmp_path / "tones", train=[*["ab"] * 4, "abcdab"], valid=["ab"])
    with pytest.warns(UserWarning, match=r"^1 .* left out: .*longer than 0\.5 s$"):
        task = settings(tmp_path / "tones", longest=0.5).task()
    assert task.objective.size("train") == 4


def test_strings_of_digits_that_do_not_fit_the_network_are_refused_at_the_start(tmp_path):
    digits(tmp_path / "digits")
    given = DIGITS | {"corpus": str(tmp_path / "digits")}
    with pytest.raises(ValueError, match=r"^longest must be at least 1\.69 s for these digits, got 0\.5$"):
        SpeechSettings(**given | {"longest": 0.5}).task()
    task = SpeechSettings(**given | {"longest": 1.69}).task()
    model = task.network()
    for index in range(task.objective.size("train")):
        model(**task.objective.collate([task.objective.example("train", index, source(index))]))


def test_a_setting_that_is_none_names_the_close_one(tmp_path):
    for text, message in (
        ("chanels = 3", "no setting 'chanels'; did you mean 'channels'?"),
        ('held_uot = "ann"', "no setting 'held_uot'; did you mean 'held_out'?"),
        ("zzzz = 3", "no setting 'zzzz'"),
        ('longest = "long"', "longest must be float, got 'long'"),
        ("augment = 1", "augment must be bool, got 1"),
        ("objective = 1", "no setting 'objective'"),
    ):
        (tmp_path / "tiny.toml").write_text(text)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            read(tmp_path / "tiny.toml", SpeechSettings)
        assert str(caught.value) == f"tiny.toml: {message}"
    (tmp_path / "tiny.toml").write_text("longest = 3\nheld_out = 'ann'")
    assert read(tmp_path / "tiny.toml", SpeechSettings) == {"longest": 3, "held_out": "ann"}


def test_transcripts_at_an_evaluation_are_the_first_ones_or_none(folder):
    model = settings(folder).task().network().eval()
    objective = settings(folder, valid_transcripts=2).task().objective
    texts = []
    plain = objective.recordings.sound

    def sound(split, index, source):
        texts.append(index)
        return plain(split, index, source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective.recordings, "sound", sound)
        assert set(objective._error_rates(model, "valid", 1)) == {"cer", "wer"}
    assert texts == [0, 1]
    assert set(settings(folder, valid_transcripts=0).task().objective.evaluate(model, "valid", 5)) == {
        "loss", "perplexity",
    }  # fmt: skip


def test_nothing_is_transcribed_where_accelerate_shards(folder, monkeypatch):
    """The search called parts of the network, whose weights are whole inside the network's call alone."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(ASKED, "true")
    assert [settings(folder, shard=shard).task().objective.transcripts for shard in (False, True)] == [0, 0]
    monkeypatch.delenv(ASKED)
    assert settings(folder).task().objective.transcripts == SpeechSettings.valid_transcripts


def test_early_stopping_by_the_error_rate(tmp_path, folder):
    """The learning rate is 0 but for rounding: no evaluation is better than the first."""
    out = finished(
        tmp_path / "run", folder, steps=6, evaluate_every=1, patience=2, patience_by="wer", learning_rate=1e-12
    )
    entries = [entry for entry in run.metrics_of(out) if "eval_wer" in entry]
    assert [entry["step"] for entry in entries] == [1, 2, 3]
    assert json.loads((out / "scores.json").read_text())["wer"] == entries[0]["eval_wer"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"valid_transcripts": -1}, "valid_transcripts must be at least 0, got -1"),
        ({"patience": 1, "patience_by": "bleu"}, "patience_by must be one of loss, cer, wer, got 'bleu'"),
        (
            {"patience": 1, "patience_by": "cer", "valid_transcripts": 0},
            "patience_by must be loss where no validation recording is transcribed, got 'cer'",
        ),
        (
            {"patience": 1, "patience_by": "cer", "shard": True},
            "patience_by must be loss where no validation recording is transcribed, got 'cer'",
        ),
    ],
)
def test_scores_to_choose_by_out_of_range(folder, given, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        settings(folder, **given).task()
