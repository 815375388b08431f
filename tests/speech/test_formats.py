"""Formats of transcripts: what each writes, and that other programs can read it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from greenformers.speech.formats import COLUMNS, Format
from greenformers.speech.transcript import Segment, Transcript, Word

FIRST = Transcript(
    Path("a b.wav"), "seven <b> & two", 5.25, 1.0, None,
    (
        Segment(0.0, 3.0004, "seven <b>", -0.12345), Segment(3.0004, 4.0, "", -0.5),
        Segment(4.0, 5.25, "& two", -2.0),
    ),
)  # fmt: skip
DAMAGED = Transcript(Path("tab\tin\nname.wav"), "", 0.0, 0.1, "tab.wav: empty, 0 bytes")
LATE = Transcript(Path("c.wav"), "é", 3725.5, 9.0, None, (Segment(3723.0, 3725.9996, "é", -1.0),))


def written(form: str, *transcripts: Transcript) -> str:
    return "".join(f"{line}\n" for line in Format(form).lines(transcripts))


def test_text_is_a_line_for_each_file():
    assert written("text", FIRST, DAMAGED, LATE) == "seven <b> & two\n\né\n"
    assert written("text") == ""


def test_tsv_is_a_row_for_each_piece_and_needs_no_quotes():
    head, *rows = written("tsv", FIRST, DAMAGED, LATE).splitlines()
    assert head.split("\t") == list(COLUMNS)
    assert [row.split("\t") for row in rows] == [
        ["a b.wav", "0.0", "3.0", "seven <b>", "-0.123"],
        ["a b.wav", "3.0", "4.0", "", "-0.5"],
        ["a b.wav", "4.0", "5.25", "& two", "-2.0"],
        ["c.wav", "3723.0", "3726.0", "é", "-1.0"],
    ]
    with_tab = Transcript(DAMAGED.path, "x", 1.0, 0.1, None, (Segment(0.0, 1.0, "x", -1.0),))
    assert written("tsv", with_tab).splitlines()[1].split("\t")[0] == "tab in name.wav"


def test_json_is_one_list_whose_first_objects_are_there_early():
    first, second, fourth = json.loads(written("json", FIRST, DAMAGED, LATE))
    assert first["file"] == "a b.wav"
    assert (first["text"], first["seconds"], first["fault"]) == ("seven <b> & two", 5.25, None)
    assert first["segments"][0] == {
        "start": 0.0, "end": 3.0, "text": "seven <b>", "log_probability": -0.123, "words": [],
    }  # fmt: skip
    assert (second["segments"], second["fault"]) == ([], DAMAGED.fault)
    assert fourth["text"] == "é"
    assert json.loads(written("json")) == []
    told = []

    def transcripts():
        for transcript in (FIRST, LATE):
            told.append(transcript.path.name)
            yield transcript

    assert json.loads(next(Format.JSON.lines(transcripts()))[1:])["file"] == "a b.wav"
    assert told == ["a b.wav"]


def test_half_a_millisecond_is_the_same_in_every_format():
    half = Transcript(Path("a.wav"), "a", 5.8895, 1.0, None, (Segment(0.0, 5.8895, "a", -1.0),))
    assert written("tsv", half).splitlines()[1].split("\t")[2] == "5.889"
    assert json.loads(written("json", half))[0]["segments"][0]["end"] == 5.889
    assert " --> 00:00:05,889\n" in written("srt", half)


def test_subtitles_have_numbers_times_and_no_cue_of_silence():
    assert written("srt", FIRST) == (
        "1\n00:00:00,000 --> 00:00:03,000\nseven <b>\n\n2\n00:00:04,000 --> 00:00:05,250\n& two\n\n"
    )
    assert written("srt", LATE) == "1\n01:02:03,000 --> 01:02:06,000\né\n\n"
    assert written("vtt", FIRST) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:03.000\nseven &lt;b&gt;\n\n00:00:04.000 --> 00:00:05.250\n&amp; two\n\n"
    )
    assert written("vtt", DAMAGED) == "WEBVTT\n\n"
    assert written("srt", DAMAGED) == ""


def test_words_have_times_and_make_shorter_cues():
    times = [(0.0, 0.5), (0.6, 1.1), (2.2, 3.0), (3.0, 8.0), (8.0, 9.5)]
    words = tuple(Word(text, *span) for text, span in zip(("ab", "c", "d" * 80, "e", "f"), times, strict=True))
    words = (words[0], replace(words[1], confidence=0.87654), *words[2:])
    text = " ".join(word.text for word in words)
    said = Transcript(Path("a.wav"), text, 10.0, 1.0, None, (Segment(0.0, 10.0, text, -1.0, words),))
    assert json.loads(written("json", said))[0]["segments"][0]["words"][1] == {
        "text": "c", "start": 0.6, "end": 1.1, "confidence": 0.877,
    }  # fmt: skip
    cues = written("srt", said).split("\n\n")
    assert [cue.split("\n")[1:] for cue in cues[:-1]] == [
        ["00:00:00,000 --> 00:00:01,100", "ab c"],
        ["00:00:02,200 --> 00:00:08,000", "d" * 80 + " e"],
        ["00:00:08,000 --> 00:00:09,500", "f"],
    ]
    together = (Segment(0.0, 1.1, "abc", -1.0, words[:2]),)
    assert "\nabc\n" in written("vtt", Transcript(Path("a.wav"), "abc", 1.1, 1.0, None, together))


def test_words_that_are_left_out_leave_spaces() -> None:
    words = (Word("one", 0.0, 0.5), Word("three", 0.9, 1.2))
    sifted = (Segment(0.0, 1.2, "one [..] three", -1.0, words),)
    assert "\none three\n" in written("vtt", Transcript(Path("a.wav"), "one [..] three", 1.2, 1.0, None, sifted))


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_subtitles_are_of_one_file(form):
    Format(form).check(1)
    expected = f"format {form} must have one file, as its times are of one; got 2"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        Format(form).check(2)
    for other in ("text", "tsv", "json"):
        Format(other).check(2)
