"""The real data sets of text, where they are beside the repository: counts as published, first rows, splits."""

from collections import Counter
from pathlib import Path

import pytest

from greenformers.data import Labelled, Pairs, Text, load

SHARED = Path(__file__).parents[2].parent / "shared/data"


def real(name, folder, **options):
    if not (SHARED / folder).is_dir():
        pytest.skip(f"shared/data/{folder} is not beside the repository on this machine")
    return load(name, SHARED / folder, **options)


def test_wikitext2():
    data = real("wikitext2", "wikitext2")
    assert isinstance(data, Text)
    splits = (data.train, data.valid, data.test)
    assert [text.count("\n") for text in splits] == [36_718, 3_760, 4_358]
    # Words with the line ends, as <eos>, and the distinct ones.
    words = [text.replace("\n", " <eos> ").split() for text in splits]
    assert [len(split) for split in words] == [2_088_628, 217_646, 245_569]
    assert len(set(words[0])) == 33_278
    assert data.train.startswith(" \n = Valkyria Chronicles III = \n")
    assert data.test.startswith(" \n = Robert <unk> = \n")


def test_wikitext2_lines():
    whole, drawn = real("wikitext2", "wikitext2"), real("wikitext2", "wikitext2", limit=4_000)
    assert drawn.train.count("\n") == 4_000
    assert whole.train.startswith(drawn.train)
    assert drawn.valid == whole.valid
    assert drawn.test.count("\n") == 4_000


def test_tinyshakespeare():
    data = real("tinyshakespeare", "tinyshakespeare")
    assert [len(text) for text in (data.train, data.valid, data.test)] == [1_003_854, 55_770, 55_770]
    text = data.train + data.valid + data.test
    assert len(text) == 1_115_394
    assert len(set(text)) == 65
    assert text.startswith("First Citizen:\nBefore we proceed any further")
    assert text.endswith("Whiles thou art waking.\n")


def test_multi30k():
    data = real("multi30k", "multi30k_en_de")
    assert isinstance(data, Pairs)
    assert (data.source, data.target) == ("en", "de")
    assert [len(split) for split in (data.train, data.valid, data.test)] == [29_000, 1_014, 1_000]
    assert data.train[0] == (
        "Two young, White males are outside near many bushes.",
        "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    )
    assert data.test[0] == (
        "A man in an orange hat starring at something.",
        "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    )


def test_sst2():
    data = real("sst2", "sst2")
    assert isinstance(data, Labelled)
    assert data.classes == ("negative", "positive")
    splits = [data.split(name) for name in ("train", "valid", "test")]
    assert [len(split) for split in splits] == [6_920, 872, 1_821]
    assert [Counter(split.labels)[1] for split in splits] == [3_610, 444, 909]  # the published counts
    assert data.valid.texts[0] == ("one long string of cliches",)
    assert data.valid.labels[:6] == [0, 0, 0, 0, 1, 1]


def test_sst2_draw_is_even():
    data = real("sst2", "sst2", limit=101)
    assert [Counter(split.labels)[1] for split in (data.train, data.valid, data.test)] == [53, 51, 50]


def test_qnli():
    data = real("qnli", "qnli_dev")
    assert len(data.valid) == 5_463
    assert Counter(data.valid.labels) == {0: 2_702, 1: 2_761}
    assert data.classes == ("entailment", "not_entailment")
    assert data.valid.texts[0] == (
        "What came into force after the new constitution was herald?",
        "As of that day, the new constitution heralding the Second Republic came into force.",
    )
    assert data.valid.labels[:3] == [0, 1, 1]
    with pytest.raises(ValueError, match=r"^qnli has no train split in the folder or dataset given$"):
        data.split("train")


def test_imdb():
    data = real("imdb", "imdb")
    assert len(data.train) + len(data.valid) == 5_000
    for split, half in ((data.train, 2_250), (data.valid, 250), (data.test, 1_250)):
        assert Counter(split.labels) == {0: half, 1: half}
    assert data.test.texts[0][0].startswith("Sick of the current cinema output")
    # The data set has some reviews twice, and one of those falls on both sides.
    assert len(set(data.train.texts) & set(data.valid.texts)) == 1


def test_stsb():
    data = real("stsb", "stsb_open")
    assert data.classes is None
    # The folder has no test, though its note names one of 625 rows.
    assert [len(split) for split in (data.train, data.valid)] == [2_999, 625]
    assert data.valid.texts[0] == (
        "A cat standing on tree branches.",
        "A black and white cat is high up on tree branches.",
    )
    assert data.valid.labels[:5] == [3.6, 0.0, 1.4, 2.2, 3.8]
    assert min(data.train.labels) == 0
    assert max(data.train.labels) == 5
