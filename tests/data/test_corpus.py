"""Corpora of speech read from small written folders: every layout, and every error."""

import json
import warnings
from pathlib import Path

import pytest

from greenformers.data._corpus import LAYOUTS, Corpus, Utterance, load

SECRET = "geheim"  # stands in the texts of damaged files: no message may show it
HKUST = "20040503_220512_A901121_B901122"
AISHELL = "transcript/aishell_transcript_v0.8.txt"


def write(folder, **files):
    """Files by path; text is written as UTF-8."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def message(kind, *args, **options):
    with pytest.raises(kind) as caught:
        load(*args, **options)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_a_split_by_name():
    utterance = Utterance(Path("a.wav"), "yes")
    corpus = Corpus("mine", [utterance], [], [])
    assert corpus.split("train") == [utterance]
    with pytest.raises(ValueError, match=r"^mine has no valid split$"):
        corpus.split("valid")
    with pytest.raises(ValueError, match=r"^split must be one of train, valid, test, got 'dev'$"):
        corpus.split("dev")


MANIFESTS = {
    ".tsv": 'more\ttext\tpath\tend\tspeaker\tstart\nx\tyes  "no"\ta.wav\t2.5\tann\t1\nx\t b \tsub/b.wav\t\t\t\n',
    ".csv": 'path,text,speaker,start,end\r\na.wav,"yes ""no""",ann,1,2.5\r\nsub/b.wav,"\nb",,,\r\n',
    ".jsonl": '{"text": "yes \\"no\\"", "path": "a.wav", "start": 1, "end": 2.5, "speaker": "ann", "x": [1]}\n'
    '{"text": "b", "path": "sub/b.wav", "end": null}\n',
}


@pytest.mark.parametrize("suffix", MANIFESTS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_manifest(tmp_path, suffix, mark):
    write(tmp_path, **{f"mine{suffix}": mark + MANIFESTS[suffix].encode()})
    corpus = load(tmp_path / f"mine{suffix}")
    assert corpus.train == [
        Utterance(tmp_path / "a.wav", 'yes "no"', "ann", 1.0, 2.5),
        Utterance(tmp_path / "sub" / "b.wav", "b", None, 0.0, None),
    ]
    assert (corpus.name, corpus.valid, corpus.test) == (f"mine{suffix}", [], [])


def test_an_absolute_path_stays(tmp_path):
    write(tmp_path, **{"a.tsv": "path\ttext\n/far/a.wav\tyes\n"})
    assert load(tmp_path / "a.tsv").train[0].path == Path("/far/a.wav")


def test_manifests_of_the_other_splits(tmp_path):
    write(tmp_path, **{"a.tsv": "path\ttext\na\tA\n", "x/b.csv": "path,text\nb,B\n", "c.tsv": "path\ttext\nc\tC\n"})
    corpus = load(str(tmp_path / "a.tsv"), "manifest", valid=tmp_path / "x" / "b.csv", test=str(tmp_path / "c.tsv"))
    assert [corpus.split(split)[0].text for split in ("train", "valid", "test")] == ["A", "B", "C"]
    assert corpus.valid[0].path == tmp_path / "x" / "b"
    folder = message(ValueError, write(tmp_path, **{"train.tsv": ""}), valid=tmp_path / "c.tsv")
    assert folder.startswith("valid and test go with a manifest")


def test_a_folder_of_manifests(tmp_path):
    write(tmp_path, **{f"{split}.tsv": f"path\ttext\n{split}.wav\t{split}\n" for split in ("train", "valid", "test")})
    corpus = load(tmp_path)
    assert [corpus.split(split)[0].text for split in ("train", "valid", "test")] == ["train", "valid", "test"]
    (tmp_path / "valid.tsv").unlink()
    assert load(tmp_path, "manifest").valid == []
    write(tmp_path, **{"train.csv": "path,text\na,b\n"})
    assert message(ValueError, tmp_path) == f"{tmp_path.name}: expected one manifest of split train, found 2"


HEAD = "path\ttext\tstart\tend\n"
DAMAGED = {
    "empty": ("a.tsv", "", "line 1: expected utterances, found an empty file"),
    "blank": ("a.csv", "\n", "line 2: expected utterances, found none"),
    "header only": ("a.tsv", HEAD, "line 2: expected utterances, found none"),
    "no text column": ("a.tsv", f"path\n{SECRET}\n", "line 1: expected path, text, found no text"),
    "no path column": ("a.csv", f"text\n{SECRET}\n", "line 1: expected path, text, found no path"),
    "no text key": ("a.jsonl", f'{{"path": "{SECRET}"}}\n', "line 1: expected path, text, found no text"),
    "fields": ("a.tsv", HEAD + f"a\tb\t\t\na\t{SECRET}\n", "line 3: expected 4 fields, found 2"),
    "csv fields": ("a.csv", f"path,text\na,{SECRET},c\n", "line 2: expected 2 fields, found 3"),
    "quotes": ("a.csv", f'path,text\na,b\na,"{SECRET}"x\n', "line 3: expected whole CSV fields"),
    "open quote": ("a.csv", f'path,text\na,"{SECRET}\n', "line 2: expected whole CSV fields"),
    "empty text": ("a.tsv", HEAD + "a\t \t\t\n", "line 2: expected text as text that is not empty"),
    "empty path": ("a.tsv", HEAD + f"\t{SECRET}\t\t\n", "line 2: expected path as text that is not empty"),
    "number as text": ("a.jsonl", '{"path": "a", "text": 3}', "line 1: expected text as text that is not empty"),
    "speaker": (
        "a.jsonl",
        '{"path": "a", "text": "b", "speaker": 3}',
        "line 1: expected speaker as text that is not empty",
    ),
    "JSON": ("a.jsonl", f'{{"path": "a", "text": "b"}}\n{{"path": "{SECRET}\n', "line 2: expected a JSON object"),
    "JSON list": ("a.jsonl", f'["{SECRET}"]\n', "line 1: expected a JSON object"),
    "start": ("a.tsv", HEAD + f"a\tb\t{SECRET}\t\n", "line 2: expected start in seconds, at least 0"),
    "negative": ("a.tsv", HEAD + "a\tb\t-1\t\n", "line 2: expected start in seconds, at least 0"),
    "nan": ("a.tsv", HEAD + "a\tb\t\tnan\n", "line 2: expected end in seconds, at least 0"),
    "true": ("a.jsonl", '{"path": "a", "text": "b", "end": true}', "line 1: expected end in seconds, at least 0"),
    "end": ("a.tsv", HEAD + "a\tb\t2\t2\n", "line 2: expected end after start"),
    "end alone": ("a.tsv", HEAD + "a\tb\t\t0\n", "line 2: expected end after start"),
    "encoding": ("a.tsv", HEAD.encode() + b"a\tb\t\t\n\xe4\n", "line 3: expected UTF-8, found another byte"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_manifest(tmp_path, case):
    name, content, expected = DAMAGED[case]
    write(tmp_path, **{name: content})
    assert message(ValueError, tmp_path / name) == f"{name}, {expected}"


def test_arguments(tmp_path):
    write(tmp_path, **{"a.txt": "path\ttext\n", "b.tsv": "path\ttext\na\tb\n"})
    assert message(ValueError, tmp_path, "wav") == f"layout must be one of {', '.join(LAYOUTS)}, got 'wav'"
    assert message(ValueError, tmp_path / "a.txt") == "a.txt: a manifest must end in .tsv, .csv, .jsonl"
    assert message(ValueError, tmp_path / "b.tsv", "aishell") == "layout aishell must be a folder, b.tsv is a file"
    missing = f"a corpus must be a folder or a manifest, '{tmp_path / 'c'}' is neither"
    assert message(FileNotFoundError, tmp_path / "c") == missing
    with pytest.raises(OSError, match=r"c\.tsv"):
        load(tmp_path / "b.tsv", valid=tmp_path / "c.tsv")


@pytest.fixture
def aishell(tmp_path):
    names = {
        "train/S0002/BAC009S0002W0122": "而 对 楼市",
        "train/S0003/BAC009S0003W0001": "的 ok",
        "test/S0764/T1": "最",
    }
    lines = [f"{name.split('/')[-1]} {text}\n" for name, text in names.items()]
    files = {f"wav/{name}.wav": b"" for name in [*names, "dev/S0724/D1", "dev/S0724/D2"]}
    return write(tmp_path, **files, **{AISHELL: "".join([*lines, "D2  两\t个 \n", "NOAUDIO 一\n"])})


def test_aishell(tmp_path, aishell):
    with pytest.warns(UserWarning, match=r": 1 recordings without transcript left out$") as caught:
        corpus = load(aishell)
    assert caught[0].filename == __file__
    assert corpus.train == [
        Utterance(tmp_path / "wav/train/S0002/BAC009S0002W0122.wav", "而对楼市", "S0002"),
        Utterance(tmp_path / "wav/train/S0003/BAC009S0003W0001.wav", "的ok", "S0003"),
    ]
    assert corpus.valid == [Utterance(tmp_path / "wav/dev/S0724/D2.wav", "两个", "S0724")]
    assert [utterance.text for utterance in corpus.test] == ["最"]


def test_damaged_aishell(tmp_path, aishell):
    write(tmp_path, **{AISHELL: f"A b\n{SECRET}\n"})
    expected = "aishell_transcript_v0.8.txt, line 2: expected an id, a space, and text that is not empty"
    assert message(ValueError, aishell) == expected
    write(tmp_path, **{AISHELL: "A b\nB 而\n".encode("gbk")})
    expected = "aishell_transcript_v0.8.txt, line 2: expected UTF-8, found another byte"
    assert message(ValueError, aishell) == expected


def test_librispeech(tmp_path):
    for part in ("train-other-500", "train-clean-100", "dev-clean", "test-other", "other"):
        speaker = str(len(part))
        lines = f"{speaker}-7-0000 {part.upper()}\n{speaker}-7-0001 IT'S  ON\r\n"
        write(tmp_path, **{f"{part}/{speaker}/7/{speaker}-7.trans.txt": lines})
    corpus = load(tmp_path)
    assert corpus.train == [
        Utterance(tmp_path / "train-clean-100/15/7/15-7-0000.flac", "TRAIN-CLEAN-100", "15"),
        Utterance(tmp_path / "train-clean-100/15/7/15-7-0001.flac", "IT'S ON", "15"),
        Utterance(tmp_path / "train-other-500/15/7/15-7-0000.flac", "TRAIN-OTHER-500", "15"),
        Utterance(tmp_path / "train-other-500/15/7/15-7-0001.flac", "IT'S ON", "15"),
    ]
    assert [utterance.text for utterance in corpus.valid] == ["DEV-CLEAN", "IT'S ON"]
    assert [utterance.text for utterance in corpus.test] == ["TEST-OTHER", "IT'S ON"]
    write(tmp_path, **{"dev-clean/9/7/9-7.trans.txt": "9-7-0000 A\n9-7-0001\n"})
    expected = "9-7.trans.txt, line 2: expected an id, a space, and text that is not empty"
    assert message(ValueError, tmp_path) == expected


def test_common_voice(tmp_path):
    (tmp_path / "clips").mkdir()
    header = "client_id\tpath\tsentence\tup_votes\n"
    write(
        tmp_path,
        **{"train.tsv": header + 'ab1\tone.mp3\t"Oui", dit-il.\t2\n', "dev.tsv": header + "c\tb.mp3\tNon\t0\n"},
    )
    corpus = load(tmp_path)
    assert corpus.train == [Utterance(tmp_path / "clips/one.mp3", '"Oui", dit-il.', "ab1")]
    assert corpus.valid == [Utterance(tmp_path / "clips/b.mp3", "Non", "c")]
    assert corpus.test == []
    write(tmp_path, **{"test.tsv": f"path\tsentence\na\t{SECRET}\n"})
    expected = "test.tsv, line 1: expected path, sentence, client_id, found no client_id"
    assert message(ValueError, tmp_path) == expected


def test_a_manifest_may_have_its_audio_in_clips(tmp_path):
    (tmp_path / "clips").mkdir()
    tables = {f"{split}.tsv": "path\ttext\nclips/a.wav\tyes\n" for split in ("train", "valid")}
    assert load(write(tmp_path, **tables)).train[0].path == tmp_path / "clips/a.wav"


TURNS = """# {call}
transcribed by hand

{lines}
"""


def hkust(folder, lines, call=HKUST, part="train", encoding="gbk", outer=""):
    text = TURNS.format(call=call, lines="\n".join(lines)).encode(encoding)
    return write(folder, **{f"{outer}trans/{part}/{call}.txt": text, f"{outer}audio/{part}/{call}.sph": b""})


@pytest.mark.parametrize("encoding", ["gbk", "utf-8"])
@pytest.mark.parametrize("outer", ["", "data/", "LDC2005/data/"])
def test_hkust(tmp_path, encoding, outer):
    lines = ["0.50 2.25 A: 你好。", "2.25 3 B:  我 很好", "# end"]
    corpus = load(hkust(tmp_path, lines, encoding=encoding, outer=outer))
    audio = tmp_path / f"{outer}audio/train/{HKUST}.sph"
    assert corpus.train == [
        Utterance(audio, "你好", "901121", 0.5, 2.25, 0),
        Utterance(audio, "我很好", "901122", 2.25, 3.0, 1),
    ]
    assert (corpus.valid, corpus.test) == ([], [])


def test_hkust_splits_by_call(tmp_path):
    for number in range(73):
        hkust(tmp_path, ["0 1 A: 是"], f"call{number:03d}")
    hkust(tmp_path, ["0 1 B: 不"], "late", "dev")
    corpus = load(tmp_path, "hkust")
    assert len(corpus.train) == 71
    assert [utterance.path.stem for utterance in corpus.valid] == ["call035", "call071"]
    assert corpus.test == [Utterance(tmp_path / "audio/dev/late.sph", "不", "late-B", 0.0, 1.0, 1)]


MARKS = {
    "{laugh} 对 {breath}对": "对对",
    '用 <foreign language="English"> e-mail  box </foreign> 吧': "用EMAIL BOX吧",
    "<noise> 嗯 </noise>": "嗯",
    "((也许)) (( )) 是": "也许是",
    "%嗯 ~A +吃+ 饭，好吗?": "嗯A吃饭好吗",
    "it's  OK ， U.S.": "IT'S OK US",
}


@pytest.mark.parametrize("marked", MARKS)
def test_hkust_marks(tmp_path, marked):
    assert [utterance.text for utterance in load(hkust(tmp_path, [f"0 1 A: {marked}"])).train] == [MARKS[marked]]


def test_hkust_turns_that_are_left_out(tmp_path):
    lines = ["0 1 A: {laugh}", "1 1 A: 是", "1 2 A: 是B: 不", "2 3 B:", "3 4 B: 好"]
    with pytest.warns(UserWarning, match=r": 4 turns damaged or without words left out$"):
        corpus = load(hkust(tmp_path, lines))
    assert [utterance.text for utterance in corpus.train] == ["好"]


@pytest.mark.parametrize(
    "line", [f"1.0 A: {SECRET}", f"1 2 C: {SECRET}", f"1 2 {SECRET}", SECRET, f"1,0 2 A: {SECRET}"]
)
def test_damaged_hkust(tmp_path, line):
    hkust(tmp_path, ["0 1 A: 是", line])
    expected = f"{HKUST}.txt, line 5: expected 'start end A: text' or 'start end B: text'"
    assert message(ValueError, tmp_path) == expected


def test_hkust_needs_known_bytes_and_audio(tmp_path):
    folder = hkust(tmp_path, ["0 1 A: 是"])
    write(tmp_path, **{f"trans/train/{HKUST}.txt": b"0 1 A: a\n0 1 A: \xff\xff\n"})
    assert message(ValueError, folder) == f"{HKUST}.txt, line 2: expected GBK or UTF-8, found another byte"
    hkust(tmp_path, ["0 1 A: 是"])
    (tmp_path / f"audio/train/{HKUST}.sph").unlink()
    assert message(ValueError, folder) == f"{HKUST}.txt: expected audio train/{HKUST}.sph or .wav, found none"
    write(tmp_path, **{f"audio/train/{HKUST}.WAV": b""})
    assert load(folder).train[0].path.name == f"{HKUST}.WAV"


def test_recognition_wants_exactly_one(tmp_path):
    layouts = ", ".join(LAYOUTS)
    start = f"{tmp_path.name}: expected one layout of {layouts}, recognised"
    assert message(ValueError, tmp_path) == f"{start} none; name it"
    hkust(tmp_path, ["0 1 A: 是"])
    write(tmp_path, **{"train.jsonl": json.dumps({"path": "a", "text": "b"})})
    assert message(ValueError, tmp_path) == f"{start} manifest and hkust; name it"
    assert load(tmp_path, "hkust").train[0].text == "是"
    assert load(tmp_path, "manifest").train[0].text == "b"


@pytest.mark.parametrize("layout", ["manifest", "hkust", "librispeech", "common_voice"])
def test_a_folder_without_utterances(tmp_path, layout):
    expected = f"{tmp_path.name}: expected a corpus in layout {layout}, found no utterance"
    assert message(ValueError, tmp_path, layout) == expected


def test_an_aishell_without_transcripts(tmp_path):
    with pytest.raises(OSError, match=r"aishell_transcript_v0\.8\.txt"):
        load(tmp_path, "aishell")


def test_nothing_is_warned_of_a_whole_corpus(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(hkust(tmp_path, ["0 1 A: 是"]))
