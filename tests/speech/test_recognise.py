"""From sound to text: recognisers from disk, batches, and files of every kind one after the other."""

import shutil
import weakref
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from speech.tones import HERTZ, LETTER, POSITIONS, RATE, TEXTS, corpus, finished, settings, sound, spoken

from greenformers.data import _audio as audio
from greenformers.data import train_tokenizer
from greenformers.data._audio import AudioError
from greenformers.model import GreenformerConfig, GreenformerForSeq2SeqLM
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.recognise import Recogniser, recognised, transcribe
from greenformers.speech.search import Search, beam_search
from greenformers.speech.transcript import Segment

soundfile = pytest.importorskip("soundfile", reason="the speech extra is not installed")

ROOM = POSITIONS * 4 * 40 / RATE  # seconds: 2.08


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    top = tmp_path_factory.mktemp("recognise")
    return finished(top / "run", corpus(top / "tones"), steps=60, learning_rate=0.02, hidden=24, dropout=0.0)


@pytest.fixture(scope="module")
def recogniser(out) -> Recogniser:
    return Recogniser.load(out, Search(width=3, longest=9))


def waveforms(texts=TEXTS) -> list[torch.Tensor]:
    return [torch.from_numpy(spoken(text)).float() for text in texts]


def heard(waveform: torch.Tensor) -> str:
    """What a perfect network writes: the letter of every `LETTER` seconds that are not quiet."""
    text = ""
    for part in waveform.split(round(LETTER * RATE)):
        power = torch.fft.rfft(part.double()).abs()
        hertz = power.argmax().item() * RATE / len(part)
        loud = part.square().mean() > 0.01 and len(part) > 0.04 * RATE
        text += min(HERTZ, key=lambda letter: abs(HERTZ[letter] - hertz)) if loud else ""
    return text


@pytest.fixture
def lengths(monkeypatch) -> list[int]:
    """What networks hear, in place of what they write: samples of every piece."""
    samples: list[int] = []

    def text(waveform):
        samples.append(len(waveform))
        return heard(waveform)

    monkeypatch.setattr(Recogniser, "segments", writing(text))
    return samples


def writing(text):
    """A recogniser's `segments` that writes what a function says of each waveform."""

    def segments(_, pieces, **__):
        return [Segment(start, start + len(sound) / RATE, text(sound), -1.0) for start, sound in pieces]

    return segments


def test_a_run_and_its_model_are_the_same_recogniser(out, recogniser, tmp_path):
    shutil.copytree(out / "model", tmp_path / "copied")
    for folder in (out / "model", tmp_path / "copied"):
        other = Recogniser.load(folder, recogniser.search)
        assert other.texts(waveforms()) == recogniser.texts(waveforms())
    assert Recogniser.load(out).search == Search()
    assert recogniser.space == 3
    assert recogniser.model.training is False


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_without_a_model_is_refused(out, tmp_path, name):
    shutil.copytree(out / "model", tmp_path / "run" / "model")
    (tmp_path / "run" / "model" / name).unlink()
    for folder in (tmp_path / "run", tmp_path / "run" / "model"):
        with pytest.raises(ValueError, match=rf"^{folder} must be a finished run .*, it has no {name}$"):
            Recogniser.load(folder)
    with pytest.raises(ValueError, match=r"gone must be a finished run or a model of speech, it has no config\.json$"):
        Recogniser.load(tmp_path / "gone")


def test_a_model_of_text_is_no_recogniser(tmp_path):
    tokenizer = train_tokenizer("characters", ["abcd"], max_length=8)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = GreenformerConfig(vocab_size=len(tokenizer), decoder_layers=1, **sizes, **marks)
    GreenformerForSeq2SeqLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=str(tmp_path)):
        Recogniser.load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_model_is_an_error_of_the_user(out, tmp_path, name):
    """One that the command line tells in one line."""
    shutil.copytree(out / "model", tmp_path / "model")
    path = tmp_path / "model" / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=rf"^{path} is "):
        Recogniser.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "[]", "must hold a JSON object, got a list"),
        ("tokenizer.json", "{}", "must be that of a tokenizer, it has no added_tokens"),
    ],
)
def test_a_file_of_something_else_is_an_error_of_the_user(out, tmp_path, name, content, message):
    shutil.copytree(out / "model", tmp_path / "model")
    path = tmp_path / "model" / name
    path.write_text(content)
    with pytest.raises(ValueError, match=f"^{path} {message}$"):
        Recogniser.load(tmp_path)


def test_a_batch_writes_what_each_alone_would(recogniser):
    together = recogniser.texts(waveforms())
    assert together == [recogniser.texts([waveform])[0] for waveform in waveforms()]
    assert together[::-1] == recogniser.texts(waveforms()[::-1])
    assert len(set(together)) > 3
    done = []
    assert recognised(recogniser, iter(waveforms()), batch=5, progress=done.append) == together
    assert done == [5, 10, 12]


def test_a_batch_of_nothing_is_refused(recogniser):
    with pytest.raises(ValueError, match=r"^a batch must have at least 1 utterance, got 0$"):
        recogniser.texts([])


def test_how_sure_it_is_does_not_depend_on_the_rest_of_the_batch(recogniser):
    """Of recordings with 0 to 3 frames beyond whole positions."""
    sounds = [waveform[: len(waveform) - 40 * cut] for cut, waveform in enumerate(waveforms(["ab", "cd", "abc", "bd"]))]
    sounds.append(waveforms(["abcdab"])[0])
    options = {"space": recogniser.space, "search": Search(width=1, longest=6)}
    together = beam_search(recogniser.model, *recogniser.features(sounds), **options)
    for waveform, hypotheses in zip(sounds, together, strict=True):
        (alone,) = beam_search(recogniser.model, *recogniser.features([waveform]), **options)
        assert hypotheses[0].tokens == alone[0].tokens
        assert hypotheses[0].log_probability == pytest.approx(alone[0].log_probability, abs=1e-4)


def test_texts_are_the_best_of_the_search(recogniser):
    features, mask = recogniser.features(waveforms()[:3])
    beams = beam_search(recogniser.model, features, mask, space=3, search=recogniser.search)
    letters = {number: letter for letter, number in recogniser.tokenizer.get_vocab().items()}
    expected = ["".join(letters[token] for token in beam[0].tokens) for beam in beams]
    assert recogniser.texts(waveforms()[:3]) == expected


def test_pieces_have_times_and_the_log_probability_of_the_search(recogniser, tmp_path):
    pieces = list(zip((0.0, 7.5), waveforms(["ab", "dab"]), strict=True))
    segments = recogniser.segments(pieces)
    features, mask = recogniser.features([waveform for _, waveform in pieces])
    best = [beam[0] for beam in beam_search(recogniser.model, features, mask, space=3, search=recogniser.search)]
    assert [segment.log_probability for segment in segments] == [hypothesis.log_probability for hypothesis in best]
    assert [(segment.start, segment.end) for segment in segments] == [
        (0.0, pytest.approx(2 * LETTER)), (7.5, pytest.approx(7.5 + 3 * LETTER)),
    ]  # fmt: skip
    path = sound(tmp_path / "long.wav", "ab  cd  ba")
    (whole,) = transcribe(recogniser, [path], longest=0.6, batch=2)
    assert len(whole.segments) > 1
    assert whole.segments[0].start == 0
    for before, after in zip(whole.segments, whole.segments[1:], strict=False):
        assert before.end == pytest.approx(after.start)
    assert whole.segments[-1].end == pytest.approx(whole.seconds)
    assert whole.text == recogniser.joined(segment.text for segment in whole.segments)


def test_words_have_the_times_of_their_sound(tmp_path_factory):
    """Two words with a silence between them, whose ends are known to a sample."""
    top = tmp_path_factory.mktemp("words")
    texts = ["ab cd", "d ca", "bb a", "c dab", "a d", "cb bc", "da b", "ac cd"]
    place = corpus(top / "tones", train=texts * 2, valid=texts[:2])
    out = finished(
        top / "run", place, steps=100, learning_rate=0.02, hidden=24, dropout=0.0, ctc_weight=0.5, valid_transcripts=0
    )
    listener = Recogniser.load(out, Search(width=2, ctc_weight=1.0))
    errors = []
    for start, text in ((0.0, "ab cd"), (3.0, "d ca")):
        (segment,) = listener.segments([(start, waveforms([text])[0])], words=True)
        assert [word.text for word in segment.words] == segment.text.split()
        for before, after in zip(segment.words, segment.words[1:], strict=False):
            assert segment.start <= before.start < before.end <= after.start < after.end <= segment.end
        if segment.text == text:
            cut = start + LETTER * text.index(" ")
            ends = (start, cut, cut + LETTER, segment.end)
            ours = (time for word in segment.words for time in (word.start, word.end))
            errors += [abs(ours - true) for ours, true in zip(ours, ends, strict=True)]
    assert errors
    assert max(errors) <= 0.02
    (segment,) = listener.segments([(0.0, waveforms(["ab cd"])[0])])
    assert segment.words == ()


def test_a_network_without_ctc_has_no_words(recogniser):
    assert recogniser.segments([(0.0, waveforms(["ab"])[0])], words=True)[0].words == ()


def test_dropout_is_off_while_it_listens_and_then_as_it_was(recogniser):
    recogniser.model.train()
    try:
        assert recogniser.texts(waveforms()) == recogniser.texts(waveforms())
        assert recogniser.model.training
    finally:
        recogniser.model.eval()


def several(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Files in order, and of those with a fault a part of what is said about it."""
    folder.mkdir()
    sound(folder / "first.wav", "abc")
    (folder / "empty.wav").write_bytes(b"")
    soundfile.write(folder / "short.wav", np.zeros(100), RATE)
    (folder / "text.txt").write_text("the patient said\n")
    sound(folder / "stereo.flac", "dcba", 96_000, channels=2)
    sound(folder / "cut.wav", "abcd" * 4)
    data = (folder / "cut.wav").read_bytes()
    (folder / "cut.wav").write_bytes(data[: len(data) // 2])
    (folder / "folder.wav").mkdir()
    sound(folder / "last.ogg", "bad")
    names = "first.wav empty.wav short.wav text.txt gone.wav stereo.flac cut.wav folder.wav last.ogg"
    faults = {
        "empty.wav": "empty, 0 bytes", "short.wav": "shorter than 40 ms", "text.txt": "no sound that can be read",
        "gone.wav": "no such file", "cut.wav": "cut off", "folder.wav": "a folder, not a sound file",
    }  # fmt: skip
    return [folder / name for name in names.split()], faults


def test_a_file_that_cannot_be_used_is_told_of_and_the_next_one_follows(recogniser, tmp_path, lengths):
    paths, faults = several(tmp_path / "sounds")
    transcripts = list(transcribe(recogniser, iter(paths), longest=ROOM))
    assert [transcript.path for transcript in transcripts] == paths
    for transcript in transcripts:
        if transcript.path.name in faults:
            assert transcript.fault.startswith(f"{transcript.path}: ")
            assert faults[transcript.path.name] in transcript.fault
            assert (transcript.text, transcript.seconds) == ("", 0)
            assert "patient" not in transcript.fault
        else:
            assert transcript.fault is None
            assert transcript.time > 0
    texts = {transcript.path.name: transcript.text for transcript in transcripts if transcript.fault is None}
    assert len(lengths) == 3
    assert texts == {"first.wav": "abc", "stereo.flac": "dcba", "last.ogg": "bad"}
    seconds = {transcript.path.name: transcript.seconds for transcript in transcripts if transcript.fault is None}
    assert seconds == pytest.approx({"first.wav": 3 * LETTER, "stereo.flac": 4 * LETTER, "last.ogg": 3 * LETTER})


def test_with_a_network_the_rest_goes_on_too(recogniser, tmp_path):
    paths, faults = several(tmp_path / "sounds")
    transcripts = {transcript.path.name: transcript for transcript in transcribe(recogniser, paths, longest=1.0)}
    assert {name for name, transcript in transcripts.items() if transcript.fault} == set(faults)
    assert transcripts["first.wav"].text == recogniser.texts([audio.read(paths[0], rate=RATE)])[0]


def test_nothing_is_lost_of_the_pieces_before_a_damage(recogniser, tmp_path, lengths):
    path = tmp_path / "long.flac"
    text = "abcd dcba " * 12
    soundfile.write(path, np.random.default_rng(0).standard_normal(2**19).clip(-1, 1) * 0.1, RATE)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 20_000] = bytes(20_000)
    path.write_bytes(data)
    expected = []
    with pytest.raises(AudioError) as fault:
        expected.extend(len(piece) for _, piece in audio.pieces(path, 1.5, rate=RATE))
    assert len(expected) > 7
    assert len(expected) % 7
    after = sound(tmp_path / "after.wav", text[:5])
    transcript, other = transcribe(recogniser, [path, after], longest=1.5, batch=7)
    assert lengths[:-1] == expected
    assert transcript.fault == str(fault.value)
    assert transcript.seconds == pytest.approx(sum(expected) / RATE)
    assert (other.text, other.fault) == ("abcd", None)


def test_a_long_file_is_one_text_and_its_progress_is_told(recogniser, tmp_path, lengths):
    # Two letters and a silence, where it is cut.
    words = ["ab", "cd", "ba", "dc", "ca", "bd", "ad"]
    path = sound(tmp_path / "long.wav", "  ".join(words))
    told = []
    (transcript,) = transcribe(recogniser, [path], longest=0.6, batch=2, progress=lambda *done: told.append(done))
    assert len(lengths) >= 5
    assert sum(lengths) == len(spoken("  ".join(words)))
    assert transcript.text == " ".join(filter(None, (heard(piece) for _, piece in audio.pieces(path, 0.6, rate=RATE))))
    assert transcript.text.count(" ") > 3
    assert {path for path, _ in told} == {path}
    expected = np.cumsum([sum(lengths[place : place + 2]) for place in range(0, len(lengths), 2)]) / RATE
    assert [done for _, done in told] == pytest.approx(expected.tolist())
    assert transcript.seconds == told[-1][1]


def test_pieces_without_words_leave_no_gap(recogniser, tmp_path, monkeypatch):
    said = iter(["", "ab", "", "c", ""])
    monkeypatch.setattr(Recogniser, "segments", writing(lambda _: next(said)))
    monkeypatch.setattr(audio, "pieces", lambda *_, **__: ((0.0, torch.zeros(200)) for _ in range(5)))
    (transcript,) = transcribe(recogniser, [tmp_path / "a.wav"], longest=1.0, batch=2)
    assert transcript.text == "ab c"


def test_writing_without_spaces_is_joined_without(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    corpus(tmp_path / "tones", train=["abcd"] * 4, valid=["ab"])
    out = finished(tmp_path / "runs" / "run", tmp_path / "tones", steps=1)
    recogniser = Recogniser.load(out)
    assert recogniser.space is None
    monkeypatch.setattr(Recogniser, "segments", writing(lambda _: "ab"))
    (transcript,) = transcribe(recogniser, [sound(tmp_path / "a.wav", "abcd" * 4)], longest=0.5)
    assert transcript.text == "ab" * (len(transcript.text) // 2)
    assert len(transcript.text) > 6


def test_memory_is_that_of_batches_however_long_the_file(recogniser, monkeypatch):
    alive, most = weakref.WeakSet(), []

    class Piece(torch.Tensor):
        __hash__ = object.__hash__

    def pieces(*_, **__):
        for _ in range(200):
            piece = torch.zeros(2_000).as_subclass(Piece)
            alive.add(piece)
            most.append(len(alive))
            yield 0.0, piece

    monkeypatch.setattr(audio, "pieces", pieces)
    monkeypatch.setattr(Recogniser, "segments", writing(lambda _: "a"))
    (transcript,) = transcribe(recogniser, [Path("a.wav")], longest=1.0, batch=3)
    assert transcript.text.count("a") == 200
    # The batch before may still be held while the next one is read.
    assert max(most) <= 2 * 3 + 1


def test_what_is_out_of_range(recogniser, tmp_path):
    path = sound(tmp_path / "a.wav", "ab")
    for longest in (0.0, 0.1, -1.0, ROOM + 0.01, float("nan")):
        expected = rf"^piece must be in 0\.5\.\.2\.08 s for this network, got {longest:g}$"
        with pytest.raises(ValueError, match=expected):
            transcribe(recogniser, [path], longest=longest)  # before anything is asked of it
    with pytest.raises(ValueError, match=r"^batch must be at least 1, got 0$"):
        transcribe(recogniser, [path], longest=1.0, batch=0)


@pytest.mark.parametrize(("learnt", "piece"), [(None, ROOM), (0.9, 0.9), (0.2, 0.5), (9.0, ROOM)])
def test_pieces_are_what_was_learnt(recogniser, learnt, piece):
    config = deepcopy(recogniser.model.config)
    config.learnt_seconds = learnt
    model = GreenformerForSpeechSeq2Seq(config)
    assert replace(recogniser, model=model).piece == pytest.approx(piece)


def test_the_longest_recording_of_the_training_is_known_to_the_network(recogniser, tmp_path):
    path = sound(tmp_path / "long.wav", "abcd" * 4)
    learnt = recogniser.model.config.learnt_seconds
    assert 0 < learnt < ROOM
    with mock.patch.object(audio, "pieces", return_value=iter(())) as pieces:
        list(transcribe(recogniser, [path]))
    assert pieces.call_args.args[1] == max(0.5, learnt)


@pytest.mark.parametrize("rate", [RATE, 3 * RATE, 11_025])
def test_the_longest_piece_fits_the_network(recogniser, tmp_path, rate):
    path = tmp_path / "long.wav"
    soundfile.write(path, np.random.default_rng(0).standard_normal(5 * rate) * 0.1, rate)
    (transcript,) = transcribe(recogniser, [path], longest=ROOM)
    assert transcript.fault is None
    assert transcript.seconds == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("given", [{"hop": 64}, {"n_fft": 512, "window": 512}], ids=str)
def test_the_shortest_file_is_heard_or_told_of_by_any_network(tmp_path, given):
    """Of 40 ms, in which a network with a long window has no four frames."""
    corpus(tmp_path / "tones", train=["ab"] * 4, valid=["ab"])
    out = finished(tmp_path / "run", tmp_path / "tones", steps=1, **given)
    short, long = tmp_path / "short.wav", sound(tmp_path / "long.wav", "abcd")
    soundfile.write(short, spoken("a")[:160], RATE)
    transcripts = list(transcribe(Recogniser.load(out), [short, long], longest=1.0))
    assert [transcript.path for transcript in transcripts] == [short, long]
    assert transcripts[1].fault is None


def test_the_shortest_utterance_can_be_learnt_with_any_network(tmp_path):
    corpus(tmp_path / "tones", train=["ab"] * 4, valid=["ab"])
    soundfile.write(tmp_path / "tones/sounds/train0.wav", spoken("a")[:160], RATE)
    task = settings(tmp_path / "tones", hop=64, dropout=0.0).task()
    source = torch.Generator()
    for indices in ([0, 1], [0]):
        batch = task.objective.collate([task.objective.example("train", index, source) for index in indices])
        assert task.network()(**batch).loss.isfinite()
